//! TLS over QUIC up to the decision about early data. HTTP/3 or ping-pong follows.

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use firstflight_endpoint::{Connection as QuicConnection, Incoming};
use firstflight_quic::{
    ConnectionOptions, EarlyDataJudge, FirstFlightPreview, Handshake, ServerCrypto,
};
use firstflight_replay::{Flight, Refusal, SharedRefusal};
use firstflight_telemetry::metrics::{QuicRefusal, RefusedReason, Transport};
use firstflight_tls::{OfferedFlight, OpenedTicket};
use quinn_proto::{ConnectionError, VarInt};
use tokio::sync::watch;
use tokio::time::timeout_at;
use tracing::debug;

use crate::context::{ShutdownStage, wait_for_stage};
use crate::gate::{Arrival, EarlyDataRefusal, UnspentFlight};
use crate::handshake::initials::{InitialPackets, ReceivedInitial};
use crate::handshake::{Handshakes, refusal};
use crate::http::connection::{AcceptedConnection, Connection, Negotiated};
use crate::http::h3_streams::H3_NO_ERROR;
use crate::http::{ServerContext, h3, ping_pong};
use crate::observe::metrics::ConnectionMetrics;
use crate::route::Snapshot;

/// A new connection.
pub(crate) struct NewConnection<P> {
    pub(crate) incoming: Incoming,
    /// Released when the handshake has completed or failed.
    pub(crate) permit: P,
    /// The first packets received on the endpoint, if flights are claimed in a store.
    pub(crate) initials: Option<Arc<InitialPackets>>,
    /// The local port.
    pub(crate) port: u16,
}

/// Serves one connection from its first packet to its end.
///
/// # Errors
/// Why the handshake failed.
pub(crate) async fn serve<P>(
    handshakes: Arc<Handshakes>,
    new: NewConnection<P>,
    mut stop: watch::Receiver<ShutdownStage>,
) -> Result<(), ConnectionError> {
    let shared = &handshakes.shared;
    let metrics = ConnectionMetrics::start(&shared.observers.metrics, Transport::Quic);
    let snapshot = shared.snapshot();
    let deadline = metrics.accepted_at() + snapshot.limits.header_timeout;
    let NewConnection { incoming, permit, initials, port } = new;
    let client = incoming.remote_address();
    let local = SocketAddr::new(incoming.local_ip().unwrap_or(Ipv6Addr::UNSPECIFIED.into()), port);
    // Boxed, as all large futures here, so that the connection's task is cheap to move.
    let accepting = Box::pin(accept(&handshakes, &snapshot, initials.as_deref(), incoming));
    let accepted = tokio::select! {
        accepted = timeout_at(deadline.into(), accepting) => accepted,
        () = wait_for_stage(&mut stop, ShutdownStage::Abort) => return Ok(()),
    };
    let Ok(accepted) = accepted else {
        metrics.note_timeout();
        return Err(ConnectionError::TimedOut);
    };
    let Some((quic, negotiated)) = accepted? else {
        metrics.expect_no_handshake();
        return Ok(());
    };
    let origin = AcceptedConnection { client, local, snapshot, metrics, alt_svc: None };
    let (connection, completion) = Connection::new(shared.clone(), origin, negotiated);
    let handshake = async {
        let completed = quic.handshake_complete().await;
        drop(permit);
        if completed.is_ok() {
            completion.signal(&connection);
        }
        std::future::pending::<()>().await;
    };
    let served = async {
        match connection.snapshot.sites {
            None => {
                let serving = ping_pong::serve_quic(&connection, &quic, deadline, &mut stop);
                Box::pin(serving).await
            }
            Some(_) => Box::pin(h3::serve(&connection, &quic, deadline, &mut stop)).await,
        }
    };
    tokio::select! {
        biased;
        () = handshake => {}
        () = served => {}
    }
    // There is nothing left to send or to wait for.
    quic.close(VarInt::from_u32(H3_NO_ERROR), b"");
    Ok(())
}

