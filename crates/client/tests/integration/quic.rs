//! Whole transfers over QUIC: full, resumed, early, refused, with a token, and failures.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use firstflight_client::{Client, EarlyPolicy, Listener, Report, Request};
use firstflight_tls::{EarlyDataReason, Trust};
use h3::error::Code;
use http::Method;
use tokio::net::UdpSocket;

use crate::support::quic::{Flood, QuicReply, QuicServer, QuicServerBehaviour, Relay, url};
use crate::support::{ClientDir, send};

async fn get(client: &Client, server: &QuicServer) -> (Report, String) {
    send(client, Request::get(server.url("/path"))).await
}

fn post(server: &QuicServer, body: impl Into<bytes::Bytes>) -> Request {
    Request { method: Method::POST, body: body.into(), ..Request::get(server.url("/path")) }
}

#[tokio::test]
async fn full_then_resumed_then_early() {
    let (dir, server) = (ClientDir::new(), QuicServer::start(QuicServerBehaviour::default()).await);
    let (report, body) = get(&dir.quic(|_| {}), &server).await;
    assert_eq!((report.exit_code(), report.status()), (0, 200), "{report:?}");
    assert_eq!(body, "hello");
    let facts = report.facts.as_ref().unwrap();
    assert_eq!((facts.resumed, facts.alpn.as_deref()), (false, Some(&b"h3"[..])));
    assert_eq!((report.early_data(), report.early_bytes, report.num_connects), ("none", 0, 1));
    assert!(report.sessions > 0 && report.tokens == 1, "{report:?}");
    let head = report.head.as_ref().unwrap();
    assert_eq!(head.version, http::Version::HTTP_3);
    assert!(head.raw.starts_with(b"HTTP/3 200 \r\n") && head.raw.ends_with(b"\r\n\r\n"));
    let times = report.timings();
    assert!(times.connect > 0.0 && times.connect == times.appconnect, "{times:?}");
    assert!(times.appconnect <= times.pretransfer && times.pretransfer <= times.starttransfer);

    let (report, _) = get(&dir.quic(|c| c.early_data = EarlyPolicy::Never), &server).await;
    assert!(report.facts.as_ref().unwrap().resumed);
    assert_eq!(report.early_data(), "none");

    let (report, body) = get(&dir.quic(|_| {}), &server).await;
    assert_eq!((report.early_data(), body.as_str(), report.retries), ("accepted", "hello", 0));
    assert!(report.early_bytes > 0, "{report:?}");
    let times = report.timings();
    assert!(times.pretransfer > 0.0 && times.pretransfer <= times.appconnect, "{times:?}");
    assert!(times.appconnect <= times.starttransfer && times.starttransfer <= times.total);
    let seen = server.take_requests();
    assert_eq!(seen.iter().map(|request| request.early).collect::<Vec<_>>(), [false, false, true]);
    assert_eq!(seen[2].text, "GET /path ");
    assert!(server.is_idle().await, "each connection was closed");
}

#[tokio::test]
async fn rfc9001_4_6_2_refused_early_data_is_sent_again_once_with_its_body() {
    type Change = fn(&mut QuicServerBehaviour);
    let cases: [(Change, EarlyDataReason); 3] = [
        (|behaviour| behaviour.key = 2, EarlyDataReason::SessionNotResumed),
        (|behaviour| behaviour.accept = false, EarlyDataReason::PeerDeclined),
        // RFC 9000 section 7.4.1: a server whose limits are lower than the remembered ones.
        (|behaviour| behaviour.window = 1 << 14, EarlyDataReason::PeerDeclined),
    ];
    for (change, reason) in cases {
        let (dir, server) =
            (ClientDir::new(), QuicServer::start(QuicServerBehaviour::default()).await);
        get(&dir.quic(|_| {}), &server).await;
        server.take_requests();
        server.change_behaviour(change);
        let any = dir.quic(|config| config.early_data = EarlyPolicy::AnyMethod);
        let (report, body) = send(&any, post(&server, "a=b")).await;
        assert_eq!((report.early_data(), body.as_str()), ("refused", "hello"), "{report:?}");
        assert_eq!(report.facts.as_ref().unwrap().early_data_reason, reason);
        assert!(report.early_bytes > 3, "{report:?}");
        assert_eq!((report.retries, report.num_connects), (0, 1));
        let seen = server.take_requests();
        assert_eq!(seen.len(), 1, "{seen:?}");
        assert_eq!((seen[0].text.as_str(), seen[0].early), ("POST /path a=b", false));
    }
}

