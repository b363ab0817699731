//! UDP sockets that send and receive several datagrams with one system call.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::task::{Context, Poll, ready};

use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// A UDP socket, or a layer above one that changes what it receives or sends.
pub trait DatagramSocket: Send + Sync + 'static {
    /// The socket.
    fn socket(&self) -> &Socket;

    /// [`Socket::poll_receive`].
    ///
    /// # Errors
    /// The system's I/O error.
    fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.socket().poll_receive(cx, buffers, meta)
    }

    /// [`Socket::try_send`].
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if the socket is full.
    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.socket().try_send(transmit)
    }

    /// [`Socket::poll_writable`].
    ///
    /// # Errors
    /// The system's I/O error.
    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket().poll_writable(cx)
    }
}

/// A UDP socket of tokio.
#[derive(Debug)]
pub struct Socket {
    io: UdpSocket,
    state: UdpSocketState,
}

impl Socket {
    /// Wraps a bound socket. Needs a tokio runtime.
    ///
    /// # Errors
    /// The system's I/O error.
    pub fn new(socket: std::net::UdpSocket) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        socket.set_nonblocking(true)?;
        Ok(Self { io: UdpSocket::from_std(socket)?, state })
    }

    /// Receives datagrams, one or more of equal size in each buffer. Returns the number of buffers.
    ///
    /// # Errors
    /// The system's I/O error.
    pub fn poll_receive(
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

    /// Sends datagrams of equal size to one address.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if the socket is full. All other failures count as packet loss.
    pub fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let send = || self.state.send((&self.io).into(), transmit);
        self.io.try_io(Interest::WRITABLE, send)
    }

    /// Waits until the socket takes datagrams again.
    ///
    /// # Errors
    /// The system's I/O error.
    pub fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_send_ready(cx)
    }

    /// The local address.
    ///
    /// # Errors
    /// The system's I/O error.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.local_addr()
    }

    /// How many datagrams one call of [`Socket::try_send`] takes.
    pub(crate) fn max_transmit_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    /// How many datagrams one buffer may receive.
    pub(crate) fn max_receive_segments(&self) -> usize {
        self.state.gro_segments()
    }

    /// Whether the network may fragment datagrams, which rules out the discovery of its MTU.
    pub(crate) fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }
}

impl DatagramSocket for Socket {
    fn socket(&self) -> &Socket {
        self
    }
}
