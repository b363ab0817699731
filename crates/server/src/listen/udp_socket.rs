//! UDP sockets: one a worker on one port, each packet to the worker that has its connection.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use firstflight_quic::Steering;
use socket2::{Domain, Protocol, Socket, Type};

use crate::ServerError;

/// As many sockets on `address` as there are workers, in their order.
///
/// # Errors
/// [`ServerError::UdpInUse`], [`ServerError::AddressForbidden`] or [`ServerError::Listen`].
pub(crate) fn bind(address: SocketAddr, steering: Steering) -> Result<Vec<UdpSocket>, ServerError> {
    bind_all(address, steering).map_err(|reason| match reason.kind() {
        io::ErrorKind::AddrInUse => ServerError::UdpInUse(address),
        io::ErrorKind::PermissionDenied => ServerError::AddressForbidden(address),
        _ => ServerError::Listen { address, reason },
    })
}

fn bind_all(address: SocketAddr, steering: Steering) -> io::Result<Vec<UdpSocket>> {
    // The first alone on the port, as long as that is not settled: two processes on one port would
    // share its packets and execute a flight once each.
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
    // What the kernel allows of it; a burst of first flights should not be dropped.
    let _ = socket.set_recv_buffer_size(BUFFER);
    let _ = socket.set_send_buffer_size(BUFFER);
    Ok(socket)
}

/// A millisecond at 16 Gbit/s.
const BUFFER: usize = 2 * 1024 * 1024;
