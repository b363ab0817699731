use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use firstflight_quic::{Remembered, ResumptionInbox, ServerCrypto};
use quinn_proto::{
    ClientConfig, Connection, ConnectionError, ConnectionHandle, DatagramEvent, Dir, Endpoint,
    Event, Incoming, ServerConfig, StreamId, Transmit, VarInt,
};

use super::{LATENCY, Setup, endpoint_config};

/// What a server does with an incoming connection.
pub(crate) enum Admission {
    Accept(Arc<ServerConfig>),
    Retry,
}

/// Decides about each incoming connection.
pub(crate) type AdmissionPolicy = Box<dyn FnMut(&Incoming) -> Admission>;

/// Returns whether a datagram is lost. Arguments: whether the client sent it, and its bytes.
pub(crate) type Losses = Box<dyn FnMut(bool, &[u8]) -> bool>;

/// One end of the link.
pub(crate) struct End {
    pub(crate) endpoint: Endpoint,
    pub(crate) address: SocketAddr,
    pub(crate) connections: HashMap<ConnectionHandle, Connection>,
    pub(crate) inbound: VecDeque<(Instant, Vec<u8>)>,
    /// The connections' events, in order.
    pub(crate) events: Vec<(ConnectionHandle, String)>,
    /// Why connections were lost.
    pub(crate) lost: Vec<ConnectionError>,
}

/// A client and a server.
pub(crate) struct Pair {
    pub(crate) setup: Setup,
    pub(crate) crypto: Arc<ServerCrypto>,
    pub(crate) client: End,
    pub(crate) server: End,
    pub(crate) now: Instant,
    pub(crate) policy: AdmissionPolicy,
    pub(crate) losses: Losses,
    /// Connections that the server has accepted.
    pub(crate) accepted: Vec<ConnectionHandle>,
    /// All sent datagrams: whether the client sent it, and its bytes.
    pub(crate) wire: Vec<(bool, Vec<u8>)>,
}

/// A client's connection that was started.
pub(crate) struct StartedConnection {
    pub(crate) client: ConnectionHandle,
    pub(crate) inbox: ResumptionInbox,
}

/// A connection, by both ends' handles.
pub(crate) struct Connected {
    pub(crate) client: ConnectionHandle,
    pub(crate) server: ConnectionHandle,
    pub(crate) inbox: ResumptionInbox,
}

impl Pair {
    pub(crate) fn new(setup: Setup) -> Self {
        let crypto = setup.server();
        Self::with_server(setup, crypto)
    }

    /// With another server configuration. Early data is accepted.
    pub(crate) fn with_server(setup: Setup, crypto: Arc<ServerCrypto>) -> Self {
        let config = setup.server_config(crypto.clone());
        let server = Endpoint::new(endpoint_config(), Some(config), true, Some([1; 32]));
        let client = Endpoint::new(endpoint_config(), None, true, Some([2; 32]));
        let (server_setup, server_crypto) = (setup.clone(), crypto.clone());
        Self {
            setup,
            crypto,
            client: End::new(client, "[::1]:4000"),
            server: End::new(server, "[::1]:443"),
            now: Instant::now(),
            policy: Box::new(move |_| {
                let accepting = server_crypto.for_connection(Box::new(|_| true), None);
                Admission::Accept(server_setup.server_config(accepting))
            }),
            losses: Box::new(|_, _| false),
            accepted: Vec::new(),
            wire: Vec::new(),
        }
    }

    /// Sets the judge's decision for all further connections.
    pub(crate) fn judge(&mut self, accepts: bool) {
        let (setup, crypto) = (self.setup.clone(), self.crypto.clone());
        self.policy = Box::new(move |_| {
            let judged = crypto.for_connection(Box::new(move |_| accepts), None);
            Admission::Accept(setup.server_config(judged))
        });
    }

    pub(crate) fn start(&mut self, remembered: Remembered) -> StartedConnection {
        let (config, inbox) = self.setup.client_config(remembered);
        StartedConnection { client: self.start_with(config), inbox }
    }

