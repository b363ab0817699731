//! A process succeeds another one on the same sockets while requests arrive. Both are servers in
//! the test's process.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use firstflight_config::ServerConfig;
use firstflight_quic::Remembered;
use firstflight_replay::{HandoffQuery, HandoffReply};
use firstflight_server::{InheritedState, Server, ServerHandle};
use firstflight_testkit::free_port;
use http::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::support::quic::{Quic, UdpRelay, config, endpoint, head, remembered};
use crate::support::{
    Client, RunningServer, TEST_TIMEOUT, executions, fetch, get, line, lines, process_keys, replay,
    start_upstream,
};

/// The server that succeeded another one.
struct Successor {
    handle: ServerHandle,
    running: JoinHandle<()>,
    /// Outlives the old server.
    dir: Arc<tempfile::TempDir>,
    log: std::path::PathBuf,
}

impl Successor {
    /// Binds with the old process's state, serialized as between processes, and takes over its
    /// register.
    async fn prepare(
        old: &RunningServer,
        inherited: InheritedState,
        change: impl FnOnce(&mut ServerConfig),
    ) -> (Server, std::path::PathBuf) {
        let (bytes, descriptors) = inherited.parts();
        let mut descriptors: Vec<OwnedFd> =
            descriptors.iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
        let arrived = InheritedState::from_parts(&bytes, &mut descriptors).unwrap();
        drop(inherited);
        let mut config: ServerConfig = old.config.clone();
        let log = old.dir.path().join("access.successor.log");
        config.access_log.as_mut().unwrap().file = Some(log.clone());
        change(&mut config);
        let server = Server::bind_with(config, arrived).await.unwrap();
        let (old_end, new_end) = UnixStream::pair().unwrap();
        let (handed_over, taken) =
            tokio::join!(old.handle.hand_off(old_end), server.take_over(new_end));
        handed_over.unwrap();
        taken.unwrap();
        old.handle.hand_off_udp();
        (server, log)
    }

    /// Takes over and lets the old process stop immediately.
    async fn replace(old: &RunningServer) -> Self {
        let successor = Self::start_alongside(old).await;
        old.handle.stop_for_successor();
        successor
    }

    /// Takes over while the old process still serves.
    async fn start_alongside(old: &RunningServer) -> Self {
        Self::start_changed(old, |_| {}).await
    }

    /// Like [`start_alongside`](Self::start_alongside), with another configuration.
    async fn start_changed(old: &RunningServer, change: impl FnOnce(&mut ServerConfig)) -> Self {
        Self::start_with(old, old.handle.state_for_successor().unwrap(), change).await
    }

    /// Like [`start_changed`](Self::start_changed), with a state exported earlier.
    async fn start_with(
        old: &RunningServer,
        inherited: InheritedState,
        change: impl FnOnce(&mut ServerConfig),
    ) -> Self {
        let (server, log) = Self::prepare(old, inherited, change).await;
        let handle = server.handle();
        let running = tokio::spawn(server.run(std::future::pending()));
        handle.wait_until_serving().await;
        Self { handle, running, dir: old.dir.clone(), log }
    }

    async fn stop(self) -> Vec<serde_json::Value> {
        self.handle.stop();
        timeout(TEST_TIMEOUT, self.running).await.expect("the server stops").unwrap();
        let lines = lines(&self.log);
        drop(self.dir);
        lines
    }
}

