//! Middleboxes that act on UDP, which is QUIC's transport: networks block it, or let little of it
//! through.

use etherparse::{IpNumber, Ipv4Slice};

use crate::cells::rate::Rate;
use crate::cells::{Cell, CellDecision, ETHERNET_HEADER, PacketInCell};

/// Drops UDP.
#[derive(Debug)]
pub(super) struct BlockUdp;

impl Cell for BlockUdp {
    fn pass(&mut self, packet: &mut PacketInCell<'_>) -> CellDecision {
        if is_udp(packet.frame) { CellDecision::Drop } else { CellDecision::Pass }
    }
}

/// Delays UDP to a low rate and drops what exceeds a short queue. Other packets pass.
#[derive(Debug)]
pub(super) struct ThrottleUdp(Rate);

impl ThrottleUdp {
    pub(super) fn new() -> Self {
        Self(Rate::new(THROTTLED_BITS_PER_SECOND, THROTTLED_QUEUE_BYTES, 0))
    }
}

impl Cell for ThrottleUdp {
    fn pass(&mut self, packet: &mut PacketInCell<'_>) -> CellDecision {
        if is_udp(packet.frame) { self.0.pass(packet) } else { CellDecision::Pass }
    }

    fn keeps_order(&self) -> bool {
        // Other packets overtake throttled ones.
        false
    }
}

/// Whether a frame holds UDP in IPv4, fragmented or not.
fn is_udp(frame: &[u8]) -> bool {
    let packet = frame.get(ETHERNET_HEADER..).and_then(|packet| Ipv4Slice::from_slice(packet).ok());
    packet.is_some_and(|ip| ip.payload_ip_number() == IpNumber::UDP)
}

/// Enough for name resolution, and little for anything else.
const THROTTLED_BITS_PER_SECOND: f64 = 256e3;
const THROTTLED_QUEUE_BYTES: u64 = 6_000;

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::super::frames::Tcp;
    use super::*;

    fn datagram(bytes: usize) -> Vec<u8> {
        let builder = PacketBuilder::ethernet2([1; 6], [2; 6])
            .ipv4([10, 77, 1, 1], [10, 77, 1, 2], 64)
            .udp(40_000, 443);
        let mut frame = Vec::new();
        builder.write(&mut frame, &vec![7; bytes]).expect("fits");
        frame
    }

    /// What a middlebox does to a frame at a time in milliseconds, and when the frame leaves.
    fn pass(cell: &mut dyn Cell, at_ms: u64, frame: &[u8]) -> (CellDecision, u64) {
        let mut packet = PacketInCell { at_ns: at_ms * 1_000_000, frame };
        let decision = cell.pass(&mut packet);
        (decision, packet.at_ns / 1_000_000)
    }

    #[test]
    fn udp_is_dropped_and_tcp_passes() {
        let tcp = Tcp { syn: true, ..Tcp::default() }.frame();
        assert_eq!(pass(&mut BlockUdp, 0, &datagram(1_200)).0, CellDecision::Drop);
        assert_eq!(pass(&mut BlockUdp, 0, &tcp).0, CellDecision::Pass);
    }

    #[test]
    fn throttled_udp_is_late_and_then_dropped_and_tcp_is_not() {
        let (mut throttle, first) = (ThrottleUdp::new(), datagram(1_200));
        let (decision, leaves_ms) = pass(&mut throttle, 0, &first);
        // 1,228 bytes of IP at 256 kbit/s.
        assert_eq!((decision, leaves_ms), (CellDecision::Pass, 38));
        let more: Vec<CellDecision> = (0..8).map(|_| pass(&mut throttle, 0, &first).0).collect();
        assert_eq!(more[0], CellDecision::Pass);
        assert_eq!(more[7], CellDecision::Drop);
        let tcp = Tcp { syn: true, ..Tcp::default() }.frame();
        assert_eq!(pass(&mut throttle, 0, &tcp), (CellDecision::Pass, 0));
    }
}