    pub(crate) fn start_with(&mut self, config: ClientConfig) -> ConnectionHandle {
        let (handle, connection) = self
            .client
            .endpoint
            .connect(self.now, config, self.server.address, "localhost")
            .unwrap();
        self.client.connections.insert(handle, connection);
        handle
    }

    /// Completes a handshake, including its tickets.
    pub(crate) fn connect(&mut self, remembered: Remembered) -> Connected {
        let started = self.start(remembered);
        self.drive();
        let connected = self.connected(started);
        assert!(self.client.has_event(connected.client, "Connected"), "{:?}", self.client.lost);
        assert!(self.server.has_event(connected.server, "Connected"), "{:?}", self.server.lost);
        connected
    }

    pub(crate) fn connected(&self, started: StartedConnection) -> Connected {
        let server = *self.accepted.last().expect("an accepted connection");
        Connected { client: started.client, server, inbox: started.inbox }
    }

    pub(crate) fn client(&mut self, handle: ConnectionHandle) -> &mut Connection {
        self.client.connections.get_mut(&handle).unwrap()
    }

    pub(crate) fn server(&mut self, handle: ConnectionHandle) -> &mut Connection {
        self.server.connections.get_mut(&handle).unwrap()
    }

    /// Runs until nothing is in flight and no timer is due within three seconds.
    pub(crate) fn drive(&mut self) {
        for _ in 0..2000 {
            if !self.step(Duration::from_secs(3)) {
                return;
            }
        }
        panic!("the connections never become idle");
    }

    /// Runs for this time.
    pub(crate) fn drive_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end && self.step(end - self.now) {}
        self.now = end;
    }

    /// Delivers and sends all datagrams that are due, and advances the time to the next event. Returns
    /// false if there is none within `horizon`.
    pub(crate) fn step(&mut self, horizon: Duration) -> bool {
        self.exchange();
        let next = [self.client.next(), self.server.next()].into_iter().flatten().min();
        match next {
            Some(next) if next <= self.now + horizon => {
                self.now = self.now.max(next);
                true
            }
            _ => false,
        }
    }

    /// Delivers and sends all datagrams that are due now.
    pub(crate) fn exchange(&mut self) {
        let from_client = self.client.work(self.now, self.server.address, &mut None);
        self.carry(true, from_client);
        let mut accept = Some((&mut self.policy, &mut self.accepted));
        let from_server = self.server.work(self.now, self.client.address, &mut accept);
        self.carry(false, from_server);
    }

    fn carry(&mut self, from_client: bool, datagrams: Vec<Vec<u8>>) {
        for datagram in datagrams {
            self.wire.push((from_client, datagram.clone()));
            if !(self.losses)(from_client, &datagram) {
                let to = if from_client { &mut self.server } else { &mut self.client };
                to.inbound.push_back((self.now + LATENCY, datagram));
            }
        }
    }

    /// Opens a stream on the client, writes and finishes it.
    pub(crate) fn send(&mut self, handle: ConnectionHandle, data: &[u8]) -> StreamId {
        let connection = self.client(handle);
        let stream = connection.streams().open(Dir::Uni).expect("a stream");
        assert_eq!(connection.send_stream(stream).write(data).unwrap(), data.len());
        connection.send_stream(stream).finish().unwrap();
        stream
    }

    /// The data of each stream that the server has received from the client.
    pub(crate) fn received(&mut self, handle: ConnectionHandle) -> Vec<Vec<u8>> {
        let connection = self.server(handle);
        let mut streams = Vec::new();
        while let Some(stream) = connection.streams().accept(Dir::Uni) {
            let mut receive = connection.recv_stream(stream);
            let mut chunks = receive.read(true).unwrap();
            let mut data = Vec::new();
            while let Ok(Some(chunk)) = chunks.next(usize::MAX) {
                data.extend_from_slice(&chunk.bytes);
            }
            let _ = chunks.finalize();
            streams.push(data);
        }
        streams
    }

    pub(crate) fn close(&mut self, handle: ConnectionHandle) {
        let now = self.now;
        self.client(handle).close(now, VarInt::from_u32(42), super::bytes("done"));
    }
}

