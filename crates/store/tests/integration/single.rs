//! One real store process: what its word is worth, and when it is worth nothing.

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
        what_comes_in_a_window_is_recorded,
        a_record_ends_by_the_flights_exact_time,
        a_record_in_the_past_is_none,
        a_spend_finds_its_own_claim_and_that_of_another,
        a_spend_finds_its_claim_whose_reply_was_lost,
        a_spend_is_recorded_where_claims_do_not_count,
        a_store_too_slow_for_claims_takes_records,
        no_store_no_spend,
        clocks_are_compared,
        an_emptied_store_begins_anew,
        a_store_set_back_to_a_snapshot_begins_anew,
        a_frozen_store_costs_a_budget_a_few_times_and_comes_back,
        a_late_answer_is_none,
        a_store_without_memory_refuses,
        a_store_that_may_evict_does_not_count,
        a_replica_is_no_register,
        a_master_that_becomes_a_replica_stops_to_count,
        killed_connections_are_made_again,
        who_is_to_log_in_logs_in,
        a_clock_that_is_off_does_not_count,
        replicas_have_to_have_it_if_asked_for,
        of_two_nodes_that_race_exactly_one_wins,
        a_name_is_won_once_until_it_is_released,
        a_claim_of_a_name_that_does_not_count_is_removed,
        records_are_kept_taken_and_dropped,
        nobody_at_all,
        nodes_that_count_by_other_times_do_not_count,
        the_last_clone_closes_all_connections
    ]
}

fn single(address: Address) -> StoreConfig {
    config(Topology::Single(address))
}

async fn redis() -> (StoreProcess, Store) {
    let redis = StoreProcess::redis(StoreListen::Unix);
    let store = open(single(at_socket(&redis)));
    until(&store, Won).await;
    (redis, store)
}

async fn twice(store: &Store, other: &Store) {
    let flight = fresh();
    assert_eq!(claim(store, flight).await, Won);
    assert_eq!(claim(other, flight).await, Lost);
    assert_eq!(claim(store, flight).await, Lost);
}

async fn a_flight_is_won_once_on_every_kind_of_store() {
    for kind in [StoreKind::Redis, StoreKind::Valkey] {
        let process = StoreProcess::start(StoreOptions::new(kind, StoreListen::Tcp));
        let (one, other) = (open(single(at_port(&process))), open(single(at_socket(&process))));
        until(&one, Won).await;
        until(&other, Won).await;
        twice(&one, &other).await;
    }
}

async fn nothing_counts_before_a_recording_window_has_passed() {
    let redis = StoreProcess::redis(StoreListen::Unix);
    let began = Instant::now();
    let store = open(single(at_socket(&redis)));
    reached(&store).await;
    assert_eq!(claim(&store, fresh()).await, unknown(Unknown::Window));
    until(&store, Won).await;
    assert!(began.elapsed() >= short(Duration::ZERO).recording_window());
    // Another node that comes later need not wait.
    let other = open(single(at_socket(&redis)));
    reached(&other).await;
    assert_eq!(claim(&other, fresh()).await, Won);
}

async fn what_comes_in_a_window_is_recorded() {
    let redis = StoreProcess::redis(StoreListen::Unix);
    let store = open(single(at_socket(&redis)));
    reached(&store).await;
    let flight = fresh();
    assert_eq!(claim(&store, flight).await, unknown(Unknown::Window));
    assert_eq!(claim(&store, flight).await, Lost);
}

