//! The task of a socket: receives, lets the connections' tasks run, then sends.

use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use quinn_proto::{ConnectionError, DatagramEvent, EcnCodepoint, EndpointEvent, Transmit};
use quinn_udp::{BATCH_SIZE, RecvMeta};
use tokio::time::{Sleep, sleep};
use tracing::{error, warn};

use crate::buffers::DatagramBuffers;
use crate::connection::{Inner, State as ConnectionState};
use crate::endpoint::{Shared, udp_transmit};
use crate::timers::Timers;

/// Receives and sends the packets of all connections of one socket.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    timers: Timers,
    /// Connections that may have something to send.
    due: Vec<Arc<Inner>>,
    receive_buffer: Box<[u8]>,
    datagrams: DatagramBuffers,
    send_buffer: Vec<u8>,
    /// The transmit whose bytes `send_buffer` holds, if the socket was full.
    unsent: Option<Transmit>,
    /// The delay before the socket is read again after a failure.
    pause: Option<Pin<Box<Sleep>>>,
    /// Whether the last attempt to receive failed, so that a series of failures is logged once.
    is_failing: bool,
}

impl Driver {
    /// `receive_size`: the size of the largest datagram, in bytes.
    pub(crate) fn new(shared: Arc<Shared>, receive_size: u64) -> Self {
        let receive_size = usize::try_from(receive_size).unwrap_or(usize::MAX).min(1 << 16);
        let buffers = receive_size * shared.socket.socket().max_receive_segments() * BATCH_SIZE;
        Self {
            shared,
            timers: Timers::new(),
            due: Vec::new(),
            receive_buffer: vec![0; buffers].into(),
            datagrams: DatagramBuffers::default(),
            send_buffer: Vec::new(),
            unsent: None,
            pause: None,
            is_failing: false,
        }
    }

    /// Sends the packets of due connections. If the socket is full, the remaining connections stay due.
    fn send(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while let Some(transmit) = self.unsent.take() {
            if self.shared.socket.poll_writable(cx)?.is_pending() {
                self.unsent = Some(transmit);
                return Ok(());
            }
            if is_full(&self.try_send(&transmit)) {
                self.unsent = Some(transmit);
            }
        }
        let now = Instant::now();
        self.expire(now);
        self.shared.queue().take(&mut self.due);
        let mut due = std::mem::take(&mut self.due);
        let mut sent = 0;
        while self.unsent.is_none()
            && let Some(connection) = due.get(sent)
        {
            if catch_unwind(AssertUnwindSafe(|| self.drive(connection, now))).is_err() {
                abandon(&self.shared, &mut self.timers, connection);
            }
            sent += 1;
        }
        due.drain(..sent);
        // The connections that were not driven, then those that have more to send.
        due.append(&mut self.due);
        self.due = due;
        Ok(())
    }

    /// Sends a connection's packets, and handles its timers and events.
    fn drive(&mut self, connection: &Arc<Inner>, now: Instant) {
        let mut state = connection.state();
        if state.is_abandoned {
            return;
        }
        state.queued = false;
        let mut datagrams = 0;
        loop {
            // First, so that resulting NEW_CONNECTION_ID frames share packets with other data.
            self.forward_endpoint_events(&mut state);
            self.transmit(&mut state, &mut datagrams, now);
            if self.unsent.is_some() || datagrams >= MAX_DATAGRAMS {
                state.queued = true;
                self.due.push(connection.clone());
                break;
            }
            match state.proto.poll_timeout() {
                Some(deadline) if deadline <= now => state.proto.handle_timeout(now),
                Some(deadline) => {
                    let handle = state.handle;
                    self.timers.advance(handle, &mut state.timer, deadline);
                    break;
                }
                None => break,
            }
        }
        self.forward_endpoint_events(&mut state);
        state.forward_events();
    }

    fn transmit(&mut self, state: &mut ConnectionState, datagrams: &mut usize, now: Instant) {
        let segments = self.shared.socket.socket().max_transmit_segments().min(MAX_SEGMENTS);
        while *datagrams < MAX_DATAGRAMS {
            self.send_buffer.clear();
            let transmit = state.proto.poll_transmit(now, segments, &mut self.send_buffer);
            let Some(transmit) = transmit else { return };
            *datagrams += transmit.segment_size.map_or(1, |size| transmit.size.div_ceil(size));
            if is_full(&self.try_send(&transmit)) {
                self.unsent = Some(transmit);
                return;
            }
        }
    }

