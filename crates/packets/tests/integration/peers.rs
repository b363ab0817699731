//! rustls on both sides, in memory, with a key log.

use std::fmt;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex};

use firstflight_packets::{FlowFacts, Observer, Trace};
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, SupportedKxGroup, ring};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::{ServerSessionMemoryCache, StoresServerSessions};
use rustls::{
    CipherSuite, ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection,
    SupportedProtocolVersion,
};

use crate::tcp_path::{Captured, MS, Path, Peer, feed};

pub(crate) const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: first.test\r\n\r\n";
pub(crate) const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// A client and a server, with or without an earlier session.
pub(crate) struct Peers {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    keys: Arc<Keys>,
    pub(crate) request: Vec<u8>,
    pub(crate) response: Vec<u8>,
    /// What the server sends as soon as it can, without a request.
    pub(crate) greeting: Vec<u8>,
    /// How long the client waits between receiving and sending, in nanoseconds.
    pub(crate) client_pause: u64,
    /// Whether the server updates its keys before it responds.
    pub(crate) update_keys: bool,
}

/// The configuration of the peers.
pub(crate) struct PeerConfig {
    pub(crate) versions: &'static [&'static SupportedProtocolVersion],
    pub(crate) suite: Option<CipherSuite>,
    pub(crate) client_groups: Vec<&'static dyn SupportedKxGroup>,
    pub(crate) server_groups: Vec<&'static dyn SupportedKxGroup>,
}

impl Default for PeerConfig {
    fn default() -> Self {
        let groups = vec![ring::kx_group::X25519, ring::kx_group::SECP256R1];
        Self {
            versions: TLS13_ONLY,
            suite: None,
            client_groups: groups.clone(),
            server_groups: groups,
        }
    }
}

static TLS12_ONLY: &[&SupportedProtocolVersion] = &[&rustls::version::TLS12];
static TLS13_ONLY: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];

impl PeerConfig {
    pub(crate) fn tls12() -> Self {
        Self { versions: TLS12_ONLY, ..Self::default() }
    }

    pub(crate) fn peers(self) -> Peers {
        let keys = Arc::new(Keys::default());
        let issued = rcgen::generate_simple_self_signed(["first.test".to_owned()]).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(issued.cert.der().clone()).unwrap();
        let mut client = ClientConfig::builder_with_provider(self.provider(&self.client_groups))
            .with_protocol_versions(self.versions)
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        client.enable_early_data = true;
        client.resumption = Resumption::in_memory_sessions(8);
        client.key_log = keys.clone();
        client.alpn_protocols = vec![b"http/1.1".to_vec()];
        let key = PrivatePkcs8KeyDer::from(issued.signing_key.serialize_der());
        let server = ServerConfig::builder_with_provider(self.provider(&self.server_groups))
            .with_protocol_versions(self.versions)
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![issued.cert.der().clone()], PrivateKeyDer::Pkcs8(key))
            .unwrap();
        let mut peers = Peers {
            client: Arc::new(client),
            server: Arc::new(server),
            keys,
            request: REQUEST.to_vec(),
            response: RESPONSE.to_vec(),
            greeting: Vec::new(),
            client_pause: 20_000,
            update_keys: false,
        };
        peers.change_server(|server| {
            server.session_storage = ServerSessionMemoryCache::new(64);
            server.max_early_data_size = 16_384;
            server.send_half_rtt_data = true;
            server.alpn_protocols = vec![b"http/1.1".to_vec()];
        });
        peers
    }

    fn provider(&self, groups: &[&'static dyn SupportedKxGroup]) -> Arc<CryptoProvider> {
        let mut provider = ring::default_provider();
        provider.kx_groups = groups.to_vec();
        if let Some(only) = self.suite {
            provider.cipher_suites.retain(|suite| suite.suite() == only);
        }
        Arc::new(provider)
    }
}

impl Peers {
    pub(crate) fn change_server(&mut self, change: impl FnOnce(&mut ServerConfig)) {
        let mut server = (*self.server).clone();
        change(&mut server);
        self.server = Arc::new(server);
    }

    pub(crate) fn change_client(&mut self, change: impl FnOnce(&mut ClientConfig)) {
        let mut client = (*self.client).clone();
        change(&mut client);
        self.client = Arc::new(client);
    }

    /// The server's sessions. Another server with them accepts its tickets.
    pub(crate) fn sessions(&self) -> Arc<dyn StoresServerSessions> {
        self.server.session_storage.clone()
    }

    pub(crate) fn swap_client(&mut self, other: &mut Peers) {
        std::mem::swap(&mut self.client, &mut other.client);
        std::mem::swap(&mut self.keys, &mut other.keys);
    }

    /// Sets the protocol of both sides.
    pub(crate) fn alpn(mut self, protocol: &str) -> Self {
        self.change_client(|client| client.alpn_protocols = vec![protocol.into()]);
        self.change_server(|server| server.alpn_protocols = vec![protocol.into()]);
        self
    }

    /// Makes the server refuse early data from now on.
    pub(crate) fn refuse_early_data(&mut self) {
        self.change_server(|server| server.max_early_data_size = 0);
    }

    /// Makes a connection, so that the next one has a session to resume.
    pub(crate) fn with_session(self) -> Self {
        self.capture(&Path::new(MS));
        self
    }