#[tokio::test]
async fn a_body_larger_than_the_first_flight_continues_after_the_handshake() {
    let (dir, server) = (ClientDir::new(), QuicServer::start(QuicServerBehaviour::default()).await);
    get(&dir.quic(|_| {}), &server).await;
    let large = "x".repeat(300_000);
    for (accept, expected) in [(true, "accepted"), (false, "refused")] {
        server.change_behaviour(|behaviour| behaviour.accept = accept);
        server.take_requests();
        let any = dir.quic(|config| config.early_data = EarlyPolicy::AnyMethod);
        let (report, body) = send(&any, post(&server, large.clone())).await;
        assert_eq!((report.early_data(), body.as_str()), (expected, "hello"), "{report:?}");
        let early = report.early_bytes;
        assert!((5_000..14_720).contains(&early), "the first window of it was early: {early}");
        let seen = server.take_requests();
        assert_eq!(seen.len(), 1);
        assert_eq!(seen[0].text, format!("POST /path {large}"));
    }
}

#[tokio::test]
async fn rfc9110_9_2_1_a_post_is_early_only_if_the_policy_allows_it() {
    let (dir, server) = (ClientDir::new(), QuicServer::start(QuicServerBehaviour::default()).await);
    get(&dir.quic(|_| {}), &server).await;
    let (report, _) = send(&dir.quic(|_| {}), post(&server, "a=b")).await;
    assert_eq!((report.early_data(), report.status(), report.early_bytes), ("none", 200, 0));
    assert!(report.facts.unwrap().resumed);
    let any = dir.quic(|config| config.early_data = EarlyPolicy::AnyMethod);
    let (report, _) = send(&any, post(&server, "a=b")).await;
    assert_eq!((report.early_data(), report.size_upload), ("accepted", 3));
    let seen = server.take_requests();
    assert_eq!((seen[1].early, seen[2].early), (false, true));
}

#[tokio::test]
async fn rfc9000_8_1_3_an_address_token_is_sent_from_the_second_run_on_and_each_once() {
    let (dir, server) = (ClientDir::new(), QuicServer::start(QuicServerBehaviour::default()).await);
    for turn in 0..4 {
        let (report, _) = get(&dir.quic(|_| {}), &server).await;
        assert_eq!(report.quic.unwrap().token_sent, turn > 0, "{report:?}");
        assert!(dir.jar().count_tokens().unwrap() > 0);
    }
    let validated: Vec<bool> =
        server.take_requests().iter().map(|request| request.validated).collect();
    assert_eq!(validated, [false, true, true, true]);
}

#[tokio::test]
async fn a_token_is_kept_without_a_session() {
    let behaviour = QuicServerBehaviour { tickets: 0, ..QuicServerBehaviour::default() };
    let (dir, server) = (ClientDir::new(), QuicServer::start(behaviour).await);
    for turn in 0..2 {
        let (report, _) = get(&dir.quic(|_| {}), &server).await;
        assert_eq!(report.sessions, 0, "{report:?}");
        // A server that considers a packet lost sends another token.
        assert!(report.tokens > 0, "{report:?}");
        assert_eq!(
            (dir.jar().count().unwrap(), server.take_requests()[0].validated),
            (0, turn > 0)
        );
    }
}

#[tokio::test]
async fn tokens_of_unverified_servers_are_not_used_with_verification() {
    let (dir, server) = (ClientDir::new(), QuicServer::start(QuicServerBehaviour::default()).await);
    let loose = || dir.quic(|config| config.trust = Trust::Anyone);
    assert_eq!(get(&loose(), &server).await.0.exit_code(), 0);
    let (report, _) = get(&dir.quic(|_| {}), &server).await;
    assert!(!report.facts.unwrap().resumed && !report.quic.unwrap().token_sent);
    let (report, _) = get(&loose(), &server).await;
    assert!(report.facts.unwrap().resumed && report.quic.unwrap().token_sent);
    let strict = dir.quic(|config| config.trust = Trust::System);
    let (report, _) = get(&strict, &server).await;
    assert_eq!(report.exit_code(), 60, "{:?}", report.error);
}

