//! The reverse proxy: forwards requests to a pool of HTTP servers, and marks early ones.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use firstflight_config::{Content, ServerConfig};
use firstflight_telemetry::metrics::{Metrics, TooEarlyBy, UpstreamReading, UpstreamServerReading};
use firstflight_upstream::{
    Attempt, Observer, Pool, PoolStatus, SendError, SendOptions, ServerHealth, ServerStatus,
};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::BodyExt;
use tokio::sync::mpsc;
use tracing::warn;

use crate::ServerError;
use crate::context::{BodyError, ResponseBody};
use crate::handler::RequestContext;
use crate::handler::forwarded::{self, Forwarded};
use crate::handler::response::{empty, plain};
use crate::handler::rewrite::Rewrite;
use crate::handler::websocket::{self, PendingTunnel, WebSocket};
use crate::observe::request::RequestRecord;
use crate::observe::trace::UpstreamNotes;

/// Forwards requests to a pool.
/// - `Host` is kept, because applications build links and select sites by it.
/// - `X-Forwarded-For` and `X-Forwarded-Proto` are set, and the client's other statements about
///   itself are removed ([`forwarded`]).
/// - Hop-by-hop fields are removed in both directions (RFC 9110 section 7.6.1), including upgrades.
#[derive(Clone)]
pub(crate) struct Proxy {
    pool: Pool,
    rewrite: Option<Rewrite>,
    /// Whether Early Hints (RFC 8297) are passed on.
    early_hints: bool,
}

/// RFC 8470 section 5.1.
const EARLY_DATA: HeaderName = HeaderName::from_static("early-data");

impl Proxy {
    /// Forwards to this pool. `rewrite`: replaces the route's path. `early_hints`: whether they are
    /// passed on.
    pub(crate) fn new(pool: Pool, rewrite: Option<Rewrite>, early_hints: bool) -> Self {
        Self { pool, rewrite, early_hints }
    }

    /// Whether paths are rewritten.
    pub(crate) fn rewrites(&self) -> bool {
        self.rewrite.is_some()
    }

    /// Forwards a request. Returns `None` if the client has disconnected.
    pub(crate) async fn forward<B>(
        &self,
        request: Request<B>,
        context: &RequestContext<'_>,
    ) -> Option<Response<ResponseBody>>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BodyError>,
    {
        if !context.record.reserve_upstream_memory() {
            return Some(plain(StatusCode::SERVICE_UNAVAILABLE));
        }
        if let Some(kind) = context.websocket {
            return Some(self.open_tunnel(request, kind, context).await);
        }
        let mut request = request;
        if let Some(status) = terminal_status(&mut request) {
            return Some(plain(status));
        }
        let had_early_data = request.headers().contains_key(EARLY_DATA);
        let early = context.before_completion;
        let Some((mut parts, body)) = self.translate(request, context) else {
            return Some(plain(StatusCode::BAD_REQUEST));
        };
        set_traceparent(&mut parts.headers, context);
        context.claims.set_flight_field(&mut parts.headers);
        // RFC 8470 section 5.1: set when forwarding before the handshake is complete, never
        // removed, and always a single field of value 1.
        if early || had_early_data {
            parts.headers.insert(EARLY_DATA, HeaderValue::from_static("1"));
        }
        // RFC 8470 section 5.2: the proxy may retry after the handshake if it marked the request
        // itself and got 425. Not while the request holds names: if the handshake never completes,
        // they must be free for the client's own retry.
        let may_retry = early && !had_early_data && body.is_end_stream();
        let retry = (may_retry && !context.claims.hold_names()).then(|| parts.clone());
        let may_be_executed = AtomicBool::new(false);
        let request = Request::from_parts(parts, body);
        let mut response = self.send(request, context, &may_be_executed).await;
        if let Some(mut parts) = retry
            && response.status() == StatusCode::TOO_EARLY
        {
            if !context.handshake.completes().await {
                return None;
            }
            parts.headers.remove(EARLY_DATA);
            let request = Request::from_parts(parts, empty());
            response = self.send(request, context, &may_be_executed).await;
        }
        Some(response)
    }

