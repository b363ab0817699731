//! A flight's claim in a shared register, settled before quinn reads the ClientHello: the store is
//! asked across the network, and TLS asks its judge within a call.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use firstflight_quic::{EarlyDataJudge, Handshake, Rehearsal, ServerCrypto};
use firstflight_replay::{Flight, SharedRefusal};
use firstflight_tls::{OfferedFlight, OpenedTicket};
use tracing::debug;

use crate::gate::{Arrival, Refused};
use crate::handshake::quic_accept::ClaimOutcome;
use crate::server::Shared;

/// What was settled of a connection before it begins.
pub(crate) struct SettledClaim {
    /// The flight and what became of its claim; `None`: there is no flight.
    claim: Option<(OfferedFlight, Result<Flight, Refused>)>,
    /// When the claim was asked for.
    began: Instant,
    /// The session of its single-use ticket, if it has one.
    pub(crate) session: Option<OpenedTicket>,
    /// Why early data is refused whatever the ClientHello says, if so.
    pub(crate) withheld: Option<Refused>,
}

impl SettledClaim {
    /// Nothing is known of the connection's ClientHello: early data is refused.
    pub(crate) fn unseen() -> Self {
        Self { claim: None, began: Instant::now(), session: None, withheld: None }
    }

    /// Rehearses a ClientHello, and claims the flight in the store if TLS would accept its early
    /// data. `early_data`: whether the configuration wants any.
    pub(crate) async fn settle(
        server: &Shared,
        (crypto, early_data): (&ServerCrypto, bool),
        client_hello: &[u8],
        arrival: Arrival,
    ) -> Self {
        let gate = &server.gate;
        let rehearse = |session| {
            let heard_at = gate.heard_at(None);
            let rehearsal = crypto.rehearse(client_hello, session).unwrap_or_else(|error| {
                debug!("rehearsing a ClientHello: {error}");
                Rehearsal::Nothing
            });
            (rehearsal, heard_at)
        };
        let mut settled = Self::unseen();
        settled.withheld = gate.admission(early_data).err();
        let (mut rehearsal, mut heard_at) = rehearse(None);
        let mut redeemed = false;
        if let Rehearsal::NeedsSession(id) = &rehearsal {
            let ticket = server.ring.redeem(id).await;
            if let Some(why) = ticket.withheld {
                settled.withheld = Some(Refused::Shared(SharedRefusal::Store(why)));
            }
            // Who has taken a session out of the store has its flight for himself.
            redeemed = matches!(ticket.session, OpenedTicket::Session(_));
            settled.session = Some(ticket.session.clone());
            (rehearsal, heard_at) = rehearse(Some(ticket.session));
        }
        if let (None, Rehearsal::EarlyData(facts)) = (settled.withheld, rehearsal) {
            settled.began = Instant::now();
            let claim = gate.claim(&facts, (arrival, heard_at), redeemed).await;
            settled.claim = facts.offered_flight.map(|flight| (flight, claim));
        }
        settled
    }

    /// The judge of the connection, which leaves its outcome. It accepts the flight that was
    /// settled and no other: anybody can send Initial packets, and quinn may have read another
    /// ClientHello than was rehearsed.
    pub(crate) fn judge(self, outcome: Arc<Mutex<ClaimOutcome>>) -> EarlyDataJudge {
        let began = self.began;
        Box::new(move |facts: &Handshake| {
            let claim = match self.claim {
                Some((flight, claim))
                    if facts.offered_flight.is_some_and(|one| one.name == flight.name) =>
                {
                    claim
                }
                _ => Err(self.withheld.unwrap_or(Refused::Unseen)),
            };
            outcome.lock().unwrap_or_else(PoisonError::into_inner).note(claim, began)
        })
    }
}
