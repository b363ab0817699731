//! Failures: how they are reported, and recovery from them.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use firstflight_certificates::acme::{AcmeConfig, ChallengeKind, ChallengeResponses};
use firstflight_testkit::{Pebble, PebblePlan};
use tokio::net::TcpListener;

use super::responder::respond_to_challenges;
use super::{RunningManager, TEST_TIMEOUT, config, only};

const NAMES: &[&str] = &["example.test"];

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs().try_into().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_validation_is_reported_and_the_old_certificate_stays() {
    let responses = ChallengeResponses::new();
    // The authority suggests a renewal after half of this validity. The first manager must have
    // ended by then, even on a busy machine: it could renew.
    let plan =
        PebblePlan { validity_seconds: Some(40), ..respond_to_challenges(&responses, NAMES).await };
    let pebble = Pebble::start(plan);
    let state = tempfile::tempdir().unwrap();
    let config = config(&pebble, state.path());
    let mut running = RunningManager::alone(config.clone(), &[NAMES], &responses);
    running.until_issued().await;
    let old = running.end_with_certificate().await;
    let orders = pebble.orders();

    // Pebble reuses the validation of an account's earlier order once in a hundred orders, even if
    // told never to. So the next order uses a new account.
    std::fs::remove_file(account(&config)).unwrap();
    // From now on the ports lead to another server, which has no responses.
    let responses = ChallengeResponses::new();
    let mut running = RunningManager::alone(config, &[NAMES], &responses);
    let failed = running.until("an error", |it| it.last_error.is_some()).await;
    let failure = failed.last_error.unwrap();
    for word in ["example.test", "tls-alpn-01 at port 443", "http-01 at port 80"] {
        assert!(failure.reason.contains(word), "{}", failure.reason);
    }
    assert_eq!(failed.issued.unwrap().chain, old.chain);
    let pause = failed.next_attempt.unwrap() - failure.at;
    assert!((600..=900).contains(&pause), "{pause}");
    assert_eq!((failed.attempts.failed, pebble.orders()), (1, orders + 2));
    running.end().await;
    assert!(responses.is_idle());
}

/// The file of the account.
fn account(config: &AcmeConfig) -> PathBuf {
    let all = std::fs::read_dir(&config.state).unwrap();
    let mut all = all.map(|entry| entry.unwrap().path().join("account.json"));
    all.find(|path| path.exists()).expect("an account")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_authority_that_is_down_at_the_start_is_retried() {
    let responses = ChallengeResponses::new();
    let mut pebble = Pebble::start(respond_to_challenges(&responses, NAMES).await);
    let state = tempfile::tempdir().unwrap();
    pebble.kill();
    let mut running = RunningManager::alone(config(&pebble, state.path()), &[NAMES], &responses);
    let failed = running.until("an error", |it| it.last_error.is_some()).await;
    let failure = failed.last_error.unwrap();
    assert!(failure.reason.contains("127.0.0.1 cannot be reached"), "{}", failure.reason);
    assert!(failed.next_attempt.unwrap() <= failure.at + 60);
    pebble.restart();
    let issued = running.until_issued().await;
    assert!(issued.last_error.is_none() && issued.next_attempt.unwrap() > now());
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_that_the_authority_forgot_is_created_again() {
    let responses = ChallengeResponses::new();
    let mut pebble =
        Pebble::start(respond_to_challenges(&responses, &["one.test", "two.test"]).await);
    let state = tempfile::tempdir().unwrap();
    let config = config(&pebble, state.path());
    let mut running = RunningManager::alone(config.clone(), &[&["one.test"]], &responses);
    running.until_issued().await;
    running.end().await;
    pebble.restart();
    let mut running = RunningManager::alone(config, &[&["two.test"]], &responses);
    running.until_issued().await;
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_name_is_reported() {
    let responses = ChallengeResponses::new();
    let plan = respond_to_challenges(&responses, NAMES).await;
    let pebble = Pebble::start(PebblePlan { blocked: vec!["blocked.test".to_owned()], ..plan });
    let state = tempfile::tempdir().unwrap();
    let mut running =
        RunningManager::alone(config(&pebble, state.path()), &[&["blocked.test"]], &responses);
    let failed = running.until("an error", |it| it.last_error.is_some()).await;
    let reason = failed.last_error.unwrap().reason;
    assert!(reason.contains("blocked.test") && reason.contains("CAA"), "{reason}");
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_untrusted_authority_receives_no_request() {
    let responses = ChallengeResponses::new();
    let pebble = Pebble::start(respond_to_challenges(&responses, NAMES).await);
    let state = tempfile::tempdir().unwrap();
    let config = AcmeConfig { authority: None, ..config(&pebble, state.path()) };
    let mut running = RunningManager::alone(config, &[NAMES], &responses);
    let failed = running.until("an error", |it| it.last_error.is_some()).await;
    let reason = failed.last_error.unwrap().reason;
    assert!(reason.contains("not trusted") && reason.contains("authority = FILE"), "{reason}");
    assert!(!pebble.log().contains("GET /dir"));
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aborted_order_withdraws_its_responses() {
    let responses = ChallengeResponses::new();
    // The server at this port accepts connections and never responds, so the authority has to wait.
    let silent = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let http_port = silent.local_addr().unwrap().port();
    let pebble = Pebble::start(PebblePlan { http_port, ..PebblePlan::default() });
    let state = tempfile::tempdir().unwrap();
    let config = only(ChallengeKind::Http01, config(&pebble, state.path()));
    let running = RunningManager::alone(config.clone(), &[NAMES], &responses);
    let validation = tokio::time::timeout(TEST_TIMEOUT, silent.accept()).await.unwrap().unwrap();
    assert!(!responses.is_idle());
    running.end().await;
    assert!(responses.is_idle());

    // The authority continues to validate, and counts the failure.
    let mut next = RunningManager::alone(config, &[NAMES], &responses);
    let failed = next.until("an error", |it| it.last_error.is_some()).await;
    let failure = failed.last_error.unwrap();
    assert!(failed.next_attempt.unwrap() >= failure.at + 600, "{failure:?}");
    tokio::time::sleep(A_WHILE).await;
    next.end().await;
    assert_eq!(pebble.orders(), 1);
    drop(validation);
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_contacts_are_sent_to_the_authority() {
    let responses = ChallengeResponses::new();
    let pebble = Pebble::start(respond_to_challenges(&responses, &["one.test", "two.test"]).await);
    let state = tempfile::tempdir().unwrap();
    let first = config(&pebble, state.path());
    let mut running = RunningManager::alone(first.clone(), &[&["one.test"]], &responses);
    running.until_issued().await;
    running.end().await;
    let account = account(&first);
    assert!(std::fs::read_to_string(&account).unwrap().contains("mailto:ops@example.org"));
    let second = AcmeConfig { contact: vec!["root@example.org".to_owned()], ..first };
    let mut running = RunningManager::alone(second, &[&["two.test"]], &responses);
    running.until_issued().await;
    running.end().await;
    assert!(std::fs::read_to_string(&account).unwrap().contains("mailto:root@example.org"));
    assert!(pebble.log().contains("POST /my-account/"));
}

/// Long enough for a wrong action of a manager to happen.
pub(crate) const A_WHILE: Duration = Duration::from_millis(1500);