#[tokio::test]
async fn rfc9000_17_2_5_early_data_survives_a_retry() {
    let behaviour = QuicServerBehaviour { tokens: 0, ..QuicServerBehaviour::default() };
    let (dir, server) = (ClientDir::new(), QuicServer::start(behaviour).await);
    get(&dir.quic(|_| {}), &server).await;
    server.change_behaviour(|behaviour| behaviour.retry = true);
    server.take_requests();
    let (report, body) = get(&dir.quic(|_| {}), &server).await;
    assert_eq!((report.early_data(), body.as_str()), ("accepted", "hello"), "{report:?}");
    let seen = server.take_requests();
    assert_eq!((seen.len(), seen[0].early, seen[0].validated), (1, true, true));
}

#[tokio::test]
async fn rfc8470_5_2_a_425_is_retried_once_on_a_new_connection_without_early_data() {
    let (dir, server) = (ClientDir::new(), QuicServer::start(QuicServerBehaviour::default()).await);
    get(&dir.quic(|_| {}), &server).await;
    server.take_requests();
    server.change_behaviour(|behaviour| {
        behaviour.response = |_, early| match early {
            true => QuicReply::RespondThenGoaway(425, ""),
            false => QuicReply::Respond(200, "hello"),
        };
    });
    let (report, body) = get(&dir.quic(|_| {}), &server).await;
    assert_eq!((report.status(), report.retries, body.as_str()), (200, 1, "hello"), "{report:?}");
    assert_eq!((report.num_connects, report.early_data(), report.early_bytes), (2, "none", 0));
    let seen = server.take_requests();
    assert_eq!((seen.len(), seen[0].early, seen[1].early), (2, true, false));
    assert_ne!(seen[0].connection, seen[1].connection);

    // A 425 without early data, or after a retry, is final.
    server.change_behaviour(|behaviour| behaviour.response = |_, _| QuicReply::Respond(425, ""));
    let (report, _) = get(&dir.quic(|_| {}), &server).await;
    assert_eq!((report.status(), report.retries, server.take_requests().len()), (425, 1, 2));
    let late = dir.quic(|config| config.early_data = EarlyPolicy::Never);
    let (report, _) = get(&late, &server).await;
    assert_eq!((report.status(), report.retries, server.take_requests().len()), (425, 0, 1));
}

#[tokio::test]
async fn rfc9114_4_1_1_an_unprocessed_request_is_retried_on_a_new_connection() {
    let behaviour = QuicServerBehaviour {
        response: |number, _| match number {
            0 => QuicReply::Reset(Code::H3_REQUEST_REJECTED),
            _ => QuicReply::Respond(200, "hello"),
        },
        ..QuicServerBehaviour::default()
    };
    let (dir, server) = (ClientDir::new(), QuicServer::start(behaviour).await);
    let (report, body) = send(&dir.quic(|_| {}), post(&server, "a=b")).await;
    assert_eq!((report.exit_code(), body.as_str()), (0, "hello"), "{report:?}");
    assert_eq!((report.retries, report.num_connects), (1, 2));
}

/// Collects a body, and tells the server when a part was read.
struct BodyCollector(Vec<u8>, QuicServer);

impl Listener for BodyCollector {
    fn body(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.extend_from_slice(bytes);
        self.1.part_read.notify_one();
        Ok(())
    }
}

#[tokio::test]
async fn rfc9114_4_1_1_a_request_whose_response_has_started_is_not_sent_again() {
    let behaviour = QuicServerBehaviour {
        response: |number, _| match number {
            0 => QuicReply::ResetWithin(Code::H3_REQUEST_REJECTED),
            _ => QuicReply::Respond(200, "hello"),
        },
        ..QuicServerBehaviour::default()
    };
    let (dir, server) = (ClientDir::new(), QuicServer::start(behaviour).await);
    let mut parts = BodyCollector(Vec::new(), server.clone());
    let report = dir.quic(|_| {}).fetch(post(&server, "a=b"), &mut parts).await;
    assert_eq!((report.exit_code(), report.retries), (95, 0), "{report:?}");
    assert_eq!((parts.0.as_slice(), server.take_requests().len()), (&b"hell"[..], 1));
}

