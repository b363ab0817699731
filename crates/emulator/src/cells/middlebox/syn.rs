//! Middleboxes that act on SYNs: on the TCP Fast Open option (RFC 7413), or on data.

use super::segment::{NO_OPERATION, Segment, fast_open_options, update_checksums};
use crate::cells::{Cell, CellDecision, PacketInCell};

/// Overwrites the option in SYNs of both sides.
#[derive(Debug)]
pub(super) struct StripTfo;

impl Cell for StripTfo {
    fn pass(&mut self, packet: &mut PacketInCell<'_>) -> CellDecision {
        let Some(segment) = Segment::read(packet.frame).filter(|segment| segment.syn) else {
            return CellDecision::Pass;
        };
        let options = fast_open_options(packet.frame, &segment);
        if options.is_empty() {
            return CellDecision::Pass;
        }
        let mut frame = packet.frame[..segment.payload_at() + segment.payload.len()].to_vec();
        for option in options {
            frame[option].fill(NO_OPERATION);
        }
        update_checksums(frame, segment.tcp_at()).map_or(CellDecision::Pass, CellDecision::Alter)
    }
}

/// Drops SYNs of clients with the option.
#[derive(Debug)]
pub(super) struct DropTfo;

impl Cell for DropTfo {
    fn pass(&mut self, packet: &mut PacketInCell<'_>) -> CellDecision {
        match Segment::read(packet.frame) {
            Some(segment)
                if segment.is_client_syn()
                    && !fast_open_options(packet.frame, &segment).is_empty() =>
            {
                CellDecision::Drop
            }
            _ => CellDecision::Pass,
        }
    }
}

/// Removes the data of a SYN.
#[derive(Debug)]
pub(super) struct StripSynData;

impl Cell for StripSynData {
    fn pass(&mut self, packet: &mut PacketInCell<'_>) -> CellDecision {
        let Some(segment) = syn_with_data(packet.frame) else {
            return CellDecision::Pass;
        };
        let stripped = packet.frame[..segment.payload_at()].to_vec();
        update_checksums(stripped, segment.tcp_at()).map_or(CellDecision::Pass, CellDecision::Alter)
    }
}

/// Drops SYNs with data.
#[derive(Debug)]
pub(super) struct DropSynData;

impl Cell for DropSynData {
    fn pass(&mut self, packet: &mut PacketInCell<'_>) -> CellDecision {
        syn_with_data(packet.frame).map_or(CellDecision::Pass, |_| CellDecision::Drop)
    }
}

fn syn_with_data(frame: &[u8]) -> Option<Segment<'_>> {
    Segment::read(frame).filter(|segment| segment.is_client_syn() && !segment.payload.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::frames::{Tcp, parse_checked};
    use super::*;

    const COOKIE: [u8; 12] = [34, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1];

    fn pass(cell: &mut dyn Cell, tcp: Tcp<'_>) -> CellDecision {
        cell.pass(&mut PacketInCell { at_ns: 0, frame: &tcp.frame() })
    }

    #[test]
    fn cookie_requests_and_cookies_are_stripped_and_checksums_right() {
        for (options, ack) in [(&[34, 2, 1, 1][..], false), (&COOKIE, false), (&COOKIE, true)] {
            let tcp = Tcp { syn: true, ack, options, payload: b"data", ..Tcp::default() };
            let CellDecision::Alter(frame) = pass(&mut StripTfo, tcp) else { panic!("unaltered") };
            let packet = parse_checked(&frame);
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
        assert_eq!(pass(&mut StripTfo, plain), CellDecision::Pass);
        assert_eq!(pass(&mut DropTfo, plain), CellDecision::Pass);
        let no_syn = Tcp { ack: true, options: &COOKIE, ..Tcp::default() };
        assert_eq!(pass(&mut StripTfo, no_syn), CellDecision::Pass);
        assert_eq!(pass(&mut DropTfo, no_syn), CellDecision::Pass);
    }

    #[test]
    fn a_clients_syn_with_the_option_is_dropped() {
        let tcp = Tcp { syn: true, options: &COOKIE, ..Tcp::default() };
        assert_eq!(pass(&mut DropTfo, tcp), CellDecision::Drop);
        assert_eq!(pass(&mut DropTfo, Tcp { ack: true, ..tcp }), CellDecision::Pass, "a SYN-ACK");
    }
}

#[cfg(test)]
mod syn_data_tests {
    use super::super::frames::{Tcp, parse_checked};
    use super::*;

    #[test]
    fn data_is_removed_and_checksums_are_right() {
        let tcp = Tcp { syn: true, options: &[34, 2, 1, 1], payload: b"data", ..Tcp::default() };
        let frame = tcp.frame();
        let mut packet = PacketInCell { at_ns: 0, frame: &frame };
        let CellDecision::Alter(stripped) = StripSynData.pass(&mut packet) else {
            panic!("unaltered")
        };
        let bare = Tcp { payload: &[], ..tcp }.frame();
        parse_checked(&stripped);
        assert_eq!(stripped, bare);
        assert_eq!(DropSynData.pass(&mut packet), CellDecision::Drop);
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
            assert_eq!(StripSynData.pass(&mut packet), CellDecision::Pass);
            assert_eq!(DropSynData.pass(&mut packet), CellDecision::Pass);
        }
    }
}