fn page(target: &str) -> String {
    String::from_utf8(get(target)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_successor_knows_tickets_and_flights() {
    let upstream = start_upstream();
    let server = RunningServer::proxy(&upstream, |_| {}).await;
    let (session, other) = (server.session("http/1.1").await, server.session("http/1.1").await);
    let client = Client::prepare("http/1.1", Some(&session), &get("/flight=1"));
    let flight = client.flight.clone();
    assert!(client.run(server.address).await.starts_with("HTTP/1.1 200"));
    let successor = Successor::replace(&server).await;
    assert!(!server.handle.status().ready && successor.handle.status().ready);
    let address = server.address;
    // The old process ends before the new one receives anything.
    let old = server.stop().await;
    for _ in 0..3 {
        drop(replay(address, &flight).await);
    }
    let client = Client::prepare("http/1.1", Some(&other), &get("/flight=2"));
    assert!(client.run(address).await.starts_with("HTTP/1.1 200"));
    let new = successor.stop().await;
    assert_eq!((executions(&old, "flight=1"), executions(&new, "flight=1")), (1, 0));
    assert_eq!(upstream.recorded("flight=1").len(), 1);
    // Immediately, without a recording window.
    assert_eq!(line(&new, "flight=2")["early_data"], "accepted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_connection_ends_after_its_next_response() {
    let server = RunningServer::files(|_| {}).await;
    let mut kept = Client::prepare("http/1.1", None, b"");
    let mut tcp = TcpStream::connect(server.address).await.unwrap();
    kept.handshake(&mut tcp).await;
    kept.write(b"GET /?first HTTP/1.1\r\nHost: h\r\n\r\n");
    let first = kept.read_until(&mut tcp, |response| response.ends_with(b"hello\n")).await;
    assert!(!String::from_utf8_lossy(&first).contains("connection: close"));
    let successor = Successor::replace(&server).await;
    // Connections during the handoff may still reach the old process.
    let mut served = 0;
    let connecting = async {
        while std::fs::metadata(&successor.log).unwrap().len() == 0 {
            assert!(fetch(server.address, &page("/?new")).await.starts_with("HTTP/1.1 200"));
            served += 1;
        }
    };
    timeout(TEST_TIMEOUT, connecting).await.expect("connections reach the new process");
    kept.write(b"GET /?last HTTP/1.1\r\nHost: h\r\n\r\n");
    let last = kept.finish(&mut tcp).await;
    assert!(last.starts_with("HTTP/1.1 200") && last.contains("connection: close"), "{last}");
    let (old, new) = (server.stop().await, successor.stop().await);
    let targets: Vec<_> = old.iter().map(|line| line["target"].as_str().unwrap()).collect();
    assert!(targets.starts_with(&["/?first"]) && targets.ends_with(&["/?last"]), "{targets:?}");
    assert_eq!(old.len() + new.len(), 2 + served, "{old:?} {new:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rfc9000_connections_of_the_old_process_continue_and_new_ones_reach_the_new_process() {
    let server = RunningServer::files(|_| {}).await;
    let mut old = Quic::connect(server.address, Remembered::default()).await;
    assert_eq!(old.get("/?1").await.status, StatusCode::OK);
    let early = remembered(server.address).await;
    let successor = Successor::start_alongside(&server).await;
    // The new process receives its packets.
    for target in ["/?2", "/?3", "/big"] {
        assert_eq!(old.get(target).await.status, StatusCode::OK);
    }
    // Address tokens and tickets stay valid there.
    let mut new = Quic::connect(server.address, early).await;
    assert_eq!(new.get("/?new").await.status, StatusCode::OK);
    assert!(new.accepted().await);
    // The old process sends GOAWAY (RFC 9114 section 5.2), and ends when the client has received
    // it.
    server.handle.stop_for_successor();
    timeout(TEST_TIMEOUT, old.connection.closed()).await.expect("it ends the connection");
    assert_eq!(new.get("/?newer").await.status, StatusCode::OK);
    new.close().await;
    let (old, new) = (server.stop().await, successor.stop().await);
    let targets = |lines: &[serde_json::Value]| {
        let mut targets: Vec<_> =
            lines.iter().map(|line| line["target"].as_str().unwrap().to_owned()).collect();
        targets.retain(|target| !target.contains("session"));
        targets
    };
    assert!(targets(&old).iter().filter(|target| target.contains("new")).count() == 0);
    assert!(
        ["/?1", "/?2", "/?3", "/big"]
            .iter()
            .all(|target| targets(&old).contains(&(*target).into()))
    );
    assert_eq!(targets(&new), ["/?new", "/?newer"]);
}

/// The old process serves a connection until it stops, and ends it then.
async fn ends_gracefully(mut old: Quic, server: RunningServer, successor: Successor) {
    assert_eq!(old.get("/big").await.status, StatusCode::OK);
    server.handle.stop_for_successor();
    timeout(TEST_TIMEOUT, old.connection.closed()).await.expect("it ends the connection");
    server.stop().await;
    successor.stop().await;
}

/// The new process does not open the UDP port: HTTP/3 is disabled, or the address has changed.
#[tokio::test(flavor = "multi_thread")]
async fn rfc9114_5_2_connections_end_gracefully_where_the_new_process_serves_no_http3() {
    let disabled = |config: &mut ServerConfig| config.http3.enabled = false;
    let elsewhere = |config: &mut ServerConfig| config.listeners[0].address.set_port(0);
    let changes: [fn(&mut ServerConfig); 2] = [disabled, elsewhere];
    for change in changes {
        let server = RunningServer::files(|_| {}).await;
        let mut old = Quic::connect(server.address, Remembered::default()).await;
        assert_eq!(old.get("/?1").await.status, StatusCode::OK);
        let successor = Successor::start_changed(&server, change).await;
        ends_gracefully(old, server, successor).await;
    }
}

/// The old process keeps the sockets of the removed port.
#[tokio::test(flavor = "multi_thread")]
async fn connections_on_a_removed_port_survive_its_return_and_an_upgrade() {
    let server = RunningServer::files(|_| {}).await;
    let mut old = Quic::connect(server.address, Remembered::default()).await;
    assert_eq!(old.get("/?1").await.status, StatusCode::OK);
    let other = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let moved = |config: &mut ServerConfig| config.listeners[0].address = other;
    server.reload(moved).await.unwrap();
    assert_eq!(old.get("/?2").await.status, StatusCode::OK);
    // The port is opened and removed again.
    server.reload(|config| config.listeners[0].address = server.address).await.unwrap();
    let mut new = Quic::connect(server.address, Remembered::default()).await;
    assert_eq!(new.get("/?3").await.status, StatusCode::OK);
    new.close().await;
    server.reload(moved).await.unwrap();
    let successor = Successor::start_changed(&server, moved).await;
    ends_gracefully(old, server, successor).await;
}

/// A reload opens the port after the sockets were exported.
#[tokio::test(flavor = "multi_thread")]
async fn connections_on_a_port_that_the_new_process_did_not_get_continue() {
    let server = RunningServer::files(|_| {}).await;
    let inherited = server.handle.state_for_successor().unwrap();
    let other = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let both = |config: &mut ServerConfig| {
        let mut second = config.listeners[0].clone();
        second.address = other;
        config.listeners.push(second);
    };
    server.reload(both).await.unwrap();
    let mut old = Quic::connect(other, Remembered::default()).await;
    assert_eq!(old.get("/?1").await.status, StatusCode::OK);
    let successor = Successor::start_with(&server, inherited, |_| {}).await;
    ends_gracefully(old, server, successor).await;
}

/// The client uses a connection id of the old process, which gets its packets. The flight is
/// claimed at the new process.
#[tokio::test(flavor = "multi_thread")]
async fn rfc9000_8_1_2_a_client_that_was_sent_a_retry_before_is_served() {
    let server = RunningServer::files(|config| {
        process_keys(config);
        config.http3.retry_above = 0;
    })
    .await;
    let flight = Remembered { token: None, ..remembered(server.address).await };
    let relay = UdpRelay::to(server.address).await;
    relay.hold_server_datagrams();
    let ((client, _inbox), endpoint) = (config("h3", flight), endpoint());
    let connecting = endpoint.connect_with(client, relay.address, "localhost").unwrap();
    let (connection, accepted) =
        connecting.into_0rtt().unwrap_or_else(|_| panic!("early data is possible"));
    let request = async || {
        let (mut send, recv) = connection.open_bi().await.unwrap();
        send.write_all(&head("GET", "/?retried")).await.unwrap();
        send.finish().unwrap();
        recv
    };
    let _early = request().await;
    relay.wait_for_server_bytes(1).await;
    let successor = Successor::start_alongside(&server).await;
    relay.release_server_datagrams().await;
    // The old process cannot claim the flight before TLS responds.
    assert!(!timeout(TEST_TIMEOUT, accepted).await.expect("the handshake ends"));
    let mut control = connection.open_uni().await.unwrap();
    control.write_all(&[0, 4, 0]).await.unwrap();
    let response = timeout(TEST_TIMEOUT, request().await.read_to_end(4096)).await;
    assert!(response.expect("a response").unwrap().ends_with(b"hello\n"));
    connection.close(0x100_u32.into(), b"");
    server.handle.stop_for_successor();
    let (old, new) = (server.stop().await, successor.stop().await);
    assert_eq!((executions(&old, "retried"), executions(&new, "retried")), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn packets_for_a_process_that_has_ended_reset_their_connections() {
    let server = RunningServer::files(|_| {}).await;
    let mut lost = Quic::connect(server.address, Remembered::default()).await;
    assert_eq!(lost.get("/?1").await.status, StatusCode::OK);
    let connection = lost.connection.clone();
    let successor = Successor::replace(&server).await;
    let address = server.address;
    server.stop().await;
    timeout(TEST_TIMEOUT, connection.closed()).await.expect("the client gets a stateless reset");
    let mut new = Quic::connect(address, Remembered::default()).await;
    assert_eq!(new.get("/?2").await.status, StatusCode::OK);
    new.close().await;
    successor.stop().await;
}

/// The attack of docs/operate/lifecycle.md: originals and copies arrive continuously, at whichever
/// process accepts them, during the upgrade.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rfc8446_8_no_flight_is_executed_twice_during_an_upgrade() {
    let upstream = Arc::new(start_upstream());
    let server = RunningServer::proxy(&upstream, |_| {}).await;
    let mut clients = Vec::new();
    for number in 0..60 {
        let session = server.session("http/1.1").await;
        let target = get(&format!("/race?flight={number}."));
        clients.push(Client::prepare("http/1.1", Some(&session), &target));
    }
    let address = server.address;
    let attack = tokio::spawn(async move {
        let mut running = tokio::task::JoinSet::new();
        for (number, client) in clients.into_iter().enumerate() {
            let flight = client.flight.clone();
            running.spawn(async move {
                // Before the original, at the same time, or after it.
                let early = (number % 3 == 0).then(|| flight.clone());
                let copy = async |flight: Vec<u8>| drop(replay(address, &flight).await);
                if let Some(flight) = early {
                    copy(flight).await;
                }
                let (response, ()) = tokio::join!(client.run(address), copy(flight.clone()));
                copy(flight).await;
                response
            });
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        running.join_all().await
    });
    tokio::time::sleep(Duration::from_millis(60)).await;
    let successor = Successor::start_alongside(&server).await;
    tokio::time::sleep(Duration::from_millis(60)).await;
    server.handle.stop_for_successor();
    let responses = timeout(TEST_TIMEOUT, attack).await.unwrap().unwrap();
    let (old, new) = (server.stop().await, successor.stop().await);
    for number in 0..60 {
        let word = format!("flight={number}.");
        assert!(upstream.recorded(&word).len() <= 1, "{number}: {:?}", upstream.recorded(&word));
    }
    // An original overtaken by a copy gets 425; no other request is lost.
    let status = |response: &String| response.get(9..12).unwrap_or_default().to_owned();
    let lost: Vec<_> =
        responses.iter().filter(|response| !["200", "425"].contains(&&*status(response))).collect();
    assert!(lost.is_empty(), "{lost:?}");
    let early = |log: &[serde_json::Value]| log.iter().any(|line| line["early"] == true);
    assert!(early(&old) && early(&new), "both have run early data");
}

/// When the new process dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CrashPoint {
    /// It has read nothing of the register.
    BeforeRegister,
    /// It has read a part of the register.
    WithinRegister,
    /// It has read the register and has not confirmed that.
    Unconfirmed,
    /// It has the register, and dies before the old process leaves the UDP sockets.
    WithRegister,
    /// It has the register, and the old process has left the UDP sockets.
    WithSockets,
    /// As [`CrashPoint::WithSockets`], and it has settled the claim of a flight.
    WithClaims,
}

/// Reads the register as far as `crash_point` says. Returns the stream if the process has the
/// register.
pub(crate) async fn take_register(
    mut stream: UnixStream,
    crash_point: CrashPoint,
) -> Option<UnixStream> {
    if crash_point == CrashPoint::BeforeRegister {
        return None;
    }
    // The digest of the store's settings.
    stream.read_exact(&mut [0; 32]).await.unwrap();
    let length = stream.read_u64().await.unwrap();
    if crash_point == CrashPoint::WithinRegister {
        return None;
    }
    let mut register = vec![0; length as usize];
    stream.read_exact(&mut register).await.unwrap();
    if crash_point == CrashPoint::Unconfirmed {
        return None;
    }
    stream.write_u8(1).await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), 2);
    Some(stream)
}

/// Tries to hand over to a process that dies. `early`: for [`CrashPoint::WithClaims`].
async fn fail_to_hand_off(server: &RunningServer, crash_point: CrashPoint, early: Option<Client>) {
    let inherited = server.handle.state_for_successor().unwrap();
    let (old_end, new_end) = UnixStream::pair().unwrap();
    let (result, stream) =
        tokio::join!(server.handle.hand_off(old_end), take_register(new_end, crash_point));
    assert_eq!(
        result.is_ok(),
        crash_point >= CrashPoint::WithRegister,
        "{crash_point:?}: {result:?}"
    );
    let Some(mut stream) = stream else { return };
    if crash_point >= CrashPoint::WithSockets {
        server.handle.hand_off_udp();
    }
    if crash_point == CrashPoint::WithClaims {
        let client = tokio::spawn(early.unwrap().run(server.address));
        stream.read_exact(&mut [0; HandoffQuery::LENGTH]).await.unwrap();
        stream.write_u8(HandoffReply::Flight(Ok(true)).to_byte()).await.unwrap();
        assert!(client.await.unwrap().starts_with("HTTP/1.1 200"));
    }
    drop((inherited, stream));
    if crash_point < CrashPoint::WithSockets {
        server.handle.hand_off_udp();
    }
}

/// The old process must recover by itself, without a new TCP connection or early data: a client may
/// send neither before HTTP/3 is served again.
#[tokio::test(flavor = "multi_thread")]
async fn a_successor_that_dies_at_any_step_changes_nothing() {
    let server = RunningServer::files(process_keys).await;
    let mut kept = Quic::connect(server.address, Remembered::default()).await;
    let flight = async |target: &str| {
        let session = server.session("http/1.1").await;
        Client::prepare("http/1.1", Some(&session), &get(target))
    };
    // The old process executes one request while the new one has the register. Only the new one may
    // have executed the other.
    let (early, unknown) = (flight("/?early").await, flight("/?unknown").await);
    let copies = [early.flight.clone(), unknown.flight.clone()];
    let mut early = Some(early);
    for crash_point in [
        CrashPoint::WithClaims,
        CrashPoint::BeforeRegister,
        CrashPoint::WithinRegister,
        CrashPoint::Unconfirmed,
        CrashPoint::WithRegister,
        CrashPoint::WithSockets,
    ] {
        fail_to_hand_off(&server, crash_point, early.take()).await;
        let connecting = Quic::connect(server.address, Remembered::default());
        let mut quic =
            timeout(TEST_TIMEOUT, connecting).await.unwrap_or_else(|_| panic!("{crash_point:?}"));
        assert_eq!(quic.get("/?new").await.status, StatusCode::OK, "{crash_point:?}");
        quic.close().await;
        timeout(TEST_TIMEOUT, server.handle.wait_until_taken_back()).await.unwrap();
        assert_eq!(kept.get("/?kept").await.status, StatusCode::OK, "{crash_point:?}");
        assert!(
            fetch(server.address, &page("/?tcp")).await.starts_with("HTTP/1.1 200"),
            "{crash_point:?}"
        );
        for copy in &copies {
            drop(replay(server.address, copy).await);
        }
        assert!(server.handle.status().ready, "{crash_point:?}");
    }
    kept.close().await;
    // The next attempt succeeds.
    let successor = Successor::replace(&server).await;
    let mut quic = Quic::connect(server.address, Remembered::default()).await;
    assert_eq!(quic.get("/?successor").await.status, StatusCode::OK);
    quic.close().await;
    let (old, new) = (server.stop().await, successor.stop().await);
    assert_eq!((executions(&old, "/?early"), executions(&old, "/?unknown")), (1, 0));
    assert_eq!((executions(&old, "/?new"), executions(&new, "/?successor")), (6, 1));
}
