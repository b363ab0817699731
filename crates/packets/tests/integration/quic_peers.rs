//! rustls for quinn on both sides, with a key log, tickets and address tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant, SystemTime};

use firstflight_packets::{FlowFacts, Observer, Trace};
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::{
    ClientConfig, MtuDiscoveryConfig, ServerConfig, TokenLog, TokenReuseError, TokenStore,
    TransportConfig, ValidationTokenConfig,
};
use rustls::CipherSuite;
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, SupportedKxGroup, ring};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::ServerSessionMemoryCache;

use crate::peers::Keys;
use crate::quic_path::{QuicPath, QuicSetup, run};
use crate::tcp_path::{Captured, MS, feed};

/// A client and a server, with or without an earlier session.
pub(crate) struct QuicPeers {
    pub(crate) client: rustls::ClientConfig,
    pub(crate) server: rustls::ServerConfig,
    keys: Arc<Keys>,
    tokens: Arc<dyn TokenStore>,
    pub(crate) request: Vec<u8>,
    pub(crate) response: Vec<u8>,
    pub(crate) greeting: Vec<u8>,
    /// NEW_TOKEN frames for each connection.
    pub(crate) tokens_sent: u32,
    pub(crate) mtu: u16,
    pub(crate) mtu_discovery: bool,
    base: Instant,
    seed: AtomicU8,
    /// The base of the server's configuration, with the key of address tokens.
    token_config: ServerConfig,
}

/// Accepts every token, also a second time.
struct AnyToken;

impl TokenLog for AnyToken {
    fn check_and_insert(&self, _: u128, _: SystemTime, _: Duration) -> Result<(), TokenReuseError> {
        Ok(())
    }
}

/// An HTTP/3 frame (RFC 9114 section 7.1).
pub(crate) fn http3_frame(kind: u8, len: usize) -> Vec<u8> {
    let mut frame =
        vec![kind, 0x80 | (len >> 24) as u8, (len >> 16) as u8, (len >> 8) as u8, len as u8];
    frame.resize(5 + len, 0x77);
    frame
}

impl QuicPeers {
    pub(crate) fn new(alpn: &str) -> Self {
        Self::with(alpn, None, &[ring::kx_group::X25519], &[ring::kx_group::X25519])
    }

    pub(crate) fn ping_pong() -> Self {
        let mut peers = Self::new("firstflight-ping-pong");
        peers.request = b"PING".to_vec();
        peers.response = b"PONG".to_vec();
        peers
    }

    /// HTTP/3 with a page of this length, without frame headers.
    pub(crate) fn http3(page_bytes: usize) -> Self {
        let mut peers = Self::new("h3");
        peers.request = http3_frame(1, 40);
        peers.response = [http3_frame(1, 50), http3_frame(0, page_bytes)].concat();
        // A control stream with empty SETTINGS.
        peers.greeting = vec![0, 4, 0];
        peers
    }

