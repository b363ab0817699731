//! A simulated server with chosen mistakes, to test programs that test servers. Feature
//! `test_server`.
//!
//! It runs in the memory of a test, on a clock that only moves when a link waits, and serves one
//! resource over TCP and QUIC: a witness that counts its executions by the query string. It shares the
//! key schedule, the records and the packets with the client, so it cannot test those: real
//! servers and the traces of RFC 8448 do.
//!
//! ```text
//! fault          links and responses that fail
//! tcp, quic      connections: records or packets
//!   requests     executes, holds or rejects requests
//!     http       requests and responses of HTTP/1.1 and HTTP/3
//!   tls          the handshake: tickets, register, early data
//!     hello      ClientHellos, ServerHellos
//! ```

mod fault;
mod hello;
mod http;
mod quic;
mod requests;
mod tcp;
mod tls;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use crate::FastOpen;
use crate::driver::{Link, Received};
use fault::FaultyLink;
pub use fault::{Fault, FaultyPart};
use quic::Endpoint;
use tcp::TcpSession;

/// What a server does with a request in early data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlyRequest {
    /// Executes it at once.
    Execute,
    /// Waits for the client's Finished.
    Hold,
    /// Executes it at once, and responds after the client's Finished.
    ExecuteSilently,
    /// Responds 425 (Too Early).
    TooEarly,
}

/// When a flight is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// Never: each copy is accepted.
    Never,
    /// When the client's Finished arrives: copies before that are accepted.
    WhenFinished,
    /// When its early data is accepted.
    WhenAccepted,
}

/// What identifies a flight in the register. Over TCP it is always the ClientHello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownBy {
    /// Its ClientHello.
    ClientHello,
    /// The destination connection id of its first packet, which anybody can change.
    ConnectionId,
    /// The address and port that it comes from.
    Address,
}

/// How 0-RTT packets are treated whose connection id belongs to no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StrayPackets {
    /// They are ignored.
    Ignored,
    /// They go to the connection of the datagram's first packet.
    OfDatagram,
    /// They go to the newest connection from their address.
    OfAddress,
}

/// How a copy of a recorded flight is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyPolicy {
    /// Its early data is refused by TLS.
    Refuse,
    /// Its early data is accepted, and its requests wait for a Finished that never comes.
    Hold,
}

/// How a ticket is treated that was used before, in another first flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsedTicket {
    /// It is accepted like a new one.
    Accept,
    /// It is accepted, and its early data is not.
    NoEarlyData,
    /// It is not accepted, which makes a full handshake.
    FullHandshake,
    /// It ends the connection.
    Abort,
}

