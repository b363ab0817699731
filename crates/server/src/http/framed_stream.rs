//! Withholds the bytes after a request's head until the HTTP/1.1 library has read that head, with
//! the help of [`Framing`], and sends interim responses between the library's writes.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::http::framing::Framing;

/// A stream that delivers one request's head, then its body, then the next head.
pub(crate) struct FramedStream<S> {
    stream: S,
    framing: RequestFraming,
    /// Bytes that were read and may not be delivered yet.
    withheld: Bytes,
    /// Called when the client's bytes end between two requests. Returns whether a response still
    /// has to be sent.
    keeps_open: Option<Box<dyn Fn() -> bool + Send>>,
}

/// Tells a [`FramedStream`] which heads the library has read. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct RequestFraming(Arc<SharedFraming>);

#[derive(Default)]
struct SharedFraming {
    state: Mutex<FramingState>,
    /// Whether interim responses are pending, to be checked without the lock.
    has_interim: AtomicBool,
}

#[derive(Default)]
struct FramingState {
    framing: Framing,
    /// Set if the library reads again before [`RequestFraming::head_read`] is called.
    reader: Option<Waker>,
    /// Interim responses of the running request that are to be sent before its response.
    interim: Vec<u8>,
    /// How many bytes of `interim` are sent.
    interim_sent: usize,
}

/// Maximum size of the interim responses that wait.
const MAX_INTERIM_BYTES: usize = 64 * 1024;

/// No parser accepts this anywhere in a chunked body. The library therefore refuses the request by
/// itself, like any malformed body. An error would end the connection without a response.
const MALFORMED_CHUNK: Bytes = Bytes::from_static(b"\r\r");

impl<S> FramedStream<S> {
    pub(crate) fn new(stream: S, framing: RequestFraming) -> Self {
        Self { stream, framing, withheld: Bytes::new(), keeps_open: None }
    }

    /// Withholds the end of the client's bytes while `keeps_open` returns true. The library would
    /// abort the running request, but close_notify closes only the client's direction (RFC 8446
    /// section 6.1).
    pub(crate) fn with_half_close(self, keeps_open: impl Fn() -> bool + Send + 'static) -> Self {
        Self { keeps_open: Some(Box::new(keeps_open)), ..self }
    }
}

impl RequestFraming {
    /// The library has read a head. `length` is the length of its body, or `None` for a chunked
    /// body.
    pub(crate) fn head_read(&self, length: Option<u64>) {
        self.change(|framing| framing.head_read(length));
    }

    /// Whether the library has been given whole requests only.
    pub(crate) fn is_between_requests(&self) -> bool {
        self.lock().framing.is_between_requests()
    }

    /// Queues an interim response to the running request. It is sent when the library flushes the
    /// stream at the end of a turn: everything that the library has written by then is complete
    /// responses. It is dropped if the client does not read those before it.
    pub(crate) fn send_interim(&self, response: &[u8]) {
        let mut state = self.lock();
        if state.interim.len() + response.len() > MAX_INTERIM_BYTES {
            return;
        }
        state.interim.extend_from_slice(response);
        drop(state);
        self.0.has_interim.store(true, Ordering::Relaxed);
    }

    /// Call this before the library gets the response. Drops interim responses of which nothing is
    /// sent, because they would follow the response.
    pub(crate) fn start_response(&self) {
        if self.has_interim() {
            let mut state = self.lock();
            if state.interim_sent == 0 {
                state.interim.clear();
                self.0.has_interim.store(false, Ordering::Relaxed);
            }
        }
    }

    fn has_interim(&self) -> bool {
        self.0.has_interim.load(Ordering::Relaxed)
    }

    /// Writes the interim responses.
    fn poll_interim<S: AsyncWrite + Unpin>(
        &self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.lock();
        while state.interim_sent < state.interim.len() {
            let unsent = &state.interim[state.interim_sent..];
            match ready!(Pin::new(&mut *stream).poll_write(cx, unsent))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => state.interim_sent += sent,
            }
        }
        (state.interim, state.interim_sent) = (Vec::new(), 0);
        self.0.has_interim.store(false, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }

