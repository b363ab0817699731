//! The two halves of a stream, as the HTTP/3 library sees them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h3::error::Code;
use h3::quic::{self, ConnectionErrorIncoming, StreamErrorIncoming, StreamId, WriteBuf};
use quinn::{ConnectionError, ReadError, VarInt, WriteError};

use super::frames::{Frames, TooLong, number};
use super::streams::StreamState;

/// The sending half of a stream.
pub(crate) struct Send {
    stream: quinn::SendStream,
    writing: Option<WriteBuf<Bytes>>,
    /// Of a request's stream.
    state: Option<Arc<StreamState>>,
}

impl Send {
    pub(super) fn new(stream: quinn::SendStream, state: Option<Arc<StreamState>>) -> Self {
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
        // The transport ends what is dropped, and half an answer would look like a whole one.
        if self.state.as_ref().is_some_and(|state| state.is_broken()) {
            let _ = self.stream.reset(varint(Code::H3_INTERNAL_ERROR.value()));
        }
    }
}

/// The receiving half of a stream.
pub(crate) struct Recv {
    stream: quinn::RecvStream,
    reads: Reads,
    ended: bool,
    /// Of a stream in one direction: what ends with it.
    connection: Option<quinn::Connection>,
}

/// How what comes in is read.
enum Reads {
    /// A request: by its frames.
    Request(Frames, Arc<StreamState>),
    /// A stream in one direction, of which the type is not known yet, with what is there of it.
    Untyped(Vec<u8>),
    /// The control stream: by its frames.
    Control(Frames),
    /// Any other, which the library reads no further than its type.
    Other,
}

impl Recv {
    /// A request's. `head`: bytes that a head may have.
    pub(super) fn request(stream: quinn::RecvStream, head: u64, state: Arc<StreamState>) -> Self {
        let reads = Reads::Request(Frames::new(head), state);
        Self { stream, reads, ended: false, connection: None }
    }

    pub(super) fn one_way(stream: quinn::RecvStream, connection: quinn::Connection) -> Self {
        let reads = Reads::Untyped(Vec::new());
        Self { stream, reads, ended: false, connection: Some(connection) }
    }

    /// What was read before and has not been given away.
    fn waiting(&mut self) -> Option<Bytes> {
        match &mut self.reads {
            Reads::Request(frames, _) | Reads::Control(frames) => frames.next(),
            Reads::Untyped(_) | Reads::Other => None,
        }
    }

    /// Whether the library is to hand on what it has before it reads on.
    fn is_full(&mut self) -> bool {
        match &mut self.reads {
            Reads::Request(frames, state) => frames.backlog.is_full(state.handed_on()),
            _ => false,
        }
    }

    /// Takes in a chunk; `Some` goes to the library as it is.
    fn take_in(&mut self, chunk: Bytes) -> Result<Option<Bytes>, TooLong> {
        // Of a copy, so that a few bytes do not keep their whole datagram in memory.
        let copy = |chunk: Bytes| match chunk.len() < SMALL {
            true => Bytes::copy_from_slice(&chunk),
            false => chunk,
        };
        match &mut self.reads {
            Reads::Request(frames, _) | Reads::Control(frames) => {
                frames.feed(copy(chunk)).map(|()| None)
            }
            Reads::Untyped(head) => {
                let mut count = 0;
                while number(head).is_none() && count < chunk.len() {
                    head.push(chunk[count]);
                    count += 1;
                }
                match number(head) {
                    Some((CONTROL, _)) => {
                        let mut frames = Frames::new(MAX_CONTROL_FRAME);
                        frames.feed(copy(chunk.slice(count..)))?;
                        self.reads = Reads::Control(frames);
                        Ok(Some(chunk.slice(..count)))
                    }
                    Some(_) => {
                        self.reads = Reads::Other;
                        Ok(Some(chunk))
                    }
                    None => Ok(Some(chunk)),
                }
            }
            Reads::Other => Ok(Some(chunk)),
        }
    }
}

impl quic::RecvStream for Recv {
    type Buf = Bytes;

    fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        loop {
            if let Some(bytes) = self.waiting() {
                return Poll::Ready(Ok(Some(bytes)));
            }
            if self.ended {
                return Poll::Ready(Ok(None));
            }
            if self.is_full() {
                // Who takes what the library has comes by here again.
                return Poll::Pending;
            }
            let chunk = std::pin::pin!(self.stream.read_chunk(CHUNK, true)).poll(cx);
            match ready!(chunk) {
                Ok(Some(chunk)) => match self.take_in(chunk.bytes) {
                    Ok(None) => {}
                    Ok(bytes) => return Poll::Ready(Ok(bytes)),
                    Err(error) => {
                        let code = Code::H3_EXCESSIVE_LOAD.value();
                        if let Reads::Request(_, state) = &self.reads {
                            state.break_off();
                        }
                        if let Some(connection) = &self.connection {
                            connection.close(varint(code), b"");
                        }
                        quic::RecvStream::stop_sending(self, code);
                        return Poll::Ready(Err(unknown(error.to_string())));
                    }
                },
                Ok(None) => {
                    self.ended = true;
                    if let Reads::Request(frames, _) | Reads::Control(frames) = &mut self.reads {
                        frames.end();
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

impl Drop for Recv {
    fn drop(&mut self) {
        if !self.ended {
            // RFC 9114 section 4.1: the answer does not need the rest of the request.
            let _ = self.stream.stop(varint(Code::H3_NO_ERROR.value()));
        }
    }
}

fn id(id: quinn::StreamId) -> StreamId {
    let id = u64::from(VarInt::from(id));
    StreamId::try_from(id).expect("both are a stream id of 62 bits")
}

pub(super) fn varint(code: u64) -> VarInt {
    VarInt::from_u64(code).unwrap_or(VarInt::MAX)
}

pub(super) fn unknown(what: String) -> StreamErrorIncoming {
    StreamErrorIncoming::Unknown(what.into())
}

pub(super) fn lost(error: ConnectionError) -> StreamErrorIncoming {
    StreamErrorIncoming::ConnectionErrorIncoming { connection_error: connection_error(error) }
}

pub(super) fn connection_error(error: ConnectionError) -> ConnectionErrorIncoming {
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

/// The control stream's type (RFC 9114 section 6.2.1).
const CONTROL: u64 = 0;

/// Settings and identifiers are much shorter.
const MAX_CONTROL_FRAME: u64 = 4096;

/// Less than half of a datagram.
const SMALL: usize = 512;

/// Bytes read from a stream at once.
const CHUNK: usize = 64 * 1024;
