//! Authorities that have limits, trouble, or no manners.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::acme::ca::Ca;
use crate::acme::clock::now;
use crate::acme::plan::{History, Severity, Window, turns};
use crate::acme::state::State;
use crate::acme::stub::{StubAuthority, StubBehaviour, after, plain, problem};
use crate::acme::{AcmeError, Answers, Issued, Manager, SingleNode, account, renewal};

fn names() -> Vec<String> {
    vec!["example.test".to_owned()]
}

/// What comes of opening an account with it.
async fn opened(whim: StubBehaviour) -> Result<(), AcmeError> {
    let stub = StubAuthority::start(whim).await;
    let config = stub.config();
    let state = State::open(&config.state, &config.directory)?;
    account::open(&config, &state, &Ca::new(&config)?).await.map(|_| ())
}

fn only(
    path: &str,
    wanted: &str,
    answer: http::Response<String>,
) -> Option<http::Response<String>> {
    (path == wanted).then_some(answer)
}

#[tokio::test]
async fn rfc8555_6_6_a_limit_is_said_and_waited_for() {
    let stub = StubAuthority::start(|path| {
        only(path, "/order", after(problem(429, "rateLimited", "too many certificates"), "7200"))
    })
    .await;
    let manager = Manager::new(stub.config(), vec![names()], Answers::new(), SingleNode).unwrap();
    let (states, mut seen) = (manager.watch(), manager.watch());
    let stop = async move {
        let _ = seen.wait_for(|all| all[0].last_error.is_some()).await;
    };
    manager.run(stop).await;
    let failed = states.borrow()[0].clone();
    let trouble = failed.last_error.unwrap();
    assert!(
        trouble.reason.contains("too many certificates; it is tried again at 20"),
        "{trouble:?}"
    );
    let pause = failed.next_try.unwrap() - trouble.at;
    assert!((7000..=7200).contains(&pause), "{pause}");
    assert_eq!(stub.payloads("/order").len(), 1);

    // Another process does not ask before either.
    let manager = Manager::new(stub.config(), vec![names()], Answers::new(), SingleNode).unwrap();
    let state = manager.watch().borrow()[0].clone();
    assert_eq!(
        (state.next_try, state.last_error.unwrap().reason),
        (failed.next_try, trouble.reason)
    );
    manager.run(tokio::time::sleep(Duration::from_millis(500))).await;
    assert_eq!(stub.payloads("/order").len(), 1);
}

