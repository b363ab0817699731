//! The two halves of a stream, as the HTTP/3 library sees them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use firstflight_quic::Inflow;
use futures_util::FutureExt;
use h3::error::Code;
use h3::quic::{self, ConnectionErrorIncoming, StreamErrorIncoming, StreamId, WriteBuf};
use quinn::{ConnectionError, ReadError, VarInt, WriteError};

use crate::http::h3_streams::StreamState;

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
        // The transport ends what is dropped, and half an answer would look like a whole one. What
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
                            crate::handshake::quic_config::close(connection, varint(code), b"");
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
            // RFC 9114 section 4.1: the answer does not need the rest of the request.
            let _ = self.stream.stop(varint(Code::H3_NO_ERROR.value()));
        }
    }
}

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
