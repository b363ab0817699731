//! Flights whose early data was refused, with a store.

use std::sync::Arc;
use std::time::Duration;

use firstflight_config::EarlyDataSettings;
use firstflight_replay::{
    ClaimKey, EpochScope, MAX_CLOCK_STEP, MAX_TICKET_LIFETIME, Refusal, SharedConfig, SpendOutcome,
    StoreReply, TicketEpochs, Unknown,
};
use firstflight_store::{Address, Store, StoreConfig, StoreUrl, Topology};
use firstflight_testkit::{StoreListen, StoreProcess, skipped_without};
use firstflight_tls::{OfferedFlight, SteadyClock};
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::{sleep, timeout};

use crate::gate::{
    EarlyDataGate, EarlyDataRefusal, NameClaim, Successor, UnspentFlight, ignored_step,
};

/// A gate with the store at this address.
fn gate_with(address: Address) -> (EarlyDataGate, Store) {
    let config = StoreConfig::new(Topology::Single(address));
    let shared = config.shared;
    let store = Store::open(config, SteadyClock::unix_micros).unwrap();
    let epochs = Arc::new(TicketEpochs::new(EpochScope::Store));
    let settings = EarlyDataSettings::default();
    (EarlyDataGate::new(&settings, epochs, Some((store.clone(), shared))), store)
}

/// A flight that arrives now, whose stated ticket age has this skew.
fn refused_flight(gate: &EarlyDataGate, ticket_age_skew: Option<i32>) -> UnspentFlight {
    let measured_at = SteadyClock::unix_micros();
    UnspentFlight {
        offered: OfferedFlight { digest: [1; 32], ticket_age_skew, measured_at },
        arrival: gate.arrival(),
        received_at: gate.received_at(Some(measured_at)),
        used_up: false,
        store_silent: false,
    }
}

/// Waits until `reached`.
async fn until(reached: impl Fn() -> bool) {
    let waiting = async {
        while !reached() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(30), waiting).await.expect("the condition becomes true");
}

#[tokio::test]
async fn no_flight_is_stale_before_the_first_heartbeat() {
    let directory = tempfile::tempdir().unwrap();
    // Nothing listens there.
    let (gate, _store) = gate_with(Address::Unix(directory.path().join("store")));
    // Stale, unless this node's clock is ahead: then other nodes accept a copy.
    let flight = refused_flight(&gate, Some(-30));
    assert_eq!(gate.try_spend(&flight).await, None);
}

#[tokio::test]
async fn a_stale_flight_needs_no_record_unless_the_clock_was_set_since_it_arrived() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let mut process = StoreProcess::redis(StoreListen::Unix);
    let (gate, store) = gate_with(StoreUrl::parse(&process.url(), 6379).unwrap().address);
    until(|| store.clock_offset_micros().is_some()).await;
    process.kill();
    until(|| store.unavailable_reason() == Some(Unknown::Absent)).await;
    let flight = refused_flight(&gate, Some(-30));
    assert_eq!(gate.try_spend(&flight).await, Some(SpendOutcome::Recorded));
    assert_eq!(gate.try_spend(&refused_flight(&gate, Some(0))).await, None);
    // As after a step of the clock, which changes the offset to the store's clock.
    gate.epochs.start_next();
    assert_eq!(gate.try_spend(&flight).await, None);
}

#[tokio::test]
async fn copies_that_do_not_reach_the_store_are_counted() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let process = StoreProcess::redis(StoreListen::Unix);
    let (gate, store) = gate_with(StoreUrl::parse(&process.url(), 6379).unwrap().address);
    until(|| store.clock_offset_micros().is_some()).await;
    let flight = refused_flight(&gate, Some(0));
    assert_eq!(gate.spend(&flight).await, Some(SpendOutcome::Recorded));
    let shared = gate.shared().unwrap();
    let (offer, claimant) = (flight.offer_by_unix_time(), flight.arrival.claimant);
    assert_eq!(shared.statistics().1.lost, 0);
    assert_eq!(shared.claim(&offer, claimant, || gate.now()).await, StoreReply::Lost);
    assert_eq!(shared.statistics().1.lost, 1);
}

