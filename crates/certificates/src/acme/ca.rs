//! HTTPS to the authority, with bounds on all that comes from it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use firstflight_tls::{ConnectOptions, Connector, ConnectorConfig, TlsError, TlsStream, Trust};
use http::header::{CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::acme::clock::{now, unix};
use crate::acme::{AcmeConfig, AcmeError};

/// Asks one authority. Clones share its connection.
#[derive(Clone)]
pub(crate) struct Ca {
    shared: Arc<Shared>,
}

struct Shared {
    connector: Connector,
    /// A connection that may be used again.
    kept: Mutex<Option<Connection>>,
    /// `Retry-After` of the last refusal, in seconds since 1970: the ACME library drops it.
    until: Mutex<Option<i64>>,
}

struct Connection {
    authority: String,
    sender: SendRequest<Full<Bytes>>,
    since: Instant,
}

/// Why there is no response that ACME could read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    Unreachable(String),
    #[error("{0}")]
    Untrusted(String),
    #[error("it answered {0}")]
    Status(StatusCode),
    #[error("{0}")]
    NoAcme(&'static str),
}

impl Ca {
    /// # Errors
    /// [`AcmeError::State`]: the file of whom to trust cannot be used.
    pub(crate) fn new(config: &AcmeConfig) -> Result<Self, AcmeError> {
        let trust = config.authority.clone().map_or(Trust::System, Trust::File);
        let path = config.authority.clone().unwrap_or_default();
        let settings =
            ConnectorConfig { alpn: vec![b"http/1.1".to_vec()], ..ConnectorConfig::new(trust) };
        let connector = Connector::new(settings)
            .map_err(|error| AcmeError::State { path, reason: error.to_string() })?;
        let shared = Shared { connector, kept: Mutex::default(), until: Mutex::default() };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// When the authority wants to be asked again, as its last refusal said.
    pub(crate) fn take_until(&self) -> Option<i64> {
        lock(&self.shared.until).take()
    }
}

impl HttpClient for Ca {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let shared = self.shared.clone();
        Box::pin(async move {
            let asked = timeout(ANSWER, shared.ask(request)).await;
            let late = || Failure::Unreachable(format!("no answer within {ANSWER:?}"));
            asked.unwrap_or_else(|_| Err(late())).map_err(|error| Error::Other(Box::new(error)))
        })
    }
}

impl Shared {
    async fn ask(&self, request: Request<BodyWrapper<Bytes>>) -> Result<BytesResponse, Failure> {
        let (mut parts, body) = request.into_parts();
        let Ok(body) = body.collect().await;
        let (host, port) = whom(&parts.uri)?;
        let authority = format!("{host}:{port}");
        let method = parts.method.clone();
        parts.headers.insert(USER_AGENT, HeaderValue::from_static(OURSELVES));
        let named = HeaderValue::try_from(parts.uri.authority().map_or("", |it| it.as_str()));
        parts.headers.insert(HOST, named.map_err(|_| Failure::NoAcme("it has a strange host"))?);
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        parts.uri = path.parse().map_err(|_| Failure::NoAcme("it has a strange path"))?;
        let request = Request::from_parts(parts, Full::new(body.to_bytes()));
        let (answer, sender) = self.exchange(&host, port, &authority, request).await?;
        let answer = self.read(&method, answer).await?;
        *lock(&self.kept) = Some(Connection { authority, sender, since: Instant::now() });
        Ok(answer)
    }

    /// On the connection that was kept, if it still is one, or on a new one.
    async fn exchange(
        &self,
        host: &str,
        port: u16,
        authority: &str,
        mut request: Request<Full<Bytes>>,
    ) -> Result<(Response<Incoming>, SendRequest<Full<Bytes>>), Failure> {
        let fit = |kept: &Connection| kept.authority == authority && kept.since.elapsed() < KEEP;
        let kept = lock(&self.kept).take().filter(fit);
        if let Some(mut kept) = kept {
            match kept.sender.try_send_request(request).await {
                Ok(answer) => return Ok((answer, kept.sender)),
                // What was never sent comes back.
                Err(mut error) => match error.take_message() {
                    Some(back) => request = back,
                    None => return Err(Failure::Unreachable(error.into_error().to_string())),
                },
            }
        }
        let mut sender = self.connect(host, port).await?;
        let answer = sender.send_request(request).await;
        answer
            .map(|answer| (answer, sender))
            .map_err(|error| Failure::Unreachable(error.to_string()))
    }

    async fn connect(&self, host: &str, port: u16) -> Result<SendRequest<Full<Bytes>>, Failure> {
        let connecting = async {
            let tcp = TcpStream::connect((host, port)).await;
            let tcp = tcp.map_err(|error| Failure::Unreachable(error.to_string()))?;
            let _ = tcp.set_nodelay(true);
            let offer = ConnectOptions { host: host.to_owned(), ..ConnectOptions::default() };
            TlsStream::connect(&self.connector, tcp, &offer).await.map_err(|error| match error {
                TlsError::Certificate(reason) => Failure::Untrusted(reason),
                error => Failure::Unreachable(error.to_string()),
            })
        };
        let late = |_| Failure::Unreachable(format!("no connection within {CONNECT:?}"));
        let stream = timeout(CONNECT, connecting).await.map_err(late)??;
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| Failure::Unreachable(error.to_string()))?;
        tokio::spawn(connection);
        Ok(sender)
    }

    /// Passes on what the ACME library can read. It takes bodies of errors for problem documents
    /// and those of a directory for one, whatever the status.
    async fn read(
        &self,
        method: &Method,
        answer: Response<Incoming>,
    ) -> Result<BytesResponse, Failure> {
        let (parts, body) = answer.into_parts();
        let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await;
        let body = body.map_err(|error| Failure::Unreachable(error.to_string()))?.to_bytes();
        if !parts.status.is_success() {
            *lock(&self.until) = retry_after(&parts.headers, now());
            let problem = method == Method::POST && is_json(&parts.headers);
            if !problem || parts.status.is_redirection() {
                return Err(Failure::Status(parts.status));
            }
        }
        Ok(BytesResponse::from(Response::from_parts(parts, Full::new(body))))
    }
}

