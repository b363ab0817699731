//! Middleboxes that do not let TCP Fast Open pass (RFC 7413).

use super::segment::{NO_OPERATION, Segment, fast_open_options, mend};
use crate::cells::{Cell, CellDecision, PacketInCell};

/// Overwrites the option, in SYNs of both sides.
#[derive(Debug)]
pub(super) struct Strip;

impl Cell for Strip {
    fn pass(&mut self, packet: &mut PacketInCell<'_>) -> CellDecision {
        let Some(segment) = Segment::read(packet.frame).filter(|segment| segment.syn) else {
            return CellDecision::Pass;
        };
        let places = fast_open_options(packet.frame, &segment);
        if places.is_empty() {
            return CellDecision::Pass;
        }
        let mut frame = packet.frame[..segment.payload_at() + segment.payload.len()].to_vec();
        for place in places {
            frame[place].fill(NO_OPERATION);
        }
        mend(frame, segment.tcp_at()).map_or(CellDecision::Pass, CellDecision::Alter)
    }
}

/// Drops a client's SYN that has the option.
#[derive(Debug)]
pub(super) struct Drop;

impl Cell for Drop {
    fn pass(&mut self, packet: &mut PacketInCell<'_>) -> CellDecision {
        match Segment::read(packet.frame) {
            Some(segment)
                if segment.opens() && !fast_open_options(packet.frame, &segment).is_empty() =>
            {
                CellDecision::Drop
            }
            _ => CellDecision::Pass,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::frames::{Tcp, checked};
    use super::*;

    const COOKIE: [u8; 12] = [34, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1];

    fn through(cell: &mut dyn Cell, tcp: Tcp<'_>) -> CellDecision {
        cell.pass(&mut PacketInCell { at_ns: 0, frame: &tcp.frame() })
    }

    #[test]
    fn cookie_requests_and_cookies_are_stripped_and_checksums_right() {
        for (options, ack) in [(&[34, 2, 1, 1][..], false), (&COOKIE, false), (&COOKIE, true)] {
            let tcp = Tcp { syn: true, ack, options, payload: b"data", ..Tcp::default() };
            let CellDecision::Alter(frame) = through(&mut Strip, tcp) else { panic!("unaltered") };
            let packet = checked(&frame);
            let Some(etherparse::TransportSlice::Tcp(tcp)) = packet.transport else {
                panic!("no TCP")
            };
            assert!(tcp.options().iter().all(|byte| *byte == NO_OPERATION));
            assert_eq!(tcp.payload(), b"data", "the data of a SYN stays");
        }
    }

    #[test]
    fn other_segments_pass_unaltered() {
        let plain = Tcp { syn: true, options: &[2, 4, 5, 180], ..Tcp::default() };
        assert_eq!(through(&mut Strip, plain), CellDecision::Pass);
        assert_eq!(through(&mut Drop, plain), CellDecision::Pass);
        let no_syn = Tcp { ack: true, options: &COOKIE, ..Tcp::default() };
        assert_eq!(through(&mut Strip, no_syn), CellDecision::Pass);
        assert_eq!(through(&mut Drop, no_syn), CellDecision::Pass);
    }

    #[test]
    fn a_clients_syn_with_the_option_is_dropped() {
        let tcp = Tcp { syn: true, options: &COOKIE, ..Tcp::default() };
        assert_eq!(through(&mut Drop, tcp), CellDecision::Drop);
        assert_eq!(through(&mut Drop, Tcp { ack: true, ..tcp }), CellDecision::Pass, "a SYN-ACK");
    }
}
