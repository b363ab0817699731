//! What the event loops over TCP and QUIC share: warm-up, tickets, and the role of each connection.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use firstflight_tls::Session;

use crate::counts::{Counts, Finished, nanos};
use crate::error::Failure;
use crate::process::thread_cpu_time;
use crate::source::{Purpose, Source};
use crate::{LoadConfig, LoadError, LoadHandshake};

/// The state of one thread with any transport: tickets and counts.
pub(crate) struct WorkerState<'a, T> {
    pub(crate) config: &'a LoadConfig,
    counts: &'a Mutex<Counts>,
    stop: &'a AtomicBool,
    /// Indexed like `config.addresses`.
    tickets: Vec<Tickets<T>>,
    next_address: usize,
    window_end: Option<Instant>,
    start: Instant,
    warm_up_failure: Option<Failure>,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Opened before the run, to check the server and collect tickets.
    WarmUp,
    /// Opened during the run to fetch tickets, because none was left.
    Refill,
    Measured,
}

/// A connection to start.
pub(crate) struct Assignment<T> {
    pub(crate) role: Role,
    /// Index into the configuration's addresses.
    pub(crate) address: usize,
    /// The scheduled start, from which its latency counts.
    pub(crate) intended: Instant,
    pub(crate) ticket: Option<T>,
}

/// An event loop that starts the connections of a [`Source`] and drives them to their end.
pub(crate) trait Worker<'a> {
    /// What this transport needs to resume a connection.
    type Ticket: Ticket;

    /// The state of this thread.
    fn state(&mut self) -> &mut WorkerState<'a, Self::Ticket>;

    /// Starts and drives connections until the source is finished and all connections have ended.
    fn drive(&mut self, source: &mut Source) -> Result<(), LoadError>;

    /// Connects to each address once, and collects `needed` tickets of each if the run resumes.
    fn warm_up(&mut self, needed: usize) -> Result<(), LoadError> {
        let config = self.state().config;
        for (index, &address) in config.addresses.iter().enumerate() {
            self.fetch_tickets(index, 1)?;
            if let Some(failure) = self.state().warm_up_failure.take() {
                return Err(LoadError::WarmUp { address, reason: failure.reason });
            }
            if config.kind == LoadHandshake::Full || self.state().is_stopped() {
                continue;
            }
            let per_connection = self.state().tickets[index].available();
            if per_connection == 0 {
                let what = match config.kind {
                    LoadHandshake::ZeroRtt => "tickets that allow early data",
                    _ => "tickets",
                };
                return Err(LoadError::NoTickets { address, what });
            }
            let missing = needed.saturating_sub(per_connection).div_ceil(per_connection);
            self.fetch_tickets(index, missing)?;
            self.state().warm_up_failure = None;
        }
        Ok(())
    }

    /// Drives the measured connections, and records the CPU time of this thread.
    fn run(
        &mut self,
        mut source: Source,
        start: Instant,
        window_end: Option<Instant>,
    ) -> Result<(), LoadError> {
        let state = self.state();
        state.start = start;
        state.window_end = window_end;
        let before = thread_cpu_time();
        self.drive(&mut source)?;
        let mut counts = self.state().counts();
        counts.cpu = thread_cpu_time().saturating_sub(before);
        counts.not_started = source.not_started();
        counts.gave_up = source.has_given_up();
        Ok(())
    }

    /// Opens this many connections to collect tickets.
    fn fetch_tickets(&mut self, address: usize, connections: usize) -> Result<(), LoadError> {
        self.drive(&mut Source::WarmUp { address, remaining: connections, open: 0 })
    }
}

impl<'a, T: Ticket> WorkerState<'a, T> {
    pub(crate) fn new(
        config: &'a LoadConfig,
        counts: &'a Mutex<Counts>,
        stop: &'a AtomicBool,
        max_tickets: usize,
    ) -> Self {
        let early_data = config.kind == LoadHandshake::ZeroRtt;
        let tickets = config.addresses.iter().map(|_| Tickets::new(early_data, max_tickets));
        Self {
            config,
            counts,
            stop,
            tickets: tickets.collect(),
            next_address: 0,
            window_end: None,
            start: Instant::now(),
            warm_up_failure: None,
        }
    }

