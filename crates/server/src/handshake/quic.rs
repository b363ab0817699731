//! TLS over QUIC, up to early data accepted or refused; what follows is HTTP/3's or ping-pong's.

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use firstflight_quic::{EarlyDataJudge, FirstFlightPreview, Handshake, ServerCrypto};
use firstflight_replay::{Flight, Refusal, SharedRefusal};
use firstflight_telemetry::metrics::{QuicRefusal, Transport};
use firstflight_tls::{OfferedFlight, OpenedTicket};
use quinn::{Connecting, ConnectionError, Incoming, VarInt};
use tokio::sync::watch;
use tokio::time::timeout_at;
use tracing::debug;

use crate::context::{Stop, stopped};
use crate::gate::{Arrival, HeardAt, Refused, Unspent};
use crate::handshake::initials::{InitialPackets, ReceivedInitial};
use crate::handshake::{Handshakes, refusal};
use crate::http::connection::{Connection, Negotiated, Origin};
use crate::http::h3_streams::{H3_NO_ERROR, close_connection};
use crate::http::{Shared, h3, ping_pong};
use crate::observe::metrics::ConnectionMetrics;
use crate::route::Snapshot;

/// A connection that starts.
pub(crate) struct NewConnection<P> {
    pub(crate) incoming: Incoming,
    /// Dropped when the handshake is complete, or has failed.
    pub(crate) permit: P,
    /// With a store, what came in on the endpoint.
    pub(crate) initials: Option<Arc<InitialPackets>>,
    /// The port it came to.
    pub(crate) port: u16,
}