/// How a server behaves. The default is correct in every respect.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// Whether it speaks TLS 1.3.
    pub tls13: bool,
    /// Over TCP: older versions that it supports; their handshakes stop after the ServerHello.
    pub old_versions: &'static [u16],
    /// Groups that it supports; key shares are of X25519.
    pub groups: &'static [u16],
    /// Whether it requests a missing key share; otherwise it ends the connection.
    pub retries: bool,
    /// Tickets for each handshake.
    pub tickets: usize,
    /// The announced lifetime of tickets, in seconds.
    pub lifetime: u32,
    /// Whether it refuses tickets after their lifetime.
    pub enforces_lifetime: bool,
    /// How long a ticket's key is kept; `None` for as long as the server runs.
    pub key_life: Option<Duration>,
    /// Maximum early data, in bytes; `None` if tickets permit none.
    pub max_early_data: Option<u32>,
    /// Whether more early data ends the connection.
    pub enforces_limit: bool,
    /// Whether early data is accepted; otherwise it is refused, even if tickets permit it.
    pub accepts_early_data: bool,
    /// How far the ticket age may be off; `None` if it is not checked.
    pub freshness: Option<Duration>,
    /// When flights are recorded.
    pub recorded: Recorded,
    /// What happens to the early data of a recorded flight.
    pub copies: CopyPolicy,
    /// How long records live.
    pub record_lifetime: Duration,
    /// What identifies a flight in the register.
    pub known_by: KnownBy,
    /// Over QUIC: how 0-RTT packets with an unknown connection id are treated.
    pub stray_packets: StrayPackets,
    /// Over QUIC: whether each client gets a Retry first.
    pub validates_addresses: bool,
    /// Whether refused flights are recorded too, once their handshake is complete.
    pub spends_refused: bool,
    /// Whether the requests of refused early data are executed, without responses.
    pub executes_refused: bool,
    /// Whether requests of a flight that was recorded before get 425, also after the handshake.
    pub rejects_overtaken: bool,
    /// Whether the binder is verified.
    pub verifies_binder: bool,
    /// Whether it sends nothing where it should end the handshake with an alert.
    pub hangs_on_errors: bool,
    /// Whether tickets are authenticated.
    pub authenticates_tickets: bool,
    /// Whether early data needs the ticket's server name.
    pub binds_name: bool,
    /// Whether early data needs the ticket's protocol.
    pub binds_protocol: bool,
    /// What it does with early requests with safe methods.
    pub safe: EarlyRequest,
    /// What it does with all other early requests.
    pub others: EarlyRequest,
    /// How long a response to a safe method is delayed.
    pub safe_delay: Duration,
    /// How long all other responses are delayed.
    pub others_delay: Duration,
    /// Whether a connection that has responded 425 does so after the handshake too.
    pub always_too_early: bool,
    /// Whether the witness sees `Early-Data: 1` with early requests.
    pub marks_early: bool,
    /// Whether the client's own Early-Data field replaces that one.
    pub client_hides_early: bool,
    /// Timeout of an unfinished handshake; `None` for no timeout.
    pub handshake_timeout: Option<Duration>,
    /// Whether each record of an unfinished handshake restarts that timeout.
    pub timeout_restarts: bool,
    /// Whether each executed request gets 404 (Not Found).
    pub not_found: bool,
    /// Where each response redirects to.
    pub redirects: Option<&'static str>,
    /// The header `server`.
    pub software: &'static str,
    /// Bytes that it sends as handshake messages before its EncryptedExtensions.
    pub inserted: Vec<u8>,
    /// Bytes that it sends as handshake messages after its tickets.
    pub appended: Vec<u8>,
    /// How used tickets are treated.
    pub used_tickets: UsedTicket,
    /// The outcome of data in a SYN, once a client has a cookie.
    pub fast_open: FastOpen,
    /// Whether responses state how often the request was executed.
    pub witness: bool,
    /// Where and how it fails.
    pub fault: Option<(FaultyPart, Fault)>,
    /// Number of connections before the first one that fails.
    pub faultless_connections: u64,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            tls13: true,
            old_versions: &[],
            groups: &[0x001d],
            retries: true,
            tickets: 2,
            lifetime: 7200,
            enforces_lifetime: true,
            key_life: None,
            max_early_data: Some(14_336),
            enforces_limit: true,
            accepts_early_data: true,
            freshness: Some(Duration::from_secs(10)),
            recorded: Recorded::WhenAccepted,
            copies: CopyPolicy::Refuse,
            record_lifetime: Duration::from_secs(66),
            known_by: KnownBy::ClientHello,
            stray_packets: StrayPackets::Ignored,
            validates_addresses: false,
            spends_refused: true,
            executes_refused: false,
            rejects_overtaken: true,
            verifies_binder: true,
            hangs_on_errors: false,
            authenticates_tickets: true,
            binds_name: true,
            binds_protocol: true,
            safe: EarlyRequest::Execute,
            others: EarlyRequest::Hold,
            safe_delay: Duration::ZERO,
            others_delay: Duration::ZERO,
            always_too_early: false,
            marks_early: true,
            client_hides_early: false,
            handshake_timeout: Some(Duration::from_secs(10)),
            timeout_restarts: false,
            not_found: false,
            redirects: None,
            software: "test",
            inserted: Vec::new(),
            appended: Vec::new(),
            used_tickets: UsedTicket::Accept,
            fast_open: FastOpen::Accepted,
            witness: true,
            fault: None,
            faultless_connections: 0,
        }
    }
}

/// A simulated server, and its clock.
#[derive(Clone)]
pub struct TestServer {
    shared: Rc<Shared>,
    endpoint: Rc<RefCell<Endpoint>>,
}

pub(crate) struct Shared {
    pub(crate) behaviour: Behaviour,
    pub(crate) clock: Rc<Cell<Duration>>,
    pub(crate) issued: Rc<RefCell<Vec<IssuedTicket>>>,
    /// Recorded flights by their key, and when each record expires.
    pub(crate) register: Rc<RefCell<HashMap<Vec<u8>, Duration>>>,
    executions: Rc<RefCell<HashMap<String, u64>>>,
    counter: Rc<Cell<u64>>,
    used_tickets: Rc<RefCell<HashSet<Vec<u8>>>>,
    has_cookie: Cell<bool>,
    connections: Cell<u64>,
}

/// What the server remembers of a ticket.
#[derive(Clone)]
pub(crate) struct IssuedTicket {
    pub(crate) identity: Vec<u8>,
    pub(crate) age_add: u32,
    pub(crate) psk: Vec<u8>,
    pub(crate) issued: Duration,
    pub(crate) name: Option<Vec<u8>>,
    pub(crate) alpn: Option<Vec<u8>>,
}