/// Accepts a connection. The flight's claim is settled before TLS responds to the ClientHello. Over
/// QUIC, lost early data is sent again after the handshake, so a flight without a record must not
/// be accepted. `initials`: the first packets received on the endpoint, if flights are claimed in a
/// store.
///
/// Returns `None` if the client was sent a Retry, or if HTTP/3 has been disabled meanwhile.
///
/// # Errors
/// The handshake failed.
pub(crate) async fn accept(
    handshakes: &Handshakes,
    snapshot: &Snapshot,
    initials: Option<&InitialPackets>,
    incoming: Incoming,
) -> Result<Option<(QuicConnection, Negotiated)>, ConnectionError> {
    let shared = &handshakes.shared;
    let Some(config) = &snapshot.quic else {
        shared.observers.metrics.quic.refused.count(QuicRefusal::Refused);
        incoming.refuse();
        return Ok(None);
    };
    let outcome = Arc::new(Mutex::new(Judgement::default()));
    let (mut session, mut withheld) = (None, None);
    // TLS has received nothing yet.
    let arrival = shared.gate.arrival();
    let judge = match initials {
        None => judge(shared.clone(), outcome.clone(), arrival),
        Some(initials) => {
            let arrived = initials.client_hello_of(&incoming).await;
            // The token comes before the claim: a client that is sent a Retry must find its flight
            // unclaimed when it returns.
            if is_token_spent(handshakes, &incoming, arrived.as_ref()).await {
                shared.observers.metrics.quic.refused.count(QuicRefusal::TokenSpent);
                let _ = incoming.retry();
                return Ok(None);
            }
            let settled_claim = match arrived {
                Some(arrived) => {
                    let crypto = (&*config.crypto, snapshot.early_data);
                    SettledClaim::settle(handshakes, crypto, &arrived.client_hello, arrival).await
                }
                None => SettledClaim::unknown(),
            };
            (session, withheld) = (settled_claim.session.clone(), settled_claim.withheld);
            settled_claim.judge(outcome.clone())
        }
    };
    let negotiated = Arc::new(Mutex::new(None));
    let observed = negotiated.clone();
    let options = ConnectionOptions {
        session,
        address_validated: incoming.remote_address_validated(),
        observer: Some(Box::new(move |facts| *lock(&observed) = Some(facts))),
    };
    let config = config.for_connection(config.crypto.with_options(judge, options));
    let connection = incoming.accept_with(Arc::new(config))?;
    let facts = lock(&negotiated).take();
    let facts = match facts {
        // Nothing has been sent yet. If this task does not wait either, the response to early
        // data shares packets with the handshake.
        Some(facts) => Box::new(facts),
        // The ClientHello takes further datagrams.
        None => {
            let facts = connection.handshake_data().await?;
            facts.downcast::<Handshake>().map_err(|_| ConnectionError::LocallyClosed)?
        }
    };
    let mut recorded = false;
    if let Some(key) = &facts.needed_session {
        // The ticket's keys were handed over while its packets were on the way, and TLS has refused
        // the early data. None of it has been executed; before the client sends it again, its
        // ticket has to be used up, so that no copy is accepted.
        let ticket = handshakes.redeem(key).await;
        recorded = matches!(ticket.session, OpenedTicket::UsedUp(_));
    }
    let Judgement { mut flight, mut refused, claim } = std::mem::take(&mut *lock(&outcome));
    if let Some(EarlyDataRefusal::Gate(Refusal::HandedOver)) = refused {
        // Nothing has been executed, because the connection is not served yet. Its client will
        // send the refused requests again; a copy must not have been executed by the successor
        // before that.
        match shared.gate.claim(&facts, (arrival, shared.gate.measured_at(&facts))).await {
            // Too late for TLS to accept the early data, but the flight has its record.
            Ok(claimed) if claimed.won() => recorded = true,
            Ok(claimed) => flight = Some(claimed),
            Err(EarlyDataRefusal::Gate(Refusal::HandedOver)) => {
                return Err(ConnectionError::LocallyClosed);
            }
            Err(why) => refused = Some(why),
        }
    }
    let unspent = match flight {
        None if !recorded => {
            let arrived = (arrival, shared.gate.measured_at(&facts));
            UnspentFlight::needing_record(&facts, arrived, refused.or(withheld))
        }
        _ => None,
    };
    let refused = match refused {
        Some(refused) => Some(refused.reason()),
        None => refusal(&facts, withheld),
    };
    let refused = match refused {
        Some(RefusedReason::TicketUsed) if shared.gate.is_copy(&facts) => {
            Some(RefusedReason::Replayed)
        }
        refused => refused,
    };
    let negotiated = Negotiated { tls: *facts, flight, refused, claim, unspent };
    Ok(Some((connection, negotiated)))
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Claims the flight in this process's register when TLS calls.
fn judge(
    shared: Arc<ServerContext>,
    outcome: Arc<Mutex<Judgement>>,
    arrival: Arrival,
) -> EarlyDataJudge {
    Box::new(move |facts| {
        let requested_at = Instant::now();
        let claim = shared.gate.claim_at_once(facts, arrival);
        lock(&outcome).note(claim, requested_at)
    })
}

/// Whether a NEW_TOKEN token was accepted before by another node, or cannot be checked because the
/// first packet was not recorded.
async fn is_token_spent(
    handshakes: &Handshakes,
    incoming: &Incoming,
    arrived: Option<&ReceivedInitial>,
) -> bool {
    if !incoming.remote_address_validated() || !incoming.may_retry() {
        return false;
    }
    match arrived.and_then(|arrived| handshakes.tokens.serial(&arrived.token)) {
        // If the store is unreachable, this process's own record decides, which quinn-proto has checked.
        Some(token) => handshakes.ring.spend_everywhere(token).await.unwrap_or(false),
        None => true,
    }
}

/// The claim of a connection that has not started yet.
pub(crate) struct SettledClaim {
    /// The flight and the outcome of its claim; `None`: the connection has no flight.
    claim: Option<(OfferedFlight, Result<Flight, EarlyDataRefusal>)>,
    /// When the claim was requested.
    requested_at: Instant,
    /// The session of a single-use ticket, if the client offered one.
    pub(crate) session: Option<OpenedTicket>,
    /// Why early data is refused regardless of the ClientHello, if it is.
    pub(crate) withheld: Option<EarlyDataRefusal>,
}

impl SettledClaim {
    /// Nothing is known about the ClientHello, so early data is refused.
    pub(crate) fn unknown() -> Self {
        Self { claim: None, requested_at: Instant::now(), session: None, withheld: None }
    }

    /// Processes a ClientHello on a temporary TLS state machine, and claims the flight in the store
    /// if TLS would accept its early data. `early_data`: whether the configuration enables early
    /// data.
    pub(crate) async fn settle(
        handshakes: &Handshakes,
        (crypto, early_data): (&ServerCrypto, bool),
        client_hello: &[u8],
        arrival: Arrival,
    ) -> Self {
        let gate = &handshakes.shared.gate;
        let preview_with = |session| {
            let received_at = gate.received_at(None);
            let preview = crypto.preview(client_hello, session).unwrap_or_else(|error| {
                debug!("previewing a ClientHello: {error}");
                FirstFlightPreview::Nothing
            });
            (preview, received_at)
        };
        let mut settled = Self::unknown();
        settled.withheld = gate.admission(early_data).err();
        let (mut preview, mut received_at) = preview_with(None);
        if let FirstFlightPreview::NeedsSession(id) = &preview {
            let ticket = handshakes.redeem(id).await;
            if let Some(why) = ticket.withheld {
                settled.withheld = Some(EarlyDataRefusal::Shared(SharedRefusal::Store(why)));
            }
            settled.session = Some(ticket.session.clone());
            (preview, received_at) = preview_with(Some(ticket.session));
        }
        if let (None, FirstFlightPreview::EarlyData(facts)) = (settled.withheld, preview) {
            settled.requested_at = Instant::now();
            let claim = gate.claim(&facts, (arrival, received_at)).await;
            settled.claim = facts.offered_flight.map(|flight| (flight, claim));
        }
        settled
    }

    /// The judge of the connection, which records its decision in `outcome`. It accepts only the
    /// flight that was claimed: anybody can send Initial packets, so quinn-proto may have processed
    /// another ClientHello.
    pub(crate) fn judge(self, outcome: Arc<Mutex<Judgement>>) -> EarlyDataJudge {
        let requested_at = self.requested_at;
        Box::new(move |facts: &Handshake| {
            let claim = match self.claim {
                Some((flight, claim))
                    if facts
                        .offered_flight
                        .is_some_and(|offered| offered.digest == flight.digest) =>
                {
                    claim
                }
                _ => Err(self.withheld.unwrap_or(EarlyDataRefusal::NotClaimed)),
            };
            lock(&outcome).note(claim, requested_at)
        })
    }
}

/// The judge's decision.
#[derive(Default)]
pub(crate) struct Judgement {
    pub(crate) flight: Option<Flight>,
    pub(crate) refused: Option<EarlyDataRefusal>,
    pub(crate) claim: Option<(Instant, Instant)>,
}

impl Judgement {
    /// Records the outcome of the flight's claim, requested at `requested_at`. Returns whether TLS is to
    /// accept the early data.
    pub(crate) fn note(
        &mut self,
        claim: Result<Flight, EarlyDataRefusal>,
        requested_at: Instant,
    ) -> bool {
        self.claim = Some((requested_at, Instant::now()));
        match claim {
            Ok(flight) => self.flight = Some(flight),
            Err(why) => self.refused = Some(why),
        }
        self.flight.is_some()
    }
}
