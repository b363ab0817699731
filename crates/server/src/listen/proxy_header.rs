//! Reads the PROXY header, in which a load balancer states the client's address.

use std::io;
use std::net::SocketAddr;

use firstflight_config::Listener;
use firstflight_upstream::proxy_protocol::{self, Addresses, Header, MAX_HEADER};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// The addresses of a connection as its client sees them. Reads a PROXY header if the peer is
/// configured to send one. For any other peer a header is an invalid TLS record, which ends the
/// connection. `bound`: the listener's address.
///
/// # Errors
/// The connection ended, or did not start with a header.
pub(crate) async fn client_addresses(
    listener: &Listener,
    bound: SocketAddr,
    tcp: &mut TcpStream,
    peer: SocketAddr,
) -> io::Result<Addresses> {
    let destination = match bound.ip().is_unspecified() {
        true => tcp.local_addr().unwrap_or(peer),
        false => bound,
    };
    let peer_addresses = Addresses { source: peer, destination };
    // A dual-stack socket reports IPv4 peers as mapped IPv6 addresses.
    let address = peer.ip().to_canonical();
    if !listener.proxy_protocol_from.iter().any(|network| network.contains(address)) {
        return Ok(peer_addresses);
    }
    // Boxed, because few connections need its buffer.
    Ok(match Box::pin(read_header(tcp)).await? {
        Header::Local => peer_addresses,
        Header::Proxied(addresses) => addresses,
    })
}

/// Reads a header, and no byte beyond it.
async fn read_header(tcp: &mut TcpStream) -> io::Result<Header> {
    let mut bytes = Vec::new();
    let mut peeked = [0; MAX_HEADER];
    loop {
        let count = tcp.peek(&mut peeked).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let before = bytes.len();
        bytes.extend_from_slice(&peeked[..count]);
        let read = proxy_protocol::read(&bytes);
        let read = read.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        // An incomplete header includes all bytes so far.
        let length = read.map_or(bytes.len(), |(_, length)| length);
        tcp.read_exact(&mut peeked[..length - before]).await?;
        if let Some((read_header, _)) = read {
            return Ok(read_header);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    use firstflight_config::IpNetwork;
    use firstflight_upstream::proxy_protocol::{Version, write};
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;
    use tokio::time::sleep;

    use super::*;

    /// A listener on every address.
    const BOUND: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 443);

    async fn pair() -> (TcpStream, TcpStream, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let theirs = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (ours, peer) = listener.accept().await.unwrap();
        (theirs, ours, peer)
    }

    fn trusting(address: &str) -> Listener {
        let network = format!("{address}/8").parse::<IpNetwork>().unwrap();
        let proxy_protocol_from = vec![network];
        Listener { proxy_protocol_from, ..Listener::new("127.0.0.1:0".parse().unwrap()) }
    }

    #[tokio::test]
    async fn a_header_is_read_byte_by_byte_and_nothing_beyond_it() {
        let client = Addresses {
            source: "192.0.2.1:5".parse().unwrap(),
            destination: "192.0.2.2:443".parse().unwrap(),
        };
        for version in [Version::V1, Version::V2] {
            let (mut theirs, mut ours, peer) = pair().await;
            let sending = tokio::spawn(async move {
                for byte in write(version, &Header::Proxied(client)) {
                    theirs.write_all(&[byte]).await.unwrap();
                    sleep(Duration::from_micros(100)).await;
                }
                theirs.write_all(b"TLS").await.unwrap();
            });
            let client_addresses =
                client_addresses(&trusting("127.0.0.0"), BOUND, &mut ours, peer).await.unwrap();
            assert_eq!(client_addresses, client);
            let mut rest = String::new();
            ours.read_to_string(&mut rest).await.unwrap();
            assert_eq!(rest, "TLS");
            sending.await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_header_from_an_untrusted_peer_is_not_read() {
        let (_theirs, mut ours, peer) = pair().await;
        let local = ours.local_addr().unwrap();
        for bound in [BOUND, local] {
            let client_addresses =
                client_addresses(&trusting("10.0.0.0"), bound, &mut ours, peer).await.unwrap();
            assert_eq!((client_addresses.source, client_addresses.destination), (peer, local));
        }
    }

    #[tokio::test]
    async fn a_trusted_peer_must_send_a_header() {
        for bytes in [&b"\x16\x03\x01"[..], b"PROXY TCP4 nonsense\r\n", b""] {
            let (mut theirs, mut ours, peer) = pair().await;
            theirs.write_all(bytes).await.unwrap();
            drop(theirs);
            assert!(
                client_addresses(&trusting("127.0.0.0"), BOUND, &mut ours, peer).await.is_err()
            );
        }
    }
}
