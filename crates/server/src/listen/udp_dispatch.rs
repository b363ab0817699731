//! Dispatches datagrams to the worker that has their connection.
//!
//! The kernel merges datagrams from one address and port (GRO), even if they belong to different
//! connections, and steers them by the first one. A client with many connections on one socket
//! would lose packets, or worse: an endpoint resets connections that it does not know (RFC 9000
//! section 10.3).

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use firstflight_endpoint::{DatagramSocket, Socket};
use firstflight_quic::Steering;
use firstflight_telemetry::metrics::{Metrics, Transport};
use quinn_udp::{RecvMeta, Transmit};
use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::handoff::relay::Predecessor;
use crate::handshake::initials::InitialPackets;

/// The workers of one port, each with a queue for datagrams that other sockets, or the successor,
/// have received.
pub(crate) struct DatagramDispatch {
    steering: Steering,
    /// The previous process, and the port's address.
    predecessor: Option<(Arc<Predecessor>, SocketAddr)>,
    /// Whether the successor reads the port's sockets.
    handed_over: AtomicBool,
    senders: Vec<Sender<Datagram>>,
    /// One receiver for each worker.
    receivers: Vec<Mutex<Receiver<Datagram>>>,
}

struct Datagram {
    meta: RecvMeta,
    datagram: Vec<u8>,
}

impl DatagramDispatch {
    /// For the port at `address`. `predecessor`: the previous process, if there is one.
    pub(crate) fn new(
        steering: Steering,
        predecessor: Option<Arc<Predecessor>>,
        address: SocketAddr,
    ) -> Self {
        let predecessor = predecessor.map(|predecessor| (predecessor, address));
        let queues = (0..steering.workers()).map(|_| mpsc::channel(QUEUE_LENGTH));
        let (senders, receivers) =
            queues.map(|(sender, receiver)| (sender, Mutex::new(receiver))).unzip();
        Self { steering, predecessor, handed_over: AtomicBool::new(false), senders, receivers }
    }

    /// Leaves the sockets to the successor, or reads them again.
    pub(crate) fn set_handed_over(&self, handed_over: bool) {
        self.handed_over.store(handed_over, Ordering::SeqCst);
        if !handed_over {
            // Wakes the workers that wait only for their queue, so that they read their sockets
            // again.
            for queue in &self.senders {
                let _ =
                    queue.try_send(Datagram { meta: RecvMeta::default(), datagram: Vec::new() });
            }
        }
    }

    /// Whether the successor reads the sockets.
    pub(crate) fn is_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::SeqCst)
    }

    /// Queues a datagram that the successor has relayed.
    pub(crate) fn deliver(&self, meta: RecvMeta, datagram: Vec<u8>) {
        if let Some(queue) = self.senders.get(usize::from(self.steering.worker(&datagram))) {
            let _ = queue.try_send(Datagram { meta, datagram });
        }
    }

    /// Moves a worker's queued datagrams into the buffers. Returns their number; if it is 0, the
    /// next datagram wakes the task.
    pub(crate) fn poll_queued(
        &self,
        worker: u8,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> usize {
        let Some(queue) = self.receivers.get(usize::from(worker)) else { return 0 };
        let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
        let mut dequeued = 0;
        for (buffer, meta) in bufs.iter_mut().zip(meta) {
            let Poll::Ready(Some(queued)) = queue.poll_recv(cx) else { break };
            // Each buffer is as long as the longest datagram.
            let length = queued.datagram.len().min(buffer.len());
            buffer[..length].copy_from_slice(&queued.datagram[..length]);
            *meta = RecvMeta { len: length, stride: length, ..queued.meta };
            dequeued += 1;
        }
        dequeued
    }

    /// Keeps a worker's own datagrams in the buffer and forwards the others. Datagrams for a full
    /// queue are dropped, as a socket would do.
    pub(crate) fn dispatch(&self, worker: u8, buffer: &mut [u8], meta: &mut RecvMeta) {
        let stride = meta.stride.max(1);
        let Some(received) = buffer.get_mut(..meta.len) else { return };
        let stays = |datagram: &[u8]| {
            self.steering.worker(datagram) == worker && self.predecessor_of(datagram).is_none()
        };
        if received.chunks(stride).all(stays) {
            return;
        }
        let mut kept = 0;
        for at in (0..received.len()).step_by(stride) {
            let end = received.len().min(at + stride);
            let owner = self.steering.worker(&received[at..end]);
            if let Some((predecessor, port)) = self.predecessor_of(&received[at..end]) {
                predecessor.relay(*port, meta, &received[at..end]);
            } else if owner == worker {
                // Only the last datagram may be shorter, so the kept ones have the same stride.
                received.copy_within(at..end, kept);
                kept += end - at;
            } else if let Some(queue) = self.senders.get(usize::from(owner)) {
                let datagram = received[at..end].to_vec();
                let _ = queue.try_send(Datagram { meta: *meta, datagram });
            }
        }
        meta.len = kept;
    }

    /// The previous process, if a datagram belongs to one of its connections.
    fn predecessor_of(&self, datagram: &[u8]) -> Option<&(Arc<Predecessor>, SocketAddr)> {
        self.predecessor.as_ref().filter(|(predecessor, _)| predecessor.owns(datagram))
    }
}

