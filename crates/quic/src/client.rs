use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use boring::ssl::{Ssl, SslContext};
use boring_sys as ffi;
use bytes::Bytes;
use firstflight_tls::{
    ConnectorConfig, EarlyData, EarlyDataReason, Handshake, KeyLog, Offer, Session, TlsError,
    Version, seam,
};
use foreign_types::ForeignType;
use quinn_proto::crypto::{self, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectError, ConnectionId, Side, TokenStore, TransportError};

use crate::initial::{self, VERSION_1};
use crate::method;
use crate::session::{self, Handshaking, INTERNAL_ERROR, Step};

/// What every connection of a client has in common.
///
/// quinn's `Connection::handshake_data` gives a [`Handshake`], in a `Box<dyn Any>`.
pub struct ClientCrypto {
    context: SslContext,
    key_log: Option<Arc<dyn KeyLog>>,
}

/// What a client keeps of a connection over QUIC to resume it: the session and the server's
/// transport parameters, without which no early data can be sent (RFC 9000 section 7.4.1).
#[derive(Clone, Debug)]
pub struct Resumption {
    /// The session, for QUIC alone.
    pub session: Session,
    /// The server's transport parameters as the wire has them.
    pub transport_parameters: Bytes,
}

/// What one connection brings along.
#[derive(Clone, Debug, Default)]
pub struct Remembered {
    /// What to resume.
    pub resumption: Option<Resumption>,
    /// An address token from a NEW_TOKEN frame (RFC 9000 section 8.1.3).
    pub token: Option<Bytes>,
    /// Whether to send early data if the session allows it.
    pub early_data: bool,
}

/// Where a connection's tickets and address tokens are put as they come in.
#[derive(Clone, Debug, Default)]
pub struct ResumptionInbox(Arc<Mutex<Inbox>>);

#[derive(Debug, Default)]
struct Inbox {
    resumptions: Vec<Resumption>,
    tokens: Vec<Bytes>,
}

impl ResumptionInbox {
    /// The tickets that came since the last call.
    pub fn take_resumptions(&self) -> Vec<Resumption> {
        std::mem::take(&mut self.lock().resumptions)
    }

