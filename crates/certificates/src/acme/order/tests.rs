//! Orders with an authority that misbehaves.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::SeqCst;

use http::Response;

use super::*;
use crate::acme::now;
use crate::acme::schedule::{Severity, choose_challenges};
use crate::acme::storage::PendingOrder;
use crate::acme::stub::{StubAuthority, StubBehaviour, plain, problem, with_retry_after};
use crate::acme::{CertificateState, Manager, Phase, SingleNode};

fn names() -> Vec<String> {
    vec!["example.test".to_owned()]
}

/// RFC 8555 section 7.1.3.
fn order(status: &str) -> Option<Response<String>> {
    let body = serde_json::json!({
        "status": status, "finalize": "BASE/finalize", "certificate": "BASE/certificate",
        "authorizations": ["BASE/names/1"],
    });
    let response = Response::builder().status(201).header("location", "BASE/order/1");
    Some(response.body(body.to_string()).unwrap())
}

/// Section 7.1.4.
fn offers(name: &str, kind: &str) -> Option<Response<String>> {
    let challenge = serde_json::json!({
        "type": kind, "url": "BASE/look", "token": "to-_ken", "status": "pending"
    });
    let body = serde_json::json!({
        "status": "pending", "identifier": {"type": "dns", "value": name},
        "challenges": [challenge],
    });
    Some(plain(200, body.to_string()))
}

fn processing() -> Option<Response<String>> {
    let body = r#"{"type": "http-01", "url": "BASE/look", "token": "t", "status": "processing"}"#;
    Some(plain(200, body))
}

async fn run_order(stub: &StubAuthority) -> Result<IssuedCertificate, AcmeError> {
    let (config, history, names) = (stub.config(), History::default(), names());
    let ordering = OrderRequest::<SingleNode> {
        config: &config,
        state: &StateDirectory::open(&config.state, &config.directory).unwrap(),
        responses: &ChallengeResponses::new(),
        sharing: None,
        names: &names,
        replaces: None,
        challenge_plan: choose_challenges(&config.challenges, &history),
        history: &history,
        validation_started: &AtomicBool::new(false),
    };
    ordering.certificate().await
}

fn state(stub: &StubAuthority) -> StateDirectory {
    let config = stub.config();
    StateDirectory::open(&config.state, &config.directory).unwrap()
}

#[tokio::test]
async fn a_challenge_that_is_not_offered_uses_no_validation() {
    let stub = StubAuthority::start(|path| match path {
        "/order" => order("pending"),
        "/names/1" => offers("EXAMPLE.test", "http-01"),
        "/look" => processing(),
        "/order/1" => order("invalid"),
        _ => None,
    })
    .await;
    assert_eq!(stub.config().challenges[0], ChallengeKind::TlsAlpn01);
    let error = run_order(&stub).await.unwrap_err();
    assert!(error.to_string().contains("became invalid"), "{error}");
    assert_eq!((stub.payloads("/look").len(), stub.payloads("/order").len()), (1, 1));
}

#[tokio::test]
async fn missing_challenges_are_reported_in_a_short_line() {
    let behaviours: [(StubBehaviour, &str); 2] = [
        (
            |path| match path {
                "/order" => order("pending"),
                "/names/1" => offers("example.test", "dns-01"),
                _ => None,
            },
            "offers dns-01 for example.test",
        ),
        (
            |path| match path {
                "/order" => order("pending"),
                "/names/1" => offers("example.test", &"\n\u{1b}[2J".repeat(20_000)),
                _ => None,
            },
            "offers  ",
        ),
    ];
    for (behaviour, text) in behaviours {
        let error = run_order(&StubAuthority::start(behaviour).await).await.unwrap_err();
        assert!(matches!(error, AcmeError::NotOffered { .. }), "{error}");
        let error = error.to_string();
        assert!(error.contains(text) && error.len() < 700, "{error}");
        assert!(!error.contains(char::is_control), "{error:?}");
    }
}

