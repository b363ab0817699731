//! A captured frame, and the TCP segment or UDP datagram read out of it.

use std::net::{IpAddr, SocketAddr};

use etherparse::{LaxNetSlice, LaxSlicedPacket, TransportSlice};
use serde::Serialize;

use crate::TcpOptions;

/// Which way a frame crossed the tap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// From the client's side to the server's.
    #[default]
    ToServer,
    /// From the server's side to the client's.
    ToClient,
}

/// One frame as a tap in the middle of the path saw it. All times are nanoseconds of one clock.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Which way it went.
    pub direction: Direction,
    /// When it reached the tap from its sender, in nanoseconds.
    pub arrived: u64,
    /// When the tap handed it to its receiver, in nanoseconds; `None` if the tap dropped it.
    pub delivered: Option<u64>,
    /// The Ethernet II frame, from the destination address on. It may be cut short by a snap
    /// length: what is missing is then unknown, never guessed.
    pub frame: &'a [u8],
}

/// The flags of a TCP header that a handshake is read by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct TcpFlags {
    /// SYN.
    pub syn: bool,
    /// ACK.
    pub ack: bool,
    /// FIN.
    pub fin: bool,
    /// RST.
    pub rst: bool,
}

impl Packet<'_> {
    /// The client's and the server's address and port; `None` if the frame holds neither a
    /// TCP header nor a UDP one.
    pub fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        Some(match Content::from_frame(self.frame)? {
            Content::Tcp(segment) => segment.ends(self.direction),
            Content::Udp(udp) => udp.ends(self.direction),
        })
    }
}

/// The TCP segment inside a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment<'a> {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) seq: u32,
    pub(crate) ack: Option<u32>,
    pub(crate) flags: TcpFlags,
    pub(crate) options: TcpOptions,
    /// The payload bytes that the capture holds.
    pub(crate) payload: &'a [u8],
    /// The payload's length on the wire; more than `payload` holds if the capture cut it.
    pub(crate) wire_len: u32,
    /// The frame's length on the wire.
    pub(crate) frame_len: u32,
}

/// The UDP datagram inside a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Udp<'a> {
    source: SocketAddr,
    destination: SocketAddr,
    /// The payload bytes that the capture holds.
    pub(crate) payload: &'a [u8],
    /// The payload's length on the wire; more than `payload` holds if the capture cut it.
    pub(crate) wire_len: u32,
    /// The frame's length on the wire.
    pub(crate) frame_len: u32,
}

/// What is inside a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content<'a> {
    Tcp(Segment<'a>),
    Udp(Udp<'a>),
}

impl<'a> Content<'a> {
    /// Reads `frame`; `None` if it holds no whole, unfragmented header of TCP or UDP.
    pub(crate) fn from_frame(frame: &'a [u8]) -> Option<Self> {
        let sliced = LaxSlicedPacket::from_ethernet(frame).ok()?;
        let (from, to, cut) = addresses_and_cut(sliced.net.as_ref()?)?;
        let frame_len = u32::try_from(frame.len()).ok()?.checked_add(cut)?;
        let wire_len = |payload: &[u8]| u32::try_from(payload.len()).ok()?.checked_add(cut);
        Some(match sliced.transport.as_ref()? {
            TransportSlice::Tcp(tcp) => Self::Tcp(Segment {
                source: SocketAddr::new(from, tcp.source_port()),
                destination: SocketAddr::new(to, tcp.destination_port()),
                seq: tcp.sequence_number(),
                ack: tcp.ack().then(|| tcp.acknowledgment_number()),
                flags: TcpFlags { syn: tcp.syn(), ack: tcp.ack(), fin: tcp.fin(), rst: tcp.rst() },
                options: TcpOptions::read(tcp.options()),
                payload: tcp.payload(),
                wire_len: wire_len(tcp.payload())?,
                frame_len,
            }),
            TransportSlice::Udp(udp) => Self::Udp(Udp {
                source: SocketAddr::new(from, udp.source_port()),
                destination: SocketAddr::new(to, udp.destination_port()),
                payload: udp.payload(),
                wire_len: wire_len(udp.payload())?,
                frame_len,
            }),
            _ => return None,
        })
    }
}

impl Udp<'_> {
    /// The client's end and the server's.
    pub(crate) fn ends(&self, direction: Direction) -> (SocketAddr, SocketAddr) {
        match direction {
            Direction::ToServer => (self.source, self.destination),
            Direction::ToClient => (self.destination, self.source),
        }
    }
}

