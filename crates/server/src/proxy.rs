//! The reverse proxy: requests to one HTTP upstream, marked while they are early.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, SizeHint};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::sleep_until;
use tracing::warn;
use url::Url;

use crate::ServerError;
use crate::connection::Connection;
use crate::content::{AnswerBody, BodyError, empty, plain};
use crate::trace::UpstreamNotes;

/// Forwards requests over pooled connections.
///
/// - `Host` stays what the client asked for, as applications build links and pick sites by it.
/// - `X-Forwarded-For` and `X-Forwarded-Proto` are set, not extended: this server is the edge, and
///   what a client says about itself there is no evidence.
/// - Hop-by-hop fields are removed both ways (RFC 9110 section 7.6.1), upgrades with them.
pub(crate) struct Proxy {
    client: Client<HttpConnector, AnswerBody>,
    authority: Authority,
    timeout: Duration,
}

/// On whose behalf a request is forwarded, and when.
pub(crate) struct Forwarding<'a> {
    pub(crate) connection: &'a Connection,
    /// Whether the request came early and its connection's handshake is incomplete now.
    pub(crate) before_completion: bool,
    /// Where the upstream's work is noted.
    pub(crate) upstream: UpstreamNotes,
    /// The field by which the upstream goes on with the request's trace.
    pub(crate) traceparent: Option<String>,
}

/// The header of RFC 8470 section 5.1.
const EARLY_DATA: HeaderName = HeaderName::from_static("early-data");

impl Proxy {
    /// A proxy for `http://HOST:PORT`.
    ///
    /// # Errors
    /// [`ServerError::Upstream`].
    pub(crate) fn new(url: &str, timeout: Duration) -> Result<Self, ServerError> {
        let authority = authority(url)
            .map_err(|reason| ServerError::Upstream { url: url.to_owned(), reason })?;
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(timeout.min(CONNECT_TIMEOUT)));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE)
            .build(connector);
        Ok(Self { client, authority, timeout })
    }

    /// Forwards a request. `None`: the client went away in the middle.
    pub(crate) async fn forward<B>(
        &self,
        request: Request<B>,
        forwarding: Forwarding<'_>,
    ) -> Option<Response<AnswerBody>>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BodyError>,
    {
        let had_early_data = request.headers().contains_key(EARLY_DATA);
        let early = forwarding.before_completion;
        let Some((mut parts, body)) = self.translate(request, forwarding.connection) else {
            return Some(plain(StatusCode::BAD_REQUEST));
        };
        // RFC 8470 section 5.1: set when forwarding before the handshake is complete, never
        // removed, and one field of value 1 whatever the client made of it.
        if let (Some(tracer), Some(traceparent)) =
            (&forwarding.connection.server.tracer, &forwarding.traceparent)
        {
            tracer.pass_on(traceparent, &mut parts.headers);
        }
        if early || had_early_data {
            parts.headers.insert(EARLY_DATA, HeaderValue::from_static("1"));
        }
        let replayable = body.is_end_stream();
        let again = (early && !had_early_data && replayable).then(|| parts.clone());
        let answer = self.send(Request::from_parts(parts, body), &forwarding.upstream).await;
        match again {
            // RFC 8470 section 5.2: a 425 to a request that only we marked may be retried, after
            // the handshake.
            Some(mut parts) if answer.status() == StatusCode::TOO_EARLY => {
                if !forwarding.connection.handshake_completes().await {
                    return None;
                }
                parts.headers.remove(EARLY_DATA);
                Some(self.send(Request::from_parts(parts, empty()), &forwarding.upstream).await)
            }
            _ => Some(answer),
        }
    }

    async fn send(
        &self,
        request: Request<AnswerBody>,
        notes: &UpstreamNotes,
    ) -> Response<AnswerBody> {
        let began = Instant::now();
        let answer = self.answer(request).await;
        let status = answer.as_ref().ok().map(|answer| answer.status().as_u16());
        notes.attempt(self.authority.as_str(), began, status);
        answer.unwrap_or_else(plain)
    }

    async fn answer(
        &self,
        request: Request<AnswerBody>,
    ) -> Result<Response<AnswerBody>, StatusCode> {
        let progress = Progress::default();
        let request = request.map(|body| Watched { body, progress: progress.clone() });
        let answer = self.client.request(request.map(BodyExt::boxed_unsync));
        tokio::select! {
            answer = answer => match answer {
                Ok(mut answer) => {
                    remove_hop_by_hop(answer.headers_mut());
                    Ok(answer.map(|body| body.map_err(BodyError::from).boxed_unsync()))
                }
                Err(error) => {
                    let cause = std::error::Error::source(&error);
                    let cause = cause.map_or_else(|| error.to_string(), ToString::to_string);
                    warn!("upstream {}: {cause}", self.authority);
                    Err(StatusCode::BAD_GATEWAY)
                }
            },
            () = progress.stalls_for(self.timeout) => {
                warn!("upstream {}: no answer within {:?}", self.authority, self.timeout);
                Err(StatusCode::GATEWAY_TIMEOUT)
            }
        }
    }

    /// The request as the upstream is to see it. `None`: it names no host or target.
    fn translate<B>(
        &self,
        request: Request<B>,
        connection: &Connection,
    ) -> Option<(http::request::Parts, AnswerBody)>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BodyError>,
    {
        let (mut parts, body) = request.into_parts();
        let host = match (parts.uri.authority(), parts.headers.get(header::HOST)) {
            (Some(authority), _) => HeaderValue::from_str(authority.as_str()).ok()?,
            (None, Some(host)) => host.clone(),
            (None, None) => HeaderValue::from_str(self.authority.as_str()).ok()?,
        };
        let via = via(parts.version);
        let target = parts.uri.path_and_query().cloned();
        parts.uri = Uri::builder()
            .scheme(Scheme::HTTP)
            .authority(self.authority.clone())
            .path_and_query(target.unwrap_or(PathAndQuery::from_static("/")))
            .build()
            .ok()?;
        parts.version = http::Version::HTTP_11;
        remove_hop_by_hop(&mut parts.headers);
        // Our side answers 100 (Continue) by itself when the upstream reads the body.
        parts.headers.remove(header::EXPECT);
        join_cookies(&mut parts.headers);
        parts.headers.insert(header::HOST, host);
        parts.headers.append(header::VIA, via);
        set_forwarded(&mut parts.headers, connection.client);
        Some((parts, body.map_err(Into::into).boxed_unsync()))
    }
}