impl TestServer {
    /// A server without connections.
    pub fn new(behaviour: Behaviour) -> Self {
        Self::with(Shared {
            behaviour,
            // Not at zero, so that ages can be wrong in both directions.
            clock: Rc::new(Cell::new(Duration::from_secs(100_000))),
            issued: Rc::default(),
            register: Rc::default(),
            executions: Rc::default(),
            counter: Rc::new(Cell::new(1)),
            used_tickets: Rc::default(),
            has_cookie: Cell::default(),
            connections: Cell::default(),
        })
    }

    fn with(shared: Shared) -> Self {
        Self { shared: Rc::new(shared), endpoint: Rc::default() }
    }

    /// Another node of the same service: with its upstream and its clock, and with its ticket keys and
    /// its register if they are shared.
    pub fn node(&self, shares_keys: bool, shares_register: bool) -> Self {
        Self::with(self.node_state(shares_keys, shares_register))
    }

    /// Another node with the same ticket keys, whose upstream counts its own executions.
    pub fn node_with_own_upstream(&self) -> Self {
        Self::with(Shared { executions: Rc::default(), ..self.node_state(true, false) })
    }

    fn node_state(&self, shares_keys: bool, shares_register: bool) -> Shared {
        let shared = &self.shared;
        Shared {
            behaviour: shared.behaviour.clone(),
            clock: shared.clock.clone(),
            issued: if shares_keys { shared.issued.clone() } else { Rc::default() },
            register: if shares_register { shared.register.clone() } else { Rc::default() },
            executions: shared.executions.clone(),
            counter: shared.counter.clone(),
            used_tickets: shared.used_tickets.clone(),
            has_cookie: Cell::default(),
            connections: Cell::default(),
        }
    }

    /// A connection over TCP.
    pub fn link(&self) -> Box<dyn Link> {
        self.stream_link(None)
    }

    /// A connection over TCP with Fast Open; the first one gets the cookie.
    pub fn fast_open_link(&self) -> Box<dyn Link> {
        let has_cookie = self.shared.has_cookie.replace(true);
        self.stream_link(Some(match has_cookie {
            true => self.shared.behaviour.fast_open,
            false => FastOpen::NoCookie,
        }))
    }

    fn stream_link(&self, fast_open: Option<FastOpen>) -> Box<dyn Link> {
        let faulty = self.shared.is_next_faulty();
        let link = Box::new(StreamLink {
            session: TcpSession::new(self.shared.clone(), faulty),
            shared: self.shared.clone(),
            output: Vec::new(),
            timed_from: self.shared.clock.get(),
            ended: false,
            fast_open,
        });
        match self.shared.behaviour.fault {
            Some((FaultyPart::FastOpen, fault)) if fast_open.is_some() => {
                Box::new(FaultyLink::new(link, self.shared.clone(), fault, false))
            }
            _ => self.with_fault(link, faulty, false),
        }
    }

    /// A socket for datagrams, at this address or at an unused port of 127.0.0.1.
    pub fn datagram_link(&self, local: Option<SocketAddr>) -> Box<dyn Link> {
        let mut local = local.unwrap_or((Ipv4Addr::LOCALHOST, 0).into());
        if local.port() == 0 {
            let number = u64::from_be_bytes(*self.shared.unique().first_chunk().expect("8 bytes"));
            local.set_port(1024 + (number % 60_000) as u16);
        }
        let faulty = self.shared.is_next_faulty();
        self.endpoint.borrow_mut().open(local, faulty);
        let link = Box::new(DatagramLink {
            shared: self.shared.clone(),
            endpoint: self.endpoint.clone(),
            local,
        });
        self.with_fault(link, faulty, true)
    }

    fn with_fault(&self, link: Box<dyn Link>, faulty: bool, datagrams: bool) -> Box<dyn Link> {
        match self.shared.behaviour.fault.filter(|_| faulty) {
            Some((FaultyPart::Handshake, fault)) => {
                Box::new(FaultyLink::new(link, self.shared.clone(), fault, datagrams))
            }
            _ => link,
        }
    }

    /// The time.
    pub fn now(&self) -> Duration {
        self.shared.clock.get()
    }

    /// Lets time pass.
    pub fn wait(&self, time: Duration) {
        self.shared.clock.set(self.shared.clock.get() + time);
    }

    /// How often requests with this query string were executed.
    pub fn executions(&self, query: &str) -> u64 {
        self.shared.executions.borrow().get(query).copied().unwrap_or(0)
    }
}

