//! A socket that can be read to the end although the server has stopped reading.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop;

/// A server may respond and close the connection while a request is still being sent; the response
/// is then in this side's receive buffer, and counts (RFC 9112 section 9.5). hyper would lose it at
/// the first failed write. So once the peer has closed the connection, writes are discarded until
/// everything is read: a response, or the end of the connection.
pub(crate) struct Socket<S> {
    stream: S,
    /// Whether the peer has closed the connection.
    closed: bool,
    /// Whether everything that the peer sent before has been read.
    ended: bool,
}

impl<S> Socket<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, closed: false, ended: false }
    }

    fn discard(&self, cx: &mut Context<'_>, length: usize) -> Poll<io::Result<usize>> {
        if self.ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        // Discarded writes never wait, so the task must yield to read between them.
        ready!(coop::poll_proceed(cx)).made_progress();
        Poll::Ready(Ok(length))
    }

    /// Returns `discarded` instead of the error of a write to a closed connection.
    fn result<T>(&mut self, written: Poll<io::Result<T>>, discarded: T) -> Poll<io::Result<T>> {
        match written {
            Poll::Ready(Err(error)) if is_closed(&error) => {
                self.closed = true;
                Poll::Ready(Ok(discarded))
            }
            written => written,
        }
    }
}

fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

impl<S: AsyncRead + Unpin> AsyncRead for Socket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, buffer));
        if self.closed && buffer.filled().len() == before {
            self.ended = true;
            // The failed write consumed the error, and an end without one would look complete.
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        Poll::Ready(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.closed {
            return self.discard(cx, data.len());
        }
        let written = Pin::new(&mut self.stream).poll_write(cx, data);
        self.result(written, data.len())
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = parts.iter().map(|part| part.len()).sum();
        if self.closed {
            return self.discard(cx, length);
        }
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.result(written, length)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.result(flushed, ())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
