//! A connection with its snapshot, and the gate's decisions about its requests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use firstflight_config::WhenNotAllowed;
use firstflight_replay::{Decision, Flight, HoldReason, Release, SpendOutcome};
use firstflight_telemetry::metrics::{HeldReason, RefusedReason, RejectReason, TooEarlyBy};
use firstflight_tls::{Handshake, MAX_EARLY_DATA};
use http::{HeaderValue, Request};
use tokio::sync::{OnceCell, Semaphore, watch};
use tokio::time::timeout;

use crate::context::{ConnectionFacts, HandshakeState};
use crate::gate::UnspentFlight;
use crate::http::ServerContext;
use crate::http::stream::StreamTasks;
use crate::observe::connection::ConnectionObserver;
use crate::observe::metrics::ConnectionMetrics;
use crate::observe::request::RequestRecord;
use crate::route::early::Rejection;
use crate::route::{RequestMatch, Snapshot};

/// State that the requests of one connection share.
pub(crate) struct Connection {
    pub(crate) shared: Arc<ServerContext>,
    /// The snapshot under which the connection was accepted, for its handshake and early requests.
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) observer: Arc<ConnectionObserver>,
    pub(crate) handshake: HandshakeState,
    /// The `Alt-Svc` field of responses, if HTTP/3 is served.
    pub(crate) alt_svc: Option<HeaderValue>,
    /// WebSocket tunnels, which run on the connection's task.
    pub(crate) tunnels: StreamTasks,
    /// Limits the requests that run, where the HTTP/2 library must not refuse a stream.
    running: Option<Arc<Semaphore>>,
    unspent: Option<UnspentFlight>,
    /// The outcome of spending the flight; the inner `None`: the store did not reply.
    spent: OnceCell<Option<SpendOutcome>>,
}

/// A connection that was accepted, before its handshake.
pub(crate) struct AcceptedConnection {
    pub(crate) client: SocketAddr,
    pub(crate) local: SocketAddr,
    /// The newest snapshot when it was accepted.
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) metrics: ConnectionMetrics,
    /// The `Alt-Svc` field of responses, if HTTP/3 is served.
    pub(crate) alt_svc: Option<HeaderValue>,
}

/// The outcome of the handshake, up to the decision about early data.
pub(crate) struct Negotiated {
    pub(crate) tls: Handshake,
    /// The flight, if TLS accepted early data.
    pub(crate) flight: Option<Flight>,
    /// Why TLS refused early data; `None` if it was accepted.
    pub(crate) refused: Option<RefusedReason>,
    /// When the claim was requested and when it was settled.
    pub(crate) claim: Option<(Instant, Instant)>,
    /// The flight, if its early data was refused and it has no record yet.
    pub(crate) unspent: Option<UnspentFlight>,
}

/// Signals the completion of a connection's handshake. If it is dropped before, the handshake has
/// failed.
pub(crate) struct CompletionSignal(watch::Sender<bool>);

/// The decision about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestAdmission {
    /// Execute it.
    Run,
    /// Respond with 425 (Too Early).
    TooEarly,
    /// Respond with 503: the memory limit is reached.
    Busy,
    /// The connection ended before its handshake was complete: drop the request.
    ConnectionEnded,
}

impl CompletionSignal {
    /// Call this when the client's Finished is verified.
    pub(crate) fn signal(&self, connection: &Connection) {
        connection.observer.note_complete();
        self.0.send_replace(true);
    }
}

/// The maximum number of requests in early data: each is at least a frame header of 9 bytes (RFC
/// 9113 section 4.1).
const MAX_EARLY_STREAMS: u32 = (MAX_EARLY_DATA / 9) as u32;

impl Connection {
    /// A connection whose early data is accepted or refused. Its handshake may still be incomplete.
    pub(crate) fn new(
        shared: Arc<ServerContext>,
        accepted: AcceptedConnection,
        negotiated: Negotiated,
    ) -> (Arc<Self>, CompletionSignal) {
        let AcceptedConnection { client, local, snapshot, metrics, alt_svc } = accepted;
        let Negotiated { tls, flight, refused, claim, unspent } = negotiated;
        let facts = ConnectionFacts { client, local, tls, refused, flight };
        let (observers, memory) = (shared.observers.clone(), shared.memory.clone());
        let observer = ConnectionObserver::new(observers, memory, facts, metrics, claim);
        let (completion, handshake) = HandshakeState::new();
        // A refused stream says that its request was not processed. That may be false if a copy of
        // the flight may have been executed. No stream is refused then: its request waits until the
        // flight is spent, or gets 425.
        let is_http2 = observer.facts.tls.alpn.as_deref() == Some(b"h2");
        let may_have_copy = observer.facts.lost_claim() || unspent.is_some();
        let running = (is_http2 && may_have_copy)
            .then(|| Arc::new(Semaphore::new(snapshot.limits.streams as usize)));
        let connection = Self {
            shared,
            snapshot,
            observer: Arc::new(observer),
            handshake,
            alt_svc,
            tunnels: StreamTasks::default(),
            running,
            unspent,
            spent: OnceCell::new(),
        };
        (Arc::new(connection), CompletionSignal(completion))
    }

    /// The number of streams that an HTTP/2 client may open.
    pub(crate) fn max_http2_streams(&self) -> u32 {
        let configured = self.snapshot.limits.streams;
        if self.running.is_none() { configured } else { configured.max(MAX_EARLY_STREAMS) }
    }

