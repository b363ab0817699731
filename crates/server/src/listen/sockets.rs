//! Listening sockets: address reuse, backlog, TCP Fast Open, and UDP on the same port.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use firstflight_quic::Steering;
use nix::sys::socket::setsockopt;
use nix::{setsockopt_impl, sockopt_impl};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpSocket};
use tracing::warn;

use crate::ServerError;
use crate::handoff::InheritedPort;

/// The sockets of one listener.
pub(crate) struct BoundPort {
    /// The bound address, with the port that the system chose.
    pub(crate) address: SocketAddr,
    pub(crate) tcp: TcpListener,
    /// One UDP socket for each worker thread, or none without HTTP/3.
    pub(crate) udp: Vec<UdpSocket>,
}

/// Binds `address` for TCP, and for UDP if HTTP/3 is served.
///
/// # Errors
/// [`ServerError::AddressInUse`], [`ServerError::UdpInUse`], [`ServerError::AddressForbidden`] or
/// [`ServerError::Listen`].
pub(crate) fn listen(
    address: SocketAddr,
    backlog: u32,
    http3: bool,
) -> Result<BoundPort, ServerError> {
    let mut attempts = 0;
    loop {
        let tcp = listen_tcp(address, backlog)?;
        let bound = tcp.local_addr().unwrap_or(address);
        let udp = match http3 {
            true => bind_udp(bound),
            false => Ok(Vec::new()),
        };
        attempts += 1;
        match udp {
            Ok(udp) => return Ok(BoundPort { address: bound, tcp, udp }),
            // The system chose a port that is free for TCP only.
            Err(ServerError::UdpInUse(_))
                if address.port() == 0 && attempts < MAX_PORT_ATTEMPTS => {}
            Err(error) => return Err(error),
        }
    }
}

/// Uses inherited sockets, and binds those that are missing.
///
/// # Errors
/// As [`listen`].
pub(crate) fn listen_with(
    inherited: InheritedPort,
    backlog: u32,
    http3: bool,
) -> Result<BoundPort, ServerError> {
    let InheritedPort { address, tcp, udp, .. } = inherited;
    let tcp = match tcp {
        Some(tcp) => {
            use_inherited(tcp).map_err(|reason| ServerError::Listen { address, reason })?
        }
        None => listen_tcp(address, backlog)?,
    };
    let udp = match (http3, udp.is_empty()) {
        (true, true) => bind_udp(address)?,
        (true, false) => udp,
        (false, _) => Vec::new(),
    };
    for socket in &udp {
        socket.set_nonblocking(true).map_err(|reason| ServerError::Listen { address, reason })?;
        enlarge_buffers(socket);
    }
    Ok(BoundPort { address, tcp, udp })
}

fn use_inherited(tcp: std::net::TcpListener) -> io::Result<TcpListener> {
    tcp.set_nonblocking(true)?;
    disable_nagle(&tcp);
    enable_fast_open(&tcp, tcp.local_addr()?);
    TcpListener::from_std(tcp)
}

fn listen_tcp(address: SocketAddr, backlog: u32) -> Result<TcpListener, ServerError> {
    bind_tcp(address, backlog).map_err(|reason| match reason.kind() {
        io::ErrorKind::AddrInUse => ServerError::AddressInUse(address),
        io::ErrorKind::PermissionDenied => ServerError::AddressForbidden(address),
        _ => ServerError::Listen { address, reason },
    })
}

fn bind_tcp(address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    enable_fast_open(&socket, address);
    disable_nagle(&socket);
    socket.listen(backlog)
}

/// The TLS stream collects writes, so Nagle's algorithm would only delay them. Accepted sockets
/// inherit the option.
fn disable_nagle(socket: &impl AsFd) {
    let _ = SockRef::from(socket).set_tcp_nodelay(true);
}

