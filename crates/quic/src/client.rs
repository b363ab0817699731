use std::sync::Arc;

use bytes::Bytes;
use firstflight_tls::{ConnectorConfig, Session, TlsError};
use quinn_proto::crypto;

/// What every connection of a client has in common.
pub struct ClientCrypto;

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
pub struct ResumptionInbox;

impl ResumptionInbox {
    /// The tickets that came since the last call.
    pub fn take_resumptions(&self) -> Vec<Resumption> {
        unimplemented!()
    }

    /// The address tokens that came since the last call.
    pub fn take_tokens(&self) -> Vec<Bytes> {
        unimplemented!()
    }
}

impl ClientCrypto {
    /// TLS 1.3 alone, whatever the configuration's versions are.
    ///
    /// # Errors
    /// [`TlsError`] as [`firstflight_tls::Connector::new`].
    pub fn new(_config: ConnectorConfig) -> Result<Arc<Self>, TlsError> {
        unimplemented!()
    }

    /// quinn's cryptography and token store for one connection to `host` (a name or an address; it
    /// is also the server name to give to quinn), and where its tickets will be.
    ///
    /// # Errors
    /// [`TlsError::BadHost`], or [`TlsError::BadSession`] when the session cannot be used here.
    #[allow(clippy::type_complexity)]
    pub fn for_connection(
        self: &Arc<Self>,
        _host: &str,
        _remembered: Remembered,
    ) -> Result<
        (Arc<dyn crypto::ClientConfig>, Arc<dyn quinn_proto::TokenStore>, ResumptionInbox),
        TlsError,
    > {
        unimplemented!()
    }
}
