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
use crate::counts::Counts;
use crate::error::Failure;
use crate::events::{Deadlines, EventQueue, TIMER, Timer, Timers};
use crate::source::{Purpose, Source};
use crate::worker::{Assignment, Role, Worker, WorkerState};
use crate::{LoadConfig, LoadError, LoadHandshake, Transport};

/// The event loop of one thread over QUIC, with its connections, tickets and counts.
pub(crate) struct QuicWorker<'a> {
    state: WorkerState<'a, QuicTicket>,
    crypto: Arc<ClientCrypto>,
    transport: Arc<TransportConfig>,
    shared: Shared,
    endpoint: Endpoint,
    /// The sockets of the first address, then those of the second, and so on.
    sockets: Vec<UdpSocket>,
    next_socket: usize,
    queue: EventQueue,
    timers: Timers,
    timeouts: Deadlines,
    ticket_deadlines: Deadlines,
    /// Indexed by connection handle.
    slots: Vec<Slot>,
    open: usize,
    /// Slots of connections that received datagrams and were not processed yet.
    touched: Vec<usize>,
    buffers: Buffers,
}

/// Reused buffers.
struct Buffers {
    receive: ReceiveBuffer,
    datagrams: Vec<Datagram>,
    transmit: Vec<u8>,
}

/// A slot for a connection. The generation distinguishes its deadlines from those of earlier
/// connections.
#[derive(Default)]
struct Slot {
    generation: u32,
    open: Option<Box<OpenConnection>>,
}

struct OpenConnection {
    connection: Connection,
    address: usize,
    socket: usize,
    role: Role,
    timer: Timer,
    touched: bool,
    awaits_tickets: bool,
}

/// Each socket has its own port, so that a server can distribute connections by address and port.
/// Connections of one socket are told apart by their connection ids.
const SOCKETS_PER_ADDRESS: usize = 8;

/// How long a connection waits for tickets after the response.
const TICKET_TIMEOUT: Duration = Duration::from_millis(250);

/// Limits the connections that start before events are processed again.
const MAX_BURST: usize = 4;

/// Limits the datagrams that one call sends (GSO).
const MAX_SEGMENTS: usize = 10;

impl<'a> Worker<'a> for QuicWorker<'a> {
    type Ticket = QuicTicket;

    fn state(&mut self) -> &mut WorkerState<'a, QuicTicket> {
        &mut self.state
    }

    fn drive(&mut self, source: &mut Source) -> Result<(), LoadError> {
        let mut events = [EpollEvent::empty(); 64];
        loop {
            let now = Instant::now();
            if self.state.is_stopped() {
                source.stop(now);
            }
            self.expire(now, source);
            self.start_due(MAX_BURST, source);
            if source.is_finished(now) && self.open == 0 {
                return Ok(());
            }
            let deadlines =
                [self.timers.next(), self.timeouts.next(), self.ticket_deadlines.next()];
            let due = source.next_due(Instant::now());
            let count = self.queue.wait(&deadlines, due, &mut events)?;
            for event in &events[..count] {
                if event.data() != TIMER {
                    self.handle_event(event, source)?;
                }
                // Also between events, so that many events do not delay the next connection.
                self.start_due(1, source);
            }
        }
    }
}

impl<'a> QuicWorker<'a> {
    pub(crate) fn new(
        config: &'a LoadConfig,
        counts: &'a Mutex<Counts>,
        stop: &'a AtomicBool,
        max_tickets: usize,
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
        for address in config.addresses.iter().flat_map(|address| [address; SOCKETS_PER_ADDRESS]) {
            let socket = UdpSocket::connect(*address)?;
            queue.add(&socket.socket, interest(false, sockets.len()))?;
            sockets.push(socket);
        }
        let reset_key = Arc::new(ResetKey::new(rand::random()));
        Ok(Self {
            state: WorkerState::new(config, counts, stop, max_tickets),
            crypto,
            transport: Arc::new(transport()),
            shared: Shared::new(&config.exchange, config.kind != LoadHandshake::Full),
            endpoint: Endpoint::new(Arc::new(EndpointConfig::new(reset_key)), None, false, None),
            sockets,
            next_socket: 0,
            queue,
            timers: Timers::default(),
            timeouts: Deadlines::new(config.timeout),
            ticket_deadlines: Deadlines::new(TICKET_TIMEOUT),
            slots: Vec::new(),
            open: 0,
            touched: Vec::new(),
            buffers: Buffers {
                receive: ReceiveBuffer::new(),
                datagrams: Vec::new(),
                transmit: Vec::new(),
            },
        })
    }

