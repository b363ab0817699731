//! Whole transfers over loopback: what is sent early, what is refused, what is sent again.

use std::time::Duration;

use firstflight_client::{ClientConfig, EarlyPolicy, Request};
use firstflight_tls::{EarlyDataReason, Trust, Version};

use crate::support::{ClientDir, OK, Reply, Server, ServerBehaviour, TOO_EARLY, get, send};

#[tokio::test]
async fn full_then_resumed_then_early() {
    let (dir, server) = (ClientDir::new(), Server::start(ServerBehaviour::default()).await);
    let (report, body) = get(&dir.client(|_| {}), &server).await;
    assert_eq!(
        (report.exit_code(), report.status(), body.as_str()),
        (0, 200, "hello"),
        "{report:?}"
    );
    assert!(!report.facts.as_ref().unwrap().resumed);
    assert_eq!((report.early_data(), report.early_bytes), ("none", 0));
    let raw = String::from_utf8(report.head.unwrap().raw).unwrap();
    assert!(raw.contains("X-Case: Kept\r\n") && raw.ends_with("\r\n\r\n"), "{raw:?}");

    let (report, _) = get(&dir.client(|c| c.early_data = EarlyPolicy::Never), &server).await;
    assert!(report.facts.as_ref().unwrap().resumed);
    assert_eq!(report.early_data(), "none");

    let (report, body) = get(&dir.client(|_| {}), &server).await;
    assert_eq!((report.early_data(), body.as_str(), report.retries), ("accepted", "hello", 0));
    assert_eq!(report.early_bytes as u64, report.size_request);
    let times = report.timings();
    assert!(times.pretransfer > 0.0 && times.pretransfer <= times.appconnect, "{times:?}");
    assert!(times.starttransfer <= times.total && times.connect <= times.pretransfer);
    let seen = server.take_requests();
    assert_eq!(seen.iter().map(|request| request.early).collect::<Vec<_>>(), [false, false, true]);
    assert!(seen[2].text.starts_with("GET /path?query HTTP/1.1\r\nHost: localhost:"), "{seen:?}");
}

#[tokio::test]
async fn http2_requests_are_sent_early() {
    let behaviour = ServerBehaviour { alpn: "h2", ..ServerBehaviour::default() };
    let (dir, server) = (ClientDir::new(), Server::start(behaviour).await);
    for expected in ["none", "accepted"] {
        let (report, body) = get(&dir.client(|_| {}), &server).await;
        assert_eq!((report.early_data(), body.as_str()), (expected, "hello"), "{report:?}");
        assert_eq!(report.head.unwrap().version, http::Version::HTTP_2);
    }
    let early: Vec<bool> = server.take_requests().iter().map(|request| request.early).collect();
    assert_eq!(early, [false, true]);
}

#[tokio::test]
async fn rfc8446_4_2_10_refused_early_data_is_sent_again_once() {
    type Change = fn(&mut ServerBehaviour);
    let cases: [(Change, EarlyDataReason); 2] = [
        (|behaviour| behaviour.key = 2, EarlyDataReason::SessionNotResumed),
        (|behaviour| behaviour.decline = true, EarlyDataReason::PeerDeclined),
    ];
    for (change, reason) in cases {
        let (dir, server) = (ClientDir::new(), Server::start(ServerBehaviour::default()).await);
        get(&dir.client(|_| {}), &server).await;
        server.take_requests();
        server.change_behaviour(change);
        let (report, body) = get(&dir.client(|_| {}), &server).await;
        assert_eq!((report.early_data(), body.as_str()), ("refused", "hello"), "{report:?}");
        assert_eq!(report.facts.as_ref().unwrap().early_data_reason, reason);
        assert!(report.early_bytes > 0);
        let seen = server.take_requests();
        assert_eq!(seen.len(), 1, "{seen:?}");
        assert!(!seen[0].early);
    }
}

#[tokio::test]
async fn rfc8470_5_2_a_425_is_retried_once_on_the_same_connection() {
    let (dir, server) = (ClientDir::new(), Server::start(ServerBehaviour::default()).await);
    get(&dir.client(|_| {}), &server).await;
    server.take_requests();
    server.change_behaviour(|behaviour| {
        behaviour.response = |_, early| Reply::Send(if early { TOO_EARLY } else { OK }, true);
    });
    let (report, body) = get(&dir.client(|_| {}), &server).await;
    assert_eq!((report.status(), report.retries, body.as_str()), (200, 1, "hello"), "{report:?}");
    let seen = server.take_requests();
    assert_eq!(seen.len(), 2);
    assert_eq!((seen[0].early, seen[1].early), (true, false));
    assert_eq!(seen[0].connection, seen[1].connection);
    assert_eq!(report.num_connects, 1);
}

