use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use firstflight_tls::{EarlyData, Handshake, Session, TlsError, TlsStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The stream that carries HTTP.
pub enum Stream<S> {
    /// The socket, without TLS.
    Plain(S),
    /// TLS over the socket.
    Tls(Box<TlsStream<S>>),
}

/// A stream shared between the HTTP library, which reads and writes it, and the client, which inspects
/// its state. Both must be polled by the same task.
///
/// Nothing is read before the first flush, or a write that has to wait: HTTP clients send first, and
/// a read would send the ClientHello (or the Finished) without the request that has to leave with it.
///
/// A server may respond and close without reading the whole request (RFC 9112 section 9.5). Writes
/// to a peer that is gone do nothing, so that its response is read first.
pub struct SharedStream<S>(Arc<Mutex<Inner<S>>>);

/// What a stream has recorded about reads and writes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamCounters {
    /// When the first flush was started, or a write had to wait.
    pub(crate) sent: Option<Instant>,
    /// When the handshake was complete.
    pub(crate) secured: Option<Instant>,
    /// When the first byte arrived.
    pub(crate) first_byte: Option<Instant>,
    /// Whether the peer has closed its direction.
    pub(crate) ended: bool,
}

struct Inner<S> {
    stream: Stream<S>,
    written: bool,
    /// Whether a write has failed because the peer is gone.
    peer_gone: bool,
    reader: Option<Waker>,
    counters: StreamCounters,
    failure: Option<io::Error>,
    head: HeadCapture,
    /// Informational heads since the last request.
    informational: usize,
}

impl<S> Clone for SharedStream<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> SharedStream<S> {
    /// Wraps a stream.
    pub fn new(stream: Stream<S>) -> Self {
        let secured = match &stream {
            Stream::Tls(tls) => tls.is_complete().then(Instant::now),
            Stream::Plain(_) => None,
        };
        Self(Arc::new(Mutex::new(Inner {
            stream,
            written: false,
            peer_gone: false,
            reader: None,
            counters: StreamCounters { secured, ..StreamCounters::default() },
            failure: None,
            head: HeadCapture::default(),
            informational: 0,
        })))
    }

    /// Returns what TLS negotiated; `None` without TLS.
    pub fn facts(&self) -> Option<Handshake> {
        match &self.lock().stream {
            Stream::Tls(tls) => Some(tls.facts()),
            Stream::Plain(_) => None,
        }
    }

    /// Returns whether the TLS handshake is complete; true without TLS.
    pub fn is_complete(&self) -> bool {
        match &self.lock().stream {
            Stream::Tls(tls) => tls.is_complete(),
            Stream::Plain(_) => true,
        }
    }

    /// Returns the bytes written as early data, accepted or not.
    pub fn early_bytes(&self) -> usize {
        match &self.lock().stream {
            Stream::Tls(tls) => tls.early_bytes_written(),
            Stream::Plain(_) => 0,
        }
    }

    /// Returns whether early data was offered.
    pub fn offered_early_data(&self) -> bool {
        self.facts().is_some_and(|facts| facts.early_data != EarlyData::NotOffered)
    }

    /// Returns the sessions received since the last call.
    pub fn take_sessions(&self) -> Vec<Session> {
        match &mut self.lock().stream {
            Stream::Tls(tls) => tls.take_sessions(),
            Stream::Plain(_) => Vec::new(),
        }
    }

    /// Calls a function with the socket.
    pub fn with_socket<T>(&self, inspect: impl FnOnce(&S) -> T) -> T {
        match &self.lock().stream {
            Stream::Plain(socket) => inspect(socket),
            Stream::Tls(tls) => inspect(tls.socket()),
        }
    }

    pub(crate) fn counters(&self) -> StreamCounters {
        self.lock().counters
    }

    /// Returns whether a byte was received since the last request.
    pub(crate) fn response_started(&self) -> bool {
        self.lock().counters.first_byte.is_some()
    }

    /// Returns the first error of the stream; the HTTP library may hide its kind.
    pub(crate) fn take_failure(&self) -> Option<io::Error> {
        self.lock().failure.take()
    }

    /// Returns the response head as received (HTTP/1.1 only).
    pub(crate) fn take_head(&self) -> Vec<u8> {
        std::mem::take(&mut self.lock().head.bytes)
    }

    /// Resets times and head for the next request.
    pub(crate) fn reset_for_request(&self) {
        let mut inner = self.lock();
        inner.head = HeadCapture::default();
        inner.informational = 0;
        if inner.counters.first_byte.is_some() {
            inner.written = false;
            inner.counters.sent = None;
            inner.counters.first_byte = None;
        }
    }

