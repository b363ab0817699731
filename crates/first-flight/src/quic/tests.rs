//! Flights over QUIC as packets, also with another connection id.

use std::time::Duration;

use firstflight_wire::{
    CoalescedPacket, Frame, PacketKeys, PacketKind, Sender, Version, coalesced_packets, frames,
};
use proptest::prelude::*;

use super::ZeroRttPackets;
use crate::{Entropy, FirstFlight, FlightPlan, Hello, ProtocolError, Suite, Ticket};

const OLD: [u8; 8] = [1; 8];
const NEW: [u8; 8] = [2; 8];

fn ticket() -> Ticket {
    Ticket {
        suite: Suite::Aes256GcmSha384,
        identity: vec![7; 200],
        lifetime: Duration::from_secs(60),
        max_early_data: Some(u32::MAX),
        alpn: Some("h3".to_owned()),
        received: Duration::ZERO,
        age_add: 5,
        psk: vec![9; 48],
    }
}

fn flight(early_data: &[u8]) -> FirstFlight {
    let hello = Hello::new("localhost", &["h3"]).over_quic(b"control");
    let entropy = Entropy { connection_ids: [OLD, [3; 8]], ..Entropy::system() };
    let plan = FlightPlan::resume(hello, &ticket()).early_data(early_data);
    plan.build(Duration::from_millis(10), &entropy)
}

/// The ClientHello, and the data of stream 0 in 0-RTT packets whose protection fits their header.
fn read(flight: &FirstFlight, id: &[u8; 8]) -> (Vec<u8>, Vec<u8>) {
    let initial = PacketKeys::initial(Version::One, id, Sender::Client).unwrap();
    let early = flight.copy().take_output();
    let keys = flight.early_packet_keys();
    let (mut hello, mut data) = (Vec::new(), Vec::new());
    for datagram in early {
        for packet in coalesced_packets(&datagram) {
            let CoalescedPacket::Protected(packet) = packet else { panic!("{packet:?}") };
            let keys = match packet.kind {
                PacketKind::Initial => &initial,
                _ => &keys,
            };
            let Some(opened) = keys.open(packet.bytes, packet.number_at, None) else { continue };
            for frame in frames(&opened.frames) {
                match frame {
                    Frame::Crypto { data, .. } => hello.extend_from_slice(data),
                    Frame::Stream { id: 0, data: bytes, .. } => data.extend_from_slice(bytes),
                    _ => {}
                }
            }
        }
    }
    (hello, data)
}

#[test]
fn rfc9001_5_3_only_the_initial_packet_can_get_another_id() {
    let original = flight(b"request");
    let (hello, data) = read(&original, &OLD);
    assert_eq!((hello[0], &*data), (1, &b"request"[..]));
    let under = |zero_rtt| read(&original.with_connection_id(&NEW, zero_rtt).unwrap(), &NEW);
    // Unchanged packets still fit their own header, which names the old id.
    assert_eq!(under(ZeroRttPackets::Kept), (hello.clone(), data.clone()));
    assert_eq!(under(ZeroRttPackets::KeptApart), (hello.clone(), data.clone()));
    assert_eq!(under(ZeroRttPackets::Relabelled), (hello.clone(), Vec::new()));
    assert_eq!(under(ZeroRttPackets::Protected), (hello, data));
}

#[test]
fn rfc9000_14_1_datagrams_with_initial_packets_are_padded() {
    for length in [0, 500, 3000] {
        let datagrams = flight(&vec![b'x'; length]).copy().take_output();
        assert_eq!(datagrams[0].len(), 1200);
        assert!(datagrams.iter().all(|datagram| datagram.len() <= 1200), "{length}");
        assert_eq!(read(&flight(&vec![b'x'; length]), &OLD).1.len(), length);
    }
}

#[test]
fn rfc9000_17_2_5_3_a_retry_keeps_the_packet_numbers() {
    // RFC 9001 appendix A.4.
    let retry =
        hex::decode("ff000000010008f067a5502a4262b5746f6b656e04a265ba2eff4d829058fb3f0f2496ba");
    let id = 0x8394_c8f0_3e51_5708_u64.to_be_bytes();
    let hello = Hello::new("localhost", &["h3"]).over_quic(b"");
    let entropy = Entropy { connection_ids: [id, [3; 8]], ..Entropy::system() };
    let flight =
        FlightPlan::resume(hello, &ticket()).early_data(b"a").build(Duration::ZERO, &entropy);
    let retry = retry.unwrap();
    for (mut connection, resent) in [(flight.connection(), 1), (flight.copy(), 0)] {
        let first = connection.take_output();
        connection.receive(&retry, Duration::ZERO).unwrap();
        assert_eq!(connection.next_event(), Some(crate::Event::AddressValidation));
        let second = connection.take_output();
        assert_eq!(second.len(), resent, "an attacker has no keys for a second flight");
        if let Some(second) = second.first() {
            assert_ne!(second, &first[0]);
            let Some(CoalescedPacket::Protected(packet)) = coalesced_packets(second).next() else {
                panic!()
            };
            assert_eq!(packet.token, b"token");
            let id = &packet.destination;
            let keys = PacketKeys::initial(Version::One, id, Sender::Client).unwrap();
            assert_eq!(keys.open(packet.bytes, packet.number_at, None).unwrap().number, 1);
        }
        connection.receive(&retry, Duration::ZERO).unwrap();
        assert_eq!(connection.next_event(), None, "only one is accepted");
    }
}

#[test]
fn rfc9000_6_2_version_negotiation_ends_the_connection() {
    let mut connection = flight(b"").connection();
    let packet = [&[0x80, 0, 0, 0, 0, 8][..], &[3; 8], &[8], &OLD, &[0, 0, 0, 9]].concat();
    assert_eq!(connection.receive(&packet, Duration::ZERO), Err(ProtocolError::Version));
}

proptest! {
    #[test]
    fn no_packets_complete_a_handshake(
        payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 4..300), 0..6),
        junk in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let keys = PacketKeys::initial(Version::One, &OLD, Sender::Server).unwrap();
        for mut connection in [flight(b"a").connection(), flight(b"a").copy()] {
            for (payload, number) in payloads.iter().zip(0_u32..) {
                let mut header = [&[0xc3, 0, 0, 0, 1, 8][..], &[3; 8], &[8], &[4; 8], &[0]].concat();
                header.extend((0x4000 | (4 + payload.len() + 16) as u16).to_be_bytes());
                header.extend(number.to_be_bytes());
                let packet = keys.seal(number.into(), &header, payload);
                let datagram = [&packet[..], &junk].concat();
                if connection.receive(&datagram, Duration::ZERO).is_err() {
                    break;
                }
                let _ = connection.receive(&junk, Duration::ZERO);
                prop_assert!(connection.take_output().len() < 10);
            }
            prop_assert!(!connection.is_ready());
            prop_assert!(!connection.finish());
        }
    }
}
