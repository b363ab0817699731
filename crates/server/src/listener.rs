//! Listening sockets: address reuse, a long backlog, TCP Fast Open.

use std::io;
use std::net::SocketAddr;

use nix::sys::socket::setsockopt;
use nix::{setsockopt_impl, sockopt_impl};
use tokio::net::{TcpListener, TcpSocket};
use tracing::warn;

use crate::ServerError;

/// Listens on `address`.
///
/// # Errors
/// [`ServerError::AddressInUse`], [`ServerError::AddressForbidden`] or [`ServerError::Listen`].
pub(crate) fn listen(address: SocketAddr, backlog: u32) -> Result<TcpListener, ServerError> {
    bind(address, backlog).map_err(|reason| match reason.kind() {
        io::ErrorKind::AddrInUse => ServerError::AddressInUse(address),
        io::ErrorKind::PermissionDenied => ServerError::AddressForbidden(address),
        _ => ServerError::Listen { address, reason },
    })
}

fn bind(address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    // RFC 7413: a client with a cookie sends its ClientHello, and with it early data, in the SYN.
    if let Err(error) = setsockopt(&socket, TcpFastOpen, &FAST_OPEN_QUEUE) {
        warn!(
            "no TCP Fast Open on {address}: {error}; the kernel allows it by sysctl \
             net.ipv4.tcp_fastopen=3"
        );
    }
    socket.listen(backlog)
}

sockopt_impl!(
    /// Connections by Fast Open that have not completed the TCP handshake yet.
    TcpFastOpen,
    SetOnly,
    libc::IPPROTO_TCP,
    libc::TCP_FASTOPEN,
    i32
);

/// As many as a burst brings within one round trip; above it the kernel falls back to the
/// ordinary handshake.
const FAST_OPEN_QUEUE: i32 = 1024;