/// The number of the store's claims, and when the first of them ends, by its own clock.
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
    reached(&store).await;
    reached(&slow).await;
    let seen_at = unix_time();
    let seen_by_slow = seen_at - Duration::from_secs(100);
    for (node, skew, seen_at, ahead) in [
        (&store, 0, seen_at, 0),
        (&store, 50, seen_at, 50),
        (&store, 3600, seen_at, 3600),
        (&slow, 100, seen_by_slow, 0),
        (&slow, 3700, seen_by_slow, 3600),
    ] {
        let end = end_of(
            FlightOffer::new(firstflight_replay::ClaimKey::of_flight(&[0; 32]), skew, seen_at, 0)
                .exact_at(),
        );
        let expected = end_of(unix_time() + Duration::from_secs(ahead));
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

async fn a_record_in_the_past_is_none() {
    let (redis, store) = redis().await;
    clear_claims(&redis);
    let flight = fresh();
    for end in [Duration::ZERO, unix_time() - Duration::from_secs(1)] {
        // Nobody can find the flight fresh any more, so a win is of no use.
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
    let seen = store.statistics();
    assert_eq!((seen.spent, seen.taken, seen.spend_failures), (2, 1, 0));
    // Of two that race, one has it.
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
    let began = Instant::now();
    while claims(&redis).0 == 0 {
        assert!(began.elapsed() < Duration::from_secs(10), "it never arrives");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut spent = Err(Unknown::Slow);
    while spent.is_err() && began.elapsed() < Duration::from_secs(10) {
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

/// The breaker is open all the time: no claim is even tried.
async fn a_store_too_slow_for_claims_takes_records() {
    let redis = StoreProcess::redis(StoreListen::Unix);
    let impatient = StoreConfig { budget: Duration::from_micros(1), ..single(at_socket(&redis)) };
    let store = open(impatient);
    let began = Instant::now();
    while store.unavailable_reason() != Some(Unknown::Slow) {
        assert_ne!(claim(&store, fresh()).await, Won);
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", store.unavailable_reason());
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

async fn no_store_no_spend() {
    let (mut redis, store) = redis().await;
    let end = end_of(unix_time() + Duration::from_secs(60));
    redis.cli(&["config", "set", "maxmemory", "1"]);
    assert_eq!(store.spend(fresh(), claimant(), end).await, Err(Unknown::Refused));
    redis.freeze();
    let began = Instant::now();
    assert!(store.spend(fresh(), claimant(), end).await.is_err());
    assert!(began.elapsed() < Duration::from_secs(3), "one attempt");
    redis.kill();
    while store.spend(fresh(), claimant(), end).await != Err(Unknown::Absent) {
        assert!(began.elapsed() < Duration::from_secs(20));
    }
    assert_eq!(store.statistics().spent, 0);
}

async fn clocks_are_compared() {
    let redis = StoreProcess::redis(StoreListen::Unix);
    let ahead =
        StoreProcess::start(StoreOptions::new(StoreKind::Valkey, StoreListen::Unix).clock("+10s"));
    let slow = Store::open(single(at_socket(&redis)), slow_clock).unwrap();
    for (store, seconds) in
        [(open(single(at_socket(&redis))), 0), (slow, 100), (open(single(at_socket(&ahead))), 10)]
    {
        reached(&store).await;
        let offset = store.clock_offset_micros().expect("a heartbeat");
        assert!((offset - seconds * 1_000_000).abs() < 900_000, "{seconds} s: {offset} us");
    }
    let directory = tempfile::tempdir().unwrap();
    let nobody = open(single(Address::Unix(directory.path().join("none"))));
    assert_eq!(nobody.clock_offset_micros(), None);
}

/// RFC 8446 section 8.2: after the loss of the record, nothing is taken for a recording window.
async fn an_emptied_store_begins_anew() {
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
        assert!(emptied.elapsed() >= short(Duration::ZERO).recording_window());
    }
}

/// Puts back what a snapshot from before the last claims holds: the process, its line of
/// replication and its epoch stay.
const REVERT: &str = "for _, key in ipairs(redis.call('keys', 'firstflight:c:*')) do
                        redis.call('del', key)
                      end
                      for _, key in ipairs(redis.call('keys', 'firstflight:mark:*')) do
                        if ARGV[1] == 'older' then redis.call('set', key, 1, 'px', 3600000)
                        else redis.call('del', key) end
                      end";

/// RFC 8446 section 8.2.
async fn a_store_set_back_to_a_snapshot_begins_anew() {
    let (redis, store) = redis().await;
    for mark in ["older", "missing"] {
        let flight = fresh();
        assert_eq!(claim(&store, flight).await, Won);
        // Before the script runs: a heartbeat may find it before its client has ended.
        let reverted = Instant::now();
        redis.cli(&["eval", REVERT, "0", mark]);
        // A machine that is set back does not know its connections any more.
        redis.cli(&["client", "kill", "type", "normal", "skipme", "yes"]);
        let window = short(Duration::ZERO).recording_window();
        while claim(&store, fresh()).await != Won {
            let reply = claim(&store, flight).await;
            assert!(reply != Won || reverted.elapsed() >= window, "{:?}", reverted.elapsed());
            assert!(reverted.elapsed() < Duration::from_secs(30), "it never counts again");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(reverted.elapsed() >= window, "{mark}: {:?}", reverted.elapsed());
    }
    // On connections that stay, the next heartbeat finds it.
    redis.cli(&["eval", REVERT, "0", "older"]);
    until_within(&store, unknown(Unknown::Window), Duration::from_secs(2)).await;
}

async fn a_frozen_store_costs_a_budget_a_few_times_and_comes_back() {
    let (redis, store) = redis().await;
    redis.freeze();
    let before = store.statistics();
    let end = Instant::now() + Duration::from_secs(4);
    let mut unavailable_reason = 0;
    while Instant::now() < end {
        assert!(matches!(claim(&store, fresh()).await, Unknown(_)));
        unavailable_reason += u32::from(store.unavailable_reason().is_some());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let slow = store.statistics().unknown_by(Unknown::Slow) - before.unknown_by(Unknown::Slow);
    assert!(unavailable_reason > 100, "the breaker does not open: {unavailable_reason}");
    assert!(slow > 0);
    redis.thaw();
    until(&store, Won).await;
}

async fn a_late_answer_is_none() {
    let redis = StoreProcess::redis(StoreListen::Unix);
    let patient = open(single(at_socket(&redis)));
    until(&patient, Won).await;
    let budget = Duration::from_millis(20);
    let hasty = open(StoreConfig { budget, ..single(at_socket(&redis)) });
    until(&hasty, Won).await;
    redis.freeze();
    let began = Instant::now();
    let flight = fresh();
    assert_eq!(claim(&hasty, flight).await, unknown(Unknown::Slow));
    assert!(began.elapsed() >= budget);
    redis.thaw();
    until(&patient, Won).await;
    // It was recorded all the same, or was never sent: in no case is it won twice.
    assert_ne!((claim(&hasty, flight).await, claim(&patient, flight).await), (Won, Won));
}

async fn a_store_without_memory_refuses() {
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
    assert!(fixed_at.elapsed() >= short(Duration::ZERO).recording_window());
}

async fn a_replica_is_no_register() {
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

async fn a_master_that_becomes_a_replica_stops_to_count() {
    let (redis, store) = redis().await;
    let other = StoreProcess::redis(StoreListen::Tcp);
    let (host, port) = other.tcp();
    assert_eq!(redis.cli(&["replicaof", &host, &port.to_string()]), "OK");
    assert_ne!(claim(&store, fresh()).await, Won);
    let promoted = Instant::now();
    assert_eq!(redis.cli(&["replicaof", "no", "one"]), "OK");
    until(&store, Won).await;
    assert!(promoted.elapsed() >= short(Duration::ZERO).record_lifetime());
}

async fn killed_connections_are_made_again() {
    let (redis, store) = redis().await;
    for _ in 0..5 {
        redis.cli(&["client", "kill", "type", "normal", "skipme", "yes"]);
        let killed = Instant::now();
        // The same process, so its epoch goes on.
        until_within(&store, Won, short(Duration::ZERO).recording_window()).await;
        assert!(killed.elapsed() < short(Duration::ZERO).recording_window());
    }
    assert!(store.statistics().connections > 2);
}

async fn who_is_to_log_in_logs_in() {
    let redis = StoreProcess::redis(StoreListen::Unix);
    // As docs/operate/cluster.md has it.
    let rules = "~firstflight:* +set +get +getdel +del +pttl +time +info +wait +sadd +srem +smembers \
                 +setbit +pexpire +select";
    let mut words = vec!["acl", "setuser", "ff", "on", ">s3cret word"];
    words.extend(rules.split(' '));
    assert_eq!(redis.cli(&words), "OK");
    let with = |username: Option<&str>, password: Option<&str>| StoreConfig {
        username: username.map(ToOwned::to_owned),
        password: password.map(ToOwned::to_owned),
        database: 3,
        ..single(at_socket(&redis))
    };
    let store = open(with(Some("ff"), Some("s3cret word")));
    until(&store, Won).await;
    all_records(&store).await;
    // The password is replaced, first here, then in the store, which ends all connections.
    store.set_passwords(&with(Some("ff"), Some("another")));
    assert_eq!(redis.cli(&["acl", "setuser", "ff", "resetpass", ">another"]), "OK");
    assert_ne!(redis.cli(&["client", "kill", "user", "ff"]), "0");
    until(&store, Won).await;
    assert_eq!(redis.cli(&["acl", "setuser", "default", "off"]), "OK");
    for wrong in [with(Some("ff"), Some("no")), with(None, Some("no")), with(None, None)] {
        let store = open(wrong);
        let error = store.get("x").await.unwrap_err();
        assert!(matches!(error, StoreError::Refused(_)), "{error}");
        assert_eq!(claim(&store, fresh()).await, unknown(Unknown::Absent));
    }
}

async fn a_clock_that_is_off_does_not_count() {
    let redis = StoreProcess::redis(StoreListen::Unix);
    let right = open(single(at_socket(&redis)));
    until(&right, Won).await;
    let fast = Store::open(single(at_socket(&redis)), fast_clock).unwrap();
    reached(&fast).await;
    assert_eq!(claim(&fast, fresh()).await, unknown(Unknown::Clock));
    // A store whose clock is off is as bad for all.
    let ahead =
        StoreProcess::start(StoreOptions::new(StoreKind::Valkey, StoreListen::Unix).clock("+10s"));
    let store = open(single(at_socket(&ahead)));
    reached(&store).await;
    assert_eq!(claim(&store, fresh()).await, unknown(Unknown::Clock));
}

async fn replicas_have_to_have_it_if_asked_for() {
    let master = StoreProcess::redis(StoreListen::Tcp);
    let (host, port) = master.tcp();
    let follows = format!("{host} {port}");
    let replica = StoreProcess::start(
        StoreOptions::new(StoreKind::Redis, StoreListen::Unix).set("replicaof", &follows),
    );
    let store = open(StoreConfig { replicas: 1, ..single(at_port(&master)) });
    until(&store, Won).await;
    replica.freeze();
    let flight = fresh();
    assert_eq!(claim(&store, flight).await, unknown(Unknown::Unreplicated));
    let (spent, mine, end) = (fresh(), claimant(), end_of(unix_time() + Duration::from_secs(60)));
    for _ in 0..2 {
        // Also what it finds to be its own, but the replica has not got.
        assert_eq!(store.spend(spent, mine, end).await, Err(Unknown::Unreplicated));
    }
    replica.thaw();
    until(&store, Won).await;
    assert_eq!(claim(&store, flight).await, Lost);
    assert_eq!(store.spend(spent, mine, end).await, Ok(Spent::Recorded));
}

async fn a_claim_of_a_name_that_does_not_count_is_removed() {
    let redis = StoreProcess::redis(StoreListen::Unix);
    let (store, day) = (open(single(at_socket(&redis))), Duration::from_secs(24 * 3600));
    reached(&store).await;
    let in_window = fresh();
    assert_eq!(store.claim_name(in_window, day).await, unknown(Unknown::Window));
    until(&store, Won).await;
    assert_eq!(store.claim_name(in_window, day).await, Won);
    // The store executes it, but too late for its reply.
    let frozen = fresh();
    redis.freeze();
    assert_eq!(store.claim_name(frozen, day).await, unknown(Unknown::Slow));
    redis.thaw();
    until(&store, Won).await;
    let began = Instant::now();
    while store.claim_name(frozen, day).await != Won {
        assert!(began.elapsed() < Duration::from_secs(30), "it is removed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // What has been won stays.
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
    // Names may be claimed for a short time, too.
    let began = Instant::now();
    while store.claim_name(flight, day).await == Lost {
        assert!(began.elapsed() < Duration::from_secs(30), "it ends");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(redis);
    while store.claim_name(fresh(), day).await == Won {}
    assert!(matches!(store.claim_name(fresh(), day).await, Unknown(_)));
}

async fn of_two_nodes_that_race_exactly_one_wins() {
    let (redis, one) = redis().await;
    let other = open(single(at_socket(&redis)));
    until(&other, Won).await;
    let mut wins = 0;
    for _ in 0..20 {
        let claims = (0..50).map(|_| {
            let (one, other, flight) = (one.clone(), other.clone(), fresh());
            tokio::spawn(async move { tokio::join!(claim(&one, flight), claim(&other, flight)) })
        });
        for claim in claims.collect::<Vec<_>>() {
            let replies = claim.await.unwrap();
            assert!(matches!(replies, (Won, Lost) | (Lost, Won)), "{replies:?}");
            wins += 1;
        }
    }
    assert_eq!(wins, 1000);
    let seen = one.statistics();
    assert!(seen.batches < seen.won + seen.lost, "claims do not share exchanges: {seen:?}");
}

async fn records_are_kept_taken_and_dropped() {
    let (_redis, store) = redis().await;
    all_records(&store).await;
}

async fn all_records(store: &Store) {
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
    // Another record: expiries of one may arrive in any order.
    store.set_bit("brief", 0, Duration::from_millis(50)).await.unwrap();
    while store.get("brief").await.unwrap().is_some() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    store.add("set", "x").await.unwrap();
    store.add("set", "y").await.unwrap();
    store.remove("set", "x").await.unwrap();
    assert_eq!(store.members("set").await.unwrap(), ["y"]);
    assert!(matches!(store.get("set").await, Err(StoreError::Refused(_))), "a record of a kind");
}

async fn nobody_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(single(Address::Unix(directory.path().join("none"))));
    let began = Instant::now();
    assert_eq!(claim(&store, fresh()).await, unknown(Unknown::Absent));
    assert!(began.elapsed() < Duration::from_secs(5), "not even tried");
    assert!(matches!(store.get("a").await, Err(StoreError::Absent(_))));
    let bit = store.set_bit("a", 0, Duration::from_secs(1)).await;
    assert_eq!(bit, Err(StoreError::Unknown(Unknown::Absent)));
}

async fn nodes_that_count_by_other_times_do_not_count() {
    let (redis, store) = redis().await;
    let freshness = short(Duration::ZERO).freshness * 2;
    let shared = SharedConfig { freshness, ..short(Duration::ZERO) };
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

async fn the_last_clone_closes_all_connections() {
    let (redis, store) = redis().await;
    let clients = || redis.cli(&["client", "list"]).lines().count();
    let copy = store.clone();
    drop(store);
    assert_eq!(claim(&copy, fresh()).await, Won);
    assert!(clients() > 1);
    drop(copy);
    let end = Instant::now() + Duration::from_secs(10);
    while clients() > 1 {
        assert!(Instant::now() < end, "{}", redis.cli(&["client", "list"]));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
