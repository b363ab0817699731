//! A link over a TCP socket.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::sockopt::TcpFastOpenConnect;
use nix::sys::socket::{getsockopt, setsockopt};
use nix::{getsockopt_impl, sockopt_impl};
use socket2::{Domain, Protocol, Socket, Type};

use crate::driver::{Link, Received};

/// The outcome of TCP Fast Open on a connection (RFC 7413), as reported by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastOpen {
    /// There was no cookie of the server, so the SYN had no data.
    NoCookie,
    /// The SYN-ACK acknowledged the data of the SYN.
    Accepted,
    /// The SYN-ACK did not acknowledge the data of the SYN.
    NotAccepted,
    /// The SYN had to be sent again, without data.
    SynLost,
}

impl fmt::Display for FastOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoCookie => "no cookie, so no data in the SYN",
            Self::Accepted => "data in the SYN, acknowledged by the SYN-ACK",
            Self::NotAccepted => "data in the SYN, not acknowledged by the SYN-ACK",
            Self::SynLost => "the SYN was lost and sent again without data",
        })
    }
}

/// A TCP connection on a blocking socket.
pub struct TcpLink {
    stream: TcpStream,
    epoch: Instant,
    limit: Duration,
    fast_open: bool,
}

impl TcpLink {
    /// Connects; times are counted from `epoch`. The limit is for connecting and for each write.
    ///
    /// # Errors
    /// If nothing listens there, or it does not respond in time.
    pub fn connect(address: SocketAddr, limit: Duration, epoch: Instant) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, limit)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, epoch, limit, fast_open: false })
    }

    /// Connects with TCP Fast Open: the first data leaves in the SYN if this machine has a cookie
    /// of the server; otherwise the SYN requests one.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), and [`ErrorKind::Unsupported`] if the system has no Fast Open
    /// for clients.
    pub fn connect_with_fast_open(
        address: SocketAddr,
        limit: Duration,
        epoch: Instant,
    ) -> io::Result<Self> {
        let domain = Domain::for_address(address);
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        setsockopt(&socket, TcpFastOpenConnect, &true).map_err(|error| match error {
            Errno::EOPNOTSUPP | Errno::ENOPROTOOPT => ErrorKind::Unsupported.into(),
            other => io::Error::from(other),
        })?;
        socket.connect_timeout(&address.into(), limit)?;
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        Ok(Self { stream, epoch, limit, fast_open: true })
    }
}

impl Link for TcpLink {
    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (end, mut rest) = (self.now() + self.limit, bytes);
        while !rest.is_empty() {
            // The limit is for the whole call, even if the server reads slowly.
            let remaining = end.saturating_sub(self.now());
            if remaining.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            self.stream.set_write_timeout(Some(remaining))?;
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
            let remaining = until.saturating_sub(self.now());
            if remaining.is_zero() {
                return Ok(Received::Nothing);
            }
            self.stream.set_read_timeout(Some(remaining))?;
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

    fn local_address(&self) -> Option<SocketAddr> {
        self.stream.local_addr().ok()
    }

    fn remote_address(&self) -> Option<SocketAddr> {
        self.stream.peer_addr().ok()
    }

    fn fast_open(&self) -> Option<FastOpen> {
        if !self.fast_open {
            return None;
        }
        let info = getsockopt(&self.stream, TcpInfoStart).ok()?;
        // `enum tcp_fastopen_client_fail`, since Linux 5.5.
        Some(match (info[OPTIONS_OFFSET] & TCPI_OPT_SYN_DATA, info[FAILURE_OFFSET] >> 1 & 3) {
            (0, 1) => FastOpen::NoCookie,
            (0, 2) => FastOpen::NotAccepted,
            (0, 3) => FastOpen::SynLost,
            (0, _) => return None,
            _ => FastOpen::Accepted,
        })
    }
}

sockopt_impl!(
    /// The start of the kernel's `struct tcp_info`, as much as is requested (`linux/tcp.h`).
    TcpInfoStart,
    GetOnly,
    libc::IPPROTO_TCP,
    libc::TCP_INFO,
    [u8; 8]
);

/// Offset of `tcpi_options`, and its bit for acknowledged data in the SYN.
const OPTIONS_OFFSET: usize = 5;
const TCPI_OPT_SYN_DATA: u8 = 32;
/// Offset of `tcpi_fastopen_client_fail`, which is in bits 1 and 2.
const FAILURE_OFFSET: usize = 7;

/// Maximum size of one read, in bytes; fits a whole record.
const MAX_READ: usize = 16 * 1024 + 512;
