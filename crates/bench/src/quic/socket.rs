use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::BytesMut;
use quinn_proto::Transmit;
use quinn_udp::{EcnCodepoint, RecvMeta, UdpSocketState};
use socket2::{Domain, Protocol, Socket, Type};

/// A UDP socket. If it is connected, the kernel reports when nothing listens on the server's port.
pub(crate) struct UdpSocket {
    pub(crate) socket: Socket,
    state: UdpSocketState,
    /// Datagrams that wait for room in the kernel's buffer.
    waiting: VecDeque<(Transmit, Vec<u8>)>,
}

/// Room for several buffers at a time, each with one or more coalesced datagrams (GRO).
pub(crate) struct ReceiveBuffer {
    space: Vec<u8>,
}

/// A received datagram.
pub(crate) struct Datagram {
    pub(crate) ecn: Option<quinn_proto::EcnCodepoint>,
    pub(crate) data: BytesMut,
}

const MAX_BATCH: usize = 16;
const BUFFER_BYTES: usize = 64 * 1024;

/// Requested size of the kernel's buffers. The system may grant less.
const KERNEL_BUFFER_BYTES: usize = 4 << 20;

impl UdpSocket {
    pub(crate) fn connect(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        let any = match address {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        socket.bind(&any.into())?;
        socket.connect(&address.into())?;
        Self::new(socket)
    }

    /// Wraps a bound socket.
    pub(crate) fn new(socket: Socket) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        // A small buffer drops datagrams, and each loss costs a probe timeout.
        let _ = state.set_recv_buffer_size((&socket).into(), KERNEL_BUFFER_BYTES);
        let _ = state.set_send_buffer_size((&socket).into(), KERNEL_BUFFER_BYTES);
        Ok(Self { socket, state, waiting: VecDeque::new() })
    }

    /// How many datagrams one call can send (GSO).
    pub(crate) fn segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    /// Sends datagrams, or queues them if there is no room.
    ///
    /// # Errors
    /// If nothing listens on the server's port. Other errors count as packet loss.
    pub(crate) fn send(&mut self, transmit: Transmit, contents: &[u8]) -> io::Result<()> {
        if self.is_blocked() || !self.try_send(&transmit, contents)? {
            self.waiting.push_back((transmit, contents.to_vec()));
        }
        Ok(())
    }

    /// Sends a datagram from another address of this machine. Drops it if there is no room.
    pub(crate) fn send_from(&self, from: IpAddr, to: SocketAddr, data: &[u8]) -> io::Result<()> {
        let transmit = Transmit {
            destination: to,
            ecn: None,
            size: data.len(),
            segment_size: None,
            src_ip: Some(from),
        };
        self.try_send(&transmit, data).map(drop)
    }

    /// Sends queued datagrams, as far as there is room.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while let Some((transmit, contents)) = self.waiting.pop_front() {
            if !self.try_send(&transmit, &contents)? {
                self.waiting.push_front((transmit, contents));
                break;
            }
        }
        Ok(())
    }

    /// Whether datagrams are queued.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn try_send(&self, transmit: &Transmit, contents: &[u8]) -> io::Result<bool> {
        let sent = self.state.try_send(
            (&self.socket).into(),
            &quinn_udp::Transmit {
                destination: transmit.destination,
                ecn: transmit.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8)),
                contents,
                segment_size: transmit.segment_size,
                src_ip: transmit.src_ip,
            },
        );
        match sent {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Err(error),
            _ => Ok(true),
        }
    }

    /// Receives a batch of datagrams. Returns whether there was one.
    pub(crate) fn receive(
        &mut self,
        buffer: &mut ReceiveBuffer,
        datagrams: &mut Vec<Datagram>,
    ) -> io::Result<bool> {
        let mut metas = [RecvMeta::default(); MAX_BATCH];
        let mut spaces = buffer.space.chunks_exact_mut(BUFFER_BYTES);
        let mut slices: [IoSliceMut<'_>; MAX_BATCH] =
            std::array::from_fn(|_| IoSliceMut::new(spaces.next().unwrap_or_default()));
        let count = match self.state.recv((&self.socket).into(), &mut slices, &mut metas) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        };
        for (slice, meta) in slices.iter().zip(&metas[..count]) {
            let ecn = meta.ecn.and_then(|ecn| quinn_proto::EcnCodepoint::from_bits(ecn as u8));
            let mut received = BytesMut::from(&slice[..meta.len]);
            while !received.is_empty() {
                let data = received.split_to(meta.stride.clamp(1, received.len()));
                datagrams.push(Datagram { ecn, data });
            }
        }
        Ok(true)
    }
}

impl ReceiveBuffer {
    pub(crate) fn new() -> Self {
        Self { space: vec![0; MAX_BATCH * BUFFER_BYTES] }
    }
}
