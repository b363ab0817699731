use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use firstflight_tls::{ConnectOptions, Connector, ConnectorConfig, Session};
use nix::sys::epoll::{EpollEvent, EpollFlags};
use socket2::SockAddr;

use super::connection::{BUFFER_BYTES, Connection, Shared, Step};
use crate::counts::Counts;
use crate::error::Failure;
use crate::events::{Deadlines, EventQueue, TIMER};
use crate::source::{Purpose, Source};
use crate::worker::{Assignment, Role, Worker, WorkerState};
use crate::{LoadConfig, LoadError, LoadHandshake, Transport};

/// The event loop of one thread, with its connections, tickets and counts.
pub(crate) struct TcpWorker<'a> {
    state: WorkerState<'a, Session>,
    connector: Connector,
    offer: ConnectOptions,
    shared: Shared,
    addresses: Vec<SockAddr>,
    queue: EventQueue,
    slots: Vec<Slot>,
    free: Vec<usize>,
    timeouts: Deadlines,
    close_deadlines: Deadlines,
}

/// A slot for a connection. The generation distinguishes its events from those of earlier
/// connections.
#[derive(Default)]
struct Slot {
    generation: u32,
    open: Option<OpenConnection>,
}

struct OpenConnection {
    connection: Connection,
    address: usize,
    role: Role,
    watches_writable: bool,
    awaits_close: bool,
}

/// How long the server may take to close after its response, before the client closes. The side that
/// closes first keeps the port in TIME_WAIT, and that should not be the client.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(250);

/// Limits the connections that start before events are processed again.
const MAX_BURST: usize = 4;

impl<'a> Worker<'a> for TcpWorker<'a> {
    type Ticket = Session;

    fn state(&mut self) -> &mut WorkerState<'a, Session> {
        &mut self.state
    }

    fn drive(&mut self, source: &mut Source) -> Result<(), LoadError> {
        let mut events = [EpollEvent::empty(); 256];
        loop {
            let now = Instant::now();
            if self.state.is_stopped() {
                source.stop(now);
            }
            self.expire(now, source);
            self.start_due(MAX_BURST, source)?;
            if source.is_finished(now) && self.free.len() == self.slots.len() {
                return Ok(());
            }
            let deadlines = [self.timeouts.next(), self.close_deadlines.next()];
            let due = source.next_due(Instant::now());
            let count = self.queue.wait(&deadlines, due, &mut events)?;
            for event in &events[..count] {
                if event.data() != TIMER {
                    self.handle_event(event, source)?;
                }
                // Also between events, so that many events do not delay the next connection. Only
                // one, so that open connections make progress on a busy core.
                self.start_due(1, source)?;
            }
        }
    }
}

impl<'a> TcpWorker<'a> {
    pub(crate) fn new(
        config: &'a LoadConfig,
        counts: &'a Mutex<Counts>,
        stop: &'a AtomicBool,
        max_tickets: usize,
    ) -> Result<Self, LoadError> {
        let connector = Connector::new(ConnectorConfig {
            min_version: config.version,
            max_version: config.version,
            ciphers: config.ciphers.clone(),
            alpn: config.exchange.alpn(Transport::Tcp),
            ..ConnectorConfig::new(config.trust.clone())
        })?;
        let early_data = config.kind == LoadHandshake::ZeroRtt;
        Ok(Self {
            state: WorkerState::new(config, counts, stop, max_tickets),
            connector,
            offer: ConnectOptions { host: config.host.clone(), session: None, early_data },
            shared: Shared {
                exchange: config.exchange.clone(),
                request: config.exchange.request(),
                fast_open: config.fast_open,
                wants_tickets: config.kind != LoadHandshake::Full,
                cipher_text: vec![0; BUFFER_BYTES].into(),
                plain_text: vec![0; BUFFER_BYTES].into(),
            },
            addresses: config.addresses.iter().copied().map(SockAddr::from).collect(),
            queue: EventQueue::new()?,
            slots: Vec::new(),
            free: Vec::new(),
            timeouts: Deadlines::new(config.timeout),
            close_deadlines: Deadlines::new(CLOSE_TIMEOUT),
        })
    }

