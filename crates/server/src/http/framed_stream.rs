//! The stream of an HTTP/1.1 connection as the HTTP library sees it: one request at a time, and no
//! chunked body that others might read differently ([`Framing`]).

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::http::h1_framing::Framing;

/// A stream whose reader gets a request's head, then what belongs to its body, then the next head.
pub(crate) struct FramedStream<S> {
    stream: S,
    requests: RequestFraming,
    /// What was read and may not be given yet.
    held: Bytes,
}

/// What the reader of a [`FramedStream`] says about the heads that it has read. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct RequestFraming(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    framing: Framing,
    /// Of a reader that asks for more before it has said what body its head has.
    reader: Option<Waker>,
}

/// In a chunked body no reader takes this for anything, wherever it stands. So the reader refuses
/// the request itself, in its own time, as it refuses any body that is malformed. An error would
/// end the connection before a response.
const NO_BODY: Bytes = Bytes::from_static(b"\r\r");

impl<S> FramedStream<S> {
    pub(crate) fn new(stream: S, requests: RequestFraming) -> Self {
        Self { stream, requests, held: Bytes::new() }
    }
}

impl RequestFraming {
    /// A head was read, whose body has this length or, if it has none, comes in chunks.
    pub(crate) fn head_read(&self, length: Option<u64>) {
        self.change(|framing| framing.head_read(length));
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
            if this.held.is_empty() {
                ready!(Pin::new(&mut this.stream).poll_read(cx, buffer))?;
                let read = &buffer.filled()[before..];
                let passed = state.framing.scan(read);
                this.held = Bytes::copy_from_slice(&read[passed..]);
                buffer.set_filled(before + passed);
            } else {
                let room = this.held.len().min(buffer.remaining());
                let passed = state.framing.scan(&this.held[..room]);
                buffer.put_slice(&this.held.split_to(passed));
            }
            if !state.framing.is_malformed() {
                return Poll::Ready(Ok(()));
            }
            this.held = NO_BODY;
        }
        // Behind that it is as if the client had closed.
        let room = this.held.len().min(buffer.remaining());
        buffer.put_slice(&this.held.split_to(room));
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FramedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
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

    /// What the library makes of these bytes, which come in two parts: requests and their bodies, and
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
                let mut answer = Response::new(Full::<Bytes>::default());
                match body {
                    Ok(body) => {
                        let body = String::from_utf8(body.to_bytes().to_vec()).unwrap();
                        log.lock().unwrap().push(format!("{} {body}", head.uri));
                    }
                    Err(_) => *answer.status_mut() = StatusCode::BAD_REQUEST,
                }
                Ok::<_, Infallible>(answer)
            }
        });
        let serving =
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        for part in [&bytes[..split], &bytes[split..]] {
            // A server that has had enough closes.
            let _ = client.write_all(part).await;
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        }
        let mut answer = String::new();
        let reading = client.read_to_string(&mut answer);
        timeout(Duration::from_secs(30), reading).await.expect("the connection ends").unwrap();
        let _ = serving.await.unwrap();
        let statuses =
            answer.split("HTTP/1.1 ").skip(1).map(|rest| rest[..3].parse().unwrap()).collect();
        let seen = std::mem::take(&mut *seen.lock().unwrap());
        (seen, statuses)
    }

    const NEXT: &str = "GET /next HTTP/1.1\r\nHost: h\r\n\r\n";
    const LAST: &str = "GET /last HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";

    /// Two more requests come behind these bytes, however all of it is cut.
    async fn expect(bytes: &str, bodies: &[&str], statuses: &[u16]) {
        let bytes = format!("{bytes}{NEXT}{LAST}");
        for split in 0..=bytes.len() {
            let (seen, answers) = read(bytes.as_bytes(), split).await;
            assert_eq!(seen, bodies, "{bytes:?}, split at {split}");
            assert_eq!(answers, statuses, "{bytes:?}, split at {split}");
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
    async fn requests_of_good_form_stay_what_they_are() {
        let all = ["/a hello", "/next ", "/last "];
        for body in ["5\r\nhello\r\n0\r\n\r\n", "2\r\nhe\r\n3;x=y\r\nllo\r\n00\r\nX: a\r\n\r\n"] {
            expect(&post(body), &all, &[200, 200, 200]).await;
        }
        let length = "\r\nPOST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello";
        expect(length, &all, &[200, 200, 200]).await;
        expect("GET /a HTTP/1.1\nHost: h\n\n", &["/a ", "/next ", "/last "], &[200; 3]).await;
    }

    #[tokio::test]
    async fn a_tunnels_bytes_are_no_requests() {
        let (mut client, server) = duplex(1 << 16);
        let requests = RequestFraming::default();
        let mut stream = FramedStream::new(server, requests.clone());
        let head = "GET / HTTP/1.1\r\n\r\n";
        client.write_all(format!("{head}\n\n\r\n\r\n").as_bytes()).await.unwrap();
        drop(client);
        let mut given = String::new();
        stream.read_exact(&mut vec![0; head.len()]).await.unwrap();
        let reading = tokio::spawn(async move {
            stream.read_to_string(&mut given).await.unwrap();
            given
        });
        tokio::task::yield_now().await;
        requests.become_tunnel();
        assert_eq!(reading.await.unwrap(), "\n\n\r\n\r\n");
    }
}