    fn start_due(&mut self, max: usize, source: &mut Source) {
        for _ in 0..max {
            let now = Instant::now();
            let Some(purpose) = source.next(now) else { break };
            self.start(purpose, source, now);
        }
    }

    fn start(&mut self, purpose: Purpose, source: &mut Source, now: Instant) {
        let mut assignment = self.state.assign(purpose, now);
        let (role, address) = (assignment.role, assignment.address);
        match self.connect(&mut assignment, now) {
            Ok((handle, connection)) => {
                self.insert(handle, connection, role, address, now);
                self.process(handle.0, source);
            }
            Err(failure) => {
                self.state.connection_ended(role, address, Err(failure), Vec::new(), source)
            }
        }
    }

    fn connect(
        &mut self,
        assignment: &mut Assignment<QuicTicket>,
        now: Instant,
    ) -> Result<(ConnectionHandle, Connection), Failure> {
        let config = self.state.config;
        let ticket = assignment.ticket.take();
        let remembered = Remembered {
            token: ticket.as_ref().and_then(|ticket| ticket.token.clone()),
            resumption: ticket.map(|ticket| ticket.resumption),
            early_data: config.kind == LoadHandshake::ZeroRtt && assignment.role == Role::Measured,
        };
        let (crypto, tokens, inbox) = self.crypto.for_connection(&config.host, remembered)?;
        let mut client = ClientConfig::new(crypto);
        client.transport_config(Arc::clone(&self.transport)).token_store(tokens);
        let address = config.addresses[assignment.address];
        let (handle, quic) = self
            .endpoint
            .connect(now, client, address, &config.host)
            .map_err(|error| Failure::new(crate::ErrorKind::Quic, error.to_string()))?;
        match Connection::start(quic, inbox, assignment.intended, &self.shared) {
            Ok(connection) => Ok((handle, connection)),
            Err(failure) => {
                self.endpoint.handle_event(handle, EndpointEvent::drained());
                Err(failure)
            }
        }
    }

    fn insert(
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
        self.next_socket = (self.next_socket + 1) % SOCKETS_PER_ADDRESS;
        let slot = &mut self.slots[index];
        self.timeouts.push(now, index, slot.generation);
        slot.open = Some(Box::new(OpenConnection {
            connection,
            address,
            socket: address * SOCKETS_PER_ADDRESS + self.next_socket,
            role,
            timer: Timer::default(),
            touched: false,
            awaits_tickets: false,
        }));
        self.open += 1;
    }

    fn handle_event(&mut self, event: &EpollEvent, source: &mut Source) -> Result<(), LoadError> {
        let index = event.data() as usize;
        if event.events().contains(EpollFlags::EPOLLOUT) {
            let flushed = self.sockets[index].flush();
            self.check_socket(index, flushed, source)?;
            if !self.sockets[index].is_blocked() {
                let socket = &self.sockets[index].socket;
                self.queue.modify(socket, interest(false, index))?;
            }
        }
        if event.events().intersects(!EpollFlags::EPOLLOUT) {
            let Buffers { receive, datagrams, .. } = &mut self.buffers;
            let received = self.sockets[index].receive(receive, datagrams);
            self.check_socket(index, received.map(drop), source)?;
            self.dispatch(index, source);
        }
        Ok(())
    }

    /// Fails all connections of a socket if nothing listens on the server's port. Other socket errors
    /// end the run.
    fn check_socket(
        &mut self,
        index: usize,
        result: io::Result<()>,
        source: &mut Source,
    ) -> Result<(), LoadError> {
        let Err(error) = result else { return Ok(()) };
        if error.kind() != io::ErrorKind::ConnectionRefused {
            return Err(error.into());
        }
        for slot in 0..self.slots.len() {
            if self.slots[slot].open.as_ref().is_some_and(|open| open.socket == index) {
                let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
                self.close(slot, Some(refused.into()), source);
            }
        }
        Ok(())
    }

    /// Dispatches received datagrams to their connections, and processes these.
    fn dispatch(&mut self, socket: usize, source: &mut Source) {
        self.state.counts().datagrams.received += self.buffers.datagrams.len() as u64;
        let now = Instant::now();
        let from = self.state.config.addresses[socket / SOCKETS_PER_ADDRESS];
        for Datagram { ecn, data } in self.buffers.datagrams.drain(..) {
            self.buffers.transmit.clear();
            let event =
                self.endpoint.handle(now, from, None, ecn, data, &mut self.buffers.transmit);
            // Other datagrams are for connections that have ended. They need no reset.
            let Some(DatagramEvent::ConnectionEvent(handle, event)) = event else { continue };
            let Some(open) = self.slots[handle.0].open.as_mut() else { continue };
            open.connection.quic.handle_event(event);
            if !std::mem::replace(&mut open.touched, true) {
                self.touched.push(handle.0);
            }
        }
        while let Some(index) = self.touched.pop() {
            self.process(index, source);
        }
    }

