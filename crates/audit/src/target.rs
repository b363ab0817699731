//! What is audited: one address of a server.

use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use firstflight_first_flight::{Link, TcpLink};

/// A server, and a clock. Over sockets, or simulated.
pub trait Target {
    /// Connects to the server.
    ///
    /// # Errors
    /// If nothing listens there, or it does not respond in time.
    fn connect(&self) -> io::Result<Box<dyn Link>>;

    /// The time since some fixed moment; the clock of the links.
    fn now(&self) -> Duration;

    /// Lets time pass.
    fn wait(&self, time: Duration);
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

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn wait(&self, time: Duration) {
        thread::sleep(time);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;
    use crate::{AuditError, Settings, audit};

    fn outcome(address: SocketAddr) -> Result<crate::Report, AuditError> {
        let limit = Duration::from_secs(1);
        let settings = Settings { limit, ..Settings::new("localhost", "localhost", "/") };
        audit(&TcpTarget::new(address, limit), &settings, "", "", |_| {})
    }

    #[test]
    fn a_server_that_is_down_or_silent_cannot_be_audited() {
        let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = silent.local_addr().unwrap();
        assert_eq!(outcome(address), Err(AuditError::Slow));
        drop(silent);
        assert!(matches!(outcome(address), Err(AuditError::Down(_))));
    }
}