    /// Waits until the request may run, for as long as `record` lives. Returns whether it may.
    ///
    /// With a body the wait is limited: what the body takes of the connection's flow-control window
    /// is missing to the requests that run.
    pub(crate) async fn wait_to_run(&self, record: &mut RequestRecord, has_body: bool) -> bool {
        let Some(running) = &self.running else { return true };
        let permit = running.clone().acquire_owned();
        let permit = match has_body {
            true => timeout(self.snapshot.limits.header_timeout, permit).await.ok(),
            false => Some(permit.await),
        };
        permit.and_then(Result::ok).map(|permit| record.hold_permit(permit)).is_some()
    }

    pub(crate) fn facts(&self) -> &ConnectionFacts {
        &self.observer.facts
    }

    /// The number of requests received.
    pub(crate) fn requests_received(&self) -> u64 {
        self.observer.received.load(Ordering::Relaxed)
    }

    /// Records that a time limit ends the connection.
    pub(crate) fn note_timeout(&self) {
        self.observer.metrics.note_timeout();
    }

    /// Matches a request by `snapshot`, and by the certificates that the client was offered.
    pub(crate) fn match_request<B>(
        &self,
        snapshot: &Snapshot,
        request: &Request<B>,
    ) -> RequestMatch {
        RequestMatch::new(snapshot, request, self.facts(), &self.snapshot.identities)
    }

    /// The gate's decision about a request that arrived entirely as early data.
    pub(crate) fn decide_early(&self, may_run_early: bool) -> Option<Decision> {
        self.facts().flight.map(|flight| flight.early_request(may_run_early))
    }

    /// Records the gate's decision immediately, so that the log line is complete even if the client
    /// disconnects before the request is served.
    pub(crate) fn record_decision(&self, decision: Option<Decision>, record: &mut RequestRecord) {
        if let Some(Decision::Hold(reason)) = decision {
            record.note_held(held_reason(reason));
        }
        record.set_claim(self.claim(decision));
    }

    /// Applies the gate's decision: lets the request run, or holds it until the handshake is
    /// complete. `None` means that the request did not arrive as early data. It then waits until
    /// the connection's flight is spent, if its early data was refused.
    pub(crate) async fn admit(
        &self,
        decision: Option<Decision>,
        record: &mut RequestRecord,
    ) -> RequestAdmission {
        match decision {
            None => self.spend(record).await,
            Some(Decision::Execute) => RequestAdmission::Run,
            Some(Decision::Hold(_)) => match self.snapshot.when_not_allowed {
                WhenNotAllowed::TooEarly => RequestAdmission::TooEarly,
                WhenNotAllowed::Hold => self.hold(record).await,
            },
        }
    }

    /// Counts a request that gets 425.
    pub(crate) fn note_too_early(&self) {
        self.shared.observers.metrics.early_data.too_early.count(TooEarlyBy::Server);
    }

    /// Counts a request that its route's rules reject.
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

    /// Whether a copy of this connection's refused flight was executed, or may have been.
    pub(crate) fn is_replayed(&self) -> bool {
        matches!(self.spent.get(), Some(None | Some(SpendOutcome::Executed)))
    }

    /// Whether a copy of this connection's refused flight may have been executed, which is
    /// possible until the flight is recorded.
    pub(crate) fn may_be_replayed(&self) -> bool {
        self.unspent.is_some() && self.spent.get() != Some(&Some(SpendOutcome::Recorded))
    }

    async fn spend(&self, record: &mut RequestRecord) -> RequestAdmission {
        let Some(flight) = &self.unspent else { return RequestAdmission::Run };
        let since = Instant::now();
        let spent = self.spent.get_or_init(|| self.shared.gate.spend(flight)).await;
        if since.elapsed() > HELD_THRESHOLD {
            record.note_held(HeldReason::Unrecorded);
            record.note_held_since(since);
        }
        match spent {
            Some(SpendOutcome::Recorded) => RequestAdmission::Run,
            // RFC 8470 section 5.2: the client decides whether to send the request again.
            Some(SpendOutcome::Executed | SpendOutcome::HandedOver) | None => {
                RequestAdmission::TooEarly
            }
        }
    }

    async fn hold(&self, record: &mut RequestRecord) -> RequestAdmission {
        let hold = self.observer.metrics.hold();
        let completed = self.handshake.completes().await;
        record.note_held_since(hold.since());
        let (Some(flight), true) = (self.facts().flight, completed) else {
            return RequestAdmission::ConnectionEnded;
        };
        let release = flight.handshake_complete();
        hold.complete(release == Release::Execute);
        match release {
            Release::Execute => RequestAdmission::Run,
            Release::TooEarly => RequestAdmission::TooEarly,
        }
    }

    /// The outcome of the flight's claim, for the log line of an early request.
    fn claim(&self, decision: Option<Decision>) -> &'static str {
        match (decision, self.facts().flight) {
            (Some(_), Some(flight)) if flight.won() => "won",
            (Some(_), Some(_)) => "lost",
            _ => "none",
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let (Some(flight), None) = (self.unspent, self.spent.get()) {
            self.shared.spend_abandoned_in_background(flight);
        }
    }
}

/// Longer waits for the flight's record are logged as held requests.
const HELD_THRESHOLD: Duration = Duration::from_millis(10);

fn held_reason(reason: HoldReason) -> HeldReason {
    match reason {
        HoldReason::Policy => HeldReason::Policy,
        HoldReason::Replayed => HeldReason::Replayed,
    }
}
