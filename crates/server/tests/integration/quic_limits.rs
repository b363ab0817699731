//! Slow, malicious and broken QUIC clients, and a server that stops.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use firstflight_config::{Content, ServerConfig};
use firstflight_quic::Remembered;
use firstflight_server::Server;
use firstflight_testkit::{Upstream, UpstreamResponse, free_port};
use h3::error::Code;
use http::{Method, StatusCode};
use tokio::time::timeout;

use crate::support::flights::send;
use crate::support::quic::{Quic, UdpRelay, config, endpoint, head, remembered, reply, request};
use crate::support::{
    LENIENT_TIMEOUT, RunningServer, TEST_TIMEOUT, executions, line, start_upstream,
};

/// A connection without an HTTP/3 library: the test writes the streams itself.
async fn connect_raw(server: &RunningServer) -> (quinn::Endpoint, quinn::Connection) {
    let endpoint = endpoint();
    let (config, _) = config("h3", Remembered::default());
    let connecting = endpoint.connect_with(config, server.address, "localhost").unwrap();
    let connection = timeout(TEST_TIMEOUT, connecting).await.unwrap().unwrap();
    (endpoint, connection)
}

/// The error code with which the server resets the response's stream.
async fn reset_code(recv: &mut quinn::RecvStream) -> u64 {
    let read = timeout(TEST_TIMEOUT, recv.read_to_end(1 << 20)).await.expect("the server resets");
    match read {
        Err(quinn::ReadToEndError::Read(quinn::ReadError::Reset(code))) => code.into_inner(),
        other => panic!("no reset but {other:?}"),
    }
}

async fn wait_for_close(connection: &quinn::Connection) -> quinn::ConnectionError {
    timeout(TEST_TIMEOUT, connection.closed()).await.expect("the server closes")
}

