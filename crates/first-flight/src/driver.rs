//! Runs a connection over a link until an event happens, and keeps all events.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::{Connection, Event, FastOpen, FirstFlight, ProtocolError};

/// A byte stream or datagrams to a server, and a clock. Over a socket, or simulated.
pub trait Link {
    /// The time since some fixed moment.
    fn now(&self) -> Duration;

    /// Sends all these bytes; over a link of datagrams, as one datagram.
    ///
    /// # Errors
    /// If the server has closed the connection, or accepts nothing for too long.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Waits for bytes of the server, at most until this time.
    ///
    /// # Errors
    /// If the connection fails; its end is no error.
    fn receive(&mut self, until: Duration) -> io::Result<Received>;

    /// The local address, if it is a socket.
    fn local_address(&self) -> Option<SocketAddr> {
        None
    }

    /// The server's address, if it is a socket.
    fn remote_address(&self) -> Option<SocketAddr> {
        None
    }

    /// Takes a line of the connection's NSS key log, for links that record what they carry.
    fn log_key(&mut self, line: &str) {
        let _ = line;
    }

    /// The outcome of TCP Fast Open, if it was used and the system reports it.
    fn fast_open(&self) -> Option<FastOpen> {
        None
    }
}

/// The result of reading from a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// Bytes of the server; over QUIC a datagram.
    Bytes(Vec<u8>),
    /// The end of the stream, or a reset.
    End,
    /// Nothing arrived in time.
    Nothing,
}

/// An event with its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedEvent {
    /// When it was received.
    pub at: Duration,
    /// What it was.
    pub event: Event,
}

/// Why a wait ended without its event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ended {
    /// The time limit was reached.
    #[error("no response in time")]
    TimedOut,
    /// The server closed the connection.
    #[error("the server closed the connection")]
    Closed,
    /// Nothing listens there.
    #[error("nothing listens at this port")]
    Refused,
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Failed(String),
    /// The server sent more than 16 MiB, far more than any test needs.
    #[error("the server sent more than 16 MiB on one connection")]
    TooMuch,
    /// The server's bytes break the protocol.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
}

/// A connection on a link.
pub struct Driver {
    connection: Box<dyn Connection>,
    link: Box<dyn Link>,
    events: Vec<TimedEvent>,
    /// Number of events that waits have examined.
    examined: usize,
    started: Duration,
    ended: Option<Ended>,
    /// Bytes received. This is limited, as events may keep all of them.
    received: usize,
    /// How long to wait for a response before a retransmission.
    retransmit_after: Duration,
}

impl Driver {
    /// Sends a flight over a link.
    pub fn start(flight: &FirstFlight, link: Box<dyn Link>) -> Self {
        Self::run(flight.connection(), link)
    }

    /// Sends a flight as an attacker can: its bytes, and nothing in response to the server. Over
    /// TCP this makes no difference until the handshake is completed.
    pub fn start_copy(flight: &FirstFlight, link: Box<dyn Link>) -> Self {
        Self::run(flight.copy(), link)
    }

    fn run(connection: Box<dyn Connection>, link: Box<dyn Link>) -> Self {
        let mut driver = Self {
            connection,
            started: link.now(),
            link,
            events: Vec::new(),
            examined: 0,
            ended: None,
            received: 0,
            retransmit_after: INITIAL_RETRANSMIT_TIMEOUT,
        };
        driver.log_keys();
        driver.flush();
        driver
    }

    /// When the flight was sent.
    pub fn started(&self) -> Duration {
        self.started
    }

    /// The local address.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.link.local_address()
    }

    /// The outcome of TCP Fast Open, if it was used and the system reports it.
    pub fn fast_open(&self) -> Option<FastOpen> {
        self.link.fast_open()
    }

    /// The time of the link.
    pub fn now(&self) -> Duration {
        self.link.now()
    }

    /// All events so far.
    pub fn events(&self) -> &[TimedEvent] {
        &self.events
    }

    /// The connection, to finish it or to send on it. Its output leaves with the next wait or
    /// [`flush`](Self::flush).
    pub fn connection(&mut self) -> &mut dyn Connection {
        &mut *self.connection
    }

    /// Waits at most `limit` for an event that `predicate` accepts, after the events that earlier
    /// waits have examined.
    ///
    /// # Errors
    /// The reason why there was no such event.
    pub fn wait_for(
        &mut self,
        limit: Duration,
        mut predicate: impl FnMut(&Event) -> bool,
    ) -> Result<Event, Ended> {
        let end = self.link.now() + limit;
        loop {
            self.flush();
            while let Some(timed) = self.events.get(self.examined) {
                self.examined += 1;
                if predicate(&timed.event) {
                    return Ok(timed.event.clone());
                }
            }
            if let Some(ended) = &self.ended {
                return Err(ended.clone());
            }
            let until = end.min(self.link.now() + self.retransmit_after);
            if !self.read(until) && (until == end || !self.retransmit()) && !self.read(end) {
                return Err(Ended::TimedOut);
            }
        }
    }

    /// Sends the connection's pending output.
    pub fn flush(&mut self) {
        for bytes in self.connection.take_output() {
            // A server may have sent its reason before it closed; that can still be read.
            use io::ErrorKind::{BrokenPipe, ConnectionReset};
            if let Err(error) = self.link.send(&bytes)
                && !matches!(error.kind(), BrokenPipe | ConnectionReset)
            {
                self.ended.get_or_insert(wait_error(&error));
            }
        }
    }

    fn log_keys(&mut self) {
        for line in self.connection.take_key_log() {
            self.link.log_key(&line);
        }
    }

    /// Retransmits, and doubles the next wait. Returns whether there was anything to send.
    fn retransmit(&mut self) -> bool {
        self.retransmit_after *= 2;
        self.connection.retransmit()
    }

    /// Reads once. Returns whether bytes arrived or the connection ended.
    fn read(&mut self, until: Duration) -> bool {
        match self.link.receive(until) {
            Ok(Received::Nothing) => return false,
            Ok(Received::End) => self.ended = Some(Ended::Closed),
            Ok(Received::Bytes(bytes)) => {
                let at = self.link.now();
                self.received += bytes.len();
                if self.received > MAX_RECEIVED_BYTES {
                    self.ended = Some(Ended::TooMuch);
                    return true;
                }
                if let Err(error) = self.connection.receive(&bytes, at) {
                    self.ended = Some(Ended::Protocol(error));
                }
                self.log_keys();
                while let Some(event) = self.connection.next_event() {
                    self.events.push(TimedEvent { at, event });
                }
            }
            Err(error) => self.ended = Some(wait_error(&error)),
        }
        true
    }
}

fn wait_error(error: &io::Error) -> Ended {
    match error.kind() {
        // ICMP refused a datagram. Over TCP, connecting would have failed.
        io::ErrorKind::ConnectionRefused => Ended::Refused,
        _ => Ended::Failed(error.to_string()),
    }
}

/// Maximum number of bytes received on one connection.
const MAX_RECEIVED_BYTES: usize = 16 << 20;

/// The first wait for a response, which doubles (RFC 9002 section 6.2).
const INITIAL_RETRANSMIT_TIMEOUT: Duration = Duration::from_millis(600);
