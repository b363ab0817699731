use std::sync::Arc;

use firstflight_tls::{AcceptorConfig, Handshake, OpenedTicket, TlsError};
use quinn_proto::crypto;

/// What every connection of a server has in common. By itself it is a `crypto::ServerConfig` whose
/// connections refuse early data; [`ServerCrypto::for_connection`] gives one that may accept it.
///
/// quinn's `Connection::handshake_data` gives a [`Handshake`], in a `Box<dyn Any>`.
pub struct ServerCrypto;

/// Whether a connection's early data is accepted, asked once, after TLS would accept it (the
/// ticket opened, its binder verified, its age within the library's bounds) and before anything is
/// sent. False: the handshake goes on from the same ClientHello with early data refused.
pub type EarlyDataJudge = Box<dyn FnOnce(&Handshake) -> bool + Send + Sync>;

/// What would become of a first flight.
#[derive(Clone, Debug)]
pub enum Rehearsal {
    /// Nothing that needs a decision: no early data offered, or TLS itself would refuse it, or the
    /// bytes are no ClientHello of a resumption.
    Nothing,
    /// The ticket's session lies elsewhere: fetch it by these words and rehearse again.
    NeedsSession(Vec<u8>),
    /// TLS would accept early data.
    EarlyData(Box<Handshake>),
}

impl ServerCrypto {
    /// TLS 1.3 alone, whatever the configuration's versions are. Its sealer should seal QUIC's
    /// tickets alone: they do not resume a connection over TCP.
    ///
    /// # Errors
    /// [`TlsError`] with the setting that the library does not take.
    pub fn new(_config: AcceptorConfig) -> Result<Arc<Self>, TlsError> {
        unimplemented!()
    }

    /// For one connection, whose early data `judge` decides about. `session`: the one that was
    /// fetched for it, where [`Rehearsal::NeedsSession`] asked for one.
    pub fn for_connection(
        self: &Arc<Self>,
        _judge: EarlyDataJudge,
        _session: Option<OpenedTicket>,
    ) -> Arc<dyn crypto::ServerConfig> {
        unimplemented!()
    }

    /// What TLS would do with this ClientHello (the message, as CRYPTO frames have it), tried on a
    /// connection that is thrown away. Cheap unless the message offers early data with a ticket of
    /// ours.
    ///
    /// # Errors
    /// [`TlsError::Setup`] when there is no memory.
    pub fn rehearse(
        &self,
        _client_hello: &[u8],
        _session: Option<OpenedTicket>,
    ) -> Result<Rehearsal, TlsError> {
        unimplemented!()
    }
}
