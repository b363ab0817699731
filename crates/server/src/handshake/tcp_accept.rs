//! One connection's handshake, up to the word on its early data.

use std::time::Instant;

use firstflight_replay::{Flight, SharedRefusal};
use firstflight_telemetry::metrics::RefusedReason;
use firstflight_tls::{
    self as tls, Accepting, EarlyDataReason, Handshake, OpenedTicket, TlsError, TlsStream, Withheld,
};

use crate::gate::{Refused, Unspent};
use crate::http::socket::Socket;
use crate::route::snapshot::Snapshot;
use crate::server::Shared;

/// A connection on which early data is decided.
pub(crate) struct Accepted {
    pub(crate) stream: TlsStream<Socket>,
    /// What was negotiated.
    pub(crate) facts: Handshake,
    /// Its flight, if TLS accepted early data.
    pub(crate) flight: Option<Flight>,
    /// Why TLS did not accept early data; `None`: it did.
    pub(crate) refused: Option<RefusedReason>,
    /// From when to when the flight was claimed.
    pub(crate) claim: Option<(Instant, Instant)>,
    /// The flight, if its early data was refused and it has no record yet.
    pub(crate) unspent: Option<Unspent>,
}

/// Accepts a connection. Nothing of the handshake is sent before the flight's claim is settled: a
/// flight whose claim is not known is then refused by TLS, so that nothing of it runs early, and the client
/// sends its request again by itself.
pub(crate) async fn accept(
    server: &Shared,
    snapshot: &Snapshot,
    socket: Socket,
) -> Result<Accepted, TlsError> {
    let gate = &server.gate;
    let arrival = gate.arrival();
    let mut refused = gate.admission(snapshot.early_data).err();
    let mut accepting = Accepting::new(&snapshot.acceptor, socket, refused.is_none())?;
    let (mut redeemed, mut claim) = (false, None);
    let mut heard_at = None;
    let (flight, facts) = loop {
        match accepting.advance().await? {
            tls::Accepted::NeedsSession(id) => {
                let ticket = server.ring.redeem(&id).await;
                if let Some(why) = ticket.withheld {
                    refused = Some(Refused::Shared(SharedRefusal::Store(why)));
                }
                // Who has taken a session out of the store has its flight for himself.
                redeemed = matches!(ticket.session, OpenedTicket::Session(_));
                accepting.provide_session(ticket.session);
            }
            tls::Accepted::Complete => break (None, accepting.facts()),
            tls::Accepted::EarlyData => {
                let facts = accepting.facts();
                let heard_at = *heard_at.insert(gate.heard_at(Some(accepting.heard_at())));
                let began = Instant::now();
                let claimed = gate.claim(&facts, (arrival, heard_at), redeemed).await;
                claim = Some((began, Instant::now()));
                match claimed {
                    Ok(flight) => break (Some(flight), facts),
                    Err(why) => {
                        refused = Some(why);
                        accepting.refuse_early_data()?;
                    }
                }
            }
        }
    };
    let unspent = match flight {
        Some(_) => None,
        None => {
            // Later than the ClientHello came: the record lives a little longer for that.
            let heard_at = heard_at.unwrap_or_else(|| gate.heard_at(None));
            Unspent::left_by(&facts, (arrival, heard_at), refused, redeemed)
        }
    };
    let refused = refusal(&facts, refused);
    Ok(Accepted { stream: accepting.into_stream(), facts, flight, refused, claim, unspent })
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
        (_, Reason::Withheld(Withheld::Zone)) => RefusedReason::Zone,
        (_, Reason::Withheld(Withheld::Epoch)) => RefusedReason::TicketEpoch,
        (_, Reason::Withheld(Withheld::Store)) => RefusedReason::StoreWindow,
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
