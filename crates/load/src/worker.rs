use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use firstflight_tls::{Connector, ConnectorConfig, Offer};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use socket2::SockAddr;

use crate::connection::{BUFFER, Connection, Finished, Shared, Step};
use crate::failure::Failure;
use crate::source::{Purpose, Source};
use crate::tally::{Tally, nanos};
use crate::tickets::Tickets;
use crate::{Kind, LoadConfig, LoadError, cpu};

/// One thread's event loop with its connections, tickets and counts.
pub(crate) struct Worker<'a> {
    config: &'a LoadConfig,
    tally: &'a Mutex<Tally>,
    stop: &'a AtomicBool,
    connector: Connector,
    offer: Offer,
    shared: Shared,
    addresses: Vec<SockAddr>,
    /// By address.
    tickets: Vec<Tickets>,
    turn: usize,
    epoll: Epoll,
    timer: TimerFd,
    /// What the timer is set to.
    armed: Option<Instant>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    timeouts: Deadlines,
    goodbyes: Deadlines,
    window_end: Option<Instant>,
    start: Instant,
    warm_up_failure: Option<Failure>,
}

/// A place for a connection. The generation tells events of the one before from those of this.
#[derive(Default)]
struct Slot {
    generation: u32,
    place: Option<Place>,
}

struct Place {
    connection: Connection,
    address: usize,
    role: Role,
    watches_writable: bool,
    says_goodbye: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    WarmUp,
    Refill,
    Measured,
}

/// How long a server may take to close after its answer, before we do. It closes first so that the
/// ports are kept waiting (TIME_WAIT) on its side.
const GOODBYE: Duration = Duration::from_millis(250);

/// At least so often a thread looks whether it should stop.
const LOOK: Duration = Duration::from_millis(100);

/// How many connections are begun before events are looked at again.
const BURST: usize = 4;

/// Marks the timer among the events.
const TIMER: u64 = u64::MAX;

