use std::net::SocketAddr;
use std::time::{Duration, Instant};

use firstflight_tls::{ConnectOptions, Connector, TlsStream};
use futures_util::stream::{FuturesUnordered, StreamExt};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::TcpFastOpenConnect;
use tokio::net::{TcpSocket, TcpStream};

use crate::{ClientError, Marks};

/// A TCP connection and when it came about.
#[derive(Debug)]
pub struct TcpConnected {
    /// The socket, with TCP_NODELAY.
    pub stream: TcpStream,
    /// Whom it reached.
    pub peer: SocketAddr,
    /// When connecting to this address started.
    pub dialled: Instant,
    /// When the kernel called it connected.
    pub connected: Instant,
}

/// A TLS connection and when it came about.
pub struct Connected {
    /// The connection. In early data nothing of it has been sent yet: write, then flush, and
    /// ClientHello and request leave as one.
    pub stream: TlsStream<TcpStream>,
    /// Instants; `secured` only if the handshake is complete.
    pub marks: Marks,
}

/// Connects to the first of `addresses` that answers; the next one is tried when one fails or has
/// not answered for 250 ms (RFC 8305 section 5).
///
/// With `fast_open` the kernel keeps the SYN back until the first write, if it has a cookie of the
/// server (RFC 7413); otherwise it asks for one, and all goes on as without. Where the kernel does
/// not take the option, the connection is an ordinary one.
///
/// # Errors
/// [`ClientError::Connect`] for the last address that failed. A refusal after Fast Open is met by
/// the first write or read instead.
pub async fn connect_tcp(
    addresses: &[SocketAddr],
    fast_open: bool,
) -> Result<TcpConnected, ClientError> {
    let mut waiting = addresses.iter();
    let mut attempts = FuturesUnordered::new();
    let mut last = None;
    loop {
        if let Some(&address) = waiting.next() {
            attempts.push(dial(address, fast_open));
        }
        let patience = match waiting.len() {
            0 => Duration::MAX,
            _ => ATTEMPT_DELAY,
        };
        match tokio::time::timeout(patience, attempts.next()).await {
            Ok(Some(Ok(connected))) => return Ok(connected),
            Ok(Some(Err(error))) => last = Some(error),
            Err(_) => continue,
            Ok(None) => {}
        }
        if attempts.is_empty() && waiting.len() == 0 {
            return Err(last.unwrap_or_else(|| ClientError::Resolve {
                host: "the server".to_owned(),
                reason: "no address is left to try".to_owned(),
            }));
        }
    }
}

/// Connects to one address by TCP and TLS. Returns when the handshake is complete, or, if the
/// offer's session allows early data and it is requested, as soon as early data can be written.
///
/// # Errors
/// [`ClientError::Connect`] or [`ClientError::Tls`].
pub async fn connect_tls(
    connector: &Connector,
    offer: &ConnectOptions,
    address: SocketAddr,
    fast_open: bool,
) -> Result<Connected, ClientError> {
    let start = Instant::now();
    let tcp = connect_tcp(&[address], fast_open).await?;
    let stream = TlsStream::connect(connector, tcp.stream, offer).await?;
    let marks = Marks {
        resolved: Some(start),
        dialled: Some(tcp.dialled),
        connected: Some(tcp.connected),
        secured: stream.is_complete().then(Instant::now),
        ..Marks::new(start)
    };
    Ok(Connected { stream, marks })
}

/// RFC 8305 section 5, Connection Attempt Delay.
pub(crate) const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

async fn dial(address: SocketAddr, fast_open: bool) -> Result<TcpConnected, ClientError> {
    let failed = |source| ClientError::Connect { address, source };
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }
    .map_err(failed)?;
    socket.set_nodelay(true).map_err(failed)?;
    if fast_open {
        // Refused by old kernels and some sandboxes: an ordinary connection is the fallback.
        let _ = setsockopt(&socket, TcpFastOpenConnect, &true);
    }
    let dialled = Instant::now();
    let stream = socket.connect(address).await.map_err(failed)?;
    Ok(TcpConnected { stream, peer: address, dialled, connected: Instant::now() })
}
