use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use firstflight_tls::{ConnectOptions, Connector, ConnectorConfig, Session};
use nix::sys::epoll::{EpollEvent, EpollFlags};
use socket2::SockAddr;

use crate::connection::{BUFFER, Connection, Shared, Step};
use crate::deadlines::Deadlines;
use crate::events::{EventQueue, TIMER};
use crate::failure::Failure;
use crate::ledger::{Assignment, Driver, Role, WorkerState};
use crate::source::{Purpose, Source};
use crate::tally::Tally;
use crate::{Kind, LoadConfig, LoadError, Transport};

/// One thread's event loop with its connections, tickets and counts.
pub(crate) struct Worker<'a> {
    ledger: WorkerState<'a, Session>,
    connector: Connector,
    offer: ConnectOptions,
    shared: Shared,
    addresses: Vec<SockAddr>,
    queue: EventQueue,
    slots: Vec<Slot>,
    free: Vec<usize>,
    timeouts: Deadlines,
    goodbyes: Deadlines,
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

/// How long a server may take to close after its response, before we do. It closes first so that
/// the ports are kept waiting (TIME_WAIT) on its side.
const GOODBYE: Duration = Duration::from_millis(250);

/// How many connections are started before events are looked at again.
const BURST: usize = 4;

impl<'a> Driver<'a> for Worker<'a> {
    type Ticket = Session;

    fn ledger(&mut self) -> &mut WorkerState<'a, Session> {
        &mut self.ledger
    }

    fn drive(&mut self, source: &mut Source) -> Result<(), LoadError> {
        let mut events = [EpollEvent::empty(); 256];
        loop {
            let now = Instant::now();
            if self.ledger.is_stopped() {
                source.stop(now);
            }
            self.expire(now, source);
            self.begin_due(BURST, source)?;
            if source.is_over(now) && self.free.len() == self.slots.len() {
                return Ok(());
            }
            let deadlines = [self.timeouts.next(), self.goodbyes.next()];
            let due = source.next_due(Instant::now());
            let count = self.queue.wait(&deadlines, due, &mut events)?;
            for event in &events[..count] {
                if event.data() != TIMER {
                    self.happened(event, source)?;
                }
                // Between events too, so that many of them do not make the next arrival late; one,
                // so that on a busy core those started get on.
                self.begin_due(1, source)?;
            }
        }
    }
}

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
            alpn: config.exchange.alpn(Transport::Tcp),
            ..ConnectorConfig::new(config.trust.clone())
        })?;
        let early_data = config.kind == Kind::ZeroRtt;
        Ok(Self {
            ledger: WorkerState::new(config, tally, stop, most_tickets),
            connector,
            offer: ConnectOptions { host: config.host.clone(), session: None, early_data },
            shared: Shared {
                exchange: config.exchange.clone(),
                request: config.exchange.request(),
                fast_open: config.fast_open,
                wants_tickets: config.kind != Kind::Full,
                cipher_text: vec![0; BUFFER].into(),
                plain_text: vec![0; BUFFER].into(),
            },
            addresses: config.addresses.iter().copied().map(SockAddr::from).collect(),
            queue: EventQueue::new()?,
            slots: Vec::new(),
            free: Vec::new(),
            timeouts: Deadlines::new(config.timeout),
            goodbyes: Deadlines::new(GOODBYE),
        })
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
        let Assignment { role, address, intended, ticket } =
            self.ledger.assign(purpose, source, now);
        self.offer.session = ticket;
        let begun =
            self.connector.connection(&self.offer).map_err(Failure::from).and_then(|machine| {
                Connection::begin(machine, &self.addresses[address], intended, &self.shared)
            });
        match begun {
            Ok((connection, step)) => {
                let writable = matches!(step, Step::Wait { writable: true });
                self.place(connection, address, role, writable, now)
            }
            Err(failure) => {
                self.ledger.ended(role, address, Err(failure), Vec::new(), source);
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
        self.queue.add(&connection.socket, event)?;
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
            let event = interest(writable, index, generation);
            self.queue.modify(&place.connection.socket, event)?;
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
        if self.shared.fast_open && failure.is_none() {
            place.connection.look_at_fast_open();
        }
        let (ended, tickets) = match failure {
            Some(failure) => (Err(failure), Vec::new()),
            None => place.connection.finish(),
        };
        self.ledger.ended(place.role, place.address, ended, tickets, source);
    }
}

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
