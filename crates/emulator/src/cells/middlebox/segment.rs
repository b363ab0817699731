//! Locates the parts of a TCP segment in a frame, and recomputes checksums of a changed frame.

use std::ops::Range;

use etherparse::{IpNumber, Ipv4HeaderSlice, Ipv4Slice, TcpSlice};

use crate::cells::ETHERNET_HEADER;

/// Addresses and ports of a segment, sender first.
pub(super) type FourTuple = ([u8; 4], [u8; 4], u16, u16);

/// A TCP segment in an IPv4 packet in an Ethernet frame.
pub(super) struct Segment<'a> {
    pub(super) four_tuple: FourTuple,
    pub(super) syn: bool,
    pub(super) ack: bool,
    pub(super) sequence: u32,
    pub(super) payload: &'a [u8],
    /// The range of the TCP options in the frame.
    pub(super) options: Range<usize>,
    /// The offset of the TCP header in the frame.
    tcp_at: usize,
}

impl<'a> Segment<'a> {
    /// Parses a frame. Returns `None` if it is not a complete TCP segment.
    pub(super) fn read(frame: &'a [u8]) -> Option<Self> {
        let packet = frame.get(ETHERNET_HEADER..)?;
        let ip = Ipv4Slice::from_slice(packet).ok()?;
        // A packet with an authentication header (RFC 4302) cannot be altered.
        let is_supported = ip.extensions().auth.is_none() && !ip.is_payload_fragmented();
        if !is_supported || ip.payload_ip_number() != IpNumber::TCP {
            return None;
        }
        let header = ip.header();
        let tcp_at = ETHERNET_HEADER + header.slice().len();
        // A slice of the frame itself, because the parsed payload does not live long enough.
        let end = ETHERNET_HEADER + usize::from(header.total_len());
        let tcp = TcpSlice::from_slice(frame.get(tcp_at..end)?).ok()?;
        let payload_at = tcp_at + tcp.header_slice().len();
        Some(Self {
            four_tuple: (
                header.source(),
                header.destination(),
                tcp.source_port(),
                tcp.destination_port(),
            ),
            syn: tcp.syn(),
            ack: tcp.ack(),
            sequence: tcp.sequence_number(),
            payload: frame.get(payload_at..end)?,
            options: tcp_at + TCP_HEADER..payload_at,
            tcp_at,
        })
    }

    /// Whether this is a client's SYN.
    pub(super) fn is_client_syn(&self) -> bool {
        self.syn && !self.ack
    }

    /// The offset of the payload in the frame.
    pub(super) fn payload_at(&self) -> usize {
        self.options.end
    }
}

/// The ranges of the Fast Open options in a frame: by their number (RFC 7413 section 4.1.1), and in
/// the earlier experimental form (RFC 6994).
pub(super) fn fast_open_options(frame: &[u8], segment: &Segment<'_>) -> Vec<Range<usize>> {
    let (mut at, end) = (segment.options.start, segment.options.end);
    let mut found = Vec::new();
    while let Some(kind) = frame.get(at..end).and_then(|rest| rest.first()) {
        match *kind {
            END_OF_OPTIONS => break,
            NO_OPERATION => at += 1,
            kind => {
                let length = frame.get(at + 1).map_or(0, |length| usize::from(*length));
                let Some(option) = frame[at..end].get(..length).filter(|_| length >= 2) else {
                    break;
                };
                let is_experimental =
                    kind == EXPERIMENT && option[2..].starts_with(&FAST_OPEN_MAGIC);
                if kind == FAST_OPEN || is_experimental {
                    found.push(at..at + length);
                }
                at += length;
            }
        }
    }
    found
}

