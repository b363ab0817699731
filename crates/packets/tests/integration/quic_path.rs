//! A QUIC connection between two ends over a path with a tap in its middle, on a simulated clock:
//! quinn with rustls on both sides. Its only output is the datagrams that the tap saw.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use etherparse::PacketBuilder;
use firstflight_packets::Direction;
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig,
    Event, ServerConfig, StreamEvent, StreamId, Transmit,
};

use crate::tcp_path::{Captured, MS};

/// The path and the events on it.
#[derive(Clone)]
pub(crate) struct QuicPath {
    pub(crate) rtt: u64,
    pub(crate) client: SocketAddr,
    /// The tap drops the datagrams with these numbers, by direction.
    pub(crate) drop_to_server: Vec<usize>,
    pub(crate) drop_to_client: Vec<usize>,
    /// The delay of every second datagram before it reaches the tap.
    pub(crate) late: u64,
    /// Whether every datagram reaches the tap twice.
    pub(crate) twice: bool,
    /// Whether the server requires a token first (Retry).
    pub(crate) retry: bool,
    /// Whether the client updates its keys before each request after the first.
    pub(crate) update_keys: bool,
    /// The client's address from its second request on.
    pub(crate) moves_to: Option<SocketAddr>,
    /// How many requests there are, one after the other.
    pub(crate) requests: usize,
    /// How long the client waits before each request after the first.
    pub(crate) request_gap: u64,
    /// How long the client waits after the handshake before the first request.
    pub(crate) initial_pause: u64,
    /// How long the server waits before it responds.
    pub(crate) server_pause: u64,
}

impl QuicPath {
    pub(crate) fn new(rtt: u64) -> Self {
        Self {
            rtt,
            client: SocketAddr::from(([10, 77, 1, 1], 40_000)),
            drop_to_server: Vec::new(),
            drop_to_client: Vec::new(),
            late: 0,
            twice: false,
            retry: false,
            update_keys: false,
            moves_to: None,
            requests: 1,
            request_gap: 0,
            initial_pause: 0,
            server_pause: 0,
        }
    }
}

pub(crate) const DRAFT_29: u32 = 0xff00_001d;

pub(crate) const SERVER: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 77, 1, 2), 443);

/// The configuration of both ends.
pub(crate) struct QuicSetup<'a> {
    pub(crate) client: ClientConfig,
    pub(crate) server: Arc<ServerConfig>,
    pub(crate) request: &'a [u8],
    pub(crate) response: &'a [u8],
    /// What the server sends without a request, on a stream that it opens.
    pub(crate) greeting: &'a [u8],
}

pub(crate) struct Run<'a> {
    path: &'a QuicPath,
    setup: &'a QuicSetup<'a>,
    base: Instant,
    now: u64,
    /// Datagrams between tap and receiver, by delivery time and order.
    in_flight: BTreeMap<(u64, u64), (Direction, SocketAddr, Vec<u8>)>,
    captured: Vec<Captured>,
    /// Datagrams sent so far, by direction.
    numbers: [usize; 2],
    ends: [QuicEnd; 2],
    /// The client's current address.
    client: SocketAddr,
    requests_sent: usize,
    responses_received: usize,
    /// When the client sends the next request.
    next_request_at: Option<u64>,
    /// When the client closes the connection; `None` before it has all responses.
    closes_at: Option<u64>,
    done: bool,
    /// Responses that the server will send: when, and on which stream.
    pending_responses: Vec<(u64, StreamId)>,
}

const START: u64 = 5 * MS;

