//! A connection, as its tasks and the driver see it.

use std::any::Any;
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use firstflight_quic::make_room_for_close;
use quinn_proto::{
    ConnectionError, ConnectionHandle, ConnectionStats, Dir, Event, StreamEvent, StreamId, VarInt,
};
use rustc_hash::FxHashMap;

use crate::endpoint::Shared;
use crate::stream::{RecvStream, SendStream};

/// A connection. It is closed with code 0 when the last handle on it and on its streams is dropped.
///
/// One task at a time may wait for each of its events, such as the next stream: a later waiter
/// replaces an earlier one.
pub struct Connection(Arc<Inner>);

/// What the handles on a connection share with the driver.
pub(crate) struct Inner {
    state: Mutex<State>,
    /// The number of [`Connection`]s, including those in streams.
    handles: AtomicUsize,
    endpoint: Arc<Shared>,
}

pub(crate) struct State {
    pub(crate) proto: quinn_proto::Connection,
    pub(crate) handle: ConnectionHandle,
    /// Whether the connection is queued for the driver.
    pub(crate) queued: bool,
    /// Whether its state machine has panicked, so that the endpoint has forgotten it.
    pub(crate) is_abandoned: bool,
    /// The time of the connection's entry in the driver's timers.
    pub(crate) timer: Option<Instant>,
    /// Why the connection has ended.
    pub(crate) error: Option<ConnectionError>,
    connected: bool,
    handshake: Option<Waker>,
    completion: Option<Waker>,
    /// Waiting for a stream of the client, by direction.
    accepting: [Option<Waker>; 2],
    opening: Option<Waker>,
    pub(crate) readers: FxHashMap<StreamId, Waker>,
    pub(crate) writers: FxHashMap<StreamId, Waker>,
    /// Waiting for the end of a sending stream.
    pub(crate) stopped: FxHashMap<StreamId, Waker>,
}

impl Connection {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        inner.handles.fetch_add(1, Ordering::Relaxed);
        Self(inner)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.state()
    }

    /// Queues the connection for the driver.
    pub(crate) fn wake_driver(&self, state: &mut State) {
        self.0.enqueue(state);
    }

    /// What TLS has negotiated, once the ClientHello is complete.
    ///
    /// # Errors
    /// The connection ended before.
    pub async fn handshake_data(&self) -> Result<Box<dyn Any>, ConnectionError> {
        poll_fn(|cx| {
            let mut state = self.state();
            if let Some(data) = state.proto.crypto_session().handshake_data() {
                return Poll::Ready(Ok(data));
            }
            if let Some(error) = &state.error {
                return Poll::Ready(Err(error.clone()));
            }
            wait(&mut state.handshake, cx)
        })
        .await
    }

    /// Waits until the client's Finished is verified.
    ///
    /// # Errors
    /// The connection ended before.
    pub async fn handshake_complete(&self) -> Result<(), ConnectionError> {
        poll_fn(|cx| {
            let mut state = self.state();
            match &state.error {
                _ if state.connected => Poll::Ready(Ok(())),
                Some(error) => Poll::Ready(Err(error.clone())),
                None => wait(&mut state.completion, cx),
            }
        })
        .await
    }

    /// Waits for a bidirectional stream of the client.
    ///
    /// # Errors
    /// The connection has ended, and all streams that the client had opened are accepted.
    pub fn poll_accept_bi(
        &self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(SendStream, RecvStream), ConnectionError>> {
        self.poll_accept(cx, Dir::Bi).map_ok(|(id, early)| {
            (SendStream::new(self.clone(), id), RecvStream::new(self.clone(), id, early))
        })
    }

    /// Waits for a unidirectional stream of the client.
    ///
    /// # Errors
    /// As [`Connection::poll_accept_bi`].
    pub fn poll_accept_uni(
        &self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<RecvStream, ConnectionError>> {
        self.poll_accept(cx, Dir::Uni)
            .map_ok(|(id, early)| RecvStream::new(self.clone(), id, early))
    }

    fn poll_accept(
        &self,
        cx: &mut Context<'_>,
        direction: Dir,
    ) -> Poll<Result<(StreamId, bool), ConnectionError>> {
        let mut state = self.state();
        if let Some(id) = state.proto.streams().accept(direction) {
            let early = !state.connected;
            // The client may be allowed another stream.
            self.wake_driver(&mut state);
            return Poll::Ready(Ok((id, early)));
        }
        if let Some(error) = &state.error {
            return Poll::Ready(Err(error.clone()));
        }
        wait(&mut state.accepting[direction as usize], cx)
    }

    /// Opens a unidirectional stream, as soon as the client allows another one.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn poll_open_uni(&self, cx: &mut Context<'_>) -> Poll<Result<SendStream, ConnectionError>> {
        let mut state = self.state();
        if let Some(error) = &state.error {
            return Poll::Ready(Err(error.clone()));
        }
        match state.proto.streams().open(Dir::Uni) {
            Some(id) => Poll::Ready(Ok(SendStream::new(self.clone(), id))),
            None => wait(&mut state.opening, cx),
        }
    }

    /// [`Connection::poll_accept_bi`] as a future.
    ///
    /// # Errors
    /// As [`Connection::poll_accept_bi`].
    pub async fn accept_bi(&self) -> Result<(SendStream, RecvStream), ConnectionError> {
        poll_fn(|cx| self.poll_accept_bi(cx)).await
    }

    /// Closes the connection. The close is sent even if the congestion window is full. Nothing
    /// happens if the connection has ended already.
    pub fn close(&self, code: VarInt, reason: &[u8]) {
        self.0.close(code, Bytes::copy_from_slice(reason));
    }

    /// Why the connection has ended, or `None` if it has not.
    pub fn close_reason(&self) -> Option<ConnectionError> {
        self.state().error.clone()
    }

    /// Counts of packets and frames.
    pub fn stats(&self) -> ConnectionStats {
        self.state().proto.stats()
    }
}

