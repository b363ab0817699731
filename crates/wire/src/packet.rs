//! A captured frame, and the TCP segment read out of it.

use std::net::{IpAddr, SocketAddr};

use etherparse::{LaxNetSlice, LaxSlicedPacket, TransportSlice};
use serde::Serialize;

/// Which way a frame crossed the tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// From the client's side to the server's.
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

/// What a SYN says about TCP Fast Open (RFC 7413 section 4.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FastOpenOption {
    /// The option is empty: the client asks for a cookie.
    CookieRequest,
    /// The option carries a cookie of so many bytes.
    Cookie(u8),
}

/// The TCP segment inside a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment<'a> {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) seq: u32,
    pub(crate) ack: Option<u32>,
    pub(crate) syn: bool,
    pub(crate) fin: bool,
    pub(crate) rst: bool,
    pub(crate) fast_open: Option<FastOpenOption>,
    /// The payload bytes that the capture holds.
    pub(crate) payload: &'a [u8],
    /// The payload's length on the wire; more than `payload` holds if the capture cut it.
    pub(crate) wire_len: u32,
}

impl<'a> Segment<'a> {
    /// Reads the segment in `frame`; `None` if it holds no whole, unfragmented TCP header.
    pub(crate) fn from_frame(frame: &'a [u8]) -> Option<Self> {
        let sliced = LaxSlicedPacket::from_ethernet(frame).ok()?;
        let Some(TransportSlice::Tcp(tcp)) = &sliced.transport else {
            return None;
        };
        let (from, to, cut) = addresses_and_cut(sliced.net.as_ref()?)?;
        let payload = tcp.payload();
        Some(Self {
            source: SocketAddr::new(from, tcp.source_port()),
            destination: SocketAddr::new(to, tcp.destination_port()),
            seq: tcp.sequence_number(),
            ack: tcp.ack().then(|| tcp.acknowledgment_number()),
            syn: tcp.syn(),
            fin: tcp.fin(),
            rst: tcp.rst(),
            fast_open: fast_open_option(tcp.options()),
            payload,
            wire_len: u32::try_from(payload.len()).ok()?.checked_add(cut)?,
        })
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

/// Finds the Fast Open option, by its number or in the experimental form (RFC 6994).
fn fast_open_option(mut options: &[u8]) -> Option<FastOpenOption> {
    const FAST_OPEN: u8 = 34;
    const EXPERIMENT: u8 = 254;
    const MAGIC: [u8; 2] = [0xf9, 0x89];
    loop {
        match *options {
            [0, ..] | [] => return None,
            [1, ..] => options = &options[1..],
            [kind, len, ..] if len >= 2 && usize::from(len) <= options.len() => {
                let (option, rest) = options.split_at(usize::from(len));
                options = rest;
                let cookie = match kind {
                    FAST_OPEN => &option[2..],
                    EXPERIMENT => match option[2..].strip_prefix(&MAGIC) {
                        Some(cookie) => cookie,
                        None => continue,
                    },
                    _ => continue,
                };
                return Some(match cookie.len() {
                    0 => FastOpenOption::CookieRequest,
                    n => FastOpenOption::Cookie(n as u8),
                });
            }
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    fn frame(options: &[u8], payload: &[u8]) -> Vec<u8> {
        let builder = PacketBuilder::ethernet2([1; 6], [2; 6])
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
            .tcp(40000, 443, 7, 1000)
            .syn()
            .options_raw(options)
            .unwrap();
        let mut out = Vec::new();
        builder.write(&mut out, payload).unwrap();
        out
    }

    #[test]
    fn rfc7413_4_1_1_reads_the_fast_open_option_in_both_forms() {
        let read = |options: &[u8]| Segment::from_frame(&frame(options, b"")).unwrap().fast_open;
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[1, 1, 34, 2]), Some(FastOpenOption::CookieRequest));
        let cookie = [2, 4, 5, 180, 34, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1];
        assert_eq!(read(&cookie), Some(FastOpenOption::Cookie(8)));
        assert_eq!(read(&[254, 4, 0xf9, 0x89]), Some(FastOpenOption::CookieRequest));
        assert_eq!(read(&[254, 4, 0, 1]), None);
        assert_eq!(read(&[34, 40, 1, 1]), None, "a length beyond the header");
        assert_eq!(read(&[34, 0, 1, 1]), None, "a length that would never advance");
    }

    #[test]
    fn a_snap_length_cuts_the_payload_but_not_its_length() {
        let whole = frame(&[], &[9; 100]);
        let cut = Segment::from_frame(&whole[..whole.len() - 60]).unwrap();
        assert_eq!((cut.payload.len(), cut.wire_len), (40, 100));
    }

    #[test]
    fn ethernet_padding_is_not_payload() {
        let mut padded = frame(&[], b"");
        padded.resize(60, 0);
        let segment = Segment::from_frame(&padded).unwrap();
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
        let segment = Segment::from_frame(&six).unwrap();
        assert_eq!((segment.payload, segment.wire_len), (&b"abc"[..], 3));
        assert_eq!((segment.seq, segment.ack, segment.syn), (7, Some(9), false));
        assert_eq!(segment.destination, SocketAddr::from(([2; 16], 443)));
        let mut fragment = frame(&[], b"abc");
        fragment[14 + 6] |= 0x20;
        assert_eq!(Segment::from_frame(&fragment), None);
    }
}