/// Runs a connection to its end and returns what the tap captured.
pub(crate) fn run(
    path: &QuicPath,
    setup: &QuicSetup<'_>,
    seed: u8,
    base: Instant,
) -> Vec<Captured> {
    let mut run = Run {
        path,
        setup,
        base,
        now: START,
        in_flight: BTreeMap::new(),
        captured: Vec::new(),
        numbers: [0; 2],
        ends: [QuicEnd::new(None, seed), QuicEnd::new(Some(setup.server.clone()), seed ^ 0x80)],
        client: path.client,
        requests_sent: 0,
        responses_received: 0,
        next_request_at: None,
        closes_at: None,
        done: false,
        pending_responses: Vec::new(),
    };
    let at = run.at(START);
    let client = &mut run.ends[0];
    let server = SocketAddr::from(SERVER);
    let (handle, connection) =
        client.endpoint.connect(at, setup.client.clone(), server, "first.test").unwrap();
    (client.handle, client.connection) = (Some(handle), Some(connection));
    if client.connection.as_ref().is_some_and(Connection::has_0rtt) {
        run.send_request();
    }
    run.run_to_end();
    run.captured.sort_by_key(|captured| captured.arrived);
    run.captured
}

impl Run<'_> {
    fn at(&self, time: u64) -> Instant {
        self.base + Duration::from_nanos(time)
    }

    fn run_to_end(&mut self) {
        loop {
            self.send_due();
            let timer =
                |end: &mut QuicEnd| end.connection.as_mut().and_then(Connection::poll_timeout);
            let [client, server] = &mut self.ends;
            let timers = [timer(client), timer(server)].into_iter().flatten();
            let timers = timers.map(|at| at.duration_since(self.base).as_nanos() as u64);
            let first = self.in_flight.first_key_value().map(|((time, _), _)| *time);
            let response = self.pending_responses.iter().map(|(time, _)| *time).min();
            let closed = self
                .ends
                .iter()
                .all(|end| end.connection.as_ref().is_none_or(Connection::is_closed));
            if closed && first.is_none() {
                return;
            }
            let waits = timers
                .chain(first)
                .chain(response)
                .chain(self.closes_at)
                .chain(self.next_request_at);
            let Some(next) = waits.min() else { return };
            self.now = next.max(self.now);
            assert!(self.now < 100_000 * MS, "the simulated connection never ends");
            self.deliver();
            let now = self.at(self.now);
            for end in &mut self.ends {
                if let Some(connection) = &mut end.connection {
                    connection.handle_timeout(now);
                }
            }
        }
    }

    fn deliver(&mut self) {
        while let Some(first) = self.in_flight.first_entry()
            && first.key().0 <= self.now
        {
            let (direction, from, bytes) = first.remove();
            let now = self.at(self.now);
            let index = match direction {
                Direction::ToServer => 1,
                Direction::ToClient => 0,
            };
            let end = &mut self.ends[index];
            let mut buffer = Vec::new();
            let data = BytesMut::from(&bytes[..]);
            let local = Some(IpAddr::V4(SERVER.0)).filter(|_| index == 1);
            match end.endpoint.handle(now, from, local, None, data, &mut buffer) {
                Some(DatagramEvent::ConnectionEvent(_, event)) => {
                    if let Some(connection) = &mut end.connection {
                        connection.handle_event(event);
                    }
                }
                Some(DatagramEvent::NewConnection(incoming)) => {
                    if self.path.retry && !incoming.remote_address_validated() {
                        let transmit = end.endpoint.retry(incoming, &mut buffer).unwrap();
                        self.transmit(Direction::ToClient, &transmit, &buffer);
                    } else if end.connection.is_none() {
                        let accepted = end.endpoint.accept(incoming, now, &mut buffer, None);
                        let (handle, connection) = accepted.map_err(|error| error.cause).unwrap();
                        (end.handle, end.connection) = (Some(handle), Some(connection));
                    } else {
                        end.endpoint.ignore(incoming);
                    }
                }
                Some(DatagramEvent::Response(transmit)) => {
                    let direction = [Direction::ToServer, Direction::ToClient][index];
                    self.transmit(direction, &transmit, &buffer);
                }
                None => {}
            }
        }
    }

    /// Runs both applications and sends the datagrams that are due.
    fn send_due(&mut self) {
        for _ in 0..8 {
            self.client_app();
            self.server_app();
            for (index, direction) in
                [Direction::ToServer, Direction::ToClient].into_iter().enumerate()
            {
                let now = self.at(self.now);
                let end = &mut self.ends[index];
                let (Some(connection), Some(handle)) = (&mut end.connection, end.handle) else {
                    continue;
                };
                while let Some(event) = connection.poll_endpoint_events() {
                    if let Some(event) = end.endpoint.handle_event(handle, event) {
                        connection.handle_event(event);
                    }
                }
                loop {
                    let mut buffer = Vec::new();
                    let connection = self.ends[index].connection.as_mut().unwrap();
                    let Some(transmit) = connection.poll_transmit(now, 1, &mut buffer) else {
                        break;
                    };
                    self.transmit(direction, &transmit, &buffer);
                }
            }
        }
    }

    fn send_request(&mut self) {
        let client = &mut self.ends[0];
        let connection = client.connection.as_mut().unwrap();
        let stream = connection.streams().open(Dir::Bi).expect("a stream may be opened");
        if self.requests_sent > 0 && self.path.update_keys {
            connection.force_key_update();
        }
        if let Some(to) =
            self.path.moves_to.filter(|to| self.requests_sent > 0 && *to != self.client)
        {
            self.client = to;
            connection.local_address_changed();
        }
        self.requests_sent += 1;
        client.writing.push((stream, self.setup.request.to_vec()));
        client.write();
    }

    fn client_app(&mut self) {
        let (mut send, mut received) = (false, 0);
        while let Some(event) = self.ends[0].connection.as_mut().and_then(Connection::poll) {
            let client = &mut self.ends[0];
            match event {
                Event::Connected => {
                    let accepted = client.connection.as_ref().unwrap().accepted_0rtt();
                    client.connected = true;
                    send = self.requests_sent == 0 || !accepted;
                }
                Event::Stream(StreamEvent::Readable { id }) => {
                    received += usize::from(client.read(id) && id.dir() == Dir::Bi);
                }
                Event::Stream(StreamEvent::Opened { dir: Dir::Uni }) => {
                    while let Some(id) =
                        client.connection.as_mut().unwrap().streams().accept(Dir::Uni)
                    {
                        client.read(id);
                    }
                }
                Event::Stream(StreamEvent::Writable { .. }) => client.write(),
                Event::ConnectionLost { reason } => {
                    assert!(self.responses_received >= self.path.requests, "{reason}");
                }
                _ => {}
            }
        }
        self.responses_received += received;
        if received > 0 && self.responses_received < self.path.requests {
            self.next_request_at = Some(self.now + self.path.request_gap);
        }
        if send && self.path.initial_pause > 0 {
            send = false;
            self.next_request_at = Some(self.now + self.path.initial_pause);
        }
        if send || self.next_request_at.is_some_and(|time| time <= self.now) {
            self.next_request_at = None;
            self.send_request();
        }
        let done = self.responses_received == self.path.requests && self.ends[0].connected;
        if done && !self.done {
            self.done = true;
            // Long enough for tickets and tokens.
            self.closes_at = Some(self.now + self.path.rtt + MS);
        }
        if self.closes_at.is_some_and(|time| time <= self.now) {
            self.closes_at = None;
            let now = self.at(self.now);
            let connection = self.ends[0].connection.as_mut().unwrap();
            connection.close(now, 0x100u32.into(), Default::default());
        }
    }

    fn server_app(&mut self) {
        let mut requested = Vec::new();
        while let Some(event) = self.ends[1].connection.as_mut().and_then(Connection::poll) {
            let server = &mut self.ends[1];
            match event {
                Event::HandshakeDataReady if !self.setup.greeting.is_empty() => {
                    let connection = server.connection.as_mut().unwrap();
                    let stream = connection.streams().open(Dir::Uni).expect("a stream");
                    // The stream stays open.
                    let greeting = self.setup.greeting;
                    assert_eq!(
                        connection.send_stream(stream).write(greeting).ok(),
                        Some(greeting.len())
                    );
                }
                Event::Stream(StreamEvent::Opened { dir: Dir::Bi }) => {
                    while let Some(id) =
                        server.connection.as_mut().unwrap().streams().accept(Dir::Bi)
                    {
                        requested.extend(server.read(id).then_some(id));
                    }
                }
                Event::Stream(StreamEvent::Readable { id }) => {
                    requested.extend(server.read(id).then_some(id));
                }
                Event::Stream(StreamEvent::Writable { .. }) => server.write(),
                _ => {}
            }
        }
        let responds_at = self.now + self.path.server_pause;
        self.pending_responses.extend(requested.into_iter().map(|id| (responds_at, id)));
        let (now, response) = (self.now, self.setup.response);
        let due = self.pending_responses.extract_if(.., |(time, _)| *time <= now);
        let due: Vec<_> = due.map(|(_, id)| (id, response.to_vec())).collect();
        self.ends[1].writing.extend(due);
        self.ends[1].write();
    }

    /// A datagram reaches the tap.
    fn transmit(&mut self, direction: Direction, transmit: &Transmit, buffer: &[u8]) {
        let bytes = &buffer[..transmit.size];
        let side = direction as usize;
        let number = self.numbers[side];
        self.numbers[side] += 1;
        let (from, drop) = match direction {
            Direction::ToServer => (self.client, &self.path.drop_to_server),
            Direction::ToClient => (SocketAddr::from(SERVER), &self.path.drop_to_client),
        };
        let to = transmit.destination;
        let dropped = drop.contains(&number);
        let late = if number % 2 == 1 { self.path.late } else { 0 };
        for copy in 0..=u64::from(self.path.twice) {
            // Datagrams of one moment reach the tap one after the other.
            let arrived = self.now + late + copy * 1000 + 10 * self.captured.len() as u64;
            let delivered = arrived + self.path.rtt / 2;
            let frame = frame(from, to, bytes);
            let delivered = (!dropped).then_some(delivered);
            self.captured.push(Captured { direction, arrived, delivered, frame });
            // A client that has moved receives nothing at its old address.
            let gone = direction == Direction::ToClient && to != self.client;
            if let Some(delivered) = delivered.filter(|_| !gone) {
                let order = self.captured.len() as u64;
                self.in_flight.insert((delivered, order), (direction, from, bytes.to_vec()));
            }
        }
    }
}

