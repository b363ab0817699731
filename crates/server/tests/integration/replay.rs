//! First flights that are sent again byte for byte: their requests are never executed twice.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use firstflight_config::{Content, KeySource, ServerConfig};
use firstflight_tickets::{KeyFile, Schedule, UnixTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::{
    Client, PREFACE, RunningServer, TEST_TIMEOUT, executions, get, http2_request, process_keys,
    replay, start_upstream,
};

/// Sends a flight `times` times, over up to `concurrency` connections at a time.
async fn attack(address: std::net::SocketAddr, flight: &[u8], times: usize, concurrency: usize) {
    let flight: Arc<[u8]> = flight.into();
    let mut running = JoinSet::new();
    for _ in 0..times {
        if running.len() == concurrency {
            running.join_next().await.unwrap().unwrap();
        }
        let flight = flight.clone();
        running.spawn(async move { drop(replay(address, &flight).await) });
    }
    while let Some(done) = running.join_next().await {
        done.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc8446_8_ten_thousand_copies_execute_nothing() {
    let upstream = start_upstream();
    let fresh = |config: &mut ServerConfig| {
        config.early_data.freshness = Duration::from_secs(60);
        process_keys(config);
    };
    let server = RunningServer::proxy(&upstream, fresh).await;
    let session = server.session("http/1.1").await;
    let client = Client::prepare("http/1.1", Some(&session), &get("/pay?flight=1"));
    let flight = client.flight.clone();
    let response = client.run(server.address).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    attack(server.address, &flight, 10_000, 50).await;
    let log = server.stop().await;
    assert_eq!(upstream.recorded("flight=1").len(), 1);
    assert_eq!(executions(&log, "flight=1"), 1);
    let held = |line: &&serde_json::Value| line["held"] == "replayed" && line["claim"] == "lost";
    let tries = log.iter().filter(held).count();
    // On a busy machine the last copies may arrive when the flight is too old for TLS.
    assert!(tries > 5_000, "the copies reached the gate: {tries}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc8446_8_2_copies_that_race_the_original_are_executed_once_in_total() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, |_| {}).await;
    for round in 0..20 {
        let session = server.session("http/1.1").await;
        let word = format!("flight={round}.");
        let target = format!("/race?{word}");
        let client = Client::prepare("http/1.1", Some(&session), &get(&target));
        let flight = client.flight.clone();
        let address = server.address;
        let copies: Vec<_> = (0..2)
            .map(|_| {
                let flight = flight.clone();
                tokio::spawn(async move { replay(address, &flight).await })
            })
            .collect();
        if round % 2 == 0 {
            tokio::task::yield_now().await;
        }
        let response = client.run(server.address).await;
        let mut open = Vec::new();
        for copy in copies {
            open.push(copy.await.unwrap());
        }
        // The winner of the claim is not disturbed until the upstream has the request.
        upstream.wait_for(&word).await;
        drop(open);
        assert_eq!(upstream.recorded(&word).len(), 1, "round {round}");
        let status = response.get(9..12).unwrap_or_default();
        assert!(
            ["200", "425"].contains(&status),
            "the honest client gets a response: {response:?}"
        );
    }
    let log = server.stop().await;
    for round in 0..20 {
        let word = format!("flight={round}.");
        assert_eq!(
            (upstream.recorded(&word).len(), executions(&log, &word)),
            (1, 1),
            "round {round}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc8470_5_2_an_original_overtaken_by_a_copy_gets_425() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, |_| {}).await;
    let session = server.session("http/1.1").await;
    let client = Client::prepare("http/1.1", Some(&session), &get("/overtaken"));
    let copy = replay(server.address, &client.flight).await;
    let response = client.run(server.address).await;
    assert!(response.starts_with("HTTP/1.1 425"), "{response}");
    // A copy that disconnects cancels its request if the upstream has not received it yet.
    upstream.wait_for("/overtaken").await;
    drop(copy);
    let log = server.stop().await;
    assert_eq!(upstream.recorded("/overtaken").len(), 1);
    assert_eq!(executions(&log, "/overtaken"), 1);
}

/// A client sends a refused request again, whatever its method, though the copy of it has run.
#[tokio::test(flavor = "multi_thread")]
async fn rfc9113_8_7_no_request_of_an_overtaken_flight_is_refused() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, |config| config.limits.streams = 1).await;
    let session = server.session("h2").await;
    let requests = [1, 3, 5].map(|stream| http2_request(stream, "GET", &format!("/many{stream}")));
    let early = [PREFACE, &requests.concat()].concat();
    let mut client = Client::prepare("h2", Some(&session), &early);
    let copy = replay(server.address, &client.flight).await;
    let mut tcp = TcpStream::connect(server.address).await.unwrap();
    tcp.write_all(&client.flight).await.unwrap();
    let ended = |bytes: &[u8]| http2_ends(bytes) >= 3;
    let received = client.read_until(&mut tcp, ended).await;
    assert_eq!(http2_resets(&received), 0, "{received:?}");
    drop(copy);
    let log = server.stop().await;
    let too_early = log.iter().filter(|line| line["status"] == 425).count();
    assert_eq!(too_early, 3, "{log:?}");
}

/// Sends these requests at once with the ticket of another server, to one that runs one request at a
/// time.
async fn send_to_other_server(
    requests: &[Vec<u8>],
    header_timeout: Duration,
) -> (TcpListener, RunningServer, Client, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let other = RunningServer::proxy(&start_upstream(), |_| {}).await;
    let session = other.session("h2").await;
    other.stop().await;
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let limited = |config: &mut ServerConfig| {
        (config.limits.streams, config.limits.header_timeout) = (1, header_timeout);
    };
    let server = RunningServer::start(dir, Content::upstream(&url).unwrap(), limited).await;
    let early = [PREFACE, &requests.concat()].concat();
    let client = Client::prepare("h2", Some(&session), &early);
    let mut tcp = TcpStream::connect(server.address).await.unwrap();
    tcp.write_all(&client.flight).await.unwrap();
    (listener, server, client, tcp)
}

fn get_root(stream: u8) -> Vec<u8> {
    http2_request(stream, "GET", "/")
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_after_refused_early_data_are_limited_though_no_stream_is_refused() {
    let (listener, server, mut client, mut tcp) =
        send_to_other_server(&[1, 3, 5].map(get_root), Duration::from_secs(30)).await;
    let ended = |bytes: &[u8]| http2_ends(bytes) >= 3;
    let client = tokio::spawn(async move { client.read_until(&mut tcp, ended).await });
    for _ in 0..3 {
        let (mut upstream, _) = listener.accept().await.unwrap();
        let more = timeout(Duration::from_millis(200), listener.accept()).await;
        assert!(more.is_err(), "two requests at a time");
        assert!(upstream.read(&mut [0; 4096]).await.unwrap() > 0);
        let response = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
        upstream.write_all(response).await.unwrap();
    }
    assert_eq!(http2_resets(&client.await.unwrap()), 0);
    server.stop().await;
}

/// The bodies of waiting requests would fill the connection's flow-control window.
#[tokio::test(flavor = "multi_thread")]
async fn an_upload_after_refused_early_data_waits_no_longer_than_for_a_head() {
    // Without END_STREAM: a body follows.
    let uploads = [1, 3].map(|stream| {
        let mut frame = http2_request(stream, "POST", "/");
        frame[4] = 4;
        frame
    });
    let (listener, server, mut client, mut tcp) =
        send_to_other_server(&uploads, Duration::from_secs(5)).await;
    let client = tokio::spawn(async move {
        client.read_until(&mut tcp, |bytes| http2_ends(bytes) >= 1).await;
        (client, tcp)
    });
    let (mut upstream, _) = listener.accept().await.unwrap();
    assert!(upstream.read(&mut [0; 4096]).await.unwrap() > 0);
    let (mut client, mut tcp) = timeout(TEST_TIMEOUT, client).await.unwrap().unwrap();
    upstream.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n").await.unwrap();
    client.read_until(&mut tcp, |bytes| http2_ends(bytes) >= 1).await;
    let log = server.stop().await;
    let statuses: Vec<_> = log.iter().map(|line| line["status"].as_u64()).collect();
    assert_eq!(statuses, [Some(503), Some(204)], "{log:?}");
}

/// The types and flags of HTTP/2 frames.
fn http2_frames(mut bytes: &[u8]) -> Vec<(u8, u8)> {
    let mut frames = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<9>() {
        frames.push((head[3], head[4]));
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        bytes = rest.get(length..).unwrap_or_default();
    }
    frames
}

/// How many streams have ended, by END_STREAM or a reset.
fn http2_ends(bytes: &[u8]) -> usize {
    let ends = |&(kind, flags): &(u8, u8)| matches!(kind, 0 | 1) && flags & 1 == 1 || kind == 3;
    http2_frames(bytes).iter().filter(|frame| ends(frame)).count()
}

fn http2_resets(bytes: &[u8]) -> usize {
    http2_frames(bytes).iter().filter(|(kind, _)| *kind == 3).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc8446_8_2_no_copy_executes_across_a_restart_with_a_shared_key_file() {
    let upstream = start_upstream();
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let keys = dir.path().join("keys");
    let now = UnixTime::from(std::time::SystemTime::now());
    KeyFile::new(&keys).write_new(Schedule::default(), now).unwrap();
    let start = |keys: PathBuf| {
        let (dir, url) = (dir.clone(), upstream.url());
        RunningServer::start(
            dir,
            Content::upstream(&url).unwrap(),
            move |config: &mut ServerConfig| {
                config.tickets.keys = KeySource::File(keys);
            },
        )
    };
    let first = start(keys.clone()).await;
    let session = first.session("http/1.1").await;
    let client = Client::prepare("http/1.1", Some(&session), &get("/restart"));
    let flight = client.flight.clone();
    assert!(client.run(first.address).await.starts_with("HTTP/1.1 200"));
    first.stop().await;

    let second = start(keys).await;
    attack(second.address, &flight, 200, 20).await;
    // The session is valid there too, at first without early data.
    let response = Client::prepare("http/1.1", Some(&session), &get("/honest")).run(second.address);
    let response = response.await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    let log = second.stop().await;
    assert_eq!(upstream.recorded("/restart").len(), 1);
    let honest = crate::support::line(&log, "/honest");
    assert_eq!((&honest["resumed"], &honest["early"]), (&true.into(), &false.into()), "{honest}");
    assert_eq!(honest["early_data"], "ticket_epoch");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_copy_is_executed_while_the_register_is_full() {
    let upstream = start_upstream();
    for capacity in [0, 1, 2] {
        let server = RunningServer::proxy(&upstream, |config| {
            config.early_data.register_capacity = capacity;
        })
        .await;
        for flight in 0..4 {
            let session = server.session("http/1.1").await;
            let word = format!("full={capacity}.{flight}.");
            let request = get(&format!("/?{word}"));
            let client = Client::prepare("http/1.1", Some(&session), &request);
            let copy = client.flight.clone();
            let response = client.run(server.address).await;
            assert!(response.starts_with("HTTP/1.1 200"), "{response}");
            attack(server.address, &copy, 25, 5).await;
            assert_eq!(upstream.recorded(&word).len(), 1, "{word}");
        }
        server.stop().await;
    }
}
