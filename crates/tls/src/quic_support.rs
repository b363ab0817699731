//! The parts of TLS that TCP and QUIC share. Only `firstflight-quic`, which has its own record
//! layer, may use this module: it exposes BoringSSL's types.

use boring::error::ErrorStack;
use boring::ssl::SslRef;

pub use crate::acceptor::server_context;
pub use crate::connector::{client_connection, client_context};
pub use crate::session::SessionInbox;
pub use crate::session::early_data_context;
pub use crate::ticket::{
    decide_early_data_of_tickets, decline_early_data, forget_session, issue_second_ticket,
    provide_session, provided_session, take_needed_session, use_up,
};
use crate::{EarlyData, EarlyDataReason, Handshake, TlsError, connection, handshake};

/// What a server's connection has negotiated so far.
pub fn server_handshake(ssl: &SslRef) -> Handshake {
    Handshake::of_server(ssl)
}

/// What a client's connection has negotiated so far. The caller tracks its early data.
pub fn client_handshake(ssl: &SslRef, early_data: EarlyData, reason: EarlyDataReason) -> Handshake {
    Handshake::read(ssl, early_data, reason)
}

/// Why early data was accepted or refused, as far as is known.
pub fn early_data_reason(ssl: &SslRef) -> EarlyDataReason {
    handshake::reason(ssl)
}

/// Converts BoringSSL's error stack for this connection.
pub fn tls_error(ssl: &SslRef, stack: &ErrorStack) -> TlsError {
    connection::failure(ssl, stack, ssl.is_init_finished())
}
