use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::failure::Failure;
use crate::source::{Purpose, Source};
use crate::tally::{Finished, Tally, nanos};
use crate::tickets::{Ticket, Tickets};
use crate::{Kind, LoadConfig, LoadError, cpu};

/// What a thread keeps whatever it drives: its tickets, its counts, and what each connection is
/// for.
pub(crate) struct WorkerState<'a, T> {
    pub(crate) config: &'a LoadConfig,
    tally: &'a Mutex<Tally>,
    stop: &'a AtomicBool,
    /// By address.
    tickets: Vec<Tickets<T>>,
    turn: usize,
    window_end: Option<Instant>,
    start: Instant,
    warm_up_failure: Option<Failure>,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    WarmUp,
    Refill,
    Measured,
}

/// A connection that is to be started.
pub(crate) struct Assignment<T> {
    pub(crate) role: Role,
    /// Index into the configuration's addresses.
    pub(crate) address: usize,
    /// Its times count from here.
    pub(crate) intended: Instant,
    pub(crate) ticket: Option<T>,
}

/// An event loop that starts what a source says, and sees it to its end.
pub(crate) trait Driver<'a> {
    /// What resumes its connections.
    type Ticket: Ticket;

    /// Its book.
    fn ledger(&mut self) -> &mut WorkerState<'a, Self::Ticket>;

    /// Drives the source to its end.
    fn drive(&mut self, source: &mut Source) -> Result<(), LoadError>;

    /// Has each server answer once, and collects `wanted` tickets of each where the run needs them.
    fn warm_up(&mut self, wanted: usize) -> Result<(), LoadError> {
        let config = self.ledger().config;
        for (index, &address) in config.addresses.iter().enumerate() {
            self.fetch_tickets(index, 1)?;
            if let Some(failure) = self.ledger().warm_up_failure.take() {
                return Err(LoadError::WarmUp { address, reason: failure.reason });
            }
            if config.kind == Kind::Full || self.ledger().is_stopped() {
                continue;
            }
            let each = self.ledger().tickets[index].supply();
            if each == 0 {
                let what = match config.kind {
                    Kind::ZeroRtt => "tickets that allow early data",
                    _ => "tickets",
                };
                return Err(LoadError::NoTickets { address, what });
            }
            let lacking = wanted.saturating_sub(each).div_ceil(each);
            self.fetch_tickets(index, lacking)?;
            self.ledger().warm_up_failure = None;
        }
        Ok(())
    }

    /// Runs a source to its end.
    fn run(
        &mut self,
        mut source: Source,
        start: Instant,
        window_end: Option<Instant>,
    ) -> Result<(), LoadError> {
        let ledger = self.ledger();
        ledger.start = start;
        ledger.window_end = window_end;
        let before = cpu::of_this_thread();
        self.drive(&mut source)?;
        let mut tally = self.ledger().tally();
        tally.cpu = cpu::of_this_thread().saturating_sub(before);
        tally.not_begun = source.not_begun();
        Ok(())
    }

    /// Connects so many times for tickets.
    fn fetch_tickets(&mut self, address: usize, connections: usize) -> Result<(), LoadError> {
        self.drive(&mut Source::WarmUp { address, left: connections, open: 0 })
    }
}

impl<'a, T: Ticket> WorkerState<'a, T> {
    pub(crate) fn new(
        config: &'a LoadConfig,
        tally: &'a Mutex<Tally>,
        stop: &'a AtomicBool,
        most_tickets: usize,
    ) -> Self {
        let early_data = config.kind == Kind::ZeroRtt;
        let tickets = config.addresses.iter().map(|_| Tickets::new(early_data, most_tickets));
        Self {
            config,
            tally,
            stop,
            tickets: tickets.collect(),
            turn: 0,
            window_end: None,
            start: Instant::now(),
            warm_up_failure: None,
        }
    }

    /// Whether the run is to start nothing more.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Chooses address and ticket. Where a ticket is wanted and none is left, the connection
    /// fetches some instead of being measured.
    pub(crate) fn assign(
        &mut self,
        purpose: Purpose,
        source: &mut Source,
        now: Instant,
    ) -> Assignment<T> {
        let (mut role, address, intended) = match purpose {
            Purpose::WarmUp { address } => (Role::WarmUp, address, now),
            Purpose::Measured { intended } => {
                self.turn = (self.turn + 1) % self.tickets.len();
                (Role::Measured, self.turn, intended)
            }
        };
        let mut ticket = None;
        if role == Role::Measured && self.config.kind != Kind::Full {
            ticket = self.tickets[address].take();
            if ticket.is_none() {
                role = Role::Refill;
                source.refilled();
                self.tally().without_ticket += 1;
            }
        }
        if role == Role::Measured {
            let mut tally = self.tally();
            tally.begun += 1;
            tally.lateness.saturating_record(nanos(now.saturating_duration_since(intended)));
        }
        Assignment { role, address, intended, ticket }
    }

    /// A connection has ended, and brought these tickets.
    pub(crate) fn ended(
        &mut self,
        role: Role,
        address: usize,
        ended: Result<Finished, Failure>,
        tickets: Vec<T>,
        source: &mut Source,
    ) {
        let (well, any) = (ended.is_ok(), !tickets.is_empty());
        self.tickets[address].put(tickets);
        let now = Instant::now();
        self.count(role, ended, now);
        source.ended(well, any, now);
    }

    fn count(&mut self, role: Role, ended: Result<Finished, Failure>, now: Instant) {
        if role == Role::WarmUp {
            match ended {
                Ok(_) => self.tally().warm_up += 1,
                Err(failure) => self.warm_up_failure = Some(failure),
            }
            return;
        }
        let mut tally = self.tally();
        match ended {
            Ok(_) if role == Role::Refill => tally.refills += 1,
            Ok(finished) => {
                let in_window = self.window_end.is_none_or(|end| now < end);
                tally.complete(self.config.kind, &finished, in_window);
            }
            Err(failure) => tally.fail(failure.kind, || failure.reason),
        }
        tally.last_end = now.saturating_duration_since(self.start);
    }

    fn tally(&self) -> MutexGuard<'a, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