    /// Requests a WebSocket from the upstream.
    async fn open_tunnel<B>(
        &self,
        mut request: Request<B>,
        kind: WebSocket,
        context: &RequestContext<'_>,
    ) -> Response<ResponseBody>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BodyError>,
    {
        let client = hyper::upgrade::on(&mut request);
        let Some((mut head, body)) = self.translate(request, context) else {
            return plain(StatusCode::BAD_REQUEST);
        };
        if !body.is_end_stream() {
            // Servers would disagree about which of its bytes belong to the tunnel.
            return plain(StatusCode::BAD_REQUEST);
        }
        set_traceparent(&mut head.headers, context);
        context.claims.set_flight_field(&mut head.headers);
        let expected = websocket::prepare_request(&mut head, kind);
        let may_be_executed = AtomicBool::new(false);
        let request = Request::from_parts(head, empty());
        let response = match self.send_to_pool(request, context, &may_be_executed).await {
            Ok(response) => response,
            Err(response) => return response,
        };
        let (mut response, tunnel) = websocket::respond(response, kind, client, expected.as_ref());
        match tunnel {
            Some(tunnel) => {
                let tunnel = tunnel.with_idle_timeout(self.pool.config().tunnel_timeout);
                response.extensions_mut().insert(PendingTunnel::new(tunnel));
            }
            None => remove_connection_fields(&mut response),
        }
        response
    }

    /// The request as the upstream receives it. Returns `None` if its host is invalid.
    fn translate<B>(
        &self,
        request: Request<B>,
        context: &RequestContext<'_>,
    ) -> Option<(http::request::Parts, ResponseBody)>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BodyError>,
    {
        let (mut parts, body) = request.into_parts();
        if let Some(authority) = parts.uri.authority() {
            let host = HeaderValue::from_str(authority.as_str()).ok()?;
            parts.headers.insert(header::HOST, host);
        }
        let via = via(parts.version);
        let target = match &self.rewrite {
            // Only paths of absolute form; `*` of OPTIONS is for the whole server.
            Some(rewrite) if parts.uri.path().starts_with('/') => {
                Some(rewrite.apply(parts.uri.path(), parts.uri.query()).try_into().ok()?)
            }
            _ => parts.uri.path_and_query().cloned(),
        };
        parts.uri = target.unwrap_or(PathAndQuery::from_static("/")).into();
        let trailers = takes_trailers(&parts.headers);
        remove_hop_by_hop(&mut parts.headers);
        if trailers {
            parts.headers.insert(header::TE, HeaderValue::from_static("trailers"));
        }
        // This server's HTTP library sends 100 (Continue) when the upstream reads the body.
        parts.headers.remove(header::EXPECT);
        match body.size_hint().exact() {
            // The body is then sent in chunks, which must not be combined with a length (RFC 9112
            // section 6.2).
            None => {
                parts.headers.remove(header::CONTENT_LENGTH);
            }
            // A single value, without leading zeros, which some servers read as octal.
            Some(length) if parts.headers.contains_key(header::CONTENT_LENGTH) => {
                parts.headers.insert(header::CONTENT_LENGTH, length.into());
            }
            Some(_) => {}
        }
        join_cookies(&mut parts.headers);
        parts.headers.append(header::VIA, via);
        forwarded::set(&mut parts.headers, context.record.client().ip());
        // Extensions belong to the library of the client's connection.
        parts.extensions = http::Extensions::new();
        let body = Forwarded::new(body, context.claims.flight_field().cloned());
        Some((parts, body.map_err(Into::into).boxed_unsync()))
    }