    fn try_send(&self, transmit: &Transmit) -> io::Result<()> {
        self.shared.socket.try_send(&udp_transmit(transmit, &self.send_buffer))
    }

    fn forward_endpoint_events(&mut self, state: &mut ConnectionState) {
        while let Some(event) = state.proto.poll_endpoint_events() {
            let is_drained = event.is_drained();
            let mut endpoint = self.shared.state();
            let response = endpoint.proto.handle_event(state.handle, event);
            if is_drained {
                endpoint.remove(state.handle);
                self.timers.remove(state.handle, &mut state.timer);
            }
            drop(endpoint);
            if let Some(event) = response {
                state.proto.handle_event(event);
            }
        }
    }

    /// Adds the connections whose timers have expired to the due connections.
    fn expire(&mut self, now: Instant) {
        while let Some(handle) = self.timers.expired(now) {
            let Some(connection) = self.shared.state().connection(handle) else { continue };
            let mut state = connection.state();
            state.timer = None;
            if !std::mem::replace(&mut state.queued, true) {
                drop(state);
                self.due.push(connection);
            }
        }
    }

    /// Processes a batch of datagrams. Returns whether to run again.
    fn receive(&mut self, cx: &mut Context<'_>) -> bool {
        if let Some(pause) = &mut self.pause {
            if pause.as_mut().poll(cx).is_pending() {
                return false;
            }
            self.pause = None;
        }
        let mut meta = [RecvMeta::default(); BATCH_SIZE];
        let size = self.receive_buffer.len() / BATCH_SIZE;
        let mut buffers = self.receive_buffer.chunks_exact_mut(size).map(IoSliceMut::new);
        let mut buffers: [IoSliceMut<'_>; BATCH_SIZE] =
            std::array::from_fn(|_| buffers.next().expect("as many chunks"));
        let count = match self.shared.socket.poll_receive(cx, &mut buffers, &mut meta) {
            Poll::Ready(Ok(count)) => count,
            // Caused by an ICMP message, which an attacker may have sent.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::ConnectionReset => 0,
            Poll::Ready(Err(error)) => {
                // Out of memory, for example. Connections can still send.
                if !std::mem::replace(&mut self.is_failing, true) {
                    warn!("cannot receive from a UDP socket: {error}; trying again");
                }
                self.pause = Some(Box::pin(sleep(RECEIVE_RETRY_DELAY)));
                // The next run polls the pause.
                return true;
            }
            Poll::Pending => return false,
        };
        self.is_failing = false;
        let now = Instant::now();
        for (buffer, meta) in buffers.iter().zip(&meta).take(count) {
            if !can_respond_to(meta) {
                continue;
            }
            for datagram in buffer[..meta.len].chunks(meta.stride.max(1)) {
                let datagram = self.datagrams.copy(datagram);
                let passed = pass_datagram(&self.shared, &mut self.due, meta, datagram, now);
                if let Err(connection) = passed {
                    abandon(&self.shared, &mut self.timers, &connection);
                }
            }
        }
        true
    }

    fn run(&mut self, cx: &mut Context<'_>) -> io::Result<Poll<()>> {
        self.send(cx)?;
        let received = self.receive(cx);
        // Before the state is read, so that any later change wakes this task.
        let is_idle = self.shared.queue().sleep(cx);
        if self.shared.state().is_finished() {
            return Ok(Poll::Ready(()));
        }
        let is_expired = self.timers.poll(cx).is_ready();
        let has_more = !is_idle || !self.due.is_empty() || self.unsent.is_some() || is_expired;
        // A full socket wakes this task when it has room.
        let may_send = self.unsent.is_none() || self.shared.socket.poll_writable(cx)?.is_ready();
        if received || may_send && has_more {
            // The runtime runs the tasks that wait for what was received before this one.
            cx.waker().wake_by_ref();
        }
        Ok(Poll::Pending)
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.run(cx).unwrap_or_else(|error| {
            error!("a UDP socket has failed: {error}");
            Poll::Ready(())
        })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.stop_accepting();
        // Dropped here, not under the queue's lock.
        let _queued = self.shared.queue().close();
        let connections = self.shared.state().remove_all();
        for connection in connections {
            let mut state = connection.state();
            if state.error.is_none() {
                state.terminate(ConnectionError::LocallyClosed);
            }
        }
    }
}

/// Whether the kernel would send a response. It refuses with EINVAL port 0, a multicast or broadcast
/// address as the source, and an address of one link as the source of a datagram that leaves it.
/// quinn-udp mistakes that for an old kernel, and sends without GSO and ECN from then on.
fn can_respond_to(meta: &RecvMeta) -> bool {
    let is_of_link = |ip: IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let leaves_link = meta.dst_ip.is_some_and(is_of_link) && !is_of_link(meta.addr.ip());
    let is_to_group = meta.dst_ip.is_some_and(|ip| {
        let ip = ip.to_canonical();
        ip.is_multicast() || ip == Ipv4Addr::BROADCAST
    });
    meta.addr.port() != 0 && !is_to_group && !leaves_link
}

/// Passes a datagram to its connection.
///
/// # Errors
/// The connection, if its state machine panics.
fn pass_datagram(
    shared: &Shared,
    due: &mut Vec<Arc<Inner>>,
    meta: &RecvMeta,
    datagram: BytesMut,
    now: Instant,
) -> Result<(), Arc<Inner>> {
    let ecn = meta.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8));
    let mut response = Vec::new();
    let mut endpoint = shared.state();
    let event = endpoint.proto.handle(now, meta.addr, meta.dst_ip, ecn, datagram, &mut response);
    match event {
        Some(DatagramEvent::ConnectionEvent(handle, event)) => {
            let Some(connection) = endpoint.connection(handle) else { return Ok(()) };
            drop(endpoint);
            let process = || {
                let mut state = connection.state();
                state.proto.handle_event(event);
                state.forward_events();
                std::mem::replace(&mut state.queued, true)
            };
            match catch_unwind(AssertUnwindSafe(process)) {
                Ok(true) => {}
                Ok(false) => due.push(connection),
                Err(_) => return Err(connection),
            }
        }
        Some(DatagramEvent::NewConnection(incoming)) if endpoint.is_accepting => {
            endpoint.announce(incoming);
        }
        Some(DatagramEvent::NewConnection(incoming)) => {
            let transmit = endpoint.proto.refuse(incoming, &mut response);
            drop(endpoint);
            shared.respond(&transmit, &response);
        }
        Some(DatagramEvent::Response(transmit)) => {
            drop(endpoint);
            shared.respond(&transmit, &response);
        }
        None => {}
    }
    Ok(())
}

/// Forgets a connection whose state machine has panicked. The other connections of the socket
/// continue. The client gets a stateless reset for its next packet.
fn abandon(shared: &Shared, timers: &mut Timers, connection: &Arc<Inner>) {
    error!("a QUIC connection has failed: its state machine panicked");
    let mut state = connection.state();
    state.is_abandoned = true;
    timers.remove(state.handle, &mut state.timer);
    let mut endpoint = shared.state();
    // If the connection was drained before, another connection may have its handle now.
    if endpoint.connection(state.handle).is_some_and(|known| Arc::ptr_eq(&known, connection)) {
        endpoint.proto.handle_event(state.handle, EndpointEvent::drained());
        endpoint.remove(state.handle);
    }
    drop(endpoint);
    if state.error.is_none() {
        state.terminate(ConnectionError::LocallyClosed);
    }
}

fn is_full(sent: &io::Result<()>) -> bool {
    matches!(sent, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

/// How many datagrams are passed to the kernel at once.
const MAX_SEGMENTS: usize = 10;

/// How many datagrams a connection sends before it is another connection's turn.
const MAX_DATAGRAMS: usize = 20;

/// The delay before a socket is read again after a failure.
const RECEIVE_RETRY_DELAY: Duration = Duration::from_millis(50);
