//! A hop with a smaller MTU.

use std::fmt;

use etherparse::{Icmpv4Type, Ipv4Slice, PacketBuilder, icmpv4};

use super::{Cell, CellDecision, CellSettings, ETHERNET_HEADER, PacketInCell, Seeds};

/// A hop with a smaller MTU.
#[derive(Debug, Clone, PartialEq)]
pub struct MtuSpec {
    /// The largest IP packet that passes, in bytes, from 576 (RFC 791) to 1500.
    pub bytes: u16,
    /// What happens to larger packets.
    pub too_big: TooBig,
}

impl CellSettings for MtuSpec {
    fn name(&self) -> &'static str {
        "mtu"
    }

    fn fault(&self) -> Option<String> {
        (!(MIN_MTU..=MAX_MTU).contains(&self.bytes))
            .then(|| format!("an MTU is {MIN_MTU} to {MAX_MTU} bytes, not {}", self.bytes))
    }

    fn build(&self, _: Seeds) -> Box<dyn Cell> {
        Box::new(Mtu { bytes: self.bytes, too_big: self.too_big })
    }
}

impl fmt::Display for MtuSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.too_big {
            TooBig::Icmp => write!(f, "MTU {}", self.bytes),
            TooBig::BlackHole => write!(f, "MTU {}, a black hole", self.bytes),
        }
    }
}

const MIN_MTU: u16 = 576;
const MAX_MTU: u16 = 1_500;

/// What happens to a packet that is too big.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TooBig {
    /// The sender gets an ICMP "fragmentation needed" (RFC 1191 section 4) with the MTU of the next
    /// hop. The message starts where the packet was dropped, and passes the cells of the other
    /// direction. A packet that may be fragmented (without DF, which Linux's TCP never sends) is
    /// dropped without a message: this hop does not fragment.
    Icmp,
    /// It is dropped silently: a path-MTU black hole (RFC 2923 section 2.1).
    BlackHole,
}

/// Drops IP packets larger than the MTU.
#[derive(Debug)]
pub(super) struct Mtu {
    pub(super) bytes: u16,
    pub(super) too_big: TooBig,
}

impl Cell for Mtu {
    fn pass(&mut self, packet: &mut PacketInCell<'_>) -> CellDecision {
        if packet.length() <= u64::from(self.bytes) {
            return CellDecision::Pass;
        }
        match self.too_big {
            TooBig::BlackHole => CellDecision::Drop,
            TooBig::Icmp => match fragmentation_needed(packet.frame, self.bytes) {
                Some(message) => CellDecision::Refuse(message),
                None => CellDecision::Drop,
            },
        }
    }
}

/// The ICMP message to the sender of a frame. It has the frame's destination as its source, because
/// the emulated hop has no address.
fn fragmentation_needed(frame: &[u8], mtu: u16) -> Option<Vec<u8>> {
    let (ethernet, ip) = frame.split_at_checked(ETHERNET_HEADER)?;
    let (to, from) = (ethernet.first_chunk::<6>()?, ethernet[6..].first_chunk::<6>()?);
    let packet = Ipv4Slice::from_slice(ip).ok()?;
    let header = packet.header();
    if !header.dont_fragment() || header.fragments_offset().value() > 0 {
        return None;
    }
    let quoted = &ip[..ip.len().min(header.slice().len() + QUOTED_BYTES)];
    let code = icmpv4::DestUnreachableHeader::FragmentationNeeded { next_hop_mtu: mtu };
    let builder = PacketBuilder::ethernet2(*to, *from)
        .ipv4(header.destination(), header.source(), TIME_TO_LIVE)
        .icmpv4(Icmpv4Type::DestinationUnreachable(code));
    let mut message = Vec::with_capacity(builder.size(quoted.len()));
    builder.write(&mut message, quoted).ok()?;
    Some(message)
}

/// How many bytes behind the IP header a message quotes: ports and sequence number (RFC 792).
const QUOTED_BYTES: usize = 8;
const TIME_TO_LIVE: u8 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(payload: usize, dont_fragment: bool) -> Vec<u8> {
        let mut header = etherparse::Ipv4Header::new(
            0,
            64,
            etherparse::IpNumber::TCP,
            [10, 77, 1, 1],
            [10, 77, 1, 2],
        )
        .expect("fits");
        header.dont_fragment = dont_fragment;
        let ip = etherparse::IpHeaders::Ipv4(header, Default::default());
        let mut frame = Vec::new();
        PacketBuilder::ethernet2([1; 6], [2; 6])
            .ip(ip)
            .tcp(40_000, 443, 77, 1_000)
            .write(&mut frame, &vec![9; payload])
            .expect("fits");
        frame
    }

    fn decision(frame: &[u8], too_big: TooBig) -> CellDecision {
        Mtu { bytes: 1_400, too_big }.pass(&mut PacketInCell { at_ns: 0, frame })
    }

    #[test]
    fn small_packets_pass() {
        assert_eq!(decision(&frame(1_360, true), TooBig::Icmp), CellDecision::Pass);
        assert_eq!(decision(&frame(1_361, true), TooBig::BlackHole), CellDecision::Drop);
    }

    #[test]
    fn rfc1191_4_the_message_has_the_mtu_and_quotes_the_packet() {
        let sent = frame(1_361, true);
        let CellDecision::Refuse(message) = decision(&sent, TooBig::Icmp) else {
            panic!("no message")
        };
        let parsed = etherparse::SlicedPacket::from_ethernet(&message).expect("a whole packet");
        let Some(etherparse::NetSlice::Ipv4(ip)) = parsed.net else { panic!("no IPv4") };
        assert_eq!(ip.header().destination(), [10, 77, 1, 1], "to the sender");
        assert_eq!(message[..6], [1; 6], "to the sender's interface");
        let Some(etherparse::TransportSlice::Icmpv4(icmp)) = parsed.transport else {
            panic!("no ICMP")
        };
        let code = icmpv4::DestUnreachableHeader::FragmentationNeeded { next_hop_mtu: 1_400 };
        assert_eq!(icmp.icmp_type(), Icmpv4Type::DestinationUnreachable(code));
        assert_eq!(icmp.payload(), &sent[ETHERNET_HEADER..ETHERNET_HEADER + 28]);
    }

    #[test]
    fn packets_without_df_and_other_frames_are_dropped_silently() {
        assert_eq!(decision(&frame(1_400, false), TooBig::Icmp), CellDecision::Drop);
        assert_eq!(decision(&vec![0xff; 1_500], TooBig::Icmp), CellDecision::Drop);
    }
}
