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

/// The settings of requests on persistent connections, one at a time on each.
#[derive(Clone, Debug)]
pub struct KeepAliveConfig {
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

/// The result of requests on persistent connections.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeepAliveResult {
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
pub fn run_keep_alive(
    config: &KeepAliveConfig,
    connected: impl FnOnce(),
) -> Result<KeepAliveResult, LoadError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let open = (0..config.connections).map(|_| KeepAliveConnection::open(config));
        let mut connections = try_join_all(open).await?;
        connected();
        let start = Instant::now();
        let limits = (0..).map(|index| ConnectionLimit::of(config, index, start));
        let driven = connections.iter_mut().zip(limits);
        let results = try_join_all(driven.map(|(connection, limit)| connection.drive(limit))).await;
        let seconds = start.elapsed().as_secs_f64();
        for connection in connections {
            connection.close().await;
        }
        let results = results.map_err(|error| to_load_error(config.address, &error))?;
        let sum = |field: fn(&(u64, u64)) -> u64| results.iter().map(field).sum();
        Ok(KeepAliveResult {
            completed: sum(|result| result.0),
            bytes: sum(|result| result.1),
            seconds,
        })
    })
}

/// When a connection stops making requests.
#[derive(Clone, Copy)]
enum ConnectionLimit {
    Until(Instant),
    Requests(u64),
}

impl ConnectionLimit {
    fn of(config: &KeepAliveConfig, index: u64, start: Instant) -> Self {
        match config.limit {
            Limit::Time(time) => Self::Until(start + time),
            Limit::Connections(all) => {
                let connections = config.connections as u64;
                Self::Requests(all / connections + u64::from(index < all % connections))
            }
        }
    }

    fn is_reached(self, completed: u64) -> bool {
        match self {
            Self::Until(end) => Instant::now() >= end,
            Self::Requests(count) => completed >= count,
        }
    }
}

struct KeepAliveConnection {
    request: Request,
    http: Http,
}

enum Http {
    Tcp(Box<Exchange<TcpStream>>),
    Quic(Box<(Http3, QuicLink)>),
}

impl KeepAliveConnection {
    async fn open(config: &KeepAliveConfig) -> Result<Self, LoadError> {
        let result = tokio::time::timeout(OPEN_TIMEOUT, Self::connect(config)).await;
        let result = result.unwrap_or(Err(OpenError::Timeout));
        result.map_err(|error| match error {
            OpenError::Tls(error) => LoadError::Tls(error),
            OpenError::Client(error) => to_load_error(config.address, &error),
            OpenError::Timeout => {
                LoadError::WarmUp { address: config.address, reason: "timeout".to_owned() }
            }
        })
    }

    async fn connect(config: &KeepAliveConfig) -> Result<Self, OpenError> {
        let userinfo = config.credentials.iter().flat_map(|text| [text.as_str(), "@"]);
        let userinfo: String = userinfo.collect();
        let url = format!("https://{userinfo}{}{}", config.address, config.path);
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
            let Some(connection) = link.connection().cloned() else {
                return Err(OpenError::Timeout);
            };
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
    async fn drive(&mut self, limit: ConnectionLimit) -> Result<(u64, u64), ClientError> {
        let (mut completed, mut bytes) = (0, 0);
        while !limit.is_reached(completed) {
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
            Http::Quic(quic) => {
                let http3 = &mut quic.0;
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
            Http::Quic(quic) => quic.1.close().await,
        }
    }
}

const OPEN_TIMEOUT: Duration = Duration::from_secs(60);

/// Without this limit, a server that no longer responds would stop a whole comparison.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// Why a connection could not be opened.
enum OpenError {
    Tls(TlsError),
    Client(ClientError),
    Timeout,
}

impl From<TlsError> for OpenError {
    fn from(error: TlsError) -> Self {
        Self::Tls(error)
    }
}

impl From<ClientError> for OpenError {
    fn from(error: ClientError) -> Self {
        Self::Client(error)
    }
}

fn to_load_error(address: SocketAddr, error: &ClientError) -> LoadError {
    LoadError::WarmUp { address, reason: error.to_string() }
}
