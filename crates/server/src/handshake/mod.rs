//! TLS handshakes over TCP and QUIC, up to the decision about early data. Tickets and address
//! tokens.

pub(crate) mod initials;
pub(crate) mod quic;
pub(crate) mod quic_config;
pub(crate) mod tcp;
pub(crate) mod tickets;

use std::sync::Arc;

use firstflight_quic::AddressTokens;
use firstflight_telemetry::metrics::RefusedReason;
use firstflight_tls::{EarlyDataReason, Handshake, WithheldReason};

use self::tickets::punctured::open_handed_over;
use self::tickets::{RedeemedTicket, TicketRing};
use crate::gate::EarlyDataRefusal;
use crate::http::ServerContext;

/// State that all handshakes share.
pub(crate) struct Handshakes {
    pub(crate) shared: Arc<ServerContext>,
    pub(crate) ring: Arc<TicketRing>,
    pub(crate) tokens: AddressTokens,
}

impl Handshakes {
    /// Finds the session of a ticket that [`NeedsLookup`](firstflight_tls::OpenedTicket::NeedsLookup) refers to by `key`: in the store
    /// (a single-use ticket), or at this process's successor (a punctured one).
    pub(crate) async fn redeem(&self, key: &[u8]) -> RedeemedTicket {
        match self.ring.punctured() {
            Some(tickets) => RedeemedTicket {
                session: open_handed_over(tickets, &self.shared.gate, key).await,
                withheld: None,
            },
            None => self.ring.redeem(key).await,
        }
    }
}

/// Why early data was refused. Returns `None` if it was accepted. `refused`: this server's
/// decision, which TLS may not have applied.
pub(crate) fn refusal(
    facts: &Handshake,
    refused: Option<EarlyDataRefusal>,
) -> Option<RefusedReason> {
    use EarlyDataReason as Reason;
    Some(match (refused, facts.early_data_reason) {
        // A single-use ticket whose session the store did not return looks like one that was not
        // resumed.
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
        (_, Reason::TicketUsed) => RefusedReason::TicketUsed,
        (_, Reason::UnsupportedForSession) => RefusedReason::UnsupportedForSession,
        (_, Reason::HelloRetryRequest) => RefusedReason::HelloRetryRequest,
        (_, Reason::AlpnMismatch) => RefusedReason::AlpnMismatch,
        (_, Reason::TicketAgeSkew) => RefusedReason::TicketAgeSkew,
        (_, Reason::QuicParameters) => RefusedReason::QuicParameters,
        (_, Reason::Other) => RefusedReason::Other,
    })
}