    /// The address tokens that came since the last call.
    pub fn take_tokens(&self) -> Vec<Bytes> {
        std::mem::take(&mut self.lock().tokens)
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientCrypto {
    /// TLS 1.3 alone, whatever the configuration's versions are.
    ///
    /// # Errors
    /// [`TlsError`] as [`firstflight_tls::Connector::new`], and when no application protocol is
    /// named: QUIC does not go without (RFC 9001 section 8.1).
    pub fn new(mut config: ConnectorConfig) -> Result<Arc<Self>, TlsError> {
        if config.alpn.is_empty() {
            return Err(TlsError::Setup {
                what: "the application protocols",
                reason: "QUIC needs one at least".to_owned(),
            });
        }
        config.min_version = Version::Tls13;
        config.max_version = Version::Tls13;
        let key_log = config.key_log.take();
        let context =
            seam::client_context(config, |context| method::install(context, key_log.as_ref()))?;
        Ok(Arc::new(Self { context, key_log }))
    }

    /// quinn's cryptography and token store for one connection to `host` (a name or an address; it
    /// is also the server name to give to quinn), and where its tickets will be. A second
    /// connection by the same configuration resumes nothing: a ticket is used once.
    ///
    /// # Errors
    /// [`TlsError::BadHost`], or [`TlsError::BadSession`] when the session cannot be used here.
    #[allow(clippy::type_complexity)]
    pub fn for_connection(
        self: &Arc<Self>,
        host: &str,
        remembered: Remembered,
    ) -> Result<(Arc<dyn crypto::ClientConfig>, Arc<dyn TokenStore>, ResumptionInbox), TlsError>
    {
        let Remembered { resumption, token, early_data } = remembered;
        let (session, parameters) = match resumption {
            Some(found) => (Some(found.session), Some(found.transport_parameters)),
            None => (None, None),
        };
        let parameters = parameters
            .map(|wire| session::from_wire(Side::Client, &wire))
            .transpose()
            .map_err(|_| TlsError::BadSession("its transport parameters are damaged".to_owned()))?;
        let offer = Offer { host: host.to_owned(), session, early_data };
        let (ssl, sessions) = seam::client_connection(&self.context, &offer)?;
        let inbox = ResumptionInbox::default();
        let connection = OneConnection {
            crypto: self.clone(),
            host: host.to_owned(),
            first: Mutex::new(Some(Prepared { ssl, sessions, parameters })),
            inbox: inbox.clone(),
        };
        let tokens = Tokens { first: Mutex::new(token), inbox: inbox.clone() };
        Ok((Arc::new(connection), Arc::new(tokens), inbox))
    }
}

/// The one token that a connection brings along, and where new ones go.
struct Tokens {
    first: Mutex<Option<Bytes>>,
    inbox: ResumptionInbox,
}

impl TokenStore for Tokens {
    fn insert(&self, _server_name: &str, token: Bytes) {
        self.inbox.lock().tokens.push(token);
    }

    fn take(&self, _server_name: &str) -> Option<Bytes> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A connection that has not begun.
struct Prepared {
    ssl: Ssl,
    sessions: seam::Inbox,
    /// The server's, of the connection that is resumed.
    parameters: Option<TransportParameters>,
}

/// What [`ClientCrypto::for_connection`] gives.
struct OneConnection {
    crypto: Arc<ClientCrypto>,
    host: String,
    first: Mutex<Option<Prepared>>,
    inbox: ResumptionInbox,
}

impl OneConnection {
    fn prepared(&self) -> Result<Prepared, TlsError> {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(first) = first {
            return Ok(first);
        }
        let offer = Offer { host: self.host.clone(), session: None, early_data: false };
        let (ssl, sessions) = seam::client_connection(&self.crypto.context, &offer)?;
        Ok(Prepared { ssl, sessions, parameters: None })
    }
}

impl crypto::ClientConfig for OneConnection {
    fn start_session(
        self: Arc<Self>,
        version: u32,
        server_name: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn crypto::Session>, ConnectError> {
        if version != VERSION_1 {
            return Err(ConnectError::UnsupportedVersion);
        }
        // The certificate will be held against the name given before.
        if server_name != self.host {
            return Err(ConnectError::InvalidServerName(server_name.to_owned()));
        }
        let prepared =
            self.prepared().map_err(|error| ConnectError::InvalidServerName(error.to_string()))?;
        let session = ClientSession::new(&self, prepared, params)
            .map_err(|error| ConnectError::InvalidServerName(error.to_string()))?;
        Ok(Box::new(session))
    }
}

/// A client's connection.
struct ClientSession {
    tls: Handshaking,
    sessions: seam::Inbox,
    inbox: ResumptionInbox,
    /// The server's transport parameters of the connection that is resumed.
    remembered: Option<TransportParameters>,
    /// Whether early data was offered.
    offered: bool,
    /// Why the server refused it.
    refused: Option<EarlyDataReason>,
    told: bool,
}

impl ClientSession {
    /// Makes the ClientHello at once: quinn asks for early keys before anything else.
    fn new(
        connection: &OneConnection,
        prepared: Prepared,
        params: &TransportParameters,
    ) -> Result<Self, TransportError> {
        let Prepared { ssl, sessions, parameters } = prepared;
        let log = connection.crypto.key_log.clone();
        if parameters.is_none() {
            // Without the limits of the server nothing can be sent early.
            // SAFETY: the connection is valid and its handshake has not begun.
            unsafe { ffi::SSL_set_early_data_enabled(ssl.as_ptr(), 0) };
        }
        let mut session = Self {
            tls: Handshaking::new(ssl, Side::Client, &session::to_wire(params), log),
            sessions,
            inbox: connection.inbox.clone(),
            remembered: parameters,
            offered: false,
            refused: None,
            told: false,
        };
        session.advance()?;
        session.offered = session.tls.in_early_data();
        session.tls.log_keys();
        Ok(session)
    }

    fn advance(&mut self) -> Result<(), TransportError> {
        loop {
            match self.tls.advance()? {
                Step::Done => return Ok(()),
                Step::NeedsSession => {
                    return Err(session::error(INTERNAL_ERROR, "a client has no tickets to open"));
                }
                Step::EarlyDataRefused => {
                    self.refused = Some(seam::early_data_reason(&self.tls.ssl));
                    // SAFETY: the connection is just now signalling the refusal, the only state in
                    // which the library allows this call.
                    unsafe { ffi::SSL_reset_early_data_reject(self.tls.ssl.as_ptr()) };
                }
            }
        }
    }

    /// Puts tickets that have come in where the caller finds them.
    fn collect(&self) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if sessions.is_empty() {
            return;
        }
        let wire = self.tls.peer_parameters().unwrap_or_default();
        let transport_parameters = Bytes::copy_from_slice(wire);
        let mut inbox = self.inbox.lock();
        for session in sessions.drain(..) {
            let transport_parameters = transport_parameters.clone();
            inbox.resumptions.push(Resumption { session, transport_parameters });
        }
    }

    fn accepted(&self) -> bool {
        // SAFETY: the connection is valid, and the call only reads.
        unsafe { ffi::SSL_early_data_accepted(self.tls.ssl.as_ptr()) == 1 }
    }

    fn facts(&self) -> Handshake {
        let early_data = match (self.offered, self.refused) {
            (false, _) => EarlyData::NotOffered,
            (true, Some(_)) => EarlyData::Refused,
            (true, None) if self.tls.is_complete() && self.accepted() => EarlyData::Accepted,
            (true, None) => EarlyData::Pending,
        };
        let reason = self.refused.unwrap_or_else(|| seam::early_data_reason(&self.tls.ssl));
        seam::client_facts(&self.tls.ssl, early_data, reason)
    }
}

impl crypto::Session for ClientSession {
    fn initial_keys(&self, dst_cid: &ConnectionId, side: Side) -> Keys {
        initial::initial_keys(dst_cid, side)
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        if !self.told {
            return None;
        }
        Some(Box::new(self.facts()))
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        self.tls.early_keys()
    }

    fn early_data_accepted(&self) -> Option<bool> {
        Some(self.refused.is_none() && self.accepted())
    }

    fn is_handshaking(&self) -> bool {
        !self.tls.is_complete()
    }

    fn read_handshake(&mut self, buf: &[u8]) -> Result<bool, TransportError> {
        self.tls.provide(buf)?;
        self.advance()?;
        self.tls.log_keys();
        self.collect();
        let news = !self.told && self.tls.is_complete();
        self.told |= news;
        Ok(news)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        match self.tls.peer_parameters() {
            Some(wire) => session::from_wire(Side::Client, wire).map(Some),
            None => Ok(self.remembered),
        }
    }

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        self.tls.write(buf)
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        self.tls.next_1rtt_keys()
    }

    fn is_valid_retry(&self, orig_dst_cid: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        initial::is_valid_retry(orig_dst_cid, header, payload)
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        self.tls.export(output, label, context)
    }
}