/// A gate without a store.
fn local_gate() -> EarlyDataGate {
    let epochs = Arc::new(TicketEpochs::new(EpochScope::Process));
    EarlyDataGate::new(&EarlyDataSettings::default(), epochs, None)
}

#[tokio::test]
async fn a_flight_is_refused_if_the_successor_ends_with_its_records() {
    let gate = local_gate();
    let flight = UnspentFlight { used_up: true, ..refused_flight(&gate, Some(0)) };
    let (requests, mut received) = unbounded_channel();
    gate.hand_off(Successor::new(requests)).expect("the first handoff");
    let successor = async {
        let unanswered = received.recv().await;
        gate.take_back();
        drop(unanswered);
    };
    // The claim is polled first, and asks the successor.
    let (claimed, ()) = tokio::join!(gate.claim_locally(&flight), successor);
    assert_eq!(claimed.map(drop), Err(EarlyDataRefusal::Gate(Refusal::TicketEpoch)));
}

#[tokio::test]
async fn a_flight_is_refused_if_a_successor_has_ended_since_it_arrived() {
    let gate = local_gate();
    let flight = UnspentFlight { used_up: true, ..refused_flight(&gate, Some(0)) };
    let (requests, _received) = unbounded_channel();
    gate.hand_off(Successor::new(requests)).expect("the first handoff");
    gate.take_back();
    let claimed = gate.claim_locally(&flight).await;
    assert_eq!(claimed.map(drop), Err(EarlyDataRefusal::Gate(Refusal::TicketEpoch)));
}

#[tokio::test]
async fn a_lost_claim_stays_lost_if_a_successor_has_ended_since_the_flight_arrived() {
    let gate = local_gate();
    let original = refused_flight(&gate, Some(0));
    let (requests, _received) = unbounded_channel();
    gate.hand_off(Successor::new(requests)).expect("the first handoff");
    gate.take_back();
    let copy = refused_flight(&gate, Some(0));
    assert!(gate.claim_locally(&copy).await.unwrap().won());
    assert!(!gate.claim_locally(&original).await.unwrap().won());
}

#[tokio::test]
async fn a_name_is_released_here_if_the_successor_ends_before_it_has_released_it() {
    let gate = local_gate();
    let name = ClaimKey::from_name(&[b"name"]);
    assert_eq!(gate.claim_name(name, Duration::from_secs(60)).await, NameClaim::Won);
    let (requests, mut received) = unbounded_channel();
    gate.hand_off(Successor::new(requests)).expect("the first handoff");
    let successor = async {
        // The reply's channel is closed before the register is taken back.
        drop(received.recv().await);
        tokio::task::yield_now().await;
        gate.take_back();
        drop(received);
    };
    tokio::join!(gate.release_name(name), successor);
    assert!(!gate.gate.release_name(name, gate.now()), "it is released");
}

#[test]
fn a_clock_step_beyond_the_margin_is_not_ignored() {
    let step = |margin: u64| {
        let clock_margin = Duration::from_secs(margin);
        ignored_step(Some(&SharedConfig { clock_margin, ..SharedConfig::default() }))
    };
    assert_eq!(ignored_step(None), MAX_CLOCK_STEP);
    assert_eq!(step(6), MAX_CLOCK_STEP);
    assert!(step(1) < Duration::from_secs(1));
}

/// A copy may be fresh at any time, if another node can open the ticket.
#[tokio::test]
async fn a_flight_whose_exact_time_is_unknown_is_recorded_for_the_life_of_a_ticket() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let process = StoreProcess::redis(StoreListen::Unix);
    let (gate, store) = gate_with(StoreUrl::parse(&process.url(), 6379).unwrap().address);
    until(|| store.clock_offset_micros().is_some()).await;
    let flight = refused_flight(&gate, None);
    assert_eq!(gate.spend(&flight).await, Some(SpendOutcome::Recorded));
    // The key is binary: the digest's first half.
    let key = format!("firstflight:c:{}", "\u{1}".repeat(16));
    let lifetime = Duration::from_millis(process.cli(&["PTTL", &key]).parse().unwrap());
    assert!(lifetime >= MAX_TICKET_LIFETIME, "{lifetime:?}");
}
