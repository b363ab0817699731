//! One connection with its snapshot, and the gate's decisions on its requests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use firstflight_config::WhenNotAllowed;
use firstflight_replay::{Decision, Flight, HoldReason, Release, SpendOutcome};
use firstflight_telemetry::metrics::{HeldReason, RefusedReason, RejectReason, TooEarlyBy};
use firstflight_tls::Handshake;
use http::{HeaderValue, Request};
use tokio::sync::{OnceCell, watch};

use crate::context::{ConnectionFacts, HandshakeState};
use crate::gate::Unspent;
use crate::http::Shared;
use crate::http::stream::StreamTasks;
use crate::observe::connection::ConnectionObserver;
use crate::observe::metrics::ConnectionMetrics;
use crate::observe::request::RequestRecord;
use crate::route::early::Rejection;
use crate::route::{RequestMatch, Snapshot};

/// What the requests of one connection share.
pub(crate) struct Connection {
    pub(crate) shared: Arc<Shared>,
    /// The one under which it was accepted: for the handshake and early requests.
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) observer: Arc<ConnectionObserver>,
    pub(crate) handshake: HandshakeState,
    /// What responses say about HTTP/3.
    pub(crate) alt_svc: Option<HeaderValue>,
    /// Tunnels that requests have become, for the connection's task.
    pub(crate) tunnels: StreamTasks,
    unspent: Option<Unspent>,
    /// What came of spending it; `None`: nobody knows.
    spent: OnceCell<Option<SpendOutcome>>,
}

/// How a connection came.
pub(crate) struct Origin {
    pub(crate) client: SocketAddr,
    pub(crate) local: SocketAddr,
    /// The newest one then.
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) metrics: ConnectionMetrics,
    /// What responses say about HTTP/3.
    pub(crate) alt_svc: Option<HeaderValue>,
}

/// What its handshake has settled, up to early data.
pub(crate) struct Negotiated {
    pub(crate) tls: Handshake,
    /// The flight, if TLS accepted early data.
    pub(crate) flight: Option<Flight>,
    /// Why TLS did not accept early data; `None`: it did.
    pub(crate) refused: Option<RefusedReason>,
    /// From when to when the flight was claimed.
    pub(crate) claim: Option<(Instant, Instant)>,
    /// The flight, if its early data was refused and it has no record yet.
    pub(crate) unspent: Option<Unspent>,
}

/// Announces that a connection's handshake is complete. When it is gone, it never will be.
pub(crate) struct Completion(watch::Sender<bool>);

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Run it.
    Run,
    /// Respond with 425.
    TooEarly,
    /// Respond with 503: there is no memory for it.
    Busy,
    /// The connection ended before its handshake: drop it.
    ConnectionEnded,
}

impl Completion {
    /// The client's Finished is verified.
    pub(crate) fn reached(&self, connection: &Connection) {
        connection.observer.note_complete();
        self.0.send_replace(true);
    }
}

impl Connection {
    /// A connection on which early data is accepted or refused. Its handshake may go on.
    pub(crate) fn new(
        shared: Arc<Shared>,
        origin: Origin,
        negotiated: Negotiated,
    ) -> (Arc<Self>, Completion) {
        let Origin { client, local, snapshot, metrics, alt_svc } = origin;
        let Negotiated { tls, flight, refused, claim, unspent } = negotiated;
        let facts = ConnectionFacts { client, local, tls, refused, flight };
        let (observers, memory) = (shared.observers.clone(), shared.memory.clone());
        let observer = ConnectionObserver::new(observers, memory, facts, metrics, claim);
        let (completion, handshake) = HandshakeState::new();
        let connection = Self {
            shared,
            snapshot,
            observer: Arc::new(observer),
            handshake,
            alt_svc,
            tunnels: StreamTasks::default(),
            unspent,
            spent: OnceCell::new(),
        };
        (Arc::new(connection), Completion(completion))
    }

    pub(crate) fn facts(&self) -> &ConnectionFacts {
        &self.observer.facts
    }

    /// Requests that came so far.
    pub(crate) fn requests_seen(&self) -> u64 {
        self.observer.seen.load(Ordering::Relaxed)
    }

    /// A time limit ends the connection.
    pub(crate) fn timed_out(&self) {
        self.observer.metrics.timed_out();
    }