    fn start_due(&mut self, max: usize, source: &mut Source) -> Result<(), LoadError> {
        for _ in 0..max {
            let now = Instant::now();
            let Some(purpose) = source.next(now) else { break };
            self.start(purpose, source, now)?;
        }
        Ok(())
    }

    fn start(
        &mut self,
        purpose: Purpose,
        source: &mut Source,
        now: Instant,
    ) -> Result<(), LoadError> {
        let Assignment { role, address, intended, ticket } = self.state.assign(purpose, now);
        self.offer.session = ticket;
        let started =
            self.connector.connection(&self.offer).map_err(Failure::from).and_then(|tls| {
                Connection::start(tls, &self.addresses[address], intended, &self.shared)
            });
        match started {
            Ok((connection, step)) => {
                let writable = matches!(step, Step::Wait { writable: true });
                self.insert(connection, address, role, writable, now)
            }
            Err(failure) => {
                self.state.connection_ended(role, address, Err(failure), Vec::new(), source);
                Ok(())
            }
        }
    }

    fn insert(
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
        slot.open = Some(OpenConnection {
            connection,
            address,
            role,
            watches_writable: writable,
            awaits_close: false,
        });
        Ok(())
    }

    fn handle_event(&mut self, event: &EpollEvent, source: &mut Source) -> Result<(), LoadError> {
        let (index, generation) = slot_of(event.data());
        let slot = &mut self.slots[index];
        let Some(open) = slot.open.as_mut().filter(|_| slot.generation == generation) else {
            return Ok(());
        };
        let readable = event.events().intersects(!EpollFlags::EPOLLOUT);
        let writable = match open.connection.handle_ready(readable, &mut self.shared) {
            Ok(Step::Wait { writable }) => writable,
            Ok(Step::Complete { writable }) => {
                if !std::mem::replace(&mut open.awaits_close, true) {
                    self.close_deadlines.push(Instant::now(), index, generation);
                }
                writable
            }
            Ok(Step::Done) => {
                self.close(index, None, source);
                return Ok(());
            }
            Err(failure) => {
                self.close(index, Some(failure), source);
                return Ok(());
            }
        };
        if writable != open.watches_writable {
            open.watches_writable = writable;
            let event = interest(writable, index, generation);
            self.queue.modify(&open.connection.socket, event)?;
        }
        Ok(())
    }

    /// Ends connections whose deadline has expired. They succeed if their response is complete, and
    /// only the server's close is missing.
    fn expire(&mut self, now: Instant, source: &mut Source) {
        for closing in [true, false] {
            loop {
                let deadlines =
                    if closing { &mut self.close_deadlines } else { &mut self.timeouts };
                let slots = &self.slots;
                let stale = |index: usize, generation| slots[index].generation != generation;
                let Some(index) = deadlines.pop(now, stale) else { break };
                let complete = self.slots[index]
                    .open
                    .as_ref()
                    .is_some_and(|open| open.connection.is_complete());
                self.close(index, (!complete).then(Failure::timeout), source);
            }
        }
    }

    /// Removes a connection from its slot. Dropping it closes the socket and removes it from epoll.
    fn close(&mut self, index: usize, failure: Option<Failure>, source: &mut Source) {
        let slot = &mut self.slots[index];
        slot.generation = slot.generation.wrapping_add(1);
        let Some(mut open) = slot.open.take() else { return };
        self.free.push(index);
        if self.shared.fast_open && failure.is_none() {
            open.connection.read_fast_open();
        }
        let (result, tickets) = match failure {
            Some(failure) => (Err(failure), Vec::new()),
            None => open.connection.finish(),
        };
        self.state.connection_ended(open.role, open.address, result, tickets, source);
    }
}

fn interest(writable: bool, index: usize, generation: u32) -> EpollEvent {
    let flags = match writable {
        true => EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT,
        false => EpollFlags::EPOLLIN,
    };
    EpollEvent::new(flags, (u64::from(generation) << 32) | index as u64)
}

fn slot_of(data: u64) -> (usize, u32) {
    ((data & u64::from(u32::MAX)) as usize, (data >> 32) as u32)
}
