//! The two halves of a stream.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use quinn_proto::{
    Chunk, ClosedStream, ConnectionError, FinishError, ReadError as ProtoReadError, StreamId,
    VarInt, WriteError as ProtoWriteError,
};

use crate::connection::{Connection, State};

/// The sending half of a stream. If it is dropped unfinished, it is finished, or reset if the client
/// has stopped it.
pub struct SendStream {
    connection: Connection,
    id: StreamId,
}

/// The receiving half of a stream. If it is dropped before its end, the client is told to stop with
/// code 0.
pub struct RecvStream {
    connection: Connection,
    id: StreamId,
    opened_early: bool,
    /// Whether there is nothing left to read, or the client has been told to stop.
    ended: bool,
}

/// Why nothing can be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The client has stopped the stream with this code.
    #[error("the client has stopped the stream with code {0}")]
    Stopped(VarInt),
    /// The connection has ended.
    #[error("the connection has ended: {0}")]
    ConnectionLost(#[from] ConnectionError),
    /// The stream is finished or reset.
    #[error("the stream is closed")]
    Closed,
}

/// Why nothing can be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The client has reset the stream with this code.
    #[error("the client has reset the stream with code {0}")]
    Reset(VarInt),
    /// The connection has ended.
    #[error("the connection has ended: {0}")]
    ConnectionLost(#[from] ConnectionError),
    /// The stream was stopped, or read to its end.
    #[error("the stream is closed")]
    Closed,
    /// More bytes arrived than the caller takes.
    #[error("the stream is longer than allowed")]
    TooLong,
}

impl SendStream {
    pub(crate) fn new(connection: Connection, id: StreamId) -> Self {
        Self { connection, id }
    }

    /// The stream's id.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Writes the first bytes of `data`, at least one. Returns how many.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<Result<usize, WriteError>> {
        self.poll_write_with(cx, |mut stream| stream.write(data))
    }

    /// Moves the first bytes of `data` to the stream, at least one. Returns how many.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn poll_write_bytes(
        &mut self,
        cx: &mut Context<'_>,
        data: &mut Bytes,
    ) -> Poll<Result<usize, WriteError>> {
        self.poll_write_with(cx, |mut stream| {
            stream.write_chunks(std::slice::from_mut(data)).map(|written| written.bytes)
        })
    }

    fn poll_write_with(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(quinn_proto::SendStream<'_>) -> Result<usize, ProtoWriteError>,
    ) -> Poll<Result<usize, WriteError>> {
        let mut state = self.connection.state();
        if let Some(error) = &state.error {
            return Poll::Ready(Err(error.clone().into()));
        }
        match write(state.proto.send_stream(self.id)) {
            Ok(written) => {
                self.connection.wake_driver(&mut state);
                Poll::Ready(Ok(written))
            }
            Err(ProtoWriteError::Blocked) => {
                state.writers.insert(self.id, cx.waker().clone());
                Poll::Pending
            }
            Err(ProtoWriteError::Stopped(code)) => Poll::Ready(Err(WriteError::Stopped(code))),
            Err(ProtoWriteError::ClosedStream) => Poll::Ready(Err(WriteError::Closed)),
        }
    }

    /// Writes all of `data`.
    ///
    /// # Errors
    /// [`WriteError`].
    pub async fn write_all(&mut self, mut data: &[u8]) -> Result<(), WriteError> {
        while !data.is_empty() {
            let written = poll_fn(|cx| self.poll_write(cx, data)).await?;
            data = &data[written..];
        }
        Ok(())
    }

    /// Ends the stream. A stream that the client has stopped counts as ended.
    ///
    /// # Errors
    /// The stream was finished or reset before.
    pub fn finish(&mut self) -> Result<(), ClosedStream> {
        let mut state = self.connection.state();
        match state.proto.send_stream(self.id).finish() {
            Ok(()) => {
                self.connection.wake_driver(&mut state);
                Ok(())
            }
            Err(FinishError::Stopped(_)) => Ok(()),
            Err(FinishError::ClosedStream) => Err(ClosedStream::default()),
        }
    }

    /// Aborts the stream with this code.
    ///
    /// # Errors
    /// The stream was finished and acknowledged, or reset before.
    pub fn reset(&mut self, code: VarInt) -> Result<(), ClosedStream> {
        let mut state = self.connection.state();
        state.proto.send_stream(self.id).reset(code)?;
        self.connection.wake_driver(&mut state);
        Ok(())
    }

    /// The code with which the client has stopped the stream, if it has.
    pub fn stop_code(&self) -> Option<VarInt> {
        self.connection.state().proto.send_stream(self.id).stopped().ok().flatten()
    }

    /// Waits until the client has acknowledged all of a finished stream (`None`) or has stopped the
    /// stream (its code). Fails if the connection ends before. One task at a time may wait.
    pub fn stopped(&self) -> Stopped {
        Stopped { connection: self.connection.clone(), id: self.id }
    }
}

