use std::net::SocketAddr;

use firstflight_units::{printable, printable_bytes};
use h3::error::{Code, StreamError};
use quinn::{ConnectionError, TransportErrorCode};

use crate::ClientError;

/// Returns what the end of a connection means during its handshake.
pub(super) fn in_handshake(error: &ConnectionError, address: SocketAddr) -> ClientError {
    match error {
        ConnectionError::TransportError(ours) => match tls_alert(u64::from(ours.code)) {
            Some(alert) => ClientError::QuicTls {
                sentence: ours.reason.clone(),
                certificate: is_about_certificates(alert),
            },
            None => failed(address, ours.to_string()),
        },
        ConnectionError::ConnectionClosed(theirs)
            if theirs.error_code == TransportErrorCode::APPLICATION_ERROR =>
        {
            failed(address, "the server closed the connection during the handshake".to_owned())
        }
        ConnectionError::ConnectionClosed(theirs) => {
            match tls_alert(u64::from(theirs.error_code)) {
                Some(alert) => ClientError::QuicTls {
                    sentence: format!(
                        "the server ended the handshake with alert {alert}{}",
                        reason(&theirs.reason)
                    ),
                    certificate: false,
                },
                None => failed(address, theirs.to_string()),
            }
        }
        ConnectionError::TimedOut => failed(address, "no response over UDP".to_owned()),
        other => failed(address, other.to_string()),
    }
}

/// Returns what the end of a connection means after the handshake; `response_started`: whether part
/// of the response was received.
pub(super) fn in_transfer(error: &ConnectionError, response_started: bool) -> ClientError {
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
            named(u64::from(close.error_code)),
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

/// Returns what the failure of a request means if the connection continues.
pub(super) fn of_request(error: &StreamError) -> ClientError {
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

/// The reason may come from the server, which is not authenticated yet.
fn failed(address: SocketAddr, reason: String) -> ClientError {
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

fn named(code: u64) -> String {
    Code::from(code).to_string()
}

fn reason(bytes: &[u8]) -> String {
    match bytes {
        [] => String::new(),
        bytes => format!(" ({})", printable_bytes(bytes)),
    }
}
