use std::net::SocketAddr;
use std::time::{Duration, Instant};

use firstflight_client::{
    ClientError, Exchange, Http3, QuicLink, Request, SharedStream, Stream, Target, connect_quic,
    connect_tls,
};
use firstflight_quic::{ClientCrypto, Remembered};
use firstflight_samples::HttpVersion;
use firstflight_tls::{CipherPolicy, ConnectOptions, Connector, ConnectorConfig, TlsError, Trust};
use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;

use crate::{Limit, LoadError};

/// Requests on connections that stay open, one at a time on each.
#[derive(Clone, Debug)]
pub struct KeptConfig {
    /// The server's address.
    pub address: SocketAddr,
    /// Path and query, starting with a slash.
    pub path: String,
    /// `USER:PASSWORD` for basic authentication.
    pub credentials: Option<String>,
    /// The version of HTTP.
    pub http: HttpVersion,
    /// Ciphers and groups to offer.
    pub ciphers: CipherPolicy,
    /// Number of connections.
    pub connections: usize,
    /// When to stop: after this time, or after this number of requests on all connections together.
    pub limit: Limit,
}

/// What was requested, and in what time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeptResult {
    /// Completed requests.
    pub completed: u64,
    /// Bytes of all bodies.
    pub bytes: u64,
    /// The duration, without the handshakes.
    pub seconds: f64,
}

/// Opens the connections, calls `connected`, and makes requests until the limit. The server's
/// certificate is not verified.
///
/// # Errors
/// [`LoadError`] if a connection or a request fails, or a status is not 200.
pub fn run_kept(config: &KeptConfig, connected: impl FnOnce()) -> Result<KeptResult, LoadError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let open = (0..config.connections).map(|_| KeptConnection::open(config));
        let mut connections = try_join_all(open).await?;
        connected();
        let start = Instant::now();
        let shares = (0..).map(|index| Share::of(config, index, start));
        let driven = connections.iter_mut().zip(shares);
        let results = try_join_all(driven.map(|(one, share)| one.drive(share))).await;
        let seconds = start.elapsed().as_secs_f64();
        for connection in connections {
            connection.close().await;
        }
        let results = results.map_err(|error| failed(config.address, &error))?;
        let sum = |part: fn(&(u64, u64)) -> u64| results.iter().map(part).sum();
        Ok(KeptResult { completed: sum(|one| one.0), bytes: sum(|one| one.1), seconds })
    })
}

/// When a connection stops.
#[derive(Clone, Copy)]
enum Share {
    Until(Instant),
    Requests(u64),
}

impl Share {
    fn of(config: &KeptConfig, index: u64, start: Instant) -> Self {
        match config.limit {
            Limit::Time(time) => Self::Until(start + time),
            Limit::Connections(all) => {
                let connections = config.connections as u64;
                Self::Requests(all / connections + u64::from(index < all % connections))
            }
        }
    }

    fn has_ended(self, completed: u64) -> bool {
        match self {
            Self::Until(end) => Instant::now() >= end,
            Self::Requests(count) => completed >= count,
        }
    }
}

struct KeptConnection {
    request: Request,
    http: Http,
}

enum Http {
    Tcp(Box<Exchange<TcpStream>>),
    Quic(Box<(Http3, QuicLink)>),
}

impl KeptConnection {
    async fn open(config: &KeptConfig) -> Result<Self, LoadError> {
        let result = tokio::time::timeout(OPEN_TIMEOUT, Self::connect(config)).await;
        let result = result.unwrap_or(Err(Unusable::Slow));
        result.map_err(|error| match error {
            Unusable::Tls(error) => LoadError::Tls(error),
            Unusable::Client(error) => failed(config.address, &error),
            Unusable::Slow => {
                LoadError::WarmUp { address: config.address, reason: "timeout".to_owned() }
            }
        })
    }