#[tokio::test]
async fn rfc8470_5_2_a_425_that_closes_is_retried_on_a_new_connection_without_early_data() {
    const CLOSING: &str =
        "HTTP/1.1 425 Too Early\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    type Rule = fn(usize, bool) -> Reply;
    // A server that announces the close, and one that closes while the request is sent again.
    let cases: [(Rule, u32); 2] = [
        (|_, early| Reply::Send(if early { CLOSING } else { OK }, !early), 1),
        (|_, early| Reply::Send(if early { TOO_EARLY } else { OK }, !early), 2),
    ];
    for (response, max_retries) in cases {
        let (dir, server) = (ClientDir::new(), Server::start(ServerBehaviour::default()).await);
        get(&dir.client(|_| {}), &server).await;
        server.take_requests();
        server.change_behaviour(|behaviour| behaviour.response = response);
        let (report, body) = get(&dir.client(|_| {}), &server).await;
        assert_eq!((report.status(), body.as_str()), (200, "hello"), "{report:?}");
        assert!((1..=max_retries).contains(&report.retries), "{report:?}");
        let seen = server.take_requests();
        assert_eq!((seen.len(), seen[0].early, seen[1].early), (2, true, false));
        assert_ne!(seen[0].connection, seen[1].connection);
        assert_eq!(report.num_connects, 2);
    }
}

#[tokio::test]
async fn rfc8470_5_2_a_425_without_early_data_or_after_a_retry_is_final() {
    let behaviour = ServerBehaviour {
        response: |_, _| Reply::Send(TOO_EARLY, true),
        ..ServerBehaviour::default()
    };
    let (dir, server) = (ClientDir::new(), Server::start(behaviour).await);
    let (report, _) = get(&dir.client(|_| {}), &server).await;
    assert_eq!((report.status(), report.retries, server.take_requests().len()), (425, 0, 1));
    let (report, _) = get(&dir.client(|_| {}), &server).await;
    assert_eq!((report.status(), report.retries, server.take_requests().len()), (425, 1, 2));
}

#[tokio::test]
async fn rfc8470_5_2_each_request_of_a_redirection_is_retried_after_its_425() {
    const MOVED: &str = "HTTP/1.1 302 Found\r\nLocation: /next\r\nContent-Length: 0\r\n\r\n";
    let (dir, server) = (ClientDir::new(), Server::start(ServerBehaviour::default()).await);
    get(&dir.client(|_| {}), &server).await;
    server.take_requests();
    server.change_behaviour(|behaviour| {
        behaviour.response = |number, early| match (early, number) {
            (true, _) => Reply::Send(TOO_EARLY, true),
            (false, 1) => Reply::Send(MOVED, true),
            (false, _) => Reply::Send(OK, true),
        };
    });
    let (report, body) = get(&dir.client(|config| config.redirects = Some(1)), &server).await;
    assert_eq!((report.status(), report.retries, body.as_str()), (200, 2, "hello"), "{report:?}");
    let early: Vec<bool> = server.take_requests().iter().map(|request| request.early).collect();
    assert_eq!(early, [true, false, true, false]);
}

#[tokio::test]
async fn an_empty_location_is_not_followed() {
    const EMPTY: &str =
        "HTTP/1.1 307 Temporary Redirect\r\nLocation:\r\nContent-Length: 5\r\n\r\nhello";
    let behaviour =
        ServerBehaviour { response: |_, _| Reply::Send(EMPTY, true), ..ServerBehaviour::default() };
    let (dir, server) = (ClientDir::new(), Server::start(behaviour).await);
    let (report, body) = get(&dir.client(|config| config.redirects = Some(1)), &server).await;
    assert_eq!((report.status(), report.exit_code(), body.as_str()), (307, 0, "hello"));
    assert_eq!((report.redirect_url, server.take_requests().len()), (None, 1));
}

#[tokio::test]
async fn rfc9110_9_2_1_a_post_is_early_only_if_the_policy_allows_it() {
    let (dir, server) = (ClientDir::new(), Server::start(ServerBehaviour::default()).await);
    let mut post = Request::get(server.url("/"));
    post.method = http::Method::POST;
    post.body = "a=b".into();
    get(&dir.client(|_| {}), &server).await;
    let (report, _) = send(&dir.client(|_| {}), post.clone()).await;
    assert_eq!((report.early_data(), report.status()), ("none", 200));
    assert!(report.facts.unwrap().resumed);
    let any = dir.client(|config| config.early_data = EarlyPolicy::AnyMethod);
    let (report, _) = send(&any, post).await;
    assert_eq!((report.early_data(), report.size_upload), ("accepted", 3));
    let seen = server.take_requests();
    assert_eq!((seen[1].early, seen[2].early), (false, true));
    assert!(seen[2].text.ends_with("\r\n\r\na=b"), "{seen:?}");
}

