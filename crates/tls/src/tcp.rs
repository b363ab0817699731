use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Connects by TCP to the first address of a host that responds; the next one is tried when one
/// fails or has not responded for 250 ms (RFC 8305 section 5). Sets TCP_NODELAY.
///
/// # Errors
/// The system's error for the address that failed last, or for the name.
pub async fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    connect_to_any(lookup_host((host, port)).await?.collect()).await
}

async fn connect_to_any(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let mut waiting = addresses.into_iter();
    let mut attempts = JoinSet::new();
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    loop {
        if let Some(address) = waiting.next() {
            attempts.spawn(TcpStream::connect(address));
        }
        let delay = if waiting.len() == 0 { Duration::MAX } else { ATTEMPT_DELAY };
        match timeout(delay, attempts.join_next()).await {
            Ok(Some(Ok(Ok(stream)))) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Ok(Some(Ok(Err(error)))) => last = error,
            Ok(Some(Err(error))) => last = io::Error::other(error),
            Ok(None) if waiting.len() == 0 => return Err(last),
            Ok(None) | Err(_) => {}
        }
    }
}

/// RFC 8305 section 5, Connection Attempt Delay.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    /// A listener with a full queue: the kernel drops new connections, as a firewall does.
    async fn silent() -> (TcpListener, Vec<TcpStream>) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        let mut queued = Vec::new();
        while let Ok(stream) = timeout(ATTEMPT_DELAY, TcpStream::connect(address)).await {
            queued.push(stream.unwrap());
        }
        (listener, queued)
    }

    #[tokio::test]
    async fn rfc8305_5_the_next_address_is_tried_while_one_is_silent() {
        let (silent, _queued) = silent().await;
        let listening = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (silent, listening) = (silent.local_addr().unwrap(), listening.local_addr().unwrap());
        let closed = SocketAddr::from(([127, 0, 0, 1], 1));
        let stream = connect_to_any(vec![silent, closed, listening]).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), listening);
        let error = connect_to_any(vec![closed]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(connect_to_any(Vec::new()).await.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