    /// Counts an informational response. Reading fails after too many.
    pub(crate) fn note_informational(&self) {
        self.lock().informational += 1;
    }

    /// Returns whether too many informational responses were received.
    pub(crate) fn too_many_informational(&self) -> bool {
        self.lock().informational > MAX_INFORMATIONAL
    }

    /// Records that the response started at `at`, whatever was received before.
    pub(crate) fn note_response(&self, at: Instant) {
        self.lock().counters.first_byte = Some(at);
    }

    /// Reads until a session arrives or the peer closes; drops other data.
    pub(crate) fn poll_session(&self, cx: &mut Context<'_>) -> Poll<Vec<Session>> {
        loop {
            let sessions = self.take_sessions();
            if !sessions.is_empty() {
                return Poll::Ready(sessions);
            }
            let mut space = [0; 4096];
            let mut buffer = ReadBuf::new(&mut space);
            // Not in the match expression: the lock would be held in the arms.
            let read = ready!(Pin::new(&mut self.lock().stream).poll_read(cx, &mut buffer));
            match read {
                Ok(()) if !buffer.filled().is_empty() => {}
                _ => return Poll::Ready(self.take_sessions()),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Inner<S> {
    /// Keeps the error and returns a copy of it.
    fn fail(&mut self, error: io::Error) -> io::Error {
        let copy = io::Error::new(error.kind(), error.to_string());
        self.failure.get_or_insert(error);
        copy
    }

    /// Allows reads from now on.
    fn start_reading(&mut self) {
        if self.counters.sent.is_none() {
            self.counters.sent = Some(Instant::now());
            if let Some(reader) = self.reader.take() {
                reader.wake();
            }
        }
    }

    /// Returns whether a response may still be readable after this write error. Keeps the error, to
    /// report it if no response arrives.
    fn tolerate_write_error(&mut self, error: &io::Error) -> bool {
        use io::ErrorKind as Kind;
        if !matches!(error.kind(), Kind::BrokenPipe | Kind::ConnectionReset) {
            return false;
        }
        self.peer_gone = true;
        self.failure.get_or_insert_with(|| io::Error::new(error.kind(), error.to_string()));
        self.start_reading();
        true
    }

    fn record_secured(&mut self) {
        if self.counters.secured.is_none()
            && let Stream::Tls(tls) = &self.stream
            && tls.is_complete()
        {
            self.counters.secured = Some(Instant::now());
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for SharedStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let inner = &mut *self.lock();
        if inner.counters.sent.is_none() {
            inner.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        if inner.informational > MAX_INFORMATIONAL {
            return Poll::Ready(Err(inner.fail(io::Error::other("too many informational heads"))));
        }
        let before = buffer.filled().len();
        let result = Pin::new(&mut inner.stream).poll_read(cx, buffer);
        inner.record_secured();
        match ready!(result) {
            Ok(()) => {}
            Err(error) => return Poll::Ready(Err(inner.fail(error))),
        }
        match &buffer.filled()[before..] {
            [] if buffer.remaining() > 0 => inner.counters.ended = true,
            bytes => {
                inner.counters.first_byte.get_or_insert_with(Instant::now);
                inner.head.push(bytes);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for SharedStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let inner = &mut *self.lock();
        if inner.peer_gone {
            return Poll::Ready(Ok(data.len()));
        }
        match Pin::new(&mut inner.stream).poll_write(cx, data) {
            Poll::Ready(Ok(count)) => {
                inner.written |= count > 0;
                Poll::Ready(Ok(count))
            }
            Poll::Ready(Err(error)) if inner.tolerate_write_error(&error) => {
                Poll::Ready(Ok(data.len()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(inner.fail(error))),
            Poll::Pending => {
                if inner.written {
                    inner.start_reading();
                }
                Poll::Pending
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let inner = &mut *self.lock();
        if !inner.written || inner.peer_gone {
            return Poll::Ready(Ok(()));
        }
        inner.start_reading();
        match ready!(Pin::new(&mut inner.stream).poll_flush(cx)) {
            Ok(()) => Poll::Ready(Ok(())),
            Err(error) if inner.tolerate_write_error(&error) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(inner.fail(error))),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.lock().stream).poll_shutdown(cx)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Stream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(cx, buffer),
            Self::Tls(tls) => Pin::new(tls).poll_read(cx, buffer),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(cx, data),
            Self::Tls(tls) => Pin::new(tls).poll_write(cx, data),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Self::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}

/// Takes the TLS error out of an `io::Error`.
pub(crate) fn tls_error(error: io::Error) -> Result<TlsError, io::Error> {
    match TlsError::in_io(&error) {
        Some(_) => error.downcast(),
        None => Err(error),
    }
}

/// Copies an HTTP/1.1 head up to its empty line, including informational heads before it (RFC 9110
/// section 15.2).
#[derive(Default)]
struct HeadCapture {
    bytes: Vec<u8>,
    /// Start of the head that is being copied.
    start: usize,
    complete: bool,
}

/// Maximum length of the copy of a head.
const MAX_HEAD_BYTES: usize = 256 * 1024;

impl HeadCapture {
    fn push(&mut self, mut more: &[u8]) {
        while !self.complete && !more.is_empty() {
            let old_len = self.bytes.len();
            let search_from = old_len.saturating_sub(2).max(self.start);
            self.bytes.extend_from_slice(&more[..more.len().min(MAX_HEAD_BYTES - old_len)]);
            let Some(end) =
                end_of_empty_line(&self.bytes[search_from..]).map(|end| search_from + end)
            else {
                self.complete = self.bytes.len() == MAX_HEAD_BYTES;
                return;
            };
            self.bytes.truncate(end);
            more = &more[end - old_len..];
            let informational = self.bytes[self.start..]
                .split(u8::is_ascii_whitespace)
                .nth(1)
                .is_some_and(|status| status.len() == 3 && status[0] == b'1' && status != b"101");
            self.complete = !informational || end == MAX_HEAD_BYTES;
            self.start = end;
        }
    }
}

/// Returns where the first empty line ends. A line feed alone also ends a line (RFC 9112 section
/// 2.2).
fn end_of_empty_line(bytes: &[u8]) -> Option<usize> {
    (0..bytes.len()).find_map(|at| match bytes[at..] {
        [b'\n', b'\n', ..] => Some(at + 2),
        [b'\n', b'\r', b'\n', ..] => Some(at + 3),
        _ => None,
    })
}

/// Maximum number of informational responses before the final one (RFC 9110 section 15.2 has no
/// bound).
pub(crate) const MAX_INFORMATIONAL: usize = 16;

/// The error message for more than [`MAX_INFORMATIONAL`] informational responses.
pub(crate) fn too_many_informational() -> String {
    format!("more than {MAX_INFORMATIONAL} informational responses without a final one")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEADS: &[u8] = b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\nC: d\r\n\r\n";

    /// Returns what is copied of a response that arrives in pieces of these lengths.
    fn captured(heads: &[u8], body: &[u8], cuts: &[usize]) -> Vec<u8> {
        let mut capture = HeadCapture::default();
        let all = [heads, body].concat();
        let mut rest = all.as_slice();
        for &cut in cuts {
            let (piece, later) = rest.split_at(cut.min(rest.len()));
            capture.push(piece);
            rest = later;
        }
        capture.push(rest);
        capture.bytes
    }

    proptest! {
        #[test]
        fn rfc9110_15_2_the_copy_ends_with_the_final_head(cuts in proptest::collection::vec(1..9usize, 0..40)) {
            prop_assert_eq!(captured(HEADS, b"body\r\n\r\nbody", &cuts), HEADS);
        }

        #[test]
        fn rfc9112_2_2_lines_may_end_with_a_line_feed_alone(cuts in proptest::collection::vec(1..9usize, 0..40)) {
            for heads in [
                &b"HTTP/1.1 103 Early Hints\nA: b\n\nHTTP/1.1 200 OK\nC: d\n\n"[..],
                b"HTTP/1.1 103\r\n\r\nHTTP/1.1 200 OK\nC: d\n\r\n",
                b"HTTP/1.1 103\n\nHTTP/1.1 200\r\nC: d\r\n\n",
            ] {
                prop_assert_eq!(captured(heads, b"body\n\nbody\r\n\r\nbody", &cuts), heads);
            }
        }

        #[test]
        fn the_copy_of_an_endless_head_is_limited(size in 1..70_000usize) {
            let mut capture = HeadCapture::default();
            for _ in 0..MAX_HEAD_BYTES / size + 2 {
                capture.push(&vec![b'x'; size]);
            }
            prop_assert_eq!(capture.bytes.len(), MAX_HEAD_BYTES);
        }
    }
}
