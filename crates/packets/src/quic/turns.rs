//! Where a server makes a client start again: Retry and Version Negotiation.

use super::flow::QuicFlow;
use super::header::Part;
use super::opening::Slot;
use crate::Direction;

/// A packet that reached the client and made it start again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn<'a> {
    pub(crate) datagram: usize,
    pub(crate) delivered: u64,
    /// The token of a Retry; `None`: it was a Version Negotiation.
    pub(crate) token: Option<&'a [u8]>,
}

/// All of them, in the order of their arrival. Those that a client passes over are left out: a
/// Retry with a wrong tag or after another (RFC 9000 section 17.2.5.2), and what comes after other
/// packets of the server (section 6.2).
pub(crate) fn turns<'a>(flow: &QuicFlow, slots: &[Slot<'a>]) -> Vec<Turn<'a>> {
    let mut original = None;
    let mut found: Vec<Turn<'a>> = Vec::new();
    for slot in slots {
        let datagram = &flow.datagrams[slot.datagram];
        let mut turn = |token| {
            let delivered = datagram.delivered;
            let turn = |delivered| Turn { datagram: slot.datagram, delivered, token };
            found.extend(delivered.map(turn));
        };
        match (datagram.direction, slot.part) {
            (Direction::ToServer, Part::Protected(packet)) if packet.version.is_some() => {
                original.get_or_insert(packet.destination);
            }
            (Direction::ToClient, Part::Protected(_)) => break,
            (Direction::ToClient, Part::Retry { version, bytes, token })
                if original.is_some_and(|id| version.retry_is_good(id, bytes)) =>
            {
                turn(Some(token));
                break;
            }
            (Direction::ToClient, Part::VersionNegotiation) => {
                original = None;
                turn(None);
            }
            _ => {}
        }
    }
    found
}