#[tokio::test]
async fn rfc9110_15_2_informational_heads_come_before_the_response() {
    type Rule = fn(usize, bool) -> QuicReply;
    let cases: [Rule; 3] = [
        |_, _| QuicReply::After(&[103]),
        |_, _| QuicReply::After(&[100, 102, 103, 199]),
        |_, _| QuicReply::After(&[103; 16]),
    ];
    for response in cases {
        let server =
            QuicServer::start(QuicServerBehaviour { response, ..QuicServerBehaviour::default() })
                .await;
        let (report, body) = get(&ClientDir::new().quic(|_| {}), &server).await;
        assert_eq!((report.exit_code(), report.status()), (0, 200), "{:?}", report.error);
        assert_eq!(body, "hello");
    }
}

#[tokio::test]
async fn rfc9114_4_5_a_101_and_too_many_informational_responses_are_errors() {
    type Rule = fn(usize, bool) -> QuicReply;
    let cases: [(Rule, &str); 3] = [
        (|_, _| QuicReply::After(&[101]), "101"),
        (|_, _| QuicReply::After(&[103, 101]), "101"),
        (|_, _| QuicReply::After(&[103; 17]), "more than 16 informational responses"),
    ];
    for (response, text) in cases {
        let server =
            QuicServer::start(QuicServerBehaviour { response, ..QuicServerBehaviour::default() })
                .await;
        let (report, _) = get(&ClientDir::new().quic(|_| {}), &server).await;
        let error = report.error.as_ref().map(ToString::to_string).unwrap_or_default();
        assert_eq!(report.exit_code(), 95, "{error}");
        assert!(error.contains(text), "{error}");
    }
}

#[tokio::test]
async fn interrupted_responses_have_curls_exit_codes() {
    type Rule = fn(usize, bool) -> QuicReply;
    const NO_ERROR: &str = "without a response";
    const EXCESSIVE: &str = "H3_EXCESSIVE_LOAD (told to)";
    // RFC 9000 section 10.2.3: during the handshake a server hides its reason.
    const BEFORE: &str = "the server closed the connection during the handshake";
    let cases: [(Rule, [(u8, &str); 2]); 6] = [
        (|_, _| QuicReply::Promise(9, "hell"), [(18, "before the end"); 2]),
        // RFC 9114 section 4.1.2.
        (|_, _| QuicReply::Promise(4, "hello"), [(95, "longer than its Content-Length"); 2]),
        (|_, _| QuicReply::Reset(Code::H3_INTERNAL_ERROR), [(95, "H3_INTERNAL_ERROR"); 2]),
        (|_, _| QuicReply::Reset(Code::H3_REQUEST_REJECTED), [(95, "try again"); 2]),
        (|_, _| QuicReply::Close(Code::H3_NO_ERROR), [(52, NO_ERROR), (96, BEFORE)]),
        (|_, _| QuicReply::Close(Code::H3_EXCESSIVE_LOAD), [(95, EXCESSIVE), (96, BEFORE)]),
    ];
    for (response, expected) in cases {
        let server =
            QuicServer::start(QuicServerBehaviour { response, ..QuicServerBehaviour::default() })
                .await;
        let dir = ClientDir::new();
        for (code, text) in expected {
            let (report, _) = get(&dir.quic(|_| {}), &server).await;
            let error = report.error.as_ref().map(ToString::to_string).unwrap_or_default();
            assert_eq!(report.exit_code(), code, "{error}");
            assert!(error.contains(text), "{error}");
        }
    }
}

