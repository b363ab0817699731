//! Test setups: a server with a self-signed certificate, a sealer with one key, and a connected
//! pair.

use std::sync::{Arc, OnceLock};

use firstflight_tls::{
    Acceptor, AcceptorConfig, ChallengeCertificates, CipherPolicy, CipherPreference,
    ConnectOptions, Connector, ConnectorConfig, EchKeys, Identities, Identity, KeyLog,
    OpenedTicket, Progress, Session, TicketSealer, TlsConnection, TlsError, Trust, Version,
    WithheldReason,
};

/// Marks tickets with its key instead of encrypting them, and opens only those with its own mark.
pub(crate) struct MarkSealer {
    pub(crate) key: u8,
    pub(crate) opens: Opens,
}

/// What the sealer returns for its own tickets.
#[derive(Clone, Copy)]
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

#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) min: Version,
    pub(crate) max: Version,
    pub(crate) ciphers: CipherPolicy,
    pub(crate) alpn: Vec<Vec<u8>>,
    pub(crate) sealer_key: u8,
    pub(crate) opens: Opens,
    /// Used instead of a [`MarkSealer`] with `sealer_key`.
    pub(crate) sealer: Option<Arc<dyn TicketSealer>>,
    pub(crate) decline: bool,
    pub(crate) trust: Trust,
    pub(crate) key_log: Option<Arc<dyn KeyLog>>,
    pub(crate) preference: CipherPreference,
    pub(crate) identities: Identities,
    pub(crate) challenges: Option<Arc<dyn ChallengeCertificates>>,
    /// Whether the server compresses certificates, and the client offers it.
    pub(crate) compression: bool,
    /// The server's ECH keys.
    pub(crate) ech: Option<EchKeys>,
    /// The ECHConfigList that the client knows.
    pub(crate) ech_configs: Option<Vec<u8>>,
    /// The host that the client connects to.
    pub(crate) host: String,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            min: Version::Tls10,
            max: Version::Tls13,
            ciphers: CipherPolicy::default(),
            alpn: Vec::new(),
            sealer_key: 1,
            opens: Opens::Session,
            sealer: None,
            decline: false,
            trust: Trust::Anyone,
            key_log: None,
            preference: CipherPreference::default(),
            identities: identity().into(),
            challenges: None,
            compression: false,
            ech: None,
            ech_configs: None,
            host: "localhost".to_owned(),
        }
    }
}

impl Setup {
    pub(crate) fn acceptor(&self) -> Acceptor {
        let mut config = AcceptorConfig::new(self.identities.clone());
        config.cipher_preference = self.preference;
        config.min_version = self.min;
        config.max_version = self.max;
        config.ciphers = self.ciphers.clone();
        config.alpn = self.alpn.clone();
        config.challenges = self.challenges.clone();
        config.compress_certificates = self.compression;
        config.ech = self.ech.clone();
        config.early_data = true;
        let sealer = || Arc::new(MarkSealer { key: self.sealer_key, opens: self.opens }) as _;
        config.sealer = Some(self.sealer.clone().unwrap_or_else(sealer));
        Acceptor::new(config).unwrap()
    }

    pub(crate) fn connector(&self) -> Connector {
        let mut config = ConnectorConfig::new(self.trust.clone());
        config.min_version = self.min;
        config.max_version = self.max;
        config.ciphers = self.ciphers.clone();
        config.alpn = self.alpn.clone();
        config.key_log = self.key_log.clone();
        config.compressed_certificates = self.compression;
        config.ech_configs = self.ech_configs.clone();
        Connector::new(config).unwrap()
    }

    /// A session from a full handshake.
    pub(crate) fn session(&self) -> Session {
        let mut pair = Pair::new(self, None, false);
        pair.complete();
        pair.sessions().pop().expect("a ticket")
    }
}

pub(crate) struct Pair {
    pub(crate) client: TlsConnection,
    pub(crate) server: TlsConnection,
}

impl Pair {
    pub(crate) fn new(setup: &Setup, session: Option<Session>, early_data: bool) -> Self {
        Self::between(setup, setup, session, early_data)
    }

    pub(crate) fn between(
        client: &Setup,
        server: &Setup,
        session: Option<Session>,
        early_data: bool,
    ) -> Self {
        let offer = ConnectOptions { host: client.host.clone(), session, early_data };
        Self {
            client: client.connector().connection(&offer).unwrap(),
            server: server.acceptor().connection(!server.decline).unwrap(),
        }
    }

    pub(crate) fn client_to_server(&mut self) {
        transfer(&mut self.client, &mut self.server);
    }

    pub(crate) fn server_to_client(&mut self) {
        transfer(&mut self.server, &mut self.client);
    }

    pub(crate) fn exchange(&mut self) {
        self.client_to_server();
        let _ = self.server.handshake();
        self.server_to_client();
    }

    pub(crate) fn complete(&mut self) {
        for _ in 0..6 {
            self.client.handshake().unwrap();
            self.client_to_server();
            self.server.handshake().unwrap();
            if self.server.in_early_data() {
                assert_eq!(server_read(&mut self.server), None);
            }
            self.server_to_client();
        }
        assert!(self.client.is_complete() && self.server.is_complete());
    }

    /// The sessions that the client has received.
    pub(crate) fn sessions(&mut self) -> Vec<Session> {
        // BoringSSL sends TLS 1.3 tickets with the server's next write, not before.
        assert_eq!(self.server.write(b"x").unwrap(), Progress::Done(1));
        self.server_to_client();
        assert_eq!(self.client.read(&mut [0; 16]).unwrap(), Progress::Done(1));
        self.client.take_sessions()
    }

    pub(crate) fn fails_on_client(&mut self) -> TlsError {
        for _ in 0..6 {
            if let Err(error) = self.client.handshake() {
                return error;
            }
            self.exchange();
        }
        panic!("the handshake should have failed");
    }
}

/// What the server can read now; `None` when it has to wait.
pub(crate) fn server_read(server: &mut TlsConnection) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 20_000];
    match server.read(&mut buffer).unwrap() {
        Progress::Done(count) => Some(buffer[..count].to_vec()),
        Progress::NeedsInput | Progress::Closed => None,
    }
}

/// One certificate for all tests: making a key takes longer than using it.
pub(crate) fn identity() -> Identity {
    static PEM: OnceLock<(String, String)> = OnceLock::new();
    let (cert, key) = PEM.get_or_init(|| {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    });
    Identity::from_pem(cert.as_bytes(), key.as_bytes()).unwrap()
}

fn transfer(from: &mut TlsConnection, to: &mut TlsConnection) {
    let bytes = from.outgoing().to_vec();
    from.sent(bytes.len());
    if !bytes.is_empty() {
        to.feed(&bytes);
    }
}
