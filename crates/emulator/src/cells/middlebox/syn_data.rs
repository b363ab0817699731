//! Middleboxes that do not let data in a SYN pass.

use super::segment::{Segment, mend};
use crate::cells::{Cell, CellDecision, PacketInCell};

/// Takes the data out, and lets the SYN pass without it.
#[derive(Debug)]
pub(super) struct Strip;

impl Cell for Strip {
    fn pass(&mut self, packet: &mut PacketInCell<'_>) -> CellDecision {
        let Some(segment) = with_data(packet.frame) else {
            return CellDecision::Pass;
        };
        let without = packet.frame[..segment.payload_at()].to_vec();
        mend(without, segment.tcp_at()).map_or(CellDecision::Pass, CellDecision::Alter)
    }
}

/// Drops the SYN.
#[derive(Debug)]
pub(super) struct Drop;

impl Cell for Drop {
    fn pass(&mut self, packet: &mut PacketInCell<'_>) -> CellDecision {
        with_data(packet.frame).map_or(CellDecision::Pass, |_| CellDecision::Drop)
    }
}

fn with_data(frame: &[u8]) -> Option<Segment<'_>> {
    Segment::read(frame).filter(|segment| segment.opens() && !segment.payload.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::frames::{Tcp, checked};
    use super::*;

    #[test]
    fn the_data_goes_and_the_rest_stays_right() {
        let tcp = Tcp { syn: true, options: &[34, 2, 1, 1], payload: b"data", ..Tcp::default() };
        let frame = tcp.frame();
        let mut packet = PacketInCell { at_ns: 0, frame: &frame };
        let CellDecision::Alter(stripped) = Strip.pass(&mut packet) else { panic!("unaltered") };
        let bare = Tcp { payload: &[], ..tcp }.frame();
        checked(&stripped);
        assert_eq!(stripped, bare);
        assert_eq!(Drop.pass(&mut packet), CellDecision::Drop);
    }

    #[test]
    fn syns_without_data_and_data_without_syn_pass() {
        for tcp in [
            Tcp { syn: true, ..Tcp::default() },
            Tcp { ack: true, payload: b"data", ..Tcp::default() },
            Tcp { syn: true, ack: true, payload: b"data", ..Tcp::default() },
        ] {
            let frame = tcp.frame();
            let mut packet = PacketInCell { at_ns: 0, frame: &frame };
            assert_eq!(Strip.pass(&mut packet), CellDecision::Pass);
            assert_eq!(Drop.pass(&mut packet), CellDecision::Pass);
        }
    }
}
