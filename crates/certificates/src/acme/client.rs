//! The HTTPS client of the authority, with bounds on everything it receives, and the mapping of its
//! failures to [`AcmeError`].

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use firstflight_tls::{
    ConnectOptions, Connector, ConnectorConfig, TlsError, TlsStream, Trust, connect_tcp,
};
use http::header::{CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient, Problem};
use tokio::time::{Instant, timeout};

use crate::acme::error::sanitized;
use crate::acme::storage::StateDirectory;
use crate::acme::{AcmeConfig, AcmeError};
use crate::acme::{now, unix_seconds};

/// An HTTPS client for one authority. Clones share its connection.
#[derive(Clone)]
pub(crate) struct AuthorityClient {
    shared: Arc<Shared>,
}

struct Shared {
    connector: Connector,
    /// An idle connection that may be reused.
    idle: Mutex<Option<Connection>>,
    /// `Retry-After` of the last refusal, in Unix seconds: the ACME library drops it.
    retry_after: Mutex<Option<i64>>,
}

struct Connection {
    authority: String,
    sender: SendRequest<Full<Bytes>>,
    since: Instant,
}

/// Why there is no response that the ACME library could read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    Unreachable(String),
    #[error("{0}")]
    Untrusted(String),
    #[error("it responded with {0}")]
    Status(StatusCode),
    #[error("{0}")]
    InvalidResponse(&'static str),
}

impl AuthorityClient {
    /// # Errors
    /// [`AcmeError::StateDirectory`] if the file with the trusted certificates cannot be used.
    pub(crate) fn new(config: &AcmeConfig) -> Result<Self, AcmeError> {
        let trust = config.authority.clone().map_or(Trust::System, Trust::File);
        let path = config.authority.clone().unwrap_or_default();
        let settings =
            ConnectorConfig { alpn: vec![b"http/1.1".to_vec()], ..ConnectorConfig::new(trust) };
        let connector = Connector::new(settings)
            .map_err(|error| AcmeError::StateDirectory { path, reason: error.to_string() })?;
        let shared = Shared { connector, idle: Mutex::default(), retry_after: Mutex::default() };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Takes the `Retry-After` of the last refusal, in Unix seconds.
    pub(crate) fn take_retry_after(&self) -> Option<i64> {
        lock(&self.shared.retry_after).take()
    }
}

impl HttpClient for AuthorityClient {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let shared = self.shared.clone();
        Box::pin(async move {
            let response = timeout(RESPONSE_TIMEOUT, shared.send(request)).await;
            let late = || Failure::Unreachable(format!("no response within {RESPONSE_TIMEOUT:?}"));
            response.unwrap_or_else(|_| Err(late())).map_err(|error| Error::Other(Box::new(error)))
        })
    }
}

impl Shared {
    async fn send(&self, request: Request<BodyWrapper<Bytes>>) -> Result<BytesResponse, Failure> {
        let (mut parts, body) = request.into_parts();
        let Ok(body) = body.collect().await;
        let (host, port) = host_and_port(&parts.uri)?;
        let authority = format!("{host}:{port}");
        let method = parts.method.clone();
        parts.headers.insert(USER_AGENT, HeaderValue::from_static(CLIENT_NAME));
        let host_header = HeaderValue::try_from(parts.uri.authority().map_or("", |it| it.as_str()));
        parts.headers.insert(
            HOST,
            host_header.map_err(|_| Failure::InvalidResponse("its URL has an invalid host"))?,
        );
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        parts.uri =
            path.parse().map_err(|_| Failure::InvalidResponse("its URL has an invalid path"))?;
        let request = Request::from_parts(parts, Full::new(body.to_bytes()));
        let (response, sender) = self.exchange(&host, port, &authority, request).await?;
        let response = self.read(&method, response).await?;
        *lock(&self.idle) = Some(Connection { authority, sender, since: Instant::now() });
        Ok(response)
    }

