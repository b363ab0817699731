use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use boring::ssl::{Ssl, SslContext};
use bytes::Bytes;
use firstflight_tls::{
    ConnectOptions, ConnectorConfig, KeyLog, Session, TlsError, Version, quic_support,
};
use quinn_proto::crypto;
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectError, Side, TokenStore};

use crate::client_session::ClientSession;
use crate::early_bytes::EarlyBytes;
use crate::initial::VERSION_1;
use crate::{method, session};

/// The crypto configuration that all connections of a client share.
///
/// quinn's `Connection::handshake_data` returns a [`Handshake`](crate::Handshake) in a `Box<dyn Any>`.
pub struct ClientCrypto {
    context: SslContext,
    key_log: Option<Arc<dyn KeyLog>>,
}

/// What a client stores to resume a QUIC connection: the session and the server's transport
/// parameters, without which no early data can be sent (RFC 9000 section 7.4.1).
#[derive(Clone, Debug)]
pub struct Resumption {
    /// The session. It resumes QUIC connections only.
    pub session: Session,
    /// The server's transport parameters, encoded.
    pub transport_parameters: Bytes,
}

/// What one connection resumes with.
#[derive(Clone, Debug, Default)]
pub struct Remembered {
    /// The session to resume.
    pub resumption: Option<Resumption>,
    /// An address token from a NEW_TOKEN frame (RFC 9000 section 8.1.3).
    pub token: Option<Bytes>,
    /// Whether to offer early data if the session allows it.
    pub early_data: bool,
}

/// The tickets and address tokens that a connection has received. Holds at most the newest 16
/// tickets and 4 tokens, whatever the server sends.
#[derive(Clone, Debug, Default)]
pub struct ResumptionInbox(Arc<Mutex<Inbox>>);

#[derive(Debug, Default)]
struct Inbox {
    resumptions: Vec<Resumption>,
    tokens: Vec<Bytes>,
    early_bytes: EarlyBytes,
}

impl ResumptionInbox {
    /// Takes the tickets received since the last call.
    pub fn take_resumptions(&self) -> Vec<Resumption> {
        std::mem::take(&mut self.lock().resumptions)
    }

    /// Takes the address tokens received since the last call.
    pub fn take_tokens(&self) -> Vec<Bytes> {
        std::mem::take(&mut self.lock().tokens)
    }

    /// Whether there are both a ticket and a token to take.
    pub fn has_both(&self) -> bool {
        let inbox = self.lock();
        !inbox.resumptions.is_empty() && !inbox.tokens.is_empty()
    }

    pub(crate) fn add(&self, resumption: Resumption) {
        keep_newest(&mut self.lock().resumptions, resumption, MAX_RESUMPTIONS);
    }

    /// Bytes of stream data that were sent under 0-RTT keys, accepted or not, including
    /// retransmissions.
    pub fn early_bytes(&self) -> usize {
        self.lock().early_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn early_counter(&self) -> EarlyBytes {
        self.lock().early_bytes.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The most tickets that are held.
const MAX_RESUMPTIONS: usize = 16;

/// The most address tokens that are held.
const MAX_TOKENS: usize = 4;

/// Appends; drops the oldest if there are too many.
fn keep_newest<T>(list: &mut Vec<T>, newest: T, most: usize) {
    if list.len() >= most {
        list.remove(0);
    }
    list.push(newest);
}

impl ClientCrypto {
    /// Creates the configuration. Only TLS 1.3 is used, whatever versions `config` has.
    ///
    /// # Errors
    /// [`TlsError`] as [`firstflight_tls::Connector::new`], and if there is no application protocol,
    /// which QUIC requires (RFC 9001 section 8.1).
    pub fn new(mut config: ConnectorConfig) -> Result<Arc<Self>, TlsError> {
        if config.alpn.is_empty() {
            return Err(TlsError::Setup {
                what: "the application protocols",
                reason: "QUIC needs at least one".to_owned(),
            });
        }
        config.min_version = Version::Tls13;
        config.max_version = Version::Tls13;
        let key_log = config.key_log.take();
        let context = quic_support::client_context(config, |context| {
            method::install(context, key_log.as_ref())
        })?;
        Ok(Arc::new(Self { context, key_log }))
    }

    /// Creates quinn's crypto configuration and token store for one connection to `host` (a name or
    /// an address, which must also be quinn's server name), and the inbox for its tickets. A second
    /// connection with the same configuration resumes nothing, since a ticket is used once.
    ///
    /// # Errors
    /// [`TlsError::BadHost`], or [`TlsError::BadSession`] if the session cannot be used here.
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
        let offer = ConnectOptions { host: host.to_owned(), session, early_data };
        let (ssl, sessions) = quic_support::client_connection(&self.context, &offer)?;
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

/// The connection's token, and the inbox for new ones.
struct Tokens {
    first: Mutex<Option<Bytes>>,
    inbox: ResumptionInbox,
}

impl TokenStore for Tokens {
    fn insert(&self, _server_name: &str, token: Bytes) {
        keep_newest(&mut self.inbox.lock().tokens, token, MAX_TOKENS);
    }

    fn take(&self, _server_name: &str) -> Option<Bytes> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A prepared connection.
pub(crate) struct Prepared {
    pub(crate) ssl: Ssl,
    pub(crate) sessions: quic_support::SessionInbox,
    /// The server's transport parameters on the connection that is resumed.
    pub(crate) parameters: Option<TransportParameters>,
}

/// Created by [`ClientCrypto::for_connection`].
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
        let offer = ConnectOptions { host: self.host.clone(), session: None, early_data: false };
        let (ssl, sessions) = quic_support::client_connection(&self.crypto.context, &offer)?;
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
        // The certificate is verified for the name passed to `for_connection`.
        if server_name != self.host {
            return Err(ConnectError::InvalidServerName(server_name.to_owned()));
        }
        let prepared =
            self.prepared().map_err(|error| ConnectError::InvalidServerName(error.to_string()))?;
        let log = self.crypto.key_log.clone();
        let session = ClientSession::new(prepared, params, self.inbox.clone(), log)
            .map_err(|error| ConnectError::InvalidServerName(error.to_string()))?;
        Ok(Box::new(session))
    }
}
