//! Limits the memory that a server can use through `h3-quinn`. The HTTP/3 library buffers each
//! frame until it is complete, whatever its length, small DATA frames ahead of the application, and
//! streams.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use firstflight_quic::StreamFilter;
use h3::error::Code;
use h3::quic::{
    self, BidiStream, ConnectionErrorIncoming, OpenStreams, RecvStream, SendStream,
    StreamErrorIncoming, StreamId, WriteBuf,
};
use quinn::VarInt;

/// A connection whose streams are guarded.
pub(super) struct GuardedConnection {
    inner: h3_quinn::Connection,
    connection: quinn::Connection,
    /// Unidirectional streams that the server has opened so far.
    uni_streams: usize,
    opener: Opener,
}

/// Opens request streams.
#[derive(Clone)]
pub(super) struct Opener {
    inner: h3_quinn::OpenStreams,
    latest: LatestStream,
    max_head: u64,
}

/// Bytes of a response's body that the library has delivered so far.
#[derive(Clone, Default)]
pub(super) struct DeliveredBytes(Arc<AtomicU64>);

/// The counter of delivered bytes of the last opened stream.
#[derive(Clone, Default)]
pub(super) struct LatestStream(Arc<Mutex<DeliveredBytes>>);

/// A request stream.
pub(super) struct Bidi {
    send: h3_quinn::SendStream<Bytes>,
    recv: Recv,
}

/// The receiving side of a stream.
pub(super) struct Recv {
    inner: h3_quinn::RecvStream,
    filter: StreamFilter,
    ended: bool,
    delivered: DeliveredBytes,
    /// For a unidirectional stream: the connection, which an error of the stream closes.
    connection: Option<quinn::Connection>,
}

impl GuardedConnection {
    /// Creates a guard; `max_head` is the maximum size of a response's encoded field section.
    pub(super) fn new(connection: quinn::Connection, max_head: u64) -> Self {
        let inner = h3_quinn::Connection::new(connection.clone());
        let opened = quic::Connection::<Bytes>::opener(&inner);
        let opener = Opener { inner: opened, latest: LatestStream::default(), max_head };
        Self { inner, connection, uni_streams: 0, opener }
    }

    pub(super) fn latest(&self) -> LatestStream {
        self.opener.latest.clone()
    }
}

impl DeliveredBytes {
    pub(super) fn add(&self, count: usize) {
        self.0.fetch_add(count as u64, Ordering::Relaxed);
    }
}

impl LatestStream {
    pub(super) fn get(&self) -> DeliveredBytes {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, delivered: DeliveredBytes) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = delivered;
    }
}

impl quic::Connection<Bytes> for GuardedConnection {
    type RecvStream = Recv;
    type OpenStreams = Opener;

    fn poll_accept_recv(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Recv, ConnectionErrorIncoming>> {
        // The library keeps state for each stream until the connection ends.
        if self.uni_streams == MAX_UNI_STREAMS {
            return Poll::Pending;
        }
        let inner = ready!(quic::Connection::<Bytes>::poll_accept_recv(&mut self.inner, cx))?;
        self.uni_streams += 1;
        Poll::Ready(Ok(Recv {
            inner,
            filter: StreamFilter::unidirectional(),
            ended: false,
            delivered: DeliveredBytes::default(),
            connection: Some(self.connection.clone()),
        }))
    }

    fn poll_accept_bidi(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Bidi, ConnectionErrorIncoming>> {
        let stream = ready!(quic::Connection::<Bytes>::poll_accept_bidi(&mut self.inner, cx))?;
        Poll::Ready(Ok(self.opener.guard(stream)))
    }

    fn opener(&self) -> Opener {
        self.opener.clone()
    }
}

impl OpenStreams<Bytes> for GuardedConnection {
    type BidiStream = Bidi;
    type SendStream = h3_quinn::SendStream<Bytes>;

    fn poll_open_bidi(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bidi, StreamErrorIncoming>> {
        self.opener.poll_open_bidi(cx)
    }

    fn poll_open_send(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::SendStream, StreamErrorIncoming>> {
        self.opener.poll_open_send(cx)
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        self.opener.close(code, reason);
    }
}

impl Opener {
    fn guard(&self, stream: h3_quinn::BidiStream<Bytes>) -> Bidi {
        let (send, inner) = stream.split();
        let delivered = DeliveredBytes::default();
        self.latest.set(delivered.clone());
        let filter = StreamFilter::message(self.max_head);
        Bidi { send, recv: Recv { inner, filter, ended: false, delivered, connection: None } }
    }
}

impl OpenStreams<Bytes> for Opener {
    type BidiStream = Bidi;
    type SendStream = h3_quinn::SendStream<Bytes>;

    fn poll_open_bidi(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bidi, StreamErrorIncoming>> {
        let stream = ready!(OpenStreams::<Bytes>::poll_open_bidi(&mut self.inner, cx))?;
        Poll::Ready(Ok(self.guard(stream)))
    }

    fn poll_open_send(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::SendStream, StreamErrorIncoming>> {
        self.inner.poll_open_send(cx)
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        OpenStreams::<Bytes>::close(&mut self.inner, code, reason);
    }
}

impl BidiStream<Bytes> for Bidi {
    type SendStream = h3_quinn::SendStream<Bytes>;
    type RecvStream = Recv;

    fn split(self) -> (Self::SendStream, Recv) {
        (self.send, self.recv)
    }
}

impl SendStream<Bytes> for Bidi {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.send.poll_ready(cx)
    }

    fn send_data<T: Into<WriteBuf<Bytes>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        self.send.send_data(data)
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.send.poll_finish(cx)
    }

    fn reset(&mut self, code: u64) {
        self.send.reset(code);
    }

    fn send_id(&self) -> StreamId {
        self.send.send_id()
    }
}

impl RecvStream for Bidi {
    type Buf = Bytes;

    fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        self.recv.poll_data(cx)
    }

    fn stop_sending(&mut self, code: u64) {
        self.recv.stop_sending(code);
    }

    fn recv_id(&self) -> StreamId {
        self.recv.recv_id()
    }
}

impl RecvStream for Recv {
    type Buf = Bytes;

    fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        loop {
            if let Some(piece) = self.filter.next_piece() {
                return Poll::Ready(Ok(Some(piece)));
            }
            if self.ended {
                return Poll::Ready(Ok(None));
            }
            if self.filter.is_full(self.delivered.0.load(Ordering::Relaxed)) {
                // The task that reads from the library polls this again.
                return Poll::Pending;
            }
            let Some(chunk) = ready!(self.inner.poll_data(cx))? else {
                self.ended = true;
                if let Err(error) = self.filter.end() {
                    return Poll::Ready(Err(StreamErrorIncoming::Unknown(Box::new(error))));
                }
                continue;
            };
            if let Err(error) = self.filter.push(chunk) {
                let code = Code::H3_EXCESSIVE_LOAD;
                if let Some(connection) = &self.connection {
                    connection.close(VarInt::from_u32(code.value() as u32), b"");
                }
                self.inner.stop_sending(code.value());
                self.ended = true;
                return Poll::Ready(Err(StreamErrorIncoming::Unknown(Box::new(error))));
            }
        }
    }

    fn stop_sending(&mut self, code: u64) {
        self.inner.stop_sending(code);
    }

    fn recv_id(&self) -> StreamId {
        self.inner.recv_id()
    }
}

/// Maximum number of unidirectional streams that the server opens during a connection: three are
/// needed, and some servers open streams of reserved types to exercise clients.
const MAX_UNI_STREAMS: usize = 64;
