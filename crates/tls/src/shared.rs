use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{Handshake, TlsStream};

/// Splits a server's stream into the part that an HTTP library reads and writes and the part that
/// completes the handshake beside it. An HTTP library stops reading while it waits for a response,
/// but a held request is answered only when the handshake is complete, and that takes reading.
///
/// Both parts must be polled by the same task, because a socket wakes only the last one that asked,
/// and the driver after the library: it sends the handshake's flight if no response took it along.
pub fn share<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: TlsStream<S>,
) -> (SharedStream<S>, HandshakeDriver<S>) {
    stream.let_flight_wait();
    let stream = Arc::new(Mutex::new(stream));
    (SharedStream(stream.clone()), HandshakeDriver(stream))
}

/// The part for the HTTP library.
pub struct SharedStream<S>(Arc<Mutex<TlsStream<S>>>);

/// The part that completes the handshake and knows how far it has come.
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

    /// From now on what the library writes waits for [`HandshakeDriver::poll_send`], up to 64 KiB
    /// of it, though the library flush it. An HTTP/2 library flushes several times on its way to an
    /// answer (its SETTINGS, their acknowledgement, the head, the body), and each flush would start
    /// a TCP segment of its own: a response that fits the initial window (RFC 6928: 10 segments)
    /// would need an eleventh, and with it one round trip more.
    pub fn gather(&self) {
        lock(&self.0).gather();
    }

    /// Sends what waits. After [`HandshakeDriver::gather`] this is due after every poll of the
    /// library; `Pending` has left the task's waker.
    ///
    /// # Errors
    /// The socket's.
    pub fn poll_send(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        lock(&self.0).poll_send(cx)
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
