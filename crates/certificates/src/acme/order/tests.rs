//! Orders with an authority that has few manners.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::SeqCst;

use http::Response;

use super::*;
use crate::acme::clock::now;
use crate::acme::plan::{Severity, turns};
use crate::acme::state::Pending;
use crate::acme::stub::{StubAuthority, StubBehaviour, after, plain, problem};
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
    let answer = Response::builder().status(201).header("location", "BASE/order/1");
    Some(answer.body(body.to_string()).unwrap())
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

fn told() -> Option<Response<String>> {
    let body = r#"{"type": "http-01", "url": "BASE/look", "token": "t", "status": "processing"}"#;
    Some(plain(200, body))
}

async fn tried(stub: &StubAuthority) -> Result<Issued, AcmeError> {
    let (config, history, names) = (stub.config(), History::default(), names());
    let ordering = Ordering::<SingleNode> {
        config: &config,
        state: &State::open(&config.state, &config.directory).unwrap(),
        answers: &Answers::new(),
        sharing: None,
        names: &names,
        replaces: None,
        turns: turns(&config.challenges, &history),
        history: &history,
        looked: &AtomicBool::new(false),
    };
    ordering.certificate().await
}

fn state(stub: &StubAuthority) -> State {
    let config = stub.config();
    State::open(&config.state, &config.directory).unwrap()
}

#[tokio::test]
async fn a_kind_that_is_not_offered_costs_nothing() {
    let stub = StubAuthority::start(|path| match path {
        "/order" => order("pending"),
        "/names/1" => offers("EXAMPLE.test", "http-01"),
        "/look" => told(),
        "/order/1" => order("invalid"),
        _ => None,
    })
    .await;
    assert_eq!(stub.config().challenges[0], ChallengeKind::TlsAlpn01);
    let error = tried(&stub).await.unwrap_err();
    assert!(error.to_string().contains("became invalid"), "{error}");
    assert_eq!((stub.payloads("/look").len(), stub.payloads("/order").len()), (1, 1));
}

#[tokio::test]
async fn that_no_kind_is_offered_is_said_in_few_words() {
    let whims: [(StubBehaviour, &str); 2] = [
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
    for (whim, word) in whims {
        let error = tried(&StubAuthority::start(whim).await).await.unwrap_err();
        assert!(matches!(error, AcmeError::NotOffered { .. }), "{error}");
        let error = error.to_string();
        assert!(error.contains(word) && error.len() < 700, "{error}");
        assert!(!error.contains(char::is_control), "{error:?}");
    }
}

#[tokio::test]
async fn foreign_names_and_tokens_are_refused() {
    let whims: [(StubBehaviour, &str); 2] = [
        (
            |path| match path {
                "/order" => order("pending"),
                "/names/1" => offers("a\nforged \u{1b}[2J line", "http-01"),
                _ => None,
            },
            "wants to see a forged  [2J line, which was not asked for",
        ),
        (
            |path| match path {
                "/order" => order("pending"),
                "/names/1" => offers("example.test", "http-01")
                    .map(|answer| answer.map(|body| body.replace("to-_ken", "../x"))),
                _ => None,
            },
            "token",
        ),
    ];
    for (whim, word) in whims {
        let stub = StubAuthority::start(whim).await;
        let error = tried(&stub).await.unwrap_err();
        assert_eq!(error.severity(), Severity::Refused);
        assert!(error.to_string().contains(word), "{error}");
        assert!(stub.payloads("/look").is_empty());
    }
}

/// What becomes of the order at the end, and the chain when there is one.
static CHAIN: OnceLock<String> = OnceLock::new();
static BLOCKED: AtomicBool = AtomicBool::new(true);

#[tokio::test]
async fn an_order_that_may_be_signed_is_gone_on_with() {
    let stub = StubAuthority::start(|path| match path {
        "/order" => order("ready"),
        "/finalize" => order("processing"),
        "/order/1" if CHAIN.get().is_none() => Some(plain(503, "")),
        "/order/1" => order("valid"),
        "/certificate" if BLOCKED.load(SeqCst) => Some(plain(403, "a box between us")),
        "/certificate" => Some(plain(200, CHAIN.get().unwrap().as_str())),
        _ => None,
    })
    .await;
    assert_eq!(tried(&stub).await.unwrap_err().severity(), Severity::Unreachable);
    let key = state(&stub).pending(&names(), now()).unwrap().expect("an order").key;
    let pair = rcgen::KeyPair::from_pem(&key).unwrap();
    let chain = rcgen::CertificateParams::new(names()).unwrap().self_signed(&pair).unwrap();
    CHAIN.set(chain.pem()).unwrap();
    assert!(tried(&stub).await.unwrap_err().to_string().contains("403"));
    BLOCKED.store(false, SeqCst);
    let issued = tried(&stub).await.unwrap();
    assert_eq!((issued.key.as_str(), issued.chain), (key.as_str(), chain.pem()));
    assert_eq!((stub.payloads("/order").len(), stub.payloads("/finalize").len()), (1, 1));
}

#[tokio::test]
async fn an_order_that_was_judged_is_over() {
    let whims: [(StubBehaviour, bool); 3] = [
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
                "/finalize" => Some(after(problem(429, "rateLimited", "later"), "60")),
                _ => None,
            },
            true,
        ),
    ];
    for (whim, goes_on) in whims {
        let stub = StubAuthority::start(whim).await;
        assert_eq!(tried(&stub).await.unwrap_err().severity(), Severity::Refused);
        let pending = state(&stub).pending(&names(), now()).unwrap();
        assert_eq!(pending.is_some(), goes_on);
    }
}

