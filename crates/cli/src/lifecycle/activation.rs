//! Sockets that the service manager has opened (sd_listen_fds(3)): `LISTEN_FDS`, for the process
//! that `LISTEN_PID` names.

use std::net::{TcpListener, UdpSocket};

use listenfd::ListenFd;

/// They, in the order in which they were given.
#[derive(Debug, Default)]
pub struct Activated {
    /// Listening over TCP.
    pub tcp: Vec<TcpListener>,
    /// Over UDP.
    pub udp: Vec<UdpSocket>,
}

/// Takes them. The environment loses them, so that no child takes them for its own.
pub fn activated() -> Activated {
    let mut given = ListenFd::from_env();
    let mut taken = Activated::default();
    for at in 0..given.len() {
        // Each is of one kind; what is of none is left alone.
        if let Ok(Some(socket)) = given.take_tcp_listener(at) {
            taken.tcp.push(socket);
        } else if let Ok(Some(socket)) = given.take_udp_socket(at) {
            taken.udp.push(socket);
        }
    }
    taken
}
