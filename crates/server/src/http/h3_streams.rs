//! Adapts connections to the h3 library.
//!
//! In addition to what `h3-quinn` does, this adapter bounds the memory that a client can make h3
//! allocate (h3 keeps a frame until it is complete, whatever length the peer announces), knows when
//! a response has been acknowledged or cancelled, rejects the requests that a GOAWAY excludes, and
//! resets a stream whose response was aborted instead of finishing it.
//!
//! The bound is [`StreamFilter`] of `firstflight-quic`. The client of this project uses it too,
//! since a server may be as malicious.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use firstflight_endpoint::{Connection, ReadError, RecvStream, SendStream, Stopped, WriteError};
use firstflight_quic::StreamFilter;
use h3::error::Code;
use h3::quic::{self, ConnectionErrorIncoming, StreamErrorIncoming, StreamId, WriteBuf};
use quinn_proto::{ConnectionError, VarInt};

use crate::context::memory::{HEAD_PIECE_OVERHEAD, MemoryBudget, MemoryCharge};

/// A QUIC connection whose streams are observed.
pub(crate) struct H3Connection {
    connection: Connection,
    /// Unidirectional streams that the client has opened.
    uni_streams: usize,
    head_limit: u64,
    budget: Arc<MemoryBudget>,
    watch: Arc<ConnectionWatch>,
}

/// State shared by the connection's task and its [`H3Connection`].
pub(crate) struct ConnectionWatch {
    /// Requests with this stream id or a higher one are rejected (RFC 9114 section 5.2).
    rejected_from: AtomicU64,
    /// The lowest stream id that no request has used.
    next_id: AtomicU64,
    /// The stream that was accepted last.
    accepted: Mutex<Option<StreamWatch>>,
}

/// A request's stream as seen from outside the library.
pub(crate) struct StreamWatch {
    /// See [`RecvStream::opened_early`].
    pub(crate) early: bool,
    pub(crate) state: Arc<StreamState>,
    /// Resolves when the response has been acknowledged or cancelled.
    pub(crate) ended: StreamEnded,
}

/// The future of [`StreamWatch::ended`].
pub(crate) struct StreamEnded(Stopped);

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    /// The client has acknowledged the whole response.
    Delivered,
    /// The server has reset the stream of a request that it has read.
    Reset,
    /// The client has cancelled the request, or the connection has ended.
    Abandoned,
    /// The same before the request's head was read.
    Headless,
}

/// Requests that the client cancelled before it had the response.
#[derive(Clone, Copy, Default)]
pub(crate) struct CancelledRequests {
    all: u64,
    /// Those whose head was not read.
    headless: u64,
}

impl CancelledRequests {
    pub(crate) fn count(&mut self, ended: StreamEnd) {
        self.all += u64::from(matches!(ended, StreamEnd::Abandoned | StreamEnd::Headless));
        self.headless += u64::from(ended == StreamEnd::Headless);
    }

    /// Whether a client creates load with requests that it cancels (like CVE-2023-44487 for
    /// HTTP/2), of which `received` had a head.
    pub(crate) fn is_abused(self, received: u64) -> bool {
        self.headless > MAX_HEADLESS_STREAMS
            || self.all > MAX_CANCELLED_REQUESTS && self.all * 2 > received
    }
}

impl Future for StreamEnded {
    type Output = StreamEnd;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<StreamEnd> {
        Pin::new(&mut self.0).poll(cx).map(|stopped| match stopped {
            Ok(None) => StreamEnd::Delivered,
            Ok(Some(_)) | Err(_) => StreamEnd::Abandoned,
        })
    }
}

impl ConnectionWatch {
    /// Rejects requests with this stream id or a higher one.
    pub(crate) fn reject_from(&self, id: u64) {
        self.rejected_from.fetch_min(id, Ordering::Relaxed);
    }

