use std::fmt;
use std::time::Duration;

use boring_sys as ffi;

use crate::Withheld;

/// The most early data that our server takes in one flight, in bytes of plaintext (a constant of
/// BoringSSL, sent as `max_early_data_size` in each ticket, RFC 8446 section 4.6.1).
pub const MAX_EARLY_DATA: usize = 14_336;

/// The ticket-age skew beyond which BoringSSL refuses early data, either way.
pub const MAX_TICKET_AGE_SKEW: Duration = Duration::from_secs(60);

/// What became of early data on a connection, as seen by either role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlyData {
    /// None was offered.
    NotOffered,
    /// Offered; the server's response is not here yet.
    Pending,
    /// Taken by the server.
    Accepted,
    /// Turned down by the server; what was sent has to be sent again after the handshake.
    Refused,
}

/// Why early data was accepted or not, in the library's own terms
/// (`SSL_get_early_data_reason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlyDataReason {
    /// The handshake has not come far enough.
    Unknown,
    /// Switched off for this connection.
    Disabled,
    /// Switched off by the ticket's sealer ([`crate::OpenedTicket::WithoutEarlyData`]).
    Withheld(Withheld),
    /// Accepted.
    Accepted,
    /// The negotiated version has none.
    ProtocolVersion,
    /// The peer declined to offer or to accept it.
    PeerDeclined,
    /// The client offered no session.
    NoSessionOffered,
    /// The server did not resume the session (its ticket key is gone, or the ticket expired).
    SessionNotResumed,
    /// The session was issued without early data.
    UnsupportedForSession,
    /// The server asked for another key share.
    HelloRetryRequest,
    /// The application protocol is not the session's.
    AlpnMismatch,
    /// The ticket's age differs by more than [`MAX_TICKET_AGE_SKEW`] from what the server reckons.
    TicketAgeSkew,
    /// The session was issued under other limits or settings, over QUIC (RFC 9000 section 7.4.1).
    QuicParameters,
    /// Any other reason of the library (ALPS, channel id).
    Other,
}

impl EarlyDataReason {
    /// The reason as a word for logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Disabled => "disabled",
            Self::Withheld(_) => "withheld",
            Self::Accepted => "accepted",
            Self::ProtocolVersion => "protocol_version",
            Self::PeerDeclined => "peer_declined",
            Self::NoSessionOffered => "no_session_offered",
            Self::SessionNotResumed => "session_not_resumed",
            Self::UnsupportedForSession => "unsupported_for_session",
            Self::HelloRetryRequest => "hello_retry_request",
            Self::AlpnMismatch => "alpn_mismatch",
            Self::TicketAgeSkew => "ticket_age_skew",
            Self::QuicParameters => "quic_parameters",
            Self::Other => "other",
        }
    }

    pub(crate) fn from_ffi(reason: ffi::ssl_early_data_reason_t) -> Self {
        use ffi::ssl_early_data_reason_t as R;
        match reason {
            R::ssl_early_data_unknown => Self::Unknown,
            R::ssl_early_data_disabled => Self::Disabled,
            R::ssl_early_data_accepted => Self::Accepted,
            R::ssl_early_data_protocol_version => Self::ProtocolVersion,
            R::ssl_early_data_peer_declined => Self::PeerDeclined,
            R::ssl_early_data_no_session_offered => Self::NoSessionOffered,
            R::ssl_early_data_session_not_resumed => Self::SessionNotResumed,
            R::ssl_early_data_unsupported_for_session => Self::UnsupportedForSession,
            R::ssl_early_data_hello_retry_request => Self::HelloRetryRequest,
            R::ssl_early_data_alpn_mismatch => Self::AlpnMismatch,
            R::ssl_early_data_ticket_age_skew => Self::TicketAgeSkew,
            R::ssl_early_data_quic_parameter_mismatch => Self::QuicParameters,
            _ => Self::Other,
        }
    }
}

impl fmt::Display for EarlyDataReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
