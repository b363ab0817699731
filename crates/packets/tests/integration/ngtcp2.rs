//! Connections of ngtcp2 with GnuTLS, through a relay that captures their datagrams.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};
use std::{fs, io};

use firstflight_packets::{
    Direction, FirstResponse, FlowFacts, LabelKind, Observer, TokenOrigin, Unlabelled,
};
use firstflight_testkit::skipped_without;
use tempfile::TempDir;

use crate::quic::{label, round_trips};
use crate::quic_path::frame;
use crate::tcp_path::{Captured, feed};

const PAGE_BYTES: usize = 6_000;

/// A server process, killed on drop.
struct Server {
    child: Child,
    folder: TempDir,
    address: SocketAddr,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn new(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        fs::write(at("key"), issued.signing_key.serialize_pem()).unwrap();
        fs::write(at("cert"), issued.cert.pem()).unwrap();
        fs::create_dir(at("www")).unwrap();
        fs::write(at("www/page"), vec![b'y'; PAGE_BYTES]).unwrap();
        let address = free_address();
        let child = silent_command("gtlsserver", folder.path())
            .args(["-q", "-d"])
            .arg(at("www"))
            .args(options)
            .args([address.ip().to_string(), address.port().to_string()])
            .args([at("key"), at("cert")])
            .spawn()
            .expect("gtlsserver is missing: run `scripts/install-deps test`");
        let server = Self { child, folder, address };
        let started = Instant::now();
        // Binding the port to test it would take it from the server.
        let socket_entry = format!("0100007F:{:04X}", address.port());
        while !fs::read_to_string("/proc/net/udp").unwrap().contains(&socket_entry) {
            assert!(started.elapsed() < Duration::from_secs(20), "gtlsserver does not listen");
            sleep(Duration::from_millis(5));
        }
        server
    }

    /// Requests the page with the client, and returns the captured datagrams.
    fn visit(&self, options: &[&str]) -> Vec<Captured> {
        let relay = Relay::new(self.address);
        let mut client = silent_command("gtlsclient", self.folder.path());
        // Tickets and tokens stay in the folder for the next visit.
        client.args(["-q", "--exit-on-all-streams-close", "--no-quic-dump", "--no-http-dump"]);
        client.args(["--session-file=session", "--tp-file=parameters", "--token-file=token"]);
        client.args(options).args(["127.0.0.1", &relay.port.to_string()]);
        client.arg(format!("https://localhost:{}/page", relay.port));
        let mut client = client.spawn().expect("gtlsclient is missing");
        let started = Instant::now();
        while client.try_wait().unwrap().is_none() {
            if started.elapsed() > Duration::from_secs(30) {
                let _ = client.kill();
                let _ = client.wait();
                panic!("gtlsclient does not end");
            }
            sleep(Duration::from_millis(5));
        }
        relay.capture()
    }

    /// The facts of a visit with a single connection.
    fn facts(&self, options: &[&str]) -> FlowFacts {
        let mut taken = self.all_facts(options);
        assert_eq!(taken.len(), 1, "{taken:#?}");
        taken.remove(0)
    }

    /// The facts of all connections of a visit.
    fn all_facts(&self, options: &[&str]) -> Vec<FlowFacts> {
        let capture = self.visit(options);
        let mut observer = Observer::new();
        feed(&mut observer, &capture);
        observer.add_secrets(&fs::read_to_string(self.folder.path().join("keys")).unwrap());
        let taken = observer.finish();
        let owned =
            |captured: &Captured| taken.iter().any(|facts| facts.contains(&captured.packet()));
        assert!(capture.iter().all(owned));
        taken
    }
}

