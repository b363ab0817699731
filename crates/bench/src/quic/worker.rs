use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use firstflight_quic::{ClientCrypto, Remembered, ResetKey};
use firstflight_tls::ConnectorConfig;
use nix::sys::epoll::{EpollEvent, EpollFlags};
use quinn_proto::{
    ClientConfig, ConnectionHandle, DatagramEvent, Endpoint, EndpointConfig, EndpointEvent,
    TransportConfig,
};

use super::connection::{Connection, QuicTicket, Shared, Step};
use super::socket::{Datagram, ReceiveBuffer, UdpSocket};
use super::timers::{Timer, Timers};
use crate::deadlines::Deadlines;
use crate::events::{EventQueue, TIMER};
use crate::failure::Failure;
use crate::ledger::{Assignment, Driver, Role, WorkerState};
use crate::source::{Purpose, Source};
use crate::tally::Tally;
use crate::{Kind, LoadConfig, LoadError, Transport};

/// One thread's event loop over QUIC, with its connections, tickets and counts.
pub(crate) struct QuicWorker<'a> {
    ledger: WorkerState<'a, QuicTicket>,
    crypto: Arc<ClientCrypto>,
    transport: Arc<TransportConfig>,
    shared: Shared,
    endpoint: Endpoint,
    /// Those of the first address, then those of the second.
    sockets: Vec<UdpSocket>,
    socket_turn: usize,
    queue: EventQueue,
    timers: Timers,
    timeouts: Deadlines,
    goodbyes: Deadlines,
    /// By the endpoint's handle.
    slots: Vec<Slot>,
    open: usize,
    /// Places where something came that was not looked at.
    touched: Vec<usize>,
    space: Space,
}

/// Room that is used again and again.
struct Space {
    receive: ReceiveBuffer,
    datagrams: Vec<Datagram>,
    transmit: Vec<u8>,
}

/// A place for a connection. The generation tells deadlines of the one before from those of this.
#[derive(Default)]
struct Slot {
    generation: u32,
    place: Option<Box<Place>>,
}

struct Place {
    connection: Connection,
    address: usize,
    socket: usize,
    role: Role,
    timer: Timer,
    touched: bool,
    says_goodbye: bool,
}

/// Sockets for each address. Each has a port of its own, so that a server that spreads by address
/// and port can; connections of one socket are told apart by their ids.
const SOCKETS: usize = 8;

/// How long tickets are waited for after the response.
const GOODBYE: Duration = Duration::from_millis(250);

/// How many connections are started before events are looked at again.
const BURST: usize = 4;

/// How many datagrams go with one call at most (GSO).
const SEGMENTS: usize = 10;

impl<'a> Driver<'a> for QuicWorker<'a> {
    type Ticket = QuicTicket;

    fn ledger(&mut self) -> &mut WorkerState<'a, QuicTicket> {
        &mut self.ledger
    }

    fn drive(&mut self, source: &mut Source) -> Result<(), LoadError> {
        let mut events = [EpollEvent::empty(); 64];
        loop {
            let now = Instant::now();
            if self.ledger.is_stopped() {
                source.stop(now);
            }
            self.expire(now, source);
            self.begin_due(BURST, source);
            if source.is_over(now) && self.open == 0 {
                return Ok(());
            }
            let deadlines = [self.timers.next(), self.timeouts.next(), self.goodbyes.next()];
            let due = source.next_due(Instant::now());
            let count = self.queue.wait(&deadlines, due, &mut events)?;
            for event in &events[..count] {
                if event.data() != TIMER {
                    self.happened(event, source)?;
                }
                // Between events too, so that many of them do not make the next arrival late.
                self.begin_due(1, source);
            }
        }
    }
}

impl<'a> QuicWorker<'a> {
    pub(crate) fn new(
        config: &'a LoadConfig,
        tally: &'a Mutex<Tally>,
        stop: &'a AtomicBool,
        most_tickets: usize,
    ) -> Result<Self, LoadError> {
        let crypto = ClientCrypto::new(ConnectorConfig {
            min_version: config.version,
            max_version: config.version,
            ciphers: config.ciphers.clone(),
            alpn: config.exchange.alpn(Transport::Quic),
            ..ConnectorConfig::new(config.trust.clone())
        })?;
        let mut sockets = Vec::new();
        let queue = EventQueue::new()?;
        for address in config.addresses.iter().flat_map(|address| [address; SOCKETS]) {
            let socket = UdpSocket::connect(*address)?;
            queue.add(&socket.socket, interest(false, sockets.len()))?;
            sockets.push(socket);
        }
        let reset_key = Arc::new(ResetKey::new(rand::random()));
        Ok(Self {
            ledger: WorkerState::new(config, tally, stop, most_tickets),
            crypto,
            transport: Arc::new(transport()),
            shared: Shared::new(&config.exchange, config.kind != Kind::Full),
            endpoint: Endpoint::new(Arc::new(EndpointConfig::new(reset_key)), None, false, None),
            sockets,
            socket_turn: 0,
            queue,
            timers: Timers::default(),
            timeouts: Deadlines::new(config.timeout),
            goodbyes: Deadlines::new(GOODBYE),
            slots: Vec::new(),
            open: 0,
            touched: Vec::new(),
            space: Space {
                receive: ReceiveBuffer::new(),
                datagrams: Vec::new(),
                transmit: Vec::new(),
            },
        })
    }

