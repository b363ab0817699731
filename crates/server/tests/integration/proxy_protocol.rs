//! Connections through a load balancer.

use std::time::Duration;

use firstflight_config::{IpNetwork, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Client, RunningServer, get, line, start_upstream};

const HEADER: &[u8] = b"PROXY TCP4 192.0.2.1 192.0.2.2 5 443\r\n";

fn from_loopback(config: &mut ServerConfig) {
    let network = "127.0.0.0/8".parse::<IpNetwork>().unwrap();
    config.listeners[0].proxy_protocol_from = vec![network];
}

/// Sends the header and the flight in one write, and reads to the end.
async fn with_header(server: &RunningServer, mut client: Client) -> String {
    let mut tcp = TcpStream::connect(server.address).await.unwrap();
    tcp.write_all(&[HEADER, &client.flight].concat()).await.unwrap();
    client.finish(&mut tcp).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_address_is_that_of_the_proxy_header() {
    let upstream = start_upstream();
    let direct = RunningServer::proxy(&upstream, |_| {}).await;
    let session = direct.session("http/1.1").await;
    let server = RunningServer::proxy(&upstream, from_loopback).await;
    // A ticket of the other server: a full handshake, after which the request is sent again.
    let response =
        with_header(&server, Client::prepare("http/1.1", Some(&session), &get("/who"))).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    assert_eq!(upstream.recorded("/who")[0].headers["x-forwarded-for"], "192.0.2.1");
    let log = server.stop().await;
    assert_eq!(line(&log, "/who")["client"], "192.0.2.1:5");
    direct.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_is_required_from_trusted_peers_in_time_and_refused_from_others() {
    let proxied = RunningServer::files(|config| {
        from_loopback(config);
        config.limits.header_timeout = Duration::from_millis(200);
    })
    .await;
    let direct = RunningServer::files(|_| {}).await;
    let hello = Client::prepare("http/1.1", None, b"").flight;
    let with = [HEADER, &hello].concat();
    for (server, bytes) in [(&proxied, &hello[..]), (&proxied, &HEADER[..9]), (&direct, &with)] {
        let mut tcp = TcpStream::connect(server.address).await.unwrap();
        tcp.write_all(bytes).await.unwrap();
        let mut response = Vec::new();
        let _ = tokio::time::timeout(crate::support::TEST_TIMEOUT, tcp.read_to_end(&mut response))
            .await
            .unwrap();
        // At most an alert, and no handshake message.
        assert!(response.first() != Some(&22), "{response:?}");
    }
}
