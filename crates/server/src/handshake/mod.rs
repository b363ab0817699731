//! TLS up to early data accepted or refused, over TCP and over QUIC; tickets and address tokens.

pub(crate) mod initials;
pub(crate) mod quic;
pub(crate) mod quic_config;
pub(crate) mod tcp;
pub(crate) mod tickets;

use std::sync::Arc;

use firstflight_quic::AddressTokens;
use firstflight_telemetry::metrics::RefusedReason;
use firstflight_tls::{EarlyDataReason, Handshake, WithheldReason};

use self::tickets::TicketRing;
use crate::gate::Refused;
use crate::http::Shared;

/// What all handshakes share, as long as the process lives.
pub(crate) struct Handshakes {
    pub(crate) shared: Arc<Shared>,
    pub(crate) ring: Arc<TicketRing>,
    pub(crate) tokens: AddressTokens,
}

/// Why early data was not accepted; `None`: it was. `refused`: what was decided here, which TLS
/// may not have come to ask.
pub(crate) fn refusal(facts: &Handshake, refused: Option<Refused>) -> Option<RefusedReason> {
    use EarlyDataReason as Reason;
    Some(match (refused, facts.early_data_reason) {
        // Not resumed for the store's sake: a single-use ticket's session was not to be had.
        (Some(refused), Reason::Disabled | Reason::Withheld(_) | Reason::SessionNotResumed) => {
            refused.reason()
        }
        (_, Reason::Accepted) => return None,
        (_, Reason::Unknown) => RefusedReason::Unknown,
        (_, Reason::Disabled) => RefusedReason::Disabled,
        (_, Reason::Withheld(WithheldReason::Zone)) => RefusedReason::Zone,
        (_, Reason::Withheld(WithheldReason::Epoch)) => RefusedReason::TicketEpoch,
        (_, Reason::Withheld(WithheldReason::Store)) => RefusedReason::StoreWindow,
        (_, Reason::ProtocolVersion) => RefusedReason::ProtocolVersion,
        (_, Reason::PeerDeclined) => RefusedReason::PeerDeclined,
        (_, Reason::NoSessionOffered) => RefusedReason::NoSessionOffered,
        (_, Reason::SessionNotResumed) => RefusedReason::SessionNotResumed,
        (_, Reason::UnsupportedForSession) => RefusedReason::UnsupportedForSession,
        (_, Reason::HelloRetryRequest) => RefusedReason::HelloRetryRequest,
        (_, Reason::AlpnMismatch) => RefusedReason::AlpnMismatch,
        (_, Reason::TicketAgeSkew) => RefusedReason::TicketAgeSkew,
        (_, Reason::QuicParameters) => RefusedReason::QuicParameters,
        (_, Reason::Other) => RefusedReason::Other,
    })
}
