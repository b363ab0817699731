//! From a first packet to a connection on which early data is decided.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use firstflight_quic::{EarlyDataJudge, Handshake};
use firstflight_replay::{Flight, Refusal};
use firstflight_telemetry::metrics::{QuicRefusal, RefusedReason};
use firstflight_tls::OpenedTicket;
use quinn::{Connecting, ConnectionError, Incoming};

use crate::gate::{Arrival, HeardAt, Refused, Unspent};
use crate::handshake::initials::{InitialPackets, ReceivedInitial};
use crate::handshake::quic_config::QuicPorts;
use crate::handshake::quic_rehearsal::SettledClaim;
use crate::handshake::tcp_accept::refusal;
use crate::route::snapshot::Snapshot;
use crate::server::Shared;

/// A connection on which early data is decided. Its handshake goes on.
pub(crate) struct Accepted {
    pub(crate) connecting: Connecting,
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

/// What the judge has decided.
#[derive(Default)]
pub(crate) struct ClaimOutcome {
    flight: Option<Flight>,
    refused: Option<Refused>,
    claim: Option<(Instant, Instant)>,
}

impl ClaimOutcome {
    /// Notes what became of the flight's claim. `began`: when it was
    /// asked for. Whether TLS is to accept the early data.
    pub(crate) fn note(&mut self, claim: Result<Flight, Refused>, began: Instant) -> bool {
        self.claim = Some((began, Instant::now()));
        match claim {
            Ok(flight) => self.flight = Some(flight),
            Err(why) => self.refused = Some(why),
        }
        self.flight.is_some()
    }
}

/// Accepts a connection. The flight's claim is settled before TLS answers its ClientHello: over
/// QUIC what is lost of early data is sent again after the handshake, so a flight may not be
/// accepted that has no record. `initials`: with a store, what came in on the endpoint.
///
/// `None`: its client was asked to show its address by a Retry, or there is no HTTP/3 any more.
///
/// # Errors
/// The handshake's.
pub(crate) async fn accept(
    server: &Arc<Shared>,
    (quic_ports, snapshot): (&QuicPorts, &Snapshot),
    initials: Option<&InitialPackets>,
    incoming: Incoming,
) -> Result<Option<Accepted>, ConnectionError> {
    let Some(terms) = &snapshot.quic else {
        server.metrics.quic.turned_away.count(QuicRefusal::Refused);
        incoming.refuse();
        return Ok(None);
    };
    let outcome = Arc::new(Mutex::new(ClaimOutcome::default()));
    let (mut session, mut withheld, mut redeemed) = (None, None, false);
    let arrival = server.gate.arrival();
    // TLS has not been given anything yet.
    let heard_at = server.gate.heard_at(None);
    let judge = match initials {
        None => judge(server.clone(), outcome.clone(), (arrival, heard_at)),
        Some(initials) => {
            let arrived = initials.of(&incoming).await;
            // First the token, then the claim: a client that is sent away has to find its flight
            // unclaimed when it comes back.
            if is_spent(server, quic_ports, &incoming, arrived.as_ref()).await {
                server.metrics.quic.turned_away.count(QuicRefusal::TokenSpent);
                let _ = incoming.retry();
                return Ok(None);
            }
            let ahead = match arrived {
                Some(arrived) => {
                    let crypto = (&*terms.crypto, snapshot.early_data);
                    SettledClaim::settle(server, crypto, &arrived.client_hello, arrival).await
                }
                None => SettledClaim::unseen(),
            };
            (session, withheld) = (ahead.session.clone(), ahead.withheld);
            redeemed = matches!(session, Some(OpenedTicket::Session(_)));
            ahead.judge(outcome.clone())
        }
    };
    let config = terms.server_config(terms.crypto.for_connection(judge, session));
    let mut connecting = incoming.accept_with(Arc::new(config))?;
    let facts = connecting.handshake_data().await?;
    let facts = facts.downcast::<Handshake>().map_err(|_| ConnectionError::LocallyClosed)?;
    let mut recorded = redeemed;
    let ClaimOutcome { mut flight, mut refused, claim } =
        std::mem::take(&mut *outcome.lock().unwrap_or_else(PoisonError::into_inner));
    if let Some(Refused::Gate(Refusal::HandedOver)) = refused {
        // Nothing of it has run, as nobody serves the connection yet. Its client sends again what
        // was refused: another process's copy must not have run by then.
        match server.gate.claim(&facts, (arrival, heard_at), false).await {
            // Too late for TLS to accept it, but it has its record.
            Ok(theirs) if theirs.won() => recorded = true,
            Ok(theirs) => flight = Some(theirs),
            Err(Refused::Gate(Refusal::HandedOver)) => return Err(ConnectionError::LocallyClosed),
            Err(why) => refused = Some(why),
        }
    }
    let unspent = match flight {
        Some(_) => None,
        None => Unspent::left_by(&facts, (arrival, heard_at), refused.or(withheld), recorded),
    };
    let refused = match refused {
        Some(refused) => Some(refused.reason()),
        None => refusal(&facts, withheld),
    };
    Ok(Some(Accepted { connecting, facts: *facts, flight, refused, claim, unspent }))
}

/// Claims the flight in this process's own register, while TLS asks.
fn judge(
    server: Arc<Shared>,
    outcome: Arc<Mutex<ClaimOutcome>>,
    (arrival, heard_at): (Arrival, HeardAt),
) -> EarlyDataJudge {
    Box::new(move |facts| {
        let began = Instant::now();
        let claim = server.gate.claim_at_once(facts, arrival, heard_at);
        outcome.lock().unwrap_or_else(PoisonError::into_inner).note(claim, began)
    })
}

/// Whether a connection came with a NEW_TOKEN token that another node has accepted before, or that
/// cannot be looked for because nothing is known of its first packet.
async fn is_spent(
    server: &Shared,
    quic_ports: &QuicPorts,
    incoming: &Incoming,
    arrived: Option<&ReceivedInitial>,
) -> bool {
    if !incoming.remote_address_validated() || !incoming.may_retry() {
        return false;
    }
    match arrived.and_then(|arrived| quic_ports.tokens.serial(&arrived.token)) {
        // What the store can't say this process's own log has said already.
        Some(token) => server.ring.spend_everywhere(token).await.unwrap_or(false),
        None => true,
    }
}