/// An Ethernet frame with a UDP datagram.
pub(crate) fn frame(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let (SocketAddr::V4(from), SocketAddr::V4(to)) = (from, to) else { panic!("only IPv4") };
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
        .ipv4(from.ip().octets(), to.ip().octets(), 64)
        .udp(from.port(), to.port())
        .write(&mut frame, payload)
        .unwrap();
    frame
}

/// One end: its connection, and what it still has to write.
pub(crate) struct QuicEnd {
    pub(crate) endpoint: Endpoint,
    pub(crate) handle: Option<ConnectionHandle>,
    pub(crate) connection: Option<Connection>,
    pub(crate) writing: Vec<(StreamId, Vec<u8>)>,
    pub(crate) received_bytes: usize,
    pub(crate) connected: bool,
}

impl QuicEnd {
    pub(crate) fn new(server: Option<Arc<ServerConfig>>, seed: u8) -> Self {
        let mut config = EndpointConfig::default();
        // The client supports a draft, so that a test can start with it.
        let versions = if server.is_some() { vec![1] } else { vec![1, DRAFT_29] };
        config.supported_versions(versions).grease_quic_bit(false);
        let endpoint = Endpoint::new(Arc::new(config), server, true, Some([seed; 32]));
        let (handle, connection) = (None, None);
        Self {
            endpoint,
            handle,
            connection,
            writing: Vec::new(),
            received_bytes: 0,
            connected: false,
        }
    }

    pub(crate) fn write(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        self.writing.retain_mut(|(stream, remaining)| {
            let mut out = connection.send_stream(*stream);
            while !remaining.is_empty() {
                match out.write(remaining) {
                    Ok(written) => drop(remaining.drain(..written)),
                    Err(_) => return true,
                }
            }
            out.finish().unwrap();
            false
        });
    }

    /// Reads the available bytes of a stream. Returns whether the stream has ended.
    pub(crate) fn read(&mut self, stream: StreamId) -> bool {
        let Some(connection) = &mut self.connection else { return false };
        let mut incoming = connection.recv_stream(stream);
        let Ok(mut chunks) = incoming.read(true) else { return false };
        let ended = loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => self.received_bytes += chunk.bytes.len(),
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        let _ = chunks.finalize();
        ended
    }
}