    /// Matches a request by this snapshot, and by the certificates that this client was shown.
    pub(crate) fn match_request<B>(
        &self,
        snapshot: &Snapshot,
        request: &Request<B>,
    ) -> RequestMatch {
        RequestMatch::new(snapshot, request, self.facts(), &self.snapshot.identities)
    }

    /// The gate's first word on a request that came whole as early data.
    pub(crate) fn arrive(&self, may_run_early: bool) -> Option<Decision> {
        self.facts().flight.map(|flight| flight.early_request(may_run_early))
    }

    /// Notes the gate's first word at once: a client that has gone by then is never served, and
    /// its log line says all the same what it was.
    pub(crate) fn note(&self, decision: Option<Decision>, record: &mut RequestRecord) {
        if let Some(Decision::Hold(reason)) = decision {
            record.held(held_reason(reason));
        }
        record.claim(self.claim(decision));
    }

    /// Carries the gate's first word out: lets the request run, or holds it until the handshake is
    /// complete, as long as that takes. `None` is a request that did not come early: it waits until
    /// the connection's flight is spent, if its early data was refused.
    pub(crate) async fn admit(
        &self,
        decision: Option<Decision>,
        record: &mut RequestRecord,
    ) -> Admission {
        match decision {
            None => self.spend(record).await,
            Some(Decision::Execute) => Admission::Run,
            Some(Decision::Hold(_)) => match self.snapshot.when_not_allowed {
                WhenNotAllowed::TooEarly => Admission::TooEarly,
                WhenNotAllowed::Hold => self.hold(record).await,
            },
        }
    }

    /// A request gets 425.
    pub(crate) fn note_too_early(&self) {
        self.shared.observers.metrics.early_data.too_early.count(TooEarlyBy::Server);
    }

    /// A request is not run by its route's rules.
    pub(crate) fn note_rejection(&self, rejection: Rejection) {
        let reason = rejection.reason();
        self.shared.observers.metrics.requests.rejected.count(reason);
        if reason == RejectReason::TooEarly {
            self.note_too_early();
        }
    }

    /// Whether the client's Finished is verified.
    pub(crate) fn is_complete(&self) -> bool {
        self.handshake.is_complete()
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.observer.running.load(Ordering::Relaxed) > 0
    }

    /// Whether a copy of the flight, whose early data was refused here, has run or may have run.
    pub(crate) fn is_overtaken(&self) -> bool {
        matches!(self.spent.get(), Some(None | Some(SpendOutcome::Executed)))
    }

    async fn spend(&self, record: &mut RequestRecord) -> Admission {
        let Some(flight) = &self.unspent else { return Admission::Run };
        let since = Instant::now();
        let spent = self.spent.get_or_init(|| self.shared.gate.spend(flight)).await;
        if since.elapsed() > NOTICEABLE {
            record.held(HeldReason::Unrecorded);
            record.held_since(since);
        }
        match spent {
            Some(SpendOutcome::Recorded) => Admission::Run,
            // As by RFC 8470 section 5.2: the client decides whether to make a new request.
            Some(SpendOutcome::Executed | SpendOutcome::HandedOver) | None => Admission::TooEarly,
        }
    }

    async fn hold(&self, record: &mut RequestRecord) -> Admission {
        let hold = self.observer.metrics.hold();
        let completed = self.handshake.completes().await;
        record.held_since(hold.since());
        let (Some(flight), true) = (self.facts().flight, completed) else {
            return Admission::ConnectionEnded;
        };
        let release = flight.handshake_complete();
        hold.complete(release == Release::Execute);
        match release {
            Release::Execute => Admission::Run,
            Release::TooEarly => Admission::TooEarly,
        }
    }

    /// What a request that came early, if it did, shares of its flight's claim.
    fn claim(&self, decision: Option<Decision>) -> &'static str {
        match (decision, self.facts().flight) {
            (Some(_), Some(flight)) if flight.won() => "won",
            (Some(_), Some(_)) => "lost",
            _ => "none",
        }
    }
}

/// A request that waits longer than this for its connection's flight to be recorded is logged as
/// held.
const NOTICEABLE: Duration = Duration::from_millis(10);

fn held_reason(reason: HoldReason) -> HeldReason {
    match reason {
        HoldReason::Policy => HeldReason::Policy,
        HoldReason::Replayed => HeldReason::Replayed,
    }
}
