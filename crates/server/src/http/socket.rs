//! A TCP socket of which the closing side keeps a second handle.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use firstflight_telemetry::metrics::{Metrics, Transport};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::context::memory::{Charge, HANDSHAKE_BYTE};
use crate::server::Shared;

/// The socket under a TLS stream.
#[derive(Clone)]
pub(crate) struct Socket(Arc<Inner>);

struct Inner {
    stream: TcpStream,
    written: AtomicU64,
    metrics: Arc<Metrics>,
    /// Whether what is read is kept for the handshake, and what that holds.
    in_handshake: AtomicBool,
    charge: Charge,
}

impl Socket {
    /// A client's, whose handshake begins.
    pub(crate) fn new(stream: TcpStream, server: &Shared) -> Self {
        Self(Arc::new(Inner {
            stream,
            written: AtomicU64::new(0),
            metrics: server.metrics.clone(),
            in_handshake: AtomicBool::new(true),
            charge: server.budget.open(),
        }))
    }

    /// Early data is decided, or the handshake has failed: what was read for it is not kept any
    /// longer.
    pub(crate) fn has_handshake(&self) {
        self.0.in_handshake.store(false, Ordering::Relaxed);
        self.0.charge.clear();
    }

    /// Bytes that the kernel has taken so far.
    pub(crate) fn written(&self) -> u64 {
        self.0.written.load(Ordering::Relaxed)
    }

    /// Ends our direction and reads on for a short while until the peer has ended its own.
    ///
    /// Bytes that are unread when a socket is closed turn the close into a reset, which can
    /// destroy an answer or an alert that the peer has not read yet (RFC 9112 section 9.6).
    pub(crate) async fn linger(&self) {
        let _ = socket2::SockRef::from(&self.0.stream).shutdown(std::net::Shutdown::Write);
        let _ = timeout(LINGER, async {
            let mut scratch = vec![0; 16 * 1024];
            let mut left = MAX_LINGER_BYTES;
            while left > 0 && self.0.stream.readable().await.is_ok() {
                match self.0.stream.try_read(&mut scratch) {
                    Ok(0) => break,
                    Ok(count) => left = left.saturating_sub(count),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => break,
                }
            }
        })
        .await;
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.stream.poll_read_ready(cx))?;
            match self.0.stream.try_read(buffer.initialize_unfilled()) {
                Ok(count) => {
                    buffer.advance(count);
                    self.0.metrics.connections.received.add(Transport::Tcp, count as u64);
                    if self.0.in_handshake.load(Ordering::Relaxed)
                        && !self.0.charge.grow(count * HANDSHAKE_BYTE)
                    {
                        let why = "too many handshakes are incomplete";
                        return Poll::Ready(Err(io::Error::new(io::ErrorKind::OutOfMemory, why)));
                    }
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.stream.poll_write_ready(cx))?;
            match self.0.stream.try_write(data) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(count) => {
                    self.0.written.fetch_add(count as u64, Ordering::Relaxed);
                    self.0.metrics.connections.sent.add(Transport::Tcp, count as u64);
                    return Poll::Ready(Ok(count));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(socket2::SockRef::from(&self.0.stream).shutdown(std::net::Shutdown::Write))
    }
}

/// How long a closed connection waits for the peer's own close, and for how many bytes: what a
/// slow path still has in flight, not an upload.
const LINGER: Duration = Duration::from_secs(2);
const MAX_LINGER_BYTES: usize = 4 * 1024 * 1024;
