//! What TLS over TCP and TLS over QUIC have in common, below the record layer: for
//! `firstflight-quic`, which brings a record layer of its own. It speaks the library's types; other
//! crates have no use for it.

use boring::error::ErrorStack;
use boring::ssl::SslRef;

pub use crate::acceptor::server_context;
pub use crate::connector::{Inbox, client_connection, client_context};
pub use crate::session_der::early_data_context;
pub use crate::ticket::{decline, needed, provide};
use crate::{EarlyData, EarlyDataReason, Handshake, TlsError, handshake, machine};

/// What a server's connection has negotiated so far.
pub fn server_facts(ssl: &SslRef) -> Handshake {
    Handshake::of_server(ssl)
}

/// What a client's connection has negotiated so far; what became of its early data only its owner
/// knows.
pub fn client_facts(ssl: &SslRef, early_data: EarlyData, reason: EarlyDataReason) -> Handshake {
    Handshake::read(ssl, early_data, reason)
}

/// Why early data was accepted or not, so far.
pub fn early_data_reason(ssl: &SslRef) -> EarlyDataReason {
    handshake::reason(ssl)
}

/// What an error of the library means on this connection.
pub fn failure(ssl: &SslRef, stack: &ErrorStack) -> TlsError {
    machine::failure(ssl, stack, ssl.is_init_finished())
}
