//! What the client keeps between connections: TLS contexts, tickets and address tokens.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use firstflight_quic::{ClientCrypto, Resumption};
use firstflight_tls::{
    CipherPolicy, Connector, ConnectorConfig, KeyLogLines, Session, TlsError, Trust, Version,
};

use crate::{CertificateKind, CipherSuite, Group, HttpVersion, RequestedConnection, Workload};

/// The properties in which TLS contexts differ.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct ContextKey {
    version: Version,
    group: Group,
    cipher: CipherSuite,
    /// `None` for ping-pong, which has no ALPN over TCP.
    http: Option<HttpVersion>,
    /// Whether the client offers Ed25519 signatures.
    ed25519: bool,
    /// Whether the client offers certificate compression.
    compression: bool,
}

/// The client's TLS contexts, each created on first use.
pub struct Connectors {
    trust: Trust,
    key_log: Arc<KeyLogLines>,
    tcp: RefCell<HashMap<ContextKey, Connector>>,
    quic: RefCell<HashMap<ContextKey, Arc<ClientCrypto>>>,
}

impl Connectors {
    /// Creates contexts that trust these certificates and log their secrets to `key_log`.
    pub fn new(trust: Trust, key_log: &Arc<KeyLogLines>) -> Self {
        let (tcp, quic) = (RefCell::default(), RefCell::default());
        Self { trust, key_log: key_log.clone(), tcp, quic }
    }

    /// The context for a connection over TCP.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn tcp(&self, requested: &RequestedConnection) -> Result<Connector, TlsError> {
        let key = ContextKey::of(requested);
        if let Some(connector) = self.tcp.borrow().get(&key) {
            return Ok(connector.clone());
        }
        let mut config = self.config(key);
        config.alpn = key.http.map(|http| http.alpn().to_vec()).into_iter().collect();
        let connector = Connector::new(config)?;
        self.tcp.borrow_mut().insert(key, connector.clone());
        Ok(connector)
    }

    /// The context for a connection over QUIC.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn quic(&self, requested: &RequestedConnection) -> Result<Arc<ClientCrypto>, TlsError> {
        let key = ContextKey::of(requested);
        if let Some(crypto) = self.quic.borrow().get(&key) {
            return Ok(crypto.clone());
        }
        let mut config = self.config(key);
        config.alpn = vec![key.http.map_or(PING_PONG_ALPN, HttpVersion::alpn).to_vec()];
        let crypto = ClientCrypto::new(config)?;
        self.quic.borrow_mut().insert(key, crypto.clone());
        Ok(crypto)
    }

    fn config(&self, key: ContextKey) -> ConnectorConfig {
        let mut config = ConnectorConfig::new(self.trust.clone());
        (config.min_version, config.max_version) = (key.version, key.version);
        config.ciphers = CipherPolicy {
            groups: Some(groups(key)),
            tls13_ciphers: key.cipher.iana().map(|(_, name)| name.to_owned()),
            ..CipherPolicy::default()
        };
        config.ed25519 = key.ed25519;
        config.compressed_certificates = key.compression;
        config.key_log = Some(self.key_log.clone());
        config
    }
}

impl ContextKey {
    fn of(requested: &RequestedConnection) -> Self {
        Self {
            version: requested.version,
            group: requested.group,
            cipher: requested.cipher,
            http: (requested.workload == Workload::Get).then_some(requested.http),
            ed25519: requested.certificate == CertificateKind::Ed25519,
            compression: requested.compression,
        }
    }
}

/// The ALPN protocol of ping-pong over QUIC, which requires one (RFC 9001 section 8.1).
const PING_PONG_ALPN: &[u8] = b"firstflight-ping-pong";

/// The groups that the client offers: only that of the cell, so that no server can choose another.
/// Before TLS 1.3 the list also restricts the curves of certificates (RFC 8422 section 5.1.1).
fn groups(key: ContextKey) -> String {
    match (key.version, key.group) {
        (Version::Tls13, group) | (_, group @ Group::P256) => group.name().to_owned(),
        (_, group) => format!("{group}:{}", Group::P256),
    }
}

/// What a client needs to resume a session.
#[derive(Clone)]
pub enum Ticket {
    /// Over TCP.
    Tcp(Session),
    /// Over QUIC, with the server's transport parameters.
    Quic(Resumption),
}

impl Ticket {
    /// The TLS session.
    pub fn session(&self) -> &Session {
        match self {
            Self::Tcp(session) => session,
            Self::Quic(resumption) => &resumption.session,
        }
    }

    /// Returns a copy that claims to have been issued `seconds` earlier. Every server that checks
    /// the ticket's age refuses its early data, but resumes the session.
    ///
    /// The lab refuses early data this way because it works on any server. A HelloRetryRequest
    /// would refuse it too, but costs a further round trip and needs a group that the server lacks.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn issued_earlier(&self, seconds: u32) -> Result<Self, TlsError> {
        let session = self.session().issued_earlier(seconds)?;
        Ok(match self {
            Self::Tcp(_) => Self::Tcp(session),
            Self::Quic(resumption) => Self::Quic(Resumption { session, ..resumption.clone() }),
        })
    }
}

/// Values to be used in later connections, for each issuer, the newest last.
pub struct IssuerPool<K, V>(HashMap<K, Vec<V>>);

/// The client's tickets during a run.
pub type TicketPool<K> = IssuerPool<K, Ticket>;

impl<K, V> Default for IssuerPool<K, V> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash, V> IssuerPool<K, V> {
    /// Removes and returns the newest value.
    pub fn pop(&mut self, issuer: &K) -> Option<V> {
        self.0.get_mut(issuer)?.pop()
    }

    /// Adds values; only the newest `MAX_VALUES_PER_ISSUER` of an issuer are kept.
    pub fn add(&mut self, issuer: K, values: Vec<V>) {
        let stored = self.0.entry(issuer).or_default();
        stored.extend(values);
        if stored.len() > MAX_VALUES_PER_ISSUER {
            stored.drain(..stored.len() - MAX_VALUES_PER_ISSUER);
        }
    }
}

impl<K: Eq + Hash> TicketPool<K> {
    /// Returns the newest ticket. A TLS 1.3 ticket is removed, since it is used only once (RFC 8446
    /// appendix C.4); a session of an earlier version remains for the next connection.
    pub fn take(&mut self, issuer: &K, version: Version) -> Option<Ticket> {
        match version {
            Version::Tls13 => self.pop(issuer),
            _ => self.0.get(issuer)?.last().cloned(),
        }
    }
}

/// Values kept for each issuer, at most: more than are ever in use at the same time.
const MAX_VALUES_PER_ISSUER: usize = 512;
