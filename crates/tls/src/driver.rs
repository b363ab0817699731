//! A stream in two parts: one for an HTTP library, one that completes the handshake.
//!
//! BoringSSL completes a handshake by reading, but an HTTP library does not read while it waits for
//! a response. A request that is held until the handshake is complete would wait forever. So
//! [`split_driver`] splits the stream.
//!
//! One task polls both parts, because a socket wakes only the last task that polled it. HTTP/2
//! streams run on that task too: they end with the connection, and a response that is ready at once
//! leaves with the server's flight. For that reason the library's reads do not send anything: hyper
//! reads again between taking a request and responding to it, and would send the flight too early.
//! The driver is polled after the library and sends the flight if no response has done so.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{Handshake, TlsStream};

/// Splits a server's stream into a part for an HTTP library and a part that completes the
/// handshake. Poll both from the same task, the driver last.
pub fn split_driver<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: TlsStream<S>,
) -> (SharedStream<S>, HandshakeDriver<S>) {
    stream.defer_flight();
    let stream = Arc::new(Mutex::new(stream));
    (SharedStream(stream.clone()), HandshakeDriver(stream))
}

/// The part of a stream for the HTTP library.
pub struct SharedStream<S>(Arc<Mutex<TlsStream<S>>>);

/// The part of a stream that completes the handshake.
pub struct HandshakeDriver<S>(Arc<Mutex<TlsStream<S>>>);

impl<S> Clone for HandshakeDriver<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> HandshakeDriver<S> {
    /// See [`TlsStream::poll_complete`].
    ///
    /// # Errors
    /// [`crate::TlsError`] as `io::Error`.
    pub fn poll_complete(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        lock(&self.0).poll_complete(cx)
    }

    /// Buffers the library's writes, up to 64 KiB, until [`HandshakeDriver::poll_send`], even if the
    /// library flushes. An HTTP/2 library flushes several times before a response is complete
    /// (SETTINGS, their acknowledgement, headers, body), and each flush would start a new TCP
    /// segment. A response that fits the initial window (RFC 6928: 10 segments) would then need an
    /// eleventh segment, and one more round trip.
    pub fn buffer_writes(&self) {
        lock(&self.0).buffer_writes();
    }

    /// Sends buffered bytes. After [`HandshakeDriver::buffer_writes`], call this after each poll of
    /// the library. On `Pending` the task is woken when the socket is writable.
    ///
    /// # Errors
    /// The socket's error.
    pub fn poll_send(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        lock(&self.0).poll_send(cx)
    }

    /// Buffers the connection's tickets, which otherwise wait for the first response, so that they
    /// leave in one write with it. Call it if no request comes.
    ///
    /// # Errors
    /// [`crate::TlsError`] as `io::Error`.
    pub fn write_tickets(&self) -> io::Result<()> {
        lock(&self.0).write_tickets()
    }

    /// See [`TlsStream::is_complete`].
    pub fn is_complete(&self) -> bool {
        lock(&self.0).is_complete()
    }

    /// See [`TlsStream::reading_early`].
    pub fn reading_early(&self) -> bool {
        lock(&self.0).reading_early()
    }

    /// See [`TlsStream::facts`].
    pub fn facts(&self) -> Handshake {
        lock(&self.0).facts()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for SharedStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *lock(&self.0)).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for SharedStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *lock(&self.0)).poll_write(cx, data)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *lock(&self.0)).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *lock(&self.0)).poll_shutdown(cx)
    }
}

fn lock<S>(stream: &Mutex<TlsStream<S>>) -> MutexGuard<'_, TlsStream<S>> {
    stream.lock().unwrap_or_else(PoisonError::into_inner)
}
