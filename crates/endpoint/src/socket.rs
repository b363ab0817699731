//! UDP sockets that send and receive series of datagrams by one system call.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::task::{Context, Poll, ready};

use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// A UDP socket, or a layer above one.
pub trait DatagramSocket: Send + Sync + 'static {
    /// Receives datagrams, one or more of equal size in each buffer. Returns the number of buffers.
    ///
    /// # Errors
    /// The system's I/O error.
    fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>>;

    /// Sends datagrams of equal size to one address.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if the socket is full. All other failures count as packet loss.
    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()>;

    /// Waits until the socket takes datagrams again.
    ///
    /// # Errors
    /// The system's I/O error.
    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// The local address.
    ///
    /// # Errors
    /// The system's I/O error.
    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// How many datagrams one call of [`DatagramSocket::try_send`] takes.
    fn max_transmit_segments(&self) -> usize;

    /// How many datagrams one buffer may receive.
    fn max_receive_segments(&self) -> usize;

    /// Whether the network may fragment datagrams, which rules out the discovery of its MTU.
    fn may_fragment(&self) -> bool;
}

/// A UDP socket of tokio.
#[derive(Debug)]
pub struct Socket {
    io: UdpSocket,
    state: UdpSocketState,
}

impl Socket {
    /// Needs a tokio runtime.
    ///
    /// # Errors
    /// The system's I/O error.
    pub fn new(socket: std::net::UdpSocket) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        socket.set_nonblocking(true)?;
        Ok(Self { io: UdpSocket::from_std(socket)?, state })
    }
}

impl DatagramSocket for Socket {
    fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.io.poll_recv_ready(cx))?;
            let mut receive = || self.state.recv((&self.io).into(), buffers, meta);
            match self.io.try_io(Interest::READABLE, &mut receive) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => return Poll::Ready(received),
            }
        }
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let send = || self.state.send((&self.io).into(), transmit);
        self.io.try_io(Interest::WRITABLE, send)
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_send_ready(cx)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.state.gro_segments()
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }
}