    /// The lowest stream id that no request has used.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.load(Ordering::Relaxed)
    }

    /// The stream that was accepted last.
    pub(crate) fn take_accepted(&self) -> Option<StreamWatch> {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl H3Connection {
    /// `head_limit`: the maximum size of a request's encoded head. `budget`: limits the memory of
    /// incomplete heads.
    pub(crate) fn new(connection: Connection, head_limit: u64, budget: Arc<MemoryBudget>) -> Self {
        let watch = ConnectionWatch {
            rejected_from: AtomicU64::new(u64::MAX),
            next_id: AtomicU64::new(0),
            accepted: Mutex::new(None),
        };
        Self { connection, uni_streams: 0, head_limit, budget, watch: Arc::new(watch) }
    }

    pub(crate) fn watch(&self) -> Arc<ConnectionWatch> {
        self.watch.clone()
    }

    /// Accepts a stream of the client. Returns `None` if it is rejected.
    fn admit(&self, mut send: SendStream, mut recv: RecvStream) -> Option<H3BidiStream> {
        let id = u64::from(VarInt::from(recv.id()));
        if id >= self.watch.rejected_from.load(Ordering::Relaxed) {
            let _ = send.reset(varint(Code::H3_REQUEST_REJECTED.value()));
            let _ = recv.stop(varint(Code::H3_REQUEST_REJECTED.value()));
            return None;
        }
        self.watch.next_id.fetch_max(id + 4, Ordering::Relaxed);
        let state = Arc::new(StreamState::new(self.budget.charge()));
        let ended = StreamEnded(send.stopped());
        let watch = StreamWatch { early: recv.opened_early(), state: state.clone(), ended };
        *self.watch.accepted.lock().unwrap_or_else(PoisonError::into_inner) = Some(watch);
        let recv =
            H3RecvStream::request(recv, self.connection.clone(), self.head_limit, state.clone());
        Some(H3BidiStream { send: H3SendStream::new(send, Some(state)), recv })
    }
}

impl quic::Connection<Bytes> for H3Connection {
    type RecvStream = H3RecvStream;
    type OpenStreams = StreamOpener;

    fn poll_accept_recv(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<H3RecvStream, ConnectionErrorIncoming>> {
        // The library keeps state for each unidirectional stream until the connection ends.
        if self.uni_streams == MAX_UNI_STREAMS {
            return Poll::Pending;
        }
        let stream = ready!(self.connection.poll_accept_uni(cx)).map_err(connection_error)?;
        self.uni_streams += 1;
        Poll::Ready(Ok(H3RecvStream::unidirectional(stream, self.connection.clone())))
    }

    fn poll_accept_bidi(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<H3BidiStream, ConnectionErrorIncoming>> {
        loop {
            let streams = ready!(self.connection.poll_accept_bi(cx));
            let (send, recv) = streams.map_err(connection_error)?;
            if let Some(stream) = self.admit(send, recv) {
                return Poll::Ready(Ok(stream));
            }
        }
    }

    fn opener(&self) -> StreamOpener {
        StreamOpener(self.connection.clone())
    }
}

impl quic::OpenStreams<Bytes> for H3Connection {
    type BidiStream = H3BidiStream;
    type SendStream = H3SendStream;

    fn poll_open_bidi(
        &mut self,
        _: &mut Context<'_>,
    ) -> Poll<Result<H3BidiStream, StreamErrorIncoming>> {
        Poll::Ready(Err(cannot_open()))
    }

    fn poll_open_send(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<H3SendStream, StreamErrorIncoming>> {
        let stream = ready!(self.connection.poll_open_uni(cx)).map_err(connection_lost)?;
        Poll::Ready(Ok(H3SendStream::new(stream, None)))
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        self.connection.close(varint(code.value()), reason);
    }
}

/// Lets the library close the connection. It opens no streams.
#[derive(Clone)]
pub(crate) struct StreamOpener(Connection);

impl quic::OpenStreams<Bytes> for StreamOpener {
    type BidiStream = H3BidiStream;
    type SendStream = H3SendStream;

    fn poll_open_bidi(
        &mut self,
        _: &mut Context<'_>,
    ) -> Poll<Result<H3BidiStream, StreamErrorIncoming>> {
        Poll::Ready(Err(cannot_open()))
    }

    fn poll_open_send(
        &mut self,
        _: &mut Context<'_>,
    ) -> Poll<Result<H3SendStream, StreamErrorIncoming>> {
        Poll::Ready(Err(cannot_open()))
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        self.0.close(varint(code.value()), reason);
    }
}

/// The stream of a request.
pub(crate) struct H3BidiStream {
    send: H3SendStream,
    recv: H3RecvStream,
}

impl quic::BidiStream<Bytes> for H3BidiStream {
    type SendStream = H3SendStream;
    type RecvStream = H3RecvStream;

    fn split(self) -> (H3SendStream, H3RecvStream) {
        (self.send, self.recv)
    }
}

impl quic::SendStream<Bytes> for H3BidiStream {
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

impl quic::RecvStream for H3BidiStream {
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

fn cannot_open() -> StreamErrorIncoming {
    unknown("a server opens no such streams".to_owned())
}

/// Unidirectional streams over the lifetime of a connection. A client needs three, and some open
/// another of a reserved type.
const MAX_UNI_STREAMS: usize = 64;

/// The sending half of a stream.
pub(crate) struct H3SendStream {
    stream: SendStream,
    /// The frame that is being written.
    writing: Option<WriteBuf<Bytes>>,
    /// The part of this frame that is written next.
    piece: Bytes,
    /// Only for the stream of a request.
    state: Option<Arc<StreamState>>,
}

impl H3SendStream {
    pub(crate) fn new(stream: SendStream, state: Option<Arc<StreamState>>) -> Self {
        Self { stream, writing: None, piece: Bytes::new(), state }
    }
}

impl quic::SendStream<Bytes> for H3SendStream {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        while let Some(frame) = &mut self.writing {
            if self.piece.is_empty() {
                if !frame.has_remaining() {
                    self.writing = None;
                    break;
                }
                // A small frame's header and content are written at once.
                self.piece = frame.copy_to_bytes(frame.remaining().min(MAX_COPY_BYTES));
            }
            let written = ready!(self.stream.poll_write_bytes(cx, &mut self.piece));
            let written = written.map_err(write_error)?;
            if let Some(state) = &self.state {
                state.add_written(written);
            }
        }
        Poll::Ready(Ok(()))
    }

    fn send_data<T: Into<WriteBuf<Bytes>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        if self.writing.is_some() {
            return Err(StreamErrorIncoming::ConnectionErrorIncoming {
                connection_error: ConnectionErrorIncoming::InternalError(
                    "a write is in progress already".to_owned(),
                ),
            });
        }
        self.writing = Some(data.into());
        Ok(())
    }

    fn poll_finish(&mut self, _: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        if let Some(state) = &self.state {
            state.note_finished();
        }
        Poll::Ready(self.stream.finish().map_err(|error| unknown(error.to_string())))
    }

    fn reset(&mut self, code: u64) {
        let _ = self.stream.reset(varint(code));
    }

    fn send_id(&self) -> StreamId {
        id(self.stream.id())
    }
}

impl Drop for H3SendStream {
    fn drop(&mut self) {
        // A dropped stream is finished, which would make an aborted response look complete. A stream
        // that the client has stopped is reset with the client's own code (RFC 9000 section 3.5).
        let code = self.state.as_ref().and_then(|state| state.code_on_drop());
        if let Some(code) = code
            && self.stream.stop_code().is_none()
        {
            let _ = self.stream.reset(varint(code.value()));
        }
    }
}

/// The receiving half of a stream.
pub(crate) struct H3RecvStream {
    stream: RecvStream,
    filter: StreamFilter,
    ended: bool,
    /// Only for the stream of a request.
    state: Option<Arc<StreamState>>,
    /// The connection to close on an error.
    connection: Connection,
}

impl H3RecvStream {
    /// The stream of a request. `head_limit`: the maximum size of its encoded head.
    pub(crate) fn request(
        stream: RecvStream,
        connection: Connection,
        head_limit: u64,
        state: Arc<StreamState>,
    ) -> Self {
        let filter = StreamFilter::message(head_limit);
        Self { stream, filter, ended: false, state: Some(state), connection }
    }

    pub(crate) fn unidirectional(stream: RecvStream, connection: Connection) -> Self {
        let filter = StreamFilter::unidirectional();
        Self { stream, filter, ended: false, state: None, connection }
    }
}

impl quic::RecvStream for H3RecvStream {
    type Buf = Bytes;

    fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        loop {
            if let Some(bytes) = self.filter.next_piece() {
                return Poll::Ready(Ok(Some(bytes)));
            }
            if self.ended {
                return Poll::Ready(Ok(None));
            }
            if let Some(state) = &self.state
                && self.filter.is_full(state.delivered())
            {
                // The task that consumes the library's data polls again.
                return Poll::Pending;
            }
            match ready!(self.stream.poll_read(cx, MAX_READ_BYTES)) {
                Ok(Some(bytes)) => {
                    let count = bytes.len();
                    let is_reserved = self.state.as_ref().is_none_or(|state| state.reserve(count));
                    let pushed = match is_reserved {
                        true => self.filter.push(bytes).map_err(|error| error.to_string()),
                        false => Err("the memory limit for request heads is reached".to_owned()),
                    };
                    if let Err(error) = pushed {
                        let code = Code::H3_EXCESSIVE_LOAD.value();
                        match &self.state {
                            Some(state) => state.abort(),
                            None => self.connection.close(varint(code), b""),
                        }
                        quic::RecvStream::stop_sending(self, code);
                        return Poll::Ready(Err(unknown(error)));
                    }
                }
                Ok(None) => {
                    self.ended = true;
                    if let Err(error) = self.filter.end() {
                        let code = Code::H3_FRAME_ERROR.value();
                        self.connection.close(varint(code), b"");
                        return Poll::Ready(Err(unknown(error.to_string())));
                    }
                }
                Err(error) => {
                    self.ended = true;
                    return Poll::Ready(Err(read_error(error)));
                }
            }
        }
    }

    fn stop_sending(&mut self, code: u64) {
        let _ = self.stream.stop(varint(code));
        self.ended = true;
    }

    fn recv_id(&self) -> StreamId {
        id(self.stream.id())
    }
}

impl Drop for H3RecvStream {
    fn drop(&mut self) {
        if !self.ended {
            // RFC 9114 section 4.1: the response does not depend on the rest of the request.
            let _ = self.stream.stop(varint(Code::H3_NO_ERROR.value()));
        }
    }
}

/// The state of a request's stream.
pub(crate) struct StreamState {
    /// Response bytes that the client's flow control has permitted.
    written: AtomicU64,
    /// Bytes of the request's body that the library has delivered.
    delivered: AtomicU64,
    /// Whether to reset the stream if it is dropped before its end.
    reset_on_drop: AtomicBool,
    /// Whether the request is malformed, which decides the code of the reset.
    is_malformed: AtomicBool,
    /// Whether the request's head is complete.
    has_head: AtomicBool,
    /// The memory of an incomplete head.
    head: MemoryCharge,
}

impl StreamState {
    /// A new stream. `head`: charged for the incomplete head.
    pub(crate) fn new(head: MemoryCharge) -> Self {
        Self {
            written: AtomicU64::new(0),
            delivered: AtomicU64::new(0),
            reset_on_drop: AtomicBool::new(false),
            is_malformed: AtomicBool::new(false),
            has_head: AtomicBool::new(false),
            head,
        }
    }

    /// Reserves memory for received bytes. Returns false if they belong to a head and the memory
    /// limit is reached.
    pub(crate) fn reserve(&self, count: usize) -> bool {
        self.has_head.load(Ordering::Relaxed) || self.head.grow(count + HEAD_PIECE_OVERHEAD)
    }

    /// Whether the request's head is complete.
    pub(crate) fn has_head(&self) -> bool {
        self.has_head.load(Ordering::Relaxed)
    }

    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    pub(crate) fn add_written(&self, count: usize) {
        self.written.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(crate) fn add_delivered(&self, count: u64) {
        self.delivered.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    /// The code to reset the stream with, if it is dropped now.
    pub(crate) fn code_on_drop(&self) -> Option<Code> {
        let code = match self.is_malformed.load(Ordering::Relaxed) {
            true => Code::H3_MESSAGE_ERROR,
            false => Code::H3_INTERNAL_ERROR,
        };
        self.reset_on_drop.load(Ordering::Relaxed).then_some(code)
    }

    /// The head is complete. From now on a stream that is dropped unfinished is reset.
    pub(crate) fn note_head(&self) {
        self.reset_on_drop.store(true, Ordering::Relaxed);
        self.has_head.store(true, Ordering::Relaxed);
        self.head.clear();
    }

    /// The request is malformed (RFC 9114 section 4.1.2).
    pub(crate) fn note_malformed(&self) {
        self.is_malformed.store(true, Ordering::Relaxed);
    }

    /// The whole response is written.
    pub(crate) fn note_finished(&self) {
        self.reset_on_drop.store(false, Ordering::Relaxed);
    }

    /// Resets the stream when it is dropped.
    pub(crate) fn abort(&self) {
        self.reset_on_drop.store(true, Ordering::Relaxed);
    }
}

/// RFC 9114 section 8.1.
pub(crate) const H3_NO_ERROR: u32 = 0x100;

fn id(id: quinn_proto::StreamId) -> StreamId {
    let id = u64::from(VarInt::from(id));
    StreamId::try_from(id).expect("QUIC and HTTP/3 stream ids both have 62 bits")
}

pub(crate) fn varint(code: u64) -> VarInt {
    VarInt::from_u64(code).unwrap_or(VarInt::MAX)
}

pub(crate) fn unknown(what: String) -> StreamErrorIncoming {
    StreamErrorIncoming::Unknown(what.into())
}

pub(crate) fn connection_lost(error: ConnectionError) -> StreamErrorIncoming {
    StreamErrorIncoming::ConnectionErrorIncoming { connection_error: connection_error(error) }
}

pub(crate) fn connection_error(error: ConnectionError) -> ConnectionErrorIncoming {
    match error {
        ConnectionError::ApplicationClosed(close) => {
            ConnectionErrorIncoming::ApplicationClose { error_code: close.error_code.into() }
        }
        ConnectionError::TimedOut => ConnectionErrorIncoming::Timeout,
        other => ConnectionErrorIncoming::Undefined(Arc::new(other)),
    }
}

fn read_error(error: ReadError) -> StreamErrorIncoming {
    match error {
        ReadError::Reset(code) => StreamErrorIncoming::StreamTerminated { error_code: code.into() },
        ReadError::ConnectionLost(error) => connection_lost(error),
        other => unknown(other.to_string()),
    }
}

fn write_error(error: WriteError) -> StreamErrorIncoming {
    match error {
        WriteError::Stopped(code) => {
            StreamErrorIncoming::StreamTerminated { error_code: code.into() }
        }
        WriteError::ConnectionLost(error) => connection_lost(error),
        other => unknown(other.to_string()),
    }
}

/// Bytes of a frame that are copied at once.
const MAX_COPY_BYTES: usize = 16 * 1024;

/// Bytes to read from a stream at once.
const MAX_READ_BYTES: usize = 64 * 1024;

/// The number of cancelled requests that is always tolerated.
const MAX_CANCELLED_REQUESTS: u64 = 100;

/// The number of streams that may end before their head is read. The library remembers each of them
/// as long as the connection lives.
const MAX_HEADLESS_STREAMS: u64 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    fn cancelled(ends: &[(StreamEnd, u64)]) -> CancelledRequests {
        let mut cancelled = CancelledRequests::default();
        for &(end, count) in ends {
            (0..count).for_each(|_| cancelled.count(end));
        }
        cancelled
    }

    #[test]
    fn cancelling_most_requests_is_abuse() {
        let abandoned = |count| cancelled(&[(StreamEnd::Abandoned, count)]);
        assert!(!abandoned(100).is_abused(100));
        assert!(abandoned(101).is_abused(201));
        assert!(!abandoned(101).is_abused(202));
        assert!(cancelled(&[(StreamEnd::Abandoned, 51), (StreamEnd::Headless, 50)]).is_abused(0));
        assert!(!cancelled(&[(StreamEnd::Delivered, 101)]).is_abused(101));
    }

    /// The library remembers such streams as long as the connection lives.
    #[test]
    fn streams_without_a_head_are_limited_among_any_number_of_requests() {
        let headless = |count| cancelled(&[(StreamEnd::Headless, count)]);
        assert!(!headless(1000).is_abused(1_000_000));
        assert!(headless(1001).is_abused(1_000_000));
    }
}
