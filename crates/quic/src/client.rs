use std::sync::{Arc, Mutex, PoisonError};

use boring::ssl::SslContext;
use firstflight_tls::{ConnectOptions, ConnectorConfig, KeyLog, TlsError, Version, quic_support};
use quinn_proto::crypto;
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectError, Side, TokenStore};

use crate::client_session::ClientSession;
use crate::initial::VERSION_1;
use crate::resumption::{Prepared, Remembered, ResumptionInbox, Tokens};
use crate::{method, session};

/// The crypto configuration that all connections of a client share.
///
/// quinn's `Connection::handshake_data` returns a [`Handshake`](crate::Handshake) in a `Box<dyn Any>`.
pub struct ClientCrypto {
    context: SslContext,
    key_log: Option<Arc<dyn KeyLog>>,
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
