//! One server of a pool: opening connections to it, and reusing idle ones.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use firstflight_tls::{ConnectOptions, Connector, ConnectorConfig, TlsStream, Trust, connect_tcp};
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::connection_cache::{ConnectionCache, Owner};
use crate::proxy_protocol::{self, Header, Version};
use crate::sender::{self, ByteStream, Io, Sender};
use crate::socket::Socket;
use crate::{PoolConfig, PoolError, Protocol, ServerAddress};

pub(crate) struct Server {
    pub(crate) address: ServerAddress,
    /// The address for logs.
    pub(crate) name: String,
    pub(crate) cache: ConnectionCache,
    pub(crate) connections: AtomicU64,
    connector: Option<Connector>,
    /// Held while a task opens a connection that can be shared; other tasks wait for it. The value is
    /// the last failure.
    opening: Mutex<Option<ConnectFailure>>,
}

/// A connection could not be opened.
struct ConnectFailure {
    at: Instant,
    kind: io::ErrorKind,
    reason: String,
}

/// A connection for a request.
pub(crate) struct Checkout {
    pub(crate) sender: Sender,
    /// How long connecting took; `None` if the connection was reused.
    pub(crate) connected: Option<Duration>,
}

impl Server {
    pub(crate) fn new(address: ServerAddress, connector: Option<Connector>) -> Self {
        Self {
            name: address.to_string(),
            address,
            cache: ConnectionCache::default(),
            connections: AtomicU64::new(0),
            connector,
            opening: Mutex::default(),
        }
    }

    /// Returns a connection for a request, a new one if `fresh` is set.
    pub(crate) async fn connection(
        &self,
        config: &PoolConfig,
        owner: Owner,
        fresh: bool,
    ) -> io::Result<Checkout> {
        if !fresh && let Some(sender) = self.reuse(config.protocol, owner) {
            return Ok(Checkout { sender, connected: None });
        }
        match (config.protocol, owner) {
            (Protocol::Http2, None) => self.open_shared(config, fresh).await,
            // Nobody else can use it, so nobody waits for it.
            _ => self.open(config, owner).await,
        }
    }

    fn reuse(&self, protocol: Protocol, owner: Owner) -> Option<Sender> {
        match protocol {
            Protocol::Http1 => {
                self.cache.take(owner).map(|connection| Sender::Http1(connection, owner))
            }
            Protocol::Http2 => self
                .cache
                .checkout_shared(owner, Instant::now())
                .map(|(sender, stream)| Sender::Http2(sender, stream)),
        }
    }

    /// Opens a connection, unless another task opens one that has room, or fails to.
    async fn open_shared(&self, config: &PoolConfig, fresh: bool) -> io::Result<Checkout> {
        let started = Instant::now();
        // The wait is no failure of the server, which may permit few requests on each connection.
        let mut opening = timeout(config.connect_timeout, self.opening.lock()).await.ok();
        let failed = opening.as_deref().and_then(Option::as_ref);
        if let Some(failure) = failed.filter(|failure| failure.at >= started) {
            return Err(io::Error::new(failure.kind, failure.reason.clone()));
        }
        if !fresh && let Some(sender) = self.reuse(config.protocol, None) {
            return Ok(Checkout { sender, connected: Some(started.elapsed()) });
        }
        let opened = self.open(config, None).await;
        if let (Err(error), Some(last)) = (&opened, &mut opening) {
            let (at, reason) = (Instant::now(), error.to_string());
            **last = Some(ConnectFailure { at, kind: error.kind(), reason });
        }
        opened
    }

    async fn open(&self, config: &PoolConfig, owner: Owner) -> io::Result<Checkout> {
        let limit = config.connect_timeout;
        let opening = async {
            match config.protocol {
                Protocol::Http1 => self.open_http1(config, owner).await,
                Protocol::Http2 => self.open_http2(config, owner).await,
            }
        };
        timeout(limit, opening).await.map_err(|_| {
            io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {limit:?}"))
        })?
    }

    async fn open_http1(&self, config: &PoolConfig, owner: Owner) -> io::Result<Checkout> {
        let started = Instant::now();
        let io = self.connect(config.proxy_protocol, owner).await?;
        let connection = sender::http1(io).await.map_err(io::Error::other)?;
        let sender = Sender::Http1(connection, owner);
        Ok(Checkout { sender, connected: Some(started.elapsed()) })
    }

    async fn open_http2(&self, config: &PoolConfig, owner: Owner) -> io::Result<Checkout> {
        let started = Instant::now();
        let io = self.connect(config.proxy_protocol, owner).await?;
        let (sender, allowed) = sender::http2(io).await.map_err(io::Error::other)?;
        let max = config.idle_connections;
        let stream = self.cache.add_shared(sender.clone(), allowed, owner, max, Instant::now());
        Ok(Checkout { sender: Sender::Http2(sender, stream), connected: Some(started.elapsed()) })
    }

