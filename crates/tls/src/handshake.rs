use boring::ssl::SslRef;
use boring_sys as ffi;
use foreign_types::ForeignTypeRef;

use crate::{EarlyData, EarlyDataReason, OfferedFlight, Version, offer, ticket, trust};

/// What a handshake negotiated, as far as it has come.
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
    /// The server's name as the client gave it (SNI); on the server only.
    pub server_name: Option<String>,
    /// Whether a session was resumed.
    pub resumed: bool,
    /// The authority that the server's certificate was trusted for, by its common name; on a
    /// client only. `None` where nobody was asked: a session was resumed, or anybody is trusted.
    pub authority: Option<String>,
    /// What became of early data.
    pub early_data: EarlyData,
    /// Why.
    pub early_data_reason: EarlyDataReason,
    /// The flight with which the client's first ClientHello offered early data; on the server only.
    pub offered_flight: Option<OfferedFlight>,
    /// The ticket age that the client states less the one that the server reckons, in seconds
    /// (RFC 8446 section 8.3); 0 where nothing was resumed. On the server only.
    pub ticket_age_skew: i32,
    /// The client random of the ClientHello.
    pub client_random: [u8; 32],
    /// Whether the server sent a HelloRetryRequest.
    pub hello_retry_request: bool,
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
            authority: trust::anchor(ssl),
            early_data,
            early_data_reason: reason,
            offered_flight: offer::flight(ssl),
            ticket_age_skew: skew,
            client_random,
            hello_retry_request: retried,
            complete: ssl.is_init_finished(),
        }
    }
}

/// Why early data was accepted or not, on either role.
pub(crate) fn reason(ssl: &SslRef) -> EarlyDataReason {
    // SAFETY: the pointer is valid while `ssl` is, and the call only reads.
    let reason = unsafe { ffi::SSL_get_early_data_reason(ssl.as_ptr()) };
    ticket::explain(ssl, EarlyDataReason::from_ffi(reason))
}

/// What became of early data on a server.
pub(crate) fn server_early_data(ssl: &SslRef, reason: EarlyDataReason) -> EarlyData {
    // SAFETY: the pointer is valid while `ssl` is, and the call only reads.
    let accepted = unsafe { ffi::SSL_early_data_accepted(ssl.as_ptr()) == 1 };
    match reason {
        _ if accepted => EarlyData::Accepted,
        EarlyDataReason::NoSessionOffered
        | EarlyDataReason::PeerDeclined
        | EarlyDataReason::Unknown
        | EarlyDataReason::ProtocolVersion => EarlyData::NotOffered,
        // The library does not say whether a client that it turned down for another reason had
        // offered early data or only the session; both are `Refused` here.
        _ => EarlyData::Refused,
    }
}
