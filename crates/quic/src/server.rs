use std::sync::{Arc, PoisonError, RwLock};

use boring::ssl::{Ssl, SslContext};
use boring_sys as ffi;
use firstflight_tls::{
    AcceptorConfig, Handshake, KeyLog, OpenedTicket, TicketSealer, TlsError, Version, quic_support,
};
use foreign_types::ForeignType;
use quinn_proto::Side;

use crate::client_hello::Offer;
use crate::initial::RecentInitials;
use crate::method;
use crate::session::{Handshaking, Step};

/// The crypto configuration that all connections of a server share. Used directly as a
/// `crypto::ServerConfig`, its connections refuse early data; [`ServerCrypto::for_connection`]
/// creates one that may accept it.
///
/// quinn's `Connection::handshake_data` returns a [`Handshake`] in a `Box<dyn Any>`.
pub struct ServerCrypto {
    context: SslContext,
    pub(crate) early_data: bool,
    sealer: Option<Arc<dyn TicketSealer>>,
    /// Settings of the application protocol that early data depends on.
    pub(crate) settings: Vec<u8>,
    pub(crate) key_log: Option<Arc<dyn KeyLog>>,
    /// The early-data context of the newest connection. It is the same for all connections with the
    /// same quinn configuration.
    early_data_context: RwLock<Option<Vec<u8>>>,
    pub(crate) recent_initials: RecentInitials,
}

/// The outcome of [`ServerCrypto::preview`].
#[derive(Clone, Debug)]
pub enum FirstFlightPreview {
    /// No decision is needed: the client offers no early data, TLS itself would refuse it, or the
    /// bytes are not the ClientHello of a resumption.
    Nothing,
    /// The ticket's session has to be looked up by this key. Then call the method again.
    NeedsSession(Vec<u8>),
    /// TLS would accept early data.
    EarlyData(Box<Handshake>),
}

impl ServerCrypto {
    /// Creates the configuration. Only TLS 1.3 is used, whatever versions `config` has. Its sealer
    /// should be for QUIC only, since QUIC tickets do not resume TCP connections.
    ///
    /// # Errors
    /// [`TlsError`] naming the setting that BoringSSL rejects.
    pub fn new(config: AcceptorConfig) -> Result<Arc<Self>, TlsError> {
        Self::with_settings(config, &[])
    }

    /// Creates a configuration whose early data depends on these settings of the application
    /// protocol: a ticket that was issued under other settings is resumed without early data (RFC 9114
    /// section 7.2.4.2).
    ///
    /// # Errors
    /// As [`ServerCrypto::new`].
    pub fn with_settings(
        mut config: AcceptorConfig,
        settings: &[u8],
    ) -> Result<Arc<Self>, TlsError> {
        config.min_version = Version::Tls13;
        config.max_version = Version::Tls13;
        let key_log = config.key_log.take();
        let sealer = config.sealer.clone();
        let (context, early_data) = quic_support::server_context(config, |context| {
            method::install(context, key_log.as_ref())
        })?;
        Ok(Arc::new(Self {
            context,
            early_data,
            sealer,
            settings: settings.to_vec(),
            key_log,
            early_data_context: RwLock::default(),
            recent_initials: RecentInitials::default(),
        }))
    }

    /// Processes a ClientHello (the message from CRYPTO frames) on a temporary connection, to learn
    /// whether TLS would accept its early data. Cheap unless the message offers early data with a
    /// valid ticket.
    ///
    /// Before the first connection, the server's transport parameters are not known, so the ticket's
    /// are used. The actual connection always compares them.
    ///
    /// # Errors
    /// Returns [`TlsError::Setup`] if there is no memory.
    pub fn preview(
        &self,
        client_hello: &[u8],
        session: Option<OpenedTicket>,
    ) -> Result<FirstFlightPreview, TlsError> {
        let Some(sealer) = &self.sealer else { return Ok(FirstFlightPreview::Nothing) };
        let Some(offer) = Offer::read(client_hello) else { return Ok(FirstFlightPreview::Nothing) };
        let opened = session.unwrap_or_else(|| sealer.open(offer.ticket));
        let found = match &opened {
            OpenedTicket::Session(found) | OpenedTicket::UsedUp(found) => found,
            OpenedTicket::NeedsLookup(key) => {
                return Ok(FirstFlightPreview::NeedsSession(key.clone()));
            }
            OpenedTicket::WithoutEarlyData(..)
            | OpenedTicket::AlreadyUsed
            | OpenedTicket::Ignored => {
                return Ok(FirstFlightPreview::Nothing);
            }
        };
        if !self.early_data || !offer.early_data {
            return Ok(FirstFlightPreview::Nothing);
        }
        let known = self.early_data_context.read().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(context) =
            known.or_else(|| quic_support::early_data_context(found).map(<[u8]>::to_vec))
        else {
            return Ok(FirstFlightPreview::Nothing);
        };
        let mut ssl = self.connection(&context)?;
        quic_support::provide_session(&mut ssl, OpenedTicket::Session(found.clone()));
        // These parameters are never sent; BoringSSL requires some.
        let mut tls = Handshaking::new(ssl, Side::Server, &[0], None);
        let tried = tls.provide(client_hello).and_then(|()| tls.advance());
        match tried {
            Ok(Step::Done) if tls.in_early_data() => Ok(FirstFlightPreview::EarlyData(Box::new(
                quic_support::server_handshake(&tls.ssl),
            ))),
            _ => Ok(FirstFlightPreview::Nothing),
        }
    }

    pub(crate) fn uses_up_tickets(&self) -> bool {
        self.sealer.as_ref().is_some_and(|sealer| sealer.uses_up_tickets())
    }

    /// Creates a connection with this early-data context.
    pub(crate) fn connection(&self, early_data_context: &[u8]) -> Result<Ssl, TlsError> {
        let failed = |what| TlsError::Setup { what, reason: "no memory".to_owned() };
        let ssl = Ssl::new(&self.context).map_err(|_| failed("a new connection"))?;
        // SAFETY: the connection is valid, the context is readable and copied.
        let done = unsafe {
            ffi::SSL_set_quic_early_data_context(
                ssl.as_ptr(),
                early_data_context.as_ptr(),
                early_data_context.len(),
            )
        };
        if done == 1 { Ok(ssl) } else { Err(failed("the early-data context")) }
    }

    /// Stores the early-data context of the newest connection.
    pub(crate) fn remember_context(&self, context: &[u8]) {
        let known = self.early_data_context.read().unwrap_or_else(PoisonError::into_inner);
        if known.as_deref() == Some(context) {
            return;
        }
        drop(known);
        let mut known = self.early_data_context.write().unwrap_or_else(PoisonError::into_inner);
        *known = Some(context.to_vec());
    }
}
