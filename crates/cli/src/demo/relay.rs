//! Passes bytes on between a client and a server, and notes who spoke when.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Waits on loopback for a client that is to be passed on.
pub struct Relay {
    listener: TcpListener,
    server: SocketAddr,
}

/// What passed on one connection.
#[derive(Clone, Debug, Default)]
pub struct Passage {
    /// What the client sent before the server had said anything.
    pub first_flight: Vec<u8>,
    /// When the server started to speak, each time after the client had spoken.
    pub turns: Vec<Instant>,
    /// Who spoke last.
    server_spoke_last: bool,
}

impl Passage {
    /// How often the client had waited for the server until then.
    pub fn waits_until(&self, moment: Instant) -> usize {
        self.turns.iter().filter(|turn| **turn <= moment).count()
    }

    fn client_spoke(&mut self, bytes: &[u8]) {
        if self.turns.is_empty() {
            self.first_flight.extend_from_slice(bytes);
        }
        self.server_spoke_last = false;
    }

    fn server_spoke(&mut self, at: Instant) {
        if !self.server_spoke_last {
            self.turns.push(at);
        }
        self.server_spoke_last = true;
    }
}

impl Relay {
    /// A relay to a server.
    ///
    /// # Errors
    /// The system's.
    pub async fn to(server: SocketAddr) -> io::Result<Self> {
        Ok(Self { listener: TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?, server })
    }

    /// Where clients find it.
    ///
    /// # Errors
    /// The system's.
    pub fn port(&self) -> io::Result<u16> {
        Ok(self.listener.local_addr()?.port())
    }

    /// Passes the next client on until both have ended. Dropped before, both are cut off; what had
    /// passed by then is in `passage` all the same.
    ///
    /// # Errors
    /// The server is not there.
    pub async fn pass(&self, passage: &mut Passage) -> io::Result<()> {
        let (client, _) = self.listener.accept().await?;
        let server = TcpStream::connect(self.server).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        let (mut asked, mut answered) = (vec![0; PIECE], vec![0; PIECE]);
        let (mut client_ended, mut server_ended) = (false, false);
        while !(client_ended && server_ended) {
            tokio::select! {
                read = from_client.read(&mut asked), if !client_ended => {
                    let bytes = &asked[..read.unwrap_or(0)];
                    passage.client_spoke(bytes);
                    client_ended = pass_on(bytes, &mut to_server).await;
                }
                read = from_server.read(&mut answered), if !server_ended => {
                    let bytes = &answered[..read.unwrap_or(0)];
                    if !bytes.is_empty() {
                        passage.server_spoke(Instant::now());
                    }
                    server_ended = pass_on(bytes, &mut to_client).await;
                }
            }
        }
        Ok(())
    }
}

/// Whether that was the end of this side.
async fn pass_on(bytes: &[u8], to: &mut (impl AsyncWrite + Unpin)) -> bool {
    if bytes.is_empty() {
        let _ = to.shutdown().await;
        return true;
    }
    to.write_all(bytes).await.is_err()
}

/// Sends the bytes to a server and nothing more, and reads until it ends the connection.
///
/// # Errors
/// The server is not there.
pub(crate) async fn send_alone(server: SocketAddr, bytes: &[u8]) -> io::Result<usize> {
    let mut stream = TcpStream::connect(server).await?;
    stream.write_all(bytes).await?;
    // The server waits for the handshake's end, which only who has the keys can write.
    stream.shutdown().await?;
    read_to_end(&mut stream).await
}

/// A connection that is broken off has ended, too.
async fn read_to_end(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<usize> {
    let (mut piece, mut all) = (vec![0; PIECE], 0);
    while let Ok(read @ 1..) = stream.read(&mut piece).await {
        all += read;
    }
    Ok(all)
}

/// Read at a time: more than a first flight with its response has.
const PIECE: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_the_servers_turns_and_the_first_flight_ends_with_the_first() {
        let mut passage = Passage::default();
        let start = Instant::now();
        passage.client_spoke(b"hello");
        passage.client_spoke(b" early");
        passage.server_spoke(start);
        passage.server_spoke(start);
        passage.client_spoke(b"finished");
        let later = start + std::time::Duration::from_millis(1);
        passage.server_spoke(later);
        assert_eq!(passage.first_flight, b"hello early");
        assert_eq!((passage.waits_until(start), passage.waits_until(later)), (1, 2));
    }

    #[tokio::test]
    async fn both_sides_get_what_the_other_said() {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let relay = Relay::to(server.local_addr().unwrap()).await.unwrap();
        let port = relay.port().unwrap();
        let mut passage = Passage::default();
        let serve = async {
            let (mut peer, _) = server.accept().await.unwrap();
            let mut asked = [0; 4];
            peer.read_exact(&mut asked).await.unwrap();
            peer.write_all(b"pong").await.unwrap();
            asked
        };
        let ask = async {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
            stream.write_all(b"ping").await.unwrap();
            let mut response = Vec::new();
            stream.shutdown().await.unwrap();
            stream.read_to_end(&mut response).await.unwrap();
            response
        };
        let (passed, asked, response) = tokio::join!(relay.pass(&mut passage), serve, ask);
        passed.unwrap();
        assert_eq!((&asked, &response[..]), (b"ping", &b"pong"[..]));
        assert_eq!((&passage.first_flight[..], passage.turns.len()), (&b"ping"[..], 1));
    }
}