/// A few bursts of 64 merged datagrams.
const QUEUE_LENGTH: usize = 256;

/// The UDP socket of a worker.
pub(crate) struct WorkerSocket {
    socket: Socket,
    worker: u8,
    dispatch: Arc<DatagramDispatch>,
    initials: Option<Arc<InitialPackets>>,
    metrics: Arc<Metrics>,
    /// Whether the next call reads the socket before the queue.
    socket_first: AtomicBool,
}

impl WorkerSocket {
    /// `worker`: the worker's number. `dispatch`: where datagrams of other workers go. `initials`:
    /// records first flights, if they are claimed in a store.
    pub(crate) fn new(
        socket: Socket,
        worker: u8,
        dispatch: Arc<DatagramDispatch>,
        initials: Option<Arc<InitialPackets>>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { socket, worker, dispatch, initials, metrics, socket_first: AtomicBool::new(false) }
    }

    fn poll_datagrams(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        // Alternates, since either source may be filled as fast as it is emptied.
        let socket_first = self.socket_first.fetch_not(Ordering::Relaxed);
        for is_socket in [socket_first, !socket_first] {
            let received = match is_socket {
                true => self.poll_own(cx, bufs, meta),
                false => match self.dispatch.poll_queued(self.worker, cx, bufs, meta) {
                    0 => Poll::Pending,
                    dequeued => Poll::Ready(Ok(dequeued)),
                },
            };
            if received.is_ready() {
                return received;
            }
        }
        Poll::Pending
    }

    /// Reads the socket, and keeps this worker's datagrams.
    fn poll_own(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        if self.dispatch.is_handed_over() {
            // The successor reads the socket. The queue wakes this task.
            return Poll::Pending;
        }
        let count = ready!(self.poll_socket(cx, bufs, meta))?;
        for (buffer, meta) in bufs.iter_mut().zip(meta).take(count) {
            self.dispatch.dispatch(self.worker, buffer, meta);
        }
        Poll::Ready(Ok(count))
    }

    fn poll_socket(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(self.socket.poll_receive(cx, bufs, meta))?;
        let bytes: usize = meta.iter().take(count).map(|meta| meta.len).sum();
        self.metrics.connections.received.add(Transport::Quic, bytes as u64);
        Poll::Ready(Ok(count))
    }
}

impl DatagramSocket for WorkerSocket {
    fn socket(&self) -> &Socket {
        &self.socket
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.socket.try_send(transmit)?;
        self.metrics.connections.sent.add(Transport::Quic, transmit.contents.len() as u64);
        Ok(())
    }

    fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(self.poll_datagrams(cx, bufs, meta))?;
        let Some(initials) = &self.initials else { return Poll::Ready(Ok(count)) };
        for (buffer, meta) in bufs.iter().zip(meta.iter()).take(count) {
            let received = buffer.get(..meta.len).unwrap_or_default();
            // The kernel may have merged datagrams (GRO).
            for datagram in received.chunks(meta.stride.max(1)) {
                initials.record(meta.addr, datagram);
            }
        }
        Poll::Ready(Ok(count))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::net::UdpSocket;
    use std::task::Waker;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    fn dispatch(workers: u8) -> DatagramDispatch {
        DatagramDispatch::new(Steering::new(workers), None, "127.0.0.1:443".parse().unwrap())
    }

