//! Two endpoints of quinn-proto on our cryptography, joined by a link in simulated time.

mod pair;
pub(crate) mod sessions;
pub(crate) mod tcp;

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use firstflight_quic::{
    ClientCrypto, Handshake, Remembered, ResetKey, Resumption, ResumptionInbox, ServerCrypto,
};
use firstflight_tls::{
    AcceptorConfig, CipherPolicy, ConnectorConfig, Identity, KeyLog, OpenedTicket, TicketSealer,
    Trust, WithheldReason,
};
pub(crate) use pair::{Admission, Pair};
use quinn_proto::crypto::{self, AeadKey, CryptoError, HandshakeTokenKey};
use quinn_proto::{
    ClientConfig, Connection, EndpointConfig, HashedConnectionIdGenerator, ServerConfig,
    TransportConfig, VarInt,
};

/// Prefixes tickets with its key, without encryption.
pub(crate) struct MarkSealer {
    pub(crate) key: u8,
    pub(crate) opens: Opens,
    /// The sessions that it has sealed.
    pub(crate) sealed: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// How a sealer opens its own tickets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Opens {
    Session,
    WithoutEarlyData,
    /// The lookup key is the whole ticket, which contains the session.
    NeedsLookup,
}

impl TicketSealer for MarkSealer {
    fn max_overhead(&self) -> usize {
        1
    }

    fn seal(&self, session: &[u8]) -> Option<Vec<u8>> {
        self.sealed.lock().unwrap().push(session.to_vec());
        Some([&[self.key], session].concat())
    }

    fn open(&self, ticket: &[u8]) -> OpenedTicket {
        match ticket.split_first() {
            Some((key, session)) if *key == self.key => match self.opens {
                Opens::Session => OpenedTicket::Session(session.to_vec()),
                Opens::WithoutEarlyData => {
                    OpenedTicket::WithoutEarlyData(session.to_vec(), WithheldReason::Zone)
                }
                Opens::NeedsLookup => OpenedTicket::NeedsLookup(ticket.to_vec()),
            },
            _ => OpenedTicket::Ignored,
        }
    }
}

/// The settings of client and server.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) ciphers: CipherPolicy,
    /// The server's groups, instead of those of `ciphers`.
    pub(crate) server_groups: Option<String>,
    pub(crate) server_alpn: Vec<Vec<u8>>,
    pub(crate) client_alpn: Vec<Vec<u8>>,
    pub(crate) sealer_key: u8,
    pub(crate) opens: Opens,
    /// The server's sealer, instead of a [`MarkSealer`] with `sealer_key`.
    pub(crate) sealer: Option<Arc<dyn TicketSealer>>,
    /// The sessions that its servers have sealed.
    pub(crate) sealed: Arc<Mutex<Vec<Vec<u8>>>>,
    pub(crate) early_data: bool,
    pub(crate) trust: Trust,
    pub(crate) streams: u32,
    pub(crate) server_log: Option<Arc<dyn KeyLog>>,
    pub(crate) client_log: Option<Arc<dyn KeyLog>>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            ciphers: CipherPolicy::default(),
            server_groups: None,
            server_alpn: vec![b"test".to_vec()],
            client_alpn: vec![b"test".to_vec()],
            sealer_key: 1,
            opens: Opens::Session,
            sealer: None,
            sealed: Arc::default(),
            early_data: true,
            trust: Trust::Anyone,
            streams: 100,
            server_log: None,
            client_log: None,
        }
    }
}

impl Setup {
    pub(crate) fn server(&self) -> Arc<ServerCrypto> {
        let mut config = AcceptorConfig::new(identity());
        config.ciphers = self.ciphers.clone();
        if let Some(groups) = &self.server_groups {
            config.ciphers.groups = Some(groups.clone());
        }
        config.alpn = self.server_alpn.clone();
        config.early_data = self.early_data;
        let sealer = || {
            let (key, opens, sealed) = (self.sealer_key, self.opens, self.sealed.clone());
            Arc::new(MarkSealer { key, opens, sealed }) as _
        };
        config.sealer = Some(self.sealer.clone().unwrap_or_else(sealer));
        config.key_log = self.server_log.clone();
        ServerCrypto::new(config).unwrap()
    }

