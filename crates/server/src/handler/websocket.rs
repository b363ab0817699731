//! WebSocket: turns a request into a tunnel to an upstream over HTTP/1.1. The client opens it with
//! an upgrade (RFC 6455) or, over HTTP/2, with an extended CONNECT (RFC 8441).

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{
    Extensions, HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version,
    header, request,
};
use hyper::ext::Protocol;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use sha1::{Digest, Sha1};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::time::sleep_until;
use tracing::debug;

use crate::context::ResponseBody;
use crate::handler::response::{empty, plain};
use crate::observe::request::RequestRecord;

/// How a client opens a WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WebSocket {
    /// RFC 6455 section 4.1.
    Upgrade,
    /// RFC 8441 section 5.
    Connect,
}

/// The kind of WebSocket that a request opens, if it does. Other protocols are ignored: an upgrade
/// to `h2c` would bypass all checks of later requests.
pub(crate) fn requested<B>(request: &Request<B>) -> Option<WebSocket> {
    let headers = request.headers();
    match (request.version(), request.method()) {
        (Version::HTTP_11, &Method::GET) => {
            let matches = has_token(headers, &header::UPGRADE, "websocket")
                && has_token(headers, &header::CONNECTION, "upgrade");
            matches.then_some(WebSocket::Upgrade)
        }
        (Version::HTTP_2, &Method::CONNECT) => {
            let protocol = request.extensions().get::<Protocol>()?;
            protocol.as_str().eq_ignore_ascii_case("websocket").then_some(WebSocket::Connect)
        }
        _ => None,
    }
}

/// Turns a request without hop-by-hop fields into the request to the upstream. Returns the
/// `Sec-WebSocket-Accept` to expect if the key was generated here.
pub(crate) fn prepare_request(head: &mut request::Parts, kind: WebSocket) -> Option<HeaderValue> {
    head.method = Method::GET;
    let headers = &mut head.headers;
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.remove(header::CONTENT_LENGTH);
    // A tunnel has no trailers, and `TE` would need another connection option (RFC 9110 section
    // 10.1.4).
    headers.remove(header::TE);
    if kind == WebSocket::Upgrade {
        return None;
    }
    // RFC 8441 section 5: HTTP/2 has neither key nor accept.
    let mut random = [0; 16];
    getrandom::fill(&mut random).expect("the system gives random bytes");
    let key = STANDARD.encode(random);
    let accept = accept(&key);
    headers.insert(header::SEC_WEBSOCKET_KEY, header_value(&key));
    headers.insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
    Some(accept)
}

/// The response to the client, and the tunnel if the upstream has accepted it. `expected`: see
/// [`prepare_request`].
pub(crate) fn respond(
    mut response: Response<ResponseBody>,
    kind: WebSocket,
    client: OnUpgrade,
    expected: Option<&HeaderValue>,
) -> (Response<ResponseBody>, Option<Tunnel>) {
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        // A success would tell the client of a CONNECT that the tunnel is open.
        let misleading = kind == WebSocket::Connect && response.status().is_success();
        return (if misleading { plain(StatusCode::BAD_GATEWAY) } else { response }, None);
    }
    let headers = response.headers();
    let agreed = has_token(headers, &header::UPGRADE, "websocket")
        && expected.is_none_or(|accept| headers.get(header::SEC_WEBSOCKET_ACCEPT) == Some(accept));
    if !agreed {
        return (plain(StatusCode::BAD_GATEWAY), None);
    }
    let upstream = hyper::upgrade::on(&mut response);
    let (mut head, body) = response.into_parts();
    head.extensions = Extensions::new();
    for name in [header::CONNECTION, header::UPGRADE, header::CONTENT_LENGTH] {
        head.headers.remove(name);
    }
    match kind {
        WebSocket::Upgrade => {
            head.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
            head.headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        }
        WebSocket::Connect => {
            head.status = StatusCode::OK;
            head.headers.remove(header::SEC_WEBSOCKET_ACCEPT);
        }
    }
    // The body holds the permit of the upstream connection.
    (Response::from_parts(head, empty()), Some(Tunnel::new(client, upstream, body)))
}

/// Carries a tunnel from the handler to the connection's task, in the response's extensions.
#[derive(Clone)]
pub(crate) struct PendingTunnel(Arc<Mutex<Option<Tunnel>>>);

impl PendingTunnel {
    pub(crate) fn new(tunnel: Tunnel) -> Self {
        Self(Arc::new(Mutex::new(Some(tunnel))))
    }

    /// Takes the tunnel out of a response.
    pub(crate) fn take<B>(response: &mut Response<B>) -> Option<Tunnel> {
        let pending = response.extensions_mut().remove::<Self>()?;
        pending.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Whether a comma-separated field contains a token, ignoring case.
fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(','))
        .any(|member| member.trim().eq_ignore_ascii_case(token))
}

/// RFC 6455 section 4.2.2, item 5.4.
fn accept(key: &str) -> HeaderValue {
    let digest = Sha1::new().chain_update(key).chain_update(GUID).finalize();
    header_value(&STANDARD.encode(digest))
}

fn header_value(base64: &str) -> HeaderValue {
    HeaderValue::from_str(base64).expect("base64 is visible ASCII")
}

/// RFC 6455 section 1.3.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// A tunnel whose ends are not ready yet: the client's end is ready once the response is written.
pub(crate) struct Tunnel {
    client: OnUpgrade,
    upstream: OnUpgrade,
    /// Holds the permit of the upstream connection.
    permit: ResponseBody,
    idle: Duration,
}