    pub(crate) fn with(
        alpn: &str,
        suite: Option<CipherSuite>,
        client_groups: &[&'static dyn SupportedKxGroup],
        server_groups: &[&'static dyn SupportedKxGroup],
    ) -> Self {
        let keys = Arc::new(Keys::default());
        let issued = rcgen::generate_simple_self_signed(["first.test".to_owned()]).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(issued.cert.der().clone()).unwrap();
        // quinn needs AES-128-GCM for Initial packets, so the others stay, after `only`.
        let is_other =
            |only: CipherSuite| move |suite: &rustls::SupportedCipherSuite| suite.suite() != only;
        let provider = |groups: &[&'static dyn SupportedKxGroup]| {
            let mut provider: CryptoProvider = ring::default_provider();
            provider.kx_groups = groups.to_vec();
            if let Some(only) = suite {
                provider.cipher_suites.sort_by_key(is_other(only));
            }
            Arc::new(provider)
        };
        let versions = &[&rustls::version::TLS13];
        let mut client = rustls::ClientConfig::builder_with_provider(provider(client_groups))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        client.enable_early_data = true;
        client.resumption = Resumption::in_memory_sessions(8);
        client.key_log = keys.clone();
        client.alpn_protocols = vec![alpn.into()];
        let key = PrivatePkcs8KeyDer::from(issued.signing_key.serialize_der());
        let mut server = rustls::ServerConfig::builder_with_provider(provider(server_groups))
            .with_protocol_versions(versions)
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![issued.cert.der().clone()], PrivateKeyDer::Pkcs8(key))
            .unwrap();
        server.session_storage = ServerSessionMemoryCache::new(64);
        server.max_early_data_size = u32::MAX;
        server.alpn_protocols = vec![alpn.into()];
        let tls = QuicServerConfig::try_from(server.clone()).unwrap();
        Self {
            token_config: ServerConfig::with_crypto(Arc::new(tls)),
            seed: AtomicU8::new(1),
            client,
            server,
            keys,
            tokens: Arc::new(quinn_proto::TokenMemoryCache::default()),
            request: b"request".to_vec(),
            response: b"response".to_vec(),
            greeting: Vec::new(),
            tokens_sent: 0,
            mtu: 1200,
            mtu_discovery: false,
            base: Instant::now(),
        }
    }

    pub(crate) fn mtu(self, mtu: u16) -> Self {
        Self { mtu, ..self }
    }

    pub(crate) fn sends_tokens(mut self) -> Self {
        self.tokens_sent = 2;
        self
    }

    /// Makes a connection, so that the next one has a session to resume.
    pub(crate) fn with_session(self) -> Self {
        self.capture(&QuicPath::new(MS));
        self
    }

    /// Replaces the certificate by one that is longer than three datagrams.
    pub(crate) fn long_certificate(mut self) -> Self {
        let names = (0..150).map(|n| format!("a-rather-long-name-{n}.first.test"));
        let names: Vec<_> = std::iter::once("first.test".to_owned()).chain(names).collect();
        let issued = rcgen::generate_simple_self_signed(names).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(issued.cert.der().clone()).unwrap();
        let old = self.client;
        let provider = old.crypto_provider().clone();
        self.client = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        self.client.key_log = old.key_log;
        self.client.alpn_protocols = old.alpn_protocols;
        let key = PrivatePkcs8KeyDer::from(issued.signing_key.serialize_der());
        let alpn = std::mem::take(&mut self.server.alpn_protocols);
        self.server = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![issued.cert.der().clone()], PrivateKeyDer::Pkcs8(key))
            .unwrap();
        self.server.alpn_protocols = alpn;
        self
    }

    fn transport(&self) -> Arc<TransportConfig> {
        let mut transport = TransportConfig::default();
        let discovery = self.mtu_discovery.then(MtuDiscoveryConfig::default);
        transport.initial_mtu(self.mtu).mtu_discovery_config(discovery);
        Arc::new(transport)
    }

    pub(crate) fn capture(&self, path: &QuicPath) -> Vec<Captured> {
        self.capture_of_version(path, 1)
    }

    /// Like [`Self::capture`]; the client starts with this QUIC version.
    pub(crate) fn capture_of_version(&self, path: &QuicPath, version: u32) -> Vec<Captured> {
        let tls = QuicClientConfig::try_from(self.client.clone()).unwrap();
        let mut client = ClientConfig::new(Arc::new(tls));
        client.transport_config(self.transport()).token_store(self.tokens.clone()).version(version);
        let mut server = self.token_config.clone();
        server.crypto = Arc::new(QuicServerConfig::try_from(self.server.clone()).unwrap());
        let mut tokens = ValidationTokenConfig::default();
        tokens.sent(self.tokens_sent).log(Arc::new(AnyToken));
        server.transport_config(self.transport()).validation_token_config(tokens);
        let setup = QuicSetup {
            client,
            server: Arc::new(server),
            request: &self.request,
            response: &self.response,
            greeting: &self.greeting,
        };
        run(path, &setup, self.seed.fetch_add(1, Ordering::Relaxed), self.base)
    }

    pub(crate) fn key_log(&self) -> String {
        self.keys.0.lock().unwrap().clone()
    }

    pub(crate) fn facts(&self, path: &QuicPath) -> FlowFacts {
        analyze_quic(&self.capture(path), &self.key_log()).0
    }
}

/// Analyzes a capture of one connection.
pub(crate) fn analyze_quic(capture: &[Captured], key_log: &str) -> (FlowFacts, Trace) {
    let mut observer = Observer::new();
    feed(&mut observer, capture);
    observer.add_secrets(key_log);
    let mut taken = observer.finish_traced(|_| true);
    assert_eq!(taken.len(), 1);
    assert_eq!(observer.connections(), 0);
    let (facts, trace) = taken.remove(0);
    (facts, trace.unwrap())
}