#[tokio::test]
async fn another_protocol_or_an_older_version_means_a_fresh_connection_without_early_data() {
    type Change = fn(&mut ServerBehaviour);
    let cases: [Change; 2] = [
        |behaviour| behaviour.alpn = "h2",
        |behaviour| {
            behaviour.max_version = Version::Tls12;
            behaviour.key = 2;
        },
    ];
    for change in cases {
        let (dir, server) = (ClientDir::new(), Server::start(ServerBehaviour::default()).await);
        get(&dir.client(|_| {}), &server).await;
        server.take_requests();
        server.change_behaviour(change);
        let (report, body) = get(&dir.client(|_| {}), &server).await;
        assert_eq!((report.exit_code(), body.as_str()), (0, "hello"), "{report:?}");
        assert_eq!((report.retries, report.num_connects), (1, 2), "{report:?}");
        let seen = server.take_requests();
        assert_eq!((seen.len(), seen[0].early), (1, false));
    }
}

#[tokio::test]
async fn sessions_of_unverified_servers_are_not_used_with_verification() {
    let (dir, server) = (ClientDir::new(), Server::start(ServerBehaviour::default()).await);
    let loose = || dir.client(|config| config.trust = Trust::Anyone);
    assert_eq!(get(&loose(), &server).await.0.exit_code(), 0);
    let (report, _) = get(&dir.client(|_| {}), &server).await;
    assert!(!report.facts.unwrap().resumed, "a verifying run must not take over -k's session");
    assert!(get(&loose(), &server).await.0.facts.unwrap().resumed);
    let strict = dir.client(|config| config.trust = Trust::System);
    assert_eq!(get(&strict, &server).await.0.exit_code(), 60);
}

#[tokio::test]
async fn tls12_sessions_are_reused() {
    let behaviour = ServerBehaviour { max_version: Version::Tls12, ..ServerBehaviour::default() };
    let (dir, server) = (ClientDir::new(), Server::start(behaviour).await);
    for resumed in [false, true, true, true] {
        let (report, _) = get(&dir.client(|_| {}), &server).await;
        assert_eq!(report.facts.unwrap().resumed, resumed);
    }
    let newer = dir.client(|config| config.versions = (Version::Tls13, Version::Tls13));
    assert_eq!(get(&newer, &server).await.0.exit_code(), 35);
    assert!(get(&dir.client(|_| {}), &server).await.0.facts.unwrap().resumed);
}

