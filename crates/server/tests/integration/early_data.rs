//! Early requests: executed immediately, held, refused, marked, logged.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use firstflight_config::{Content, Mode, Policy, WhenNotAllowed};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{
    Client, PREFACE, RunningServer, fetch, get, http2_request, line, process_keys, replay,
    start_upstream,
};

#[tokio::test(flavor = "multi_thread")]
async fn full_resumed_and_early_requests_get_responses_and_are_logged() {
    let server = RunningServer::files(|_| {}).await;
    let response = fetch(server.address, &String::from_utf8(get("/?full")).unwrap()).await;
    assert!(
        response.starts_with("HTTP/1.1 200 OK\r\n") && response.ends_with("hello\n"),
        "{response}"
    );

    let session = server.session("http/1.1").await;
    let response =
        Client::prepare("http/1.1", Some(&session), &get("/?early")).run(server.address).await;
    assert!(
        response.starts_with("HTTP/1.1 200 OK\r\n") && response.ends_with("hello\n"),
        "{response}"
    );

    let log = server.stop().await;
    let full = line(&log, "?full");
    assert_eq!((&full["resumed"], &full["early"]), (&false.into(), &false.into()));
    assert_eq!(full["early_data"], "no_session_offered");
    let early = line(&log, "?early");
    assert_eq!((&early["resumed"], &early["early"]), (&true.into(), &true.into()));
    assert_eq!((&early["claim"], &early["early_data"]), (&"won".into(), &"accepted".into()));
    for line in [full, early] {
        assert_eq!(line["status"], 200);
        assert_eq!(line["bytes"], 6);
        assert_eq!((&line["complete"], &line["executed"]), (&true.into(), &true.into()));
        assert_eq!(line["tls_version"], "TLSv1.3");
        assert!(line["held"].is_null());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_early_response_does_not_wait_for_the_clients_finished() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, |_| {}).await;
    let session = server.session("http/1.1").await;
    let client = Client::prepare("http/1.1", Some(&session), &get("/half"));
    // Only the flight: the sender never completes its handshake.
    let tcp = replay(server.address, &client.flight).await;
    upstream.wait_for("/half").await;
    drop(tcp);
    let log = server.stop().await;
    assert_eq!(line(&log, "/half")["claim"], "won");
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc8470_5_1_early_data_marks_what_is_forwarded_before_completion() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, |_| {}).await;
    fetch(server.address, &String::from_utf8(get("/late")).unwrap()).await;
    let own = "GET /own HTTP/1.1\r\nHost: h\r\nEarly-Data: 1\r\nEarly-Data: 1\r\n\
               Connection: close, early-data\r\n\r\n";
    fetch(server.address, own).await;
    let session = server.session("http/1.1").await;
    Client::prepare("http/1.1", Some(&session), &get("/early")).run(server.address).await;
    let session = server.session("http/1.1").await;
    let post =
        b"POST /held HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody";
    Client::prepare("http/1.1", Some(&session), post).run(server.address).await;

    let mark = |word| {
        let recorded = upstream.recorded(word);
        assert_eq!(recorded.len(), 1, "{word}");
        recorded[0].headers.get("early-data").cloned()
    };
    assert_eq!(mark("/late"), None);
    assert_eq!(mark("/own").as_deref(), Some("1"));
    assert_eq!(mark("/early").as_deref(), Some("1"));
    assert_eq!(mark("/held"), None);
    let early = &upstream.recorded("/early")[0];
    assert_eq!(early.headers["host"], "h");
    assert_eq!(early.headers["x-forwarded-for"], "127.0.0.1");
    assert_eq!(early.headers["x-forwarded-proto"], "https");
    assert_eq!(early.headers["via"], "1.1 firstflight");
    assert!(!early.headers.contains_key("connection"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc8470_5_2_a_425_to_a_request_that_this_server_marked_is_retried_after_the_handshake() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, |_| {}).await;
    let session = server.session("http/1.1").await;
    let request = get("/refuse-early");
    let response = Client::prepare("http/1.1", Some(&session), &request).run(server.address).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    assert_eq!(upstream.recorded("/refuse-early").len(), 2);

    // The client set the field itself.
    let session = server.session("http/1.1").await;
    let request = b"GET /refuse-early?2 HTTP/1.1\r\nHost: h\r\nEarly-Data: 1\r\n\
                    Connection: close\r\n\r\n";
    let response = Client::prepare("http/1.1", Some(&session), request).run(server.address).await;
    assert!(response.starts_with("HTTP/1.1 425"), "{response}");
    assert_eq!(upstream.recorded("/refuse-early?2").len(), 1);
    server.stop().await;
}

