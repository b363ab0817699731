//! Connections that come by way of a load balancer.

mod rig;

use std::time::Duration;

use firstflight_config::{IpNetwork, ServerConfig};
use rig::{Client, Rig, Upstream, get, line};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const HEADER: &[u8] = b"PROXY TCP4 192.0.2.1 192.0.2.2 5 443\r\n";

fn from_loopback(config: &mut ServerConfig) {
    let network = IpNetwork { address: "127.0.0.0".parse().unwrap(), prefix: 8 };
    config.listeners[0].proxy_protocol_from = vec![network];
}

/// Sends the header and the flight as one, and reads to the end.
async fn with_header(rig: &Rig, mut client: Client) -> String {
    let mut tcp = TcpStream::connect(rig.address).await.unwrap();
    tcp.write_all(&[HEADER, &client.flight].concat()).await.unwrap();
    client.finish(&mut tcp).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_is_who_the_header_names_early_or_not() {
    let upstream = Upstream::start().await;
    let direct = Rig::proxy(&upstream, |_| {}).await;
    let session = direct.session("http/1.1").await;
    let rig = Rig::proxy(&upstream, from_loopback).await;
    // The other server's ticket: a full handshake, for which the request is sent again.
    let answer = with_header(&rig, Client::prepare("http/1.1", Some(&session), &get("/who"))).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(upstream.seen("/who")[0].headers["x-forwarded-for"], "192.0.2.1");
    let log = rig.stop().await;
    assert_eq!(line(&log, "/who")["client"], "192.0.2.1:5");
    direct.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_is_required_from_there_in_time_and_refused_from_elsewhere() {
    let proxied = Rig::files(|config| {
        from_loopback(config);
        config.limits.header_timeout = Duration::from_millis(200);
    })
    .await;
    let direct = Rig::files(|_| {}).await;
    let hello = Client::prepare("http/1.1", None, b"").flight;
    let with = [HEADER, &hello].concat();
    for (rig, bytes) in [(&proxied, &hello[..]), (&proxied, &HEADER[..9]), (&direct, &with)] {
        let mut tcp = TcpStream::connect(rig.address).await.unwrap();
        tcp.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(rig::PATIENCE, tcp.read_to_end(&mut answer)).await.unwrap();
        // At most an alert, and no word of a handshake.
        assert!(answer.first() != Some(&22), "{answer:?}");
    }
}
