//! Authorities with rate limits, failures and invalid responses.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::acme::client::AuthorityClient;
use crate::acme::now;
use crate::acme::schedule::{History, Severity, Window, choose_challenges};
use crate::acme::storage::StateDirectory;
use crate::acme::stub::{StubAuthority, StubBehaviour, plain, problem, with_retry_after};
use crate::acme::{AcmeError, ChallengeResponses, IssuedCertificate, Manager, SingleNode, account};

fn names() -> Vec<String> {
    vec!["example.test".to_owned()]
}

/// Opens an account with the stub.
async fn open_account(behaviour: StubBehaviour) -> Result<(), AcmeError> {
    let stub = StubAuthority::start(behaviour).await;
    let config = stub.config();
    let state = StateDirectory::open(&config.state, &config.directory)?;
    account::open(&config, &state, &AuthorityClient::new(&config)?).await.map(|_| ())
}

fn only(
    path: &str,
    wanted: &str,
    response: http::Response<String>,
) -> Option<http::Response<String>> {
    (path == wanted).then_some(response)
}

#[tokio::test]
async fn rfc8555_6_6_rate_limits_are_reported_and_honored() {
    let stub = StubAuthority::start(|path| {
        only(
            path,
            "/order",
            with_retry_after(problem(429, "rateLimited", "too many certificates"), "7200"),
        )
    })
    .await;
    let manager =
        Manager::new(stub.config(), vec![names()], ChallengeResponses::new(), SingleNode).unwrap();
    let (states, mut seen) = (manager.watch(), manager.watch());
    let stop = async move {
        let _ = seen.wait_for(|all| all[0].last_error.is_some()).await;
    };
    manager.run(stop).await;
    let failed = states.borrow()[0].clone();
    let failure = failed.last_error.unwrap();
    assert!(failure.reason.contains("too many certificates; retrying at 20"), "{failure:?}");
    let pause = failed.next_attempt.unwrap() - failure.at;
    assert!((7000..=7200).contains(&pause), "{pause}");
    assert_eq!(stub.payloads("/order").len(), 1);

    // Another process does not order earlier either.
    let manager =
        Manager::new(stub.config(), vec![names()], ChallengeResponses::new(), SingleNode).unwrap();
    let state = manager.watch().borrow()[0].clone();
    assert_eq!(
        (state.next_attempt, state.last_error.unwrap().reason),
        (failed.next_attempt, failure.reason)
    );
    manager.run(tokio::time::sleep(Duration::from_millis(500))).await;
    assert_eq!(stub.payloads("/order").len(), 1);
}

#[tokio::test]
async fn responses_that_are_not_acme_are_reported() {
    let cases: [(StubBehaviour, &str); 6] = [
        (|path| only(path, "/dir", plain(200, "<html>welcome</html>")), "check directory"),
        (|path| only(path, "/dir", plain(404, "not here")), "404 Not Found; check directory"),
        (|path| only(path, "/dir", plain(301, "")), "301 Moved Permanently; check directory"),
        (|path| only(path, "/nonce", plain(403, "")), "403 Forbidden; check directory"),
        (|path| only(path, "/account", plain(200, "")), "check directory"),
        (
            |path| {
                let body =
                    r#"{"newNonce": "http://a/", "newAccount": "http://a/", "newOrder": ""}"#;
                only(path, "/dir", plain(200, body))
            },
            "not HTTPS; check directory",
        ),
    ];
    for (behaviour, text) in cases {
        let error = open_account(behaviour).await.unwrap_err();
        assert!(matches!(error, AcmeError::NotAcme { .. }), "{text}: {error:?}");
        assert!(error.to_string().contains(text), "{text}: {error}");
    }
}

#[tokio::test]
async fn a_failing_authority_is_retried_soon() {
    let cases: [(StubBehaviour, &str); 5] = [
        (|path| only(path, "/dir", plain(503, "sorry")), "503 Service Unavailable"),
        (|path| only(path, "/account", plain(500, "sorry")), "500 Internal Server Error"),
        (
            |path| only(path, "/account", problem(500, "serverInternal", "oh")),
            "reports a failure: oh",
        ),
        (
            |path| only(path, "/account", problem(400, "badNonce", "again")),
            "reports a failure: again",
        ),
        (|path| only(path, "/dir", plain(200, "x".repeat(300_000))), "length limit exceeded"),
    ];
    for (behaviour, text) in cases {
        let error = open_account(behaviour).await.unwrap_err();
        assert_eq!(error.severity(), Severity::Unreachable);
        assert!(error.to_string().contains(text), "{text}: {error}");
    }
    let error = open_account(|path| only(path, "/dir", with_retry_after(plain(503, ""), "300")))
        .await
        .unwrap_err();
    assert!(error.retry_after().is_some_and(|at| at > now() + 290));
}

#[tokio::test]
async fn rfc8555_6_7_problems_name_their_fix() {
    let cases: [(StubBehaviour, &str); 5] = [
        (
            |path| only(path, "/account", problem(403, "userActionRequired", "new terms")),
            "terms_agreed = true",
        ),
        (
            |path| only(path, "/account", problem(403, "externalAccountRequired", "no")),
            "external_account in [acme]",
        ),
        (
            |path| only(path, "/account", problem(403, "unauthorized", "deactivated")),
            "refuses the account: deactivated; remove ",
        ),
        (
            |path| only(path, "/account", problem(400, "invalidContact", "a\nb\u{1b}[2J")),
            "refused: a b [2J",
        ),
        (|path| only(path, "/account", problem(400, "", "why")), "refused: why"),
    ];
    for (behaviour, text) in cases {
        let error = open_account(behaviour).await.unwrap_err();
        assert!(error.to_string().contains(text), "{text}: {error}");
    }
}