    async fn send(
        &self,
        request: Request<ResponseBody>,
        context: &RequestContext<'_>,
        may_be_executed: &AtomicBool,
    ) -> Response<ResponseBody> {
        match self.send_to_pool(request, context, may_be_executed).await {
            Ok(mut response) => {
                if response.status() == StatusCode::TOO_EARLY {
                    context
                        .connection
                        .observers
                        .metrics
                        .early_data
                        .too_early
                        .count(TooEarlyBy::Upstream);
                }
                remove_connection_fields(&mut response);
                response
            }
            Err(response) => response,
        }
    }

    /// `may_be_executed`: whether a server may have executed the request, now or when it was sent
    /// before.
    async fn send_to_pool(
        &self,
        mut request: Request<ResponseBody>,
        context: &RequestContext<'_>,
        may_be_executed: &AtomicBool,
    ) -> Result<Response<ResponseBody>, Response<ResponseBody>> {
        let RequestContext { connection, record, .. } = context;
        let (client, local) = (record.client(), connection.facts.local);
        let observer = &AttemptObserver {
            notes: &record.upstream_notes(),
            metrics: &connection.observers.metrics,
            may_be_executed,
            record,
        };
        let options = SendOptions { client, local, once: context.claims.hold_names(), observer };
        let sent = if let (true, Some(pass)) = (self.early_hints, context.early_hints) {
            let hints = receive_hints(&mut request);
            // Boxed, so that other requests do not take its memory.
            Box::pin(pass_hints(self.pool.send(request, &options), hints, pass)).await
        } else {
            self.pool.send(request, &options).await
        };
        sent.map_err(|error| {
            warn!("upstream {}: {error}", self.pool.name());
            plain(status(&error))
        })
    }
}

/// Subscribes to the Early Hints of the response (RFC 8297), which the library reports over
/// HTTP/1.1 only.
fn receive_hints(request: &mut Request<ResponseBody>) -> mpsc::Receiver<HeaderMap> {
    let (hints, received) = mpsc::channel(MAX_WAITING_HINTS);
    hyper::ext::on_informational(request, move |response| {
        if response.status() == StatusCode::EARLY_HINTS {
            // A proxy may drop hints: here those that come faster than they are passed on.
            let _ = hints.try_send(response.headers().clone());
        }
    });
    received
}

const MAX_WAITING_HINTS: usize = 4;

/// Passes hints on until there is a response.
async fn pass_hints<T>(
    sending: impl Future<Output = T>,
    mut hints: mpsc::Receiver<HeaderMap>,
    pass: &(dyn Fn(HeaderMap) + Send + Sync),
) -> T {
    let mut sending = pin!(sending);
    loop {
        tokio::select! {
            biased;
            sent = &mut sending => return sent,
            Some(hint) = hints.recv() => {
                pass(hint);
                // Lets the connection send the hint at the end of its turn.
                tokio::task::yield_now().await;
            }
        }
    }
}

/// The response's status after a failure.
fn status(error: &SendError) -> StatusCode {
    match error {
        SendError::NoServer | SendError::Busy(_) => StatusCode::SERVICE_UNAVAILABLE,
        SendError::Timeout(_) => StatusCode::GATEWAY_TIMEOUT,
        SendError::ClientStalled(_) => StatusCode::REQUEST_TIMEOUT,
        SendError::ClientGone | SendError::BadHost => StatusCode::BAD_REQUEST,
        SendError::NoUpgrade => StatusCode::NOT_IMPLEMENTED,
        _ => StatusCode::BAD_GATEWAY,
    }
}

/// The status if a request must not be forwarded. Otherwise decrements `Max-Forwards` (RFC 9110
/// section 7.6.2).
fn terminal_status<B>(request: &mut Request<B>) -> Option<StatusCode> {
    match *request.method() {
        // The response would repeat fields that are meant for the upstream only, and expose them to
        // scripts.
        Method::TRACE => Some(StatusCode::NOT_IMPLEMENTED),
        Method::OPTIONS => {
            let hops = request.headers_mut().get_mut(header::MAX_FORWARDS)?;
            match hops.to_str().ok()?.parse::<u32>().ok()?.checked_sub(1) {
                Some(remaining) => *hops = remaining.into(),
                None => return Some(StatusCode::NO_CONTENT),
            }
            None
        }
        _ => None,
    }
}