impl End {
    fn new(endpoint: Endpoint, address: &str) -> Self {
        Self {
            endpoint,
            address: address.parse().unwrap(),
            connections: HashMap::new(),
            inbound: VecDeque::new(),
            events: Vec::new(),
            lost: Vec::new(),
        }
    }

    /// Whether a connection has reported this event.
    pub(crate) fn has_event(&self, handle: ConnectionHandle, event: &str) -> bool {
        self.events.iter().any(|(owner, name)| *owner == handle && name == event)
    }

    fn next(&mut self) -> Option<Instant> {
        let timers = self.connections.values_mut().filter_map(Connection::poll_timeout);
        timers.chain(self.inbound.iter().map(|(at, _)| *at)).min()
    }

    fn work(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        accept: &mut Option<(&mut AdmissionPolicy, &mut Vec<ConnectionHandle>)>,
    ) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        while self.inbound.front().is_some_and(|(at, _)| *at <= now) {
            let (_, datagram) = self.inbound.pop_front().unwrap();
            self.take_in(now, remote, &datagram, accept, &mut out);
        }
        self.send_out(now, &mut out);
        out
    }

    pub(crate) fn take_in(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        datagram: &[u8],
        accept: &mut Option<(&mut AdmissionPolicy, &mut Vec<ConnectionHandle>)>,
        out: &mut Vec<Vec<u8>>,
    ) {
        let mut buffer = Vec::new();
        let data = BytesMut::from(datagram);
        match self.endpoint.handle(now, remote, None, None, data, &mut buffer) {
            Some(DatagramEvent::Response(transmit)) => out.push(buffer[..transmit.size].to_vec()),
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some(connection) = self.connections.get_mut(&handle) {
                    connection.handle_event(event);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                let (policy, accepted) = accept.as_mut().expect("only servers accept");
                buffer.clear();
                match policy(&incoming) {
                    Admission::Accept(config) => {
                        match self.endpoint.accept(incoming, now, &mut buffer, Some(config)) {
                            Ok((handle, connection)) => {
                                self.connections.insert(handle, connection);
                                accepted.push(handle);
                            }
                            Err(error) => {
                                self.lost.push(error.cause);
                                out.extend(error.response.map(|t| buffer[..t.size].to_vec()));
                            }
                        }
                    }
                    Admission::Retry => {
                        let sent = self.endpoint.retry(incoming, &mut buffer).unwrap();
                        out.push(buffer[..sent.size].to_vec());
                    }
                }
            }
            None => {}
        }
    }

    fn send_out(&mut self, now: Instant, out: &mut Vec<Vec<u8>>) {
        let handles: Vec<ConnectionHandle> = self.connections.keys().copied().collect();
        for handle in handles {
            let connection = self.connections.get_mut(&handle).unwrap();
            if connection.poll_timeout().is_some_and(|at| at <= now) {
                connection.handle_timeout(now);
            }
            loop {
                let mut buffer = Vec::new();
                let Some(sent) = connection.poll_transmit(now, 1, &mut buffer) else { break };
                out.extend(split(&sent, &buffer));
            }
            while let Some(event) = connection.poll_endpoint_events() {
                if let Some(event) = self.endpoint.handle_event(handle, event) {
                    connection.handle_event(event);
                }
            }
            while let Some(event) = connection.poll() {
                let name = match event {
                    Event::HandshakeDataReady => "HandshakeDataReady".to_owned(),
                    Event::Connected => "Connected".to_owned(),
                    Event::ConnectionLost { reason } => {
                        self.lost.push(reason);
                        "ConnectionLost".to_owned()
                    }
                    other => format!("{other:?}"),
                };
                self.events.push((handle, name));
            }
        }
    }
}

fn split(sent: &Transmit, buffer: &[u8]) -> Vec<Vec<u8>> {
    let segment = sent.segment_size.unwrap_or(sent.size).max(1);
    buffer[..sent.size].chunks(segment).map(<[u8]>::to_vec).collect()
}
