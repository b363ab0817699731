//! Nodes and processes that serve the same names.

use firstflight_certificates::acme::{Answers, Phase, SharedRecords as _};
use firstflight_testkit::Pebble;
use std::time::Duration;

use crate::answerer::answerer;
use crate::shelf::Common;
use crate::trouble::A_WHILE;
use crate::{Running, TEST_TIMEOUT, config};

const NAMES: &[&str] = &["example.test", "www.example.test"];

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_make_one_order_and_either_answers() {
    let (one, other) = (Answers::new(), Answers::new());
    // The authority always comes to the other one.
    let pebble = Pebble::start(answerer(&other, NAMES).await);
    let (state, other_state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let shelf = Common::default();
    let mut asks = Running::sharing(config(&pebble, state.path()), &[NAMES], &one, &shelf);
    asks.until("an order", |it| it.phase == Phase::Ordering).await;
    let config = config(&pebble, other_state.path());
    let mut answers = Running::sharing(config, &[NAMES], &other, &shelf);
    let issued = asks.until_issued().await;
    let taken = answers.until_issued().await;
    assert_eq!(issued.issued.unwrap().chain, taken.issued.unwrap().chain);
    assert_eq!((issued.tries.issued, taken.tries.issued, taken.tries.taken_up), (1, 0, 1));
    assert_eq!(pebble.orders(), 1);
    // Nothing of the order stays, and what was issued does.
    asks.end().await;
    answers.end().await;
    assert!(shelf.names("/lease").is_empty() && shelf.names("/answers").is_empty());
    assert!(one.is_idle() && other.is_idle());

    // A third one, later, has it without asking.
    let third_state = tempfile::tempdir().unwrap();
    let config = crate::config(&pebble, third_state.path());
    let mut third = Running::sharing(config, &[NAMES], &one, &shelf);
    assert_eq!(third.until_issued().await.tries.taken_up, 1);
    third.end().await;
    assert_eq!(pebble.orders(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_died_is_waited_for_as_long_as_its_lease() {
    let answers = Answers::new();
    let pebble = Pebble::start(answerer(&answers, NAMES).await);
    let state = tempfile::tempdir().unwrap();
    let shelf = Common::default();
    let config = config(&pebble, state.path());
    // Where the lease is, by one that holds it.
    let mut first = Running::sharing(config.clone(), &[NAMES], &answers, &shelf);
    first.until("an order", |it| it.phase == Phase::Ordering).await;
    let lease = shelf.names("/lease").pop().unwrap();
    first.end().await;
    assert!(shelf.names("/lease").is_empty());

    shelf.put(&lease, b"another node", Duration::from_secs(3600)).await.unwrap();
    let mut waits = Running::sharing(config, &[NAMES], &answers, &shelf);
    waits.until("the other", |it| it.phase == Phase::Elsewhere).await;
    let orders = pebble.orders();
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(pebble.orders(), orders);
    shelf.expire("/lease");
    waits.until_issued().await;
    waits.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_store_nobody_orders_and_all_is_well_when_it_is_back() {
    let answers = Answers::new();
    let pebble = Pebble::start(answerer(&answers, NAMES).await);
    let state = tempfile::tempdir().unwrap();
    let shelf = Common::default();
    shelf.set_away(true);
    let mut running = Running::sharing(config(&pebble, state.path()), &[NAMES], &answers, &shelf);
    let failed = running.until("an error", |it| it.last_error.is_some()).await;
    let reason = failed.last_error.unwrap().reason;
    assert!(reason.contains("the store is away"), "{reason}");
    assert_eq!(pebble.orders(), 0);
    shelf.set_away(false);
    running.until_issued().await;
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_was_spoiled_keeps_nobody_from_asking() {
    let answers = Answers::new();
    let pebble = Pebble::start(answerer(&answers, NAMES).await);
    let (state, other_state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let shelf = Common::default();
    shelf.spoil("/certificate/");
    let one = config(&pebble, state.path());
    let mut asks = Running::sharing(one, &[NAMES], &answers, &shelf);
    let issued = asks.until_issued().await;
    asks.end().await;
    // What was issued took its place.
    let other = config(&pebble, other_state.path());
    let mut finds = Running::sharing(other, &[NAMES], &answers, &shelf);
    let found = finds.until_issued().await;
    finds.end().await;
    assert_eq!(found.issued.unwrap().chain, issued.issued.unwrap().chain);
    assert_eq!((found.tries.taken_up, pebble.orders()), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_has_a_certificate_puts_it_there_again() {
    let answers = Answers::new();
    let pebble = Pebble::start(answerer(&answers, NAMES).await);
    let (state, other_state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let shelf = Common::default();
    let one = config(&pebble, state.path());
    let mut asks = Running::sharing(one.clone(), &[NAMES], &answers, &shelf);
    asks.until_issued().await;
    asks.end().await;
    // The keys that it was sealed under are gone.
    shelf.spoil("/certificate/");
    let has = Running::sharing(one, &[NAMES], &answers, &shelf);
    let again = async {
        while shelf.is_spoiled("/certificate/") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, again).await.unwrap();
    has.end().await;
    let other = config(&pebble, other_state.path());
    let mut finds = Running::sharing(other, &[NAMES], &answers, &shelf);
    assert_eq!(finds.until_issued().await.tries.taken_up, 1);
    finds.end().await;
    assert_eq!(pebble.orders(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_of_one_machine_make_one_order() {
    let answers = Answers::new();
    let pebble = Pebble::start(answerer(&answers, NAMES).await);
    let state = tempfile::tempdir().unwrap();
    let config = config(&pebble, state.path());
    let mut one = Running::alone(config.clone(), &[NAMES], &answers);
    one.until("an order", |it| it.phase == Phase::Ordering || it.issued.is_some()).await;
    // Nobody comes to see its responses.
    let mut other = Running::alone(config, &[NAMES], &Answers::new());
    let (first, second) = (one.until_issued().await, other.until_issued().await);
    assert_eq!(first.issued.unwrap().chain, second.issued.unwrap().chain);
    assert_eq!(pebble.orders(), 1);
    one.end().await;
    other.end().await;
}
