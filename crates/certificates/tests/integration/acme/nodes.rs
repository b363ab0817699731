//! Nodes and processes that serve the same names.

use firstflight_certificates::acme::{ChallengeResponses, Phase, SharedRecords as _};
use firstflight_testkit::Pebble;
use std::time::Duration;

use super::failures::A_WHILE;
use super::responder::respond_to_challenges;
use super::shared_records::SharedMemory;
use super::{RunningManager, TEST_TIMEOUT, config};

const NAMES: &[&str] = &["example.test", "www.example.test"];

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_create_one_order_and_either_responds() {
    let (first_responses, second_responses) =
        (ChallengeResponses::new(), ChallengeResponses::new());
    // The authority always connects to the second node.
    let pebble = Pebble::start(respond_to_challenges(&second_responses, NAMES).await);
    let (state, other_state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let records = SharedMemory::default();
    let mut first = RunningManager::sharing(
        config(&pebble, state.path()),
        &[NAMES],
        &first_responses,
        &records,
    );
    first.until("an order", |it| it.phase == Phase::Ordering).await;
    let config = config(&pebble, other_state.path());
    let mut second = RunningManager::sharing(config, &[NAMES], &second_responses, &records);
    let issued = first.until_issued().await;
    let adopted = second.until_issued().await;
    assert_eq!(issued.issued.unwrap().chain, adopted.issued.unwrap().chain);
    assert_eq!(
        (issued.attempts.issued, adopted.attempts.issued, adopted.attempts.adopted),
        (1, 0, 1)
    );
    assert_eq!(pebble.orders(), 1);
    // The records of the order are removed, those of the certificate stay.
    first.end().await;
    second.end().await;
    assert!(records.names("/lease").is_empty() && records.names("/answers").is_empty());
    assert!(first_responses.is_idle() && second_responses.is_idle());

    // A third node adopts the certificate later, without an order.
    let third_state = tempfile::tempdir().unwrap();
    let config = super::config(&pebble, third_state.path());
    let mut third = RunningManager::sharing(config, &[NAMES], &first_responses, &records);
    let adopted = third.until_issued().await;
    assert_eq!(adopted.attempts.adopted, 1);
    // So its renewal is due at the same time as on the other nodes.
    assert!(adopted.last_success <= adopted.issued.map(|issued| issued.not_before));
    third.end().await;
    assert_eq!(pebble.orders(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lease_of_a_node_that_died_is_honored() {
    let responses = ChallengeResponses::new();
    let pebble = Pebble::start(respond_to_challenges(&responses, NAMES).await);
    let state = tempfile::tempdir().unwrap();
    let records = SharedMemory::default();
    let config = config(&pebble, state.path());
    // Learn the name of the lease from a node that holds it.
    let mut first = RunningManager::sharing(config.clone(), &[NAMES], &responses, &records);
    first.until("an order", |it| it.phase == Phase::Ordering).await;
    let lease = records.names("/lease").pop().unwrap();
    first.end().await;
    assert!(records.names("/lease").is_empty());

    records.put(&lease, b"another node", Duration::from_secs(3600)).await.unwrap();
    let mut waiting = RunningManager::sharing(config, &[NAMES], &responses, &records);
    waiting.until("the other", |it| it.phase == Phase::Elsewhere).await;
    let orders = pebble.orders();
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(pebble.orders(), orders);
    records.expire("/lease");
    waiting.until_issued().await;
    waiting.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_node_orders_without_the_store_until_it_is_back() {
    let responses = ChallengeResponses::new();
    let pebble = Pebble::start(respond_to_challenges(&responses, NAMES).await);
    let state = tempfile::tempdir().unwrap();
    let records = SharedMemory::default();
    records.set_unreachable(true);
    let mut running =
        RunningManager::sharing(config(&pebble, state.path()), &[NAMES], &responses, &records);
    let failed = running.until("an error", |it| it.last_error.is_some()).await;
    let reason = failed.last_error.unwrap().reason;
    assert!(reason.contains("the store is away"), "{reason}");
    assert_eq!(pebble.orders(), 0);
    records.set_unreachable(false);
    running.until_issued().await;
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_record_does_not_block_orders() {
    let responses = ChallengeResponses::new();
    let pebble = Pebble::start(respond_to_challenges(&responses, NAMES).await);
    let (state, other_state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let records = SharedMemory::default();
    records.make_unreadable("/certificate/");
    let one = config(&pebble, state.path());
    let mut first = RunningManager::sharing(one, &[NAMES], &responses, &records);
    let issued = first.until_issued().await;
    first.end().await;
    // The new certificate replaced the broken record.
    let other = config(&pebble, other_state.path());
    let mut finder = RunningManager::sharing(other, &[NAMES], &responses, &records);
    let found = finder.until_issued().await;
    finder.end().await;
    assert_eq!(found.issued.unwrap().chain, issued.issued.unwrap().chain);
    assert_eq!((found.attempts.adopted, pebble.orders()), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_record_is_published_again() {
    let responses = ChallengeResponses::new();
    let pebble = Pebble::start(respond_to_challenges(&responses, NAMES).await);
    let (state, other_state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let records = SharedMemory::default();
    let one = config(&pebble, state.path());
    let mut first = RunningManager::sharing(one.clone(), &[NAMES], &responses, &records);
    first.until_issued().await;
    first.end().await;
    // The keys that encrypted it are lost.
    records.make_unreadable("/certificate/");
    let holder = RunningManager::sharing(one, &[NAMES], &responses, &records);
    let published = async {
        while records.is_unreadable("/certificate/") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, published).await.unwrap();
    holder.end().await;
    let other = config(&pebble, other_state.path());
    let mut finder = RunningManager::sharing(other, &[NAMES], &responses, &records);
    assert_eq!(finder.until_issued().await.attempts.adopted, 1);
    finder.end().await;
    assert_eq!(pebble.orders(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_of_a_machine_create_one_order() {
    let responses = ChallengeResponses::new();
    let pebble = Pebble::start(respond_to_challenges(&responses, NAMES).await);
    let state = tempfile::tempdir().unwrap();
    let config = config(&pebble, state.path());
    let mut one = RunningManager::alone(config.clone(), &[NAMES], &responses);
    one.until("an order", |it| it.phase == Phase::Ordering || it.issued.is_some()).await;
    // Validation never reaches its responses.
    let mut other = RunningManager::alone(config, &[NAMES], &ChallengeResponses::new());
    let (first, second) = (one.until_issued().await, other.until_issued().await);
    assert_eq!(first.issued.unwrap().chain, second.issued.unwrap().chain);
    assert_eq!(pebble.orders(), 1);
    one.end().await;
    other.end().await;
}
