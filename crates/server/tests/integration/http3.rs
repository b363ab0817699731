//! HTTP/3 serves the same content as HTTP over TCP.

use std::sync::Arc;

use firstflight_config::Content;
use firstflight_quic::Remembered;
use http::{Method, StatusCode};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::support::quic::{Quic, UdpRelay, remembered, reply, request};
use crate::support::{RunningServer, TEST_TIMEOUT, executions, line};

#[tokio::test(flavor = "multi_thread")]
async fn files_are_served_as_over_tcp() {
    let server = RunningServer::files(|_| {}).await;
    let mut client = Quic::connect(server.address, Remembered::default()).await;
    let page = client.get("/").await;
    assert_eq!((page.status, &page.body[..]), (StatusCode::OK, &b"hello\n"[..]));
    assert_eq!(page.headers["content-length"], "6");
    assert!(page.headers.contains_key("date") && !page.headers.contains_key("alt-svc"));
    let head = client.request(Method::HEAD, "/index.html").await.unwrap();
    assert_eq!((head.status, head.body.len()), (StatusCode::OK, 0));
    assert_eq!(head.headers["content-length"], "6");
    let none = client.get("/none").await;
    assert_eq!(none.status, StatusCode::NOT_FOUND);
    let mut range = request(Method::GET, "/big");
    range.headers_mut().insert("range", "bytes=10-19".parse().unwrap());
    let range = reply(client.send_head(range, true).await).await.unwrap();
    assert_eq!((range.status, range.body.len()), (StatusCode::PARTIAL_CONTENT, 10));
    let big = client.get("/big").await;
    assert_eq!(big.body.len(), 1 << 20);
    client.close().await;
    let log = server.stop().await;
    assert_eq!(log.len(), 5, "{log:?}");
    for line in &log {
        assert_eq!(
            (&line["protocol"], &line["complete"]),
            (&"HTTP/3".into(), &true.into()),
            "{line}"
        );
        assert_eq!((&line["early"], &line["tls_version"]), (&false.into(), &"TLSv1.3".into()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc8297_early_hints_of_an_upstream_arrive_before_its_response() {
    let upstream = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", upstream.local_addr().unwrap());
    let mut content = Content::upstream(&url).unwrap();
    let Content::Sites(sites) = &mut content else { unreachable!() };
    sites.sites[0].routes[0].early_hints = true;
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let server = RunningServer::start(dir, content, |_| {}).await;
    let mut client = Quic::connect(server.address, Remembered::default()).await;
    let mut stream = client.send_head(request(Method::GET, "/page"), true).await;
    let (app, _) = timeout(TEST_TIMEOUT, upstream.accept()).await.unwrap().unwrap();
    let mut app = BufReader::new(app);
    let mut field = String::new();
    while field != "\r\n" {
        field.clear();
        assert!(app.read_line(&mut field).await.unwrap() > 0);
    }
    for style in ["/a.css", "/b.css"] {
        let hint = format!("HTTP/1.1 103 Early Hints\r\nLink: <{style}>\r\nX-No: 1\r\n\r\n");
        app.write_all(hint.as_bytes()).await.unwrap();
        let hint = timeout(TEST_TIMEOUT, stream.recv_response()).await.unwrap().unwrap();
        assert_eq!(hint.status(), StatusCode::EARLY_HINTS);
        assert_eq!(hint.headers()["link"], format!("<{style}>"));
        assert!(!hint.headers().contains_key("x-no"));
    }
    let response = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nAlt-Svc: h3=\":8443\"\r\n\r\npage\n";
    app.write_all(response).await.unwrap();
    let reply = reply(stream).await.unwrap();
    assert_eq!((reply.status, &reply.body[..]), (StatusCode::OK, &b"page\n"[..]));
    // RFC 7838: the upstream's alternatives are not this server's.
    assert!(!reply.headers.contains_key("alt-svc"), "{:?}", reply.headers);
    client.close().await;
    let log = server.stop().await;
    assert_eq!(line(&log, "/page")["status"], 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_kilobytes_arrive_in_the_servers_first_flight() {
    let server = RunningServer::files(|_| {}).await;
    std::fs::write(server.dir.path().join("root/10k"), vec![b'x'; 10 * 1024]).unwrap();
    let remembered = remembered(server.address).await;
    let relay = UdpRelay::to(server.address).await;
    relay.hold_server_datagrams();
    let mut client = Quic::connect(relay.address, remembered).await;
    let stream = client.send_head(request(Method::GET, "/10k"), true).await;
    // The whole response arrives, with a ticket and a token, although the server receives nothing
    // after the client's first flight. (A test in the quic crate shows with a simulated clock that
    // it is sent immediately.)
    relay.wait_for_server_bytes(10 * 1024 + 1500).await;
    relay.drop_client_datagrams(true);
    relay.release_server_datagrams().await;
    assert_eq!(reply(stream).await.unwrap().body.len(), 10 * 1024);
    client.remember().await;
    let down = relay.server_datagrams();
    let bytes = down.iter().map(Vec::len).sum::<usize>();
    assert!(bytes < 14_720 && down.iter().all(|datagram| datagram.len() <= 1200), "{bytes}");
    relay.drop_client_datagrams(false);
    client.close().await;
    let log = server.stop().await;
    let line = line(&log, "/10k");
    assert_eq!((&line["early"], &line["claim"]), (&true.into(), &"won".into()), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_arrives_although_packets_of_the_handshake_are_lost() {
    let server = RunningServer::files(|_| {}).await;
    let remembered = remembered(server.address).await;
    let relay = UdpRelay::to(server.address).await;
    relay.hold_server_datagrams();
    let mut client = Quic::connect(relay.address, remembered).await;
    let stream = client.send_head(request(Method::GET, "/?lost"), true).await;
    relay.wait_for_server_bytes(2000).await;
    relay.drop_held_server_datagrams();
    assert_eq!(&reply(stream).await.unwrap().body[..], b"hello\n");
    client.close().await;
    let log = server.stop().await;
    assert_eq!(executions(&log, "lost"), 1);
}
