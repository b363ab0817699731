//! A TCP relay between a client and a server that records the first flight and counts round trips.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Listens on loopback and forwards connections to a server.
pub struct Relay {
    listener: TcpListener,
    server: SocketAddr,
}

/// What the relay recorded of one connection.
#[derive(Clone, Debug, Default)]
pub struct RelayedConnection {
    /// Bytes that the client sent before the server sent any.
    pub first_flight: Vec<u8>,
    /// When the server started to send, each time after the client had sent something.
    pub server_flights: Vec<Instant>,
    /// Whether the last bytes came from the server.
    server_sent_last: bool,
}

impl RelayedConnection {
    /// How many of the server's flights had started by `time`: the round trips that the client
    /// had waited.
    pub fn server_flights_until(&self, time: Instant) -> usize {
        self.server_flights.iter().filter(|start| **start <= time).count()
    }

    fn client_sent(&mut self, bytes: &[u8]) {
        if self.server_flights.is_empty() {
            self.first_flight.extend_from_slice(bytes);
        }
        self.server_sent_last = false;
    }

    fn server_sent(&mut self, at: Instant) {
        if !self.server_sent_last {
            self.server_flights.push(at);
        }
        self.server_sent_last = true;
    }
}

impl Relay {
    /// Listens on a free port of loopback.
    ///
    /// # Errors
    /// If the socket cannot be bound.
    pub async fn new(server: SocketAddr) -> io::Result<Self> {
        Ok(Self { listener: TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?, server })
    }

    /// The port that clients connect to.
    ///
    /// # Errors
    /// If the system does not report the socket's address.
    pub fn port(&self) -> io::Result<u16> {
        Ok(self.listener.local_addr()?.port())
    }

    /// Forwards the next connection until both sides have closed it, and records it in `relayed`.
    /// Dropping the future closes both connections; what was recorded stays in `relayed`.
    ///
    /// # Errors
    /// If the server cannot be reached.
    pub async fn forward(&self, relayed: &mut RelayedConnection) -> io::Result<()> {
        let (client, _) = self.listener.accept().await?;
        let server = TcpStream::connect(self.server).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        let (mut sent, mut received) = (vec![0; BUFFER_BYTES], vec![0; BUFFER_BYTES]);
        let (mut client_ended, mut server_ended) = (false, false);
        while !(client_ended && server_ended) {
            tokio::select! {
                read = from_client.read(&mut sent), if !client_ended => {
                    let bytes = &sent[..read.unwrap_or(0)];
                    relayed.client_sent(bytes);
                    client_ended = forward_chunk(bytes, &mut to_server).await;
                }
                read = from_server.read(&mut received), if !server_ended => {
                    let bytes = &received[..read.unwrap_or(0)];
                    if !bytes.is_empty() {
                        relayed.server_sent(Instant::now());
                    }
                    server_ended = forward_chunk(bytes, &mut to_client).await;
                }
            }
        }
        Ok(())
    }
}

/// Writes `bytes`, or closes the direction if they are empty. Returns whether it is closed.
async fn forward_chunk(bytes: &[u8], to: &mut (impl AsyncWrite + Unpin)) -> bool {
    if bytes.is_empty() {
        let _ = to.shutdown().await;
        return true;
    }
    to.write_all(bytes).await.is_err()
}

/// Sends a recorded first flight and nothing else, and reads until the server closes the
/// connection. Returns the number of bytes received.
///
/// # Errors
/// If the server cannot be reached.
pub(crate) async fn replay_flight(server: SocketAddr, bytes: &[u8]) -> io::Result<usize> {
    let mut stream = TcpStream::connect(server).await?;
    stream.write_all(bytes).await?;
    // The server would wait for a Finished message, which needs the client's keys.
    stream.shutdown().await?;
    read_to_end(&mut stream).await
}

/// Counts the bytes until the connection ends in any way.
async fn read_to_end(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<usize> {
    let (mut buffer, mut total) = (vec![0; BUFFER_BYTES], 0);
    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
        total += read;
    }
    Ok(total)
}

/// More than a first flight or its response needs.
const BUFFER_BYTES: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_flights_are_counted_and_the_first_one_ends_the_clients_first_flight() {
        let mut relayed = RelayedConnection::default();
        let start = Instant::now();
        relayed.client_sent(b"hello");
        relayed.client_sent(b" early");
        relayed.server_sent(start);
        relayed.server_sent(start);
        relayed.client_sent(b"finished");
        let later = start + std::time::Duration::from_millis(1);
        relayed.server_sent(later);
        assert_eq!(relayed.first_flight, b"hello early");
        assert_eq!(
            (relayed.server_flights_until(start), relayed.server_flights_until(later)),
            (1, 2)
        );
    }

    #[tokio::test]
    async fn bytes_are_forwarded_in_both_directions() {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let relay = Relay::new(server.local_addr().unwrap()).await.unwrap();
        let port = relay.port().unwrap();
        let mut relayed = RelayedConnection::default();
        let serve = async {
            let (mut peer, _) = server.accept().await.unwrap();
            let mut request = [0; 4];
            peer.read_exact(&mut request).await.unwrap();
            peer.write_all(b"pong").await.unwrap();
            request
        };
        let client = async {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
            stream.write_all(b"ping").await.unwrap();
            let mut response = Vec::new();
            stream.shutdown().await.unwrap();
            stream.read_to_end(&mut response).await.unwrap();
            response
        };
        let (forwarded, request, response) =
            tokio::join!(relay.forward(&mut relayed), serve, client);
        forwarded.unwrap();
        assert_eq!((&request, &response[..]), (b"ping", &b"pong"[..]));
        assert_eq!((&relayed.first_flight[..], relayed.server_flights.len()), (&b"ping"[..], 1));
    }
}
