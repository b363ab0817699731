//! A simulated server with chosen mistakes, for tests of what tests servers. Feature `test_server`.
//!
//! It runs in the memory of a test, on a clock that only moves when somebody waits, and serves one
//! resource: a witness that counts its executions by the query string. It shares the key schedule and
//! the records with the client, so it shows nothing about those: real servers and the traces of RFC
//! 8448 do.

mod handshake;
mod http;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use crate::driver::{Link, Received};
use handshake::Session;

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

/// What becomes of a copy of a recorded flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyPolicy {
    /// Its early data is refused by TLS.
    Refuse,
    /// Its early data is accepted, and its requests wait for a Finished that never comes.
    Hold,
}

/// How a server behaves. The default is right in every respect.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// Whether it speaks TLS 1.3.
    pub tls13: bool,
    /// Tickets for each handshake.
    pub tickets: usize,
    /// The announced lifetime of tickets, in seconds.
    pub lifetime: u32,
    /// Whether it refuses tickets after their lifetime.
    pub enforces_lifetime: bool,
    /// Bytes of early data that are permitted.
    pub max_early_data: Option<u32>,
    /// Whether more early data ends the connection.
    pub enforces_limit: bool,
    /// How far the ticket age may be off; `None` if it is not checked.
    pub freshness: Option<Duration>,
    /// When flights are recorded.
    pub recorded: Recorded,
    /// What happens to the early data of a recorded flight.
    pub copies: CopyPolicy,
    /// How long records live.
    pub record_life: Duration,
    /// Whether refused flights are recorded too, once their handshake is complete.
    pub spends_refused: bool,
    /// Whether the requests of refused early data run all the same, in silence.
    pub executes_refused: bool,
    /// Whether requests of a flight that was recorded before get 425, also after the handshake.
    pub rejects_overtaken: bool,
    /// Whether the binder is verified.
    pub verifies_binder: bool,
    /// Whether tickets are authenticated.
    pub authenticates_tickets: bool,
    /// Whether early data needs the ticket's server name.
    pub binds_name: bool,
    /// Whether early data needs the ticket's protocol.
    pub binds_protocol: bool,
    /// Requests with safe methods.
    pub safe: EarlyRequest,
    /// All other requests.
    pub others: EarlyRequest,
    /// Whether 425 is also the response to requests after the handshake of such a connection.
    pub always_too_early: bool,
    /// Whether the witness sees `Early-Data: 1` with early requests.
    pub marks_early: bool,
    /// How long an unfinished handshake is kept; `None` for ever.
    pub handshake_timeout: Option<Duration>,
    /// The header `server`.
    pub software: &'static str,
    /// Handshake messages, or what looks like some, that it sends in front of its
    /// EncryptedExtensions.
    pub inserted: Vec<u8>,
    /// The same, after its tickets.
    pub appended: Vec<u8>,
    /// Whether executions are counted; else the response does not say.
    pub witness: bool,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            tls13: true,
            tickets: 2,
            lifetime: 7200,
            enforces_lifetime: true,
            max_early_data: Some(14_336),
            enforces_limit: true,
            freshness: Some(Duration::from_secs(10)),
            recorded: Recorded::WhenAccepted,
            copies: CopyPolicy::Refuse,
            record_life: Duration::from_secs(66),
            spends_refused: true,
            executes_refused: false,
            rejects_overtaken: true,
            verifies_binder: true,
            authenticates_tickets: true,
            binds_name: true,
            binds_protocol: true,
            safe: EarlyRequest::Execute,
            others: EarlyRequest::Hold,
            always_too_early: false,
            marks_early: true,
            handshake_timeout: Some(Duration::from_secs(10)),
            software: "test",
            inserted: Vec::new(),
            appended: Vec::new(),
            witness: true,
        }
    }
}

/// A simulated server, and its clock.
#[derive(Clone)]
pub struct TestServer(Rc<Shared>);

pub(crate) struct Shared {
    pub(crate) behaviour: Behaviour,
    pub(crate) clock: Rc<Cell<Duration>>,
    pub(crate) issued: Rc<RefCell<Vec<IssuedTicket>>>,
    /// Flights by their binder, and when the record ends.
    pub(crate) register: Rc<RefCell<HashMap<Vec<u8>, Duration>>>,
    executions: Rc<RefCell<HashMap<String, u64>>>,
    counter: Rc<Cell<u64>>,
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
        Self(Rc::new(Shared {
            behaviour,
            // Not at zero, so that ages can be wrong in both directions.
            clock: Rc::new(Cell::new(Duration::from_secs(100_000))),
            issued: Rc::default(),
            register: Rc::default(),
            executions: Rc::default(),
            counter: Rc::new(Cell::new(1)),
        }))
    }

    /// Another node of the same service: with its upstream and its clock, and with its ticket keys and
    /// its register if they are shared.
    pub fn node(&self, shares_keys: bool, shares_register: bool) -> Self {
        let shared = &self.0;
        Self(Rc::new(Shared {
            behaviour: shared.behaviour.clone(),
            clock: shared.clock.clone(),
            issued: if shares_keys { shared.issued.clone() } else { Rc::default() },
            register: if shares_register { shared.register.clone() } else { Rc::default() },
            executions: shared.executions.clone(),
            counter: shared.counter.clone(),
        }))
    }

    /// A connection.
    pub fn link(&self) -> Box<dyn Link> {
        Box::new(SimulatedLink {
            session: Session::new(self.0.clone()),
            shared: self.0.clone(),
            output: Vec::new(),
            opened: self.0.clock.get(),
            ended: false,
        })
    }

    /// The time.
    pub fn now(&self) -> Duration {
        self.0.clock.get()
    }

    /// Lets time pass.
    pub fn wait(&self, time: Duration) {
        self.0.clock.set(self.0.clock.get() + time);
    }

    /// How often requests with this query string were executed.
    pub fn executions(&self, query: &str) -> u64 {
        self.0.executions.borrow().get(query).copied().unwrap_or(0)
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

    /// Whether a flight is in the register.
    pub(crate) fn is_recorded(&self, binder: &[u8]) -> bool {
        self.register.borrow().get(binder).is_some_and(|end| *end > self.clock.get())
    }

    pub(crate) fn record(&self, binder: &[u8]) {
        let end = self.clock.get() + self.behaviour.record_life;
        self.register.borrow_mut().insert(binder.to_vec(), end);
    }
}

/// A connection to the server: what is sent is processed at once.
struct SimulatedLink {
    session: Session,
    shared: Rc<Shared>,
    output: Vec<u8>,
    opened: Duration,
    ended: bool,
}

impl Link for SimulatedLink {
    fn now(&self) -> Duration {
        self.shared.clock.get()
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !self.ended {
            self.ended = !self.session.receive(bytes, &mut self.output);
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
        let timeout = self.shared.behaviour.handshake_timeout.filter(|_| !self.session.finished());
        if let Some(end) = timeout.map(|timeout| self.opened + timeout).filter(|end| *end <= until)
        {
            self.shared.clock.set(end.max(self.now()));
            self.ended = true;
            return Ok(Received::End);
        }
        self.shared.clock.set(until.max(self.now()));
        Ok(Received::Nothing)
    }
}