#[tokio::test]
async fn unexpected_names_and_tokens_are_refused() {
    let behaviours: [(StubBehaviour, &str); 2] = [
        (
            |path| match path {
                "/order" => order("pending"),
                "/names/1" => offers("a\nforged \u{1b}[2J line", "http-01"),
                _ => None,
            },
            "wants to validate a forged  [2J line, which was not ordered",
        ),
        (
            |path| match path {
                "/order" => order("pending"),
                "/names/1" => offers("example.test", "http-01")
                    .map(|response| response.map(|body| body.replace("to-_ken", "../x"))),
                _ => None,
            },
            "token",
        ),
    ];
    for (behaviour, text) in behaviours {
        let stub = StubAuthority::start(behaviour).await;
        let error = run_order(&stub).await.unwrap_err();
        assert_eq!(error.severity(), Severity::Refused);
        assert!(error.to_string().contains(text), "{error}");
        assert!(stub.payloads("/look").is_empty());
    }
}

/// The chain once it is signed, and whether its download fails.
static CHAIN: OnceLock<String> = OnceLock::new();
static DOWNLOAD_BLOCKED: AtomicBool = AtomicBool::new(true);

#[tokio::test]
async fn a_finalized_order_is_resumed() {
    let stub = StubAuthority::start(|path| match path {
        "/order" => order("ready"),
        "/finalize" => order("processing"),
        "/order/1" if CHAIN.get().is_none() => Some(plain(503, "")),
        "/order/1" => order("valid"),
        "/certificate" if DOWNLOAD_BLOCKED.load(SeqCst) => Some(plain(403, "a middlebox")),
        "/certificate" => Some(plain(200, CHAIN.get().unwrap().as_str())),
        _ => None,
    })
    .await;
    assert_eq!(run_order(&stub).await.unwrap_err().severity(), Severity::Unreachable);
    let key = state(&stub).pending(&names(), now()).unwrap().expect("an order").key;
    let pair = rcgen::KeyPair::from_pem(&key).unwrap();
    let chain = rcgen::CertificateParams::new(names()).unwrap().self_signed(&pair).unwrap();
    CHAIN.set(chain.pem()).unwrap();
    assert!(run_order(&stub).await.unwrap_err().to_string().contains("403"));
    DOWNLOAD_BLOCKED.store(false, SeqCst);
    let issued = run_order(&stub).await.unwrap();
    assert_eq!((issued.key.as_str(), issued.chain), (key.as_str(), chain.pem()));
    assert_eq!((stub.payloads("/order").len(), stub.payloads("/finalize").len()), (1, 1));
}

#[tokio::test]
async fn a_rejected_order_is_forgotten() {
    let behaviours: [(StubBehaviour, bool); 3] = [
        (
            |path| match path {
                "/order" => order("ready"),
                "/finalize" => Some(problem(400, "badCSR", "no")),
                _ => None,
            },
            false,
        ),
        (
            |path| match path {
                "/order" => order("ready"),
                "/finalize" => order("processing"),
                "/order/1" => order("invalid"),
                _ => None,
            },
            false,
        ),
        (
            |path| match path {
                "/order" => order("ready"),
                "/finalize" => Some(with_retry_after(problem(429, "rateLimited", "later"), "60")),
                _ => None,
            },
            true,
        ),
    ];
    for (behaviour, is_resumable) in behaviours {
        let stub = StubAuthority::start(behaviour).await;
        assert_eq!(run_order(&stub).await.unwrap_err().severity(), Severity::Refused);
        let pending = state(&stub).pending(&names(), now()).unwrap();
        assert_eq!(pending.is_some(), is_resumable);
    }
}

