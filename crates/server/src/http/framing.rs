//! Follows the framing of an HTTP/1.1 connection's requests (RFC 9112 sections 2.2, 6 and 7.1) next
//! to the HTTP library, and withholds what follows a head until the library has read that head.
//!
//! hyper 1.12.0 reads a trailer section up to the next CRLF CRLF (`read_end_cr` and `read_trailer`
//! take any byte except CR), but httparse ends it at the first empty line, bare LFs included. What
//! was read behind that is dropped: of these pipelined requests, `/2` never reaches the service.
//!
//! ```text
//! POST /1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\n
//! GET /2 HTTP/1.1\r\nHost: a\r\n\r\nGET /3 HTTP/1.1\r\nHost: a\r\n\r\n
//! ```
//!
//! Behind a proxy that shares connections among clients, the response to `/3` is then taken for the
//! one to `/2`. Chunks and trailers are therefore parsed strictly here (RFC 9112 section 7.1 ends
//! them with CRLF). Which body a head announces is left to the library, so that the two parsers
//! cannot disagree.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The framing of one connection's requests. It stores no bytes.
#[derive(Debug, Default)]
pub(crate) struct Framing {
    stage: Stage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// Before a request, where empty lines are ignored (RFC 9112 section 2.2).
    #[default]
    Start,
    Head(Head),
    /// After a head that the library has not read yet.
    HeadEnd,
    /// In a body with this many bytes left.
    Length(u64),
    Chunked(Chunked),
    /// After the last request: the bytes belong to another protocol.
    Tunnel,
    Malformed,
}

/// The position in a head, whose lines may end with a bare LF (RFC 9112 section 2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Head {
    Line,
    Lf,
    LfCr,
}

/// The position in a chunked body (RFC 9112 section 7.1), whose lines end with CRLF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chunked {
    SizeStart,
    Size(u64),
    /// After the digits: white space and extensions.
    Extension(u64),
    SizeLf(u64),
    Data(u64),
    DataCr,
    DataLf,
    TrailerStart,
    Trailer,
    TrailerLf,
    LastLf,
    End,
}

impl Framing {
    /// Scans the next bytes and returns how many of them the library may read now. The caller scans
    /// the rest again once the framing no longer [waits](Self::is_waiting), unless it is
    /// [malformed](Self::is_malformed).
    pub(crate) fn scan(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            match self.step(&bytes[at..]) {
                Some(count) => at += count,
                None => break,
            }
        }
        at
    }

    /// Called when the library has read a head. `length` is the length of its body, or `None` for a
    /// chunked body.
    pub(crate) fn head_read(&mut self, length: Option<u64>) {
        self.stage = match (self.stage, length) {
            (Stage::HeadEnd, Some(0)) => Stage::Start,
            (Stage::HeadEnd, Some(length)) => Stage::Length(length),
            (Stage::HeadEnd, None) => Stage::Chunked(Chunked::SizeStart),
            // The library has found a head where there is none.
            _ => Stage::Malformed,
        };
    }

    /// Called when the connection has become a tunnel.
    pub(crate) fn become_tunnel(&mut self) {
        self.stage = Stage::Tunnel;
    }

    /// Whether the library has to read a head before more bytes may pass.
    pub(crate) fn is_waiting(&self) -> bool {
        self.stage == Stage::HeadEnd
    }

    /// Whether the framing is malformed. No further bytes can be parsed.
    pub(crate) fn is_malformed(&self) -> bool {
        self.stage == Stage::Malformed
    }

    /// Scans one byte, or several of the same kind. Returns `None` if the library may not read any.
    fn step(&mut self, bytes: &[u8]) -> Option<usize> {
        let byte = bytes[0];
        let mut count = 1;
        self.stage = match self.stage {
            Stage::HeadEnd | Stage::Malformed => return None,
            Stage::Tunnel => return Some(bytes.len()),
            Stage::Start if matches!(byte, b'\r' | b'\n') => Stage::Start,
            Stage::Start => Stage::Head(Head::Line),
            Stage::Head(Head::Line) => {
                let lf = bytes.iter().position(|byte| *byte == b'\n');
                count = lf.map_or(bytes.len(), |lf| lf + 1);
                Stage::Head(if lf.is_some() { Head::Lf } else { Head::Line })
            }
            Stage::Head(_) if byte == b'\n' => Stage::HeadEnd,
            Stage::Head(Head::Lf) if byte == b'\r' => Stage::Head(Head::LfCr),
            Stage::Head(_) => Stage::Head(Head::Line),
            Stage::Length(left) => {
                count = min_bytes(left, bytes);
                match left - count as u64 {
                    0 => Stage::Start,
                    left => Stage::Length(left),
                }
            }
            Stage::Chunked(Chunked::Data(left)) => {
                count = min_bytes(left, bytes);
                Stage::Chunked(match left - count as u64 {
                    0 => Chunked::DataCr,
                    left => Chunked::Data(left),
                })
            }
            Stage::Chunked(chunked) => match chunked.next(byte) {
                Some(Chunked::End) => Stage::Start,
                Some(next) => Stage::Chunked(next),
                None => {
                    self.stage = Stage::Malformed;
                    return None;
                }
            },
        };
        Some(count)
    }
}

