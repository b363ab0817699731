//! A relay on the path. It forwards, drops or modifies datagrams, keeps first flights, and can send
//! packets itself.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;

use super::initial::{Header, INITIAL, RETRY, ZERO_RTT, header, packets};
use crate::support::program::until;

/// The direction of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// To the server.
    Up,
    /// To the client.
    Down,
}

/// Handles the nth datagram (from 0) of a connection in one direction; returns the datagrams to
/// forward now.
type Rule = Box<dyn FnMut(Direction, usize, Vec<u8>) -> Vec<Vec<u8>> + Send>;

/// A relay in front of a server. It keeps its port when servers are replaced, because a client's
/// sessions belong to host and port.
pub(crate) struct Relay {
    pub(crate) port: u16,
    socket: UdpSocket,
    state: Arc<Mutex<State>>,
}

struct State {
    server: SocketAddr,
    rule: Rule,
    rebind_at: Option<usize>,
    clients: HashMap<SocketAddr, Arc<Mutex<Client>>>,
    latest: Option<Arc<Mutex<Client>>>,
    retries: usize,
}

/// One client address.
struct Client {
    from: SocketAddr,
    /// The socket towards the server, with a port of its own.
    up: UdpSocket,
    flight: Vec<Vec<u8>>,
    /// Whether a datagram of the flight came after a response.
    late: bool,
    response: Vec<Vec<u8>>,
    counts: [usize; 2],
}

impl Relay {
    /// Starts a relay that forwards everything.
    pub(crate) fn start(server: SocketAddr) -> Self {
        Self::with_rule(server, |_, _, datagram| vec![datagram])
    }

    /// Starts a relay that forwards what the rule returns.
    pub(crate) fn with_rule(
        server: SocketAddr,
        rule: impl FnMut(Direction, usize, Vec<u8>) -> Vec<Vec<u8>> + Send + 'static,
    ) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = socket.local_addr().unwrap().port();
        let state = State {
            server,
            rule: Box::new(rule),
            rebind_at: None,
            clients: HashMap::new(),
            latest: None,
            retries: 0,
        };
        let state = Arc::new(Mutex::new(state));
        let (shared, sender) = (state.clone(), socket.try_clone().unwrap());
        thread::spawn(move || {
            let mut buffer = [0; 65_536];
            while let Ok((count, from)) = socket.recv_from(&mut buffer) {
                forward_up(&socket, &shared, from, &buffer[..count]);
            }
        });
        Self { port, socket: sender, state }
    }

    /// Sets another rule.
    pub(crate) fn rule(
        &self,
        rule: impl FnMut(Direction, usize, Vec<u8>) -> Vec<Vec<u8>> + Send + 'static,
    ) {
        self.state.lock().unwrap().rule = Box::new(rule);
    }

    /// Delays packets that a client sends under handshake or later keys until `opens` returns true.
    pub(crate) fn hold_until(&self, opens: impl Fn() -> bool + Send + 'static) {
        let held = Arc::new(Mutex::new((false, Vec::new())));
        let holder = held.clone();
        self.rule(move |direction, _, datagram| {
            let mut held = holder.lock().unwrap();
            if direction == Direction::Down || held.0 || is_first_flight(&datagram) {
                return vec![datagram];
            }
            held.1.push(datagram);
            Vec::new()
        });
        let state = self.state.clone();
        thread::spawn(move || {
            assert!(until(opens), "the condition for delayed packets is met");
            let late = {
                let mut held = held.lock().unwrap();
                held.0 = true;
                std::mem::take(&mut held.1)
            };
            for datagram in late {
                send(&state, &datagram);
            }
        });
    }

    /// Sends a client's nth datagram (from 0) and all later ones from another port, like a NAT that
    /// has dropped its mapping.
    pub(crate) fn rebind_at(&self, nth: usize) {
        self.state.lock().unwrap().rebind_at = Some(nth);
    }

    /// Forwards new clients to another server.
    pub(crate) fn forward_to(&self, server: SocketAddr) {
        self.state.lock().unwrap().server = server;
    }

    /// The first flight of the latest client: its datagrams with Initial and 0-RTT packets only.
    pub(crate) fn flight(&self) -> Vec<Vec<u8>> {
        let latest = self.state.lock().unwrap().latest.clone();
        latest.map(|client| client.lock().unwrap().flight.clone()).unwrap_or_default()
    }

    /// Whether all of that flight was sent before the first response. A later part may acknowledge
    /// the server's packets, and a server that has not sent them closes the connection of a copy.
    pub(crate) fn flight_precedes_response(&self) -> bool {
        let latest = self.state.lock().unwrap().latest.clone();
        latest.is_some_and(|client| !client.lock().unwrap().late)
    }

    /// The first datagrams of the server to the latest client.
    pub(crate) fn response(&self) -> Vec<Vec<u8>> {
        let latest = self.state.lock().unwrap().latest.clone();
        latest.map(|client| client.lock().unwrap().response.clone()).unwrap_or_default()
    }

    /// Sends a datagram to the latest client as if from the server.
    pub(crate) fn send_down(&self, datagram: &[u8]) {
        let state = self.state.lock().unwrap();
        let latest = state.latest.as_ref().expect("a client").lock().unwrap();
        self.socket.send_to(datagram, latest.from).unwrap();
    }

    /// The number of Retry packets that were forwarded.
    pub(crate) fn retries(&self) -> usize {
        self.state.lock().unwrap().retries
    }
}