fn silent_command(program: &str, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder).env("SSLKEYLOGFILE", folder.join("keys"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn free_address() -> SocketAddr {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.local_addr().unwrap()
}

/// Checks the facts of a visit that received the page.
fn check(facts: &FlowFacts, kind: LabelKind) {
    assert_eq!(facts.label(), Ok(label(kind)), "{facts:#?}");
    let quic = facts.quic().unwrap();
    assert_eq!(quic.unopened, 0, "{quic:#?}");
    assert!(facts.response_bytes.is_some_and(|bytes| bytes > PAGE_BYTES as u64), "{facts:#?}");
    // On loopback the count may be higher, because the peers take longer than the path.
    let min = if kind == LabelKind::EarlyAccepted { 1 } else { 2 };
    let (first, last) = round_trips(facts);
    assert!(first >= min && last >= first);
    let tls = facts.tls.as_ref().unwrap();
    assert_eq!((tls.alpn.as_deref(), tls.client_finished), (Some("h3"), Some(true)));
}

#[test]
fn ngtcp2_full_then_resumed_then_early_data() {
    if skipped_without(&["gtlsserver", "gtlsclient"]) {
        return;
    }
    let server = Server::new(&[]);
    let facts = server.facts(&["--disable-early-data"]);
    check(&facts, LabelKind::Full);
    assert!(facts.quic().unwrap().new_tokens > 0);
    let facts = server.facts(&["--disable-early-data"]);
    check(&facts, LabelKind::Resumed);
    let facts = server.facts(&[]);
    check(&facts, LabelKind::EarlyAccepted);
    let early = facts.tls.as_ref().unwrap().early;
    assert!(early.records > 0 && early.plain_bytes > Some(10), "{early:?}");
}

#[test]
fn ngtcp2_early_data_that_another_server_refuses() {
    if skipped_without(&["gtlsserver", "gtlsclient"]) {
        return;
    }
    let server = Server::new(&[]);
    check(&server.facts(&[]), LabelKind::Full);
    let other = Server::new(&[]);
    for name in ["session", "parameters"] {
        fs::copy(server.folder.path().join(name), other.folder.path().join(name)).unwrap();
    }
    check(&other.facts(&[]), LabelKind::EarlyRefused);
}

#[test]
fn ngtcp2_retry() {
    if skipped_without(&["gtlsserver", "gtlsclient"]) {
        return;
    }
    let server = Server::new(&["-V"]);
    let facts = server.facts(&[]);
    check(&facts, LabelKind::Full);
    let quic = facts.quic().unwrap();
    assert_eq!((quic.retries, quic.token.unwrap().origin), (1, TokenOrigin::Retry));
    assert!(round_trips(&facts).0 >= 3);
}

#[test]
fn ngtcp2_every_cipher_suite() {
    if skipped_without(&["gtlsserver", "gtlsclient"]) {
        return;
    }
    let server = Server::new(&[]);
    for (suite, number) in
        [("AES-128-GCM", 0x1301), ("AES-256-GCM", 0x1302), ("CHACHA20-POLY1305", 0x1303)]
    {
        let only = format!("--ciphers=NORMAL:-VERS-ALL:+VERS-TLS1.3:-CIPHER-ALL:+{suite}");
        let facts = server.facts(&[&only]);
        check(&facts, LabelKind::Full);
        assert_eq!(facts.tls.as_ref().unwrap().cipher_suite, Some(number));
        check(&server.facts(&[&only]), LabelKind::EarlyAccepted);
        fs::remove_file(server.folder.path().join("session")).unwrap();
    }
}

#[test]
fn ngtcp2_key_update_and_new_addresses() {
    if skipped_without(&["gtlsserver", "gtlsclient"]) {
        return;
    }
    let server = Server::new(&[]);
    // The stream starts after the key update or the change of address.
    let wait = "--delay-stream=400ms";
    let facts = server.facts(&["--disable-early-data", "--key-update=100ms", wait]);
    check(&facts, LabelKind::Full);
    assert!(facts.quic().unwrap().client_key_updates > 0);
    for rebinding in [&["--nat-rebinding"][..], &[]] {
        let mut options = vec!["--disable-early-data", "--change-local-addr=100ms", wait];
        options.extend(rebinding);
        let facts = server.facts(&options);
        check(&facts, LabelKind::Resumed);
        let quic = facts.quic().unwrap();
        assert_eq!((quic.migrations, quic.client_addresses.len()), (1, 2), "{quic:#?}");
    }
}

#[test]
fn ngtcp2_version_negotiation() {
    if skipped_without(&["gtlsserver", "gtlsclient"]) {
        return;
    }
    let server = Server::new(&[]);
    // Some releases of the client start again, from another port.
    let taken = server.all_facts(&["-v", "0x1a2a3a4a"]);
    let (refused, restarted) = taken.split_first().unwrap();
    assert_eq!(refused.quic().unwrap().version_negotiations, 1);
    assert_eq!(refused.label(), Err(Unlabelled::NotTls));
    assert_eq!(refused.first_response, FirstResponse::None);
    restarted.iter().for_each(|facts| check(facts, LabelKind::Full));
}

/// A relay that runs until its capture is taken.
pub(crate) struct Relay {
    pub(crate) port: u16,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Captured>>,
}

impl Relay {
    pub(crate) fn new(server: SocketAddr) -> Self {
        let socket = socket();
        let port = socket.local_addr().unwrap().port();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = spawn(move || run(&socket, server, &stopped));
        Self { port, stop, thread }
    }

    pub(crate) fn capture(self) -> Vec<Captured> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// Relays datagrams. Each address of the client has its own socket towards the server, so the
/// server sees when the client moves.
fn run(socket: &UdpSocket, server: SocketAddr, stop: &AtomicBool) -> Vec<Captured> {
    let (started, mut captured, mut clients) = (Instant::now(), Vec::new(), HashMap::new());
    let mut buffer = vec![0; 1 << 16];
    let mut record = |direction, from, to, bytes: &[u8]| {
        let arrived = started.elapsed().as_nanos() as u64;
        let frame = frame(from, to, bytes);
        captured.push(Captured { direction, arrived, delivered: Some(arrived), frame });
    };
    while !stop.load(Ordering::Relaxed) {
        let mut idle = true;
        while let Ok((len, client)) = socket.recv_from(&mut buffer) {
            idle = false;
            let to_server: &UdpSocket = clients.entry(client).or_insert_with(self::socket);
            record(Direction::ToServer, client, server, &buffer[..len]);
            ignore_error(to_server.send_to(&buffer[..len], server));
        }
        for (client, to_server) in &clients {
            while let Ok(len) = to_server.recv(&mut buffer) {
                idle = false;
                record(Direction::ToClient, server, *client, &buffer[..len]);
                ignore_error(socket.send_to(&buffer[..len], client));
            }
        }
        if idle {
            sleep(Duration::from_micros(200));
        }
    }
    captured
}

/// Sending fails when the peer has closed its socket.
fn ignore_error(sent: io::Result<usize>) {
    drop(sent);
}