impl Clone for Connection {
    fn clone(&self) -> Self {
        Self::new(self.0.clone())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.0.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.close(VarInt::from_u32(0), Bytes::new());
        }
    }
}

impl Inner {
    pub(crate) fn new(
        handle: ConnectionHandle,
        proto: quinn_proto::Connection,
        endpoint: Arc<Shared>,
    ) -> Arc<Self> {
        let state = State {
            proto,
            handle,
            queued: false,
            is_abandoned: false,
            timer: None,
            error: None,
            connected: false,
            handshake: None,
            completion: None,
            accepting: [None, None],
            opening: None,
            readers: FxHashMap::default(),
            writers: FxHashMap::default(),
            stopped: FxHashMap::default(),
        };
        Arc::new(Self { state: Mutex::new(state), handles: AtomicUsize::new(0), endpoint })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn enqueue(self: &Arc<Self>, state: &mut State) {
        if !std::mem::replace(&mut state.queued, true) {
            self.endpoint.queue().push(self.clone());
        }
    }

    pub(crate) fn close(self: &Arc<Self>, code: VarInt, reason: Bytes) {
        let mut state = self.state();
        if state.error.is_some() {
            return;
        }
        make_room_for_close(state.proto.congestion_state().clone_box());
        state.proto.close(Instant::now(), code, reason);
        state.terminate(ConnectionError::LocallyClosed);
        self.enqueue(&mut state);
    }
}

impl State {
    /// Wakes the tasks that wait for what has happened.
    pub(crate) fn forward_events(&mut self) {
        while let Some(event) = self.proto.poll() {
            match event {
                Event::HandshakeDataReady => wake(&mut self.handshake),
                Event::Connected => {
                    self.connected = true;
                    wake(&mut self.completion);
                }
                Event::ConnectionLost { reason } => self.terminate(reason),
                Event::Stream(StreamEvent::Opened { dir }) => {
                    wake(&mut self.accepting[dir as usize]);
                }
                Event::Stream(StreamEvent::Available { .. }) => wake(&mut self.opening),
                Event::Stream(StreamEvent::Readable { id }) => wake_stream(&mut self.readers, id),
                Event::Stream(StreamEvent::Writable { id }) => wake_stream(&mut self.writers, id),
                Event::Stream(StreamEvent::Finished { id }) => wake_stream(&mut self.stopped, id),
                Event::Stream(StreamEvent::Stopped { id, .. }) => {
                    wake_stream(&mut self.stopped, id);
                    wake_stream(&mut self.writers, id);
                }
                // No DATAGRAM frames are used (RFC 9221).
                Event::DatagramReceived | Event::DatagramsUnblocked => {}
            }
        }
    }

    /// Stores why the connection has ended, and wakes all its waiting tasks.
    pub(crate) fn terminate(&mut self, reason: ConnectionError) {
        self.error = Some(reason);
        let [bi, uni] = &mut self.accepting;
        for waiter in [&mut self.handshake, &mut self.completion, &mut self.opening, bi, uni] {
            wake(waiter);
        }
        for waiters in [&mut self.readers, &mut self.writers, &mut self.stopped] {
            waiters.drain().for_each(|(_, waiter)| waiter.wake());
        }
    }
}

/// Stores the task's waker in `slot`.
pub(crate) fn wait<T>(slot: &mut Option<Waker>, cx: &Context<'_>) -> Poll<T> {
    match slot {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *slot = Some(cx.waker().clone()),
    }
    Poll::Pending
}

/// Wakes the task whose waker is in `slot`, if any.
pub(crate) fn wake(slot: &mut Option<Waker>) {
    if let Some(waker) = slot.take() {
        waker.wake();
    }
}

fn wake_stream(waiters: &mut FxHashMap<StreamId, Waker>, id: StreamId) {
    if let Some(waker) = waiters.remove(&id) {
        waker.wake();
    }
}