/// Updates lengths and checksums of a frame whose TCP segment was altered or truncated. Returns
/// `None` if the frame no longer holds a TCP segment.
pub(super) fn update_checksums(mut frame: Vec<u8>, tcp_at: usize) -> Option<Vec<u8>> {
    let total = u16::try_from(frame.len().checked_sub(ETHERNET_HEADER)?).ok()?;
    frame[ETHERNET_HEADER + 2..ETHERNET_HEADER + 4].copy_from_slice(&total.to_be_bytes());
    let header = Ipv4HeaderSlice::from_slice(&frame[ETHERNET_HEADER..tcp_at]).ok()?;
    let sum = header.to_header().calc_header_checksum();
    let (source, destination) = (header.source(), header.destination());
    frame[ETHERNET_HEADER + 10..ETHERNET_HEADER + 12].copy_from_slice(&sum.to_be_bytes());
    let tcp = TcpSlice::from_slice(&frame[tcp_at..]).ok()?;
    let sum = tcp.calc_checksum_ipv4(source, destination).ok()?;
    frame[tcp_at + 16..tcp_at + 18].copy_from_slice(&sum.to_be_bytes());
    Some(frame)
}

impl Segment<'_> {
    /// The offset of the TCP header in the frame.
    pub(super) fn tcp_at(&self) -> usize {
        self.tcp_at
    }
}

pub(super) const NO_OPERATION: u8 = 1;
const END_OF_OPTIONS: u8 = 0;
const FAST_OPEN: u8 = 34;
const EXPERIMENT: u8 = 254;
const FAST_OPEN_MAGIC: [u8; 2] = [0xf9, 0x89];
const TCP_HEADER: usize = 20;

#[cfg(test)]
mod tests {
    use super::super::frames::Tcp;
    use super::*;

    #[test]
    fn segments_are_parsed() {
        let tcp = Tcp { syn: true, options: &[1, 1, 34, 2], payload: b"abc", ..Tcp::default() };
        let frame = tcp.frame();
        let segment = Segment::read(&frame).expect("a segment");
        assert!(segment.is_client_syn());
        assert_eq!(segment.payload, b"abc");
        assert_eq!(&frame[segment.options.clone()], &[1, 1, 34, 2]);
        assert_eq!(&frame[segment.payload_at()..], b"abc");
        assert_eq!(segment.four_tuple, ([10, 77, 1, 1], [10, 77, 1, 2], 40_000, 443));
        assert_eq!(segment.tcp_at(), 34);
    }

    #[test]
    fn padding_and_fragments_are_ignored() {
        let mut frame = Tcp::default().frame();
        frame.resize(64, 0);
        assert!(Segment::read(&frame).expect("a segment").payload.is_empty());
        frame[ETHERNET_HEADER + 6] |= 0x20;
        assert!(Segment::read(&frame).is_none());
        assert!(Segment::read(&frame[..40]).is_none());
    }

    #[test]
    fn rfc7413_4_1_1_options_are_found_in_both_forms_and_broken_ones_are_not() {
        let found = |options: &[u8]| {
            let frame = Tcp { syn: true, options, ..Tcp::default() }.frame();
            let segment = Segment::read(&frame).expect("a segment");
            let start = segment.options.start;
            fast_open_options(&frame, &segment)
                .into_iter()
                .map(|place| (place.start - start, place.end - start))
                .collect::<Vec<_>>()
        };
        assert_eq!(found(&[1, 1, 34, 2]), [(2, 4)]);
        assert_eq!(found(&[2, 4, 5, 180, 34, 6, 1, 2, 3, 4, 1, 1]), [(4, 10)]);
        assert_eq!(found(&[254, 4, 0xf9, 0x89]), [(0, 4)]);
        assert_eq!(found(&[254, 4, 1, 2]), []);
        assert_eq!(found(&[0, 1, 34, 2]), [], "behind the end");
        assert_eq!(found(&[34, 40, 1, 1]), [], "longer than the header");
        assert_eq!(found(&[34, 0, 1, 1]), [], "a length that would not advance");
        assert_eq!(found(&[1, 1, 1, 34]), [], "cut off");
    }
}
