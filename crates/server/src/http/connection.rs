//! One connection: TLS, the gate's word on its requests, and which protocol is spoken.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use firstflight_config::{ListenerProtocol, WhenNotAllowed};
use firstflight_replay::{Decision, Flight, HoldReason, Release, Spent};
use firstflight_telemetry::metrics::{
    BarredReason, HeldReason, RefusedReason, TooEarlyBy, Transport,
};
use firstflight_telemetry::otlp::Span;
use firstflight_tls::{ACME_TLS_ALPN, Handshake, Version, share};
use firstflight_upstream::proxy_protocol::Addresses;
use http::HeaderValue;
use tokio::net::TcpStream;
use tokio::sync::{OnceCell, watch};
use tokio::time::timeout_at;
use tracing::debug;

use crate::certificates::acme::end_question;
use crate::gate::Unspent;
use crate::handler::response::Service;
use crate::handshake::tcp_accept::{Accepted, accept};
use crate::http::h1_h2;
use crate::http::ping_pong;
use crate::http::redirect;
use crate::http::socket::Socket;
use crate::http::stream::StreamTasks;
use crate::listen::listeners::Entrance;
use crate::listen::proxy_header;
use crate::observe::connection_metrics::ConnectionMetrics;
use crate::observe::request::RequestRecord;
use crate::observe::timeline::Timeline;
use crate::observe::trace::wall;
use crate::route::early::Rejection;
use crate::route::snapshot::Snapshot;
use crate::server::{Shared, Stop};

/// What the requests of one connection share.
pub(crate) struct Connection {
    pub(crate) server: Arc<Shared>,
    /// The one under which it was accepted: for the handshake and early requests.
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) client: SocketAddr,
    /// The address that the client connected to.
    pub(crate) local: SocketAddr,
    pub(crate) facts: Handshake,
    /// Why TLS did not accept early data; `None`: it did.
    pub(crate) refused: Option<RefusedReason>,
    /// What answers say about HTTP/3.
    pub(crate) alt_svc: Option<HeaderValue>,
    pub(crate) timeline: Timeline,
    pub(crate) visit: ConnectionMetrics,
    flight: Option<Flight>,
    unspent: Option<Unspent>,
    /// What came of spending it; `None`: nobody knows.
    spent: OnceCell<Option<Spent>>,
    complete: watch::Receiver<bool>,
    /// Tunnels that requests have become, for the connection's task.
    pub(crate) tunnels: StreamTasks,
    /// Requests that came so far, and those whose answer has not ended.
    pub(crate) seen: AtomicU64,
    pub(crate) running: AtomicUsize,
    /// Answers of which a part waits for the client to take it.
    pub(crate) offered: AtomicUsize,
}

/// On what terms a connection was accepted.
pub(crate) struct AcceptedConnection {
    pub(crate) client: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) timeline: Timeline,
    pub(crate) visit: ConnectionMetrics,
    pub(crate) facts: Handshake,
    /// Why TLS did not accept early data; `None`: it did.
    pub(crate) refused: Option<RefusedReason>,
    /// The flight, if TLS accepted early data.
    pub(crate) flight: Option<Flight>,
    /// The flight, if its early data was refused and it has no record yet.
    pub(crate) unspent: Option<Unspent>,
    /// What answers say about HTTP/3.
    pub(crate) alt_svc: Option<HeaderValue>,
}

/// Who says that a connection's handshake is complete. When it is gone, it never will be.
pub(crate) struct Completion(watch::Sender<bool>);

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Run it.
    Run,
    /// Answer 425.
    TooEarly,
    /// Answer 503: there is no memory for it.
    Busy,
    /// The connection ended before its handshake: drop it.
    Gone,
}