    /// Opens a socket to the server. Without an owner the PROXY header is `LOCAL`.
    pub(crate) async fn connect(&self, version: Option<Version>, owner: Owner) -> io::Result<Io> {
        let header = owner.map_or(Header::Local, Header::Proxied);
        let header = version.map(|version| (version, header));
        let io = connect(&self.address, self.connector.as_ref(), header).await?;
        self.connections.fetch_add(1, Ordering::Relaxed);
        Ok(io)
    }
}

/// Returns the TLS configuration of a pool, if any of its servers uses TLS.
///
/// # Errors
/// [`PoolError::Tls`] if the authorities cannot be read.
pub(crate) fn connector(config: &PoolConfig) -> Result<Option<Connector>, PoolError> {
    if !config.servers.iter().any(ServerAddress::is_tls) {
        return Ok(None);
    }
    let trust = config.ca.clone().map_or(Trust::System, Trust::File);
    let alpn: &[u8] = match config.protocol {
        Protocol::Http1 => b"http/1.1",
        Protocol::Http2 => b"h2",
    };
    let connector = ConnectorConfig { alpn: vec![alpn.to_vec()], ..ConnectorConfig::new(trust) };
    Ok(Some(Connector::new(connector)?))
}

/// Connects and sends `header`, the PROXY header, first.
pub(crate) async fn connect(
    address: &ServerAddress,
    connector: Option<&Connector>,
    header: Option<(proxy_protocol::Version, Header)>,
) -> io::Result<Io> {
    let header = header.map(|(version, header)| proxy_protocol::write(version, &header));
    let link: Box<dyn ByteStream> = match (address, connector) {
        (ServerAddress::Unix(path), _) => unix(path, header).await?,
        (ServerAddress::Tcp { host, port, tls: true }, Some(connector)) => {
            let tcp = Socket::new(tcp(host, *port, header).await?);
            let offer = ConnectOptions { host: host.clone(), ..ConnectOptions::default() };
            let stream = TlsStream::connect(connector, tcp, &offer).await;
            Box::new(stream.map_err(|error| io::Error::other(error.to_string()))?)
        }
        (ServerAddress::Tcp { host, port, .. }, _) => {
            Box::new(Socket::new(tcp(host, *port, header).await?))
        }
    };
    Ok(TokioIo::new(link))
}

async fn tcp(host: &str, port: u16, header: Option<Vec<u8>>) -> io::Result<TcpStream> {
    let mut stream = connect_tcp(host, port).await?;
    if let Some(header) = header {
        stream.write_all(&header).await?;
    }
    Ok(stream)
}

async fn unix(path: &Path, header: Option<Vec<u8>>) -> io::Result<Box<dyn ByteStream>> {
    let mut stream = UnixStream::connect(path).await?;
    if let Some(header) = header {
        stream.write_all(&header).await?;
    }
    Ok(Box::new(Socket::new(stream)))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::proxy_protocol::Addresses;

    /// A server that accepts connections, and the settings of its pool.
    fn server(connect_timeout: Duration) -> (TcpListener, Server, PoolConfig) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address: ServerAddress =
            format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let config = PoolConfig {
            protocol: Protocol::Http2,
            connect_timeout,
            ..PoolConfig::new(vec![address.clone()])
        };
        (listener, Server::new(address, None), config)
    }

    #[tokio::test]
    async fn connections_for_one_client_each_do_not_wait_for_others() {
        let (_listener, server, config) = server(Duration::from_secs(60));
        let _opening = server.opening.lock().await;
        let destination = ([192, 0, 2, 9], 443).into();
        for client in 0..60 {
            let source = ([192, 0, 2, 1], client).into();
            let owner = Some(Addresses { source, destination });
            server.connection(&config, owner, false).await.unwrap();
        }
        assert_eq!(server.connections.load(Ordering::Relaxed), 60);
    }

    #[tokio::test]
    async fn a_long_wait_for_another_tasks_connection_is_no_failure() {
        let (_listener, server, config) = server(Duration::from_secs(1));
        let _opening = server.opening.lock().await;
        server.connection(&config, None, false).await.unwrap();
    }

    #[tokio::test]
    async fn tasks_that_wait_for_a_connection_fail_with_it() {
        let (_listener, server, config) = server(Duration::from_secs(60));
        let mut opening = server.opening.lock().await;
        let waiting = server.connection(&config, None, false);
        let failing = async {
            let (at, kind) = (Instant::now(), io::ErrorKind::ConnectionRefused);
            *opening = Some(ConnectFailure { at, kind, reason: "refused".to_owned() });
            drop(opening);
        };
        let (result, ()) = tokio::join!(waiting, failing);
        assert_eq!(result.err().map(|error| error.kind()), Some(io::ErrorKind::ConnectionRefused));
        // It is over, and the next one tries again.
        server.connection(&config, None, false).await.unwrap();
    }
}