/// A certificate with the key identifier of its authority, as all real ones have.
fn issued() -> IssuedCertificate {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut root = rcgen::CertificateParams::new(Vec::new()).unwrap();
    root.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let root = rcgen::Issuer::new(root, rcgen::KeyPair::generate().unwrap());
    let mut leaf = rcgen::CertificateParams::new(names()).unwrap();
    leaf.serial_number = Some(rcgen::SerialNumber::from_slice(&[0x87, 0x65]));
    leaf.use_authority_key_identifier_extension = true;
    let leaf = leaf.signed_by(&key, &root).unwrap();
    IssuedCertificate::accept(&names(), &leaf.pem(), key.serialize_pem().into()).unwrap()
}

#[test]
fn rfc9773_4_1_certificates_are_identified_by_authority_key_and_serial() {
    let id = account::certificate_id(&issued()).unwrap().to_string();
    // The serial number is an INTEGER, so it has a zero byte before a set first bit.
    assert!(id.ends_with(".AIdl") && id.len() > 20, "{id}");
}

#[tokio::test]
async fn rfc9773_4_2_the_suggested_window_is_requested() {
    const WINDOW: &str = r#"{"suggestedWindow":
        {"start": "2027-01-15T08:00:00Z", "end": "2027-01-15T10:00:00Z"}}"#;
    let behaviour: StubBehaviour =
        |path| path.starts_with("/renewal/").then(|| with_retry_after(plain(200, WINDOW), "21600"));
    let stub = StubAuthority::start(behaviour).await;
    let config = stub.config();
    let state = StateDirectory::open(&config.state, &config.directory).unwrap();
    let issued = issued();
    // Without an account nothing is requested.
    let none = account::suggested_window(&config, &state, &issued).await.unwrap();
    assert_eq!(none, (None, Duration::from_secs(86_400)));
    assert!(stub.payloads("/dir").is_empty());
    account::open(&config, &state, &AuthorityClient::new(&config).unwrap()).await.unwrap();
    let (window, next_request) = account::suggested_window(&config, &state, &issued).await.unwrap();
    assert_eq!(window, Some(Window { start: 1_800_000_000, end: 1_800_007_200 }));
    assert!((21_590..=21_600).contains(&next_request.as_secs()), "{next_request:?}");
    let path = format!("/renewal/{}", account::certificate_id(&issued).unwrap());
    assert_eq!(stub.payloads(&path).len(), 1);
}

#[tokio::test]
async fn rfc9773_4_3_2_a_time_beyond_all_clocks_becomes_the_maximum_interval() {
    let stub = StubAuthority::start(|path| {
        let window = r#"{"suggestedWindow":
            {"start": "2027-01-15T08:00:00Z", "end": "2027-01-15T10:00:00Z"}}"#;
        let response = with_retry_after(plain(200, window), "18446744073709551615");
        path.starts_with("/renewal/").then_some(response)
    })
    .await;
    let config = stub.config();
    let state = StateDirectory::open(&config.state, &config.directory).unwrap();
    account::open(&config, &state, &AuthorityClient::new(&config).unwrap()).await.unwrap();
    let (window, next_request) =
        account::suggested_window(&config, &state, &issued()).await.unwrap();
    assert_eq!(window, Some(Window { start: 1_800_000_000, end: 1_800_007_200 }));
    assert_eq!(next_request, Duration::from_secs(86_400));
}

#[tokio::test]
async fn rfc9773_4_3_3_a_failed_request_for_the_window_is_an_error() {
    let stub = StubAuthority::start(|path| {
        path.starts_with("/renewal/").then(|| with_retry_after(plain(503, "busy"), "21600"))
    })
    .await;
    let config = stub.config();
    let state = StateDirectory::open(&config.state, &config.directory).unwrap();
    account::open(&config, &state, &AuthorityClient::new(&config).unwrap()).await.unwrap();
    account::suggested_window(&config, &state, &issued()).await.unwrap_err();
}

#[tokio::test]
async fn rfc9773_5_the_replaced_certificate_is_named_once() {
    let stub = StubAuthority::start(|path| {
        only(path, "/order", problem(409, "alreadyReplaced", "that one was replaced before"))
    })
    .await;
    let config = stub.config();
    let state = StateDirectory::open(&config.state, &config.directory).unwrap();
    let history = History::default();
    let ordering = crate::acme::order::OrderRequest::<SingleNode> {
        config: &config,
        state: &state,
        responses: &ChallengeResponses::new(),
        sharing: None,
        names: &names(),
        replaces: account::certificate_id(&issued()),
        challenge_plan: choose_challenges(&config.challenges, &history),
        history: &history,
        validation_started: &AtomicBool::new(false),
    };
    assert!(ordering.certificate().await.is_err());
    let orders = stub.payloads("/order");
    let replaces: Vec<_> = orders.iter().map(|order| order.contains(r#""replaces":""#)).collect();
    assert_eq!(replaces, [true, false], "{orders:?}");
}