/// Serves one connection to its end.
pub(crate) async fn serve(
    server: Arc<Shared>,
    mut tcp: TcpStream,
    peer: SocketAddr,
    entrance: Entrance,
) {
    let visit = ConnectionMetrics::begin(&server.metrics, Transport::Tcp);
    let accepted_at = visit.accepted_at();
    let mut stop = server.stopping();
    let snapshot = server.current();
    // Answers leave as they are written; the stream below gathers them itself.
    let _ = tcp.set_nodelay(true);
    let limit = snapshot.limits.header_timeout;
    let deadline = (accepted_at + limit).into();
    let ends = tokio::select! {
        ends = timeout_at(deadline, proxy_header::ends(&entrance.listener, &mut tcp, peer)) => ends,
        () = stopped(&mut stop, Stop::Now) => return,
    };
    let Addresses { source: client, destination: local } = match ends {
        Ok(Ok(ends)) => ends,
        Ok(Err(error)) => return debug!("{peer}: {error}"),
        Err(_) => {
            visit.timed_out();
            return debug!("{peer}: no PROXY header within {limit:?}");
        }
    };
    if entrance.listener.protocol == ListenerProtocol::Redirect {
        visit.has_no_handshake();
        return redirect::serve(server, tcp).await;
    }
    let socket = Socket::new(tcp, &server);
    let accepted = tokio::select! {
        accepted = timeout_at(deadline, accept(&server, &snapshot, socket.clone())) => accepted,
        () = stopped(&mut stop, Stop::Now) => return,
    };
    socket.has_handshake();
    let Accepted { stream, facts, flight, refused, claim, unspent } = match accepted {
        Ok(Ok(accepted)) => accepted,
        Ok(Err(error)) => {
            debug!("{client}: {error}");
            return socket.linger().await;
        }
        Err(_) => {
            visit.timed_out();
            return debug!("{client}: no TLS handshake within {limit:?}");
        }
    };
    if facts.alpn.as_deref() == Some(ACME_TLS_ALPN) {
        visit.has_no_handshake();
        debug!("{client}: an authority has looked whose {:?} is", facts.server_name);
        return end_question(stream, socket, deadline).await;
    }
    let (completion, complete) = Completion::new();
    let alt_svc = snapshot.alt_svc(&entrance);
    let timeline = Timeline::new(accepted_at, claim);
    let terms = AcceptedConnection {
        client,
        local,
        snapshot,
        timeline,
        visit,
        facts,
        refused,
        flight,
        unspent,
        alt_svc,
    };
    let connection = Arc::new(Connection::new(server, terms, complete));
    if stream.is_complete() {
        completion.reached(&connection);
    }
    let ended_well = match &*connection.snapshot.service {
        Service::PingPong => {
            ping_pong::serve(&connection, stream, &completion, accepted_at, stop).await
        }
        _ => {
            let (io, driver) = share(stream);
            let socket = socket.clone();
            h1_h2::serve(&connection, io, driver, socket, completion, accepted_at, stop).await
        }
    };
    if ended_well {
        socket.linger().await;
    }
}

/// Waits until stopping has come as far as `stage`.
pub(crate) async fn stopped(stop: &mut watch::Receiver<Stop>, stage: Stop) {
    // The sender goes only with the server itself.
    let _ = stop.wait_for(|now| *now >= stage).await;
}

impl Completion {
    /// With where to hear of it.
    pub(crate) fn new() -> (Self, watch::Receiver<bool>) {
        let (sender, receiver) = watch::channel(false);
        (Self(sender), receiver)
    }

    /// The client's Finished is verified.
    pub(crate) fn reached(&self, connection: &Connection) {
        connection.note_complete();
        self.0.send_replace(true);
    }
}

impl Connection {
    /// `complete`: whether the client's Finished is verified.
    pub(crate) fn new(
        server: Arc<Shared>,
        terms: AcceptedConnection,
        complete: watch::Receiver<bool>,
    ) -> Self {
        terms.visit.decided(&terms.facts, terms.flight.as_ref(), terms.refused);
        if terms.flight.is_some_and(|flight| !flight.won())
            || terms.refused == Some(RefusedReason::RefusedBefore)
        {
            let (flight, transport) = (&terms.facts.client_random, terms.visit.transport());
            server.replays.note(flight, terms.client.ip(), transport, jiff::Timestamp::now());
        }
        Self {
            server,
            snapshot: terms.snapshot,
            timeline: terms.timeline,
            client: terms.client,
            local: terms.local,
            facts: terms.facts,
            refused: terms.refused,
            visit: terms.visit,
            alt_svc: terms.alt_svc,
            flight: terms.flight,
            unspent: terms.unspent,
            spent: OnceCell::new(),
            complete,
            tunnels: StreamTasks::default(),
            seen: AtomicU64::new(0),
            running: AtomicUsize::new(0),
            offered: AtomicUsize::new(0),
        }
    }

