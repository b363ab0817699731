//! A link over a TCP socket.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::driver::{Link, Received};

/// A TCP connection. It blocks.
pub struct TcpLink {
    stream: TcpStream,
    epoch: Instant,
    limit: Duration,
}

impl TcpLink {
    /// Connects; times are counted from `epoch`. The limit is for connecting and for each write.
    ///
    /// # Errors
    /// If nothing listens there, or it does not respond in time.
    pub fn connect(address: SocketAddr, limit: Duration, epoch: Instant) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, limit)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, epoch, limit })
    }
}

impl Link for TcpLink {
    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (end, mut rest) = (self.now() + self.limit, bytes);
        while !rest.is_empty() {
            // A server that reads a little at a time gets no new limit for it.
            let left = end.saturating_sub(self.now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            self.stream.set_write_timeout(Some(left))?;
            match self.stream.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(len) => rest = &rest[len..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn receive(&mut self, until: Duration) -> io::Result<Received> {
        let mut buffer = [0; MAX_READ];
        loop {
            let left = until.saturating_sub(self.now());
            if left.is_zero() {
                return Ok(Received::Nothing);
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(&mut buffer) {
                Ok(0) => return Ok(Received::End),
                Ok(len) => return Ok(Received::Bytes(buffer[..len].to_vec())),
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => return Ok(Received::Nothing),
                    ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => return Ok(Received::End),
                    _ => return Err(error),
                },
            }
        }
    }
}

/// Bytes of one read: a whole record fits.
const MAX_READ: usize = 16 * 1024 + 512;
