//! The TCP socket below a TLS stream: counts its bytes, and limits the memory of handshakes.

use std::io;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use firstflight_telemetry::metrics::{Metrics, Transport};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::context::memory::{HANDSHAKE_BYTE_FACTOR, MemoryCharge};
use crate::http::ServerContext;

/// The TCP socket below a TLS stream.
#[derive(Clone)]
pub(crate) struct Socket(Arc<SocketState>);

struct SocketState {
    stream: TcpStream,
    written: AtomicU64,
    /// Whether the next write is the last, so that its last segment carries the FIN.
    is_last_write: AtomicBool,
    /// Whether the sending direction is closed.
    is_shut: AtomicBool,
    metrics: Arc<Metrics>,
    /// Whether received bytes are buffered for the handshake.
    in_handshake: AtomicBool,
    /// The memory of these bytes.
    charge: MemoryCharge,
}

impl Socket {
    /// The socket of a client whose handshake starts.
    pub(crate) fn new(stream: TcpStream, shared: &ServerContext) -> Self {
        Self(Arc::new(SocketState {
            stream,
            written: AtomicU64::new(0),
            is_last_write: AtomicBool::new(false),
            is_shut: AtomicBool::new(false),
            metrics: shared.observers.metrics.clone(),
            in_handshake: AtomicBool::new(true),
            charge: shared.memory.charge(),
        }))
    }

    /// Releases the memory of the buffered bytes. Call this when the handshake has failed, or early
    /// data is accepted or refused.
    pub(crate) fn release_handshake_memory(&self) {
        self.0.in_handshake.store(false, Ordering::Relaxed);
        self.0.charge.clear();
    }

    /// Call this before the last write, if the shutdown follows immediately.
    pub(crate) fn expect_shutdown(&self) {
        self.0.is_last_write.store(true, Ordering::Relaxed);
    }

    fn shut_down(&self) -> io::Result<()> {
        match self.0.is_shut.swap(true, Ordering::Relaxed) {
            true => Ok(()),
            false => SockRef::from(&self.0.stream).shutdown(Shutdown::Write),
        }
    }

    /// Waits until there is something to read, or an error.
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.stream.poll_read_ready(cx).map(drop)
    }

    /// Reads from a socket that is readable. A read that returns less than it could has drained the
    /// socket, so the next one waits for the next event instead of asking the kernel. tokio's own
    /// reads do the same, but need exclusive access.
    fn read_ready(&self, buffer: &mut ReadBuf<'_>) -> io::Result<usize> {
        let (mut count, room) = (None, buffer.remaining());
        let result = self.0.stream.try_io(Interest::READABLE, || {
            let read = *count.insert(self.0.stream.try_read_buf(buffer)?);
            // tokio forgets that the socket is readable, unless another event has arrived.
            if read == 0 || read == room { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
        });
        match count {
            Some(count) => Ok(count),
            None => result.map(|()| 0),
        }
    }

    /// Bytes that the kernel has accepted.
    pub(crate) fn written(&self) -> u64 {
        self.0.written.load(Ordering::Relaxed)
    }

    /// Closes the sending direction and reads for a short while, until the peer has closed its own.
    ///
    /// Closing a socket with unread bytes resets the connection. A reset can destroy a response or
    /// an alert that the peer has not read yet (RFC 9112 section 9.6).
    pub(crate) async fn linger(&self) {
        let _ = self.shut_down();
        let _ = timeout(LINGER_TIMEOUT, async {
            let mut left = MAX_LINGER_BYTES;
            while left > 0 && self.0.stream.readable().await.is_ok() {
                let mut scratch = [MaybeUninit::uninit(); 16 * 1024];
                match self.0.stream.try_read_buf(&mut ReadBuf::uninit(&mut scratch)) {
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
            match self.read_ready(buffer) {
                Ok(count) => {
                    self.0.metrics.connections.received.add(Transport::Tcp, count as u64);
                    if self.0.in_handshake.load(Ordering::Relaxed)
                        && !self.0.charge.grow(count * HANDSHAKE_BYTE_FACTOR)
                    {
                        let why = "the memory limit for incomplete handshakes is reached";
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
            let written = match self.0.is_last_write.load(Ordering::Relaxed) {
                false => self.0.stream.try_write(data),
                // MSG_MORE delays the last segment until the FIN, which needs no packet of its own
                // then.
                true => self.0.stream.try_io(Interest::WRITABLE, || {
                    let flags = libc::MSG_MORE | libc::MSG_NOSIGNAL;
                    SockRef::from(&self.0.stream).send_with_flags(data, flags)
                }),
            };
            match written {
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
        Poll::Ready(self.shut_down())
    }
}

/// Limits of [`Socket::linger`]: enough for the bytes in flight on a slow path, but not for an
/// upload.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_LINGER_BYTES: usize = 4 * 1024 * 1024;