    /// The gate's first word on a request that came whole as early data.
    pub(crate) fn arrive(&self, may_run_early: bool) -> Option<Decision> {
        self.flight.map(|flight| flight.early_request(may_run_early))
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

    /// Waits until the client's Finished is verified. False: the connection ended before.
    pub(crate) async fn handshake_completes(&self) -> bool {
        self.complete.clone().wait_for(|complete| *complete).await.is_ok()
    }

    /// Why TLS accepted early data or not, as the access log has it.
    pub(crate) fn early_data(&self) -> &'static str {
        self.refused.map_or("accepted", RefusedReason::name)
    }

    /// The head of an answer is there.
    pub(crate) fn note_answer(&self) {
        self.visit.answer(&self.facts, self.refused.is_none());
    }

    /// A request is answered 425.
    pub(crate) fn note_too_early(&self) {
        self.server.metrics.early_data.too_early.count(TooEarlyBy::Server);
    }

    /// A request is not run by its route's rules.
    pub(crate) fn note_barred(&self, rejection: Rejection) {
        let reason = rejection.reason();
        self.server.metrics.requests.barred.count(reason);
        if reason == BarredReason::TooEarly {
            self.note_too_early();
        }
    }

    /// The client's Finished is verified now.
    fn note_complete(&self) {
        self.timeline.complete();
        self.visit.complete(&self.facts, self.refused.is_none());
        self.tell_handshake(false);
    }

    /// Adds the handshake to the first request's trace, once both have been seen. `over`: there
    /// will be no more to see.
    pub(crate) fn tell_handshake(&self, over: bool) {
        let (Some(tracer), Some(context)) = (&self.server.tracer, self.timeline.tell(over)) else {
            return;
        };
        if !context.sampled {
            return;
        }
        let began = self.timeline.accepted_at;
        let ended = self.timeline.completed_at();
        let part = |name, times: (Instant, Instant)| {
            Span::part(context, name, (wall(times.0), wall(times.1)))
        };
        let span = part("tls.handshake", (began, ended.unwrap_or_else(Instant::now)))
            .with("tls.protocol.version", self.facts.version.map_or("-", Version::name))
            .with("tls.cipher", self.facts.cipher.unwrap_or("-"))
            .with("tls.resumed", self.facts.resumed)
            .with("firstflight.early_data", self.early_data())
            .with("firstflight.handshake.complete", ended.is_some());
        tracer.send(span);
        if let Some(times) = self.timeline.claim {
            let won = !self.lost_claim();
            tracer.send(part("early_data.claim", times).with("firstflight.claim.won", won));
        }
    }

    /// Whether the client's Finished is verified.
    pub(crate) fn is_complete(&self) -> bool {
        *self.complete.borrow()
    }

    /// The flight, if TLS accepted early data.
    pub(crate) fn flight(&self) -> Option<Flight> {
        self.flight
    }

    /// Whether another connection has the flight's claim.
    pub(crate) fn lost_claim(&self) -> bool {
        self.flight.is_some_and(|flight| !flight.won())
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.running.load(Ordering::Relaxed) > 0
    }

    /// Whether a copy of the flight, whose early data was refused here, has run or may have run.
    pub(crate) fn is_overtaken(&self) -> bool {
        matches!(self.spent.get(), Some(None | Some(Spent::Executed)))
    }

    async fn spend(&self, record: &mut RequestRecord) -> Admission {
        let Some(flight) = &self.unspent else { return Admission::Run };
        let since = Instant::now();
        let spent = self.spent.get_or_init(|| self.server.gate.spend(flight)).await;
        if since.elapsed() > NOTICEABLE {
            record.held(HeldReason::Unrecorded);
            record.held_since(since);
        }
        match spent {
            Some(Spent::Recorded) => Admission::Run,
            // As by RFC 8470 section 5.2: the client decides whether to make a new request.
            Some(Spent::Executed | Spent::HandedOver) | None => Admission::TooEarly,
        }
    }

    async fn hold(&self, record: &mut RequestRecord) -> Admission {
        let hold = self.visit.hold();
        let completed = self.handshake_completes().await;
        record.held_since(hold.since());
        let (Some(flight), true) = (self.flight, completed) else { return Admission::Gone };
        let release = flight.handshake_complete();
        hold.complete(release == Release::Execute);
        match release {
            Release::Execute => Admission::Run,
            Release::TooEarly => Admission::TooEarly,
        }
    }

    /// What a request that came early, if it did, shares of its flight's claim.
    fn claim(&self, decision: Option<Decision>) -> &'static str {
        match (decision, self.flight) {
            (Some(_), Some(flight)) if flight.won() => "won",
            (Some(_), Some(_)) => "lost",
            _ => "none",
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.tell_handshake(true);
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
