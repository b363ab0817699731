//! quinn's connection as the HTTP/3 library sees it.
//!
//! Against `h3-quinn` it limits what a client can make the library keep in memory, knows when an
//! answer has arrived and when its client has turned away, rejects exactly what a GOAWAY names, and
//! ends what was broken off with a reset instead of an end that looks like a whole response.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use firstflight_quic::Inflow;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt, StreamExt};
use h3::error::Code;
use h3::quic::{self, ConnectionErrorIncoming, StreamErrorIncoming, StreamId, WriteBuf};
use quinn::{ConnectionError, ReadError, VarInt, WriteError};

use crate::context::memory::{Budget, Charge, PIECE};

/// A connection whose streams are watched.
pub(crate) struct Link {
    connection: quinn::Connection,
    bidi: BoxStream<'static, Result<(quinn::SendStream, quinn::RecvStream), ConnectionError>>,
    uni: BoxStream<'static, Result<quinn::RecvStream, ConnectionError>>,
    opening: BoxStream<'static, Result<quinn::SendStream, ConnectionError>>,
    /// Streams of the client in one direction that came so far.
    uni_streams: usize,
    head_limit: u64,
    budget: Arc<Budget>,
    watch: Arc<LinkWatch>,
}

/// What the connection's task and its [`Link`] tell each other.
pub(crate) struct LinkWatch {
    /// Requests from this stream id on are rejected (RFC 9114 section 5.2).
    rejected_from: AtomicU64,
    /// The first stream id that no request has come on.
    next_id: AtomicU64,
    /// The stream that was handed over last.
    accepted: Mutex<Option<StreamWatch>>,
}

/// One request's stream, seen from outside of the library.
pub(crate) struct StreamWatch {
    /// Whether it was opened before the end of the handshake.
    pub(crate) early: bool,
    pub(crate) state: Arc<StreamState>,
    /// Ready when nobody waits for the stream's answer any more: the client has all of it, or wants
    /// none.
    pub(crate) over: Pin<Box<dyn Future<Output = StreamEnd> + std::marker::Send>>,
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    /// The client has acknowledged all of it.
    Delivered,
    /// The client has turned away from it, or has gone.
    Abandoned,
}

impl LinkWatch {
    /// Rejects requests from this stream id on.
    pub(crate) fn reject_from(&self, id: u64) {
        self.rejected_from.fetch_min(id, Ordering::Relaxed);
    }