    /// Advances a connection after datagrams or a timer, sends its datagrams, and sets its timer.
    fn process(&mut self, index: usize, source: &mut Source) {
        let slot = &mut self.slots[index];
        let Some(open) = &mut slot.open else { return };
        open.touched = false;
        match open.connection.advance(&self.shared) {
            Ok(Step::Wait) => {}
            Ok(Step::Complete) => {
                if !std::mem::replace(&mut open.awaits_tickets, true) {
                    self.ticket_deadlines.push(Instant::now(), index, slot.generation);
                }
            }
            Ok(Step::Done) => return self.close(index, None, source),
            Err(failure) => return self.close(index, Some(failure), source),
        }
        while let Some(event) = open.connection.quic.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(ConnectionHandle(index), event) {
                open.connection.quic.handle_event(event);
            }
        }
        if let Err(error) = self.send(index) {
            return self.close(index, Some(error.into()), source);
        }
        let slot = &mut self.slots[index];
        let Some(open) = &mut slot.open else { return };
        let due = open.connection.quic.poll_timeout();
        self.timers.set(&mut open.timer, due, index, slot.generation);
    }

    fn send(&mut self, index: usize) -> io::Result<()> {
        let Some(open) = &mut self.slots[index].open else { return Ok(()) };
        let socket = &mut self.sockets[open.socket];
        let (segments, was_blocked) = (socket.segments().min(MAX_SEGMENTS), socket.is_blocked());
        let buffer = &mut self.buffers.transmit;
        let mut sent = 0;
        loop {
            buffer.clear();
            let now = Instant::now();
            let Some(transmit) = open.connection.quic.poll_transmit(now, segments, buffer) else {
                break;
            };
            sent += transmit.segment_size.map_or(1, |size| transmit.size.div_ceil(size));
            socket.send(transmit, buffer)?;
        }
        self.state.counts().datagrams.sent += sent as u64;
        if socket.is_blocked() && !was_blocked {
            self.queue.modify(&socket.socket, interest(true, open.socket))?;
        }
        Ok(())
    }

    /// Handles expired timers, and ends connections whose deadline has expired. They succeed if
    /// their response is complete, and only tickets are missing.
    fn expire(&mut self, now: Instant, source: &mut Source) {
        while let Some((index, generation)) = self.timers.pop(now) {
            let slot = &mut self.slots[index];
            let Some(open) = slot.open.as_mut().filter(|_| slot.generation == generation) else {
                continue;
            };
            if self.timers.is_due(&mut open.timer, now, index, generation) {
                open.connection.quic.handle_timeout(now);
                self.process(index, source);
            }
        }
        for for_tickets in [true, false] {
            loop {
                let deadlines =
                    if for_tickets { &mut self.ticket_deadlines } else { &mut self.timeouts };
                let slots = &self.slots;
                let stale = |index: usize, generation| slots[index].generation != generation;
                let Some(index) = deadlines.pop(now, stale) else { break };
                let complete =
                    slots[index].open.as_ref().is_some_and(|open| open.connection.is_complete());
                self.close(index, (!complete).then(Failure::timeout), source);
            }
        }
    }

    /// Closes a connection and removes it from its slot, without a draining period (RFC 9000
    /// section 10.2): the endpoint drops late datagrams.
    fn close(&mut self, index: usize, failure: Option<Failure>, source: &mut Source) {
        let Some(open) = &mut self.slots[index].open else { return };
        open.connection.close(Instant::now());
        // A failure to send the close does not change the result.
        let _ = self.send(index);
        let slot = &mut self.slots[index];
        let Some(open) = slot.open.take() else { return };
        slot.generation = slot.generation.wrapping_add(1);
        self.open -= 1;
        self.endpoint.handle_event(ConnectionHandle(index), EndpointEvent::drained());
        let OpenConnection { connection, role, address, .. } = *open;
        let (result, tickets) = match failure {
            Some(failure) => (Err(failure), Vec::new()),
            None => connection.finish(),
        };
        self.state.connection_ended(role, address, result, tickets, source);
    }
}

/// The settings of `firstflight-client`, but without path MTU discovery: no connection here lives
/// long enough to use it.
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