#[tokio::test]
async fn interrupted_responses_have_curls_exit_codes() {
    type Rule = fn(usize, bool) -> Reply;
    let cases: [(Rule, u8); 5] = [
        (|_, _| Reply::Send("", false), 52),
        (|_, _| Reply::Drop("HTTP/1.1 200 OK\r\nContent-"), 56),
        (|_, _| Reply::Drop("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhell"), 56),
        (|_, _| Reply::Send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhell", false), 18),
        (|_, _| Reply::Send("\x01\x02 garbage\r\n\r\n", false), 8),
    ];
    for (response, code) in cases {
        let server =
            Server::start(ServerBehaviour { response, ..ServerBehaviour::default() }).await;
        let dir = ClientDir::new();
        for turn in ["full", "early"] {
            let (report, _) = get(&dir.client(|_| {}), &server).await;
            assert_eq!(report.exit_code(), code, "{turn}: {:?}", report.error);
        }
    }
}

#[tokio::test]
async fn rfc9110_15_2_too_many_informational_responses_are_an_error() {
    type Rule = fn(usize, bool) -> Reply;
    let cases: [(Rule, u8); 3] =
        [(|_, _| Reply::After(16), 0), (|_, _| Reply::After(17), 8), (|_, _| Reply::Endless, 8)];
    for (response, code) in cases {
        let server =
            Server::start(ServerBehaviour { response, ..ServerBehaviour::default() }).await;
        let (report, body) = get(&ClientDir::new().client(|_| {}), &server).await;
        assert_eq!(report.exit_code(), code, "{:?}", report.error);
        match report.error {
            None => assert_eq!(body, "hello"),
            Some(error) => {
                let error = error.to_string();
                assert!(error.contains("more than 16 informational responses"), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn timeouts_end_a_hanging_transfer() {
    let behaviour = ServerBehaviour { response: |_, _| Reply::Hang, ..ServerBehaviour::default() };
    let (dir, server) = (ClientDir::new(), Server::start(behaviour).await);
    let client = dir.client(|config| config.max_time = Some(Duration::from_millis(300)));
    let (report, _) = get(&client, &server).await;
    assert_eq!(report.exit_code(), 28, "{report:?}");
    assert!(report.timings().total >= 0.3 && report.timings().appconnect > 0.0);

    // A listener that never accepts: TCP connects, TLS waits.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://127.0.0.1:{}/", silent.local_addr().unwrap().port());
    let request = Request::get(firstflight_client::Target::parse(&url).unwrap());
    let client = dir.client(|config| config.connect_timeout = Some(Duration::from_millis(300)));
    let (report, _) = send(&client, request).await;
    assert_eq!(report.exit_code(), 28, "{report:?}");
    assert!(report.error.unwrap().to_string().contains("connecting"));
}

#[tokio::test]
async fn a_timeout_beyond_the_range_of_the_clock_is_ignored() {
    let (dir, server) = (ClientDir::new(), Server::start(ServerBehaviour::default()).await);
    let client = dir.client(|config| {
        config.connect_timeout = Some(Duration::MAX);
        config.max_time = Some(Duration::MAX);
    });
    for expected in ["none", "accepted"] {
        let (report, body) = get(&client, &server).await;
        assert_eq!((report.early_data(), body.as_str()), (expected, "hello"), "{report:?}");
    }
}

#[tokio::test]
async fn the_connect_timeout_includes_handshakes_with_early_data() {
    let (dir, server) = (ClientDir::new(), Server::start(ServerBehaviour::default()).await);
    get(&dir.client(|_| {}), &server).await;
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.address.port();
    let client = dir.client(|config| {
        config.connect_timeout = Some(Duration::from_millis(300));
        // The same name and port, so the same session, at an address that never accepts.
        config.resolver.add_override(&format!("localhost:{port}:127.0.0.9")).unwrap();
    });
    let deaf = std::net::TcpListener::bind(("127.0.0.9", port)).unwrap();
    let (report, _) = get(&client, &server).await;
    assert_eq!(report.exit_code(), 28, "{report:?}");
    assert!(report.early_bytes > 0, "{report:?}");
    drop((silent, deaf));
}

#[tokio::test]
async fn an_unsent_ticket_returns_to_the_jar() {
    let (dir, server) = (ClientDir::new(), Server::start(ServerBehaviour::default()).await);
    get(&dir.client(|_| {}), &server).await;
    let before = dir.jar().count().unwrap();
    assert!(before > 0);
    let port = server.address.port();
    let unreachable = dir.client(|config| {
        config.resolver.add_override(&format!("localhost:{port}:127.0.0.10")).unwrap();
    });
    assert_eq!(get(&unreachable, &server).await.0.exit_code(), 7);
    assert_eq!(dir.jar().count().unwrap(), before);
    // A used ticket is gone, and the new ones are stored.
    let (report, _) = get(&dir.client(|_| {}), &server).await;
    assert_eq!(dir.jar().count().unwrap(), before - 1 + report.sessions);
}

#[tokio::test]
async fn fast_open_is_requested_and_does_no_harm() {
    let (dir, server) = (ClientDir::new(), Server::start(ServerBehaviour::default()).await);
    for expected in ["none", "accepted", "accepted"] {
        let (report, body) = get(&dir.client(|config| config.fast_open = true), &server).await;
        assert_eq!((body.as_str(), report.early_data()), ("hello", expected), "{report:?}");
    }
    let unreachable = dir.client(|config| {
        config.fast_open = true;
        config
            .resolver
            .add_override(&format!("localhost:{}:127.0.0.11", server.address.port()))
            .unwrap();
    });
    assert_eq!(get(&unreachable, &server).await.0.exit_code(), 7);
}

#[tokio::test]
async fn redirections_are_followed_up_to_the_limit() {
    const MOVED: &str = "HTTP/1.1 302 Found\r\nLocation: /next\r\nContent-Length: 4\r\n\r\ngone";
    let behaviour = ServerBehaviour {
        response: |number, _| Reply::Send(if number < 2 { MOVED } else { OK }, true),
        ..ServerBehaviour::default()
    };
    let (dir, server) = (ClientDir::new(), Server::start(behaviour.clone()).await);
    let (report, body) = get(&dir.client(|_| {}), &server).await;
    assert_eq!((report.status(), body.as_str()), (302, "gone"));
    assert!(report.redirect_url.unwrap().ends_with("/next"));
    server.take_requests();
    let (report, body) = get(&dir.client(|config| config.redirects = Some(2)), &server).await;
    assert_eq!((report.status(), body.as_str(), report.num_redirects), (200, "hello", 2));
    server.take_requests();
    let (report, _) = get(&dir.client(|config| config.redirects = Some(1)), &server).await;
    assert_eq!(report.exit_code(), 47);
}

#[tokio::test]
async fn rfc9110_10_2_2_a_redirection_that_cannot_be_followed_is_an_error() {
    const BAD: &str = "HTTP/1.1 302 Found\r\nLocation: https://[/\r\nContent-Length: 0\r\n\r\n";
    const FTP: &str = "HTTP/1.1 302 Found\r\nLocation: ftp://a/\r\nContent-Length: 0\r\n\r\n";
    type Rule = fn(usize, bool) -> Reply;
    let cases: [(Rule, u8); 2] =
        [(|_, _| Reply::Send(BAD, true), 3), (|_, _| Reply::Send(FTP, true), 1)];
    for (response, code) in cases {
        let behaviour = ServerBehaviour { response, ..ServerBehaviour::default() };
        let (dir, server) = (ClientDir::new(), Server::start(behaviour).await);
        let (report, _) = get(&dir.client(|config| config.redirects = Some(9)), &server).await;
        assert_eq!((report.exit_code(), report.status()), (code, 302), "{report:?}");
        let (report, _) = get(&dir.client(|_| {}), &server).await;
        assert_eq!((report.exit_code(), report.redirect_url.is_none()), (0, true), "{report:?}");
    }
}

#[tokio::test]
async fn rfc3986_2_5_a_redirection_in_utf8_is_followed() {
    const MOVED: &str = "HTTP/1.1 302 Found\r\nLocation: /ä\r\nContent-Length: 0\r\n\r\n";
    let behaviour = ServerBehaviour {
        response: |number, _| Reply::Send(if number == 0 { MOVED } else { OK }, true),
        ..ServerBehaviour::default()
    };
    let (dir, server) = (ClientDir::new(), Server::start(behaviour).await);
    let (report, _) = get(&dir.client(|config| config.redirects = Some(9)), &server).await;
    assert_eq!((report.exit_code(), report.status()), (0, 200), "{report:?}");
    assert!(server.take_requests()[1].text.starts_with("GET /%C3%A4 HTTP/1.1"));
}

#[tokio::test]
async fn an_error_status_is_an_error_if_configured() {
    let behaviour = ServerBehaviour {
        response: |_, _| Reply::Send("HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\nno", true),
        ..ServerBehaviour::default()
    };
    let (dir, server) = (ClientDir::new(), Server::start(behaviour).await);
    let (report, body) = get(&dir.client(|_| {}), &server).await;
    assert_eq!((report.exit_code(), body.as_str()), (0, "no"));
    let (report, body) = get(&dir.client(|config| config.fail = true), &server).await;
    assert_eq!((report.exit_code(), body.as_str(), report.status()), (22, "", 404));
}

/// After early data a ticket is waited for up to a second.
#[tokio::test]
async fn a_transfer_does_not_time_out_while_only_a_ticket_is_waited_for() {
    let (dir, server) = (ClientDir::new(), Server::start(ServerBehaviour::default()).await);
    get(&dir.client(|_| {}), &server).await;
    server.change_behaviour(|behaviour| behaviour.issues_tickets = false);
    let limited = |config: &mut ClientConfig| config.max_time = Some(Duration::from_millis(900));
    // The first connection received two tickets.
    for _ in 0..2 {
        let (report, body) = get(&dir.client(limited), &server).await;
        // On a machine that stalls, the transfer itself may take too long.
        if !body.is_empty() {
            assert_eq!((report.early_data(), report.exit_code()), ("accepted", 0), "{report:?}");
            return;
        }
    }
    panic!("no transfer within the limit");
}

/// The connection ends while the client waits for a ticket.
#[tokio::test]
async fn a_server_that_closes_without_a_ticket_does_not_hold_the_client_up() {
    let behaviour = ServerBehaviour {
        issues_tickets: false,
        response: |_, _| Reply::Send(OK, false),
        ..ServerBehaviour::default()
    };
    let (dir, server) = (ClientDir::new(), Server::start(behaviour).await);
    for _ in 0..2 {
        let (report, body) = get(&dir.client(|_| {}), &server).await;
        assert_eq!((report.exit_code(), body.as_str()), (0, "hello"), "{report:?}");
        assert!(!report.facts.as_ref().unwrap().resumed);
    }
}