impl Chunked {
    /// The position after a byte of the framing. Returns `None` if the byte is invalid.
    fn next(self, byte: u8) -> Option<Self> {
        Some(match (self, byte) {
            (Self::SizeStart, _) => Self::Size(digit(byte)?),
            (Self::Size(size), b'\r') => Self::SizeLf(size),
            (Self::Size(size), b' ' | b'\t' | b';') => Self::Extension(size),
            (Self::Size(size), _) => Self::Size(size.checked_mul(16)?.checked_add(digit(byte)?)?),
            (Self::Extension(size), b'\r') => Self::SizeLf(size),
            (Self::Extension(_), b'\n') => return None,
            (Self::Extension(size), _) => Self::Extension(size),
            (Self::SizeLf(0), b'\n') => Self::TrailerStart,
            (Self::SizeLf(size), b'\n') => Self::Data(size),
            (Self::DataCr, b'\r') => Self::DataLf,
            (Self::DataLf, b'\n') => Self::SizeStart,
            (Self::TrailerStart, b'\r') => Self::LastLf,
            (Self::TrailerStart | Self::Trailer, b'\n') => return None,
            (Self::TrailerStart, _) => Self::Trailer,
            (Self::Trailer, b'\r') => Self::TrailerLf,
            (Self::Trailer, _) => Self::Trailer,
            (Self::TrailerLf, b'\n') => Self::TrailerStart,
            (Self::LastLf, b'\n') => Self::End,
            _ => return None,
        })
    }
}

fn digit(byte: u8) -> Option<u64> {
    char::from(byte).to_digit(16).map(u64::from)
}

/// The number of these bytes that belong to the next `left`.
fn min_bytes(left: u64, bytes: &[u8]) -> usize {
    usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()))
}

/// A stream that delivers one request's head, then its body, then the next head.
pub(crate) struct FramedStream<S> {
    stream: S,
    requests: RequestFraming,
    /// Bytes that were read and may not be delivered yet.
    withheld: Bytes,
    /// Called at the end of the stream between two requests: whether a response has to be sent first.
    keeps_open: Option<Box<dyn Fn() -> bool + Send>>,
}

/// Tells a [`FramedStream`] which heads the library has read. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct RequestFraming(Arc<SharedFraming>);

#[derive(Default)]
struct SharedFraming {
    state: Mutex<FramingState>,
    /// Whether there are interim responses, so that others pay nothing for them.
    has_interim: AtomicBool,
}

#[derive(Default)]
struct FramingState {
    framing: Framing,
    /// Set if the library reads on before it has reported the head's body.
    reader: Option<Waker>,
    /// Interim responses of the running request that are to be sent before its response.
    interim: Vec<u8>,
    /// How many of these bytes are sent.
    interim_sent: usize,
}

/// No parser accepts this anywhere in a chunked body. The library therefore refuses the request by
/// itself, like any malformed body. An error would end the connection without a response.
const MALFORMED_CHUNK: Bytes = Bytes::from_static(b"\r\r");