    fn begin_due(&mut self, most: usize, source: &mut Source) {
        for _ in 0..most {
            let now = Instant::now();
            let Some(purpose) = source.next(now) else { break };
            self.begin(purpose, source, now);
        }
    }

    fn begin(&mut self, purpose: Purpose, source: &mut Source, now: Instant) {
        let mut assignment = self.ledger.assign(purpose, source, now);
        let (role, address) = (assignment.role, assignment.address);
        match self.connect(&mut assignment, now) {
            Ok((handle, connection)) => {
                self.place(handle, connection, role, address, now);
                self.settle(handle.0, source);
            }
            Err(failure) => self.ledger.ended(role, address, Err(failure), Vec::new(), source),
        }
    }

    fn connect(
        &mut self,
        assignment: &mut Assignment<QuicTicket>,
        now: Instant,
    ) -> Result<(ConnectionHandle, Connection), Failure> {
        let config = self.ledger.config;
        let ticket = assignment.ticket.take();
        let remembered = Remembered {
            token: ticket.as_ref().and_then(|ticket| ticket.token.clone()),
            resumption: ticket.map(|ticket| ticket.resumption),
            early_data: config.kind == Kind::ZeroRtt && assignment.role == Role::Measured,
        };
        let (crypto, tokens, inbox) = self.crypto.for_connection(&config.host, remembered)?;
        let mut client = ClientConfig::new(crypto);
        client.transport_config(Arc::clone(&self.transport)).token_store(tokens);
        let address = config.addresses[assignment.address];
        let (handle, quic) = self
            .endpoint
            .connect(now, client, address, &config.host)
            .map_err(|error| Failure::new(crate::ErrorKind::Quic, error.to_string()))?;
        match Connection::begin(quic, inbox, assignment.intended, &self.shared) {
            Ok(connection) => Ok((handle, connection)),
            Err(failure) => {
                self.endpoint.handle_event(handle, EndpointEvent::drained());
                Err(failure)
            }
        }
    }