#[tokio::test]
async fn what_is_no_acme_is_said() {
    let cases: [(StubBehaviour, &str); 6] = [
        (|path| only(path, "/dir", plain(200, "<html>welcome</html>")), "see that directory"),
        (|path| only(path, "/dir", plain(404, "not here")), "404 Not Found; see that directory"),
        (|path| only(path, "/dir", plain(301, "")), "301 Moved Permanently; see that directory"),
        (|path| only(path, "/nonce", plain(403, "")), "403 Forbidden; see that directory"),
        (|path| only(path, "/account", plain(200, "")), "see that directory"),
        (
            |path| {
                let body =
                    r#"{"newNonce": "http://a/", "newAccount": "http://a/", "newOrder": ""}"#;
                only(path, "/dir", plain(200, body))
            },
            "not HTTPS; see that directory",
        ),
    ];
    for (whim, word) in cases {
        let error = opened(whim).await.unwrap_err();
        assert!(matches!(error, AcmeError::NotAcme { .. }), "{word}: {error:?}");
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
}

#[tokio::test]
async fn an_authority_in_trouble_is_tried_again_soon() {
    let cases: [(StubBehaviour, &str); 5] = [
        (|path| only(path, "/dir", plain(503, "sorry")), "503 Service Unavailable"),
        (|path| only(path, "/account", plain(500, "sorry")), "500 Internal Server Error"),
        (|path| only(path, "/account", problem(500, "serverInternal", "oh")), "is in trouble: oh"),
        (|path| only(path, "/account", problem(400, "badNonce", "again")), "is in trouble: again"),
        (|path| only(path, "/dir", plain(200, "x".repeat(300_000))), "length limit exceeded"),
    ];
    for (whim, word) in cases {
        let error = opened(whim).await.unwrap_err();
        assert_eq!(error.severity(), Severity::Unreachable);
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
    let error = opened(|path| only(path, "/dir", after(plain(503, ""), "300"))).await.unwrap_err();
    assert!(error.until().is_some_and(|until| until > now() + 290));
}

#[tokio::test]
async fn rfc8555_6_7_problems_name_their_mend() {
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
    for (whim, word) in cases {
        let error = opened(whim).await.unwrap_err();
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
}

/// A certificate that names the key of its authority, as all real ones do.
fn issued() -> Issued {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut root = rcgen::CertificateParams::new(Vec::new()).unwrap();
    root.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let root = rcgen::Issuer::new(root, rcgen::KeyPair::generate().unwrap());
    let mut leaf = rcgen::CertificateParams::new(names()).unwrap();
    leaf.serial_number = Some(rcgen::SerialNumber::from_slice(&[0x87, 0x65]));
    leaf.use_authority_key_identifier_extension = true;
    let leaf = leaf.signed_by(&key, &root).unwrap();
    Issued::accept(&names(), &leaf.pem(), key.serialize_pem().into()).unwrap()
}

#[test]
fn rfc9773_4_1_a_certificate_is_named_by_its_authoritys_key_and_its_number() {
    let id = renewal::identifier(&issued()).unwrap().to_string();
    // The number is an INTEGER, so it has a zero before its first bit.
    assert!(id.ends_with(".AIdl") && id.len() > 20, "{id}");
}

#[tokio::test]
async fn rfc9773_4_2_the_suggested_window_is_asked_for() {
    const WINDOW: &str = r#"{"suggestedWindow":
        {"start": "2027-01-15T08:00:00Z", "end": "2027-01-15T10:00:00Z"}}"#;
    let whim: StubBehaviour =
        |path| path.starts_with("/renewal/").then(|| after(plain(200, WINDOW), "21600"));
    let stub = StubAuthority::start(whim).await;
    let config = stub.config();
    let state = State::open(&config.state, &config.directory).unwrap();
    let issued = issued();
    // Nobody is asked without an account.
    let none = renewal::suggested(&config, &state, &issued).await;
    assert_eq!(none, (None, Duration::from_secs(86_400)));
    assert!(stub.payloads("/dir").is_empty());
    account::open(&config, &state, &Ca::new(&config).unwrap()).await.unwrap();
    let (window, again) = renewal::suggested(&config, &state, &issued).await;
    let wanted = Window { start: 1_800_000_000, end: 1_800_007_200 };
    assert_eq!(window, Some(wanted));
    assert!((21_590..=21_600).contains(&again.as_secs()), "{again:?}");
    let path = format!("/renewal/{}", renewal::identifier(&issued).unwrap());
    assert_eq!(stub.payloads(&path).len(), 1);
}

#[tokio::test]
async fn rfc9773_5_what_is_replaced_is_named_once() {
    let stub = StubAuthority::start(|path| {
        only(path, "/order", problem(409, "alreadyReplaced", "that one was replaced before"))
    })
    .await;
    let config = stub.config();
    let state = State::open(&config.state, &config.directory).unwrap();
    let history = History::default();
    let ordering = crate::acme::order::Ordering::<SingleNode> {
        config: &config,
        state: &state,
        answers: &Answers::new(),
        sharing: None,
        names: &names(),
        replaces: renewal::identifier(&issued()),
        turns: turns(&config.challenges, &history),
        history: &history,
        looked: &AtomicBool::new(false),
    };
    assert!(ordering.certificate().await.is_err());
    let orders = stub.payloads("/order");
    let replaces: Vec<_> = orders.iter().map(|order| order.contains(r#""replaces":""#)).collect();
    assert_eq!(replaces, [true, false], "{orders:?}");
}