    async fn connect(config: &KeptConfig) -> Result<Self, Unusable> {
        let credentials = config.credentials.iter().flat_map(|both| [both.as_str(), "@"]);
        let credentials: String = credentials.collect();
        let url = format!("https://{credentials}{}{}", config.address, config.path);
        let request = Request::get(Target::parse(&url)?);
        let host = config.address.ip().to_string();
        let tls = ConnectorConfig {
            ciphers: config.ciphers.clone(),
            alpn: vec![config.http.alpn().to_vec()],
            ..ConnectorConfig::new(Trust::Anyone)
        };
        if config.http == HttpVersion::Three {
            let crypto = ClientCrypto::new(tls)?;
            let connected =
                connect_quic(&crypto, &host, Remembered::default(), config.address).await?;
            let link = connected.link;
            let Some(connection) = link.connection().cloned() else { return Err(Unusable::Slow) };
            let http3 = Http3::open(connection).await?;
            return Ok(Self { request, http: Http::Quic(Box::new((http3, link))) });
        }
        let offer = ConnectOptions { host, ..ConnectOptions::default() };
        let connected = connect_tls(&Connector::new(tls)?, &offer, config.address, false).await?;
        let http2 = connected.stream.facts().alpn.as_deref() == Some(b"h2");
        if http2 != (config.http == HttpVersion::Two) {
            return Err(ClientError::WeirdReply("another protocol was chosen".to_owned()).into());
        }
        let stream = SharedStream::new(Stream::Tls(Box::new(connected.stream)));
        let exchange = Exchange::open(stream, http2).await?;
        Ok(Self { request, http: Http::Tcp(Box::new(exchange)) })
    }

    /// Makes requests. Returns their number, and the bytes of their bodies.
    async fn drive(&mut self, share: Share) -> Result<(u64, u64), ClientError> {
        let (mut completed, mut bytes) = (0, 0);
        while !share.has_ended(completed) {
            let response = tokio::time::timeout(RESPONSE_TIMEOUT, self.request());
            let timed_out = || ClientError::WeirdReply("no response in a minute".to_owned());
            bytes += response.await.unwrap_or_else(|_| Err(timed_out()))?;
            completed += 1;
        }
        Ok((completed, bytes))
    }

    async fn request(&mut self) -> Result<u64, ClientError> {
        let mut bytes = 0;
        let status = match &mut self.http {
            Http::Tcp(exchange) => {
                let (head, mut body) = exchange.send(&self.request).await?;
                while let Some(part) = exchange.read_body(&mut body).await? {
                    bytes += part.len() as u64;
                }
                if !exchange.is_reusable().await {
                    let reason = "the server closed a connection that should be kept";
                    return Err(ClientError::WeirdReply(reason.to_owned()));
                }
                head.status
            }
            Http::Quic(both) => {
                let http3 = &mut both.0;
                let mut pending = http3.send(&self.request).await?;
                let head = http3.head(&mut pending).await?;
                while let Some(part) = http3.read_body(&mut pending).await? {
                    bytes += part.len() as u64;
                }
                head.status
            }
        };
        match status.as_u16() {
            200 => Ok(bytes),
            other => Err(ClientError::WeirdReply(format!("status {other}"))),
        }
    }

    async fn close(self) {
        match self.http {
            Http::Tcp(exchange) => drop(exchange.close(Duration::ZERO).await),
            Http::Quic(both) => both.1.close().await,
        }
    }
}

const OPEN_TIMEOUT: Duration = Duration::from_secs(60);

/// Without it, a server that no longer responds would stop a whole comparison.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// Why there is no connection.
enum Unusable {
    Tls(TlsError),
    Client(ClientError),
    Slow,
}

impl From<TlsError> for Unusable {
    fn from(error: TlsError) -> Self {
        Self::Tls(error)
    }
}

impl From<ClientError> for Unusable {
    fn from(error: ClientError) -> Self {
        Self::Client(error)
    }
}

fn failed(address: SocketAddr, error: &ClientError) -> LoadError {
    LoadError::WarmUp { address, reason: error.to_string() }
}
