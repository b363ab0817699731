//! Clients that close their sending direction after a request, and clients that send no request.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use firstflight_testkit::{TEST_TIMEOUT, skipped_without};
use firstflight_tls::Progress;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::support::{Client, RunningServer, line, start_upstream};

/// A request on a persistent connection, which only the client's close ends.
fn request(target: &str) -> Vec<u8> {
    format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n").into_bytes()
}

/// Sends requests and close_notify, and a FIN if `fin`. Returns everything up to the server's end,
/// which has to be a close_notify.
async fn send_and_half_close(server: &RunningServer, requests: &[u8], fin: bool) -> String {
    let mut client = Client::prepare("http/1.1", None, b"");
    let mut tcp = TcpStream::connect(server.address).await.unwrap();
    client.handshake(&mut tcp).await;
    client.write(requests);
    client.machine.close().unwrap();
    client.send(&mut tcp).await;
    if fin {
        tcp.shutdown().await.unwrap();
    }
    read_responses(&mut client, &mut tcp).await
}

async fn read_responses(client: &mut Client, tcp: &mut TcpStream) -> String {
    let (mut response, mut buffer) = (Vec::new(), vec![0; 16 * 1024]);
    loop {
        match client.machine.read(&mut buffer).unwrap() {
            Progress::Done(count) => response.extend_from_slice(&buffer[..count]),
            Progress::Closed => return String::from_utf8(response).unwrap(),
            Progress::NeedsInput => {
                let read = timeout(TEST_TIMEOUT, tcp.read(&mut buffer)).await;
                match read.expect("the server responds or closes").unwrap() {
                    0 => client.machine.feed_eof(),
                    count => client.machine.feed(&buffer[..count]),
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc8446_6_1_a_client_that_has_closed_its_direction_gets_its_responses() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, |_| {}).await;
    for fin in [false, true] {
        // Half a second, so the server sees the end while it waits for the upstream.
        let response = send_and_half_close(&server, &request(&format!("/slow?{fin}")), fin).await;
        assert!(response.starts_with("HTTP/1.1 200"), "{response:?}");
    }
    let two = [request("/slow?one"), request("/slow?two")].concat();
    let responses = send_and_half_close(&server, &two, true).await;
    assert_eq!(responses.matches("HTTP/1.1 200").count(), 2, "{responses:?}");
    let log = server.stop().await;
    for target in ["/slow?false", "/slow?true", "/slow?one", "/slow?two"] {
        assert_eq!(line(&log, target)["status"], 200, "{target}");
    }
}

/// The client's Finished and close_notify come in one segment.
#[tokio::test(flavor = "multi_thread")]
async fn rfc8446_6_1_a_held_request_of_a_client_that_closes_after_its_finished_gets_its_response() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, |_| {}).await;
    let session = server.session("http/1.1").await;
    let post = b"POST /slow HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody";
    let mut client = Client::prepare("http/1.1", Some(&session), post);
    let mut tcp = TcpStream::connect(server.address).await.unwrap();
    tcp.write_all(&client.flight).await.unwrap();
    while !client.machine.is_complete() {
        if client.machine.handshake().unwrap() == Progress::NeedsInput {
            client.exchange(&mut tcp).await;
        }
    }
    client.machine.close().unwrap();
    client.send(&mut tcp).await;
    let response = read_responses(&mut client, &mut tcp).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response:?}");
    let log = server.stop().await;
    assert_eq!(line(&log, "/slow")["held"], "policy");
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc8446_6_1_a_large_response_to_a_half_closed_client_is_whole() {
    let server = RunningServer::files(|_| {}).await;
    let response = send_and_half_close(&server, &request("/big"), true).await;
    let (_, body) = response.split_once("\r\n\r\n").expect("the header section ends");
    assert_eq!(body.len(), 1 << 20);
    server.stop().await;
}

/// The upstream takes half a second, longer than a connection may be without progress.
#[tokio::test(flavor = "multi_thread")]
async fn a_half_closed_connection_without_progress_is_closed() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, |config| {
        config.limits.idle_timeout = Duration::from_millis(100);
    })
    .await;
    let mut client = Client::prepare("http/1.1", None, b"");
    let mut tcp = TcpStream::connect(server.address).await.unwrap();
    client.handshake(&mut tcp).await;
    client.write(&request("/slow"));
    client.machine.close().unwrap();
    client.send(&mut tcp).await;
    assert_eq!(client.finish(&mut tcp).await, "");
    server.stop().await;
}

/// An incomplete header section is no request.
#[tokio::test(flavor = "multi_thread")]
async fn half_a_request_and_close_notify_execute_nothing() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, |_| {}).await;
    for half in ["GET /half HTTP/1.1\r\nHost", "\r\n"] {
        let mut client = Client::prepare("http/1.1", None, b"");
        let mut tcp = TcpStream::connect(server.address).await.unwrap();
        client.handshake(&mut tcp).await;
        client.write(half.as_bytes());
        client.machine.close().unwrap();
        client.send(&mut tcp).await;
        let response = client.finish(&mut tcp).await;
        assert!(!response.contains("200"), "{response}");
    }
    assert!(upstream.recorded("/half").is_empty());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gnutls_cli_reading_from_a_pipe_gets_its_response() {
    if skipped_without(&["gnutls-cli"]) {
        return;
    }
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, |_| {}).await;
    let port = server.address.port().to_string();
    let output = spawn_blocking(move || {
        let mut child = Command::new("timeout")
            .args(["60", "gnutls-cli", "--insecure", "--port", &port, "localhost"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&request("/slow")).unwrap();
        child.wait_with_output().unwrap()
    });
    let output = String::from_utf8_lossy(&output.await.unwrap().stdout).into_owned();
    assert!(output.contains("HTTP/1.1 200"), "{output}");
    server.stop().await;
}

/// `gnutls-cli --waitresumption` and browsers that connect in advance need this.
#[tokio::test(flavor = "multi_thread")]
async fn rfc8446_4_6_1_tickets_come_without_a_request() {
    let server = RunningServer::files(|_| {}).await;
    for alpn in ["http/1.1", "h2"] {
        let mut client = Client::prepare(alpn, None, b"");
        let mut tcp = TcpStream::connect(server.address).await.unwrap();
        client.handshake(&mut tcp).await;
        let (mut sessions, mut buffer) = (0, vec![0; 16 * 1024]);
        let start = Instant::now();
        while sessions < 2 {
            assert!(start.elapsed() < TEST_TIMEOUT, "{alpn}: {sessions} tickets");
            let read = timeout(TEST_TIMEOUT, tcp.read(&mut buffer)).await;
            let count = read.expect("tickets come").unwrap();
            assert!(count > 0, "{alpn}: the server closes");
            client.machine.feed(&buffer[..count]);
            let mut plain = [0; 4096];
            while matches!(client.machine.read(&mut plain).unwrap(), Progress::Done(_)) {}
            sessions += client.machine.take_sessions().len();
        }
        if alpn == "http/1.1" {
            // The connection continues to serve.
            client.write(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
            assert!(client.finish(&mut tcp).await.starts_with("HTTP/1.1 200"));
        }
    }
    server.stop().await;
}