/// A frame header that announces 2^40 bytes is refused at once.
#[tokio::test]
async fn huge_frames_are_refused_and_not_buffered() {
    const HEADERS: &[u8] = &[0x01, 0xc0, 0, 1, 0, 0, 0, 0, 0];
    const SETTINGS: &[u8] = &[0x00, 0x04, 0xc0, 0, 1, 0, 0, 0, 0, 0];
    for (unidirectional, start) in [(false, HEADERS), (true, SETTINGS)] {
        let flood = Some(Flood { unidirectional, start, repeated: &[0; 10_000] });
        let server =
            QuicServer::start(QuicServerBehaviour { flood, ..QuicServerBehaviour::default() })
                .await;
        let dir = ClientDir::new();
        let client = dir.quic(|config| config.max_time = Some(Duration::from_secs(10)));
        let (report, _) = get(&client, &server).await;
        let error = report.error.as_ref().map(ToString::to_string).unwrap_or_default();
        assert_eq!(report.exit_code(), 95, "{error}");
        assert!(unidirectional || error.contains("1099511627776 bytes, more than"), "{error}");
        assert!(server.is_idle().await);
        let (bytes, code) = &*server.flooded;
        // No more than the receive window.
        assert!(bytes.load(Ordering::Relaxed) < 2_000_000, "{bytes:?} bytes");
        // On the request's stream, the server may see only the end of the connection.
        let excessive = code.load(Ordering::Relaxed) == Code::H3_EXCESSIVE_LOAD.value();
        assert!(excessive || !unidirectional, "{code:?}");
    }
}

/// More frames than the HTTP/3 library may buffer at once.
#[tokio::test]
async fn a_body_of_small_frames_arrives_whole() {
    let behaviour = QuicServerBehaviour {
        response: |_, _| QuicReply::TinyFrames(8_000),
        ..QuicServerBehaviour::default()
    };
    let (dir, server) = (ClientDir::new(), QuicServer::start(behaviour).await);
    let client = dir.quic(|config| config.max_time = Some(Duration::from_secs(60)));
    let (report, body) = get(&client, &server).await;
    assert_eq!((report.exit_code(), body.len()), (0, 8_000), "{:?}", report.error);
}

#[tokio::test]
async fn failed_handshakes_have_curls_exit_codes() {
    let (dir, server) = (ClientDir::new(), QuicServer::start(QuicServerBehaviour::default()).await);
    let behaviour = QuicServerBehaviour { alpn: "hq-interop", ..QuicServerBehaviour::default() };
    let other = QuicServer::start(behaviour).await;
    let (report, _) = get(&dir.quic(|_| {}), &other).await;
    assert_eq!(report.exit_code(), 35, "{:?}", report.error);
    let wrong = Request::get(
        firstflight_client::Target::parse(&format!("https://127.0.0.1:{}/", server.address.port()))
            .unwrap(),
    );
    let (report, _) = send(&dir.quic(|_| {}), wrong).await;
    assert_eq!(report.exit_code(), 60, "{:?}", report.error);
    // Nothing listens on this port, and the kernel reports it.
    let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (report, _) = send(&dir.quic(|_| {}), Request::get(url(free, "/"))).await;
    assert_eq!(report.exit_code(), 7, "{:?}", report.error);
    assert!(report.timings().total < 5.0, "the client did not wait");
}

#[tokio::test]
async fn timeouts_end_a_hanging_transfer() {
    let behaviour =
        QuicServerBehaviour { response: |_, _| QuicReply::Hang, ..QuicServerBehaviour::default() };
    let (dir, server) = (ClientDir::new(), QuicServer::start(behaviour).await);
    let client = dir.quic(|config| config.max_time = Some(Duration::from_millis(300)));
    let (report, _) = get(&client, &server).await;
    assert_eq!(report.exit_code(), 28, "{report:?}");
    assert!(report.timings().total >= 0.3 && report.timings().appconnect > 0.0);
    assert!(dir.jar().count().unwrap() > 0, "received tickets are kept");

    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let target = url(silent.local_addr().unwrap().port(), "/");
    let client = dir.quic(|config| config.connect_timeout = Some(Duration::from_millis(300)));
    let (report, _) = send(&client, Request::get(target)).await;
    assert_eq!(report.exit_code(), 28, "{report:?}");
    assert!(report.error.unwrap().to_string().contains("connecting"));
    assert!(report.peer.is_some());
}

