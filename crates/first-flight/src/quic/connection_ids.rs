//! A flight under another connection id.

use firstflight_wire::{
    CoalescedPacket, PacketKeys, PacketKind, Sender, Version, coalesced_packets,
};

use super::datagrams::{QuicParts, seal_long};

/// How to treat a flight's 0-RTT packets if its connection id changes. Their protection covers the
/// id (RFC 9001 section 5.3), and an attacker does not have the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroRttPackets {
    /// They keep the old id, behind the Initial packet in its datagram. A server should ignore packets
    /// with another id than the first one's (RFC 9000 section 12.2).
    Kept,
    /// They keep the old id, in datagrams of their own.
    KeptApart,
    /// They get the new id in their header, which breaks their protection.
    Relabelled,
    /// They are protected again, which only the client itself can do.
    Protected,
}

/// Rewrites datagrams as an attacker can who knows no secrets: opens Initial packets and protects
/// them again, as their keys follow from the connection id. `parts` has the old ids. `None` if the
/// datagrams are no first flight.
pub(crate) fn rewrite(
    datagrams: &[Vec<u8>],
    parts: &QuicParts,
    destination: &[u8],
    zero_rtt: ZeroRttPackets,
) -> Option<Vec<Vec<u8>>> {
    let old = PacketKeys::initial(Version::One, &parts.destination, Sender::Client)?;
    let new = PacketKeys::initial(Version::One, destination, Sender::Client)?;
    let (mut rewritten, mut apart) = (Vec::new(), Vec::new());
    for datagram in datagrams {
        let mut out = Vec::new();
        for packet in coalesced_packets(datagram) {
            let CoalescedPacket::Protected(packet) = packet else { return None };
            // First byte, version, and the length of the id; the id; the rest of the header.
            let (front, rest) = packet.bytes.split_at_checked(6)?;
            let after_id = rest.get(packet.destination.len()..)?;
            let head = [&front[..5], &[destination.len() as u8], destination].concat();
            match (packet.kind, zero_rtt) {
                (PacketKind::Initial, _) => {
                    let opened = old.open(packet.bytes, packet.number_at, None)?;
                    // The header up to its length field, which `seal_long` writes again; without
                    // header protection.
                    let header_end = packet.number_at.checked_sub(2 + 6)?;
                    let header_end = header_end.checked_sub(packet.destination.len())?;
                    let mut header = [&head[..], after_id.get(..header_end)?].concat();
                    header[0] = 0xc3;
                    out.extend(seal_long(&new, header, opened.number, opened.frames));
                }
                (_, ZeroRttPackets::KeptApart) => apart.push(packet.bytes.to_vec()),
                (_, ZeroRttPackets::Relabelled) => out.extend([&head[..], after_id].concat()),
                (_, _) => out.extend_from_slice(packet.bytes),
            }
        }
        if !out.is_empty() {
            rewritten.push(out);
        }
    }
    rewritten.extend(apart);
    Some(rewritten)
}
