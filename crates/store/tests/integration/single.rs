//! One real store process: when its replies count, and when not.

use std::time::{Duration, Instant};

use crate::support::*;
use firstflight_replay::{FlightOffer, SharedConfig, StoreReply::*, Unknown};
use firstflight_store::{Address, Spent, Store, StoreConfig, StoreError, Topology};
use firstflight_testkit::{StoreKind, StoreListen, StoreOptions, StoreProcess};
use libtest_mimic::Trial;

/// All tests of this module.
pub(crate) fn trials() -> Vec<Trial> {
    trials![
        a_flight_is_won_once_on_every_kind_of_store,
        nothing_counts_before_a_recording_window_has_passed,
        claims_within_a_recording_window_are_recorded,
        a_record_ends_by_the_flights_exact_time,
        a_record_that_ends_in_the_past_is_not_kept,
        a_spend_finds_its_own_claim_and_that_of_another,
        a_spend_finds_its_claim_whose_reply_was_lost,
        a_spend_is_recorded_where_claims_do_not_count,
        a_store_too_slow_for_claims_takes_records,
        a_spend_fails_without_a_working_store,
        the_clock_offset_is_measured,
        an_emptied_store_starts_a_new_recording_window,
        a_store_reset_to_a_snapshot_starts_a_new_recording_window,
        a_frozen_store_opens_the_breaker_and_recovers,
        a_late_reply_does_not_count,
        a_store_without_memory_refuses_claims,
        a_store_that_may_evict_does_not_count,
        a_replica_accepts_no_claims,
        a_master_that_becomes_a_replica_stops_counting,
        a_store_whose_claims_do_not_count_says_why,
        claims_do_not_count_if_clocks_differ,
        claims_count_only_with_the_required_replicas,
        exactly_one_of_two_racing_nodes_wins,
        a_name_is_won_once_until_it_is_released,
        a_claim_of_a_name_that_does_not_count_is_removed,
        records_are_stored_taken_and_expire,
        nodes_with_different_settings_do_not_count,
    ]
}

pub(crate) fn single(address: Address) -> StoreConfig {
    config(Topology::Single(address))
}

pub(crate) async fn redis() -> (StoreProcess, Store) {
    let redis = StoreProcess::redis(StoreListen::Unix);
    let store = open(single(at_socket(&redis)));
    until(&store, Won).await;
    (redis, store)
}

async fn assert_won_once(store: &Store, other: &Store) {
    let flight = fresh();
    assert_eq!(claim(store, flight).await, Won);
    assert_eq!(claim(other, flight).await, Lost);
    assert_eq!(claim(store, flight).await, Lost);
}

async fn a_flight_is_won_once_on_every_kind_of_store() {
    for kind in [StoreKind::Redis, StoreKind::Valkey] {
        let process = StoreProcess::start(StoreOptions::new(kind, StoreListen::Tcp));
        let (node, other) = (open(single(at_port(&process))), open(single(at_socket(&process))));
        until(&node, Won).await;
        until(&other, Won).await;
        assert_won_once(&node, &other).await;
    }
}

async fn nothing_counts_before_a_recording_window_has_passed() {
    let redis = StoreProcess::redis(StoreListen::Unix);
    let started = Instant::now();
    let store = open(single(at_socket(&redis)));
    wait_until_reachable(&store).await;
    assert_eq!(claim(&store, fresh()).await, unknown(Unknown::Window));
    until(&store, Won).await;
    assert!(started.elapsed() >= short_config(Duration::ZERO).recording_window());
    // A node that starts later need not wait.
    let other = open(single(at_socket(&redis)));
    wait_until_reachable(&other).await;
    assert_eq!(claim(&other, fresh()).await, Won);
}

async fn claims_within_a_recording_window_are_recorded() {
    let redis = StoreProcess::redis(StoreListen::Unix);
    let store = open(single(at_socket(&redis)));
    wait_until_reachable(&store).await;
    let flight = fresh();
    assert_eq!(claim(&store, flight).await, unknown(Unknown::Window));
    assert_eq!(claim(&store, flight).await, Lost);
}