/// One of two servers reads the request and closes the connection; then each responds 425.
#[tokio::test(flavor = "multi_thread")]
async fn rfc8470_5_2_a_request_that_may_have_run_before_a_425_counts_as_executed() {
    let received = Arc::new(AtomicUsize::new(0));
    let mut servers = Vec::new();
    for _ in 0..2 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        servers.push(format!("http://{}", listener.local_addr().unwrap()).parse().unwrap());
        let received = received.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                let status = match head.starts_with(b"GET /early ") {
                    true if received.fetch_add(1, Ordering::Relaxed) == 0 => continue,
                    true => "425 Too Early",
                    false => "200 OK",
                };
                let response =
                    format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                stream.write_all(response.as_bytes()).await.unwrap();
            }
        });
    }
    let mut content = Content::upstream("http://127.0.0.1:1").unwrap();
    let Content::Sites(sites) = &mut content else { panic!("an upstream is a site") };
    sites.upstreams.values_mut().for_each(|pool| pool.servers = servers.clone());
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let server = RunningServer::start(dir, content, |_| {}).await;
    let session = server.session("http/1.1").await;
    let request = get("/early");
    let response = Client::prepare("http/1.1", Some(&session), &request).run(server.address).await;
    assert!(response.starts_with("HTTP/1.1 425"), "{response}");
    assert_eq!(received.load(Ordering::Relaxed), 3);
    let log = server.stop().await;
    assert_eq!(line(&log, "/early")["executed"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_early_post_is_held_with_its_body_until_the_handshake_is_complete() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, |_| {}).await;
    let session = server.session("http/1.1").await;
    let body = "b".repeat(13_000);
    let post = format!(
        "POST /post HTTP/1.1\r\nHost: h\r\nContent-Length: 13000\r\nConnection: close\r\n\r\n{body}"
    );
    let mut client = Client::prepare("http/1.1", Some(&session), post.as_bytes());
    let mut tcp = start_handshake(&server, &mut client).await;
    let attacker = replay(server.address, &client.flight).await;
    assert!(upstream.recorded("/post").is_empty(), "not before the handshake is complete");
    let response = client.finish(&mut tcp).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    let recorded = upstream.recorded("/post");
    assert_eq!(recorded.len(), 1);
    assert_eq!(recorded[0].body, body.as_bytes());
    drop(attacker);
    let log = server.stop().await;
    assert_eq!(crate::support::executions(&log, "/post"), 1);
    let held = |by: &str| log.iter().filter(|line| line["held"] == by).collect::<Vec<_>>();
    let (honest, copies) = (held("policy"), held("replayed"));
    assert_eq!((honest.len(), &honest[0]["claim"]), (1, &"won".into()), "{log:?}");
    assert!(copies.iter().all(|line| line["status"].is_null()), "{log:?}");
}