/// Serves one connection, from its first packet to its end.
///
/// # Errors
/// Why it ended before it was one.
pub(crate) async fn serve<P>(
    handshakes: Arc<Handshakes>,
    new: NewConnection<P>,
    mut stop: watch::Receiver<Stop>,
) -> Result<(), ConnectionError> {
    let shared = &handshakes.shared;
    let metrics = ConnectionMetrics::begin(&shared.observers.metrics, Transport::Quic);
    let snapshot = shared.snapshot();
    let deadline = metrics.accepted_at() + snapshot.limits.header_timeout;
    let NewConnection { incoming, permit, initials, port } = new;
    let client = incoming.remote_address();
    let local = SocketAddr::new(incoming.local_ip().unwrap_or(Ipv6Addr::UNSPECIFIED.into()), port);
    let accepting = accept(&handshakes, &snapshot, initials.as_deref(), incoming);
    let accepted = tokio::select! {
        accepted = timeout_at(deadline.into(), accepting) => accepted,
        () = stopped(&mut stop, Stop::Now) => return Ok(()),
    };
    let Ok(accepted) = accepted else {
        metrics.timed_out();
        return Err(ConnectionError::TimedOut);
    };
    let Some((connecting, negotiated)) = accepted? else {
        metrics.has_no_handshake();
        return Ok(());
    };
    let Ok((quic, handshake)) = connecting.into_0rtt() else {
        unreachable!("a server may always send before the client's Finished");
    };
    let origin = Origin { client, local, snapshot, metrics, alt_svc: None };
    let (connection, completion) = Connection::new(shared.clone(), origin, negotiated);
    let handshake = async {
        // It says whether early data was accepted, which is a client's question; and ends as well
        // when the connection does.
        handshake.await;
        drop(permit);
        if quic.close_reason().is_none() {
            completion.reached(&connection);
        }
        std::future::pending::<()>().await;
    };
    let served = async {
        match connection.snapshot.sites {
            None => ping_pong::serve_quic(&connection, &quic, deadline, &mut stop).await,
            Some(_) => h3::serve(&connection, &quic, deadline, &mut stop).await,
        }
    };
    tokio::select! {
        biased;
        () = handshake => {}
        () = served => {}
    }
    // Nothing more is to be sent, or to be waited for.
    close_connection(&quic, VarInt::from_u32(H3_NO_ERROR), b"");
    Ok(())
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
    handshakes: &Handshakes,
    snapshot: &Snapshot,
    initials: Option<&InitialPackets>,
    incoming: Incoming,
) -> Result<Option<(Connecting, Negotiated)>, ConnectionError> {
    let shared = &handshakes.shared;
    let Some(config) = &snapshot.quic else {
        shared.observers.metrics.quic.refused.count(QuicRefusal::Refused);
        incoming.refuse();
        return Ok(None);
    };
    let outcome = Arc::new(Mutex::new(ClaimOutcome::default()));
    let (mut session, mut withheld, mut redeemed) = (None, None, false);
    let arrival = shared.gate.arrival();
    // TLS has not been given anything yet.
    let heard_at = shared.gate.heard_at(None);
    let judge = match initials {
        None => judge(shared.clone(), outcome.clone(), (arrival, heard_at)),
        Some(initials) => {
            let arrived = initials.of(&incoming).await;
            // First the token, then the claim: a client that is sent away has to find its flight
            // unclaimed when it comes back.
            if is_spent(handshakes, &incoming, arrived.as_ref()).await {
                shared.observers.metrics.quic.refused.count(QuicRefusal::TokenSpent);
                let _ = incoming.retry();
                return Ok(None);
            }
            let ahead = match arrived {
                Some(arrived) => {
                    let crypto = (&*config.crypto, snapshot.early_data);
                    SettledClaim::settle(handshakes, crypto, &arrived.client_hello, arrival).await
                }
                None => SettledClaim::unseen(),
            };
            (session, withheld) = (ahead.session.clone(), ahead.withheld);
            redeemed = matches!(session, Some(OpenedTicket::Session(_)));
            ahead.judge(outcome.clone())
        }
    };
    let config = config.for_connection(config.crypto.for_connection(judge, session));
    let mut connecting = incoming.accept_with(Arc::new(config))?;
    let facts = connecting.handshake_data().await?;
    let facts = facts.downcast::<Handshake>().map_err(|_| ConnectionError::LocallyClosed)?;
    let mut recorded = redeemed;
    let ClaimOutcome { mut flight, mut refused, claim } =
        std::mem::take(&mut *outcome.lock().unwrap_or_else(PoisonError::into_inner));
    if let Some(Refused::Gate(Refusal::HandedOver)) = refused {
        // Nothing of it has run, as nobody serves the connection yet. Its client sends again what
        // was refused: another process's copy must not have run by then.
        match shared.gate.claim(&facts, (arrival, heard_at), false).await {
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
    let negotiated = Negotiated { tls: *facts, flight, refused, claim, unspent };
    Ok(Some((connecting, negotiated)))
}

/// Claims the flight in this process's own register, while TLS asks.
fn judge(
    shared: Arc<Shared>,
    outcome: Arc<Mutex<ClaimOutcome>>,
    (arrival, heard_at): (Arrival, HeardAt),
) -> EarlyDataJudge {
    Box::new(move |facts| {
        let began = Instant::now();
        let claim = shared.gate.claim_at_once(facts, arrival, heard_at);
        outcome.lock().unwrap_or_else(PoisonError::into_inner).note(claim, began)
    })
}

/// Whether a connection came with a NEW_TOKEN token that another node has accepted before, or that
/// cannot be looked for because nothing is known of its first packet.
async fn is_spent(
    handshakes: &Handshakes,
    incoming: &Incoming,
    arrived: Option<&ReceivedInitial>,
) -> bool {
    if !incoming.remote_address_validated() || !incoming.may_retry() {
        return false;
    }
    match arrived.and_then(|arrived| handshakes.tokens.serial(&arrived.token)) {
        // What the store can't say this process's own log has said already.
        Some(token) => handshakes.ring.spend_everywhere(token).await.unwrap_or(false),
        None => true,
    }
}

/// What was settled of a connection before it starts.
pub(crate) struct SettledClaim {
    /// The flight and what became of its claim; `None`: there is no flight.
    claim: Option<(OfferedFlight, Result<Flight, Refused>)>,
    /// When the claim was requested.
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
        handshakes: &Handshakes,
        (crypto, early_data): (&ServerCrypto, bool),
        client_hello: &[u8],
        arrival: Arrival,
    ) -> Self {
        let gate = &handshakes.shared.gate;
        let rehearse = |session| {
            let heard_at = gate.heard_at(None);
            let rehearsal = crypto.rehearse(client_hello, session).unwrap_or_else(|error| {
                debug!("rehearsing a ClientHello: {error}");
                FirstFlightPreview::Nothing
            });
            (rehearsal, heard_at)
        };
        let mut settled = Self::unseen();
        settled.withheld = gate.admission(early_data).err();
        let (mut rehearsal, mut heard_at) = rehearse(None);
        let mut redeemed = false;
        if let FirstFlightPreview::NeedsSession(id) = &rehearsal {
            let ticket = handshakes.ring.redeem(id).await;
            if let Some(why) = ticket.withheld {
                settled.withheld = Some(Refused::Shared(SharedRefusal::Store(why)));
            }
            // Who has taken a session out of the store has its flight for himself.
            redeemed = matches!(ticket.session, OpenedTicket::Session(_));
            settled.session = Some(ticket.session.clone());
            (rehearsal, heard_at) = rehearse(Some(ticket.session));
        }
        if let (None, FirstFlightPreview::EarlyData(facts)) = (settled.withheld, rehearsal) {
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
                    if facts.offered_flight.is_some_and(|one| one.digest == flight.digest) =>
                {
                    claim
                }
                _ => Err(self.withheld.unwrap_or(Refused::Unseen)),
            };
            outcome.lock().unwrap_or_else(PoisonError::into_inner).note(claim, began)
        })
    }
}

/// What the judge has decided.
#[derive(Default)]
pub(crate) struct ClaimOutcome {
    pub(crate) flight: Option<Flight>,
    pub(crate) refused: Option<Refused>,
    pub(crate) claim: Option<(Instant, Instant)>,
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