    /// Sends a request on the idle connection, if it still works, or on a new one.
    async fn exchange(
        &self,
        host: &str,
        port: u16,
        authority: &str,
        mut request: Request<Full<Bytes>>,
    ) -> Result<(Response<Incoming>, SendRequest<Full<Bytes>>), Failure> {
        let is_reusable =
            |idle: &Connection| idle.authority == authority && idle.since.elapsed() < MAX_IDLE;
        let idle = lock(&self.idle).take().filter(is_reusable);
        if let Some(mut idle) = idle {
            match idle.sender.try_send_request(request).await {
                Ok(response) => return Ok((response, idle.sender)),
                // A request that was never sent is returned.
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(Failure::Unreachable(error.into_error().to_string())),
                },
            }
        }
        let mut sender = self.connect(host, port).await?;
        let response = sender.send_request(request).await;
        response
            .map(|response| (response, sender))
            .map_err(|error| Failure::Unreachable(error.to_string()))
    }

    async fn connect(&self, host: &str, port: u16) -> Result<SendRequest<Full<Bytes>>, Failure> {
        let connecting = async {
            let tcp = connect_tcp(host, port).await;
            let tcp = tcp.map_err(|error| Failure::Unreachable(error.to_string()))?;
            let offer = ConnectOptions { host: host.to_owned(), ..ConnectOptions::default() };
            TlsStream::connect(&self.connector, tcp, &offer).await.map_err(|error| match error {
                TlsError::Certificate(reason) => Failure::Untrusted(reason),
                error => Failure::Unreachable(error.to_string()),
            })
        };
        let late = |_| Failure::Unreachable(format!("no connection within {CONNECT_TIMEOUT:?}"));
        let stream = timeout(CONNECT_TIMEOUT, connecting).await.map_err(late)??;
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| Failure::Unreachable(error.to_string()))?;
        tokio::spawn(connection);
        Ok(sender)
    }

    /// Passes on only what the ACME library can read: it parses every error body as a problem
    /// document, and every response of a directory URL as a directory.
    async fn read(
        &self,
        method: &Method,
        response: Response<Incoming>,
    ) -> Result<BytesResponse, Failure> {
        let (mut parts, body) = response.into_parts();
        let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await;
        let body = body.map_err(|error| Failure::Unreachable(error.to_string()))?.to_bytes();
        let retry_after = parse_retry_after(&parts.headers, now());
        // The library panics when it adds 2^63 seconds to a time.
        if let Some(value) = parts.headers.get_mut(RETRY_AFTER)
            && retry_after.is_none()
        {
            *value = HeaderValue::from(u32::MAX);
        }
        if !parts.status.is_success() {
            *lock(&self.retry_after) = retry_after;
            let problem = method == Method::POST && is_json(&parts.headers);
            if !problem || parts.status.is_redirection() {
                return Err(Failure::Status(parts.status));
            }
        }
        Ok(BytesResponse::from(Response::from_parts(parts, Full::new(body))))
    }
}

/// Returns host and port of a URL from the authority. URLs have to be HTTPS (RFC 8555 section 6.1).
fn host_and_port(uri: &Uri) -> Result<(String, u16), Failure> {
    match (uri.scheme_str(), uri.host()) {
        (Some("https"), Some(host)) => {
            Ok((host.trim_matches(['[', ']']).to_owned(), uri.port_u16().unwrap_or(443)))
        }
        _ => Err(Failure::InvalidResponse("it returned a URL that is not HTTPS")),
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("application/") && kind.contains("json"))
}

/// Parses seconds or a date (RFC 9110 section 10.2.3). Returns Unix seconds.
fn parse_retry_after(headers: &HeaderMap, now: i64) -> Option<i64> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    match text.parse::<u32>() {
        Ok(seconds) => Some(now + i64::from(seconds)),
        Err(_) => httpdate::parse_http_date(text).ok().map(unix_seconds),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// RFC 8555 section 6.1 requires the name of the client and of its library.
const CLIENT_NAME: &str = concat!("firstflight/", env!("CARGO_PKG_VERSION"), " instant-acme/0.8");

/// How long an idle connection is reused. A server may close it just as a request is sent; few do
/// so this early.
const MAX_IDLE: Duration = Duration::from_secs(3);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// A certificate chain takes a few thousand bytes.
const MAX_RESPONSE_BYTES: usize = 256 * 1024;

/// What is needed to turn a failure into an [`AcmeError`].
pub(crate) struct ErrorContext<'a> {
    pub(crate) client: &'a AuthorityClient,
    pub(crate) directory: &'a str,
    pub(crate) state: &'a StateDirectory,
}