    pub(crate) fn capture(&self, path: &Path) -> Vec<Captured> {
        let name = ServerName::try_from("first.test").unwrap();
        let mut client = Client {
            tls: ClientConnection::new(self.client.clone(), name).unwrap(),
            request: self.request.clone(),
            expected: self.greeting.len() + self.response.len(),
            received: 0,
            sent_early: false,
            sent: false,
            pause: self.client_pause,
        };
        let mut tls = ServerConnection::new(self.server.clone()).unwrap();
        tls.set_buffer_limit(None);
        tls.writer().write_all(&self.greeting).unwrap();
        let mut server = Server {
            tls,
            expected: self.request.len(),
            received: 0,
            response: self.response.clone(),
            responded: false,
            update_keys: self.update_keys,
        };
        let captured = path.run(&mut client, &mut server);
        assert_eq!(client.received, client.expected, "the client lacks its response");
        captured
    }

    pub(crate) fn key_log(&self) -> String {
        self.keys.0.lock().unwrap().clone()
    }

    /// Captures one connection and analyzes it with its secrets.
    pub(crate) fn facts(&self, path: &Path) -> FlowFacts {
        let capture = self.capture(path);
        analyze(&capture, &self.key_log())
    }
}

/// Analyzes a capture of one connection, which must have closed.
pub(crate) fn analyze(capture: &[Captured], key_log: &str) -> FlowFacts {
    analyze_and_trace(capture, key_log).0
}

/// Like [`analyze`], with a trace.
pub(crate) fn analyze_and_trace(capture: &[Captured], key_log: &str) -> (FlowFacts, Trace) {
    let mut observer = Observer::new();
    feed(&mut observer, capture);
    observer.add_secrets(key_log);
    let mut taken = observer.take_finished_traced(|_| true);
    assert_eq!(taken.len(), 1);
    assert_eq!(observer.connections(), 0);
    let (facts, trace) = taken.remove(0);
    (facts, trace.unwrap())
}

#[derive(Default)]
pub(crate) struct Keys(pub(crate) Mutex<String>);

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys")
    }
}

impl rustls::KeyLog for Keys {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let mut log = self.0.lock().unwrap();
        *log += &format!("{label} {} {}\n", hex(client_random), hex(secret));
    }
}

struct Client {
    tls: ClientConnection,
    request: Vec<u8>,
    expected: usize,
    received: usize,
    sent_early: bool,
    sent: bool,
    pause: u64,
}

impl Peer for Client {
    fn receive(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            self.tls.read_tls(&mut bytes).unwrap();
            let state = self.tls.process_new_packets().unwrap();
            let mut plain = vec![0; state.plaintext_bytes_to_read()];
            self.tls.reader().read_exact(&mut plain).unwrap();
            self.received += plain.len();
        }
    }

    fn send(&mut self) -> Vec<u8> {
        if !self.sent_early
            && let Some(mut early) = self.tls.early_data()
        {
            early.write_all(&self.request).unwrap();
            self.sent_early = true;
        }
        let mut out = drain(|out| self.tls.wants_write().then(|| self.tls.write_tls(out)));
        if !self.tls.is_handshaking() && !self.sent {
            self.sent = true;
            if !(self.sent_early && self.tls.is_early_data_accepted()) {
                // A slow application's request leaves after the Finished.
                if self.pause > MS && !out.is_empty() {
                    self.sent = false;
                    return out;
                }
                self.tls.writer().write_all(&self.request).unwrap();
            }
        }
        if self.received == self.expected {
            self.tls.send_close_notify();
        }
        out.extend(drain(|out| self.tls.wants_write().then(|| self.tls.write_tls(out))));
        out
    }

    fn done(&self) -> bool {
        self.received == self.expected
    }

    fn pause(&self) -> u64 {
        if self.tls.is_handshaking() { 20_000 } else { self.pause }
    }
}

struct Server {
    tls: ServerConnection,
    expected: usize,
    received: usize,
    response: Vec<u8>,
    responded: bool,
    update_keys: bool,
}

impl Peer for Server {
    fn receive(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            self.tls.read_tls(&mut bytes).unwrap();
            let state = self.tls.process_new_packets().unwrap();
            let mut plain = vec![0; state.plaintext_bytes_to_read()];
            self.tls.reader().read_exact(&mut plain).unwrap();
            self.received += plain.len();
            if let Some(mut early) = self.tls.early_data() {
                let mut plain = Vec::new();
                early.read_to_end(&mut plain).unwrap();
                self.received += plain.len();
            }
        }
    }

    fn send(&mut self) -> Vec<u8> {
        if self.received == self.expected && !self.responded {
            self.responded = true;
            if self.update_keys {
                self.tls.refresh_traffic_keys().unwrap();
            }
            self.tls.writer().write_all(&self.response).unwrap();
        }
        drain(|out| self.tls.wants_write().then(|| self.tls.write_tls(out)))
    }

    fn done(&self) -> bool {
        false
    }
}

fn drain(mut write: impl FnMut(&mut Vec<u8>) -> Option<std::io::Result<usize>>) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(written) = write(&mut out) {
        written.unwrap();
    }
    out
}