/// Sends a datagram to the server as if from the latest client.
fn send(state: &Mutex<State>, datagram: &[u8]) {
    let latest = state.lock().unwrap().latest.clone().expect("a client");
    let client = latest.lock().unwrap();
    let _ = client.up.send(datagram);
}

/// Whether it contains only Initial and 0-RTT packets, which can be sent before a response.
fn is_first_flight(datagram: &[u8]) -> bool {
    let packets = packets(datagram);
    let length: usize = packets.iter().map(|(_, packet)| packet.len()).sum();
    let first = |header: &Header| matches!(header.kind, Some(INITIAL | ZERO_RTT));
    // Packets with short headers do not belong to it; padding after the packets starts with a zero.
    let rest_is_padding = datagram[length..].first().is_none_or(|byte| *byte == 0);
    rest_is_padding && packets.iter().all(|(header, _)| first(header))
}

fn forward_up(socket: &UdpSocket, state: &Arc<Mutex<State>>, from: SocketAddr, datagram: &[u8]) {
    let mut locked = state.lock().unwrap();
    if !locked.clients.contains_key(&from) {
        let up = towards(locked.server);
        let client = Client {
            from,
            up,
            flight: Vec::new(),
            response: Vec::new(),
            late: false,
            counts: [0; 2],
        };
        let client = Arc::new(Mutex::new(client));
        locked.clients.insert(from, client.clone());
        locked.latest = Some(client.clone());
        read_back(socket, state, from, &client);
    }
    let shared = locked.clients[&from].clone();
    let nth = shared.lock().unwrap().counts[0];
    if locked.rebind_at == Some(nth) {
        shared.lock().unwrap().up = towards(locked.server);
        read_back(socket, state, from, &shared);
    }
    let mut client = shared.lock().unwrap();
    if is_first_flight(datagram) {
        client.late |= client.counts[1] > 0;
        client.flight.push(datagram.to_vec());
    }
    client.counts[0] += 1;
    for datagram in (locked.rule)(Direction::Up, nth, datagram.to_vec()) {
        // A stopped server refuses datagrams; another one may follow.
        let _ = client.up.send(&datagram);
    }
}

/// Opens a socket towards a server.
fn towards(server: SocketAddr) -> UdpSocket {
    let up = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    up.connect(server).unwrap();
    up
}

/// Forwards datagrams to the client's current port, on its own thread.
fn read_back(
    socket: &UdpSocket,
    state: &Arc<Mutex<State>>,
    to: SocketAddr,
    client: &Arc<Mutex<Client>>,
) {
    let reader = client.lock().unwrap().up.try_clone().unwrap();
    let (socket, state, client) = (socket.try_clone().unwrap(), state.clone(), client.clone());
    thread::spawn(move || forward_down(&socket, &reader, to, &state, &client));
}

fn forward_down(
    socket: &UdpSocket,
    reader: &UdpSocket,
    to: SocketAddr,
    state: &Mutex<State>,
    client: &Mutex<Client>,
) {
    let mut buffer = [0; 65_536];
    loop {
        // The error of a refused datagram is reported here, and ignored.
        let Ok(count) = reader.recv(&mut buffer) else { continue };
        let mut locked = state.lock().unwrap();
        let retry = header(&buffer[..count]).is_some_and(|header| header.kind == Some(RETRY));
        locked.retries += usize::from(retry);
        let mut client = client.lock().unwrap();
        let nth = client.counts[1];
        client.counts[1] += 1;
        if nth < MAX_RESPONSE_DATAGRAMS {
            client.response.push(buffer[..count].to_vec());
        }
        for datagram in (locked.rule)(Direction::Down, nth, buffer[..count].to_vec()) {
            let _ = socket.send_to(&datagram, to);
        }
    }
}

/// More datagrams than a ServerHello needs.
const MAX_RESPONSE_DATAGRAMS: usize = 4;
