//! One server of a pool: opening connections to it, and reusing idle ones.

use std::hash::{DefaultHasher, Hash, Hasher};
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
    /// Held while a task opens an HTTP/2 connection, so that other requests of its owner share it.
    /// Different owners seldom share a slot. The value is when opening last timed out.
    opening: [Mutex<Option<Instant>>; OPENING_SLOTS],
}

/// The first slot is for connections without an owner.
const OPENING_SLOTS: usize = 32;

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
            opening: std::array::from_fn(|_| Mutex::default()),
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
        match config.protocol {
            Protocol::Http1 => self.open(config, owner).await,
            Protocol::Http2 => self.open_shared(config, owner, fresh).await,
        }
    }

    fn opening(&self, owner: Owner) -> &Mutex<Option<Instant>> {
        let slot = owner.map_or(0, |addresses| {
            let mut hasher = DefaultHasher::new();
            addresses.hash(&mut hasher);
            1 + hasher.finish() as usize % (OPENING_SLOTS - 1)
        });
        &self.opening[slot]
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

    /// Opens a connection, unless another task opens one that has room.
    async fn open_shared(
        &self,
        config: &PoolConfig,
        owner: Owner,
        fresh: bool,
    ) -> io::Result<Checkout> {
        let started = Instant::now();
        // A timeout here is no failure of the server, which may permit few requests per connection.
        let opening = self.opening(owner).lock();
        let mut opening = timeout(config.connect_timeout, opening).await.ok();
        // Otherwise the waiting tasks would time out one after the other.
        if opening.as_deref().copied().flatten().is_some_and(|timed_out| timed_out >= started) {
            return Err(timed_out(config));
        }
        if !fresh && let Some(sender) = self.reuse(config.protocol, owner) {
            return Ok(Checkout { sender, connected: Some(started.elapsed()) });
        }
        let opened = self.open(config, owner).await;
        if let (Err(error), Some(last_timeout)) = (&opened, &mut opening)
            && error.kind() == io::ErrorKind::TimedOut
        {
            **last_timeout = Some(Instant::now());
        }
        opened
    }

    async fn open(&self, config: &PoolConfig, owner: Owner) -> io::Result<Checkout> {
        let opening = async {
            match config.protocol {
                Protocol::Http1 => self.open_http1(config, owner).await,
                Protocol::Http2 => self.open_http2(config, owner).await,
            }
        };
        timeout(config.connect_timeout, opening).await.map_err(|_| timed_out(config))?
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
        let (sender, max_streams) = sender::http2(io).await.map_err(io::Error::other)?;
        let max = config.idle_connections;
        let stream = self.cache.add_shared(sender.clone(), max_streams, owner, max, Instant::now());
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

fn timed_out(config: &PoolConfig) -> io::Error {
    let limit = config.connect_timeout;
    io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {limit:?}"))
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
            let options = ConnectOptions { host: host.clone(), ..ConnectOptions::default() };
            let stream = TlsStream::connect(connector, tcp, &options).await;
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
    use std::io::Write;
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
    async fn opening_a_connection_does_not_wait_for_other_clients() {
        let (_listener, server, config) = server(Duration::from_secs(60));
        let _opening = server.opening(None).lock().await;
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
        let _opening = server.opening(None).lock().await;
        server.connection(&config, None, false).await.unwrap();
    }

    #[tokio::test]
    async fn rfc9113_9_1_concurrent_requests_of_a_client_share_a_connection() {
        let (listener, server, config) = server(Duration::from_secs(60));
        // An empty SETTINGS frame: no limit of concurrent streams.
        std::thread::spawn(move || {
            let mut accepted = Vec::new();
            while let Ok((mut connection, _)) = listener.accept() {
                let _ = connection.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]);
                accepted.push(connection);
            }
        });
        let addresses = Addresses {
            source: ([192, 0, 2, 1], 7).into(),
            destination: ([192, 0, 2, 9], 443).into(),
        };
        for (owner, connections) in [(None, 1), (Some(addresses), 2)] {
            let requests = (0..20).map(|_| server.connection(&config, owner, false));
            let checkouts = futures_util::future::join_all(requests).await;
            assert!(checkouts.iter().all(Result::is_ok));
            assert_eq!(server.connections.load(Ordering::Relaxed), connections);
        }
    }

    #[tokio::test]
    async fn tasks_that_wait_for_a_connection_time_out_with_it() {
        let (_listener, server, config) = server(Duration::from_secs(60));
        let mut opening = server.opening(None).lock().await;
        let waiting = server.connection(&config, None, false);
        let timing_out = async {
            *opening = Some(Instant::now());
            drop(opening);
        };
        let (result, ()) = tokio::join!(waiting, timing_out);
        assert_eq!(result.err().map(|error| error.kind()), Some(io::ErrorKind::TimedOut));
        // The next request opens a connection again.
        server.connection(&config, None, false).await.unwrap();
    }
}