    /// A datagram for one of 4 workers.
    fn datagram(worker: u8, text: &str, length: usize) -> Vec<u8> {
        let mut datagram = vec![0x40, 0, worker];
        datagram.extend_from_slice(text.as_bytes());
        datagram.resize(length, b'.');
        datagram
    }

    fn meta(len: usize, stride: usize) -> RecvMeta {
        RecvMeta { len, stride, ..RecvMeta::default() }
    }

    fn dequeued(dispatch: &DatagramDispatch, worker: u8) -> Vec<Vec<u8>> {
        let mut buffers = [[0; 100]; 4];
        let mut bufs = buffers.each_mut().map(|buffer| IoSliceMut::new(buffer));
        let mut metas = [RecvMeta::default(); 4];
        let mut cx = Context::from_waker(Waker::noop());
        let count = dispatch.poll_queued(worker, &mut cx, &mut bufs, &mut metas);
        let dequeued = buffers.iter().zip(metas).take(count);
        dequeued.map(|(buffer, meta)| buffer[..meta.len].to_vec()).collect()
    }

    #[test]
    fn merged_datagrams_are_dispatched_to_their_workers() {
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
        dispatch.dispatch(1, &mut buffer, &mut meta);
        let kept = [&sent[0][..], &sent[2], &sent[4]].concat();
        assert_eq!((&buffer[..meta.len], meta.stride), (&kept[..], 40));
        assert_eq!(dequeued(&dispatch, 2), [sent[1].clone()]);
        assert_eq!(dequeued(&dispatch, 3), [sent[3].clone()]);
        assert!(dequeued(&dispatch, 0).is_empty() && dequeued(&dispatch, 1).is_empty());
    }

    #[test]
    fn datagrams_of_one_worker_stay_in_place() {
        let dispatch = dispatch(4);
        let mut buffer = [datagram(2, "a", 30), datagram(2, "b", 30)].concat();
        let original = buffer.clone();
        let mut meta = meta(60, 30);
        dispatch.dispatch(2, &mut buffer, &mut meta);
        assert_eq!((buffer, meta.len), (original, 60));
        // If all datagrams belong to others, the buffer is left empty, which quinn ignores.
        let mut buffer = datagram(2, "c", 30);
        let mut meta = RecvMeta { len: 30, stride: 30, ..meta };
        dispatch.dispatch(0, &mut buffer, &mut meta);
        assert_eq!(meta.len, 0);
        assert_eq!(dequeued(&dispatch, 2).len(), 1);
    }

    #[test]
    fn a_full_queue_loses_datagrams_and_takes_no_more_memory() {
        let dispatch = dispatch(2);
        for _ in 0..QUEUE_LENGTH + 10 {
            let mut buffer = datagram(1, "x", 30);
            dispatch.dispatch(0, &mut buffer, &mut meta(30, 30));
        }
        let counts = std::iter::repeat_with(|| dequeued(&dispatch, 1).len());
        assert_eq!(counts.take_while(|count| *count > 0).sum::<usize>(), QUEUE_LENGTH);
    }

    #[tokio::test]
    async fn a_queue_that_is_never_empty_does_not_keep_a_worker_from_its_socket() {
        let dispatch = Arc::new(dispatch(2));
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let socket = Socket::new(socket).unwrap();
        let worker = WorkerSocket::new(socket, 0, dispatch.clone(), None, Arc::default());
        let own = datagram(0, "own", 40);
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(&own, address).unwrap();
        let mut buffers = [[0; 100]; 4];
        let reading = async {
            loop {
                dispatch.deliver(meta(30, 30), datagram(0, "other's", 30));
                let mut bufs = buffers.each_mut().map(|buffer| IoSliceMut::new(buffer));
                let mut metas = [RecvMeta::default(); 4];
                let received = poll_fn(|cx| worker.poll_receive(cx, &mut bufs, &mut metas)).await;
                let metas = &metas[..received.unwrap()];
                if buffers.iter().zip(metas).any(|(buffer, meta)| buffer[..meta.len] == own) {
                    break;
                }
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(30), reading).await.expect("the socket is read");
    }
}
