//! Runs a connection over a link until something happens, and keeps what happened.

use std::io;
use std::time::Duration;

use crate::{Connection, Event, FirstFlight, ProtocolError};

/// A byte stream to a server, and a clock. Over a socket, or simulated.
pub trait Link {
    /// The time since some fixed moment.
    fn now(&self) -> Duration;

    /// Sends all these bytes.
    ///
    /// # Errors
    /// If the server has closed the connection, or takes nothing for too long.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Waits until this time for bytes of the server.
    ///
    /// # Errors
    /// If the connection fails otherwise than by its end.
    fn receive(&mut self, until: Duration) -> io::Result<Received>;
}

/// What came over a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// Bytes of the server.
    Bytes(Vec<u8>),
    /// The end of the stream, or a reset.
    End,
    /// Nothing in time.
    Nothing,
}

/// An event with its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timed {
    /// When it was received.
    pub at: Duration,
    /// What it was.
    pub event: Event,
}

/// Why a wait ended without its event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ended {
    /// The time was over.
    #[error("no response in time")]
    TimedOut,
    /// The server closed the connection.
    #[error("the server closed the connection")]
    Closed,
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Failed(String),
    /// The server's bytes break the protocol.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
}

/// A connection on a link.
pub struct Driver {
    connection: Connection,
    link: Box<dyn Link>,
    events: Vec<Timed>,
    /// Events that a wait has returned.
    seen: usize,
    ended: Option<Ended>,
}

impl Driver {
    /// Sends a flight over a link.
    pub fn start(flight: &FirstFlight, link: Box<dyn Link>) -> Self {
        let connection = flight.connection();
        let mut driver = Self { connection, link, events: Vec::new(), seen: 0, ended: None };
        driver.flush();
        driver
    }

    /// All events so far.
    pub fn events(&self) -> &[Timed] {
        &self.events
    }

    /// The connection, to finish it or to send on it; what it has to send leaves with the next wait or
    /// [`flush`](Self::flush).
    pub fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Waits for at most this time for an event that `wanted` selects, after those of earlier waits.
    ///
    /// # Errors
    /// Why it did not come.
    pub fn wait_for(
        &mut self,
        limit: Duration,
        mut wanted: impl FnMut(&Event) -> bool,
    ) -> Result<Event, Ended> {
        let end = self.link.now() + limit;
        loop {
            self.flush();
            while let Some(timed) = self.events.get(self.seen) {
                self.seen += 1;
                if wanted(&timed.event) {
                    return Ok(timed.event.clone());
                }
            }
            if let Some(ended) = &self.ended {
                return Err(ended.clone());
            }
            if !self.read(end) {
                return Err(Ended::TimedOut);
            }
        }
    }

    /// Sends what the connection has to send.
    pub fn flush(&mut self) {
        let bytes = self.connection.take_output();
        if bytes.is_empty() {
            return;
        }
        // A server that has closed may have sent its reason before, which is still to be read.
        if let Err(error) = self.link.send(&bytes)
            && !matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
        {
            self.ended.get_or_insert(Ended::Failed(error.to_string()));
        }
    }

    /// Reads once; whether something came, or the connection ended.
    fn read(&mut self, until: Duration) -> bool {
        match self.link.receive(until) {
            Ok(Received::Nothing) => return false,
            Ok(Received::End) => self.ended = Some(Ended::Closed),
            Ok(Received::Bytes(bytes)) => {
                let at = self.link.now();
                if let Err(error) = self.connection.receive(&bytes, at) {
                    self.ended = Some(Ended::Protocol(error));
                }
                while let Some(event) = self.connection.next_event() {
                    self.events.push(Timed { at, event });
                }
            }
            Err(error) => self.ended = Some(Ended::Failed(error.to_string())),
        }
        true
    }
}