impl<S> FramedStream<S> {
    pub(crate) fn new(stream: S, requests: RequestFraming) -> Self {
        Self { stream, requests, withheld: Bytes::new(), keeps_open: None }
    }

    /// Withholds the end of the client's bytes as long as `keeps_open` returns true. The library aborts
    /// a request whose client has closed its direction, but close_notify closes that one only (RFC 8446
    /// section 6.1).
    pub(crate) fn half_closing(self, keeps_open: impl Fn() -> bool + Send + 'static) -> Self {
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
        self.lock().framing.stage == Stage::Start
    }

    /// Sends an interim response to the running request. The library, which knows nothing of it, flushes
    /// the stream at the end of each turn: all that it has written before is then complete responses.
    pub(crate) fn send_interim(&self, head: &[u8]) {
        self.lock().interim.extend_from_slice(head);
        self.0.has_interim.store(true, Ordering::Relaxed);
    }

    /// The library gets the response now. What was not sent before would come after it.
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
            let rest = &state.interim[state.interim_sent..];
            match ready!(Pin::new(&mut *stream).poll_write(cx, rest))? {
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
        let mut state = this.requests.lock();
        if state.framing.is_waiting() {
            state.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        if !state.framing.is_malformed() {
            if this.withheld.is_empty() {
                ready!(Pin::new(&mut this.stream).poll_read(cx, buffer))?;
                let read = &buffer.filled()[before..];
                let is_end = read.is_empty() && state.framing.stage == Stage::Start;
                if is_end && this.keeps_open.as_ref().is_some_and(|keeps_open| keeps_open()) {
                    // The caller polls again when the response has been written.
                    return Poll::Pending;
                }
                let passed = state.framing.scan(read);
                this.withheld = Bytes::copy_from_slice(&read[passed..]);
                buffer.set_filled(before + passed);
            } else {
                let room = this.withheld.len().min(buffer.remaining());
                let passed = state.framing.scan(&this.withheld[..room]);
                buffer.put_slice(&this.withheld.split_to(passed));
            }
            if !state.framing.is_malformed() {
                return Poll::Ready(Ok(()));
            }
            this.withheld = MALFORMED_CHUNK;
        }
        // After that, report the end of the stream.
        let room = this.withheld.len().min(buffer.remaining());
        buffer.put_slice(&this.withheld.split_to(room));
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
        // Finish a partly written interim response first; its rest must not appear inside the
        // response.
        if this.requests.has_interim() && this.requests.lock().interim_sent > 0 {
            ready!(this.requests.poll_interim(&mut this.stream, cx))?;
        }
        Pin::new(&mut this.stream).poll_write(cx, data)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.requests.has_interim() {
            ready!(this.requests.poll_interim(&mut this.stream, cx))?;
        }
        Pin::new(&mut this.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Takes so many bytes.
    struct Narrow(Vec<u8>, usize);

    impl AsyncWrite for Narrow {
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
        // How many bytes the socket takes before the library writes the response.
        for (room, flushes, expected) in
            [(1000, true, &hint[..]), (10, true, hint), (1000, false, b"")]
        {
            let requests = RequestFraming::default();
            let mut stream = FramedStream::new(Narrow(Vec::new(), room), requests.clone());
            requests.send_interim(hint);
            if flushes {
                assert_eq!(Pin::new(&mut stream).poll_flush(cx).is_ready(), room == 1000);
            }
            requests.start_response();
            stream.stream.1 = 1000;
            assert!(Pin::new(&mut stream).poll_write(cx, b"response").is_ready());
            assert!(Pin::new(&mut stream).poll_flush(cx).is_ready());
            assert_eq!(stream.stream.0, [expected, b"response"].concat());
        }
    }

    const CHUNKED: &str = "POST / HTTP/1.1\r\n\r\n";

    /// Scans all bytes in pieces of this size, where the heads have bodies of these lengths.
    /// Returns how many bytes the library may read, and the number of heads.
    fn pass(bytes: &[u8], piece: usize, bodies: &[Option<u64>]) -> (usize, usize, Framing) {
        let mut framing = Framing::default();
        let (mut passed, mut heads) = (0, 0);
        for piece in bytes.chunks(piece) {
            let mut at = 0;
            while at < piece.len() {
                at += framing.scan(&piece[at..]);
                if framing.is_malformed() {
                    return (passed + at, heads, framing);
                }
                if framing.is_waiting() {
                    framing.head_read(bodies.get(heads).copied().unwrap_or(Some(0)));
                    heads += 1;
                }
            }
            passed += at;
        }
        (passed, heads, framing)
    }

    /// The offset at which a chunked body is refused, for every piece size. Returns `None` if the
    /// body and the request after it pass.
    fn refused_at(body: &str) -> Option<usize> {
        let bytes = format!("{CHUNKED}{body}GET /next HTTP/1.1\r\n\r\n");
        let outcomes: Vec<_> = (1..=bytes.len())
            .map(|piece| {
                let (passed, heads, framing) = pass(bytes.as_bytes(), piece, &[None]);
                let whole = (passed, heads) == (bytes.len(), 2);
                assert_eq!(whole, !framing.is_malformed(), "{body:?} in pieces of {piece}");
                (!whole).then(|| passed - CHUNKED.len())
            })
            .collect();
        assert!(outcomes.iter().all(|outcome| *outcome == outcomes[0]), "{body:?}: {outcomes:?}");
        outcomes[0]
    }

    #[test]
    fn rfc9112_7_1_2_a_trailer_section_has_lines_that_end_with_crlf() {
        for good in [
            "0\r\n\r\n",
            "5\r\nhello\r\n0\r\n\r\n",
            "0005;a=b;c\r\n\r\n\r\n\n\r\n000 ;d\r\n\r\n",
            "A\r\n0123456789\r\n0\r\nA: b\r\nC: d\r\n\r\n",
        ] {
            assert_eq!(refused_at(good), None, "{good:?}");
        }
        for (bad, at) in [
            ("0\r\n\n", 3),
            ("0\r\nX: a\n\r\n", 7),
            ("0\r\nX: a\n\n", 7),
            ("0\r\nX: a\r\n\n", 9),
            ("0\r\nX: a\n\tb\r\n\r\n", 7),
            ("0\r\nX: a\r\r\n\r\n", 8),
            ("0\r\n\rX: a\r\n\r\n", 4),
            ("0\n\r\n", 1),
            ("0;\n\r\n", 2),
            ("5\r\nhello\n0\r\n\r\n", 8),
            ("5\r\nhello\r0\r\n\r\n", 9),
            ("x\r\n", 0),
            ("\r\n", 0),
            ("10000000000000000\r\n", 16),
        ] {
            assert_eq!(refused_at(bad), Some(at), "{bad:?}");
        }
    }

    #[test]
    fn rfc9112_2_2_heads_end_at_their_first_empty_line() {
        for text in [
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "\r\n\nGET / HTTP/1.1\nHost: a\n\n",
            "GET / HTTP/1.1\r\nHost: a\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\r\nX: \r\n\r\n",
        ] {
            let twice = text.repeat(2);
            let mut framing = Framing::default();
            assert_eq!(framing.scan(twice.as_bytes()), text.len(), "{text:?}");
            assert!(framing.is_waiting());
            assert_eq!(framing.scan(b"G"), 0);
            framing.head_read(Some(3));
            assert_eq!(framing.scan(twice.as_bytes()), text.len(), "{text:?}");
        }
    }

    #[test]
    fn a_tunnel_has_no_requests() {
        let mut framing = Framing::default();
        framing.scan(b"GET / HTTP/1.1\r\n\r\n");
        framing.become_tunnel();
        let bytes = b"\n\n\r\n\r\n0\r\n\n";
        assert_eq!(framing.scan(bytes), bytes.len());
    }

    #[test]
    fn a_head_that_the_library_finds_elsewhere_is_malformed() {
        let mut framing = Framing::default();
        framing.scan(b"GET / HTTP/1.1\r\n");
        framing.head_read(Some(0));
        assert!(framing.is_malformed());
    }

    /// A request: whether its body is chunked, its chunks, and the number of trailer fields.
    fn request() -> impl Strategy<Value = (bool, Vec<Vec<u8>>, usize)> {
        let chunk = prop::collection::vec(prop::sample::select(&b"\r\n0a"[..]), 1..40);
        (any::<bool>(), prop::collection::vec(chunk, 0..4), 0usize..3)
    }

    proptest! {
        #[test]
        fn requests_are_separated_however_they_are_split(
            requests in prop::collection::vec(request(), 1..6),
            piece in 1usize..100,
        ) {
            let (mut bytes, mut bodies) = (Vec::new(), Vec::new());
            for (chunked, chunks, trailers) in &requests {
                bytes.extend(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
                let body = chunks.concat();
                if *chunked {
                    for chunk in chunks {
                        bytes.extend(format!("{:x};e\r\n", chunk.len()).bytes());
                        bytes.extend([chunk, &b"\r\n"[..]].concat());
                    }
                    bytes.extend(format!("0\r\n{}\r\n", "X: y\r\n".repeat(*trailers)).bytes());
                } else {
                    bytes.extend(&body);
                }
                bodies.push((!*chunked).then_some(body.len() as u64));
            }
            let (passed, heads, framing) = pass(&bytes, piece, &bodies);
            prop_assert_eq!((passed, heads), (bytes.len(), requests.len()));
            prop_assert_eq!(framing.stage, Stage::Start);
        }

        #[test]
        fn any_bytes_are_scanned_alike_however_they_are_split(
            bytes in prop::collection::vec(prop::sample::select(&b"\r\n01a;: X"[..]), 0..200),
            bodies in prop::collection::vec(prop::option::of(0u64..30), 0..5),
            piece in 1usize..50,
        ) {
            let (whole, cut) = (pass(&bytes, bytes.len().max(1), &bodies), pass(&bytes, piece, &bodies));
            prop_assert_eq!((whole.0, whole.1, whole.2.stage), (cut.0, cut.1, cut.2.stage));
        }
    }
}

#[cfg(test)]
mod stream_tests {
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

    /// Sends these bytes to the library in two parts. Returns the requests with their bodies, and
    /// the statuses of the responses.
    async fn read(bytes: &[u8], split: usize) -> (Vec<String>, Vec<u16>) {
        let (mut client, server) = duplex(1 << 16);
        let requests = RequestFraming::default();
        let stream = FramedStream::new(server, requests.clone());
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let log = seen.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            requests.head_read(request.body().size_hint().exact());
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
            response.split("HTTP/1.1 ").skip(1).map(|rest| rest[..3].parse().unwrap()).collect();
        let seen = std::mem::take(&mut *seen.lock().unwrap());
        (seen, statuses)
    }

    const NEXT: &str = "GET /next HTTP/1.1\r\nHost: h\r\n\r\n";
    const LAST: &str = "GET /last HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";

    /// Sends two more requests after these bytes, split at every offset.
    async fn expect(bytes: &str, bodies: &[&str], statuses: &[u16]) {
        let bytes = format!("{bytes}{NEXT}{LAST}");
        for split in 0..=bytes.len() {
            let (seen, responses) = read(bytes.as_bytes(), split).await;
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
            expect(&post(&format!("5\r\nhello\r\n0\r\n{trailers}")), &[], &[400]).await;
        }
        expect(&post("5\r\nhello\n0\r\n\r\n"), &[], &[400]).await;
    }

    #[tokio::test]
    async fn well_formed_requests_are_unchanged() {
        let all = ["/a hello", "/next ", "/last "];
        for body in ["5\r\nhello\r\n0\r\n\r\n", "2\r\nhe\r\n3;x=y\r\nllo\r\n00\r\nX: a\r\n\r\n"] {
            expect(&post(body), &all, &[200, 200, 200]).await;
        }
        let length = "\r\nPOST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello";
        expect(length, &all, &[200, 200, 200]).await;
        expect("GET /a HTTP/1.1\nHost: h\n\n", &["/a ", "/next ", "/last "], &[200; 3]).await;
    }

    #[tokio::test]
    async fn bytes_of_a_tunnel_are_not_requests() {
        let (mut client, server) = duplex(1 << 16);
        let requests = RequestFraming::default();
        let mut stream = FramedStream::new(server, requests.clone());
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
        requests.become_tunnel();
        assert_eq!(reading.await.unwrap(), "\n\n\r\n\r\n");
    }
}
