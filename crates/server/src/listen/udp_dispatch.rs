//! Datagrams that came to another worker's socket than the one that has their connection.
//!
//! The kernel steers by the first datagram of what it joins (GRO), and it joins what comes from one
//! address and port in one length, whatever connections it is of. A client with many connections on
//! one socket would have packets dropped, or worse: an endpoint that does not know a connection
//! resets it (RFC 9000 section 10.3).

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use firstflight_quic::Steering;
use firstflight_telemetry::metrics::{Metrics, Transport};
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::handoff::relay::Predecessor;
use crate::handshake::initials::InitialPackets;

/// The workers of one port, each with a queue of what came to others, or to the next process.
pub(crate) struct DatagramDispatch {
    steering: Steering,
    /// The process that had the port before, and the port.
    before: Option<(Arc<Predecessor>, SocketAddr)>,
    /// Whether another process reads the port's sockets.
    left: AtomicBool,
    to: Vec<Sender<Datagram>>,
    /// One for each worker, who alone reads it.
    at: Vec<Mutex<Receiver<Datagram>>>,
}

struct Datagram {
    meta: RecvMeta,
    datagram: Vec<u8>,
}

impl DatagramDispatch {
    /// For the port at an address, with the process that had it before, if there was one.
    pub(crate) fn new(
        steering: Steering,
        before: Option<Arc<Predecessor>>,
        address: SocketAddr,
    ) -> Self {
        let before = before.map(|before| (before, address));
        let queues = (0..steering.workers()).map(|_| mpsc::channel(QUEUE));
        let (to, at) = queues.map(|(to, at)| (to, Mutex::new(at))).unzip();
        Self { steering, before, left: AtomicBool::new(false), to, at }
    }

    /// Leaves the sockets to another process, or reads them again.
    pub(crate) fn leave(&self, leave: bool) {
        self.left.store(leave, Ordering::SeqCst);
        if !leave {
            // Who waits for a queue alone has to look at its socket again.
            for queue in &self.to {
                let _ =
                    queue.try_send(Datagram { meta: RecvMeta::default(), datagram: Vec::new() });
            }
        }
    }

    /// Whether another process reads the sockets.
    pub(crate) fn is_left(&self) -> bool {
        self.left.load(Ordering::SeqCst)
    }

    /// Takes in what the other process has read.
    pub(crate) fn deliver(&self, meta: RecvMeta, datagram: Vec<u8>) {
        if let Some(queue) = self.to.get(usize::from(self.steering.worker(&datagram))) {
            let _ = queue.try_send(Datagram { meta, datagram });
        }
    }

    /// Takes what is `worker`'s out of its queue into the buffers. How many it filled; if none,
    /// it is woken when something comes.
    pub(crate) fn poll_take(
        &self,
        worker: u8,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> usize {
        let Some(queue) = self.at.get(usize::from(worker)) else { return 0 };
        let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = 0;
        for (buffer, meta) in bufs.iter_mut().zip(meta) {
            let Poll::Ready(Some(stray)) = queue.poll_recv(cx) else { break };
            // All buffers are as long as the longest datagram.
            let length = stray.datagram.len().min(buffer.len());
            buffer[..length].copy_from_slice(&stray.datagram[..length]);
            *meta = RecvMeta { len: length, stride: length, ..stray.meta };
            taken += 1;
        }
        taken
    }

    /// Leaves in a buffer what is `worker`'s, and passes the rest on. A queue that is full loses
    /// datagrams, as a socket does.
    pub(crate) fn sort(&self, worker: u8, buffer: &mut [u8], meta: &mut RecvMeta) {
        let stride = meta.stride.max(1);
        let Some(received) = buffer.get_mut(..meta.len) else { return };
        let stays = |datagram: &[u8]| {
            self.steering.worker(datagram) == worker && self.of_before(datagram).is_none()
        };
        if received.chunks(stride).all(stays) {
            return;
        }
        let mut kept = 0;
        for at in (0..received.len()).step_by(stride) {
            let end = received.len().min(at + stride);
            let owner = self.steering.worker(&received[at..end]);
            if let Some((before, port)) = self.of_before(&received[at..end]) {
                before.pass(*port, meta, &received[at..end]);
            } else if owner == worker {
                // Only the last datagram may be shorter, so what stays has their length too.
                received.copy_within(at..end, kept);
                kept += end - at;
            } else if let Some(queue) = self.to.get(usize::from(owner)) {
                let datagram = received[at..end].to_vec();
                let _ = queue.try_send(Datagram { meta: *meta, datagram });
            }
        }
        meta.len = kept;
    }

    /// The process before this one, if a datagram is for one of its connections.
    fn of_before(&self, datagram: &[u8]) -> Option<&(Arc<Predecessor>, SocketAddr)> {
        self.before.as_ref().filter(|(before, _)| before.has(datagram))
    }
}

/// A few bursts of the kernel's, of 64 datagrams.
const QUEUE: usize = 256;

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

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn dispatch(workers: u8) -> DatagramDispatch {
        DatagramDispatch::new(Steering::new(workers), None, "127.0.0.1:443".parse().unwrap())
    }