async fn close_code(connection: &quinn::Connection) -> u64 {
    match wait_for_close(connection).await {
        quinn::ConnectionError::ApplicationClosed(close) => close.error_code.into(),
        other => panic!("not closed by the server but {other}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_heads_and_idle_connections_are_closed() {
    let server = RunningServer::files(|config| {
        config.limits.header_timeout = LENIENT_TIMEOUT;
        config.limits.idle_timeout = LENIENT_TIMEOUT;
    })
    .await;
    // Without any request, and without a second one.
    let (_endpoint, silent) = connect_raw(&server).await;
    let mut idle = Quic::connect(server.address, Remembered::default()).await;
    assert_eq!(idle.get("/").await.status, StatusCode::OK);
    // A request with an incomplete head, next to one that gets its response.
    let mut client = Quic::connect(server.address, Remembered::default()).await;
    assert_eq!(client.get("/").await.status, StatusCode::OK);
    let (mut send, mut recv) = client.connection.open_bi().await.unwrap();
    send.write_all(&head("GET", "/slow")[..10]).await.unwrap();
    assert_eq!(reset_code(&mut recv).await, Code::H3_INTERNAL_ERROR.value());
    wait_for_close(&silent).await;
    // The server sends GOAWAY and closes.
    let end = timeout(TEST_TIMEOUT, idle.driver).await.unwrap().unwrap();
    assert!(end.is_h3_no_error(), "{end}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_response_longer_than_header_timeout_does_not_end_the_connection() {
    let upstream = Upstream::responding(|request| UpstreamResponse {
        delay: if request.target == "/slow" { LENIENT_TIMEOUT * 3 / 2 } else { Duration::ZERO },
        ..UpstreamResponse::default()
    });
    let server =
        RunningServer::proxy(&upstream, |config| config.limits.header_timeout = LENIENT_TIMEOUT)
            .await;
    let mut client = Quic::connect(server.address, Remembered::default()).await;
    assert_eq!(client.get("/slow").await.status, StatusCode::OK);
    let second = client.request(Method::GET, "/second").await;
    assert_eq!(second.expect("no GOAWAY").status, StatusCode::OK);
    client.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_whose_client_pauses_is_not_cut_by_header_timeout() {
    let server =
        RunningServer::files(|config| config.limits.header_timeout = LENIENT_TIMEOUT).await;
    let relay = UdpRelay::to(server.address).await;
    let mut client = Quic::connect(relay.address, Remembered::default()).await;
    let running = client.send_head(request(Method::GET, "/big"), true).await;
    relay.wait_for_server_bytes(20_000).await;
    // Longer than the limit, and than the close timeout.
    relay.drop_client_datagrams(true);
    tokio::time::sleep(LENIENT_TIMEOUT + Duration::from_millis(1500)).await;
    relay.drop_client_datagrams(false);
    assert_eq!(reply(running).await.unwrap().body.len(), 1 << 20);
    client.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc9114_5_2_a_client_that_sends_goaway_gets_the_rest_of_its_response() {
    let server = RunningServer::files(|_| {}).await;
    let relay = UdpRelay::to(server.address).await;
    let endpoint = endpoint();
    let (config, _) = config("h3", Remembered::default());
    let connecting = endpoint.connect_with(config, relay.address, "localhost").unwrap();
    let connection = timeout(TEST_TIMEOUT, connecting).await.unwrap().unwrap();
    let mut control = connection.open_uni().await.unwrap();
    control.write_all(&[0, 4, 0]).await.unwrap();
    relay.hold_server_datagrams();
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    send.write_all(&head("GET", "/big")).await.unwrap();
    send.finish().unwrap();
    relay.wait_for_server_bytes(20_000).await;
    control.write_all(&[7, 1, 0]).await.unwrap();
    // The server has written the whole response, and the client has received none of it.
    tokio::time::sleep(Duration::from_millis(500)).await;
    relay.release_server_datagrams().await;
    let response = timeout(TEST_TIMEOUT, recv.read_to_end(2 << 20)).await.unwrap();
    assert!(response.expect("the whole response").len() > 1 << 20);
    connection.close(0x100_u32.into(), b"");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_heads_are_refused_and_endless_ones_are_not_read() {
    let server = RunningServer::files(|config| config.limits.header_size = 4096).await;
    let mut client = Quic::connect(server.address, Remembered::default()).await;
    let mut large = request(Method::GET, "/large");
    large.headers_mut().insert("x-large", "x".repeat(5000).parse().unwrap());
    if let Some(stream) = client.send_head_unless_rejected(large).await {
        let response = reply(stream).await.unwrap();
        assert_eq!(response.status, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    }
    let large = |length: usize| {
        let mut block = head("GET", "/large").split_off(2);
        block.extend([0x27, 0, b'x', 0x7f]);
        block.extend([0x80 | ((length - 127) % 128) as u8, ((length - 127) / 128) as u8]);
        block.extend(vec![b'x'; length]);
        let mut frame = vec![1];
        frame.extend((0x8000_0000 | u32::try_from(block.len()).unwrap()).to_be_bytes());
        [frame, block].concat()
    };
    for endless in [
        // Heads with a stated length of 16 KiB and 4 GB, and trailers.
        large(16_000),
        vec![1, 0xc0, 0, 0, 1, 0, 0, 0, 0],
        [head("GET", "/trailers"), vec![0, 1, b'x', 1, 0x80, 1, 0, 0]].concat(),
    ] {
        let (mut send, mut recv) = client.connection.open_bi().await.unwrap();
        send.write_all(&endless).await.unwrap();
        let stopped = timeout(TEST_TIMEOUT, send.stopped()).await.unwrap().unwrap();
        let _ = recv.read_to_end(1 << 20).await;
        let code = stopped.expect("the server stops the stream").into_inner();
        let expected = [Code::H3_EXCESSIVE_LOAD.value(), Code::H3_NO_ERROR.value()];
        assert!(expected.contains(&code), "{code:#x}");
    }
    assert_eq!(client.get("/").await.status, StatusCode::OK, "it serves on");
    client.close().await;
    server.stop().await;
}

/// The library keeps state for each stream, although the client gets its stream credit back.
#[tokio::test(flavor = "multi_thread")]
async fn rfc9114_4_1_streams_without_a_head_end_the_connection() {
    let server = RunningServer::files(|config| config.limits.streams = 3).await;
    let mut client = Quic::connect(server.address, Remembered::default()).await;
    assert_eq!(client.get("/").await.status, StatusCode::OK);
    let opening = async {
        while let Ok((mut send, mut recv)) = client.connection.open_bi().await {
            let _ = send.finish();
            let _ = recv.read_to_end(1000).await;
        }
    };
    timeout(TEST_TIMEOUT, opening).await.expect("the server closes the connection");
    assert_eq!(close_code(&client.connection).await, Code::H3_EXCESSIVE_LOAD.value());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_the_server_resets_holds_neither_the_connection_nor_memory() {
    let server = RunningServer::files(|config| {
        config.limits.header_timeout = LENIENT_TIMEOUT;
        config.limits.idle_timeout = 2 * TEST_TIMEOUT;
        config.limits.drain_timeout = 2 * TEST_TIMEOUT;
    })
    .await;
    let mut client = Quic::connect(server.address, Remembered::default()).await;
    assert_eq!(client.get("/").await.status, StatusCode::OK);
    let (mut send, mut recv) = client.connection.open_bi().await.unwrap();
    send.write_all(&head("GET", "/")[..10]).await.unwrap();
    assert_eq!(reset_code(&mut recv).await, Code::H3_INTERNAL_ERROR.value());
    // Nothing is running, so the server does not wait.
    server.handle.stop();
    timeout(TEST_TIMEOUT, client.connection.closed()).await.expect("it drains at once");
    server.stop().await;
}

/// The library reports this in the same way as a request head that is too large.
#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_is_too_large_for_its_client_does_not_hold_the_connection() {
    let server = RunningServer::files(|config| {
        config.limits.idle_timeout = 2 * TEST_TIMEOUT;
        config.limits.drain_timeout = 2 * TEST_TIMEOUT;
    })
    .await;
    let (_endpoint, connection) = connect_raw(&server).await;
    let mut control = connection.open_uni().await.unwrap();
    // SETTINGS_MAX_FIELD_SECTION_SIZE of one byte.
    control.write_all(&[0, 4, 2, 6, 1]).await.unwrap();
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    send.write_all(&head("GET", "/")).await.unwrap();
    send.finish().unwrap();
    assert_eq!(reset_code(&mut recv).await, Code::H3_INTERNAL_ERROR.value());
    server.handle.stop();
    timeout(TEST_TIMEOUT, connection.closed()).await.expect("it drains at once");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc9114_4_1_2_a_body_that_contradicts_its_content_length_is_malformed() {
    let server = RunningServer::files(|_| {}).await;
    let (_endpoint, connection) = connect_raw(&server).await;
    let mut control = connection.open_uni().await.unwrap();
    control.write_all(&[0, 4, 0]).await.unwrap();
    // A length of 3, in one write with five bytes.
    let mut block = head("POST", "/").split_off(2);
    block.extend([0x54, 1, b'3']);
    let length = u8::try_from(block.len()).unwrap();
    let request = [&[1, length][..], &block, &[0, 5], b"lying"].concat();
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    send.write_all(&request).await.unwrap();
    assert_eq!(reset_code(&mut recv).await, Code::H3_MESSAGE_ERROR.value());
    connection.close(0x100_u32.into(), b"");
    server.stop().await;
}

/// The token in the stateless reset for a packet with an unknown connection id.
async fn reset_token(server: SocketAddr) -> Vec<u8> {
    let socket = send(server, &[vec![0x40; 100]]).await;
    let mut packet = [0; 100];
    let received = timeout(TEST_TIMEOUT, socket.recv(&mut packet)).await;
    let count = received.expect("a stateless reset").unwrap();
    packet[count - 16..count].to_vec()
}

/// Otherwise, anybody who sees a connection id could get its reset token from the other port.
#[tokio::test(flavor = "multi_thread")]
async fn rfc9000_21_11_two_ports_have_different_reset_tokens_for_one_id() {
    let other = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let server = RunningServer::files(|config| {
        let mut second = config.listeners[0].clone();
        second.address = other;
        config.listeners.push(second);
    })
    .await;
    assert_ne!(reset_token(server.address).await, reset_token(other).await);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc9114_7_1_a_truncated_data_frame_is_a_connection_error() {
    let server = RunningServer::files(|_| {}).await;
    for body in [&[0, 10][..], &[0, 10, b'x'], &[0, 1, b'x', 0], &[0x21, 5, 0]] {
        let mut client = Quic::connect(server.address, Remembered::default()).await;
        assert_eq!(client.get("/").await.status, StatusCode::OK);
        let (mut send, _recv) = client.connection.open_bi().await.unwrap();
        send.write_all(&[&head("GET", "/")[..], body].concat()).await.unwrap();
        send.finish().unwrap();
        assert_eq!(close_code(&client.connection).await, Code::H3_FRAME_ERROR.value(), "{body:?}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc9114_6_2_1_an_endless_control_frame_ends_the_connection() {
    let server = RunningServer::files(|_| {}).await;
    for kind in [&[0][..], &[0x40, 0], &[0xc0, 0, 0, 0, 0, 0, 0, 0]] {
        let (_endpoint, connection) = connect_raw(&server).await;
        let mut control = connection.open_uni().await.unwrap();
        control.write_all(kind).await.unwrap();
        // SETTINGS of 64 KiB.
        control.write_all(&[4, 0x80, 1, 0, 0]).await.unwrap();
        assert_eq!(close_code(&connection).await, Code::H3_EXCESSIVE_LOAD.value());
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_streams_wait_and_too_many_cancelled_ones_end_the_connection() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, |config| config.limits.streams = 3).await;
    let mut client = Quic::connect(server.address, Remembered::default()).await;
    let mut running = Vec::new();
    for number in 0..3 {
        running.push(client.send_head(request(Method::GET, &format!("/slow{number}")), true).await);
    }
    let more = timeout(Duration::from_millis(100), client.connection.open_bi()).await;
    assert!(more.is_err(), "no fourth stream at a time");
    for stream in running {
        assert_eq!(reply(stream).await.unwrap().status, StatusCode::OK);
    }
    let cancelling = async {
        loop {
            let Ok((mut send, mut recv)) = client.connection.open_bi().await else { break };
            let _ = send.write_all(&head("GET", "/slow")).await;
            let _ = (send.reset(0x10c_u32.into()), recv.stop(0x10c_u32.into()));
        }
    };
    timeout(TEST_TIMEOUT, cancelling).await.expect("the server closes the connection");
    assert_eq!(close_code(&client.connection).await, Code::H3_EXCESSIVE_LOAD.value());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn complete_bodies_reach_the_upstream_and_wrong_lengths_do_not() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, |_| {}).await;
    let mut client = Quic::connect(server.address, Remembered::default()).await;
    let mut post = client.send_head(request(Method::POST, "/upload"), false).await;
    for _ in 0..300 {
        post.send_data(Bytes::from(vec![b'x'; 10_000])).await.unwrap();
    }
    post.finish().await.unwrap();
    assert_eq!(reply(post).await.unwrap().status, StatusCode::OK);
    assert_eq!(upstream.recorded("upload")[0].body.len(), 3_000_000);
    // Byte by byte, so that they accumulate.
    let (mut send, mut recv) = client.connection.open_bi().await.unwrap();
    send.write_all(&head("PUT", "/bytes")).await.unwrap();
    send.write_all(&[0, 1, b'x'].repeat(5_000)).await.unwrap();
    send.finish().unwrap();
    assert!(!timeout(TEST_TIMEOUT, recv.read_to_end(1 << 20)).await.unwrap().unwrap().is_empty());
    assert_eq!(upstream.recorded("bytes")[0].body.len(), 5_000);
    for (length, sent) in [("3", "lying"), ("7", "lying")] {
        let mut lying = request(Method::POST, "/lie");
        lying.headers_mut().insert("content-length", length.parse().unwrap());
        let mut post = client.send_head(lying, false).await;
        post.send_data(Bytes::from_static(sent.as_bytes())).await.unwrap();
        let _ = post.finish().await;
        let response = reply(post).await;
        assert!(!response.is_ok_and(|response| response.status.is_success()), "{length}");
    }
    let tunnel = client.request(Method::CONNECT, "/x").await.unwrap();
    assert_eq!(tunnel.status, StatusCode::NOT_IMPLEMENTED);
    client.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_changes_its_address_is_still_served() {
    let server = RunningServer::files(|_| {}).await;
    let mut client = Quic::connect(server.address, Remembered::default()).await;
    assert_eq!(client.get("/").await.status, StatusCode::OK);
    for _ in 0..3 {
        let socket = std::net::UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        client.endpoint.rebind(socket).unwrap();
        assert_eq!(client.get("/big").await.body.len(), 1 << 20);
    }
    client.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_finishes_what_is_running_and_loses_nothing() {
    let upstream = start_upstream();
    let mut server = RunningServer::proxy(&upstream, |_| {}).await;
    let mut client = Quic::connect(server.address, Remembered::default()).await;
    let mut running = client.send_head(request(Method::POST, "/upload"), false).await;
    running.send_data(Bytes::from_static(b"the first half, ")).await.unwrap();
    let page = client.send_head(request(Method::GET, "/page"), true).await;
    upstream.wait_for("page").await;
    server.start_stop();
    // No new connection is accepted.
    let refused = async {
        loop {
            let (config, _) = config("h3", Remembered::default());
            let endpoint = endpoint();
            let late = endpoint.connect_with(config, server.address, "localhost").unwrap();
            if let Err(quinn::ConnectionError::ConnectionClosed(_)) = late.await {
                break;
            }
        }
    };
    timeout(TEST_TIMEOUT, refused).await.expect("the server refuses the connection");
    running.send_data(Bytes::from_static(b"the second")).await.unwrap();
    running.finish().await.unwrap();
    for stream in [running, page] {
        let response = reply(stream).await.unwrap();
        assert_eq!((response.status, &response.body[..]), (StatusCode::OK, &b"upstream\n"[..]));
    }
    let end = timeout(TEST_TIMEOUT, client.driver).await.unwrap().unwrap();
    assert!(end.is_h3_no_error(), "{end}");
    let log = server.stop().await;
    assert_eq!((executions(&log, "upload"), &line(&log, "upload")["complete"]), (1, &true.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_response_is_complete_although_the_server_stops() {
    let mut server = RunningServer::files(|_| {}).await;
    let relay = UdpRelay::to(server.address).await;
    let mut client = Quic::connect(relay.address, Remembered::default()).await;
    assert_eq!(client.get("/").await.status, StatusCode::OK);
    relay.hold_server_datagrams();
    let running = client.send_head(request(Method::GET, "/big"), true).await;
    relay.wait_for_server_bytes(20_000).await;
    // The whole response is in the server's buffers, and most of it is unsent.
    server.start_stop();
    relay.release_server_datagrams().await;
    assert_eq!(reply(running).await.unwrap().body.len(), 1 << 20);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_close_is_sent_although_the_congestion_window_is_full() {
    let server = RunningServer::files(|_| {}).await;
    let relay = UdpRelay::to(server.address).await;
    let mut client = Quic::connect(relay.address, Remembered::default()).await;
    assert_eq!(client.get("/").await.status, StatusCode::OK);
    relay.drop_client_datagrams(true);
    // The request, and no acknowledgement of the response.
    let before = relay.client_datagrams().len();
    let _running = client.send_head(request(Method::GET, "/big"), true).await;
    relay.inject_until_response(before, 2_000).await;
    relay.wait_for_server_bytes(10_000).await;
    server.handle.stop_now();
    assert_eq!(close_code(&client.connection).await, Code::H3_NO_ERROR.value());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_over_tcp_advertise_http3() {
    let get = "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    let server = RunningServer::files(|_| {}).await;
    let response = crate::support::fetch(server.address, get).await;
    let header = format!("alt-svc: h3=\":{}\"; ma=86400\r\n", server.address.port());
    assert!(response.contains(&header), "{response}");
    server.stop().await;
    for change in [
        (|config: &mut ServerConfig| config.http3.alt_svc = None) as fn(&mut ServerConfig),
        |config| config.http3.enabled = false,
        |config| config.tls.max_version = firstflight_tls::Version::Tls12,
    ] {
        let server = RunningServer::files(change).await;
        let response = crate::support::fetch(server.address, get).await;
        assert!(
            response.starts_with("HTTP/1.1 200") && !response.contains("alt-svc"),
            "{response}"
        );
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_secrets_of_tcp_and_quic_go_to_one_file() {
    let server = RunningServer::files(|config| {
        config.tls.key_log =
            Some(std::env::temp_dir().join(format!("firstflight-keylog-{}", std::process::id())));
    })
    .await;
    let file = std::env::temp_dir().join(format!("firstflight-keylog-{}", std::process::id()));
    remembered(server.address).await;
    crate::support::fetch(server.address, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        .await;
    server.stop().await;
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let lines = text.lines().filter(|line| line.starts_with("CLIENT_TRAFFIC_SECRET_0 "));
    assert_eq!(lines.count(), 2, "one line for each connection");
}

#[tokio::test]
async fn a_udp_port_in_use_is_named_with_the_fix() {
    // Not a port that the system gives to other tests' TCP connections meanwhile.
    let taken = std::net::UdpSocket::bind(("127.0.0.1", free_port())).unwrap();
    let address = taken.local_addr().unwrap();
    let bind = async || {
        let dir = tempfile::tempdir().unwrap();
        let config = ServerConfig::new(address, Content::files(dir.path().to_owned()));
        Server::bind(config).await.map(drop).unwrap_err().to_string()
    };
    let error = bind().await;
    assert!(error.contains("UDP port") && error.contains("--no-http3"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn trailers_and_expectations_are_forwarded() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, |_| {}).await;
    let mut client = Quic::connect(server.address, Remembered::default()).await;
    let mut head = request(Method::POST, "/trailers");
    head.headers_mut().insert("expect", "100-continue".parse().unwrap());
    head.headers_mut().insert("trailer", "x-sum".parse().unwrap());
    let mut post = client.send_head(head, false).await;
    assert_eq!(post.recv_response().await.unwrap().status(), StatusCode::CONTINUE);
    post.send_data(Bytes::from_static(b"body")).await.unwrap();
    let mut trailers = http::HeaderMap::new();
    trailers.insert("x-sum", "4".parse().unwrap());
    post.send_trailers(trailers).await.unwrap();
    post.finish().await.unwrap();
    assert_eq!(reply(post).await.unwrap().status, StatusCode::OK);
    assert_eq!(&upstream.recorded("trailers")[0].body[..], b"body");
    client.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_client_is_dropped_and_a_slow_one_is_not() {
    let server = RunningServer::files(|config| config.limits.idle_timeout = LENIENT_TIMEOUT).await;
    let request_big = async || {
        let endpoint = endpoint();
        let (mut small_window, _) = config("h3", Remembered::default());
        let mut transport = quinn::TransportConfig::default();
        transport.stream_receive_window(20_000_u32.into());
        transport.keep_alive_interval(Some(Duration::from_millis(100)));
        small_window.transport_config(std::sync::Arc::new(transport));
        let connecting = endpoint.connect_with(small_window, server.address, "localhost").unwrap();
        let connection = timeout(TEST_TIMEOUT, connecting).await.unwrap().unwrap();
        let mut control = connection.open_uni().await.unwrap();
        control.write_all(&[0, 4, 0]).await.unwrap();
        let (mut send, recv) = connection.open_bi().await.unwrap();
        send.write_all(&head("GET", "/big")).await.unwrap();
        send.finish().unwrap();
        (endpoint, connection, control, recv)
    };
    let (_slow_endpoint, slow_connection, _slow_control, mut slow) = request_big().await;
    let (_stalled_endpoint, stalled_connection, _stalled_control, mut stalled) =
        request_big().await;
    let read_slowly = async {
        // A megabyte at 170 kB a second takes longer than the limit, and makes progress.
        let (mut received, mut part) = (0, vec![0; 20_000]);
        while let Some(count) = slow.read(&mut part).await.unwrap() {
            received += count;
            tokio::time::sleep(Duration::from_millis(120 * count as u64 / 20_000)).await;
        }
        received
    };
    let (received, reset) =
        tokio::join!(read_slowly, timeout(TEST_TIMEOUT, stalled.received_reset()));
    assert!(received > 1 << 20);
    let reset = reset.expect("a reset").unwrap();
    assert_eq!(reset.map(u64::from), Some(Code::H3_INTERNAL_ERROR.value()));
    slow_connection.close(0x100_u32.into(), b"");
    stalled_connection.close(0x100_u32.into(), b"");
    server.stop().await;
}