    /// Whether the run was stopped, so that no further connection starts.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Chooses address and ticket. If a ticket is needed and none is left, the connection fetches
    /// tickets instead of being measured.
    pub(crate) fn assign(&mut self, purpose: Purpose, now: Instant) -> Assignment<T> {
        let (mut role, address, intended) = match purpose {
            Purpose::WarmUp { address } => (Role::WarmUp, address, now),
            Purpose::Measured { intended } => {
                self.next_address = (self.next_address + 1) % self.tickets.len();
                (Role::Measured, self.next_address, intended)
            }
        };
        let mut ticket = None;
        if role == Role::Measured && self.config.kind != LoadHandshake::Full {
            ticket = self.tickets[address].take();
            if ticket.is_none() {
                role = Role::Refill;
                self.counts().without_ticket += 1;
            }
        }
        if role == Role::Measured {
            let mut counts = self.counts();
            counts.started += 1;
            counts.lateness.saturating_record(nanos(now.saturating_duration_since(intended)));
        }
        Assignment { role, address, intended, ticket }
    }

    /// Records the end of a connection, and keeps the tickets that it received.
    pub(crate) fn connection_ended(
        &mut self,
        role: Role,
        address: usize,
        result: Result<Finished, Failure>,
        tickets: Vec<T>,
        source: &mut Source,
    ) {
        let succeeded = result.is_ok();
        let received_tickets = self.tickets[address].put(tickets);
        let now = Instant::now();
        self.record_result(role, result, now);
        if role == Role::Refill && succeeded {
            source.refill_succeeded(received_tickets);
        }
        source.connection_ended(succeeded, received_tickets, now);
    }

    fn record_result(&mut self, role: Role, result: Result<Finished, Failure>, now: Instant) {
        if role == Role::WarmUp {
            match result {
                Ok(_) => self.counts().warm_up += 1,
                Err(failure) => self.warm_up_failure = Some(failure),
            }
            return;
        }
        let mut counts = self.counts();
        match result {
            Ok(_) if role == Role::Refill => counts.refills += 1,
            Ok(finished) => {
                let in_window = self.window_end.is_none_or(|end| now < end);
                counts.complete(self.config.kind, &finished, in_window);
            }
            Err(failure) => counts.fail(failure.kind, || failure.reason),
        }
        counts.last_end = now.saturating_duration_since(self.start);
    }

    pub(crate) fn counts(&self) -> MutexGuard<'a, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a transport needs to resume a connection.
pub(crate) trait Ticket: Clone {
    /// Whether the ticket may be used only once (RFC 8446 appendix C.4).
    fn single_use(&self) -> bool;

    /// Whether the ticket allows early data.
    fn early_data_capable(&self) -> bool;
}

impl Ticket for Session {
    fn single_use(&self) -> bool {
        self.single_use()
    }

    fn early_data_capable(&self) -> bool {
        self.early_data_capable()
    }
}

/// The tickets of one server address. The newest is used first. A TLS 1.3 ticket is used once; a
/// session of an older version is used any number of times.
pub(crate) struct Tickets<T> {
    tickets: VecDeque<T>,
    early_data: bool,
    max: usize,
}

impl<T: Ticket> Tickets<T> {
    /// Keeps at most `max` tickets; with `early_data`, only tickets that allow it.
    pub(crate) fn new(early_data: bool, max: usize) -> Self {
        Self { tickets: VecDeque::new(), early_data, max }
    }

    /// Keeps the tickets that a connection received, and drops the oldest above the maximum. Returns
    /// whether any of them is usable.
    pub(crate) fn put(&mut self, tickets: Vec<T>) -> bool {
        let mut usable = false;
        for ticket in tickets {
            if self.early_data && !ticket.early_data_capable() {
                continue;
            }
            usable = true;
            // One reusable session is enough.
            if !ticket.single_use() {
                self.tickets.clear();
            }
            if self.tickets.len() >= self.max {
                self.tickets.pop_front();
            }
            self.tickets.push_back(ticket);
        }
        usable
    }

    /// Takes the newest ticket.
    pub(crate) fn take(&mut self) -> Option<T> {
        let ticket = self.tickets.pop_back()?;
        if !ticket.single_use() {
            self.tickets.push_back(ticket.clone());
        }
        Some(ticket)
    }

    /// The number of connections for which there are tickets.
    pub(crate) fn available(&self) -> usize {
        match self.tickets.back() {
            Some(ticket) if !ticket.single_use() => usize::MAX,
            _ => self.tickets.len(),
        }
    }
}
