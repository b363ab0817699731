//! Captured frames, and the TCP segments (with their options) and UDP datagrams in them.

use std::net::{IpAddr, SocketAddr};

use etherparse::{LaxNetSlice, LaxSlicedPacket, TransportSlice};
use firstflight_wire::Sender;
use serde::Serialize;

/// The direction in which a frame crossed the tap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// From the client's side to the server's.
    #[default]
    ToServer,
    /// From the server's side to the client's.
    ToClient,
}

impl Direction {
    /// The sender of packets in this direction.
    pub(crate) fn sender(self) -> Sender {
        match self {
            Self::ToServer => Sender::Client,
            Self::ToClient => Sender::Server,
        }
    }
}

/// A frame as seen by a tap in the middle of the path. All times are nanoseconds of one clock.
///
/// Equal frames that arrived in the same nanosecond are copies that the path made. They count as
/// one packet, with the first delivery.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Its direction.
    pub direction: Direction,
    /// When it reached the tap from its sender, in nanoseconds.
    pub arrived: u64,
    /// When the tap handed it to its receiver, in nanoseconds; `None` if the tap dropped it.
    pub delivered: Option<u64>,
    /// The Ethernet II frame from the destination address on. A snap length may have truncated it;
    /// missing bytes are unknown and never guessed.
    pub frame: &'a [u8],
}

/// The flags of a TCP header that the analysis uses.
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
    /// The address and port of the client and of the server. Returns `None` if the frame has
    /// neither a TCP nor a UDP header.
    pub fn endpoints(&self) -> Option<(SocketAddr, SocketAddr)> {
        Some(match Content::from_frame(self.frame)? {
            Content::Tcp(segment) => segment.endpoints(self.direction),
            Content::Udp(udp) => udp.endpoints(self.direction),
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
    /// The captured payload bytes.
    pub(crate) payload: &'a [u8],
    /// The payload's length on the wire: more than `payload` if the capture truncated it.
    pub(crate) wire_len: u32,
    /// The frame's length on the wire.
    pub(crate) frame_len: u32,
}

/// The UDP datagram inside a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Udp<'a> {
    source: SocketAddr,
    destination: SocketAddr,
    /// The captured payload bytes.
    pub(crate) payload: &'a [u8],
    /// The payload's length on the wire: more than `payload` if the capture truncated it.
    pub(crate) wire_len: u32,
    /// The frame's length on the wire.
    pub(crate) frame_len: u32,
}

/// The transport packet in a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content<'a> {
    Tcp(Segment<'a>),
    Udp(Udp<'a>),
}

impl<'a> Content<'a> {
    /// Parses `frame`. Returns `None` unless it has a complete, unfragmented TCP or UDP header.
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
    /// The client's and the server's endpoint.
    pub(crate) fn endpoints(&self, direction: Direction) -> (SocketAddr, SocketAddr) {
        match direction {
            Direction::ToServer => (self.source, self.destination),
            Direction::ToClient => (self.destination, self.source),
        }
    }
}

impl Segment<'_> {
    /// The client's and the server's endpoint.
    pub(crate) fn endpoints(&self, direction: Direction) -> (SocketAddr, SocketAddr) {
        match direction {
            Direction::ToServer => (self.source, self.destination),
            Direction::ToClient => (self.destination, self.source),
        }
    }
}

/// The addresses, and by how many bytes the capture truncated the packet.
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

/// The options of a SYN or SYN-ACK (RFC 9293 section 3.2, RFC 7323, RFC 2018, RFC 7413).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct TcpOptions {
    /// The largest segment that the sender accepts, in bytes without headers.
    pub mss: Option<u16>,
    /// The window scale: the shift count of advertised windows.
    pub window_scale: Option<u8>,
    /// Selective acknowledgements are permitted.
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: bool,
    /// TCP Fast Open.
    pub fast_open: Option<FastOpenOption>,
}

/// The TCP Fast Open option of a SYN or SYN-ACK (RFC 7413 section 4.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FastOpenOption {
    /// The option is empty: the client requests a cookie.
    CookieRequest,
    /// The option has a cookie of this many bytes, from the client or new from the server.
    Cookie(u8),
}

impl TcpOptions {
    /// Parses the options up to the first malformed one. If an option repeats, the first counts.
    pub(crate) fn read(mut options: &[u8]) -> Self {
        let mut found = Self::default();
        loop {
            match *options {
                [1, ..] => options = &options[1..],
                [kind, len, ..] if kind != 0 && len >= 2 && usize::from(len) <= options.len() => {
                    let (option, rest) = options.split_at(usize::from(len));
                    found.add(kind, &option[2..]);
                    options = rest;
                }
                _ => return found,
            }
        }
    }

    fn add(&mut self, kind: u8, value: &[u8]) {
        // The experimental form of Fast Open (RFC 6994).
        const FAST_OPEN_MAGIC: [u8; 2] = [0xf9, 0x89];
        match (kind, value) {
            (2, &[a, b]) => self.mss = self.mss.or(Some(u16::from_be_bytes([a, b]))),
            (3, &[shift]) => self.window_scale = self.window_scale.or(Some(shift)),
            (4, []) => self.sack_permitted = true,
            (8, value) if value.len() == 8 => self.timestamps = true,
            (34, cookie) => self.fast_open(cookie),
            (254, value) => {
                if let Some(cookie) = value.strip_prefix(&FAST_OPEN_MAGIC) {
                    self.fast_open(cookie);
                }
            }
            _ => {}
        }
    }

    fn fast_open(&mut self, cookie: &[u8]) {
        self.fast_open.get_or_insert(match cookie.len() {
            0 => FastOpenOption::CookieRequest,
            // An option is at most 40 bytes long.
            n => FastOpenOption::Cookie(n as u8),
        });
    }
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

    #[test]
    fn rfc7413_4_1_1_reads_the_fast_open_option_in_both_forms() {
        let read = |options: &[u8]| TcpOptions::read(options).fast_open;
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[1, 1, 34, 2]), Some(FastOpenOption::CookieRequest));
        let cookie = [2, 4, 5, 180, 34, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1];
        assert_eq!(read(&cookie), Some(FastOpenOption::Cookie(8)));
        assert_eq!(read(&[254, 4, 0xf9, 0x89]), Some(FastOpenOption::CookieRequest));
        assert_eq!(read(&[254, 4, 0, 1]), None);
        assert_eq!(read(&[34, 40, 1, 1]), None, "a length beyond the header");
        assert_eq!(read(&[34, 0, 1, 1]), None, "a length that would never advance");
        assert_eq!(read(&[0, 34, 2]), None, "an option after the end of the list");
    }

    #[test]
    fn rfc9293_3_2_reads_the_options_of_a_linux_syn() {
        let bytes = [2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];
        let expected = TcpOptions {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: true,
            fast_open: None,
        };
        assert_eq!(TcpOptions::read(&bytes), expected);
        for len in 0..bytes.len() {
            // A truncated list yields no wrong values.
            let cut = TcpOptions::read(&bytes[..len]);
            assert!(cut.mss.is_none_or(|mss| mss == 1460));
            assert!(cut.window_scale.is_none());
        }
    }
}