/// Sends a client's flight and feeds it the server's bytes, without letting it respond.
async fn start_handshake(server: &RunningServer, client: &mut Client) -> TcpStream {
    let mut tcp = TcpStream::connect(server.address).await.unwrap();
    tcp.write_all(&client.flight).await.unwrap();
    let mut buffer = [0; 4096];
    let count = tcp.read(&mut buffer).await.unwrap();
    client.machine.feed(&buffer[..count]);
    tcp
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc8470_5_2_an_overtaken_request_gets_425_even_if_the_policy_holds_it() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, |_| {}).await;
    let session = server.session("http/1.1").await;
    let post = b"POST /post HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let client = Client::prepare("http/1.1", Some(&session), post);
    // The copy may have arrived under another policy.
    let attacker = replay(server.address, &client.flight).await;
    let response = client.run(server.address).await;
    assert!(response.starts_with("HTTP/1.1 425"), "{response}");
    drop(attacker);
    server.stop().await;
    assert!(upstream.recorded("/post").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc8446_8_3_a_stale_flight_is_refused_by_tls_and_its_copies_too() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, process_keys).await;
    // By its stated ticket age, the flight is fresh in twenty seconds.
    let session = server.session("http/1.1").await.issued_earlier(20).unwrap();
    let client = Client::prepare("http/1.1", Some(&session), &get("/stale"));
    let flight = client.flight.clone();
    let response = client.run(server.address).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    drop(replay(server.address, &flight).await);
    let log = server.stop().await;
    let stale = line(&log, "/stale");
    assert_eq!((&stale["early_data"], &stale["early"]), (&"age".into(), &false.into()));
    assert_eq!(upstream.recorded("/stale").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc8470_5_2_a_425_instead_of_holding_if_configured() {
    let upstream = start_upstream();
    let change = |config: &mut firstflight_config::ServerConfig| {
        config.early_data.when_not_allowed = WhenNotAllowed::TooEarly;
    };
    let server = RunningServer::proxy(&upstream, change).await;
    let session = server.session("http/1.1").await;
    let post = b"POST /post HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let response = Client::prepare("http/1.1", Some(&session), post).run(server.address).await;
    assert!(response.starts_with("HTTP/1.1 425 Too Early\r\n"), "{response}");
    let session = server.session("http/1.1").await;
    let response =
        Client::prepare("http/1.1", Some(&session), &get("/get")).run(server.address).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    let log = server.stop().await;
    assert!(upstream.recorded("/post").is_empty());
    assert_eq!(line(&log, "/post")["executed"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_policy_holds_by_path_however_the_path_is_spelt() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, |config| {
        config.early_data.policy =
            Policy::new(Mode::Permissive).rule("/api", Mode::Disabled).unwrap();
    })
    .await;
    let held = ["/api?1", "/%61pi/x?2", "/x/../api?3", "//api?4", "/API?5", "/x%2f..%2fapi?6"];
    for target in held {
        let session = server.session("http/1.1").await;
        let client = Client::prepare("http/1.1", Some(&session), &get(target));
        client.run(server.address).await;
    }
    let session = server.session("http/1.1").await;
    Client::prepare("http/1.1", Some(&session), &get("/open?7")).run(server.address).await;
    let log = server.stop().await;
    for word in ["?1", "?2", "?3", "?4", "?5", "?6"] {
        assert_eq!(upstream.recorded(word).len(), 1, "{word}");
        assert!(!upstream.recorded(word)[0].headers.contains_key("early-data"), "{word}");
        let lines = log.iter().filter(|line| line["target"].as_str().unwrap().contains(word));
        assert!(lines.into_iter().all(|line| line["held"] == "policy"), "{word}");
    }
    assert!(line(&log, "?7")["held"].is_null());
}

#[tokio::test(flavor = "multi_thread")]
async fn with_early_data_disabled_the_client_sends_its_request_again() {
    let server = RunningServer::files(|_| {}).await;
    let session = server.session("http/1.1").await;
    drop(server);
    let off = RunningServer::files(|config| config.early_data.enabled = false).await;
    let response =
        Client::prepare("http/1.1", Some(&session), &get("/?off")).run(off.address).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    let log = off.stop().await;
    assert_eq!(line(&log, "?off")["early"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_requests_of_one_flight_run_early_by_one_claim() {
    let server = RunningServer::files(|_| {}).await;
    let session = server.session("h2").await;
    let flight = [
        PREFACE,
        &http2_request(1, "GET", "/?a"),
        &http2_request(3, "GET", "/?b"),
        &http2_request(5, "POST", "/?c"),
    ]
    .concat();
    let mut client = Client::prepare("h2", Some(&session), &flight);
    let mut tcp = TcpStream::connect(server.address).await.unwrap();
    tcp.write_all(&client.flight).await.unwrap();
    // Three responses end with END_STREAM: two files of 6 bytes, and 405 without a body.
    client.read_until(&mut tcp, |response| count_end_stream(response) == 3).await;
    drop(tcp);
    let log = server.stop().await;
    for (word, status) in [("?a", 200), ("?b", 200), ("?c", 405)] {
        let line = line(&log, word);
        assert_eq!(line["protocol"], "HTTP/2");
        assert_eq!((&line["early"], &line["status"]), (&true.into(), &status.into()), "{line}");
    }
    assert_eq!(line(&log, "?a")["claim"], "won");
    assert_eq!(line(&log, "?c")["held"], "policy");
}

/// The number of frames with END_STREAM.
fn count_end_stream(mut frames: &[u8]) -> usize {
    let mut count = 0;
    while let [a, b, c, kind, flags, _, _, _, _, rest @ ..] = frames {
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        if rest.len() < length {
            break;
        }
        count += usize::from(matches!(kind, 0 | 1) && flags & 1 == 1);
        frames = &rest[length..];
    }
    count
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_an_early_request_cannot_bypass_the_gate_next_to_later_bytes() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, |_| {}).await;
    let session = server.session("h2").await;
    let flight =
        [PREFACE, &http2_request(1, "POST", "/a"), &http2_request(3, "GET", "/b")].concat();
    let mut client = Client::prepare("h2", Some(&session), &flight);
    // An attacker on the path delays the early data until the client has finished, and delivers it
    // together with what the client sent afterwards.
    let (hello, early) = client.flight.split_at(client.hello_length);
    let (copy, early) = (client.flight.clone(), early.to_vec());
    let mut tcp = TcpStream::connect(server.address).await.unwrap();
    tcp.write_all(hello).await.unwrap();
    let mut buffer = [0; 4096];
    while !client.machine.is_complete() {
        let _ = client.machine.handshake().unwrap();
        if !client.machine.is_complete() {
            let count = tcp.read(&mut buffer).await.unwrap();
            client.machine.feed(&buffer[..count]);
        }
    }
    client.write(&http2_request(5, "GET", "/c"));
    let late = client.machine.outgoing().to_vec();
    client.machine.sent(late.len());
    tcp.write_all(&[early, late].concat()).await.unwrap();
    client.read_until(&mut tcp, |response| count_end_stream(response) == 3).await;

    drop(replay(server.address, &copy).await);
    drop(tcp);
    let log = server.stop().await;
    for word in ["/a", "/b", "/c"] {
        assert_eq!(upstream.recorded(word).len(), 1, "{word}");
    }
    let early = |word: &str| {
        log.iter().filter(|line| line["target"] == word).all(|line| line["early"] == true)
    };
    assert!(early("/a") && early("/b") && !early("/c"), "{log:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ping_is_executed_early_and_its_copy_is_not() {
    let dir = std::sync::Arc::new(tempfile::tempdir().unwrap());
    let server = RunningServer::start(dir, Content::PingPong, process_keys).await;
    let session = server.session("ping-pong").await;
    let mut client = Client::prepare("ping-pong", Some(&session), b"PING");
    let copy = client.flight.clone();
    let mut tcp = TcpStream::connect(server.address).await.unwrap();
    tcp.write_all(&client.flight).await.unwrap();
    let response = client.read_until(&mut tcp, |response| response.len() == 4).await;
    assert_eq!(response, b"PONG");
    client.write(b"PING");
    assert_eq!(client.read_until(&mut tcp, |response| response.len() == 4).await, b"PONG");
    drop(replay(server.address, &copy).await);
    drop(tcp);
    let log = server.stop().await;
    let early: Vec<_> = log.iter().filter(|line| line["early"] == true).collect();
    assert_eq!(early.len(), 2, "{log:?}");
    assert_eq!(early.iter().filter(|line| line["executed"] == true).count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc9113_6_1_a_short_response_ends_on_its_data_and_fits_the_initial_window() {
    let server = RunningServer::files(|_| {}).await;
    std::fs::write(server.dir.path().join("root/page"), vec![b'x'; 10 * 1024]).unwrap();
    let session = server.session("h2").await;
    let mut flight = PREFACE.to_vec();
    flight.extend(http2_request(1, "GET", "/page"));
    let mut client = Client::prepare("h2", Some(&session), &flight);
    let mut tcp = TcpStream::connect(server.address).await.unwrap();
    tcp.write_all(&client.flight).await.unwrap();

    // One write arrives as one read: this client sends nothing meanwhile, not even its Finished.
    let mut response = vec![0; 64 * 1024];
    tcp.readable().await.unwrap();
    let count = tokio::io::AsyncReadExt::read(&mut tcp, &mut response).await.unwrap();
    assert!(count > 10 * 1024, "{count} bytes: the response was not sent in one write");
    assert!(count <= 10 * 1448, "{count} bytes exceed ten segments (RFC 6928)");
    client.machine.feed(&response[..count]);
    let frames = client.read_until(&mut tcp, |frames| count_end_stream(frames) == 1).await;
    assert!(!frames.windows(9).any(|head| head == [0, 0, 0, 0, 1, 0, 0, 0, 1]), "an empty DATA");
    drop(tcp);
    server.stop().await;
}