/// The future of [`SendStream::stopped`].
pub struct Stopped {
    connection: Connection,
    id: StreamId,
}

impl Future for Stopped {
    type Output = Result<Option<VarInt>, ConnectionError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.connection.state();
        match state.proto.send_stream(self.id).stopped() {
            Err(_) => Poll::Ready(Ok(None)),
            Ok(Some(code)) => Poll::Ready(Ok(Some(code))),
            Ok(None) => match &state.error {
                Some(error) => Poll::Ready(Err(error.clone())),
                None => {
                    state.stopped.insert(self.id, cx.waker().clone());
                    Poll::Pending
                }
            },
        }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.connection.state().stopped.remove(&self.id);
    }
}

impl Drop for SendStream {
    fn drop(&mut self) {
        let mut state = self.connection.state();
        state.writers.remove(&self.id);
        if state.error.is_some() {
            return;
        }
        let ended = match state.proto.send_stream(self.id).finish() {
            Err(FinishError::Stopped(code)) => state.proto.send_stream(self.id).reset(code).is_ok(),
            finished => finished.is_ok(),
        };
        if ended {
            self.connection.wake_driver(&mut state);
        }
    }
}

impl RecvStream {
    pub(crate) fn new(connection: Connection, id: StreamId, opened_early: bool) -> Self {
        Self { connection, id, opened_early, ended: false }
    }

    /// The stream's id.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Whether the client's Finished was not verified yet when the stream was accepted. Determined under
    /// the lock under which packets are processed.
    pub fn opened_early(&self) -> bool {
        self.opened_early
    }

    /// Reads the next bytes, at most `max`. Returns `None` at the end of the stream.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        max: usize,
    ) -> Poll<Result<Option<Bytes>, ReadError>> {
        if self.ended {
            return Poll::Ready(Ok(None));
        }
        let mut state = self.connection.state();
        match self.read(&mut state, max) {
            Ok(Some(chunk)) => Poll::Ready(Ok(Some(chunk.bytes))),
            Ok(None) => {
                self.ended = true;
                Poll::Ready(Ok(None))
            }
            Err(Some(error)) => {
                self.ended = true;
                Poll::Ready(Err(error))
            }
            Err(None) => match &state.error {
                Some(error) => Poll::Ready(Err(error.clone().into())),
                None => {
                    state.readers.insert(self.id, cx.waker().clone());
                    Poll::Pending
                }
            },
        }
    }

    /// Reads without waiting. The error `None` means that nothing has arrived.
    fn read(&self, state: &mut State, max: usize) -> Result<Option<Chunk>, Option<ReadError>> {
        let mut stream = state.proto.recv_stream(self.id);
        let mut chunks = stream.read(true).map_err(|_| Some(ReadError::Closed))?;
        let chunk = chunks.next(max);
        if chunks.finalize().should_transmit() {
            self.connection.wake_driver(state);
        }
        chunk.map_err(|error| match error {
            ProtoReadError::Blocked => None,
            ProtoReadError::Reset(code) => Some(ReadError::Reset(code)),
        })
    }

    /// Reads all bytes up to the end of the stream.
    ///
    /// # Errors
    /// [`ReadError`]; [`ReadError::TooLong`] if there are more than `limit`.
    pub async fn read_to_end(&mut self, limit: usize) -> Result<Vec<u8>, ReadError> {
        let mut data = Vec::new();
        // One byte more than allowed, to notice a stream that is too long.
        let max = limit.saturating_add(1);
        while let Some(bytes) = poll_fn(|cx| self.poll_read(cx, max - data.len())).await? {
            data.extend_from_slice(&bytes);
            if data.len() > limit {
                return Err(ReadError::TooLong);
            }
        }
        Ok(data)
    }

    /// Tells the client that the stream will not be read further.
    ///
    /// # Errors
    /// The stream was stopped or read to its end before.
    pub fn stop(&mut self, code: VarInt) -> Result<(), ClosedStream> {
        let mut state = self.connection.state();
        state.proto.recv_stream(self.id).stop(code)?;
        self.connection.wake_driver(&mut state);
        state.readers.remove(&self.id);
        self.ended = true;
        Ok(())
    }
}

impl Drop for RecvStream {
    fn drop(&mut self) {
        let mut state = self.connection.state();
        state.readers.remove(&self.id);
        if self.ended || state.error.is_some() {
            return;
        }
        if state.proto.recv_stream(self.id).stop(VarInt::from_u32(0)).is_ok() {
            self.connection.wake_driver(&mut state);
        }
    }
}