#[tokio::test]
async fn redirections_are_followed() {
    let behaviour = QuicServerBehaviour {
        response: |number, _| match number {
            0 => QuicReply::Redirect("/next"),
            _ => QuicReply::Respond(200, "hello"),
        },
        ..QuicServerBehaviour::default()
    };
    let (dir, server) = (ClientDir::new(), QuicServer::start(behaviour).await);
    let (report, body) = get(&dir.quic(|config| config.redirects = Some(2)), &server).await;
    assert_eq!((report.status(), body.as_str(), report.num_redirects), (200, "hello", 1));
    assert!(report.url_effective.ends_with("/next"));
    // The second connection used the session of the first.
    assert_eq!(report.early_data(), "accepted");
}

#[tokio::test]
async fn rfc8470_5_2_each_request_of_a_redirection_is_retried_after_its_425() {
    let (dir, server) = (ClientDir::new(), QuicServer::start(QuicServerBehaviour::default()).await);
    get(&dir.quic(|_| {}), &server).await;
    server.take_requests();
    server.change_behaviour(|behaviour| {
        behaviour.response = |number, early| match (early, number) {
            (true, _) => QuicReply::Respond(425, ""),
            (false, 1) => QuicReply::Redirect("/next"),
            (false, _) => QuicReply::Respond(200, "hello"),
        };
    });
    let (report, body) = get(&dir.quic(|config| config.redirects = Some(1)), &server).await;
    assert_eq!((report.status(), report.retries, body.as_str()), (200, 2, "hello"), "{report:?}");
    let early: Vec<bool> = server.take_requests().iter().map(|request| request.early).collect();
    assert_eq!(early, [true, false, true, false]);
}

#[tokio::test]
async fn http_urls_have_no_http3() {
    let dir = ClientDir::new();
    let target = firstflight_client::Target::parse("http://localhost:1/").unwrap();
    let (report, _) = send(&dir.quic(|_| {}), Request::get(target)).await;
    assert_eq!(report.exit_code(), 3, "{report:?}");
}

/// The first address is silent, or refuses.
#[tokio::test]
async fn rfc8305_5_the_next_address_is_tried() {
    let server = QuicServer::start(QuicServerBehaviour::default()).await;
    let port = server.address.port();
    let silent = std::net::UdpSocket::bind(("127.0.0.77", port)).unwrap();
    for first in ["127.0.0.77", "127.0.0.78"] {
        let dir = ClientDir::new();
        let client = || {
            dir.quic(|config| {
                config
                    .resolver
                    .add_override(&format!("localhost:{port}:{first},127.0.0.1"))
                    .unwrap();
            })
        };
        // In the second run, the request is early data at the first address, and sent again.
        for sent_again in [false, true] {
            let (report, body) = get(&client(), &server).await;
            assert_eq!((report.exit_code(), body.as_str()), (0, "hello"), "{report:?}");
            assert_eq!(report.peer.unwrap().ip().to_string(), "127.0.0.1");
            assert_eq!(
                (report.retries, server.take_requests().len()),
                (sent_again.into(), 1),
                "{report:?}"
            );
        }
    }
    drop(silent);
}

/// An unsafe request that was sent early goes to no other address, unless the first one refuses.
#[tokio::test]
async fn rfc9110_9_2_1_a_post_that_was_sent_early_tries_no_other_address() {
    let server = QuicServer::start(QuicServerBehaviour::default()).await;
    let port = server.address.port();
    let silent = std::net::UdpSocket::bind(("127.0.0.79", port)).unwrap();
    for (first, code) in [("127.0.0.79", 28), ("127.0.0.80", 0)] {
        let dir = ClientDir::new();
        get(&dir.quic(|_| {}), &server).await;
        server.take_requests();
        let any = dir.quic(|config| {
            config.early_data = EarlyPolicy::AnyMethod;
            config.connect_timeout = Some(Duration::from_secs(2));
            config.resolver.add_override(&format!("localhost:{port}:{first},127.0.0.1")).unwrap();
        });
        let (report, _) = send(&any, post(&server, "a=b")).await;
        assert_eq!(report.exit_code(), code, "{first}: {:?}", report.error);
        assert_eq!(server.take_requests().len(), usize::from(code == 0), "{first}");
    }
    drop(silent);
}

