use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::BytesMut;
use quinn_proto::Transmit;
use quinn_udp::{EcnCodepoint, RecvMeta, UdpSocketState};
use socket2::{Domain, Protocol, Socket, Type};

/// A UDP socket that is connected to a server, so that the kernel says when nobody listens there.
pub(crate) struct UdpSocket {
    pub(crate) socket: Socket,
    state: UdpSocketState,
    /// What the kernel had no room for.
    waiting: VecDeque<(Transmit, Vec<u8>)>,
}

/// Room for several datagrams at a time, each of which may be many that came together (GRO).
pub(crate) struct ReceiveBuffer {
    space: Vec<u8>,
}

/// A datagram that came.
pub(crate) struct Datagram {
    pub(crate) ecn: Option<quinn_proto::EcnCodepoint>,
    pub(crate) data: BytesMut,
}

const BATCH: usize = 16;
const SPACE: usize = 64 * 1024;

/// The kernel's buffers. Where the system allows less, it gives less.
const KERNEL_BUFFER: usize = 4 << 20;

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

    /// Takes a socket as it is bound.
    pub(crate) fn new(socket: Socket) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        // As much as the system allows: what overflows costs a probe timeout.
        let _ = state.set_recv_buffer_size((&socket).into(), KERNEL_BUFFER);
        let _ = state.set_send_buffer_size((&socket).into(), KERNEL_BUFFER);
        Ok(Self { socket, state, waiting: VecDeque::new() })
    }

    /// How many datagrams go with one call (GSO).
    pub(crate) fn segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    /// Sends, or keeps what there is no room for. Errors but "nobody listens" are what loss is.
    pub(crate) fn send(&mut self, transmit: Transmit, contents: &[u8]) -> io::Result<()> {
        if self.is_blocked() || !self.try_send(&transmit, contents)? {
            self.waiting.push_back((transmit, contents.to_vec()));
        }
        Ok(())
    }

    /// Sends a datagram from an address that is this machine's, or drops it.
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

    /// Sends what waits, as far as there is room.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while let Some((transmit, contents)) = self.waiting.pop_front() {
            if !self.try_send(&transmit, &contents)? {
                self.waiting.push_front((transmit, contents));
                break;
            }
        }
        Ok(())
    }

    /// Whether something waits for room.
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

    /// Receives a batch. Whether there was one.
    pub(crate) fn receive(
        &mut self,
        buffer: &mut ReceiveBuffer,
        datagrams: &mut Vec<Datagram>,
    ) -> io::Result<bool> {
        let mut metas = [RecvMeta::default(); BATCH];
        let mut spaces = buffer.space.chunks_exact_mut(SPACE);
        let mut slices: [IoSliceMut<'_>; BATCH] =
            std::array::from_fn(|_| IoSliceMut::new(spaces.next().unwrap_or_default()));
        let count = match self.state.recv((&self.socket).into(), &mut slices, &mut metas) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        };
        for (slice, meta) in slices.iter().zip(&metas[..count]) {
            let ecn = meta.ecn.and_then(|ecn| quinn_proto::EcnCodepoint::from_bits(ecn as u8));
            let mut came = BytesMut::from(&slice[..meta.len]);
            while !came.is_empty() {
                let data = came.split_to(meta.stride.clamp(1, came.len()));
                datagrams.push(Datagram { ecn, data });
            }
        }
        Ok(true)
    }
}

impl ReceiveBuffer {
    pub(crate) fn new() -> Self {
        Self { space: vec![0; BATCH * SPACE] }
    }
}