/// Continues the request's trace at the upstream.
fn set_traceparent(headers: &mut HeaderMap, context: &RequestContext<'_>) {
    if let (Some(tracer), Some(traceparent)) =
        (&context.connection.observers.tracer, &context.traceparent)
    {
        tracer.set_fields(traceparent, headers);
    }
}

/// Removes the fields of the upstream's connection from a response.
fn remove_connection_fields(response: &mut Response<ResponseBody>) {
    let chunked = response.headers().contains_key(header::TRANSFER_ENCODING);
    remove_hop_by_hop(response.headers_mut());
    // RFC 9112 section 6.3: chunked coding overrides the length. RFC 9110 section 8.6: a 204 has none.
    if chunked || response.status() == StatusCode::NO_CONTENT {
        response.headers_mut().remove(header::CONTENT_LENGTH);
    }
}

/// Whether the client accepts trailers (RFC 9110 section 6.5.1).
fn takes_trailers(headers: &HeaderMap) -> bool {
    let members = headers.get_all(header::TE).iter().filter_map(|value| value.to_str().ok());
    members.flat_map(|value| value.split(',')).any(|member| {
        member.split(';').next().is_some_and(|name| name.trim().eq_ignore_ascii_case("trailers"))
    })
}

/// Removes hop-by-hop fields (RFC 9110 section 7.6.1).
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        // RFC 8470 section 5.1: `Early-Data` is never a connection option. A client must not be
        // able to remove the fields that the upstream selects sites and early requests by.
        .filter(|name| *name != EARLY_DATA && *name != header::HOST)
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Fields that concern one connection (RFC 9110 section 7.6.1).
static HOP_BY_HOP: [HeaderName; 6] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// HTTP/2 clients may split cookies into several fields; HTTP/1.1 requires one (RFC 9113 section
/// 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let cookies: Vec<_> = headers.get_all(header::COOKIE).iter().map(|c| c.as_bytes()).collect();
    if cookies.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..]))
    {
        headers.insert(header::COOKIE, joined);
    }
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

/// Pools by name.
pub(crate) type Pools = BTreeMap<String, Pool>;

/// The pools of a configuration. A pool of `before` with the same settings and authorities is kept,
/// with its connections and the state of its servers.
///
/// # Errors
/// [`ServerError::Upstream`].
pub(crate) fn pools(config: &ServerConfig, before: &Pools) -> Result<Pools, ServerError> {
    let Content::Sites(sites) = &config.content else { return Ok(Pools::new()) };
    let mut pools = Pools::new();
    for (name, settings) in &sites.upstreams {
        let mut settings = settings.clone();
        settings.response_timeout.get_or_insert(config.limits.upstream_timeout);
        let pool = match before.get(name) {
            Some(pool) if pool.is_current(&settings) => Ok(pool.clone()),
            Some(pool) => pool.successor(settings),
            None => Pool::new(name, settings),
        };
        let pool = pool.map_err(|reason| ServerError::Upstream { name: name.clone(), reason })?;
        pools.insert(name.clone(), pool);
    }
    Ok(pools)
}

/// Records each attempt for its request, and counts it.
struct AttemptObserver<'a> {
    notes: &'a UpstreamNotes,
    metrics: &'a Metrics,
    /// Whether one of the servers may have executed the request. One that responded 425 has not (RFC
    /// 8470 section 5.2), but another may have before.
    may_be_executed: &'a AtomicBool,
    record: &'a RequestRecord,
}