impl<'a> Worker<'a> {
    pub(crate) fn new(
        config: &'a LoadConfig,
        tally: &'a Mutex<Tally>,
        stop: &'a AtomicBool,
        most_tickets: usize,
    ) -> Result<Self, LoadError> {
        let connector = Connector::new(ConnectorConfig {
            min_version: config.version,
            max_version: config.version,
            ciphers: config.ciphers.clone(),
            alpn: config.exchange.alpn(),
            ..ConnectorConfig::new(config.trust.clone())
        })?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(io::Error::from)?;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC)
            .map_err(io::Error::from)?;
        // Edge-triggered: it need not be read.
        let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, TIMER);
        epoll.add(&timer, event).map_err(io::Error::from)?;
        let early_data = config.kind == Kind::ZeroRtt;
        Ok(Self {
            config,
            tally,
            stop,
            connector,
            offer: Offer { host: config.host.clone(), session: None, early_data },
            shared: Shared {
                exchange: config.exchange.clone(),
                request: config.exchange.request(),
                fast_open: config.fast_open,
                wants_tickets: config.kind != Kind::Full,
                cipher_text: vec![0; BUFFER].into(),
                plain_text: vec![0; BUFFER].into(),
            },
            addresses: config.addresses.iter().copied().map(SockAddr::from).collect(),
            tickets: config
                .addresses
                .iter()
                .map(|_| Tickets::new(early_data, most_tickets))
                .collect(),
            turn: 0,
            epoll,
            timer,
            armed: None,
            slots: Vec::new(),
            free: Vec::new(),
            timeouts: Deadlines::new(config.timeout),
            goodbyes: Deadlines::new(GOODBYE),
            window_end: None,
            start: Instant::now(),
            warm_up_failure: None,
        })
    }

    /// Has each server answer once, and collects `wanted` tickets of each where the run needs them.
    pub(crate) fn warm_up(&mut self, wanted: usize) -> Result<(), LoadError> {
        for index in 0..self.addresses.len() {
            let address = self.config.addresses[index];
            self.fetch_tickets(index, 1)?;
            if let Some(failure) = self.warm_up_failure.take() {
                return Err(LoadError::WarmUp { address, reason: failure.reason });
            }
            if self.config.kind == Kind::Full || self.stop.load(Ordering::Relaxed) {
                continue;
            }
            let each = self.tickets[index].supply();
            if each == 0 {
                let what = match self.config.kind {
                    Kind::ZeroRtt => "tickets that allow early data",
                    _ => "tickets",
                };
                return Err(LoadError::NoTickets { address, what });
            }
            let lacking = wanted.saturating_sub(each).div_ceil(each);
            self.fetch_tickets(index, lacking)?;
            self.warm_up_failure = None;
        }
        Ok(())
    }

    /// Runs a source to its end.
    pub(crate) fn run(
        &mut self,
        mut source: Source,
        start: Instant,
        window_end: Option<Instant>,
    ) -> Result<(), LoadError> {
        self.start = start;
        self.window_end = window_end;
        let before = cpu::of_this_thread();
        self.drive(&mut source)?;
        let mut tally = self.tally();
        tally.cpu = cpu::of_this_thread().saturating_sub(before);
        tally.not_begun = source.not_begun();
        Ok(())
    }

    fn fetch_tickets(&mut self, address: usize, connections: usize) -> Result<(), LoadError> {
        self.drive(&mut Source::WarmUp { address, left: connections, open: 0 })
    }

    fn drive(&mut self, source: &mut Source) -> Result<(), LoadError> {
        let mut events = [EpollEvent::empty(); 256];
        loop {
            let now = Instant::now();
            if self.stop.load(Ordering::Relaxed) {
                source.stop(now);
            }
            self.expire(now, source);
            self.begin_due(BURST, source)?;
            if source.is_over(now) && self.free.len() == self.slots.len() {
                return Ok(());
            }
            let count = self.wait(source, &mut events)?;
            for event in &events[..count] {
                if event.data() != TIMER {
                    self.happened(event, source)?;
                }
                // Between events too, so that many of them do not make the next arrival late; one,
                // so that on a busy core those begun get on.
                self.begin_due(1, source)?;
            }
        }
    }

    fn wait(&mut self, source: &Source, events: &mut [EpollEvent]) -> Result<usize, LoadError> {
        let now = Instant::now();
        let mut patience = LOOK;
        for deadline in [self.timeouts.next(), self.goodbyes.next()].into_iter().flatten() {
            patience = patience.min(deadline.saturating_duration_since(now) + MILLISECOND);
        }
        if let Some(due) = source.next_due(now) {
            match due.checked_duration_since(now).filter(|left| !left.is_zero()) {
                None => patience = Duration::ZERO,
                Some(left) if left < patience => self.arm(due, left)?,
                Some(_) => {}
            }
        }
        let patience = EpollTimeout::try_from(patience).unwrap_or(EpollTimeout::ZERO);
        match self.epoll.wait(events, patience) {
            Ok(count) => Ok(count),
            Err(nix::errno::Errno::EINTR) => Ok(0),
            Err(error) => Err(io::Error::from(error).into()),
        }
    }

    /// Sets the timer, which is finer than the milliseconds of epoll's own patience.
    fn arm(&mut self, due: Instant, left: Duration) -> Result<(), LoadError> {
        if self.armed != Some(due) {
            let expiration = Expiration::OneShot(TimeSpec::from(left));
            self.timer.set(expiration, TimerSetTimeFlags::empty()).map_err(io::Error::from)?;
            self.armed = Some(due);
        }
        Ok(())
    }

    fn begin_due(&mut self, most: usize, source: &mut Source) -> Result<(), LoadError> {
        for _ in 0..most {
            let now = Instant::now();
            let Some(purpose) = source.next(now) else { break };
            self.begin(purpose, source, now)?;
        }
        Ok(())
    }

    fn begin(
        &mut self,
        purpose: Purpose,
        source: &mut Source,
        now: Instant,
    ) -> Result<(), LoadError> {
        let (mut role, address, intended) = match purpose {
            Purpose::WarmUp { address } => (Role::WarmUp, address, now),
            Purpose::Measured { intended } => {
                self.turn = (self.turn + 1) % self.addresses.len();
                (Role::Measured, self.turn, intended)
            }
        };
        self.offer.session = None;
        if role == Role::Measured && self.config.kind != Kind::Full {
            self.offer.session = self.tickets[address].take();
            if self.offer.session.is_none() {
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
        let begun =
            self.connector.machine(&self.offer).map_err(Failure::from).and_then(|machine| {
                Connection::begin(machine, &self.addresses[address], intended, &self.shared)
            });
        match begun {
            Ok((connection, step)) => {
                let writable = matches!(step, Step::Wait { writable: true });
                self.place(connection, address, role, writable, now)
            }
            Err(failure) => {
                self.count(role, Err(failure));
                source.ended(false, false, now);
                Ok(())
            }
        }
    }

    fn place(
        &mut self,
        connection: Connection,
        address: usize,
        role: Role,
        writable: bool,
        now: Instant,
    ) -> Result<(), LoadError> {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        let slot = &mut self.slots[index];
        let event = interest(writable, index, slot.generation);
        self.epoll.add(&connection.socket, event).map_err(io::Error::from)?;
        self.timeouts.push(now, index, slot.generation);
        slot.place = Some(Place {
            connection,
            address,
            role,
            watches_writable: writable,
            says_goodbye: false,
        });
        Ok(())
    }

    fn happened(&mut self, event: &EpollEvent, source: &mut Source) -> Result<(), LoadError> {
        let (index, generation) = unpack(event.data());
        let slot = &mut self.slots[index];
        let Some(place) = slot.place.as_mut().filter(|_| slot.generation == generation) else {
            return Ok(());
        };
        let readable = event.events().intersects(!EpollFlags::EPOLLOUT);
        let writable = match place.connection.ready(readable, &mut self.shared) {
            Ok(Step::Wait { writable }) => writable,
            Ok(Step::Answered { writable }) => {
                if !std::mem::replace(&mut place.says_goodbye, true) {
                    self.goodbyes.push(Instant::now(), index, generation);
                }
                writable
            }
            Ok(Step::Done) => {
                self.end(index, None, source);
                return Ok(());
            }
            Err(failure) => {
                self.end(index, Some(failure), source);
                return Ok(());
            }
        };
        if writable != place.watches_writable {
            place.watches_writable = writable;
            let mut event = interest(writable, index, generation);
            self.epoll.modify(&place.connection.socket, &mut event).map_err(io::Error::from)?;
        }
        Ok(())
    }

    /// Ends those whose time is over: well, if only the server's close was missing.
    fn expire(&mut self, now: Instant, source: &mut Source) {
        for goodbye in [true, false] {
            loop {
                let deadlines = if goodbye { &mut self.goodbyes } else { &mut self.timeouts };
                let slots = &self.slots;
                let stale = |index: usize, generation| slots[index].generation != generation;
                let Some(index) = deadlines.pop(now, stale) else { break };
                let answered = self.slots[index]
                    .place
                    .as_ref()
                    .is_some_and(|place| place.connection.is_answered());
                self.end(index, (!answered).then(Failure::timeout), source);
            }
        }
    }

    /// Takes a connection out of its place; dropping it closes the socket, which epoll forgets.
    fn end(&mut self, index: usize, failure: Option<Failure>, source: &mut Source) {
        let slot = &mut self.slots[index];
        slot.generation = slot.generation.wrapping_add(1);
        let Some(mut place) = slot.place.take() else { return };
        self.free.push(index);
        if self.config.fast_open && failure.is_none() {
            place.connection.look_at_fast_open();
        }
        let (ended, tickets) = match failure {
            Some(failure) => (Err(failure), Vec::new()),
            None => place.connection.finish(),
        };
        let (well, any) = (ended.is_ok(), !tickets.is_empty());
        self.tickets[place.address].put(tickets);
        self.count(place.role, ended);
        source.ended(well, any, Instant::now());
    }

    fn count(&mut self, role: Role, ended: Result<Finished, Failure>) {
        if role == Role::WarmUp {
            match ended {
                Ok(_) => self.tally().warm_up += 1,
                Err(failure) => self.warm_up_failure = Some(failure),
            }
            return;
        }
        let now = Instant::now();
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

const MILLISECOND: Duration = Duration::from_millis(1);

fn interest(writable: bool, index: usize, generation: u32) -> EpollEvent {
    let flags = match writable {
        true => EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT,
        false => EpollFlags::EPOLLIN,
    };
    EpollEvent::new(flags, (u64::from(generation) << 32) | index as u64)
}

fn unpack(data: u64) -> (usize, u32) {
    ((data & u64::from(u32::MAX)) as usize, (data >> 32) as u32)
}

/// Deadlines that all lie equally far ahead when they are set, so that they come in order.
struct Deadlines {
    after: Duration,
    queue: VecDeque<(Instant, usize, u32)>,
}

impl Deadlines {
    fn new(after: Duration) -> Self {
        Self { after, queue: VecDeque::new() }
    }

    fn push(&mut self, now: Instant, index: usize, generation: u32) {
        self.queue.push_back((now + self.after, index, generation));
    }

    /// The next one that is over at `now`; those that are stale go without a word.
    fn pop(&mut self, now: Instant, stale: impl Fn(usize, u32) -> bool) -> Option<usize> {
        while let Some(&(deadline, index, generation)) = self.queue.front() {
            let stale = stale(index, generation);
            if !stale && deadline > now {
                return None;
            }
            self.queue.pop_front();
            if !stale {
                return Some(index);
            }
        }
        None
    }

    fn next(&self) -> Option<Instant> {
        self.queue.front().map(|(deadline, ..)| *deadline)
    }
}
