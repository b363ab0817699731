//! Punctured tickets: their ages, and their opening by the successor during an upgrade.
//!
//! TLS refuses early data if the ticket age that its client states is 60 s off. So an attacker cannot
//! hold back a first flight that its client has given up for longer than that. The machine's clock can
//! be set, so the true age is measured by the monotonic clock, which this process and its successor
//! share, and converted to the clock that TLS uses.

use std::time::Duration;

use firstflight_tickets::{OpenOutcome, PuncturedTickets};
use firstflight_tls::{OpenedTicket, PskOffer, session_of_age};
use zeroize::Zeroizing;

use crate::context::monotonic;
use crate::gate::{EarlyDataGate, MAX_HANDOFF_ATTEMPTS};

/// An offered ticket with its client's proof: all that a process needs to open the ticket and to
/// use it up.
///
/// As bytes: `length of the ticket (2) | ticket | offer`.
pub(crate) struct TicketOffer {
    ticket: Vec<u8>,
    offer: PskOffer,
}

impl TicketOffer {
    pub(crate) fn to_bytes(ticket: &[u8], offer: &PskOffer) -> Vec<u8> {
        // The length of an identity has two bytes (RFC 8446 section 4.2.11).
        let length = u16::try_from(ticket.len()).unwrap_or(0).to_be_bytes();
        [&length, ticket, &offer.to_bytes()].concat()
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (length, rest) = bytes.split_first_chunk()?;
        let (ticket, offer) = rest.split_at_checked(u16::from_be_bytes(*length).into())?;
        Some(Self { ticket: ticket.to_vec(), offer: PskOffer::from_bytes(offer)? })
    }

    /// Opens the ticket in this process, and uses it up.
    pub(crate) fn open(&self, tickets: &PuncturedTickets) -> OpenOutcome {
        tickets.open(&self.ticket, |session| self.offer.proves(session))
    }
}

/// Opens a ticket that arrived while the keys were handed over, in the process that has them.
///
/// The client's handshake continues in this process, so nobody else may use its ticket from now on. If
/// the process with the keys has ended, this one has them again, or new ones.
pub(crate) async fn open_handed_over(
    tickets: &PuncturedTickets,
    gate: &EarlyDataGate,
    bytes: &[u8],
) -> OpenedTicket {
    let Some(offer) = TicketOffer::from_bytes(bytes) else { return OpenedTicket::Ignored };
    for _ in 0..MAX_HANDOFF_ATTEMPTS {
        match offer.open(tickets) {
            OpenOutcome::HandedOver => {}
            OpenOutcome::Session { content, sealed_at } => {
                return used_up(aged(content, sealed_at));
            }
            OpenOutcome::Used => return OpenedTicket::AlreadyUsed,
            _ => return OpenedTicket::Ignored,
        }
        if let Some(reply) = gate.open_at_successor(bytes).await {
            return reply.map_or(OpenedTicket::Ignored, used_up);
        }
    }
    OpenedTicket::Ignored
}

/// The session, dated so that TLS computes the ticket's true age. A session that TLS cannot parse
/// is returned unchanged.
pub(crate) fn aged(session: Zeroizing<Vec<u8>>, sealed_at: Duration) -> Zeroizing<Vec<u8>> {
    session_of_age(&session, monotonic().saturating_sub(sealed_at)).unwrap_or(session)
}

/// The session of a ticket that its opening has used up.
fn used_up(mut session: Zeroizing<Vec<u8>>) -> OpenedTicket {
    OpenedTicket::UsedUp(std::mem::take(&mut *session))
}