/// Host and port of a URL that the authority gave. RFC 8555 section 6.1: HTTPS, always.
fn whom(uri: &Uri) -> Result<(String, u16), Failure> {
    match (uri.scheme_str(), uri.host()) {
        (Some("https"), Some(host)) => {
            Ok((host.trim_matches(['[', ']']).to_owned(), uri.port_u16().unwrap_or(443)))
        }
        _ => Err(Failure::NoAcme("it names a URL that is not HTTPS")),
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("application/") && kind.contains("json"))
}

/// RFC 9110 section 10.2.3: seconds or a date; here seconds since 1970.
fn retry_after(headers: &HeaderMap, now: i64) -> Option<i64> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    match text.parse::<u32>() {
        Ok(seconds) => Some(now + i64::from(seconds)),
        Err(_) => httpdate::parse_http_date(text).ok().map(unix),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// RFC 8555 section 6.1 asks for the client's name, and its library's.
const OURSELVES: &str = concat!("firstflight/", env!("CARGO_PKG_VERSION"), " instant-acme/0.8");

/// A server may close what is idle just when a request is on its way. Few do so this soon.
const KEEP: Duration = Duration::from_secs(3);

const CONNECT: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(30);

/// Bytes of a response that are read; a chain takes a few thousand.
const MAX_RESPONSE_BYTES: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc9110_10_2_3_retry_after_is_seconds_or_a_date() {
        let of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, text.parse().unwrap());
            retry_after(&headers, 1000)
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
            whom(&"https://ca.test/d".parse().unwrap()).unwrap(),
            ("ca.test".to_owned(), 443)
        );
        assert_eq!(whom(&"https://[::1]:8/d".parse().unwrap()).unwrap(), ("::1".to_owned(), 8));
        assert!(whom(&"http://ca.test/d".parse().unwrap()).is_err());
        assert!(whom(&"/d".parse().unwrap()).is_err());
    }
}
