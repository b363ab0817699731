//! Slow, malicious and broken clients; servers that stop or cannot start.

use std::sync::Arc;
use std::time::{Duration, Instant};

use firstflight_config::{
    CertificateSource, Content, KeySource, Listener, ListenerProtocol, ServerConfig,
};
use firstflight_server::Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::support::{
    Client, LENIENT_TIMEOUT, RunningServer, TEST_TIMEOUT, fetch, get, line, process_keys,
    start_upstream,
};

const SHORT_TIMEOUT: Duration = Duration::from_millis(600);

fn text(request: Vec<u8>) -> String {
    String::from_utf8(request).unwrap()
}

/// Reads until the server closes, cleanly or not.
async fn wait_for_close(tcp: &mut TcpStream) {
    let mut buffer = [0; 4096];
    let closing = async { while !matches!(tcp.read(&mut buffer).await, Ok(0) | Err(_)) {} };
    timeout(TEST_TIMEOUT, closing).await.expect("the server closes");
}

#[tokio::test(flavor = "multi_thread")]
async fn random_bytes_instead_of_a_client_hello_are_closed() {
    let server = RunningServer::files(|_| {}).await;
    let mut state = 1_u32;
    let garbage: Vec<u8> = (0..1 << 20)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect();
    for start in [&b""[..], &[0x16, 3, 1, 0x40, 0], &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc]] {
        let mut tcp = TcpStream::connect(server.address).await.unwrap();
        let _ = tcp.write_all(&[start, &garbage].concat()).await;
        wait_for_close(&mut tcp).await;
    }
    let response = fetch(server.address, &text(get("/"))).await;
    assert!(response.starts_with("HTTP/1.1 200"), "it serves on: {response}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_handshakes_heads_and_idle_connections_are_closed() {
    let server = RunningServer::files(|config| {
        config.limits.header_timeout = LENIENT_TIMEOUT;
        config.limits.idle_timeout = LENIENT_TIMEOUT;
    })
    .await;
    let mut open = Vec::new();
    // No bytes at all, and half a ClientHello.
    let hello = Client::prepare("http/1.1", None, b"").flight;
    for part in [&b""[..], &hello[..hello.len() / 2]] {
        let mut tcp = TcpStream::connect(server.address).await.unwrap();
        tcp.write_all(part).await.unwrap();
        open.push(tcp);
    }
    // No request, half a head, no second request, half a second head.
    let kept = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";
    for request in [&b""[..], b"GET / HTTP/1.1\r\nHo", kept, &[&kept[..], b"GET"].concat()] {
        let mut client = Client::prepare("http/1.1", None, b"");
        let mut tcp = TcpStream::connect(server.address).await.unwrap();
        client.handshake(&mut tcp).await;
        client.write(request);
        client.send(&mut tcp).await;
        open.push(tcp);
    }
    // HTTP/2 without a request.
    let mut client = Client::prepare("h2", None, b"");
    let mut tcp = TcpStream::connect(server.address).await.unwrap();
    client.handshake(&mut tcp).await;
    client.write(crate::support::PREFACE);
    client.send(&mut tcp).await;
    open.push(tcp);
    for mut tcp in open {
        wait_for_close(&mut tcp).await;
    }
    server.stop().await;
}

