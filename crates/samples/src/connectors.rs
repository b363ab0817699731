//! The client's TLS contexts: one for each transport, version, group and application protocol.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use firstflight_quic::ClientCrypto;
use firstflight_tls::{
    CipherPolicy, Connector, ConnectorConfig, KeyLogLines, TlsError, Trust, Version,
};

use crate::{Certificate, Group, Http, RequestedConnection, Workload};

/// What contexts differ in.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    version: Version,
    group: Group,
    /// `None` for ping-pong, which over TCP has no ALPN.
    http: Option<Http>,
    /// Whether Ed25519 is among the signatures that the client takes.
    ed25519: bool,
}

/// Contexts, each made when it is first needed.
pub struct Connectors {
    trust: Trust,
    key_log: Arc<KeyLogLines>,
    made: RefCell<HashMap<Key, Connector>>,
    made_for_quic: RefCell<HashMap<Key, Arc<ClientCrypto>>>,
}

impl Connectors {
    /// Contexts that trust these certificates and log their secrets there.
    pub fn new(trust: Trust, key_log: &Arc<KeyLogLines>) -> Self {
        let (made, made_for_quic) = (RefCell::default(), RefCell::default());
        Self { trust, key_log: key_log.clone(), made, made_for_quic }
    }

    /// The context for such a connection over TCP.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn get(&self, asked: &RequestedConnection) -> Result<Connector, TlsError> {
        let key = Key::of(asked);
        if let Some(connector) = self.made.borrow().get(&key) {
            return Ok(connector.clone());
        }
        let mut config = self.config(key);
        config.alpn = key.http.map(|http| http.alpn().to_vec()).into_iter().collect();
        let connector = Connector::new(config)?;
        self.made.borrow_mut().insert(key, connector.clone());
        Ok(connector)
    }

    /// The context for such a connection over QUIC.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn quic(&self, asked: &RequestedConnection) -> Result<Arc<ClientCrypto>, TlsError> {
        let key = Key::of(asked);
        if let Some(crypto) = self.made_for_quic.borrow().get(&key) {
            return Ok(crypto.clone());
        }
        let mut config = self.config(key);
        config.alpn = vec![key.http.map_or(PING_PONG, Http::alpn).to_vec()];
        let crypto = ClientCrypto::new(config)?;
        self.made_for_quic.borrow_mut().insert(key, crypto.clone());
        Ok(crypto)
    }

    fn config(&self, key: Key) -> ConnectorConfig {
        let mut config = ConnectorConfig::new(self.trust.clone());
        (config.min_version, config.max_version) = (key.version, key.version);
        config.ciphers = CipherPolicy { groups: Some(groups(key)), ..CipherPolicy::default() };
        config.ed25519 = key.ed25519;
        config.key_log = Some(self.key_log.clone());
        config
    }
}

impl Key {
    fn of(asked: &RequestedConnection) -> Self {
        Self {
            version: asked.version,
            group: asked.group,
            http: (asked.workload == Workload::Get).then_some(asked.http),
            ed25519: asked.certificate == Certificate::Ed25519,
        }
    }
}

/// What PING and PONG over QUIC are called, where a protocol has to be named (RFC 9001 section
/// 8.1).
const PING_PONG: &[u8] = b"firstflight-ping-pong";

/// The groups that the client offers: the cell's alone, so that no server chooses another one.
/// Before TLS 1.3 the list also says which curves a certificate may have (RFC 8422 section 5.1.1).
fn groups(key: Key) -> String {
    match (key.version, key.group) {
        (Version::Tls13, group) | (_, group @ Group::P256) => group.name().to_owned(),
        (_, group) => format!("{group}:{}", Group::P256),
    }
}
