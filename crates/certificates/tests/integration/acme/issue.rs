//! Certificates are issued, stored and renewed.

use std::process::Command;

use firstflight_certificates::acme::{
    AcmeConfig, ChallengeKind, ChallengeResponses, ExternalAccount, KeyKind, Manager, SingleNode,
};
use firstflight_testkit::{Pebble, PebblePlan, TEST_TIMEOUT, output_within};

use super::responder::respond_to_challenges;
use super::{CertificateState, RunningManager, config, names, only};

const NAMES: &[&str] = &["example.test", "www.example.test", "shop.example.test"];

async fn issued_by(kind: ChallengeKind) {
    let responses = ChallengeResponses::new();
    let pebble = Pebble::start(respond_to_challenges(&responses, NAMES).await);
    let state = tempfile::tempdir().unwrap();
    let config = only(kind, config(&pebble, state.path()));
    let mut running = RunningManager::alone(config, &[NAMES], &responses);
    let found = running.until_issued().await;
    let issued = found.issued.unwrap();
    let identity = issued.identity().unwrap();
    assert!(NAMES.iter().all(|name| identity.covers(name)) && !identity.covers("other.test"));
    assert_eq!(pebble.orders(), 1);
    let (root, chain) = (state.path().join("root"), state.path().join("chain"));
    std::fs::write(&root, pebble.root()).unwrap();
    std::fs::write(&chain, &issued.chain).unwrap();
    let mut verify = Command::new("openssl");
    verify.args(["verify", "-x509_strict", "-CAfile"]).arg(&root);
    verify.arg("-untrusted").args([&chain, &chain]);
    let verified = output_within(&mut verify, TEST_TIMEOUT);
    assert!(verified.status.success(), "{verified:?}");
    running.end().await;
    assert!(responses.is_idle());
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc8737_validation_by_tls_alpn_01() {
    issued_by(ChallengeKind::TlsAlpn01).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc8555_8_3_validation_by_http_01() {
    issued_by(ChallengeKind::Http01).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_other_challenge_is_used_if_one_fails() {
    let responses = ChallengeResponses::new();
    let plan = respond_to_challenges(&responses, &[]).await;
    let pebble = Pebble::start(plan);
    let state = tempfile::tempdir().unwrap();
    let mut running =
        RunningManager::alone(config(&pebble, state.path()), &[&["example.test"]], &responses);
    let found = running.until_issued().await;
    assert_eq!((found.attempts.issued, found.attempts.failed), (1, 0));
    assert_eq!(pebble.orders(), 2);
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_certificates_share_an_account() {
    let responses = ChallengeResponses::new();
    let pebble = Pebble::start(respond_to_challenges(&responses, &["one.test", "two.test"]).await);
    let state = tempfile::tempdir().unwrap();
    let config = AcmeConfig { key: KeyKind::Rsa2048, ..config(&pebble, state.path()) };
    let sites: [&[&str]; 2] = [&["one.test"], &["two.test"]];
    let mut running = RunningManager::alone(config.clone(), &sites, &responses);
    let both = running.states.wait_for(|all| all.iter().all(|it| it.issued.is_some()));
    let both = tokio::time::timeout(super::TEST_TIMEOUT, both).await.unwrap().unwrap().clone();
    assert!(both[1].issued.as_ref().unwrap().identity().unwrap().covers("two.test"));
    running.end().await;
    assert_eq!(pebble.log().matches("POST /sign-me-up").count(), 1);

    // The next process restores them without an order.
    let orders = pebble.orders();
    let sites = sites.map(names).to_vec();
    let manager = Manager::new(config, sites, responses, SingleNode).unwrap();
    let restored = manager.watch().borrow().clone();
    for (before, after) in both.iter().zip(restored) {
        let (before, after) = (before.issued.as_ref().unwrap(), after.issued.unwrap());
        assert_eq!((&before.chain, &before.key), (&after.chain, &after.key));
    }
    manager.run(tokio::time::sleep(std::time::Duration::from_millis(300))).await;
    assert_eq!(pebble.orders(), orders);
}

#[tokio::test(flavor = "multi_thread")]
async fn renewal_happens_before_expiry_with_the_same_account() {
    let responses = ChallengeResponses::new();
    let plan =
        PebblePlan { validity_seconds: Some(16), ..respond_to_challenges(&responses, NAMES).await };
    let pebble = Pebble::start(plan);
    let state = tempfile::tempdir().unwrap();
    let mut running = RunningManager::alone(config(&pebble, state.path()), &[NAMES], &responses);
    let first = running.until_issued().await.issued.unwrap();
    let second = running.until("a second one", |it| it.attempts.issued == 2).await.issued.unwrap();
    // Two thirds of 16 s; on a loaded machine the end may have passed.
    assert!(second.not_before >= first.not_before + 10, "{first:?} {second:?}");
    assert_ne!(first.key, second.key);
    running.end().await;
    assert_eq!(pebble.log().matches("POST /sign-me-up").count(), 1);
}

/// Pebble refuses nonces at random, and the client gives up on a request after three refusals. An
/// order may fail for that reason, and for no other.
#[tokio::test(flavor = "multi_thread")]
async fn rfc8555_6_5_refused_nonces_are_retried() {
    let responses = ChallengeResponses::new();
    let plan = PebblePlan { bad_nonces: 20, ..respond_to_challenges(&responses, NAMES).await };
    let pebble = Pebble::start(plan);
    for _ in 0..60 {
        let before = pebble.log().len();
        let state = tempfile::tempdir().unwrap();
        let mut running =
            RunningManager::alone(config(&pebble, state.path()), &[NAMES], &responses);
        let ended = |it: &CertificateState| it.issued.is_some() || it.last_error.is_some();
        let found = running.until("a certificate or a failure", ended).await;
        running.end().await;
        if let Some(failure) = found.last_error {
            assert!(failure.reason.contains("anti-replay nonce"), "{failure:?}");
        } else if pebble.log()[before..].matches("POST /order-plz").count() > 1 {
            return;
        }
    }
    panic!("none of sixty orders was posted twice: {}", pebble.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc8555_7_3_4_external_account_binding() {
    let responses = ChallengeResponses::new();
    let key = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W".to_owned();
    let external = Some(("kid-1".to_owned(), key.clone()));
    let plan =
        PebblePlan { external_account: external, ..respond_to_challenges(&responses, NAMES).await };
    let pebble = Pebble::start(plan);
    let state = tempfile::tempdir().unwrap();
    let without = config(&pebble, state.path());
    let mut running = RunningManager::alone(without.clone(), &[NAMES], &responses);
    let refused = running.until("an error", |it| it.last_error.is_some()).await;
    let reason = refused.last_error.unwrap().reason;
    assert!(reason.contains("external_account in [acme]"), "{reason}");
    running.end().await;

    let file = state.path().join("key");
    std::fs::write(&file, format!("{key}\n")).unwrap();
    let external = ExternalAccount { id: "kid-1".to_owned(), key: file };
    let other = tempfile::tempdir().unwrap();
    let with = AcmeConfig {
        external_account: Some(external),
        state: other.path().join("acme"),
        ..without
    };
    let mut running = RunningManager::alone(with, &[NAMES], &responses);
    running.until_issued().await;
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_with_a_new_name_keeps_its_certificate_until_the_new_one() {
    let responses = ChallengeResponses::new();
    let mut pebble = Pebble::start(respond_to_challenges(&responses, NAMES).await);
    let state = tempfile::tempdir().unwrap();
    let config = config(&pebble, state.path());
    let mut running = RunningManager::alone(config.clone(), &[&NAMES[..2]], &responses);
    let old = running.until_issued().await.issued.unwrap();
    running.end().await;

    pebble.kill();
    let mut running = RunningManager::alone(config, &[NAMES], &responses);
    let meanwhile = running.until("an error", |it| it.last_error.is_some()).await;
    let served = meanwhile.issued.unwrap();
    assert_eq!((&served.chain, &served.names[..]), (&old.chain, &names(&NAMES[..2])[..]));
    pebble.restart();
    let all = running.until("all names", |it| it.attempts.issued == 1).await.issued.unwrap();
    assert!(all.names.len() == 3 && all.identity().unwrap().covers(NAMES[2]));
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_certificate_is_served_until_renewal() {
    let responses = ChallengeResponses::new();
    let plan =
        PebblePlan { validity_seconds: Some(3), ..respond_to_challenges(&responses, NAMES).await };
    let mut pebble = Pebble::start(plan);
    let state = tempfile::tempdir().unwrap();
    let config = config(&pebble, state.path());
    let mut running = RunningManager::alone(config.clone(), &[NAMES], &responses);
    running.until_issued().await;
    // On a loaded machine it may be renewed before the manager stops.
    let old = running.end_with_certificate().await;
    pebble.kill();
    tokio::time::sleep(std::time::Duration::from_secs(4)).await;

    let mut running = RunningManager::alone(config, &[NAMES], &responses);
    let meanwhile = running.until("an error", |it| it.last_error.is_some()).await;
    assert_eq!(meanwhile.issued.unwrap().not_after, old.not_after);
    pebble.restart();
    let new = running.until("another", |it| it.attempts.issued > 0).await.issued.unwrap();
    assert!(new.not_before > old.not_after);
    running.end().await;
}
