//! Somebody on the path: passes datagrams on, or not, keeps first flights, and sends what it likes.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;

use super::initial::{Header, INITIAL, RETRY, ZERO_RTT, header, packets};
use crate::support::program::until;

/// Which way a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// To the server.
    Up,
    /// To the client.
    Down,
}

/// What becomes of a datagram, the nth (from 0) of its connection's way: those that go on now.
type Rule = Box<dyn FnMut(Direction, usize, Vec<u8>) -> Vec<Vec<u8>> + Send>;

/// A relay in front of a server. It keeps its port while servers come and go, as a client's
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
    /// Towards the server, with a port of its own.
    up: UdpSocket,
    flight: Vec<Vec<u8>>,
    counts: [usize; 2],
}

impl Relay {
    /// Passes all on.
    pub(crate) fn start(server: SocketAddr) -> Self {
        Self::ruled(server, |_, _, datagram| vec![datagram])
    }

    /// Passes on what the rule gives.
    pub(crate) fn ruled(
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
        let (shared, kept) = (state.clone(), socket.try_clone().unwrap());
        thread::spawn(move || {
            let mut buffer = [0; 65_536];
            while let Ok((count, from)) = socket.recv_from(&mut buffer) {
                upwards(&socket, &shared, from, &buffer[..count]);
            }
        });
        Self { port, socket: kept, state }
    }

    /// Another rule from now on.
    pub(crate) fn rule(
        &self,
        rule: impl FnMut(Direction, usize, Vec<u8>) -> Vec<Vec<u8>> + Send + 'static,
    ) {
        self.state.lock().unwrap().rule = Box::new(rule);
    }

    /// From now on, what a client sends under the handshake's keys or later waits until this is
    /// true.
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
            assert!(until(opens), "what was held back may pass");
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

    /// From now on a client's nth datagram (from 0) and all after it come from another port, as
    /// behind a NAT that forgets.
    pub(crate) fn rebind_at(&self, nth: usize) {
        self.state.lock().unwrap().rebind_at = Some(nth);
    }

    /// Another server from now on, for clients that come.
    pub(crate) fn forward_to(&self, server: SocketAddr) {
        self.state.lock().unwrap().server = server;
    }

    /// What the latest client sent of Initial and 0-RTT packets: its first flight, datagram by
    /// datagram.
    pub(crate) fn flight(&self) -> Vec<Vec<u8>> {
        let latest = self.state.lock().unwrap().latest.clone();
        latest.map(|client| client.lock().unwrap().flight.clone()).unwrap_or_default()
    }

    /// Sends the latest client a datagram in the name of the server.
    pub(crate) fn send_down(&self, datagram: &[u8]) {
        let state = self.state.lock().unwrap();
        let latest = state.latest.as_ref().expect("a client").lock().unwrap();
        self.socket.send_to(datagram, latest.from).unwrap();
    }

    /// Retry packets that went down.
    pub(crate) fn retries(&self) -> usize {
        self.state.lock().unwrap().retries
    }
}

/// In the name of the latest client.
fn send(state: &Mutex<State>, datagram: &[u8]) {
    let latest = state.lock().unwrap().latest.clone().expect("a client");
    let client = latest.lock().unwrap();
    let _ = client.up.send(datagram);
}

/// Whether it has Initial and 0-RTT packets alone: what can be sent before a response.
fn is_first_flight(datagram: &[u8]) -> bool {
    let packets = packets(datagram);
    let length: usize = packets.iter().map(|(_, packet)| packet.len()).sum();
    let first = |header: &Header| matches!(header.kind, Some(INITIAL | ZERO_RTT));
    // A short header's packet is not among them; padding behind the packets starts by a zero.
    let rest_is_padding = datagram[length..].first().is_none_or(|byte| *byte == 0);
    rest_is_padding && packets.iter().all(|(header, _)| first(header))
}

fn upwards(socket: &UdpSocket, state: &Arc<Mutex<State>>, from: SocketAddr, datagram: &[u8]) {
    let mut locked = state.lock().unwrap();
    if !locked.clients.contains_key(&from) {
        let up = towards(locked.server);
        let client = Client { from, up, flight: Vec::new(), counts: [0; 2] };
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
        client.flight.push(datagram.to_vec());
    }
    client.counts[0] += 1;
    for datagram in (locked.rule)(Direction::Up, nth, datagram.to_vec()) {
        // A server that is gone refuses; another may come.
        let _ = client.up.send(&datagram);
    }
}

/// A port of its own.
fn towards(server: SocketAddr) -> UdpSocket {
    let up = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    up.connect(server).unwrap();
    up
}

/// Passes back what comes to the client's present port, by a thread of its own.
fn read_back(
    socket: &UdpSocket,
    state: &Arc<Mutex<State>>,
    to: SocketAddr,
    client: &Arc<Mutex<Client>>,
) {
    let reader = client.lock().unwrap().up.try_clone().unwrap();
    let (socket, state, client) = (socket.try_clone().unwrap(), state.clone(), client.clone());
    thread::spawn(move || downwards(&socket, &reader, to, &state, &client));
}

fn downwards(
    socket: &UdpSocket,
    reader: &UdpSocket,
    to: SocketAddr,
    state: &Mutex<State>,
    client: &Mutex<Client>,
) {
    let mut buffer = [0; 65_536];
    loop {
        // A refusal of what was sent up is told here; it ends nothing.
        let Ok(count) = reader.recv(&mut buffer) else { continue };
        let mut locked = state.lock().unwrap();
        let retry = header(&buffer[..count]).is_some_and(|header| header.kind == Some(RETRY));
        locked.retries += usize::from(retry);
        let mut client = client.lock().unwrap();
        let nth = client.counts[1];
        client.counts[1] += 1;
        for datagram in (locked.rule)(Direction::Down, nth, buffer[..count].to_vec()) {
            let _ = socket.send_to(&datagram, to);
        }
    }
}