    fn place(
        &mut self,
        handle: ConnectionHandle,
        connection: Connection,
        role: Role,
        address: usize,
        now: Instant,
    ) {
        let index = handle.0;
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, Slot::default);
        }
        self.socket_turn = (self.socket_turn + 1) % SOCKETS;
        let slot = &mut self.slots[index];
        self.timeouts.push(now, index, slot.generation);
        slot.place = Some(Box::new(Place {
            connection,
            address,
            socket: address * SOCKETS + self.socket_turn,
            role,
            timer: Timer::default(),
            touched: false,
            says_goodbye: false,
        }));
        self.open += 1;
    }

    fn happened(&mut self, event: &EpollEvent, source: &mut Source) -> Result<(), LoadError> {
        let index = event.data() as usize;
        if event.events().contains(EpollFlags::EPOLLOUT) {
            let flushed = self.sockets[index].flush();
            self.look_at_socket(index, flushed, source)?;
            if !self.sockets[index].is_blocked() {
                let socket = &self.sockets[index].socket;
                self.queue.modify(socket, interest(false, index))?;
            }
        }
        if event.events().intersects(!EpollFlags::EPOLLOUT) {
            let Space { receive, datagrams, .. } = &mut self.space;
            let received = self.sockets[index].receive(receive, datagrams);
            self.look_at_socket(index, received.map(drop), source)?;
            self.take(index, source);
        }
        Ok(())
    }

    /// Where nobody listens, all that wait there have failed; other errors are ours.
    fn look_at_socket(
        &mut self,
        index: usize,
        result: io::Result<()>,
        source: &mut Source,
    ) -> Result<(), LoadError> {
        let Err(error) = result else { return Ok(()) };
        if error.kind() != io::ErrorKind::ConnectionRefused {
            return Err(error.into());
        }
        for place in 0..self.slots.len() {
            if self.slots[place].place.as_ref().is_some_and(|place| place.socket == index) {
                let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
                self.end(place, Some(refused.into()), source);
            }
        }
        Ok(())
    }

    /// Hands the datagrams that came to their connections, and sees what came of it.
    fn take(&mut self, socket: usize, source: &mut Source) {
        let now = Instant::now();
        let from = self.ledger.config.addresses[socket / SOCKETS];
        for Datagram { ecn, data } in self.space.datagrams.drain(..) {
            self.space.transmit.clear();
            let event = self.endpoint.handle(now, from, None, ecn, data, &mut self.space.transmit);
            // Others are for connections that are over: nobody is owed a reset.
            let Some(DatagramEvent::ConnectionEvent(handle, event)) = event else { continue };
            let Some(place) = self.slots[handle.0].place.as_mut() else { continue };
            place.connection.quic.handle_event(event);
            if !std::mem::replace(&mut place.touched, true) {
                self.touched.push(handle.0);
            }
        }
        while let Some(index) = self.touched.pop() {
            self.settle(index, source);
        }
    }

    /// Sees what came of datagrams or time, sends what is to be sent, and sets the timer.
    fn settle(&mut self, index: usize, source: &mut Source) {
        let slot = &mut self.slots[index];
        let Some(place) = &mut slot.place else { return };
        place.touched = false;
        match place.connection.go_on(&self.shared) {
            Ok(Step::Wait) => {}
            Ok(Step::Answered) => {
                if !std::mem::replace(&mut place.says_goodbye, true) {
                    self.goodbyes.push(Instant::now(), index, slot.generation);
                }
            }
            Ok(Step::Done) => return self.end(index, None, source),
            Err(failure) => return self.end(index, Some(failure), source),
        }
        while let Some(event) = place.connection.quic.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(ConnectionHandle(index), event) {
                place.connection.quic.handle_event(event);
            }
        }
        if let Err(error) = self.send(index) {
            return self.end(index, Some(error.into()), source);
        }
        let slot = &mut self.slots[index];
        let Some(place) = &mut slot.place else { return };
        let due = place.connection.quic.poll_timeout();
        self.timers.set(&mut place.timer, due, index, slot.generation);
    }

    fn send(&mut self, index: usize) -> io::Result<()> {
        let Some(place) = &mut self.slots[index].place else { return Ok(()) };
        let socket = &mut self.sockets[place.socket];
        let (segments, was_blocked) = (socket.segments().min(SEGMENTS), socket.is_blocked());
        let buffer = &mut self.space.transmit;
        loop {
            buffer.clear();
            let now = Instant::now();
            let Some(transmit) = place.connection.quic.poll_transmit(now, segments, buffer) else {
                break;
            };
            socket.send(transmit, buffer)?;
        }
        if socket.is_blocked() && !was_blocked {
            self.queue.modify(&socket.socket, interest(true, place.socket))?;
        }
        Ok(())
    }

    /// Lets the time pass for connections, and ends those whose own is over: well, if only tickets
    /// were missing.
    fn expire(&mut self, now: Instant, source: &mut Source) {
        while let Some((index, generation)) = self.timers.pop(now) {
            let slot = &mut self.slots[index];
            let Some(place) = slot.place.as_mut().filter(|_| slot.generation == generation) else {
                continue;
            };
            if self.timers.has_come(&mut place.timer, now, index, generation) {
                place.connection.quic.handle_timeout(now);
                self.settle(index, source);
            }
        }
        for goodbye in [true, false] {
            loop {
                let deadlines = if goodbye { &mut self.goodbyes } else { &mut self.timeouts };
                let slots = &self.slots;
                let stale = |index: usize, generation| slots[index].generation != generation;
                let Some(index) = deadlines.pop(now, stale) else { break };
                let answered =
                    slots[index].place.as_ref().is_some_and(|place| place.connection.is_answered());
                self.end(index, (!answered).then(Failure::timeout), source);
            }
        }
    }

    /// Says goodbye and takes a connection out of its place, without waiting for what may still
    /// come (RFC 9000 section 10.2): the endpoint drops it.
    fn end(&mut self, index: usize, failure: Option<Failure>, source: &mut Source) {
        let Some(place) = &mut self.slots[index].place else { return };
        place.connection.close(Instant::now());
        // Whether it leaves makes no difference to what was measured.
        let _ = self.send(index);
        let slot = &mut self.slots[index];
        let Some(place) = slot.place.take() else { return };
        slot.generation = slot.generation.wrapping_add(1);
        self.open -= 1;
        self.endpoint.handle_event(ConnectionHandle(index), EndpointEvent::drained());
        let Place { connection, role, address, .. } = *place;
        let (ended, tickets) = match failure {
            Some(failure) => (Err(failure), Vec::new()),
            None => connection.finish(),
        };
        self.ledger.ended(role, address, ended, tickets, source);
    }
}

/// As the project's client has it, but without probing for larger datagrams: no connection here
/// lives long enough to use them.
fn transport() -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport.mtu_discovery_config(None).initial_mtu(1452).max_idle_timeout(None);
    transport
}

fn interest(writable: bool, index: usize) -> EpollEvent {
    let flags = match writable {
        true => EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT,
        false => EpollFlags::EPOLLIN,
    };
    EpollEvent::new(flags, index as u64)
}
