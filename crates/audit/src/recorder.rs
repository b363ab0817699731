//! Records what goes over the connections of an audit: times and sizes always, bytes for a capture.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use firstflight_first_flight::{FastOpen, Link, Received};
use sha2::{Digest, Sha256};

use crate::finding::Connection;
use crate::target::{Node, Target};

/// The connections since the last [`take`](Self::take).
pub(crate) struct Recorder {
    connections: RefCell<Vec<Rc<RefCell<Recording>>>>,
    /// When the audit started, on the clock of its targets.
    start: Duration,
    /// Bytes that may still be kept before the next [`take`](Self::take): 0 without a capture.
    budget: Rc<Cell<usize>>,
    keeps_bytes: bool,
}

impl Recorder {
    pub(crate) fn new(start: Duration, keeps_bytes: bool) -> Self {
        let budget = Rc::new(Cell::new(if keeps_bytes { MAX_KEPT_BYTES } else { 0 }));
        Self { connections: RefCell::default(), start, budget, keeps_bytes }
    }

    /// A node whose connections are recorded.
    pub(crate) fn record<'a>(&'a self, node: &Node<'a>) -> RecordedTarget<'a> {
        RecordedTarget { target: node.target, address: node.address.clone(), recorder: self }
    }

    /// Takes the connections since the last call.
    pub(crate) fn take(&self) -> Vec<Recording> {
        self.budget.set(if self.keeps_bytes { MAX_KEPT_BYTES } else { 0 });
        let connections = self.connections.take();
        connections.into_iter().map(|recording| recording.borrow().clone()).collect()
    }
}

/// A recorded connection. Times are counted from the start of the audit.
#[derive(Clone)]
pub(crate) struct Recording {
    pub(crate) address: String,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) remote: Option<SocketAddr>,
    pub(crate) opened: Duration,
    pub(crate) pieces: Vec<Piece>,
    /// When the server ended it.
    pub(crate) ended: Option<Duration>,
    pub(crate) key_log: Vec<String>,
    /// Whether the client has not waited for the server yet.
    is_first_flight: bool,
    first_flight_bytes: u64,
    first_flight: Sha256,
    sent_bytes: u64,
    received_bytes: u64,
}

/// The bytes of one write or read; over QUIC, a datagram.
#[derive(Clone)]
pub(crate) struct Piece {
    pub(crate) at: Duration,
    pub(crate) from_server: bool,
    /// Empty if there was too much to keep.
    pub(crate) bytes: Vec<u8>,
    pub(crate) len: usize,
}

impl Recording {
    /// The connection as it is reported.
    pub(crate) fn summary(&self) -> Connection {
        Connection {
            address: self.address.clone(),
            local_port: self.local.map(|local| local.port()),
            opened_ms: self.opened.as_millis() as u64,
            first_flight_bytes: self.first_flight_bytes,
            first_flight_sha256: hex::encode(self.first_flight.clone().finalize()),
            sent_bytes: self.sent_bytes,
            received_bytes: self.received_bytes,
        }
    }
}

/// A target whose connections are recorded.
pub(crate) struct RecordedTarget<'a> {
    target: &'a dyn Target,
    address: String,
    recorder: &'a Recorder,
}

impl RecordedTarget<'_> {
    fn link(&self, link: Box<dyn Link>) -> Box<dyn Link> {
        let recording = Rc::new(RefCell::new(Recording {
            address: self.address.clone(),
            local: link.local_address(),
            remote: link.remote_address(),
            opened: link.now().saturating_sub(self.recorder.start),
            pieces: Vec::new(),
            ended: None,
            key_log: Vec::new(),
            is_first_flight: true,
            first_flight_bytes: 0,
            first_flight: Sha256::new(),
            sent_bytes: 0,
            received_bytes: 0,
        }));
        self.recorder.connections.borrow_mut().push(recording.clone());
        let budget = self.recorder.budget.clone();
        Box::new(RecordedLink { link, recording, start: self.recorder.start, budget })
    }
}

impl Target for RecordedTarget<'_> {
    fn connect(&self) -> io::Result<Box<dyn Link>> {
        self.target.connect().map(|link| self.link(link))
    }

    fn connect_with_fast_open(&self) -> io::Result<Box<dyn Link>> {
        self.target.connect_with_fast_open().map(|link| self.link(link))
    }

    fn connect_from(&self, local: SocketAddr) -> io::Result<Box<dyn Link>> {
        self.target.connect_from(local).map(|link| self.link(link))
    }

    fn now(&self) -> Duration {
        self.target.now()
    }

    fn wait(&self, time: Duration) {
        self.target.wait(time);
    }
}

struct RecordedLink {
    link: Box<dyn Link>,
    recording: Rc<RefCell<Recording>>,
    start: Duration,
    budget: Rc<Cell<usize>>,
}

impl RecordedLink {
    fn keep(&self, bytes: &[u8], from_server: bool) {
        let budget = self.budget.get();
        let mut recording = self.recording.borrow_mut();
        if recording.local.is_none() {
            // With Fast Open, the socket has addresses only after the first write.
            recording.local = self.link.local_address();
            recording.remote = self.link.remote_address();
        }
        let at = self.link.now().saturating_sub(self.start);
        if budget > 0 {
            let kept = if bytes.len() <= budget { bytes } else { &[] };
            self.budget.set(budget - kept.len());
            let piece = Piece { at, from_server, bytes: kept.to_vec(), len: bytes.len() };
            recording.pieces.push(piece);
        }
    }
}

impl Link for RecordedLink {
    fn now(&self) -> Duration {
        self.link.now()
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        {
            let mut recording = self.recording.borrow_mut();
            recording.sent_bytes += bytes.len() as u64;
            if recording.is_first_flight {
                recording.first_flight_bytes += bytes.len() as u64;
                recording.first_flight.update(bytes);
            }
        }
        self.keep(bytes, false);
        self.link.send(bytes)
    }

    fn receive(&mut self, until: Duration) -> io::Result<Received> {
        // The first flight is everything that is sent before the client waits.
        self.recording.borrow_mut().is_first_flight = false;
        let received = self.link.receive(until);
        match &received {
            Ok(Received::Bytes(bytes)) => {
                self.recording.borrow_mut().received_bytes += bytes.len() as u64;
                self.keep(bytes, true);
            }
            Ok(Received::End) => {
                let at = self.link.now().saturating_sub(self.start);
                self.recording.borrow_mut().ended.get_or_insert(at);
            }
            _ => {}
        }
        received
    }

    fn local_address(&self) -> Option<SocketAddr> {
        self.link.local_address()
    }

    fn remote_address(&self) -> Option<SocketAddr> {
        self.link.remote_address()
    }

    fn log_key(&mut self, line: &str) {
        self.recording.borrow_mut().key_log.push(line.to_owned());
        self.link.log_key(line);
    }

    fn fast_open(&self) -> Option<FastOpen> {
        self.link.fast_open()
    }
}

/// Maximum number of bytes that are kept for a capture, of all connections of a check.
const MAX_KEPT_BYTES: usize = 64 << 20;
