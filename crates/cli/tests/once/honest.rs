//! One honest request with early data, through a recorder.

use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use firstflight_testkit::Recorder;
use firstflight_tls::EarlyData;
use tokio::time::Instant;

use crate::attacker::{Copies, Flight, Schedule, send_copies};
use crate::client::{Client, ClientResult, Ticket, Transport};
use crate::plan::{Attack, Attempt, Plan};
use crate::report::{Label, Row};
use crate::stage::Stage;

/// A request in progress or finished, and its recorded flight.
pub(crate) struct Honest {
    attempt: Attempt,
    /// Unique, to count executions.
    pub(crate) target: String,
    exact: Instant,
    recorder: Recorder,
    request: JoinHandle<ClientResult>,
}

impl Honest {
    /// Sends a request to this server.
    pub(crate) fn start(
        client: &Client,
        attempt: Attempt,
        server: SocketAddr,
        ticket: &Ticket,
    ) -> Self {
        Self::through(recorder(attempt.transport, server), client, attempt, ticket)
    }

    /// Like [`Self::start`], through this recorder.
    pub(crate) fn through(
        recorder: Recorder,
        client: &Client,
        attempt: Attempt,
        ticket: &Ticket,
    ) -> Self {
        let (client, address) = (client.clone(), recorder.address());
        let ticket = ticket.shifted(attempt.shift);
        Self::run(recorder, attempt, move |target| {
            client.request(attempt.transport, address, &ticket, target)
        })
    }

    /// Like [`Self::start`], with a client that sends its request again after a 425.
    pub(crate) fn retrying(
        client: &Client,
        attempt: Attempt,
        server: SocketAddr,
        ticket: &Ticket,
    ) -> Self {
        let recorder = recorder(attempt.transport, server);
        let (client, address) = (client.clone(), recorder.address());
        let ticket = ticket.shifted(attempt.shift);
        Self::run(recorder, attempt, move |target| {
            client.request_retrying(attempt.transport, address, server, &ticket, target)
        })
    }

    /// Like [`Self::start`] over TCP, with a client that sends its request again on another
    /// connection.
    pub(crate) fn reconnecting(
        client: &Client,
        attempt: Attempt,
        server: SocketAddr,
        ticket: &Ticket,
    ) -> Self {
        let recorder = recorder(attempt.transport, server);
        let (client, address) = (client.clone(), recorder.address());
        let ticket = ticket.shifted(attempt.shift);
        Self::run(recorder, attempt, move |target| {
            client.request_reconnecting(address, server, &ticket, target)
        })
    }

    fn run(
        recorder: Recorder,
        attempt: Attempt,
        request: impl FnOnce(&str) -> ClientResult + Send + 'static,
    ) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let target = format!("/request/{}", NUMBER.fetch_add(1, Ordering::SeqCst));
        let path = target.clone();
        let request = thread::spawn(move || request(&path));
        Self { attempt, target, exact: attempt.exact(), recorder, request }
    }

    /// The recorded flight, once the server has responded to it.
    pub(crate) fn flight(&self) -> Flight {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.recorder.has_response() && !self.request.is_finished() {
            assert!(Instant::now() < deadline, "the server does not respond to {}", self.target);
            thread::sleep(Duration::from_millis(5));
        }
        match self.attempt.transport {
            Transport::Http3 => Flight::Udp(self.recorder.datagrams()),
            Transport::Http1 | Transport::Http2 => Flight::Tcp(self.recorder.flight()),
        }
    }

    /// Waits until the request has finished.
    pub(crate) fn finish(self) -> Recorded {
        let flight = self.flight();
        let result = self.request.join().unwrap();
        let Self { attempt, target, exact, .. } = self;
        Recorded { attempt, target, exact, flight, result }
    }

    /// Sends copies from now on, while the request may still be waiting.
    pub(crate) fn finish_under_copies(
        self,
        nodes: &[SocketAddr],
        plan: &Plan,
    ) -> (Recorded, Copies) {
        let flight = self.flight();
        let copies = send_copies(&flight, nodes, self.attempt.schedule(self.exact, plan));
        (self.finish(), copies)
    }
}

/// A recorder in front of a server.
pub(crate) fn recorder(transport: Transport, server: SocketAddr) -> Recorder {
    let recorder = match transport {
        Transport::Http3 => Recorder::start_udp(server),
        Transport::Http1 | Transport::Http2 => Recorder::start(server),
    };
    recorder.delay_responses(FLIGHT_TIME);
    recorder
}

/// How long the parts of one flight may be apart.
const FLIGHT_TIME: Duration = Duration::from_millis(30);

/// A finished request.
pub(crate) struct Recorded {
    attempt: Attempt,
    target: String,
    exact: Instant,
    flight: Flight,
    result: ClientResult,
}

impl Recorded {
    /// Sends copies to these nodes until none can be fresh.
    pub(crate) fn copies(&self, nodes: &[SocketAddr], plan: &Plan) -> Copies {
        send_copies(&self.flight, nodes, self.attempt.schedule(self.exact, plan))
    }

    /// Sends copies to these nodes from now on, for this time.
    pub(crate) fn copies_for(&self, nodes: &[SocketAddr], time: Duration) -> Copies {
        let now = Instant::now();
        let schedule = Schedule { exact: now, start: now, end: now + time };
        send_copies(&self.flight, nodes, schedule)
    }

    /// Evaluates it. The statuses in `good` are accepted as well as 200.
    pub(crate) fn row(&self, stage: &Stage, label: &Label, copies: Copies, good: &[u16]) -> Row {
        let executions = stage.application.executions(&self.target);
        let mut faults = Vec::new();
        match executions.nodes.len() {
            0 => faults.push("lost"),
            1 => {}
            _ => faults.push("replayed"),
        }
        match &self.result.status {
            Ok(status) if *status == 200 || good.contains(status) => {}
            Ok(_) => faults.push("not 200"),
            Err(_) => faults.push("silent"),
        }
        if self.result.early == EarlyData::NotOffered && self.result.status.is_ok() {
            faults.push("no offer");
        }
        if copies.sent == 0 {
            faults.push("uncopied");
        }
        Row {
            case: label.case.clone(),
            servers: label.servers.name(),
            transport: self.attempt.transport.name(),
            attack: match self.attempt.attack {
                Attack::Eager => "eager",
                Attack::Patient => "patient",
            },
            shift: self.attempt.shift,
            early: match self.result.early {
                EarlyData::Accepted => "accepted",
                EarlyData::Refused => "refused",
                EarlyData::Pending => "pending",
                EarlyData::NotOffered => "none",
            },
            status: self.result.status.clone().map_or_else(|_| "-".to_owned(), |s| s.to_string()),
            executed: executions.nodes.len(),
            executed_by: executions.nodes,
            marked_early: executions.marked,
            copies: copies.sent,
            answered: copies.responses,
            faults,
            client: format!("{:?}", self.result),
            log: stage.log_of(&self.target),
        }
    }
}

/// Runs these concurrently.
pub(crate) fn concurrently<T: Send, R: Send>(
    all: impl IntoIterator<Item = T>,
    run: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = all.into_iter().map(|item| scope.spawn(move || run(item))).collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended.map(|result| result.unwrap_or_else(|why| resume_unwind(why))).collect()
    })
}