#[tokio::test]
async fn an_order_that_the_authority_forgot_is_made_anew() {
    let whims: [StubBehaviour; 3] = [
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
    for whim in whims {
        let stub = StubAuthority::start(whim).await;
        let url = stub.config().directory.to_string().replace("/dir", "/order/1");
        let pending = Pending { url, key: String::new().into(), since: now() };
        state(&stub).save_pending(&names(), &pending).unwrap();
        assert!(matches!(tried(&stub).await, Err(AcmeError::RateLimited { .. })));
        assert_eq!((stub.payloads("/order").len(), stub.payloads("/order/1").len()), (1, 1));
        assert!(state(&stub).pending(&names(), now()).unwrap().is_none());
    }
}

/// Runs a manager until the authority was told to look; then it leaves, or is killed.
async fn until_told(stub: &StubAuthority, leaves: bool) {
    let manager = Manager::new(stub.config(), vec![names()], Answers::new(), SingleNode).unwrap();
    let told = async {
        while stub.payloads("/look").is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let patience = Duration::from_secs(60);
    if leaves {
        let told = async { tokio::time::timeout(patience, told).await.unwrap() };
        manager.run(told).await;
    } else {
        let run = manager.run(std::future::pending());
        tokio::time::timeout(patience, async { tokio::select!(() = run => {}, () = told => {}) })
            .await
            .unwrap();
    }
}

async fn a_while(stub: &StubAuthority) -> CertificateState {
    let manager = Manager::new(stub.config(), vec![names()], Answers::new(), SingleNode).unwrap();
    let states = manager.watch();
    manager.run(tokio::time::sleep(Duration::from_millis(300))).await;
    states.borrow()[0].clone()
}

fn has_failed_once(state: CertificateState) {
    let trouble = state.last_error.expect("a failure");
    let pause = state.next_try.unwrap() - trouble.at;
    assert!((600..=900).contains(&pause) && trouble.in_a_row == 1, "{pause} {trouble:?}");
}

#[tokio::test]
async fn whoever_leaves_while_the_authority_looks_has_failed() {
    for leaves in [true, false] {
        let stub = StubAuthority::start(|path| match path {
            "/order" | "/order/1" => order("pending"),
            "/names/1" => offers("example.test", "http-01"),
            "/look" => told(),
            _ => None,
        })
        .await;
        until_told(&stub, leaves).await;
        has_failed_once(a_while(&stub).await);
        assert_eq!(stub.payloads("/order").len(), 1, "{leaves}");
    }
}

#[tokio::test]
async fn a_look_that_came_to_no_end_has_failed() {
    let stub = StubAuthority::start(|path| match path {
        "/order" => order("pending"),
        "/order/1" => Some(plain(503, "")),
        "/names/1" => offers("example.test", "http-01"),
        "/look" => told(),
        _ => None,
    })
    .await;
    let manager = Manager::new(stub.config(), vec![names()], Answers::new(), SingleNode).unwrap();
    let mut states = manager.watch();
    let failed = async move {
        let _ = states.wait_for(|all| all[0].last_error.is_some()).await;
    };
    manager.run(failed).await;
    has_failed_once(a_while(&stub).await);
}

#[tokio::test]
async fn whoever_leaves_before_the_authority_looks_may_begin_at_once() {
    let silent = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let stub = StubAuthority::start(|_| None).await;
    let directory = format!("https://{}/dir", silent.local_addr().unwrap()).parse().unwrap();
    let config = AcmeConfig { directory, ..stub.config() };
    for _ in 0..2 {
        let manager =
            Manager::new(config.clone(), vec![names()], Answers::new(), SingleNode).unwrap();
        let mut states = manager.watch();
        assert_eq!(states.borrow()[0].last_error, None);
        let asks = async move {
            let _ = states.wait_for(|all| all[0].phase == Phase::Ordering).await;
        };
        manager.run(asks).await;
    }
}