impl ErrorContext<'_> {
    pub(crate) fn error(&self, error: Error) -> AcmeError {
        let retry_after = self.client.take_retry_after();
        let directory = || self.directory.to_owned();
        match error {
            Error::Api(problem) => self.problem(&problem, retry_after),
            Error::Timeout(_) => AcmeError::AuthorityFailure {
                host: self.host(),
                detail: "it does not complete the order".to_owned(),
                retry_after,
            },
            Error::Other(other) => match other.downcast::<Failure>() {
                Ok(failure) => self.failure(*failure, retry_after),
                Err(other) => AcmeError::NotAcme {
                    directory: directory(),
                    reason: sanitized(&other.to_string()),
                },
            },
            other => {
                AcmeError::NotAcme { directory: directory(), reason: sanitized(&other.to_string()) }
            }
        }
    }

    /// As [`Self::error`], where "unauthorized" can only concern the account.
    pub(crate) fn account_error(&self, error: Error) -> AcmeError {
        match &error {
            Error::Api(problem) if kind(problem) == "unauthorized" => {
                self.account(problem_text(problem))
            }
            _ => self.error(error),
        }
    }

    fn account(&self, detail: String) -> AcmeError {
        AcmeError::Account { detail, path: self.state.account_path() }
    }

    fn failure(&self, failure: Failure, retry_after: Option<i64>) -> AcmeError {
        let host = self.host();
        match failure {
            Failure::Unreachable(reason) => {
                AcmeError::Unreachable { host, reason: sanitized(&reason) }
            }
            Failure::Untrusted(reason) => AcmeError::Untrusted { host, reason: sanitized(&reason) },
            Failure::Status(status) if status.is_server_error() || status == 429 => {
                AcmeError::AuthorityFailure {
                    host,
                    detail: format!("it responded with {status}"),
                    retry_after,
                }
            }
            failure @ (Failure::Status(_) | Failure::InvalidResponse(_)) => AcmeError::NotAcme {
                directory: self.directory.to_owned(),
                reason: failure.to_string(),
            },
        }
    }

    /// Maps a problem document (RFC 8555 section 6.7).
    pub(crate) fn problem(&self, problem: &Problem, retry_after: Option<i64>) -> AcmeError {
        let (host, detail) = (self.host(), problem_text(problem));
        match kind(problem) {
            "rateLimited" => AcmeError::RateLimited { host, detail, retry_after },
            "serverInternal" | "badNonce" => {
                AcmeError::AuthorityFailure { host, detail, retry_after }
            }
            "rejectedIdentifier" | "unsupportedIdentifier" | "caa" => {
                AcmeError::NamesRefused { detail }
            }
            "externalAccountRequired" => AcmeError::ExternalAccount { detail },
            "accountDoesNotExist" => self.account(detail),
            "userActionRequired" | "agreementRequired" => {
                AcmeError::TermsNotAgreed(self.directory.to_owned())
            }
            _ => AcmeError::Refused { detail },
        }
    }

    fn host(&self) -> String {
        let url = url::Url::parse(self.directory).ok();
        url.and_then(|url| Some(url.host_str()?.to_owned())).unwrap_or_default()
    }
}

/// Whether an error is the authority's final decision, so that a retry is useless.
pub(crate) fn is_final(error: &Error) -> bool {
    match error {
        Error::Api(problem) => {
            !matches!(kind(problem), "rateLimited" | "serverInternal" | "badNonce")
        }
        _ => false,
    }
}

/// Whether an error says that the resource does not exist (any more).
pub(crate) fn is_not_found(error: &Error) -> bool {
    match error {
        Error::Other(other) => match other.downcast_ref::<Failure>() {
            Some(Failure::Status(status)) => matches!(status.as_u16(), 404 | 410),
            _ => false,
        },
        error => is_final(error),
    }
}

/// The type of a problem, without `urn:ietf:params:acme:error:`.
pub(crate) fn kind(problem: &Problem) -> &str {
    let urn = problem.r#type.as_deref().unwrap_or_default();
    urn.strip_prefix("urn:ietf:params:acme:error:").unwrap_or_default()
}

/// The text of a problem document with its subproblems (RFC 8555 section 6.7.1), sanitized.
pub(crate) fn problem_text(problem: &Problem) -> String {
    let mut text = problem.detail.clone().or_else(|| problem.r#type.clone());
    for part in &problem.subproblems {
        let text = text.get_or_insert_default();
        let detail = part.detail.as_deref().unwrap_or_default();
        match &part.identifier {
            Some(name) => text.push_str(&format!("; {}: {detail}", name.authorized(false))),
            None => text.push_str(&format!("; {detail}")),
        }
    }
    sanitized(text.as_deref().unwrap_or("no reason"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc9110_10_2_3_retry_after_is_seconds_or_a_date() {
        let of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, text.parse().unwrap());
            parse_retry_after(&headers, 1000)
        };
        assert_eq!(of("120"), Some(1120));
        assert_eq!(of("Thu, 01 Jan 1970 01:00:00 GMT"), Some(3600));
        for odd in ["soon", "-1", "99999999999999999999", ""] {
            assert_eq!(of(odd), None, "{odd}");
        }
    }

    #[test]
    fn rfc8555_6_1_only_https() {
        assert_eq!(
            host_and_port(&"https://ca.test/d".parse().unwrap()).unwrap(),
            ("ca.test".to_owned(), 443)
        );
        assert_eq!(
            host_and_port(&"https://[::1]:8/d".parse().unwrap()).unwrap(),
            ("::1".to_owned(), 8)
        );
        assert!(host_and_port(&"http://ca.test/d".parse().unwrap()).is_err());
        assert!(host_and_port(&"/d".parse().unwrap()).is_err());
    }
}
