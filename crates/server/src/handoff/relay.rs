//! Relays QUIC packets between a process and its successor. The successor reads the sockets, while
//! the older process serves its connections to their end.
//!
//! The successor recognizes the older process's connection ids by a mark, and relays their packets
//! over a stream. The older process sends its responses through its own handles on the same
//! sockets.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;

use firstflight_quic::IdMark;
use quinn_udp::{EcnCodepoint, RecvMeta};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tracing::debug;

/// The previous process, as seen by its successor.
pub(crate) struct Predecessor {
    mark: IdMark,
    queue: mpsc::Sender<Vec<u8>>,
}

/// A packet for a connection of the older process.
pub(crate) struct RelayedPacket {
    /// The port that received it.
    pub(crate) port: SocketAddr,
    pub(crate) meta: RecvMeta,
    pub(crate) datagram: Vec<u8>,
}

impl Predecessor {
    /// A process at the other end of `stream`, whose connection ids bear `mark`.
    ///
    /// # Errors
    /// The system's I/O error.
    pub(crate) fn new(stream: StdUnixStream, mark: IdMark) -> io::Result<Arc<Self>> {
        stream.set_nonblocking(true)?;
        let stream = UnixStream::from_std(stream)?;
        let (queue, queued) = mpsc::channel(QUEUE_LENGTH);
        tokio::spawn(write(stream, queued));
        Ok(Arc::new(Self { mark, queue }))
    }

    /// Whether a datagram belongs to one of its connections. After it has ended, none does: then
    /// this process responds with a stateless reset (RFC 9000 section 10.3).
    pub(crate) fn owns(&self, datagram: &[u8]) -> bool {
        !self.queue.is_closed() && self.mark.is_on(datagram)
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.queue.is_closed()
    }

    /// Relays a datagram. Drops it if the queue is full, as a socket would.
    pub(crate) fn relay(&self, port: SocketAddr, meta: &RecvMeta, datagram: &[u8]) {
        let _ = self.queue.try_send(frame(port, meta, datagram));
    }
}

/// Writes queued frames until the other end closes. The other end never sends, so a read detects
/// its end.
async fn write(stream: UnixStream, mut queued: mpsc::Receiver<Vec<u8>>) {
    let (mut reader, mut writer) = stream.into_split();
    let writing = async {
        while let Some(frame) = queued.recv().await {
            writer.write_all(&frame).await?;
        }
        io::Result::Ok(())
    };
    let mut nothing = [0];
    tokio::select! {
        written = writing => debug!("relaying packets ended: {written:?}"),
        _ = reader.read(&mut nothing) => debug!("the previous process has ended"),
    }
}

/// Delivers the packets that the newer process relays, until it has ended.
pub(crate) async fn receive(stream: UnixStream, deliver: impl Fn(RelayedPacket)) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let length = stream.read_u32().await?;
        if length > MAX_FRAME {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut frame = vec![0; length as usize];
        stream.read_exact(&mut frame).await?;
        match parse(&frame) {
            Some(packet) => deliver(packet),
            None => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// A frame: its length, the ECN bits, then port, client address and local address as text, each
/// with its length, and the datagram.
fn frame(port: SocketAddr, meta: &RecvMeta, datagram: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 4];
    frame.push(meta.ecn.map_or(0, |ecn| ecn as u8));
    let local = meta.dst_ip.map_or_else(String::new, |ip| ip.to_string());
    for text in [port.to_string(), meta.addr.to_string(), local] {
        // An address has at most 60 characters.
        frame.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
        frame.extend_from_slice(text.as_bytes());
    }
    frame.extend_from_slice(datagram);
    let length = u32::try_from(frame.len() - 4).unwrap_or(u32::MAX);
    frame[..4].copy_from_slice(&length.to_be_bytes());
    frame
}

fn parse(frame: &[u8]) -> Option<RelayedPacket> {
    let (ecn, mut rest) = frame.split_first()?;
    let mut text = || {
        let (length, after) = rest.split_first()?;
        let (text, after) = after.split_at_checked(usize::from(*length))?;
        rest = after;
        std::str::from_utf8(text).ok()
    };
    let (port, client, local) = (text()?.parse().ok()?, text()?.parse().ok()?, text()?);
    let dst_ip = match local {
        "" => None,
        ip => Some(ip.parse::<IpAddr>().ok()?),
    };
    let datagram = rest.to_vec();
    let mut meta = RecvMeta::default();
    (meta.addr, meta.dst_ip, meta.ecn) = (client, dst_ip, EcnCodepoint::from_bits(*ecn));
    (meta.len, meta.stride) = (datagram.len(), datagram.len());
    Some(RelayedPacket { port, meta, datagram })
}

/// Several bursts of datagrams.
const QUEUE_LENGTH: usize = 1024;

/// The longest datagram, with room for the addresses.
const MAX_FRAME: u32 = 65_535 + 256;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn relayed_frames_round_trip(
            ecn in 0u8..4,
            client in any::<(IpAddr, u16)>(),
            local in any::<Option<IpAddr>>(),
            datagram in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let client = SocketAddr::from(client);
            let mut meta = RecvMeta::default();
            (meta.addr, meta.dst_ip, meta.ecn) = (client, local, EcnCodepoint::from_bits(ecn));
            let port = "[::]:443".parse().unwrap();
            let framed = frame(port, &meta, &datagram);
            let length = u32::from_be_bytes(*framed.first_chunk().unwrap());
            prop_assert_eq!(length as usize, framed.len() - 4);
            let packet = parse(&framed[4..]).unwrap();
            prop_assert_eq!((packet.port, packet.meta.addr), (port, client));
            prop_assert_eq!((packet.meta.dst_ip, packet.meta.ecn), (local, meta.ecn));
            prop_assert_eq!(&packet.datagram, &datagram);
            prop_assert_eq!((packet.meta.len, packet.meta.stride), (datagram.len(), datagram.len()));
        }

        #[test]
        fn parsing_arbitrary_bytes_does_not_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let _ = parse(&bytes);
        }
    }
}