/// One end of a tunnel, which counts the bytes read from it.
struct TunnelEnd {
    io: TokioIo<Upgraded>,
    bytes_read: u64,
    /// Whether it has closed its sending direction.
    ended: bool,
    last: LastActivity,
}

/// When bytes were last read from either end.
#[derive(Clone)]
struct LastActivity(Arc<Mutex<Instant>>);

impl Tunnel {
    pub(crate) fn new(client: OnUpgrade, upstream: OnUpgrade, permit: ResponseBody) -> Self {
        Self { client, upstream, permit, idle: Duration::MAX }
    }

    /// Ends the tunnel when no bytes have been read for this long.
    pub(crate) fn with_idle_timeout(self, idle: Duration) -> Self {
        Self { idle, ..self }
    }

    /// Copies bytes until both ends have closed, or one fails. The request lasts as long.
    pub(crate) async fn run(self, mut record: RequestRecord) {
        let Self { client, upstream, permit, idle } = self;
        let (client, upstream) = match tokio::try_join!(client, upstream) {
            Ok(both) => both,
            Err(error) => return debug!("a tunnel could not be opened: {error}"),
        };
        let last = LastActivity(Arc::new(Mutex::new(Instant::now())));
        let end = |upgraded| {
            let io = TokioIo::new(upgraded);
            TunnelEnd { io, bytes_read: 0, ended: false, last: last.clone() }
        };
        let (mut client, mut upstream) = (end(client), end(upstream));
        let copied = tokio::select! {
            copied = copy_bidirectional(&mut client, &mut upstream) => copied.map(|_| ()),
            () = last.wait_until_idle(idle) => Err(io::ErrorKind::TimedOut.into()),
        };
        record.add_bytes(upstream.bytes_read);
        match copied {
            // After the upstream has closed, a client may disconnect without closing the tunnel.
            _ if upstream.ended => record.note_complete(),
            Ok(()) => record.note_complete(),
            Err(error) => debug!("a tunnel broke off: {error}"),
        }
        drop(permit);
    }
}

impl LastActivity {
    async fn wait_until_idle(&self, limit: Duration) {
        loop {
            let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match last.checked_add(limit) {
                None => return std::future::pending().await,
                Some(end) if end <= Instant::now() => return,
                Some(end) => sleep_until(end.into()).await,
            }
        }
    }
}

impl AsyncRead for TunnelEnd {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        let count = buffer.filled().len() - before;
        self.bytes_read += count as u64;
        self.ended |= count == 0;
        *self.last.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TunnelEnd {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(version: Version, method: &str, fields: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::builder().version(version).method(method);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    #[test]
    fn rfc6455_4_1_an_upgrade_requests_a_websocket() {
        let both = [("connection", "keep-alive, Upgrade"), ("upgrade", "WebSocket")];
        let requested_websocket =
            |version, method, fields: &[_]| requested(&request(version, method, fields));
        assert_eq!(requested_websocket(Version::HTTP_11, "GET", &both), Some(WebSocket::Upgrade));
        for (version, method, fields) in [
            (Version::HTTP_10, "GET", &both[..]),
            (Version::HTTP_2, "GET", &both),
            (Version::HTTP_3, "GET", &both),
            (Version::HTTP_11, "POST", &both),
            (Version::HTTP_11, "GET", &both[..1]),
            (Version::HTTP_11, "GET", &both[1..]),
            (Version::HTTP_11, "GET", &[("connection", "upgrade"), ("upgrade", "h2c")]),
            (Version::HTTP_11, "CONNECT", &both),
            (Version::HTTP_2, "CONNECT", &[]),
        ] {
            assert_eq!(
                requested_websocket(version, method, fields),
                None,
                "{version:?} {method} {fields:?}"
            );
        }
    }

    #[test]
    fn rfc8441_5_an_extended_connect_requests_a_websocket() {
        for (protocol, expected) in [("websocket", Some(WebSocket::Connect)), ("connect-udp", None)]
        {
            let mut request = request(Version::HTTP_2, "CONNECT", &[]);
            request.extensions_mut().insert(Protocol::from(protocol));
            assert_eq!(requested(&request), expected);
        }
    }

    #[test]
    fn rfc9110_10_1_4_a_tunnel_has_no_trailers() {
        for kind in [WebSocket::Upgrade, WebSocket::Connect] {
            let (mut head, ()) =
                request(Version::HTTP_2, "GET", &[("te", "trailers")]).into_parts();
            prepare_request(&mut head, kind);
            assert!(!head.headers.contains_key(header::TE), "{kind:?}");
        }
    }

    #[test]
    fn rfc6455_1_3_the_accept_value_of_the_example() {
        assert_eq!(accept("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn rfc8441_5_the_server_generates_the_key_and_checks_the_accept() {
        let (mut head, ()) = request(Version::HTTP_2, "CONNECT", &[]).into_parts();
        let expected = prepare_request(&mut head, WebSocket::Connect).unwrap();
        assert_eq!(head.method, Method::GET);
        assert_eq!(expected, accept(head.headers[header::SEC_WEBSOCKET_KEY].to_str().unwrap()));
        let respond_with = |accept: &HeaderValue| {
            let upgrade = Response::builder().status(101).header("upgrade", "websocket");
            let response = upgrade.header("sec-websocket-accept", accept).body(empty()).unwrap();
            let client = hyper::upgrade::on(request(Version::HTTP_2, "CONNECT", &[]));
            let (response, tunnel) = respond(response, WebSocket::Connect, client, Some(&expected));
            (response.status().as_u16(), tunnel.is_some(), response.headers().len())
        };
        assert_eq!(respond_with(&expected), (200, true, 0));
        assert_eq!(respond_with(&HeaderValue::from_static("other")).0, 502);
    }
}
