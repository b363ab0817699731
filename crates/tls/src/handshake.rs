//! What a handshake negotiated, and whether early data was accepted.

use std::fmt;
use std::time::Duration;

use boring::ssl::SslRef;
use boring_sys as ffi;
use foreign_types::ForeignTypeRef;

use crate::{OfferedFlight, Version, WithheldReason, offered_flight, ticket, trust};

/// What a handshake has negotiated so far.
#[derive(Clone, Debug)]
pub struct Handshake {
    /// The version.
    pub version: Option<Version>,
    /// The cipher suite by its IANA name.
    pub cipher: Option<&'static str>,
    /// The group of the key exchange; `None` before TLS 1.3 without (EC)DHE.
    pub group: Option<&'static str>,
    /// The application protocol (ALPN).
    pub alpn: Option<Vec<u8>>,
    /// The server name that the client sent (SNI); on the server only.
    pub server_name: Option<String>,
    /// Whether a session was resumed.
    pub resumed: bool,
    /// The common name of the authority under which the server's certificate was verified; on a
    /// client only. `None` if nothing was verified: a session was resumed, or verification is off.
    pub authority: Option<String>,
    /// Whether early data was accepted.
    pub early_data: EarlyData,
    /// Why early data was accepted or refused.
    pub early_data_reason: EarlyDataReason,
    /// The first flight, if the client's first ClientHello offered early data; on the server only.
    pub offered_flight: Option<OfferedFlight>,
    /// The ticket age stated by the client minus the one measured by the server, in seconds (RFC
    /// 8446 section 8.3). 0 if nothing was resumed. On the server only.
    pub ticket_age_skew: i32,
    /// Whether this connection has used up the client's ticket
    /// ([`OpenedTicket::UsedUp`](crate::OpenedTicket::UsedUp)), so that no other connection can resume
    /// its session or accept its early data. On the server only.
    pub ticket_used_up: bool,
    /// The lookup key of the ticket's session, if it was not looked up: over QUIC the handshake
    /// does not wait for a lookup. On the server only.
    pub needed_session: Option<Vec<u8>>,
    /// The client random of the ClientHello.
    pub client_random: [u8; 32],
    /// Whether the server sent a HelloRetryRequest.
    pub hello_retry_request: bool,
    /// Whether the ClientHello was encrypted and the server could decrypt it (RFC 9849).
    pub ech_accepted: bool,
    /// Whether the handshake is complete: the peer's Finished has been verified.
    pub complete: bool,
}

impl Handshake {
    /// What a server's connection has negotiated so far.
    pub(crate) fn of_server(ssl: &SslRef) -> Self {
        let reason = reason(ssl);
        Self::read(ssl, server_early_data(ssl, reason), reason)
    }

    pub(crate) fn read(ssl: &SslRef, early_data: EarlyData, reason: EarlyDataReason) -> Self {
        let mut client_random = [0; 32];
        ssl.client_random(&mut client_random);
        // SAFETY: the pointer is valid while `ssl` is, and these calls only read.
        let (skew, retried) = unsafe {
            (
                ffi::SSL_get_ticket_age_skew(ssl.as_ptr()),
                ffi::SSL_used_hello_retry_request(ssl.as_ptr()) == 1,
            )
        };
        Self {
            version: ssl.version2().and_then(Version::from_boring),
            cipher: ssl.current_cipher().and_then(|cipher| cipher.standard_name()),
            group: ssl.curve_name(),
            alpn: ssl.selected_alpn_protocol().map(<[u8]>::to_vec),
            server_name: ssl.servername(boring::ssl::NameType::HOST_NAME).map(str::to_owned),
            resumed: ssl.session_reused(),
            authority: trust::trust_anchor(ssl),
            early_data,
            early_data_reason: reason,
            offered_flight: offered_flight::offered_flight(ssl),
            ticket_age_skew: skew,
            ticket_used_up: ticket::is_used_up(ssl),
            needed_session: ticket::needed_session(ssl),
            client_random,
            hello_retry_request: retried,
            ech_accepted: ssl.ech_accepted(),
            complete: ssl.is_init_finished(),
        }
    }
}

/// Why early data was accepted or refused, in either role.
pub(crate) fn reason(ssl: &SslRef) -> EarlyDataReason {
    // SAFETY: the pointer is valid while `ssl` is, and the call only reads.
    let reason = unsafe { ffi::SSL_get_early_data_reason(ssl.as_ptr()) };
    ticket::refine_reason(ssl, EarlyDataReason::from_ffi(reason))
}

/// Whether a server has accepted early data.
pub(crate) fn server_early_data(ssl: &SslRef, reason: EarlyDataReason) -> EarlyData {
    // SAFETY: the pointer is valid while `ssl` is, and the call only reads.
    let accepted = unsafe { ffi::SSL_early_data_accepted(ssl.as_ptr()) == 1 };
    match reason {
        _ if accepted => EarlyData::Accepted,
        EarlyDataReason::NoSessionOffered
        | EarlyDataReason::PeerDeclined
        | EarlyDataReason::Unknown
        | EarlyDataReason::ProtocolVersion => EarlyData::NotOffered,
        // For the other reasons BoringSSL does not tell whether the client offered early data or
        // only the session. Both are `Refused` here.
        _ => EarlyData::Refused,
    }
}

/// The most early data that a server accepts in one flight, in bytes of plaintext: a constant of
/// BoringSSL, sent as `max_early_data_size` in each ticket (RFC 8446 section 4.6.1).
pub const MAX_EARLY_DATA: usize = 14_336;

/// The ticket-age skew beyond which BoringSSL refuses early data, in either direction.
pub const MAX_TICKET_AGE_SKEW: Duration = Duration::from_secs(60);

/// Whether early data was offered and accepted, as seen by either role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlyData {
    /// None was offered.
    NotOffered,
    /// Offered; the server has not decided yet.
    Pending,
    /// Accepted by the server.
    Accepted,
    /// Refused by the server. The client has to send it again after the handshake.
    Refused,
}

/// Why early data was accepted or refused (BoringSSL's `SSL_get_early_data_reason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlyDataReason {
    /// Not known yet.
    Unknown,
    /// Switched off for this connection.
    Disabled,
    /// Switched off by the ticket's sealer ([`crate::OpenedTicket::WithoutEarlyData`]).
    Withheld(WithheldReason),
    /// Accepted.
    Accepted,
    /// The negotiated version has no early data.
    ProtocolVersion,
    /// The peer did not offer it, or did not accept it.
    PeerDeclined,
    /// The client offered no session.
    NoSessionOffered,
    /// The server did not resume the session (its ticket key was dropped, or the ticket expired).
    SessionNotResumed,
    /// The server did not resume the session, because its ticket was used before
    /// ([`crate::OpenedTicket::AlreadyUsed`]).
    TicketUsed,
    /// The session was issued without early data.
    UnsupportedForSession,
    /// The server requested another key share.
    HelloRetryRequest,
    /// The application protocol is not that of the session.
    AlpnMismatch,
    /// The ticket-age skew is greater than [`MAX_TICKET_AGE_SKEW`].
    TicketAgeSkew,
    /// Over QUIC: the session was issued under other limits or settings (RFC 9000 section 7.4.1).
    QuicParameters,
    /// Any other reason (ALPS, channel id).
    Other,
}

impl EarlyDataReason {
    /// The reason's name in logs and metrics.
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
            Self::TicketUsed => "ticket_used",
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
