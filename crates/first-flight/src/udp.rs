//! A link over a UDP socket.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::driver::{Link, Received};

/// Datagrams to and from one address, on a blocking socket.
pub struct UdpLink {
    socket: UdpSocket,
    epoch: Instant,
}

impl UdpLink {
    /// Binds to this local address, or to any; times are counted from `epoch`.
    ///
    /// # Errors
    /// If the local address is in use or not of this machine, or there is no route.
    pub fn connect(
        address: SocketAddr,
        local: Option<SocketAddr>,
        epoch: Instant,
    ) -> io::Result<Self> {
        let any: SocketAddr = match address {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(local.unwrap_or(any))?;
        socket.connect(address)?;
        Ok(Self { socket, epoch })
    }
}

impl Link for UdpLink {
    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.send(bytes).map(drop)
    }

    fn receive(&mut self, until: Duration) -> io::Result<Received> {
        let mut buffer = [0; MAX_DATAGRAM];
        loop {
            let remaining = until.saturating_sub(self.now());
            if remaining.is_zero() {
                return Ok(Received::Nothing);
            }
            self.socket.set_read_timeout(Some(remaining))?;
            match self.socket.recv(&mut buffer) {
                Ok(len) => return Ok(Received::Bytes(buffer[..len].to_vec())),
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => return Ok(Received::Nothing),
                    _ => return Err(error),
                },
            }
        }
    }

    fn local_address(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()
    }

    fn remote_address(&self) -> Option<SocketAddr> {
        self.socket.peer_addr().ok()
    }
}

const MAX_DATAGRAM: usize = 65_536;
