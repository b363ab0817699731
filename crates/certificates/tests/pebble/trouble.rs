//! What goes wrong, what is said of it, and how it ends.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use firstflight_certificates::acme::{AcmeConfig, Answers, ChallengeKind};
use firstflight_testkit::{Pebble, PebblePlan};
use tokio::net::TcpListener;

use crate::answerer::answerer;
use crate::{Running, TEST_TIMEOUT, config, only};

const NAMES: &[&str] = &["example.test"];

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs().try_into().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_answer_is_named_and_the_old_certificate_stays() {
    let answers = Answers::new();
    let plan = PebblePlan { validity_seconds: Some(12), ..answerer(&answers, NAMES).await };
    let pebble = Pebble::start(plan);
    let state = tempfile::tempdir().unwrap();
    let config = config(&pebble, state.path());
    let mut running = Running::alone(config.clone(), &[NAMES], &answers);
    running.until_issued().await;
    let old = running.end_with().await;
    let orders = pebble.orders();

    // From now on what stands at the ports is another server: it knows nothing of our responses.
    let answers = Answers::new();
    let mut running = Running::alone(config, &[NAMES], &answers);
    let failed = running.until("an error", |it| it.last_error.is_some()).await;
    let trouble = failed.last_error.unwrap();
    for word in ["example.test", "tls-alpn-01 at port 443", "http-01 at port 80"] {
        assert!(trouble.reason.contains(word), "{}", trouble.reason);
    }
    assert_eq!(failed.issued.unwrap().chain, old.chain);
    let pause = failed.next_try.unwrap() - trouble.at;
    assert!((600..=900).contains(&pause), "{pause}");
    assert_eq!((failed.tries.failed, pebble.orders()), (1, orders + 2));
    running.end().await;
    assert!(answers.is_idle());
}

/// Where the account is kept.
fn account(config: &AcmeConfig) -> PathBuf {
    let all = std::fs::read_dir(&config.state).unwrap();
    let mut all = all.map(|entry| entry.unwrap().path().join("account.json"));
    all.find(|path| path.exists()).expect("an account")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_authority_that_is_down_at_the_start_is_asked_again() {
    let answers = Answers::new();
    let mut pebble = Pebble::start(answerer(&answers, NAMES).await);
    let state = tempfile::tempdir().unwrap();
    pebble.kill();
    let mut running = Running::alone(config(&pebble, state.path()), &[NAMES], &answers);
    let failed = running.until("an error", |it| it.last_error.is_some()).await;
    let trouble = failed.last_error.unwrap();
    assert!(trouble.reason.contains("127.0.0.1 cannot be reached"), "{}", trouble.reason);
    assert!(failed.next_try.unwrap() <= trouble.at + 60);
    pebble.restart();
    let issued = running.until_issued().await;
    assert!(issued.last_error.is_none() && issued.next_try.unwrap() > now());
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_that_the_authority_forgot_is_opened_anew() {
    let answers = Answers::new();
    let mut pebble = Pebble::start(answerer(&answers, &["one.test", "two.test"]).await);
    let state = tempfile::tempdir().unwrap();
    let config = config(&pebble, state.path());
    let mut running = Running::alone(config.clone(), &[&["one.test"]], &answers);
    running.until_issued().await;
    running.end().await;
    pebble.restart();
    let mut running = Running::alone(config, &[&["two.test"]], &answers);
    running.until_issued().await;
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_refused_is_said() {
    let answers = Answers::new();
    let plan = answerer(&answers, NAMES).await;
    let pebble = Pebble::start(PebblePlan { blocked: vec!["blocked.test".to_owned()], ..plan });
    let state = tempfile::tempdir().unwrap();
    let mut running = Running::alone(config(&pebble, state.path()), &[&["blocked.test"]], &answers);
    let failed = running.until("an error", |it| it.last_error.is_some()).await;
    let reason = failed.last_error.unwrap().reason;
    assert!(reason.contains("blocked.test") && reason.contains("CAA"), "{reason}");
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_authority_that_is_not_trusted_is_told_nothing() {
    let answers = Answers::new();
    let pebble = Pebble::start(answerer(&answers, NAMES).await);
    let state = tempfile::tempdir().unwrap();
    let config = AcmeConfig { authority: None, ..config(&pebble, state.path()) };
    let mut running = Running::alone(config, &[NAMES], &answers);
    let failed = running.until("an error", |it| it.last_error.is_some()).await;
    let reason = failed.last_error.unwrap().reason;
    assert!(reason.contains("not trusted") && reason.contains("authority = FILE"), "{reason}");
    assert!(!pebble.log().contains("GET /dir"));
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_is_left_leaves_no_answer_behind() {
    let answers = Answers::new();
    // Nobody answers at this port, and nobody refuses: the authority has to wait.
    let silent = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let http_port = silent.local_addr().unwrap().port();
    let pebble = Pebble::start(PebblePlan { http_port, ..PebblePlan::default() });
    let state = tempfile::tempdir().unwrap();
    let config = only(ChallengeKind::Http01, config(&pebble, state.path()));
    let running = Running::alone(config.clone(), &[NAMES], &answers);
    let looks = tokio::time::timeout(TEST_TIMEOUT, silent.accept()).await.unwrap().unwrap();
    assert!(!answers.is_idle());
    running.end().await;
    assert!(answers.is_idle());

    // The authority goes on looking, and counts that it finds nobody.
    let mut again = Running::alone(config, &[NAMES], &answers);
    let failed = again.until("an error", |it| it.last_error.is_some()).await;
    let trouble = failed.last_error.unwrap();
    assert!(failed.next_try.unwrap() >= trouble.at + 600, "{trouble:?}");
    tokio::time::sleep(A_WHILE).await;
    again.end().await;
    assert_eq!(pebble.orders(), 1);
    drop(looks);
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_contacts_are_told_to_the_authority() {
    let answers = Answers::new();
    let pebble = Pebble::start(answerer(&answers, &["one.test", "two.test"]).await);
    let state = tempfile::tempdir().unwrap();
    let first = config(&pebble, state.path());
    let mut running = Running::alone(first.clone(), &[&["one.test"]], &answers);
    running.until_issued().await;
    running.end().await;
    let account = account(&first);
    assert!(std::fs::read_to_string(&account).unwrap().contains("mailto:ops@example.org"));
    let second = AcmeConfig { contact: vec!["root@example.org".to_owned()], ..first };
    let mut running = Running::alone(second, &[&["two.test"]], &answers);
    running.until_issued().await;
    running.end().await;
    assert!(std::fs::read_to_string(&account).unwrap().contains("mailto:root@example.org"));
    assert!(pebble.log().contains("POST /my-account/"));
}

/// Long enough for a manager to do what it should not.
pub(crate) const A_WHILE: Duration = Duration::from_millis(1500);
