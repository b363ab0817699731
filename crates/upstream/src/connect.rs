//! A new connection to a server: socket, PROXY header, TLS.

use std::io;
use std::path::Path;

use crate::proxy_protocol::{self, Header};
use firstflight_tls::{ConnectOptions, Connector, ConnectorConfig, TlsStream, Trust};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use crate::{PoolConfig, PoolError, Protocol, ServerAddress};

/// Bytes both ways, whatever is below.
pub(crate) trait Link: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Link for T {}

/// A connection as the HTTP library takes it.
pub(crate) type Io = TokioIo<Box<dyn Link>>;

/// How to speak TLS to a pool's servers, if any of them does.
///
/// # Errors
/// [`PoolError::Tls`]: the authorities cannot be read.
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

/// Connects. `header`: what is said of the client first.
pub(crate) async fn connect(
    address: &ServerAddress,
    connector: Option<&Connector>,
    header: Option<(proxy_protocol::Version, Header)>,
) -> io::Result<Io> {
    let header = header.map(|(version, header)| proxy_protocol::write(version, &header));
    let link: Box<dyn Link> = match (address, connector) {
        (ServerAddress::Unix(path), _) => unix(path, header).await?,
        (ServerAddress::Tcp { host, port, tls: true }, Some(connector)) => {
            let tcp = tcp(host, *port, header).await?;
            let offer = ConnectOptions { host: host.clone(), ..ConnectOptions::default() };
            let stream = TlsStream::connect(connector, tcp, &offer).await;
            Box::new(stream.map_err(|error| io::Error::other(error.to_string()))?)
        }
        (ServerAddress::Tcp { host, port, .. }, _) => Box::new(tcp(host, *port, header).await?),
    };
    Ok(TokioIo::new(link))
}

async fn tcp(host: &str, port: u16, header: Option<Vec<u8>>) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    if let Some(header) = header {
        stream.write_all(&header).await?;
    }
    Ok(stream)
}

async fn unix(path: &Path, header: Option<Vec<u8>>) -> io::Result<Box<dyn Link>> {
    let mut stream = UnixStream::connect(path).await?;
    if let Some(header) = header {
        stream.write_all(&header).await?;
    }
    Ok(Box::new(stream))
}