impl Observer for AttemptObserver<'_> {
    /// What happens to the request is unknown until the attempt ends, even if the client is gone.
    fn sending(&self) {
        self.record.set_executed(true);
    }

    fn attempt(&self, attempt: &Attempt<'_>) {
        if attempt.result.is_ok() {
            self.metrics.upstreams.observe_response(attempt.pool, attempt.server, attempt.took);
        }
        if attempt.may_be_processed && attempt.result != Ok(StatusCode::TOO_EARLY) {
            self.may_be_executed.store(true, Ordering::Relaxed);
        }
        self.record.set_executed(self.may_be_executed.load(Ordering::Relaxed));
        self.notes.attempt(attempt);
    }
}

/// The values for metrics.
pub(crate) fn reading(pool: PoolStatus) -> UpstreamReading {
    UpstreamReading {
        name: pool.name,
        servers: pool.servers.into_iter().map(server_reading).collect(),
        retries: pool.retries,
        retries_denied: pool.retries_denied,
        waiting: pool.waiting as u64,
        rejected: pool.rejected,
    }
}

fn server_reading(server: ServerStatus) -> UpstreamServerReading {
    let totals = server.totals;
    UpstreamServerReading {
        address: server.address,
        healthy: matches!(server.state, ServerHealth::Up | ServerHealth::Trial),
        active: server.in_flight as u64,
        connections: server.connections,
        requests: totals.requests,
        responses: totals.responses,
        failures: [
            totals.connect_failed,
            totals.stale,
            totals.broken,
            totals.refused,
            totals.timeouts,
            totals.bodies_broken,
            totals.bodies_stalled,
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc9110_7_6_1_connection_options_are_removed_except_host_and_early_data() {
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
    fn a_pool_is_kept_until_its_authorities_change() {
        let dir = tempfile::tempdir().unwrap();
        let ca = dir.path().join("ca.pem");
        let renew = || {
            let made = rcgen::generate_simple_self_signed(vec!["a.test".to_owned()]).unwrap();
            std::fs::write(&ca, made.cert.pem()).unwrap();
        };
        renew();
        let mut content = Content::upstream("https://a.test").unwrap();
        let Content::Sites(sites) = &mut content else { panic!("an upstream is a site") };
        sites.upstreams.values_mut().for_each(|pool| pool.ca = Some(ca.clone()));
        let config = ServerConfig::new("[::1]:0".parse().unwrap(), content);
        let first = pools(&config, &Pools::new()).unwrap();
        let is_kept = || {
            let again = pools(&config, &first).unwrap();
            again.iter().all(|(name, pool)| std::ptr::eq(pool.config(), first[name].config()))
        };
        assert!(is_kept());
        renew();
        assert!(!is_kept());
    }

    #[test]
    fn rfc9110_8_6_a_204_has_no_content_length() {
        for (status, has_length) in [(204, false), (200, true), (304, true)] {
            let response = Response::builder().status(status).header("content-length", "5");
            let mut response = response.body(empty()).unwrap();
            remove_connection_fields(&mut response);
            assert_eq!(response.headers().contains_key("content-length"), has_length, "{status}");
        }
    }

    #[test]
    fn rfc9110_7_6_2_max_forwards_is_respected() {
        for (method, hops, expected, left) in [
            ("OPTIONS", Some("0"), Some(204), Some("0")),
            ("OPTIONS", Some("1"), None, Some("0")),
            ("OPTIONS", Some("010"), None, Some("9")),
            ("OPTIONS", Some("-1"), None, Some("-1")),
            ("OPTIONS", None, None, None),
            ("GET", Some("0"), None, Some("0")),
            ("TRACE", Some("0"), Some(501), Some("0")),
            ("TRACE", None, Some(501), None),
        ] {
            let mut request = Request::builder().method(method).uri("/");
            if let Some(hops) = hops {
                request = request.header(header::MAX_FORWARDS, hops);
            }
            let mut request = request.body(()).unwrap();
            let status = terminal_status(&mut request).map(|status| status.as_u16());
            assert_eq!(status, expected, "{method} {hops:?}");
            let now =
                request.headers().get(header::MAX_FORWARDS).map(|left| left.to_str().unwrap());
            assert_eq!(now, left, "{method} {hops:?}");
        }
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
