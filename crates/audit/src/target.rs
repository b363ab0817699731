//! What is audited: one address of a server.

use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use firstflight_first_flight::{Link, TcpLink, UdpLink};

/// A server, and a clock. Over sockets, or simulated.
pub trait Target {
    /// Connects to the server.
    ///
    /// # Errors
    /// If nothing listens there, or it does not respond in time.
    fn connect(&self) -> io::Result<Box<dyn Link>>;

    /// Connects with TCP Fast Open.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), and [`io::ErrorKind::Unsupported`] without Fast Open.
    fn connect_with_fast_open(&self) -> io::Result<Box<dyn Link>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Connects from this local address, over QUIC.
    ///
    /// # Errors
    /// If the address is in use, or is not one of this machine.
    fn connect_from(&self, local: SocketAddr) -> io::Result<Box<dyn Link>> {
        let _ = local;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The time since a fixed moment, by the clock of the links.
    fn now(&self) -> Duration;

    /// Lets time pass.
    fn wait(&self, time: Duration);
}

/// An address of the server under test.
pub struct Node<'a> {
    /// Its name in the report.
    pub address: String,
    /// How to reach it.
    pub target: &'a dyn Target,
}

/// A server at an address, over TCP.
#[derive(Clone, Copy, Debug)]
pub struct TcpTarget {
    address: SocketAddr,
    limit: Duration,
    epoch: Instant,
}

impl TcpTarget {
    /// The server at this address; the limit is for connecting and for each write.
    pub fn new(address: SocketAddr, limit: Duration) -> Self {
        Self { address, limit, epoch: Instant::now() }
    }

    /// The same server at another address, with the same clock.
    #[must_use]
    pub fn at(self, address: SocketAddr) -> Self {
        Self { address, ..self }
    }
}

impl Target for TcpTarget {
    fn connect(&self) -> io::Result<Box<dyn Link>> {
        let link = TcpLink::connect(self.address, self.limit, self.epoch)?;
        Ok(Box::new(link))
    }

    fn connect_with_fast_open(&self) -> io::Result<Box<dyn Link>> {
        let link = TcpLink::connect_with_fast_open(self.address, self.limit, self.epoch)?;
        Ok(Box::new(link))
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn wait(&self, time: Duration) {
        thread::sleep(time);
    }
}

/// A server at an address, over QUIC.
#[derive(Clone, Copy, Debug)]
pub struct QuicTarget {
    address: SocketAddr,
    epoch: Instant,
}

impl QuicTarget {
    /// The server at this address.
    pub fn new(address: SocketAddr) -> Self {
        Self { address, epoch: Instant::now() }
    }
}

impl Target for QuicTarget {
    fn connect(&self) -> io::Result<Box<dyn Link>> {
        Ok(Box::new(UdpLink::connect(self.address, None, self.epoch)?))
    }

    fn connect_from(&self, local: SocketAddr) -> io::Result<Box<dyn Link>> {
        Ok(Box::new(UdpLink::connect(self.address, Some(local), self.epoch)?))
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn wait(&self, time: Duration) {
        thread::sleep(time);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, UdpSocket};

    use super::*;
    use crate::{AuditError, Settings, audit};

    fn outcome(address: SocketAddr) -> Result<crate::Report, AuditError> {
        let limit = Duration::from_secs(1);
        let settings = Settings { limit, ..Settings::new("localhost", "localhost", "/") };
        let target = TcpTarget::new(address, limit);
        audit(&[Node { address: String::new(), target: &target }], &settings, "", |_| {})
    }

    #[test]
    fn a_server_that_is_down_or_silent_cannot_be_audited() {
        let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = silent.local_addr().unwrap();
        assert_eq!(outcome(address), Err(AuditError::Slow));
        drop(silent);
        assert!(matches!(outcome(address), Err(AuditError::Down(_))));
    }

    #[test]
    fn a_server_without_quic_cannot_be_audited_over_it() {
        let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = silent.local_addr().unwrap();
        let limit = Duration::from_secs(1);
        let settings =
            Settings { limit, http3: true, ..Settings::new("localhost", "localhost", "/") };
        let outcome = || {
            let target = QuicTarget::new(address);
            audit(&[Node { address: String::new(), target: &target }], &settings, "", |_| {})
        };
        assert_eq!(outcome(), Err(AuditError::NoQuic));
        drop(silent);
        assert!(matches!(outcome(), Err(AuditError::Down(_))));
    }
}