    /// The connection becomes a tunnel with its next response.
    pub(crate) fn become_tunnel(&self) {
        self.change(Framing::become_tunnel);
    }

    fn change(&self, change: impl FnOnce(&mut Framing)) {
        let mut state = self.lock();
        change(&mut state.framing);
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, FramingState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FramedStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let mut state = this.framing.lock();
        if state.framing.is_waiting() {
            state.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        if !state.framing.is_malformed() {
            if this.withheld.is_empty() {
                ready!(Pin::new(&mut this.stream).poll_read(cx, buffer))?;
                let read = &buffer.filled()[before..];
                let is_end = read.is_empty() && state.framing.is_between_requests();
                if is_end && this.keeps_open.as_ref().is_some_and(|keeps_open| keeps_open()) {
                    // The caller polls again when the response has been written.
                    return Poll::Pending;
                }
                let delivered = state.framing.scan(read);
                this.withheld = Bytes::copy_from_slice(&read[delivered..]);
                buffer.set_filled(before + delivered);
            } else {
                let room = this.withheld.len().min(buffer.remaining());
                let delivered = state.framing.scan(&this.withheld[..room]);
                buffer.put_slice(&this.withheld.split_to(delivered));
            }
            if !state.framing.is_malformed() {
                return Poll::Ready(Ok(()));
            }
            this.withheld = MALFORMED_CHUNK;
        }
        // Once the chunk is delivered, an empty read reports the end of the stream.
        let count = this.withheld.len().min(buffer.remaining());
        buffer.put_slice(&this.withheld.split_to(count));
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FramedStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        // Finish a partly written interim response first: its last bytes must not appear inside the
        // response.
        if this.framing.has_interim() && this.framing.lock().interim_sent > 0 {
            ready!(this.framing.poll_interim(&mut this.stream, cx))?;
        }
        Pin::new(&mut this.stream).poll_write(cx, data)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.framing.has_interim() {
            ready!(this.framing.poll_interim(&mut this.stream, cx))?;
        }
        Pin::new(&mut this.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use http::{Request, Response, StatusCode};
    use http_body::Body as _;
    use http_body_util::{BodyExt, Full};
    use hyper::body::Incoming;
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::timeout;

    use super::*;

    /// Collects written bytes, and accepts this many more.
    struct LimitedWriter(Vec<u8>, usize);

    impl AsyncWrite for LimitedWriter {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            data: &[u8],
        ) -> Poll<io::Result<usize>> {
            let count = data.len().min(self.1);
            self.0.extend_from_slice(&data[..count]);
            self.1 -= count;
            if count == 0 { Poll::Pending } else { Poll::Ready(Ok(count)) }
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn an_interim_response_is_sent_whole_before_the_response_or_not_at_all() {
        let hint = b"HTTP/1.1 103 Early Hints\r\n\r\n";
        let cx = &mut Context::from_waker(Waker::noop());
        // How many bytes the socket accepts before the library writes the response.
        for (room, flushes, expected) in
            [(1000, true, &hint[..]), (10, true, hint), (1000, false, b"")]
        {
            let framing = RequestFraming::default();
            let mut stream = FramedStream::new(LimitedWriter(Vec::new(), room), framing.clone());
            framing.send_interim(hint);
            if flushes {
                assert_eq!(Pin::new(&mut stream).poll_flush(cx).is_ready(), room == 1000);
            }
            framing.start_response();
            stream.stream.1 = 1000;
            assert!(Pin::new(&mut stream).poll_write(cx, b"response").is_ready());
            assert!(Pin::new(&mut stream).poll_flush(cx).is_ready());
            assert_eq!(stream.stream.0, [expected, b"response"].concat());
        }
    }

    #[test]
    fn interim_responses_that_a_client_does_not_read_are_dropped() {
        let framing = RequestFraming::default();
        for _ in 0..10_000 {
            framing.send_interim(b"HTTP/1.1 103 Early Hints\r\n\r\n");
        }
        assert!((60_000..=MAX_INTERIM_BYTES).contains(&framing.lock().interim.len()));
    }

    /// Sends these bytes to the library in two parts. Returns the requests with their bodies, and
    /// the statuses of the responses.
    async fn exchange(bytes: &[u8], split: usize) -> (Vec<String>, Vec<u16>) {
        let (mut client, server) = duplex(1 << 16);
        let framing = RequestFraming::default();
        let stream = FramedStream::new(server, framing.clone());
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let log = seen.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            framing.head_read(request.body().size_hint().exact());
            let log = log.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await;
                let mut response = Response::new(Full::<Bytes>::default());
                match body {
                    Ok(body) => {
                        let body = String::from_utf8(body.to_bytes().to_vec()).unwrap();
                        log.lock().unwrap().push(format!("{} {body}", head.uri));
                    }
                    Err(_) => *response.status_mut() = StatusCode::BAD_REQUEST,
                }
                Ok::<_, Infallible>(response)
            }
        });
        let serving =
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        for part in [&bytes[..split], &bytes[split..]] {
            // The server closes after a malformed request.
            let _ = client.write_all(part).await;
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        }
        let mut response = String::new();
        let reading = client.read_to_string(&mut response);
        timeout(Duration::from_secs(30), reading).await.expect("the connection ends").unwrap();
        let _ = serving.await.unwrap();
        let statuses =
            response.split("HTTP/1.1 ").skip(1).map(|text| text[..3].parse().unwrap()).collect();
        let seen = std::mem::take(&mut *seen.lock().unwrap());
        (seen, statuses)
    }

    const NEXT: &str = "GET /next HTTP/1.1\r\nHost: h\r\n\r\n";
    const LAST: &str = "GET /last HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";

    /// Checks the bodies and statuses of these bytes and two further requests, split at every
    /// offset.
    async fn assert_served(bytes: &str, bodies: &[&str], statuses: &[u16]) {
        let bytes = format!("{bytes}{NEXT}{LAST}");
        for split in 0..=bytes.len() {
            let (seen, responses) = exchange(bytes.as_bytes(), split).await;
            assert_eq!(seen, bodies, "{bytes:?}, split at {split}");
            assert_eq!(responses, statuses, "{bytes:?}, split at {split}");
        }
    }

    fn post(body: &str) -> String {
        format!("POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n{body}")
    }

    #[tokio::test]
    async fn rfc9112_7_1_2_a_bare_lf_in_a_trailer_section_swallows_no_request() {
        for trailers in ["\n", "X: a\n\r\n", "X: a\n\n", "X: a\r\n\n"] {
            assert_served(&post(&format!("5\r\nhello\r\n0\r\n{trailers}")), &[], &[400]).await;
        }
        assert_served(&post("5\r\nhello\n0\r\n\r\n"), &[], &[400]).await;
    }

    #[tokio::test]
    async fn well_formed_requests_are_unchanged() {
        let all = ["/a hello", "/next ", "/last "];
        for body in ["5\r\nhello\r\n0\r\n\r\n", "2\r\nhe\r\n3;x=y\r\nllo\r\n00\r\nX: a\r\n\r\n"] {
            assert_served(&post(body), &all, &[200, 200, 200]).await;
        }
        let length = "\r\nPOST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello";
        assert_served(length, &all, &[200, 200, 200]).await;
        assert_served("GET /a HTTP/1.1\nHost: h\n\n", &["/a ", "/next ", "/last "], &[200; 3])
            .await;
    }

    #[tokio::test]
    async fn bytes_of_a_tunnel_are_not_parsed_as_requests() {
        let (mut client, server) = duplex(1 << 16);
        let framing = RequestFraming::default();
        let mut stream = FramedStream::new(server, framing.clone());
        let head = "GET / HTTP/1.1\r\n\r\n";
        client.write_all(format!("{head}\n\n\r\n\r\n").as_bytes()).await.unwrap();
        drop(client);
        let mut delivered = String::new();
        stream.read_exact(&mut vec![0; head.len()]).await.unwrap();
        let reading = tokio::spawn(async move {
            stream.read_to_string(&mut delivered).await.unwrap();
            delivered
        });
        tokio::task::yield_now().await;
        framing.become_tunnel();
        assert_eq!(reading.await.unwrap(), "\n\n\r\n\r\n");
    }
}