/// Makes the first listener redirect to a second one.
fn redirect(config: &mut ServerConfig) {
    config.listeners.push(config.listeners[0].clone());
    config.listeners[0].protocol = ListenerProtocol::Redirect;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirecting_connection_closes_after_one_request_or_a_timeout() {
    let server = RunningServer::files(|config| {
        redirect(config);
        config.limits.header_timeout = LENIENT_TIMEOUT;
        config.limits.idle_timeout = LENIENT_TIMEOUT;
    })
    .await;
    let mut tcp = TcpStream::connect(server.address).await.unwrap();
    let request = "GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
    tcp.write_all(request.repeat(2).as_bytes()).await.unwrap();
    let mut responses = String::new();
    timeout(TEST_TIMEOUT, tcp.read_to_string(&mut responses)).await.unwrap().unwrap();
    assert_eq!(responses.matches("HTTP/1.1 308").count(), 1, "{responses}");
    assert!(responses.contains("connection: close\r\n"), "{responses}");
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    wait_for_close(&mut silent).await;
    server.stop().await;
}

/// Unread bytes would end the connection by a reset, with which the response may be lost.
#[tokio::test(flavor = "multi_thread")]
async fn rfc9112_9_6_a_redirect_is_sent_once_the_form_is_read() {
    let server = RunningServer::files(|config| {
        redirect(config);
        config.limits.header_timeout = TEST_TIMEOUT;
    })
    .await;
    let mut form = TcpStream::connect(server.address).await.unwrap();
    form.write_all(b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nx").await.unwrap();
    let mut first = [0];
    let early = timeout(Duration::from_millis(500), form.read_exact(&mut first)).await;
    assert!(early.is_err(), "a response before the end of the form");
    form.write_all(b"y").await.unwrap();
    let mut response = String::new();
    timeout(TEST_TIMEOUT, form.read_to_string(&mut response)).await.unwrap().unwrap();
    assert!(response.starts_with("HTTP/1.1 308"), "{response}");
    server.stop().await;
}

/// Whether the server reads the request's end and the client's end at once is up to chance.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_half_closes_is_redirected() {
    let server = RunningServer::files(redirect).await;
    for _ in 0..20 {
        let mut half = TcpStream::connect(server.address).await.unwrap();
        let request = b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc";
        half.write_all(request).await.unwrap();
        half.shutdown().await.unwrap();
        let mut response = String::new();
        timeout(TEST_TIMEOUT, half.read_to_string(&mut response)).await.unwrap().unwrap();
        assert!(response.starts_with("HTTP/1.1 308"), "{response:?}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirecting_connection_without_a_request_does_not_delay_a_stop() {
    let server = RunningServer::files(|config| {
        redirect(config);
        config.limits.header_timeout = TEST_TIMEOUT;
        config.limits.drain_timeout = 10 * TEST_TIMEOUT;
    })
    .await;
    let _silent = TcpStream::connect(server.address).await.unwrap();
    timeout(TEST_TIMEOUT / 2, server.stop()).await.expect("it closes at once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_sends_pings_and_reads_no_responses_is_disconnected() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let server = RunningServer::start(dir, Content::PingPong, |config| {
        config.limits.idle_timeout = SHORT_TIMEOUT
    })
    .await;
    let mut client = Client::prepare("ping-pong", None, b"");
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut tcp = socket.connect(server.address).await.unwrap();
    client.handshake(&mut tcp).await;
    let sending = async {
        loop {
            client.write(&b"PING".repeat(1000));
            let outgoing = client.machine.outgoing().to_vec();
            client.machine.sent(outgoing.len());
            if tcp.write_all(&outgoing).await.is_err() {
                return;
            }
        }
    };
    timeout(TEST_TIMEOUT, sending).await.expect("the server closes");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_with_slow_flow_control_is_not_cut_by_header_or_idle_timeout() {
    let server = RunningServer::files(|config| {
        config.limits.header_timeout = LENIENT_TIMEOUT;
        config.limits.idle_timeout = LENIENT_TIMEOUT;
    })
    .await;
    // The library gets the whole response immediately, and considers the request complete.
    std::fs::write(server.dir.path().join("root/slow"), vec![b'x'; 60_000]).unwrap();
    let mut client = Client::prepare("h2", None, b"");
    let mut tcp = TcpStream::connect(server.address).await.unwrap();
    client.handshake(&mut tcp).await;
    let mut flight = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // SETTINGS_INITIAL_WINDOW_SIZE 4000.
    flight.extend([0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0x0f, 0xa0]);
    flight.extend(crate::support::http2_request(1, "GET", "/slow"));
    client.write(&flight);
    client.send(&mut tcp).await;
    let mut response = Vec::new();
    for received in (4000..60_000).step_by(4000) {
        response.extend(
            client
                .read_until(&mut tcp, |more| file_bytes(&response) + file_bytes(more) >= received)
                .await,
        );
        // In total, this takes longer than the limit.
        tokio::time::sleep(LENIENT_TIMEOUT / 9).await;
        // WINDOW_UPDATE of 4000.
        client.write(&[0, 0, 4, 8, 0, 0, 0, 0, 1, 0, 0, 0x0f, 0xa0]);
        client.send(&mut tcp).await;
    }
    response.extend(
        client
            .read_until(&mut tcp, |more| file_bytes(&response) + file_bytes(more) >= 60_000)
            .await,
    );
    assert!(file_bytes(&response) >= 60_000, "{}", file_bytes(&response));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_connection_is_not_cut_by_the_header_timeout() {
    let server =
        RunningServer::files(|config| config.limits.header_timeout = LENIENT_TIMEOUT).await;
    let send_requests = async |pauses: &[Duration]| {
        let mut client = Client::prepare("http/1.1", None, b"");
        let mut tcp = TcpStream::connect(server.address).await.unwrap();
        client.handshake(&mut tcp).await;
        for pause in pauses {
            client.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
            let whole = |response: &[u8]| response.windows(4).any(|bytes| bytes == b"\r\n\r\n");
            let response = client.read_until(&mut tcp, whole).await;
            assert!(response.starts_with(b"HTTP/1.1 200"), "{response:?}");
            tokio::time::sleep(*pause).await;
        }
    };
    // Requests in a row for longer than a head may take, and a pause that is longer.
    let in_a_row = [LENIENT_TIMEOUT / 5; 8];
    let with_pause = [Duration::ZERO, LENIENT_TIMEOUT * 3 / 2, Duration::ZERO];
    tokio::join!(send_requests(&in_a_row), send_requests(&with_pause));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_serves_requests_after_it_has_released_memory() {
    // The server releases memory after a second.
    const IDLE_TIME: Duration = Duration::from_millis(1300);
    let upstream = start_upstream();
    let mut server = RunningServer::proxy(&upstream, |_| ()).await;
    let mut client = Client::prepare("http/1.1", None, b"");
    let mut tcp = TcpStream::connect(server.address).await.unwrap();
    client.handshake(&mut tcp).await;
    let get = "GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
    let post = "POST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody";
    let chunked =
        "POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n";
    for requests in [&[get][..], &[post, get], &[chunked], &[get, get, post], &[chunked, get]] {
        client.write(requests.concat().as_bytes());
        let all = |response: &[u8]| {
            let heads = response.windows(12).filter(|part| *part == b"HTTP/1.1 200");
            heads.count() == requests.len()
        };
        timeout(TEST_TIMEOUT, client.read_until(&mut tcp, all)).await.expect("all responses");
        tokio::time::sleep(IDLE_TIME).await;
    }
    // A connection that has released memory closes cleanly, too.
    server.start_stop();
    let rest = timeout(TEST_TIMEOUT, client.finish(&mut tcp)).await.expect("it closes");
    assert_eq!(rest, "");
    server.stop().await;
}

/// The number of the file's bytes, and possibly a few equal bytes of the heads.
fn file_bytes(response: &[u8]) -> usize {
    response.iter().filter(|byte| **byte == b'x').count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_arrives_while_the_server_closes_gets_its_whole_response() {
    let upstream = start_upstream();
    let server =
        RunningServer::proxy(&upstream, |config| config.limits.header_timeout = LENIENT_TIMEOUT)
            .await;
    let end = Instant::now() + TEST_TIMEOUT;
    let response = loop {
        let mut client = Client::prepare("http/1.1", None, b"");
        let mut tcp = TcpStream::connect(server.address).await.unwrap();
        client.handshake(&mut tcp).await;
        // Its head arrives late, and its response takes longer than the close timeout.
        client.write(b"POST /late HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n");
        client.send(&mut tcp).await;
        tokio::time::sleep(LENIENT_TIMEOUT + SHORT_TIMEOUT / 2).await;
        client.write(b"\r\n");
        client.send(&mut tcp).await;
        tokio::time::sleep(Duration::from_millis(1500)).await;
        client.write(b"x");
        client.send(&mut tcp).await;
        let response = timeout(TEST_TIMEOUT, client.finish(&mut tcp)).await.unwrap();
        // On a machine that stalls, the head may arrive after the close timeout.
        if !response.is_empty() || Instant::now() > end {
            break response;
        }
    };
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_never_completes_its_handshake_is_closed_by_the_timeout() {
    let server = RunningServer::files(|config| {
        config.limits.header_timeout = LENIENT_TIMEOUT;
        process_keys(config);
    })
    .await;
    let session = server.session("http/1.1").await;
    let client = Client::prepare("http/1.1", Some(&session), &get("/?copy"));
    let flight = client.flight.clone();
    client.run(server.address).await;
    let mut copy = crate::support::replay(server.address, &flight).await;
    wait_for_close(&mut copy).await;
    let log = server.stop().await;
    let held = log.iter().find(|line| line["held"] == "replayed").expect("a line for the copy");
    assert!(held["status"].is_null() && held["executed"] == false, "{held}");
    assert!(held["held_ms"].is_null() || held["held_ms"].as_f64().is_some());
}

/// A 503 would say that the request was not executed, but a copy may have been.
#[tokio::test(flavor = "multi_thread")]
async fn rfc8470_5_2_a_request_of_a_lost_flight_gets_425_at_the_memory_limit() {
    let server = RunningServer::files(|config| {
        config.limits.memory = 1 << 20;
        config.limits.header_size = 1 << 19;
        process_keys(config);
    })
    .await;
    // GET /full, and a field of HPACK's static table that takes one byte here, and 376 in memory.
    let mut block = b"\x87\x82\x04\x05/full\x01\x01h".to_vec();
    block.extend([0x90; 4000]);
    let length = u8::try_from(block.len() >> 8).unwrap();
    let mut request = [crate::support::PREFACE, &[0, length, block.len() as u8]].concat();
    request.extend([1, 5, 0, 0, 0, 1]);
    request.extend(block);
    let session = server.session("h2").await;
    let mut client = Client::prepare("h2", Some(&session), &request);
    let copy = crate::support::replay(server.address, &client.flight).await;
    let mut tcp = TcpStream::connect(server.address).await.unwrap();
    client.handshake(&mut tcp).await;
    let logged = async {
        while !(server.has_logged(r#""claim":"won""#) && server.has_logged(r#""claim":"lost""#)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TEST_TIMEOUT, logged).await.expect("both get a response");
    drop((copy, tcp));
    let log = server.stop().await;
    let status = |claim: &str| {
        let line = log.iter().find(|line| line["claim"] == claim).unwrap();
        assert_eq!((&line["target"], &line["executed"]), (&"/full".into(), &false.into()));
        line["status"].as_u64()
    };
    assert_eq!((status("won"), status("lost")), (Some(503), Some(425)));
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc9113_8_1_an_upload_after_its_response_counts_for_the_memory_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = Content::upstream(&format!("http://{}", listener.local_addr().unwrap()));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    request.push(stream.read_u8().await.unwrap());
                }
                stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").await?;
                stream.read_to_end(&mut request).await
            });
        }
    });
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let server = RunningServer::start(dir, upstream.unwrap(), |config| {
        config.limits.memory = 1 << 20;
    })
    .await;
    let mut client = Client::prepare("h2", None, b"");
    let mut tcp = TcpStream::connect(server.address).await.unwrap();
    client.handshake(&mut tcp).await;
    client.write(crate::support::PREFACE);
    // The bodies never arrive, and each upload counts 100 KiB for some seconds. At most ten fit.
    let has_503 = || server.has_logged(r#""status":503"#);
    for index in (0..120).take_while(|_| !has_503()) {
        let mut request =
            crate::support::http2_request(1 + 2 * index, "POST", &format!("/{index}"));
        request.extend([0x90; 180]);
        request[2] += 180;
        request[4] = 4; // END_HEADERS, without END_STREAM.
        client.write(&request);
        client.send(&mut tcp).await;
        let logged = async {
            while !server.has_logged(&format!(r#""target":"/{index}""#)) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(TEST_TIMEOUT, logged).await.expect("it gets a response");
    }
    assert!(has_503());
    drop(tcp);
    let log = server.stop().await;
    assert_eq!(line(&log, "/0")["status"], 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_is_too_large_gets_431() {
    let server = RunningServer::files(|config| config.limits.header_size = 2048).await;
    let request = format!("GET / HTTP/1.1\r\nHost: h\r\nX: {}\r\n\r\n", "x".repeat(3000));
    let response = fetch(server.address, &request).await;
    assert!(response.starts_with("HTTP/1.1 431"), "{response}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn above_the_limit_connections_wait_for_a_permit() {
    let server = RunningServer::files(|config| {
        config.limits.connections = 2;
        config.limits.header_timeout = LENIENT_TIMEOUT;
    })
    .await;
    // Two silent connections take both permits until the time limit.
    let _first = TcpStream::connect(server.address).await.unwrap();
    let _second = TcpStream::connect(server.address).await.unwrap();
    let response = timeout(TEST_TIMEOUT, fetch(server.address, &text(get("/")))).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_disconnects_during_a_response_is_logged() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, |_| {}).await;
    let mut client = Client::prepare("http/1.1", None, b"");
    let mut tcp = TcpStream::connect(server.address).await.unwrap();
    client.handshake(&mut tcp).await;
    client.write(&get("/slow"));
    client.send(&mut tcp).await;
    upstream.wait_for("/slow").await;
    drop(tcp);
    let log = server.stop().await;
    let line = line(&log, "/slow");
    assert_eq!((&line["executed"], &line["complete"]), (&true.into(), &false.into()), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_finishes_running_requests_and_closes_idle_connections() {
    let upstream = start_upstream();
    let mut server = RunningServer::proxy(&upstream, |_| {}).await;
    let mut idle = Client::prepare("http/1.1", None, b"");
    let mut idle_tcp = TcpStream::connect(server.address).await.unwrap();
    idle.handshake(&mut idle_tcp).await;
    idle.write(b"GET /first HTTP/1.1\r\nHost: h\r\n\r\n");
    idle.read_until(&mut idle_tcp, |response| response.ends_with(b"upstream\n")).await;
    let address = server.address;
    let running = tokio::spawn(async move { fetch(address, &text(get("/slow"))).await });
    upstream.wait_for("/slow").await;
    server.start_stop();
    wait_for_close(&mut idle_tcp).await;
    drop(idle_tcp);
    let response = running.await.unwrap();
    assert!(response.starts_with("HTTP/1.1 200") && response.ends_with("upstream\n"), "{response}");
    let log = server.stop().await;
    assert_eq!(line(&log, "/slow")["complete"], true);
    assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn keep_alive_serves_many_requests_or_one() {
    let two_requests = "GET /?1 HTTP/1.1\r\nHost: h\r\n\r\nGET /?2 HTTP/1.1\r\nHost: h\r\n\
               Connection: close\r\n\r\n";
    let on = RunningServer::files(|_| {}).await;
    assert_eq!(fetch(on.address, two_requests).await.matches("HTTP/1.1 200").count(), 2);
    on.stop().await;
    let off = RunningServer::files(|config| config.limits.keep_alive = false).await;
    let response = fetch(off.address, two_requests).await;
    assert_eq!(response.matches("HTTP/1.1 200").count(), 1, "{response}");
    assert!(response.to_lowercase().contains("\r\nconnection: close\r\n"), "{response}");
    off.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_served_in_full_or_in_ranges_and_only_from_the_directory() {
    let server = RunningServer::files(|_| {}).await;
    std::fs::write(server.dir.path().join("secret"), "secret").unwrap();
    let response = fetch(server.address, &text(get("/big"))).await;
    assert!(response.ends_with(&"x".repeat(1 << 20)), "{} bytes", response.len());
    let range = "GET /big HTTP/1.1\r\nHost: h\r\nRange: bytes=10-19\r\nConnection: close\r\n\r\n";
    let response = fetch(server.address, range).await;
    assert!(response.starts_with("HTTP/1.1 206") && response.ends_with("\r\n\r\nxxxxxxxxxx"));
    for path in ["/../secret", "/%2e%2e/secret", "/..%2fsecret", "/missing"] {
        let response = fetch(server.address, &text(get(path))).await;
        assert!(!response.contains("secret") && response.starts_with("HTTP/1.1 404"), "{response}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_is_down_or_silent_gives_502_or_504() {
    let port = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = port.local_addr().unwrap();
    let dir = || Arc::new(tempfile::tempdir().unwrap());
    let content = Content::upstream(&format!("http://{address}")).unwrap();
    let silent = RunningServer::start(dir(), content.clone(), |config| {
        config.limits.upstream_timeout = SHORT_TIMEOUT
    })
    .await;
    let response = fetch(silent.address, &text(get("/"))).await;
    assert!(response.starts_with("HTTP/1.1 504"), "{response}");
    // An upload that makes progress for longer than the limit has not stalled.
    let upstream = start_upstream();
    let server =
        RunningServer::proxy(&upstream, |config| config.limits.upstream_timeout = LENIENT_TIMEOUT)
            .await;
    let mut client = Client::prepare("http/1.1", None, b"");
    let mut tcp = TcpStream::connect(server.address).await.unwrap();
    client.handshake(&mut tcp).await;
    client.write(b"PUT /up HTTP/1.1\r\nHost: h\r\nContent-Length: 8\r\nConnection: close\r\n\r\n");
    for _ in 0..8 {
        client.write(b"x");
        client.send(&mut tcp).await;
        tokio::time::sleep(LENIENT_TIMEOUT / 5).await;
    }
    let response = client.finish(&mut tcp).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    server.stop().await;
    drop(port);
    let response = fetch(silent.address, &text(get("/"))).await;
    assert!(response.starts_with("HTTP/1.1 502"), "{response}");
    silent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_start_gives_the_reason_in_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    let other = rcgen::generate_simple_self_signed(vec!["a.test".to_owned()]).unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["b.test".to_owned()]).unwrap();
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, other.signing_key.serialize_pem()).unwrap();
    let server = RunningServer::files(|_| {}).await;
    let files = || Content::files(dir.path().to_owned());
    let any = "127.0.0.1:0".parse().unwrap();
    let with = |content, change: &dyn Fn(&mut ServerConfig)| {
        let mut config = ServerConfig::new(any, content);
        config.certificate = CertificateSource::SelfSigned { names: Vec::new(), save: None };
        change(&mut config);
        config
    };
    let certificate = |cert: &std::path::Path, key: &std::path::Path| CertificateSource::Files {
        cert: cert.to_owned(),
        key: key.to_owned(),
    };
    let cases = [
        (with(files(), &|c| c.listeners = vec![Listener::new(server.address)]), "in use"),
        (with(files(), &|c| c.certificate = certificate(&cert, &key)), "does not belong"),
        (
            with(files(), &|c| c.certificate = certificate(&dir.path().join("no"), &key)),
            "cannot read",
        ),
        (with(Content::files(dir.path().join("no")), &|_| {}), "--root"),
        (with(Content::files(cert.clone()), &|_| {}), "not a directory"),
        (
            with(files(), &|c| c.tickets.keys = KeySource::File(dir.path().join("no"))),
            "ticket keys",
        ),
        (
            with(files(), &|c| c.listeners = vec![Listener::new("192.0.2.1:0".parse().unwrap())]),
            "of this machine",
        ),
        (with(files(), &|c| c.tls.ciphers.groups = Some("X".to_owned())), "allowed are"),
        (with(files(), &|c| c.limits.header_timeout = Duration::ZERO), "more than 0s"),
    ];
    for (config, words) in cases {
        let error = Server::bind(config).await.err().expect(words).to_string();
        assert!(error.contains(words) && !error.contains('\n'), "{words}: {error}");
    }
    server.stop().await;
}
