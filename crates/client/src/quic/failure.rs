use std::net::SocketAddr;

use firstflight_units::{printable, printable_bytes};
use h3::error::{Code, StreamError};
use quinn::{ConnectionError, TransportErrorCode};

use crate::ClientError;

/// Maps the error that ended a connection during its handshake.
pub(super) fn handshake_error(error: &ConnectionError, address: SocketAddr) -> ClientError {
    match error {
        ConnectionError::TransportError(local) => match tls_alert(u64::from(local.code)) {
            Some(alert) => ClientError::QuicTls {
                sentence: local.reason.clone(),
                certificate: is_about_certificates(alert),
            },
            None => connection_failed(address, local.to_string()),
        },
        ConnectionError::ConnectionClosed(close)
            if close.error_code == TransportErrorCode::APPLICATION_ERROR =>
        {
            connection_failed(
                address,
                "the server closed the connection during the handshake".to_owned(),
            )
        }
        ConnectionError::ConnectionClosed(close) => match tls_alert(u64::from(close.error_code)) {
            Some(alert) => ClientError::QuicTls {
                sentence: format!(
                    "the server ended the handshake with alert {alert}{}",
                    reason(&close.reason)
                ),
                certificate: false,
            },
            None => connection_failed(address, close.to_string()),
        },
        ConnectionError::TimedOut => connection_failed(address, "no response over UDP".to_owned()),
        other => connection_failed(address, other.to_string()),
    }
}

/// Maps the error that ended a connection after its handshake; `response_started`: whether part of
/// the response was received.
pub(super) fn transfer_error(error: &ConnectionError, response_started: bool) -> ClientError {
    match error {
        ConnectionError::ApplicationClosed(close)
            if u64::from(close.error_code) == Code::H3_NO_ERROR.value() =>
        {
            match response_started {
                true => ClientError::PartialBody { missing: "before the end" },
                false => ClientError::EmptyReply,
            }
        }
        ConnectionError::ApplicationClosed(close) => ClientError::Http3(format!(
            "the server closed the connection with {}{}",
            code_name(u64::from(close.error_code)),
            reason(&close.reason)
        )),
        ConnectionError::ConnectionClosed(close) => ClientError::Receive(format!(
            "the server closed the connection: {}{}",
            close.error_code,
            reason(&close.reason)
        )),
        ConnectionError::TimedOut => {
            ClientError::Receive("no packet from the server for 30 s".to_owned())
        }
        ConnectionError::Reset => {
            ClientError::Receive("the server no longer knows the connection".to_owned())
        }
        other => ClientError::Receive(printable(&other.to_string()).into_owned()),
    }
}

/// Maps the failure of a request on a connection that stays open.
pub(super) fn request_error(error: &StreamError) -> ClientError {
    ClientError::Http3(match error {
        StreamError::RemoteTerminate { code, .. } => {
            format!("the server reset the request: {code}")
        }
        StreamError::RemoteClosing { .. } => {
            "the server accepts no further requests (GOAWAY)".to_owned()
        }
        StreamError::HeaderTooBig { actual_size, max_size, .. } => {
            format!("a head of {actual_size} bytes is larger than {max_size}")
        }
        StreamError::StreamError { code, reason, .. } => format!("{code}: {reason}"),
        other => other.to_string(),
    })
}

/// Returns whether the server reports that it did not start to process the request, so that it may
/// be sent again on another connection (RFC 9114 sections 4.1.1 and 5.2).
pub(super) fn is_unprocessed(error: &StreamError) -> bool {
    match error {
        StreamError::RemoteClosing { .. } => true,
        StreamError::RemoteTerminate { code, .. } => *code == Code::H3_REQUEST_REJECTED,
        _ => false,
    }
}

/// Escapes the reason, which may come from a server that is not authenticated yet.
fn connection_failed(address: SocketAddr, reason: String) -> ClientError {
    ClientError::Quic { address, reason: printable(&reason).into_owned() }
}

/// RFC 9001 section 4.8: alerts are the errors 0x100 to 0x1ff.
fn tls_alert(code: u64) -> Option<u8> {
    (0x100..0x200).contains(&code).then_some(code as u8)
}

/// RFC 8446 section 6.2, `bad_certificate` to `certificate_unknown`, and `unknown_ca`.
fn is_about_certificates(alert: u8) -> bool {
    matches!(alert, 42..=46 | 48)
}

fn code_name(code: u64) -> String {
    Code::from(code).to_string()
}

fn reason(bytes: &[u8]) -> String {
    match bytes {
        [] => String::new(),
        bytes => format!(" ({})", printable_bytes(bytes)),
    }
}