/// The first address's server executes the request and stops before it responds. The network
/// reports this only when the client retransmits.
#[tokio::test]
async fn rfc9110_9_2_1_a_refused_retransmission_does_not_prove_that_the_first_flight_was_lost() {
    let server = QuicServer::start(QuicServerBehaviour::default()).await;
    let port = server.address.port();
    let dir = ClientDir::new();
    get(&dir.quic(|_| {}), &server).await;
    server.take_requests();
    let front = UdpSocket::bind(("127.0.0.81", port)).await.unwrap();
    let back = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let server_behind = server.clone();
    let first = tokio::spawn(async move {
        let (mut datagram, mut requests) = ([0; 2048], Vec::new());
        while requests.is_empty() {
            let received = front.recv_from(&mut datagram);
            if let Ok(Ok((length, _))) =
                tokio::time::timeout(Duration::from_millis(5), received).await
            {
                back.send_to(&datagram[..length], server_behind.address).await.unwrap();
            }
            requests = server_behind.take_requests();
        }
        requests
    });
    let any = dir.quic(|config| {
        config.early_data = EarlyPolicy::AnyMethod;
        config.resolver.add_override(&format!("localhost:{port}:127.0.0.81,127.0.0.1")).unwrap();
    });
    let (report, _) = send(&any, post(&server, "a=b")).await;
    let first = tokio::time::timeout(Duration::from_secs(120), first).await;
    assert_eq!(first.expect("the flight arrives").unwrap().len(), 1, "it was executed");
    assert_eq!(report.exit_code(), 7, "{:?}", report.error);
    assert!(server.take_requests().is_empty(), "it was not executed again");
}

/// RFC 9000 section 17.2: the lengths of the 0-RTT packets in a datagram, without packet number
/// and tag.
fn early_payloads(datagram: &[u8]) -> Vec<usize> {
    fn varint(bytes: &[u8]) -> (usize, usize) {
        let length = 1 << (bytes[0] >> 6);
        let number = bytes[1..length]
            .iter()
            .fold(usize::from(bytes[0] & 0x3f), |number, byte| number << 8 | usize::from(*byte));
        (number, length)
    }
    let mut found = Vec::new();
    let mut rest = datagram;
    while rest.len() > 7 && rest[0] & 0x80 != 0 {
        let kind = rest[0] >> 4 & 0x03;
        let mut at = 5;
        for _ in 0..2 {
            at += 1 + usize::from(rest[at]);
        }
        if kind == 0 {
            let (token, length) = varint(&rest[at..]);
            at += length + token;
        }
        let (payload, length) = varint(&rest[at..]);
        if kind == 1 {
            // One byte of packet number at least.
            found.push(payload - 16 - 1);
        }
        rest = &rest[at + length + payload..];
    }
    found
}

#[tokio::test]
async fn early_bytes_match_the_packets_and_leave_with_the_client_hello() {
    let server = QuicServer::start(QuicServerBehaviour::default()).await;
    let relay = Relay::start(server.address).await;
    let dir = ClientDir::new();
    let target = || Request::get(url(relay.address.port(), "/path"));
    send(&dir.quic(|_| {}), target()).await;
    assert_eq!(relay.datagrams().iter().flat_map(|d| early_payloads(d)).sum::<usize>(), 0);
    let any = dir.quic(|config| config.early_data = EarlyPolicy::AnyMethod);
    let body = "x".repeat(5000);
    let request = Request { method: Method::POST, body: body.into(), ..target() };
    let (report, _) = send(&any, request).await;
    assert_eq!(report.early_data(), "accepted", "{report:?}");
    let datagrams = relay.datagrams();
    let sent: usize = datagrams.iter().flat_map(|d| early_payloads(d)).sum();
    let early = report.early_bytes;
    assert!(early > 5000 && early <= sent && sent < early + 1200, "{early} of {sent} bytes");
    // A GET leaves with the ClientHello, which alone is slightly larger than a datagram.
    let (report, _) = send(&dir.quic(|_| {}), target()).await;
    assert_eq!(report.early_data(), "accepted");
    let datagrams = relay.datagrams();
    // Only datagrams that start with an Initial packet: the previous connection's close may come
    // between.
    let initial = datagrams.iter().filter(|datagram| datagram[0] & 0xb0 == 0x80);
    assert!(initial.take(2).any(|datagram| !early_payloads(datagram).is_empty()));
    relay.open.store(false, Ordering::Relaxed);
}