/// When a request's body last went on; an upload may take long, a standstill may not.
#[derive(Clone)]
struct Progress(Arc<Mutex<Instant>>);

/// A request's body that notes its progress.
struct Watched {
    body: AnswerBody,
    progress: Progress,
}

impl Progress {
    async fn stalls_for(&self, limit: Duration) {
        loop {
            let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if last.elapsed() >= limit {
                return;
            }
            sleep_until((last + limit).into()).await;
        }
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }
}

impl Body for Watched {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        *self.progress.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn authority(url: &str) -> Result<Authority, String> {
    let parsed = Url::parse(url).map_err(|error| error.to_string())?;
    if parsed.scheme() != "http" {
        return Err(format!("{} is not supported towards an upstream", parsed.scheme()));
    }
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return Err("it contains a user name or password".to_owned());
    }
    if parsed.path() != "/" || parsed.query().is_some() || parsed.fragment().is_some() {
        return Err("it contains a path, query or fragment, but paths are forwarded as they come"
            .to_owned());
    }
    let host = parsed.host_str().ok_or("it names no host")?;
    let port = parsed.port_or_known_default().unwrap_or(80);
    format!("{host}:{port}").parse().map_err(|_| "its host is none".to_owned())
}

/// Removes what concerns one connection only (RFC 9110 section 7.6.1).
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        // RFC 8470 section 5.1: never among the connection's options. And nobody may have the
        // fields removed by which the upstream tells requests and sites apart.
        .filter(|name| *name != EARLY_DATA && *name != header::HOST)
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in [
        "connection",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ] {
        headers.remove(name);
    }
}

/// HTTP/2 clients may split cookies over several fields; HTTP/1.1 wants one (RFC 9113 section
/// 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let cookies: Vec<_> = headers.get_all(header::COOKIE).iter().map(|c| c.as_bytes()).collect();
    if cookies.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..]))
    {
        headers.insert(header::COOKIE, joined);
    }
}

fn set_forwarded(headers: &mut HeaderMap, client: SocketAddr) {
    // An IPv4 client of a dual-stack socket is still an IPv4 client.
    let address: IpAddr = client.ip().to_canonical();
    let address = HeaderValue::from_str(&address.to_string()).expect("an address is visible ASCII");
    headers.remove(header::FORWARDED);
    headers.insert("x-forwarded-for", address);
    headers.insert("x-forwarded-proto", HeaderValue::from_static("https"));
}

/// RFC 9110 section 7.6.3.
fn via(version: http::Version) -> HeaderValue {
    HeaderValue::from_static(match version {
        http::Version::HTTP_10 => "1.0 firstflight",
        http::Version::HTTP_2 => "2.0 firstflight",
        http::Version::HTTP_3 => "3.0 firstflight",
        _ => "1.1 firstflight",
    })
}

/// An upstream is near; one that takes longer to connect is down.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Shorter than what servers keep idle connections for (nginx 75 s, Node 5 s is shorter still, and
/// the pool finds those closed), so that few requests meet a connection that is just closing.
const POOL_IDLE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstreams_that_cannot_be_are_refused_with_the_reason() {
        for (url, word) in [
            ("localhost:80", "not supported"),
            ("https://localhost", "https"),
            ("http://", "host"),
            ("http://localhost/base", "path"),
            ("http://user@localhost", "user name"),
            ("nonsense", "relative URL"),
        ] {
            let reason = authority(url).unwrap_err();
            assert!(reason.contains(word), "{url}: {reason}");
        }
        assert_eq!(authority("http://[::1]:8080").unwrap(), "[::1]:8080");
        assert_eq!(authority("http://localhost/").unwrap(), "localhost:80");
    }

    #[test]
    fn rfc9110_7_6_1_connection_options_are_removed_but_not_all_that_a_client_names() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, x-hop"),
            ("connection", "early-data, host"),
            ("x-hop", "1"),
            ("te", "trailers"),
            ("early-data", "1"),
            ("host", "h"),
            ("accept", "*/*"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        remove_hop_by_hop(&mut headers);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["accept", "early-data", "host"]);
    }

    #[test]
    fn rfc9113_8_2_3_cookies_are_joined() {
        let mut headers = HeaderMap::new();
        headers.append(header::COOKIE, HeaderValue::from_static("a=1"));
        headers.append(header::COOKIE, HeaderValue::from_static("b=2"));
        join_cookies(&mut headers);
        assert_eq!(headers.get_all(header::COOKIE).iter().collect::<Vec<_>>(), ["a=1; b=2"]);
    }
}