    /// The first stream id that no request has come on.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.load(Ordering::Relaxed)
    }

    /// The stream that was handed to the library last.
    pub(crate) fn take_accepted(&self) -> Option<StreamWatch> {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Link {
    /// `head_limit`: bytes that a request's head may have as it is sent. `budget`: for parts of
    /// heads.
    pub(crate) fn new(connection: quinn::Connection, head_limit: u64, budget: Arc<Budget>) -> Self {
        let bidi = stream::unfold(connection.clone(), |connection| async {
            Some((connection.accept_bi().await, connection))
        });
        let uni = stream::unfold(connection.clone(), |connection| async {
            Some((connection.accept_uni().await, connection))
        });
        let opening = stream::unfold(connection.clone(), |connection| async {
            Some((connection.open_uni().await, connection))
        });
        let watch = LinkWatch {
            rejected_from: AtomicU64::new(u64::MAX),
            next_id: AtomicU64::new(0),
            accepted: Mutex::new(None),
        };
        Self {
            connection,
            bidi: bidi.boxed(),
            uni: uni.boxed(),
            opening: opening.boxed(),
            uni_streams: 0,
            head_limit,
            budget,
            watch: Arc::new(watch),
        }
    }

    pub(crate) fn watch(&self) -> Arc<LinkWatch> {
        self.watch.clone()
    }

    /// Notes a stream of the client. `None`: it is rejected.
    fn admit(&self, mut send: quinn::SendStream, mut recv: quinn::RecvStream) -> Option<Bidi> {
        let id = u64::from(VarInt::from(recv.id()));
        if id >= self.watch.rejected_from.load(Ordering::Relaxed) {
            let _ = send.reset(varint(Code::H3_REQUEST_REJECTED.value()));
            let _ = recv.stop(varint(Code::H3_REQUEST_REJECTED.value()));
            return None;
        }
        self.watch.next_id.fetch_max(id + 4, Ordering::Relaxed);
        let state = Arc::new(StreamState::new(self.budget.open()));
        let over = send.stopped().map(|stopped| match stopped {
            Ok(None) => StreamEnd::Delivered,
            Ok(Some(_)) | Err(_) => StreamEnd::Abandoned,
        });
        let watch =
            StreamWatch { early: recv.is_0rtt(), state: state.clone(), over: Box::pin(over) };
        *self.watch.accepted.lock().unwrap_or_else(PoisonError::into_inner) = Some(watch);
        let recv = Recv::request(recv, self.head_limit, state.clone());
        Some(Bidi { send: Send::new(send, Some(state)), recv })
    }
}

impl quic::Connection<Bytes> for Link {
    type RecvStream = Recv;
    type OpenStreams = Opener;

    fn poll_accept_recv(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Recv, ConnectionErrorIncoming>> {
        // The library keeps a place for each as long as the connection lives.
        if self.uni_streams == MAX_UNI_STREAMS {
            return Poll::Pending;
        }
        match ready!(self.uni.poll_next_unpin(cx)) {
            Some(Ok(stream)) => {
                self.uni_streams += 1;
                Poll::Ready(Ok(Recv::one_way(stream, self.connection.clone())))
            }
            Some(Err(error)) => Poll::Ready(Err(connection_error(error))),
            None => Poll::Pending,
        }
    }

    fn poll_accept_bidi(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Bidi, ConnectionErrorIncoming>> {
        loop {
            match ready!(self.bidi.poll_next_unpin(cx)) {
                Some(Ok((send, recv))) => match self.admit(send, recv) {
                    Some(stream) => return Poll::Ready(Ok(stream)),
                    None => continue,
                },
                Some(Err(error)) => return Poll::Ready(Err(connection_error(error))),
                None => return Poll::Pending,
            }
        }
    }

    fn opener(&self) -> Opener {
        Opener(self.connection.clone())
    }
}

impl quic::OpenStreams<Bytes> for Link {
    type BidiStream = Bidi;
    type SendStream = Send;

    fn poll_open_bidi(&mut self, _: &mut Context<'_>) -> Poll<Result<Bidi, StreamErrorIncoming>> {
        Poll::Ready(Err(no_requests()))
    }

    fn poll_open_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<Send, StreamErrorIncoming>> {
        match ready!(self.opening.poll_next_unpin(cx)) {
            Some(Ok(stream)) => Poll::Ready(Ok(Send::new(stream, None))),
            Some(Err(error)) => Poll::Ready(Err(lost(error))),
            None => Poll::Pending,
        }
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        close_connection(&self.connection, varint(code.value()), reason);
    }
}

/// Closes a connection for the library, which opens nothing by it.
#[derive(Clone)]
pub(crate) struct Opener(quinn::Connection);

impl quic::OpenStreams<Bytes> for Opener {
    type BidiStream = Bidi;
    type SendStream = Send;

    fn poll_open_bidi(&mut self, _: &mut Context<'_>) -> Poll<Result<Bidi, StreamErrorIncoming>> {
        Poll::Ready(Err(no_requests()))
    }

    fn poll_open_send(&mut self, _: &mut Context<'_>) -> Poll<Result<Send, StreamErrorIncoming>> {
        Poll::Ready(Err(no_requests()))
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        close_connection(&self.0, varint(code.value()), reason);
    }
}

/// A request's stream.
pub(crate) struct Bidi {
    send: Send,
    recv: Recv,
}

impl quic::BidiStream<Bytes> for Bidi {
    type SendStream = Send;
    type RecvStream = Recv;

    fn split(self) -> (Send, Recv) {
        (self.send, self.recv)
    }
}

impl quic::SendStream<Bytes> for Bidi {
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

impl quic::RecvStream for Bidi {
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

fn no_requests() -> StreamErrorIncoming {
    unknown("a server opens no such streams".to_owned())
}

/// Streams of the client in one direction in a connection's life. A client needs three, and some
/// open another to keep servers used to types that they do not know.
const MAX_UNI_STREAMS: usize = 64;

/// The sending half of a stream.
pub(crate) struct Send {
    stream: quinn::SendStream,
    writing: Option<WriteBuf<Bytes>>,
    /// Of a request's stream.
    state: Option<Arc<StreamState>>,
}

impl Send {
    pub(crate) fn new(stream: quinn::SendStream, state: Option<Arc<StreamState>>) -> Self {
        Self { stream, writing: None, state }
    }
}

impl quic::SendStream<Bytes> for Send {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        while let Some(data) = &mut self.writing {
            if !data.has_remaining() {
                self.writing = None;
                break;
            }
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, data.chunk()));
            let written = written.map_err(write_error)?;
            data.advance(written);
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
                    "written while another write is under way".to_owned(),
                ),
            });
        }
        self.writing = Some(data.into());
        Ok(())
    }

    fn poll_finish(&mut self, _: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        if let Some(state) = &self.state {
            state.is_whole();
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

impl Drop for Send {
    fn drop(&mut self) {
        // The transport ends what is dropped, and half a response would look like a whole one. What
        // the client has stopped it resets by the client's own code (RFC 9000 section 3.5).
        let is_stopped = || matches!(self.stream.stopped().now_or_never(), Some(Ok(Some(_))));
        if self.state.as_ref().is_some_and(|state| state.is_broken()) && !is_stopped() {
            let _ = self.stream.reset(varint(Code::H3_INTERNAL_ERROR.value()));
        }
    }
}

/// The receiving half of a stream.
pub(crate) struct Recv {
    stream: quinn::RecvStream,
    inflow: Inflow,
    ended: bool,
    /// Of a request's stream.
    state: Option<Arc<StreamState>>,
    /// Of a stream in one direction: what ends with it.
    connection: Option<quinn::Connection>,
}

impl Recv {
    /// A request's. `head`: bytes that a head may have.
    pub(crate) fn request(stream: quinn::RecvStream, head: u64, state: Arc<StreamState>) -> Self {
        let inflow = Inflow::message(head);
        Self { stream, inflow, ended: false, state: Some(state), connection: None }
    }

    pub(crate) fn one_way(stream: quinn::RecvStream, connection: quinn::Connection) -> Self {
        let inflow = Inflow::one_way();
        Self { stream, inflow, ended: false, state: None, connection: Some(connection) }
    }
}

impl quic::RecvStream for Recv {
    type Buf = Bytes;

    fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        loop {
            if let Some(bytes) = self.inflow.next_piece() {
                return Poll::Ready(Ok(Some(bytes)));
            }
            if self.ended {
                return Poll::Ready(Ok(None));
            }
            if let Some(state) = &self.state
                && self.inflow.is_full(state.handed_on())
            {
                // Who takes what the library has comes by here again.
                return Poll::Pending;
            }
            let chunk = std::pin::pin!(self.stream.read_chunk(CHUNK, true)).poll(cx);
            match ready!(chunk) {
                Ok(Some(chunk)) => {
                    let count = chunk.bytes.len();
                    let has_room = self.state.as_ref().is_none_or(|state| state.has_room(count));
                    let fed = match has_room {
                        true => self.inflow.feed(chunk.bytes).map_err(|error| error.to_string()),
                        false => Err("there is no memory for the head".to_owned()),
                    };
                    if let Err(error) = fed {
                        let code = Code::H3_EXCESSIVE_LOAD.value();
                        if let Some(state) = &self.state {
                            state.break_off();
                        }
                        if let Some(connection) = &self.connection {
                            close_connection(connection, varint(code), b"");
                        }
                        quic::RecvStream::stop_sending(self, code);
                        return Poll::Ready(Err(unknown(error)));
                    }
                }
                Ok(None) => {
                    self.ended = true;
                    self.inflow.end();
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

impl Drop for Recv {
    fn drop(&mut self) {
        if !self.ended {
            // RFC 9114 section 4.1: the response does not need the rest of the request.
            let _ = self.stream.stop(varint(Code::H3_NO_ERROR.value()));
        }
    }
}

/// What is known of a stream.
pub(crate) struct StreamState {
    /// Bytes that the client's flow control has let go so far.
    written: AtomicU64,
    /// Bytes of the request's body that the library has handed on so far.
    handed_on: AtomicU64,
    /// Whether it is to end with a reset if it is dropped before its end.
    broken: AtomicBool,
    /// Whether the request's head is there, and what its parts hold until then.
    has_head: AtomicBool,
    head: Charge,
}

impl StreamState {
    /// Nothing of it is there. `head`: for the parts of its head.
    pub(crate) fn new(head: Charge) -> Self {
        Self {
            written: AtomicU64::new(0),
            handed_on: AtomicU64::new(0),
            broken: AtomicBool::new(false),
            has_head: AtomicBool::new(false),
            head,
        }
    }

    /// So many bytes came. False: they belong to a head, and there is no memory for it.
    pub(crate) fn has_room(&self, count: usize) -> bool {
        self.has_head.load(Ordering::Relaxed) || self.head.grow(count + PIECE)
    }

    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    pub(crate) fn add_written(&self, count: usize) {
        self.written.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(crate) fn add_handed_on(&self, count: u64) {
        self.handed_on.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn handed_on(&self) -> u64 {
        self.handed_on.load(Ordering::Relaxed)
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// The head is there. From now on a stream that is dropped unfinished was broken off.
    pub(crate) fn head_is_there(&self) {
        self.broken.store(true, Ordering::Relaxed);
        self.has_head.store(true, Ordering::Relaxed);
        self.head.clear();
    }

    /// All of the response is written.
    pub(crate) fn is_whole(&self) {
        self.broken.store(false, Ordering::Relaxed);
    }

    /// The stream is to be reset when it is dropped.
    pub(crate) fn break_off(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }
}

/// Closes a connection, and sees that its client is told though the congestion window is full.
pub(crate) fn close_connection(connection: &quinn::Connection, code: VarInt, reason: &[u8]) {
    firstflight_quic::make_room_for_close(connection.congestion_state());
    connection.close(code, reason);
}

/// RFC 9114 section 8.1.
pub(crate) const H3_NO_ERROR: u32 = 0x100;

fn id(id: quinn::StreamId) -> StreamId {
    let id = u64::from(VarInt::from(id));
    StreamId::try_from(id).expect("both are a stream id of 62 bits")
}

pub(crate) fn varint(code: u64) -> VarInt {
    VarInt::from_u64(code).unwrap_or(VarInt::MAX)
}

pub(crate) fn unknown(what: String) -> StreamErrorIncoming {
    StreamErrorIncoming::Unknown(what.into())
}

pub(crate) fn lost(error: ConnectionError) -> StreamErrorIncoming {
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
        ReadError::ConnectionLost(error) => lost(error),
        other => unknown(other.to_string()),
    }
}

fn write_error(error: WriteError) -> StreamErrorIncoming {
    match error {
        WriteError::Stopped(code) => {
            StreamErrorIncoming::StreamTerminated { error_code: code.into() }
        }
        WriteError::ConnectionLost(error) => lost(error),
        other => unknown(other.to_string()),
    }
}

/// Bytes read from a stream at once.
const CHUNK: usize = 64 * 1024;
