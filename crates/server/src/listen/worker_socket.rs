//! The socket below an endpoint: what comes in is sorted by workers and shown to the second reader
//! of first flights before quinn has it.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use firstflight_telemetry::metrics::{Metrics, Transport};
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};

use crate::handshake::initials::InitialPackets;
use crate::listen::dispatch::DatagramDispatch;

/// A socket of a worker.
pub(crate) struct WorkerSocket {
    pub(crate) socket: Arc<dyn AsyncUdpSocket>,
    /// Which worker's it is, and what comes in for others.
    pub(crate) worker: u8,
    pub(crate) dispatch: Arc<DatagramDispatch>,
    /// Who reads first flights, where they are claimed in a store.
    pub(crate) initials: Option<Arc<InitialPackets>>,
    pub(crate) metrics: Arc<Metrics>,
}

impl WorkerSocket {
    fn poll_datagrams(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        match self.dispatch.poll_take(self.worker, cx, bufs, meta) {
            0 => {}
            taken => return Poll::Ready(Ok(taken)),
        }
        if self.dispatch.is_left() {
            // What is there is another process's. The queue wakes us.
            return Poll::Pending;
        }
        let count = ready!(self.poll_socket(cx, bufs, meta))?;
        for (buffer, meta) in bufs.iter_mut().zip(meta).take(count) {
            self.dispatch.sort(self.worker, buffer, meta);
        }
        Poll::Ready(Ok(count))
    }

    fn poll_socket(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(self.socket.poll_recv(cx, bufs, meta))?;
        let bytes: usize = meta.iter().take(count).map(|meta| meta.len).sum();
        self.metrics.connections.received.add(Transport::Quic, bytes as u64);
        Poll::Ready(Ok(count))
    }
}

impl AsyncUdpSocket for WorkerSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.socket.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.socket.try_send(transmit)?;
        self.metrics.connections.sent.add(Transport::Quic, transmit.contents.len() as u64);
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(self.poll_datagrams(cx, bufs, meta))?;
        let Some(initials) = &self.initials else { return Poll::Ready(Ok(count)) };
        for (buffer, meta) in bufs.iter().zip(meta.iter()).take(count) {
            let received = buffer.get(..meta.len).unwrap_or_default();
            // The kernel may have joined datagrams of one length (GRO).
            for datagram in received.chunks(meta.stride.max(1)) {
                initials.see(meta.addr, datagram);
            }
        }
        Poll::Ready(Ok(count))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.socket.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.socket.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.socket.may_fragment()
    }
}

impl fmt::Debug for WorkerSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerSocket").field("socket", &self.socket).finish_non_exhaustive()
    }
}