impl Shared {
    /// Counts an execution.
    pub(crate) fn execute(&self, query: &str) -> u64 {
        let mut executions = self.executions.borrow_mut();
        let count = executions.entry(query.to_owned()).or_default();
        *count += 1;
        *count
    }

    /// Bytes that differ each time.
    pub(crate) fn unique(&self) -> [u8; 32] {
        let number = self.counter.get();
        self.counter.set(number + 1);
        let mut bytes = [0x5a; 32];
        bytes[..8].copy_from_slice(&number.to_be_bytes());
        bytes
    }

    /// Counts a connection. Returns whether it fails.
    fn is_next_faulty(&self) -> bool {
        let number = self.connections.replace(self.connections.get() + 1);
        self.behaviour.fault.is_some() && number >= self.behaviour.faultless_connections
    }

    /// How responses fail.
    pub(crate) fn response_fault(&self, faulty: bool) -> Option<Fault> {
        let fault = self.behaviour.fault.filter(|(part, _)| *part == FaultyPart::Response);
        fault.filter(|_| faulty).map(|(_, fault)| fault)
    }

    /// Marks a ticket as used. Returns whether it was used before.
    pub(crate) fn mark_used(&self, ticket: &[u8]) -> bool {
        !self.used_tickets.borrow_mut().insert(ticket.to_vec())
    }

    /// Whether a flight is in the register.
    pub(crate) fn is_recorded(&self, key: &[u8]) -> bool {
        self.register.borrow().get(key).is_some_and(|end| *end > self.clock.get())
    }

    pub(crate) fn record(&self, key: &[u8]) {
        let end = self.clock.get() + self.behaviour.record_lifetime;
        self.register.borrow_mut().insert(key.to_vec(), end);
    }
}

/// A connection to the server: what is sent is processed at once.
struct StreamLink {
    session: TcpSession,
    shared: Rc<Shared>,
    output: Vec<u8>,
    /// When the handshake timeout started.
    timed_from: Duration,
    ended: bool,
    fast_open: Option<FastOpen>,
}

impl Link for StreamLink {
    fn now(&self) -> Duration {
        self.shared.clock.get()
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !self.ended {
            self.ended = !self.session.receive(bytes, &mut self.output);
            if self.shared.behaviour.timeout_restarts {
                self.timed_from = self.now();
            }
        }
        Ok(())
    }

    fn receive(&mut self, until: Duration) -> io::Result<Received> {
        if !self.output.is_empty() {
            return Ok(Received::Bytes(std::mem::take(&mut self.output)));
        }
        if self.ended {
            return Ok(Received::End);
        }
        if let Some(at) = self.session.next_piece_at().filter(|at| *at <= until) {
            self.shared.clock.set(at.max(self.now()));
            self.session.send_piece(&mut self.output);
            return Ok(Received::Bytes(std::mem::take(&mut self.output)));
        }
        let timeout = self.shared.behaviour.handshake_timeout.filter(|_| !self.session.finished());
        let end = timeout.map(|timeout| self.timed_from + timeout);
        if let Some(end) = end.filter(|end| *end <= until) {
            self.shared.clock.set(end.max(self.now()));
            self.ended = true;
            return Ok(Received::End);
        }
        self.shared.clock.set(until.max(self.now()));
        Ok(Received::Nothing)
    }

    fn fast_open(&self) -> Option<FastOpen> {
        self.fast_open
    }
}

/// A client's socket: what is sent is processed at once.
struct DatagramLink {
    shared: Rc<Shared>,
    endpoint: Rc<RefCell<Endpoint>>,
    local: SocketAddr,
}

impl Link for DatagramLink {
    fn now(&self) -> Duration {
        self.shared.clock.get()
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.endpoint.borrow_mut().receive(&self.shared, self.local, bytes);
        Ok(())
    }

    fn receive(&mut self, until: Duration) -> io::Result<Received> {
        if let Some(datagram) = self.endpoint.borrow_mut().next_datagram(self.local) {
            return Ok(Received::Bytes(datagram));
        }
        let next = self.endpoint.borrow().next_piece_at(self.local);
        if let Some(at) = next.filter(|at| *at <= until) {
            self.shared.clock.set(at.max(self.now()));
            let mut endpoint = self.endpoint.borrow_mut();
            endpoint.send_piece(self.local);
            let datagram = endpoint.next_datagram(self.local);
            return Ok(datagram.map_or(Received::Nothing, Received::Bytes));
        }
        self.shared.clock.set(until.max(self.now()));
        Ok(Received::Nothing)
    }

    fn local_address(&self) -> Option<SocketAddr> {
        Some(self.local)
    }
}