    /// A datagram for a worker of 4, with something in it.
    fn datagram(worker: u8, text: &str, length: usize) -> Vec<u8> {
        let mut datagram = vec![0x40, 0, worker];
        datagram.extend_from_slice(text.as_bytes());
        datagram.resize(length, b'.');
        datagram
    }

    fn meta(len: usize, stride: usize) -> RecvMeta {
        RecvMeta { len, stride, ..RecvMeta::default() }
    }

    fn taken(dispatch: &DatagramDispatch, worker: u8) -> Vec<Vec<u8>> {
        let mut buffers = [[0; 100]; 4];
        let mut bufs = buffers.each_mut().map(|buffer| IoSliceMut::new(buffer));
        let mut metas = [RecvMeta::default(); 4];
        let mut cx = Context::from_waker(Waker::noop());
        let count = dispatch.poll_take(worker, &mut cx, &mut bufs, &mut metas);
        let taken = buffers.iter().zip(metas).take(count);
        taken.map(|(buffer, meta)| buffer[..meta.len].to_vec()).collect()
    }

    #[test]
    fn joined_datagrams_go_each_to_its_worker() {
        let dispatch = dispatch(4);
        let sent = [
            datagram(1, "a", 40),
            datagram(2, "b", 40),
            datagram(1, "c", 40),
            datagram(3, "d", 40),
            datagram(1, "e", 17),
        ];
        let mut buffer = sent.concat();
        let mut meta = meta(buffer.len(), 40);
        dispatch.sort(1, &mut buffer, &mut meta);
        let kept = [&sent[0][..], &sent[2], &sent[4]].concat();
        assert_eq!((&buffer[..meta.len], meta.stride), (&kept[..], 40));
        assert_eq!(taken(&dispatch, 2), [sent[1].clone()]);
        assert_eq!(taken(&dispatch, 3), [sent[3].clone()]);
        assert!(taken(&dispatch, 0).is_empty() && taken(&dispatch, 1).is_empty());
    }

    #[test]
    fn what_is_all_a_workers_own_stays_as_it_is() {
        let dispatch = dispatch(4);
        let mut buffer = [datagram(2, "a", 30), datagram(2, "b", 30)].concat();
        let before = buffer.clone();
        let mut meta = meta(60, 30);
        dispatch.sort(2, &mut buffer, &mut meta);
        assert_eq!((buffer, meta.len), (before, 60));
        // All of it another's: an empty buffer is left, which quinn passes over.
        let mut buffer = datagram(2, "c", 30);
        let mut meta = RecvMeta { len: 30, stride: 30, ..meta };
        dispatch.sort(0, &mut buffer, &mut meta);
        assert_eq!(meta.len, 0);
        assert_eq!(taken(&dispatch, 2).len(), 1);
    }

    #[test]
    fn a_full_queue_loses_datagrams_and_takes_no_more_memory() {
        let dispatch = dispatch(2);
        for _ in 0..QUEUE + 10 {
            let mut buffer = datagram(1, "x", 30);
            dispatch.sort(0, &mut buffer, &mut meta(30, 30));
        }
        let counts = std::iter::repeat_with(|| taken(&dispatch, 1).len());
        assert_eq!(counts.take_while(|count| *count > 0).sum::<usize>(), QUEUE);
    }
}