/// RFC 7413: a client that has a cookie sends its ClientHello and early data in the SYN.
fn enable_fast_open(socket: &impl AsFd, address: SocketAddr) {
    if let Err(error) = setsockopt(socket, TcpFastOpen, &MAX_FAST_OPEN_QUEUE) {
        warn!(
            "TCP Fast Open is not available on {address}: {error}; enable it with sysctl \
             net.ipv4.tcp_fastopen=3"
        );
    }
}

sockopt_impl!(
    /// The maximum number of pending Fast Open connections.
    TcpFastOpen,
    SetOnly,
    libc::IPPROTO_TCP,
    libc::TCP_FASTOPEN,
    i32
);

/// Enough for a burst within one round trip. Above this the kernel uses the ordinary handshake.
const MAX_FAST_OPEN_QUEUE: i32 = 1024;

/// Attempts to find a port that is free for TCP and UDP.
const MAX_PORT_ATTEMPTS: usize = 20;

/// Binds one UDP socket for each worker thread. Needs a tokio runtime.
///
/// # Errors
/// [`ServerError::UdpInUse`], [`ServerError::AddressForbidden`] or [`ServerError::Listen`].
pub(crate) fn bind_udp(address: SocketAddr) -> Result<Vec<UdpSocket>, ServerError> {
    bind_all(address, steering()).map_err(|reason| match reason.kind() {
        io::ErrorKind::AddrInUse => ServerError::UdpInUse(address),
        io::ErrorKind::PermissionDenied => ServerError::AddressForbidden(address),
        _ => ServerError::Listen { address, reason },
    })
}

fn steering() -> Steering {
    let workers = tokio::runtime::Handle::current().metrics().num_workers();
    Steering::new(u8::try_from(workers).unwrap_or(u8::MAX))
}

fn bind_all(address: SocketAddr, steering: Steering) -> io::Result<Vec<UdpSocket>> {
    // The first socket binds exclusively: two processes on one port would share its packets, and
    // each would execute the same flight once.
    let first = socket(address)?;
    first.bind(&address.into())?;
    first.set_reuse_port(true)?;
    let mut sockets = vec![first];
    for _ in 1..steering.workers() {
        let further = socket(address)?;
        further.set_reuse_port(true)?;
        further.bind(&address.into())?;
        sockets.push(further);
    }
    if sockets.len() > 1 {
        steering.attach(&sockets[0])?;
    }
    Ok(sockets.into_iter().map(UdpSocket::from).collect())
}

fn socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    enlarge_buffers(&socket);
    Ok(socket)
}

/// Larger buffers, so that a burst of first flights is not dropped. The kernel may grant less. systemd
/// may have granted more; the kernel reports twice what was set.
fn enlarge_buffers(socket: &impl AsFd) {
    let socket = SockRef::from(socket);
    let is_smaller =
        |size: io::Result<usize>| size.is_ok_and(|size| size < 2 * SOCKET_BUFFER_BYTES);
    if is_smaller(socket.recv_buffer_size()) {
        let _ = socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES);
    }
    if is_smaller(socket.send_buffer_size()) {
        let _ = socket.set_send_buffer_size(SOCKET_BUFFER_BYTES);
    }
}

/// One millisecond at 16 Gbit/s.
const SOCKET_BUFFER_BYTES: usize = 2 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn inherited_udp_sockets_have_the_same_buffers_as_bound_ones() {
        let bytes = |socket: &UdpSocket| {
            let socket = SockRef::from(socket);
            (socket.recv_buffer_size().unwrap(), socket.send_buffer_size().unwrap())
        };
        let requested = SocketAddr::from(([127, 0, 0, 1], 0));
        let bound = listen(requested, 1, true).unwrap();
        let inherited = UdpSocket::bind(requested).unwrap();
        let address = inherited.local_addr().unwrap();
        let port = InheritedPort { requested, address: requested, tcp: None, udp: vec![inherited] };
        let port = listen_with(port, 1, true).unwrap();
        assert_eq!(port.udp[0].local_addr().unwrap(), address);
        assert_eq!(bytes(&port.udp[0]), bytes(&bound.udp[0]));
    }
}