    pub(crate) fn client(&self) -> Arc<ClientCrypto> {
        let mut config = ConnectorConfig::new(self.trust.clone());
        config.ciphers = self.ciphers.clone();
        config.alpn = self.client_alpn.clone();
        config.key_log = self.client_log.clone();
        ClientCrypto::new(config).unwrap()
    }

    pub(crate) fn server_config(&self, crypto: Arc<dyn crypto::ServerConfig>) -> Arc<ServerConfig> {
        let mut config = ServerConfig::new(crypto, Arc::new(PlainTokens));
        let mut transport = TransportConfig::default();
        transport.max_concurrent_bidi_streams(VarInt::from_u32(self.streams));
        transport.max_idle_timeout(Some(VarInt::from_u32(30_000).into()));
        config.transport_config(Arc::new(transport));
        Arc::new(config)
    }

    /// A pair whose server accepts all early data.
    pub(crate) fn pair(&self) -> Pair {
        Pair::new(self.clone())
    }

    /// A client's configuration, and the inbox for its tickets.
    pub(crate) fn client_config(&self, remembered: Remembered) -> (ClientConfig, ResumptionInbox) {
        let (crypto, tokens, inbox) =
            self.client().for_connection("localhost", remembered).unwrap();
        let mut config = ClientConfig::new(crypto);
        config.token_store(tokens);
        (config, inbox)
    }

    /// A resumption from a full handshake.
    pub(crate) fn resumption(&self) -> Resumption {
        let mut pair = self.pair();
        let connected = pair.connect(Remembered::default());
        connected.inbox.take_resumptions().pop().expect("a ticket")
    }

    pub(crate) fn remembered(&self) -> Remembered {
        resuming(self.resumption())
    }
}

/// For resuming with early data.
pub(crate) fn resuming(resumption: Resumption) -> Remembered {
    Remembered { resumption: Some(resumption), token: None, early_data: true }
}

pub(crate) fn endpoint_config() -> Arc<EndpointConfig> {
    let mut config = EndpointConfig::new(Arc::new(ResetKey::new([7; 32])));
    config.supported_versions(vec![1]);
    // Connection ids depend on a key only, so that an endpoint without state recognizes its own.
    config.cid_generator(|| Box::new(HashedConnectionIdGenerator::from_key(0)));
    Arc::new(config)
}

/// The facts about a connection's handshake.
pub(crate) fn facts(connection: &Connection) -> Handshake {
    let data = connection.crypto_session().handshake_data().expect("handshake data");
    *data.downcast::<Handshake>().expect("ours")
}

/// Address tokens without encryption, which is tested elsewhere.
pub(crate) struct PlainTokens;

struct Plain;

impl HandshakeTokenKey for PlainTokens {
    fn aead_from_hkdf(&self, _: &[u8]) -> Box<dyn AeadKey> {
        Box::new(Plain)
    }
}

impl AeadKey for Plain {
    fn seal(&self, _: &mut Vec<u8>, _: &[u8]) -> Result<(), CryptoError> {
        Ok(())
    }

    fn open<'a>(&self, data: &'a mut [u8], _: &[u8]) -> Result<&'a mut [u8], CryptoError> {
        Ok(data)
    }
}

/// One certificate for all tests: making a key takes longer than using it.
pub(crate) fn identity() -> Identity {
    let (cert, key) = pem();
    Identity::from_pem(cert.as_bytes(), key.as_bytes()).unwrap()
}

pub(crate) fn pem() -> &'static (String, String) {
    static PEM: OnceLock<(String, String)> = OnceLock::new();
    PEM.get_or_init(|| {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    })
}

pub(crate) const LATENCY: Duration = Duration::from_millis(10);

pub(crate) fn bytes(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}