impl Segment<'_> {
    /// The client's end and the server's.
    pub(crate) fn ends(&self, direction: Direction) -> (SocketAddr, SocketAddr) {
        match direction {
            Direction::ToServer => (self.source, self.destination),
            Direction::ToClient => (self.destination, self.source),
        }
    }
}

/// The addresses, and how many bytes of the packet the capture has cut off its end.
fn addresses_and_cut(net: &LaxNetSlice<'_>) -> Option<(IpAddr, IpAddr, u32)> {
    let (from, to, payload, declared) = match net {
        LaxNetSlice::Ipv4(ip) => {
            let header = ip.header();
            let declared = usize::from(header.total_len()).checked_sub(header.slice().len());
            let no_extension = ip.extensions().auth.is_none();
            let (from, to) = (header.source_addr().into(), header.destination_addr().into());
            (from, to, ip.payload(), declared.filter(|_| no_extension))
        }
        LaxNetSlice::Ipv6(ip) => {
            let header = ip.header();
            let declared = usize::from(header.payload_length());
            let no_extension = ip.extensions().is_empty();
            let (from, to) = (header.source_addr().into(), header.destination_addr().into());
            (from, to, ip.payload(), no_extension.then_some(declared))
        }
        LaxNetSlice::Arp(_) => return None,
    };
    if payload.fragmented {
        return None;
    }
    let cut = match payload.incomplete {
        false => 0,
        true => declared?.checked_sub(payload.payload.len())?,
    };
    Some((from, to, u32::try_from(cut).ok()?))
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    fn tcp(frame: &[u8]) -> Option<Segment<'_>> {
        match Content::from_frame(frame)? {
            Content::Tcp(segment) => Some(segment),
            Content::Udp(_) => None,
        }
    }

    fn frame(payload: &[u8]) -> Vec<u8> {
        let builder = PacketBuilder::ethernet2([1; 6], [2; 6])
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
            .tcp(40000, 443, 7, 1000)
            .syn();
        let mut out = Vec::new();
        builder.write(&mut out, payload).unwrap();
        out
    }

    #[test]
    fn a_snap_length_cuts_the_payload_but_not_its_length() {
        let whole = frame(&[9; 100]);
        let cut = tcp(&whole[..whole.len() - 60]).unwrap();
        assert_eq!((cut.payload.len(), cut.wire_len), (40, 100));
        assert_eq!(cut.frame_len as usize, whole.len());
    }

    #[test]
    fn ethernet_padding_is_not_payload() {
        let mut padded = frame(b"");
        padded.resize(60, 0);
        let segment = tcp(&padded).unwrap();
        assert_eq!((segment.payload.len(), segment.wire_len), (0, 0));
    }

    #[test]
    fn ipv6_and_vlan_are_read_and_fragments_are_not() {
        let mut six = Vec::new();
        PacketBuilder::ethernet2([1; 6], [2; 6])
            .single_vlan(7.try_into().unwrap())
            .ipv6([1; 16], [2; 16], 64)
            .tcp(40000, 443, 7, 1000)
            .ack(9)
            .write(&mut six, b"abc")
            .unwrap();
        let segment = tcp(&six).unwrap();
        assert_eq!((segment.payload, segment.wire_len), (&b"abc"[..], 3));
        assert_eq!((segment.seq, segment.ack, segment.flags.syn), (7, Some(9), false));
        assert_eq!(segment.destination, SocketAddr::from(([2; 16], 443)));
        let mut fragment = frame(b"abc");
        fragment[14 + 6] |= 0x20;
        assert_eq!(tcp(&fragment), None);
    }
}