#[tokio::test]
async fn an_order_that_the_authority_forgot_is_created_again() {
    let behaviours: [StubBehaviour; 3] = [
        |path| (path == "/order").then(|| problem(429, "rateLimited", "")),
        |path| match path {
            "/order" => Some(problem(429, "rateLimited", "")),
            "/order/1" => Some(plain(404, "")),
            _ => None,
        },
        |path| match path {
            "/order" => Some(problem(429, "rateLimited", "")),
            "/order/1" => order("pending"),
            _ => None,
        },
    ];
    for behaviour in behaviours {
        let stub = StubAuthority::start(behaviour).await;
        let url = stub.config().directory.to_string().replace("/dir", "/order/1");
        let pending = PendingOrder { url, key: String::new().into(), since: now() };
        state(&stub).save_pending(&names(), &pending).unwrap();
        assert!(matches!(run_order(&stub).await, Err(AcmeError::RateLimited { .. })));
        assert_eq!((stub.payloads("/order").len(), stub.payloads("/order/1").len()), (1, 1));
        assert!(state(&stub).pending(&names(), now()).unwrap().is_none());
    }
}

/// Runs a manager until the authority was told to validate; then stops or kills it.
async fn run_until_validation(stub: &StubAuthority, stops: bool) {
    let manager =
        Manager::new(stub.config(), vec![names()], ChallengeResponses::new(), SingleNode).unwrap();
    let processing = async {
        while stub.payloads("/look").is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let limit = Duration::from_secs(60);
    if stops {
        let processing = async { tokio::time::timeout(limit, processing).await.unwrap() };
        manager.run(processing).await;
    } else {
        let run = manager.run(std::future::pending());
        tokio::time::timeout(limit, async {
            tokio::select!(() = run => {}, () = processing => {})
        })
        .await
        .unwrap();
    }
}

async fn run_briefly(stub: &StubAuthority) -> CertificateState {
    let manager =
        Manager::new(stub.config(), vec![names()], ChallengeResponses::new(), SingleNode).unwrap();
    let states = manager.watch();
    manager.run(tokio::time::sleep(Duration::from_millis(300))).await;
    states.borrow()[0].clone()
}

fn assert_failed_once(state: CertificateState) {
    let failure = state.last_error.expect("a failure");
    let pause = state.next_attempt.unwrap() - failure.at;
    assert!((600..=900).contains(&pause) && failure.consecutive == 1, "{pause} {failure:?}");
}

#[tokio::test]
async fn stopping_during_validation_counts_as_a_failure() {
    for stops in [true, false] {
        let stub = StubAuthority::start(|path| match path {
            "/order" | "/order/1" => order("pending"),
            "/names/1" => offers("example.test", "http-01"),
            "/look" => processing(),
            _ => None,
        })
        .await;
        run_until_validation(&stub, stops).await;
        assert_failed_once(run_briefly(&stub).await);
        assert_eq!(stub.payloads("/order").len(), 1, "{stops}");
    }
}

#[tokio::test]
async fn a_validation_without_a_result_counts_as_a_failure() {
    let stub = StubAuthority::start(|path| match path {
        "/order" => order("pending"),
        "/order/1" => Some(plain(503, "")),
        "/names/1" => offers("example.test", "http-01"),
        "/look" => processing(),
        _ => None,
    })
    .await;
    let manager =
        Manager::new(stub.config(), vec![names()], ChallengeResponses::new(), SingleNode).unwrap();
    let mut states = manager.watch();
    let failed = async move {
        let _ = states.wait_for(|all| all[0].last_error.is_some()).await;
    };
    manager.run(failed).await;
    assert_failed_once(run_briefly(&stub).await);
}

#[tokio::test]
async fn stopping_before_validation_lets_the_next_process_order_at_once() {
    let silent = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let stub = StubAuthority::start(|_| None).await;
    let directory = format!("https://{}/dir", silent.local_addr().unwrap()).parse().unwrap();
    let config = AcmeConfig { directory, ..stub.config() };
    for _ in 0..2 {
        let manager =
            Manager::new(config.clone(), vec![names()], ChallengeResponses::new(), SingleNode)
                .unwrap();
        let mut states = manager.watch();
        assert_eq!(states.borrow()[0].last_error, None);
        let orders = async move {
            let _ = states.wait_for(|all| all[0].phase == Phase::Ordering).await;
        };
        manager.run(orders).await;
    }
}
