//! A client's Initial packets in a datagram (RFC 9000 section 17.2.2), and what is in them.

use firstflight_wire::{
    CoalescedPacket, Frame, LongType, PacketKind, Protected, Version, coalesced_packets, frames,
    is_long,
};

/// The Initial packets of a datagram that have the destination connection id of its first packet. All
/// other packets are ignored (RFC 9000 section 12.2).
pub(super) fn initials(datagram: &[u8]) -> impl Iterator<Item = Protected<'_>> {
    let mut packets = coalesced_packets(datagram).map_while(|packet| match packet {
        CoalescedPacket::Protected(packet) => Some(packet).filter(|packet| {
            packet.version == Some(Version::One) && packet.destination.len() <= MAX_CID
        }),
        _ => None,
    });
    let first = packets.next();
    let destination = first.map(|packet| packet.destination);
    first.into_iter().chain(packets).filter(move |packet| {
        packet.kind == PacketKind::Initial && Some(packet.destination) == destination
    })
}

/// Whether a datagram may start a connection: its first packet is an Initial of version 1, and the
/// datagram has the minimum length (RFC 9000 section 14.1). Cheap.
pub(super) fn may_start_connection(datagram: &[u8]) -> bool {
    datagram.len() >= MIN_DATAGRAM
        && is_long(datagram[0])
        && datagram[1..5] == Version::One.number().to_be_bytes()
        && Version::One.long_type(datagram[0]) == LongType::Initial
}

/// The CRYPTO frames of an Initial packet's payload, each with its offset, up to the first frame
/// that is malformed or unknown. Returns `None` if there is a frame that an Initial packet must not
/// have (RFC 9000 section 12.4).
pub(super) fn crypto_frames(payload: &[u8]) -> Option<Vec<(u64, &[u8])>> {
    let mut crypto = Vec::new();
    for frame in frames(payload) {
        match frame {
            Frame::Padding(_) | Frame::Ping | Frame::Ack { .. } => {}
            Frame::Crypto { offset, data } => crypto.push((offset, data)),
            // A forbidden frame; or CONNECTION_CLOSE, after which there is no connection.
            _ => return None,
        }
    }
    Some(crypto)
}

const MIN_DATAGRAM: usize = 1200;
/// RFC 9000 section 17.2.
const MAX_CID: usize = 20;

#[cfg(test)]
mod tests {
    use firstflight_wire::PING;

    use super::*;

    #[test]
    fn rfc9000_12_4_frames_of_an_initial_packet() {
        let ack = [0x02, 5, 0, 1, 2, 0, 1];
        let crypto = [0x06, 7, 2, b'a', b'b'];
        let payload = [&[0, PING as u8][..], &ack, &crypto, &[0]].concat();
        assert_eq!(crypto_frames(&payload), Some(vec![(7, &b"ab"[..])]));
        assert_eq!(crypto_frames(&crypto[..4]), Some(Vec::new()), "half a frame");
        // STREAM, HANDSHAKE_DONE, CONNECTION_CLOSE
        for kind in [0x08, 0x1e, 0x1c] {
            assert_eq!(crypto_frames(&[&crypto[..], &[kind, 0, 0, 0]].concat()), None);
        }
    }

    /// quinn's `ConnectionId` cannot hold a longer one.
    #[test]
    fn rfc9000_17_2_a_connection_id_is_at_most_20_bytes_long() {
        for (length, packets) in [(20, 1), (21, 0), (255, 0)] {
            let packet = crate::test_packets::initial_packet(&vec![7; length], b"", 0, &[0; 1200]);
            assert!(may_start_connection(&packet));
            assert_eq!(initials(&packet).count(), packets, "{length}");
        }
    }
}