/// The number of the store's claims, and when one of them expires, by the store's clock.
const CLAIMS: &str = "local keys = redis.call('keys', 'firstflight:c:*')
                      local time = redis.call('time')
                      local now = time[1] * 1000 + math.floor(time[2] / 1000)
                      return {#keys, keys[1] and now + redis.call('pttl', keys[1])}";

fn claims(redis: &StoreProcess) -> (u32, Option<Duration>) {
    let output = redis.cli(&["eval", CLAIMS, "0"]);
    let mut lines = output.lines().map(|line| line.trim().parse::<u64>().ok());
    let number = lines.next().flatten().and_then(|number| u32::try_from(number).ok());
    (number.expect("a number"), lines.next().flatten().map(Duration::from_millis))
}

fn slow_clock() -> i64 {
    unix_micros() - 100_000_000
}

async fn a_record_ends_by_the_flights_exact_time() {
    let redis = StoreProcess::redis(StoreListen::Unix);
    let store = open(single(at_socket(&redis)));
    let slow = Store::open(single(at_socket(&redis)), slow_clock).unwrap();
    wait_until_reachable(&store).await;
    wait_until_reachable(&slow).await;
    for (node, behind, skew, ahead) in [
        (&store, 0, 0, 0),
        (&store, 0, 50, 50),
        (&store, 0, 3600, 3600),
        (&slow, 100, 100, 0),
        (&slow, 100, 3700, 3600),
    ] {
        let now = unix_time();
        let seen_at = now - Duration::from_secs(behind);
        let end = end_of(
            FlightOffer::new(firstflight_replay::ClaimKey::of_flight(&[0; 32]), skew, seen_at, 0)
                .exact_at(),
        );
        let expected = end_of(now + Duration::from_secs(ahead));
        assert!(end.abs_diff(expected) < Duration::from_secs(3), "{skew}");
        let (claimed, spent) = (fresh(), fresh());
        node.claim(claimed, claimant(), end).await;
        let claimed = claims(&redis);
        clear_claims(&redis);
        assert_eq!(node.spend(spent, claimant(), end).await, Ok(Spent::Recorded), "{skew}");
        let spent = claims(&redis);
        clear_claims(&redis);
        for (number, ends) in [claimed, spent] {
            assert_eq!(number, 1);
            let off = ends.expect("an end").abs_diff(end);
            assert!(off < Duration::from_millis(500), "{skew}: {off:?}");
        }
    }
}

fn clear_claims(redis: &StoreProcess) {
    let script = "for _, key in ipairs(redis.call('keys', 'firstflight:c:*')) do \
                  redis.call('del', key) end";
    redis.cli(&["eval", script, "0"]);
}

async fn a_record_that_ends_in_the_past_is_not_kept() {
    let (redis, store) = redis().await;
    clear_claims(&redis);
    let flight = fresh();
    for end in [Duration::ZERO, unix_time() - Duration::from_secs(1)] {
        // No node accepts the flight as fresh any more, so a win is harmless.
        assert_eq!(store.claim(flight, claimant(), end).await, Won);
        assert_eq!(store.spend(flight, claimant(), end).await, Ok(Spent::Recorded));
        assert_eq!(claims(&redis).0, 0);
    }
    // Unless the store's clock is ahead, and may be corrected before the flight is fresh.
    let slow = Store::open(single(at_socket(&redis)), slow_clock).unwrap();
    until(&slow, unknown(Unknown::Clock)).await;
    let end = unix_time() - Duration::from_secs(1);
    assert_eq!(slow.spend(flight, claimant(), end).await, Err(Unknown::Clock));
}

async fn a_spend_finds_its_own_claim_and_that_of_another() {
    let (redis, store) = redis().await;
    let other = open(single(at_socket(&redis)));
    until(&other, Won).await;
    let end = end_of(unix_time() + Duration::from_secs(60));
    let (mine, others) = (claimant(), claimant());
    let flight = fresh();
    assert_eq!(store.claim(flight, mine, end).await, Won);
    for _ in 0..2 {
        assert_eq!(store.spend(flight, mine, end).await, Ok(Spent::Recorded));
        assert_eq!(other.spend(flight, others, end).await, Ok(Spent::Taken));
        assert_eq!(other.claim(flight, others, end).await, Lost);
    }
    let spent = fresh();
    assert_eq!(other.spend(spent, others, end).await, Ok(Spent::Recorded));
    assert_eq!(store.claim(spent, mine, end).await, Lost);
    assert_eq!(store.spend(spent, mine, end).await, Ok(Spent::Taken));
    let statistics = store.statistics();
    let spends = (statistics.spent, statistics.taken, statistics.spend_failures);
    assert_eq!(spends, (2, 1, 0));
    // Of two connections that race, one has the record.
    for _ in 0..50 {
        let flight = fresh();
        let raced = tokio::join!(store.spend(flight, mine, end), other.claim(flight, others, end));
        let sound = matches!(raced, (Ok(Spent::Recorded), Lost) | (Ok(Spent::Taken), Won));
        assert!(sound, "{raced:?}");
    }
}

async fn a_spend_finds_its_claim_whose_reply_was_lost() {
    let redis = StoreProcess::redis(StoreListen::Unix);
    let hasty = StoreConfig { budget: Duration::from_millis(20), ..single(at_socket(&redis)) };
    let store = open(hasty);
    until(&store, Won).await;
    clear_claims(&redis);
    let (flight, mine, end) = (fresh(), claimant(), end_of(unix_time() + Duration::from_secs(60)));
    redis.freeze();
    assert_eq!(store.claim(flight, mine, end).await, unknown(Unknown::Slow));
    redis.thaw();
    let started = Instant::now();
    while claims(&redis).0 == 0 {
        assert!(started.elapsed() < Duration::from_secs(10), "it never arrives");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut spent = Err(Unknown::Slow);
    while spent.is_err() && started.elapsed() < Duration::from_secs(10) {
        spent = store.spend(flight, mine, end).await;
    }
    assert_eq!(spent, Ok(Spent::Recorded));
    assert_eq!(store.spend(flight, claimant(), end).await, Ok(Spent::Taken));
}

async fn a_spend_is_recorded_where_claims_do_not_count() {
    let (redis, store) = redis().await;
    let end = end_of(unix_time() + Duration::from_secs(60));
    let spends = async |store: &Store| {
        let flight = fresh();
        assert_eq!(store.spend(flight, claimant(), end).await, Ok(Spent::Recorded));
        assert_eq!(claim(store, flight).await, Lost);
    };
    let slow = Store::open(single(at_socket(&redis)), slow_clock).unwrap();
    until(&slow, unknown(Unknown::Clock)).await;
    spends(&slow).await;
    assert_eq!(redis.cli(&["flushall"]), "OK");
    until(&store, unknown(Unknown::Window)).await;
    spends(&store).await;
    redis.cli(&["config", "set", "maxmemory-policy", "allkeys-lru"]);
    redis.cli(&["config", "set", "maxmemory", "100mb"]);
    until(&store, unknown(Unknown::Evicting)).await;
    spends(&store).await;
}

/// The breaker stays open, so no claim is attempted.
async fn a_store_too_slow_for_claims_takes_records() {
    let redis = StoreProcess::redis(StoreListen::Unix);
    let impatient = StoreConfig { budget: Duration::from_micros(1), ..single(at_socket(&redis)) };
    let store = open(impatient);
    let started = Instant::now();
    while store.unavailable_reason() != Some(Unknown::Slow) {
        assert_ne!(claim(&store, fresh()).await, Won);
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", store.unavailable_reason());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let end = Instant::now() + Duration::from_secs(6);
    while Instant::now() < end {
        let record_end = end_of(unix_time());
        assert_eq!(store.spend(fresh(), claimant(), record_end).await, Ok(Spent::Recorded));
        assert_eq!(store.unavailable_reason(), Some(Unknown::Slow));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn a_spend_fails_without_a_working_store() {
    let (mut redis, store) = redis().await;
    let end = end_of(unix_time() + Duration::from_secs(60));
    redis.cli(&["config", "set", "maxmemory", "1"]);
    assert_eq!(store.spend(fresh(), claimant(), end).await, Err(Unknown::Refused));
    redis.freeze();
    let started = Instant::now();
    assert!(store.spend(fresh(), claimant(), end).await.is_err());
    assert!(started.elapsed() < Duration::from_secs(3), "one attempt");
    redis.kill();
    while store.spend(fresh(), claimant(), end).await != Err(Unknown::Absent) {
        assert!(started.elapsed() < Duration::from_secs(20));
    }
    assert_eq!(store.statistics().spent, 0);
}

async fn the_clock_offset_is_measured() {
    let redis = StoreProcess::redis(StoreListen::Unix);
    let ahead =
        StoreProcess::start(StoreOptions::new(StoreKind::Valkey, StoreListen::Unix).clock("+10s"));
    let slow = Store::open(single(at_socket(&redis)), slow_clock).unwrap();
    for (store, seconds) in
        [(open(single(at_socket(&redis))), 0), (slow, 100), (open(single(at_socket(&ahead))), 10)]
    {
        wait_until_reachable(&store).await;
        let offset = store.clock_offset_micros().expect("a heartbeat");
        assert!((offset - seconds * 1_000_000).abs() < 900_000, "{seconds} s: {offset} us");
    }
    let directory = tempfile::tempdir().unwrap();
    let nobody = open(single(Address::Unix(directory.path().join("none"))));
    assert_eq!(nobody.clock_offset_micros(), None);
}

/// RFC 8446 section 8.2: after the loss of its records, no claim is won for a recording window.
async fn an_emptied_store_starts_a_new_recording_window() {
    let (mut redis, store) = redis().await;
    for flush in [true, false] {
        let flight = fresh();
        assert_eq!(claim(&store, flight).await, Won);
        let emptied = Instant::now();
        match flush {
            true => assert_eq!(redis.cli(&["flushall"]), "OK"),
            false => redis.restart(),
        }
        while emptied.elapsed() < Duration::from_secs(1) {
            assert_ne!(claim(&store, flight).await, Won);
            assert_ne!(claim(&store, fresh()).await, Won);
        }
        until(&store, Won).await;
        assert!(emptied.elapsed() >= short_config(Duration::ZERO).recording_window());
    }
}

/// Restores the state of a snapshot from before the last claims. The process, its replication id
/// and its epoch stay.
const REVERT: &str = "for _, key in ipairs(redis.call('keys', 'firstflight:c:*')) do
                        redis.call('del', key)
                      end
                      for _, key in ipairs(redis.call('keys', 'firstflight:mark:*')) do
                        if ARGV[1] == 'older' then redis.call('set', key, 1, 'px', 3600000)
                        else redis.call('del', key) end
                      end";

/// Waits until a heartbeat has confirmed a mark that is younger than the epoch. The script does not
/// reset the epoch, and an epoch that is younger than the lost mark counts.
async fn wait_for_marks(redis: &StoreProcess) {
    const MARKS: &str = "local marks = ''
                         for _, key in ipairs(redis.call('keys', 'firstflight:mark:*')) do
                           marks = marks .. redis.call('get', key) .. ' '
                         end
                         return marks";
    // The second mark is set after the first was confirmed.
    for _ in 0..2 {
        let end = Instant::now() + Duration::from_secs(20);
        let before = redis.cli(&["eval", MARKS, "0"]);
        while redis.cli(&["eval", MARKS, "0"]) == before {
            assert!(Instant::now() < end, "no heartbeat sets a mark");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// RFC 8446 section 8.2.
async fn a_store_reset_to_a_snapshot_starts_a_new_recording_window() {
    let (redis, store) = redis().await;
    for mark in ["older", "missing"] {
        let flight = fresh();
        assert_eq!(claim(&store, flight).await, Won);
        wait_for_marks(&redis).await;
        // Taken before the script, because a heartbeat may notice it before redis-cli has ended.
        let reverted = Instant::now();
        redis.cli(&["eval", REVERT, "0", mark]);
        // A machine that is reset to a snapshot has lost its connections.
        redis.cli(&["client", "kill", "type", "normal", "skipme", "yes"]);
        let window = short_config(Duration::ZERO).recording_window();
        while claim(&store, fresh()).await != Won {
            let reply = claim(&store, flight).await;
            assert!(reply != Won || reverted.elapsed() >= window, "{:?}", reverted.elapsed());
            assert!(reverted.elapsed() < Duration::from_secs(30), "it never counts again");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(reverted.elapsed() >= window, "{mark}: {:?}", reverted.elapsed());
    }
    // On connections that stay open, the next heartbeat notices it.
    redis.cli(&["eval", REVERT, "0", "older"]);
    until_within(&store, unknown(Unknown::Window), Duration::from_secs(2)).await;
}

async fn a_frozen_store_opens_the_breaker_and_recovers() {
    let (redis, store) = redis().await;
    redis.freeze();
    let before = store.statistics();
    let started = Instant::now();
    let mut unavailable_count = 0;
    // The third failure opens the breaker, within four seconds.
    while started.elapsed() < Duration::from_secs(4) || unavailable_count <= 100 {
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "the breaker does not open: {unavailable_count}"
        );
        assert!(matches!(claim(&store, fresh()).await, Unknown(_)));
        unavailable_count += u32::from(store.unavailable_reason().is_some());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let slow = store.statistics().unknown_by(Unknown::Slow) - before.unknown_by(Unknown::Slow);
    assert!(slow > 0);
    redis.thaw();
    until(&store, Won).await;
}

async fn a_late_reply_does_not_count() {
    let redis = StoreProcess::redis(StoreListen::Unix);
    let patient = open(single(at_socket(&redis)));
    until(&patient, Won).await;
    let budget = Duration::from_millis(20);
    let hasty = open(StoreConfig { budget, ..single(at_socket(&redis)) });
    until(&hasty, Won).await;
    redis.freeze();
    let started = Instant::now();
    let flight = fresh();
    assert_eq!(claim(&hasty, flight).await, unknown(Unknown::Slow));
    assert!(started.elapsed() >= budget);
    redis.thaw();
    until(&patient, Won).await;
    // Whether the claim was recorded or never sent, the flight is not won twice.
    assert_ne!((claim(&hasty, flight).await, claim(&patient, flight).await), (Won, Won));
}

async fn a_store_without_memory_refuses_claims() {
    let (redis, store) = redis().await;
    assert_eq!(redis.cli(&["config", "set", "maxmemory", "1"]), "OK");
    until(&store, unknown(Unknown::Refused)).await;
    assert_eq!(redis.cli(&["config", "set", "maxmemory", "0"]), "OK");
    // Nothing was lost, so there is nothing to wait for.
    assert_eq!(claim(&store, fresh()).await, Won);
}

async fn a_store_that_may_evict_does_not_count() {
    let (redis, store) = redis().await;
    redis.cli(&["config", "set", "maxmemory-policy", "allkeys-lru"]);
    redis.cli(&["config", "set", "maxmemory", "100mb"]);
    until(&store, unknown(Unknown::Evicting)).await;
    let fixed_at = Instant::now();
    redis.cli(&["config", "set", "maxmemory-policy", "noeviction"]);
    until(&store, Won).await;
    assert!(fixed_at.elapsed() >= short_config(Duration::ZERO).recording_window());
}

async fn a_replica_accepts_no_claims() {
    let master = StoreProcess::redis(StoreListen::Tcp);
    let (host, port) = master.tcp();
    let follows = format!("{host} {port}");
    let replica = StoreProcess::start(
        StoreOptions::new(StoreKind::Redis, StoreListen::Unix)
            .set("replicaof", &follows)
            .set("replica-read-only", "no"),
    );
    let store = open(single(at_socket(&replica)));
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        assert_eq!(claim(&store, fresh()).await, unknown(Unknown::Absent));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(replica.cli(&["replicaof", "no", "one"]), "OK");
    until(&store, Won).await;
}

async fn a_master_that_becomes_a_replica_stops_counting() {
    let (redis, store) = redis().await;
    let other = StoreProcess::redis(StoreListen::Tcp);
    let (host, port) = other.tcp();
    assert_eq!(redis.cli(&["replicaof", &host, &port.to_string()]), "OK");
    assert_ne!(claim(&store, fresh()).await, Won);
    let promoted = Instant::now();
    assert_eq!(redis.cli(&["replicaof", "no", "one"]), "OK");
    until(&store, Won).await;
    assert!(promoted.elapsed() >= short_config(Duration::ZERO).record_lifetime());
}

async fn a_store_whose_claims_do_not_count_says_why() {
    let (redis, store) = redis().await;
    let until_problem = async |expected: Option<Unknown>| {
        let end = Instant::now() + Duration::from_secs(60);
        while store.claim_problem() != expected {
            assert!(Instant::now() < end, "{:?} instead of {expected:?}", store.claim_problem());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    until_problem(None).await;
    redis.cli(&["flushall"]);
    until_problem(Some(Unknown::Window)).await;
    until_problem(None).await;
    redis.cli(&["config", "set", "maxmemory", "1"]);
    until_problem(Some(Unknown::Refused)).await;
}

async fn claims_do_not_count_if_clocks_differ() {
    let redis = StoreProcess::redis(StoreListen::Unix);
    let right = open(single(at_socket(&redis)));
    until(&right, Won).await;
    let fast = Store::open(single(at_socket(&redis)), fast_clock).unwrap();
    wait_until_reachable(&fast).await;
    assert_eq!(claim(&fast, fresh()).await, unknown(Unknown::Clock));
    // A store whose clock is wrong counts for no node.
    let ahead =
        StoreProcess::start(StoreOptions::new(StoreKind::Valkey, StoreListen::Unix).clock("+10s"));
    let store = open(single(at_socket(&ahead)));
    wait_until_reachable(&store).await;
    assert_eq!(claim(&store, fresh()).await, unknown(Unknown::Clock));
}

async fn claims_count_only_with_the_required_replicas() {
    let master = StoreProcess::redis(StoreListen::Tcp);
    let (host, port) = master.tcp();
    let follows = format!("{host} {port}");
    let replica = StoreProcess::start(
        StoreOptions::new(StoreKind::Redis, StoreListen::Unix).set("replicaof", &follows),
    );
    let store = open(StoreConfig { replicas: 1, ..single(at_port(&master)) });
    until(&store, Won).await;
    replica.freeze();
    let flight =
        claim_until(&store, std::iter::repeat_with(fresh), unknown(Unknown::Unreplicated)).await;
    let (spent, mine, end) = (fresh(), claimant(), end_of(unix_time() + Duration::from_secs(60)));
    let (mut unreplicated, started) = (0, Instant::now());
    // The second attempt finds its own record, which the replica still lacks.
    while unreplicated < 2 {
        let why = store.spend(spent, mine, end).await.expect_err("the replica lacks the record");
        unreplicated += u32::from(why == Unknown::Unreplicated);
        assert!(started.elapsed() < Duration::from_secs(30), "{why:?}");
    }
    replica.thaw();
    until(&store, Won).await;
    assert_eq!(claim(&store, flight).await, Lost);
    assert_eq!(store.spend(spent, mine, end).await, Ok(Spent::Recorded));
}

async fn a_claim_of_a_name_that_does_not_count_is_removed() {
    let redis = StoreProcess::redis(StoreListen::Unix);
    let (store, day) = (open(single(at_socket(&redis))), Duration::from_secs(24 * 3600));
    wait_until_reachable(&store).await;
    let in_window = fresh();
    assert_eq!(store.claim_name(in_window, day).await, unknown(Unknown::Window));
    until(&store, Won).await;
    assert_eq!(store.claim_name(in_window, day).await, Won);
    // The store executes the claim, but replies too late.
    let frozen = fresh();
    redis.freeze();
    assert_eq!(store.claim_name(frozen, day).await, unknown(Unknown::Slow));
    redis.thaw();
    until(&store, Won).await;
    let started = Instant::now();
    while store.claim_name(frozen, day).await != Won {
        assert!(started.elapsed() < Duration::from_secs(30), "the claim is not removed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Claims that were won stay.
    let other = open(single(at_socket(&redis)));
    until(&other, Won).await;
    for name in [in_window, frozen] {
        assert_eq!(other.claim_name(name, day).await, Lost);
    }
}

async fn a_name_is_won_once_until_it_is_released() {
    let (redis, store) = redis().await;
    let other = open(single(at_socket(&redis)));
    until(&other, Won).await;
    let (flight, day) = (fresh(), Duration::from_secs(24 * 3600));
    assert_eq!(store.claim_name(flight, day).await, Won);
    assert_eq!(other.claim_name(flight, day).await, Lost);
    assert_eq!(claim(&other, flight).await, Won, "a flight is no name");
    store.release_name(flight).await.unwrap();
    assert_eq!(other.claim_name(flight, Duration::from_millis(50)).await, Won);
    // A name's claim expires.
    let started = Instant::now();
    while store.claim_name(flight, day).await == Lost {
        assert!(started.elapsed() < Duration::from_secs(30), "the claim does not expire");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(redis);
    while store.claim_name(fresh(), day).await == Won {}
    assert!(matches!(store.claim_name(fresh(), day).await, Unknown(_)));
}

async fn exactly_one_of_two_racing_nodes_wins() {
    let (redis, node) = redis().await;
    let other = open(single(at_socket(&redis)));
    until(&other, Won).await;
    let (mut decided, started) = (0, Instant::now());
    while decided < 1000 {
        assert!(started.elapsed() < Duration::from_secs(60), "only {decided} are decided");
        let races = (0..50).map(|_| {
            let (node, other) = (node.clone(), other.clone());
            tokio::spawn(async move { race(&node, &other).await })
        });
        for race in races.collect::<Vec<_>>() {
            decided += u32::from(race.await.unwrap());
        }
    }
    let statistics = node.statistics();
    assert!(
        statistics.batches < statistics.won + statistics.lost,
        "claims do not share exchanges: {statistics:?}"
    );
}

async fn records_are_stored_taken_and_expire() {
    let (_redis, store) = redis().await;
    all_records(&store).await;
}

pub(crate) async fn all_records(store: &Store) {
    let hour = Duration::from_secs(3600);
    assert_eq!(store.get("a").await, Ok(None));
    store.put("a", b"1\r\n\0", hour).await.unwrap();
    assert_eq!(store.get("a").await.unwrap().as_deref(), Some(&b"1\r\n\0"[..]));
    assert_eq!(store.put_new("a", b"2", hour).await, Ok(false));
    assert_eq!(store.put_new("b", b"2", Duration::from_millis(50)).await, Ok(true));
    let taken = store.take("a").await.unwrap();
    assert_eq!((taken.value.as_deref(), taken.counts), (Some(&b"1\r\n\0"[..]), Ok(())));
    assert_eq!(store.take("a").await.unwrap().value, None);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(store.get("b").await, Ok(None));
    assert_eq!(store.set_bit("bits", 32_767, hour).await, Ok(false));
    assert_eq!(store.set_bit("bits", 32_767, hour).await, Ok(true));
    assert_eq!(store.set_bit("bits", 32_766, hour).await, Ok(false));
    assert_eq!(store.get("bits").await.unwrap().unwrap()[4095], 3);
    // A new record, because `PEXPIRE` commands of one record may arrive in any order.
    store.set_bit("brief", 0, Duration::from_millis(50)).await.unwrap();
    while store.get("brief").await.unwrap().is_some() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    store.add("set", "x").await.unwrap();
    store.add("set", "y").await.unwrap();
    store.remove("set", "x").await.unwrap();
    assert_eq!(store.members("set").await.unwrap(), ["y"]);
    assert!(matches!(store.get("set").await, Err(StoreError::Refused(_))), "a set is not a record");
}

async fn nodes_with_different_settings_do_not_count() {
    let (redis, store) = redis().await;
    let freshness = short_config(Duration::ZERO).freshness * 2;
    let shared = SharedConfig { freshness, ..short_config(Duration::ZERO) };
    let other = open(StoreConfig { shared, ..single(at_socket(&redis)) });
    until(&store, unknown(Unknown::Window)).await;
    let end = Instant::now() + 2 * shared.recording_window();
    while Instant::now() < end {
        assert_ne!(claim(&store, fresh()).await, Won);
        assert_ne!(claim(&other, fresh()).await, Won);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(other);
    until(&store, Won).await;
}
