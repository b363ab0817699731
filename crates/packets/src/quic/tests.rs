//! Arbitrary frames in correctly protected packets, which mutations of captures cannot produce.

use std::net::SocketAddr;

use etherparse::PacketBuilder;
use firstflight_wire::{PacketKeys, PacketKind, Suite, Version};
use proptest::prelude::*;

use crate::{Direction, FirstResponse, LastResponse, Observer, Packet};

/// A datagram between the client's port and the server's, in an Ethernet frame.
pub(super) fn udp_frame(direction: Direction, client_port: u16, payload: &[u8]) -> Vec<u8> {
    let (client, server) = (([10, 0, 0, 1], client_port), ([10, 0, 0, 2], 443));
    let (from, to) = match direction {
        Direction::ToServer => (client, server),
        Direction::ToClient => (server, client),
    };
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([1; 6], [2; 6])
        .ipv4(from.0, to.0, 64)
        .udp(from.1, to.1)
        .write(&mut frame, payload)
        .unwrap();
    frame
}

const RANDOM: [u8; 32] = [7; 32];
const CLIENT_ID: [u8; 4] = [1; 4];
/// Another ID that the client issues.
const OTHER_CLIENT_ID: [u8; 4] = [4; 4];
const SERVER_ID: [u8; 4] = [2; 4];
/// The destination ID of the client's first packet.
const FIRST_ID: [u8; 8] = [3; 8];

fn secret(direction: Direction, kind: PacketKind) -> [u8; 32] {
    [16 * (direction as u8 + 1) + kind as u8; 32]
}

fn key_log() -> String {
    use Direction::{ToClient, ToServer};
    let lines = [
        ("CLIENT_EARLY_TRAFFIC_SECRET", ToServer, PacketKind::ZeroRtt),
        ("CLIENT_HANDSHAKE_TRAFFIC_SECRET", ToServer, PacketKind::Handshake),
        ("SERVER_HANDSHAKE_TRAFFIC_SECRET", ToClient, PacketKind::Handshake),
        ("CLIENT_TRAFFIC_SECRET_0", ToServer, PacketKind::OneRtt),
        ("SERVER_TRAFFIC_SECRET_0", ToClient, PacketKind::OneRtt),
    ];
    let random = hex::encode(RANDOM);
    let line = |(label, direction, kind)| {
        format!("{label} {random} {}\n", hex::encode(secret(direction, kind)))
    };
    lines.map(line).concat()
}

/// A packet that one side sends.
#[derive(Clone, Debug)]
struct Sent {
    direction: Direction,
    kind: PacketKind,
    number: u8,
    updated: bool,
    /// The client's ID that the server uses.
    client_id: [u8; 4],
    frames: Vec<u8>,
}

impl Sent {
    fn packet(&self) -> Vec<u8> {
        let suite = Suite::Aes128GcmSha256;
        let mut keys = match self.kind {
            PacketKind::Initial => {
                PacketKeys::initial(Version::One, &FIRST_ID, self.direction.sender())
            }
            kind => PacketKeys::new(Version::One, suite, &secret(self.direction, kind)),
        }
        .unwrap();
        let updated = self.updated && self.kind == PacketKind::OneRtt;
        if updated {
            keys = keys.updated().unwrap();
        }
        let mut frames = self.frames.clone();
        frames.resize(frames.len().max(8), 0);
        let sealed_len = (4 + frames.len() + 16) as u16;
        let (to, from) = match self.direction {
            Direction::ToServer if self.kind <= PacketKind::ZeroRtt => {
                (&FIRST_ID[..], &CLIENT_ID[..])
            }
            Direction::ToServer => (&SERVER_ID[..], &CLIENT_ID[..]),
            Direction::ToClient => (&self.client_id[..], &SERVER_ID[..]),
        };
        // Packet numbers of four bytes.
        let mut header = match self.kind {
            PacketKind::OneRtt => [&[0x43 | (u8::from(updated) << 2)][..], to].concat(),
            kind => {
                let first = 0xc3 | ((kind as u8) << 4);
                let ids = [&[to.len() as u8], to, &[from.len() as u8], from].concat();
                let token: &[u8] = if kind == PacketKind::Initial { &[0] } else { &[] };
                let len = (0x4000 | sealed_len).to_be_bytes();
                [&[first, 0, 0, 0, 1][..], &ids, token, &len].concat()
            }
        };
        header.extend(u32::from(self.number).to_be_bytes());
        keys.seal(self.number.into(), &header, &frames)
    }

    fn frame(&self) -> Vec<u8> {
        udp_frame(self.direction, 40_000, &self.packet())
    }
}

fn crypto(offset: u8, data: &[u8]) -> Vec<u8> {
    [&[6, offset, 0x40, data.len() as u8][..], data].concat()
}

/// A ClientHello that offers early data, and a ServerHello with a PSK.
fn hellos() -> [Sent; 2] {
    let message = |kind, body: &[u8]| [&[kind, 0, 0, body.len() as u8][..], body].concat();
    let early = [0, 4, 0, 42, 0, 0];
    let hello = [&[3, 3][..], &RANDOM, &[0, 0, 2, 0x13, 1, 1, 0], &early].concat();
    let psk = [0, 12, 0, 43, 0, 2, 3, 4, 0, 41, 0, 2, 0, 0];
    let chosen = [&[3, 3][..], &[9; 32], &[0, 0x13, 1, 0], &psk].concat();
    let sent = |direction, frames| Sent {
        direction,
        kind: PacketKind::Initial,
        number: 0,
        updated: false,
        client_id: CLIENT_ID,
        frames,
    };
    [
        sent(Direction::ToServer, crypto(0, &message(1, &hello))),
        sent(Direction::ToClient, crypto(0, &message(2, &chosen))),
    ]
}

fn frames() -> impl Strategy<Value = Vec<u8>> {
    let data = || prop::collection::vec(any::<u8>(), 0..40);
    let frame = prop_oneof![
        // EncryptedExtensions with early data, Finished, a ticket.
        Just(crypto(0, &[8, 0, 0, 6, 0, 4, 0, 42, 0, 0, 20, 0, 0, 1, 9])),
        (0u8..40, data()).prop_map(|(offset, data)| crypto(offset, &data)),
        // Streams of all four kinds, with and without HTTP/3 frames.
        (0u8..9, 0u8..40, any::<bool>(), data()).prop_map(|(id, offset, fin, data)| {
            [&[0x0e | u8::from(fin), id, offset, data.len() as u8][..], &data].concat()
        }),
        (0u8..9).prop_map(|id| vec![0x0f, id, 0, 5, 1, 1, 7, 0, 0]),
        (0u8..30, 0u8..4).prop_map(|(largest, first)| vec![2, largest, 0, 0, first]),
        Just(vec![1]),
        (1u8..9, data()).prop_map(|(len, id)| {
            [&[0x18, 1, 0, len][..], &id[..id.len().min(len.into())], &[0; 16]].concat()
        }),
        data().prop_map(|token| [&[7, token.len() as u8][..], &token].concat()),
        Just(vec![0x1d, 1, 0]),
        data(),
    ];
    prop::collection::vec(frame, 1..5).prop_map(|frames| frames.concat())
}

fn sent() -> impl Strategy<Value = Sent> {
    let direction = prop_oneof![Just(Direction::ToServer), Just(Direction::ToClient)];
    let kind = prop_oneof![
        Just(PacketKind::Initial),
        Just(PacketKind::Handshake),
        Just(PacketKind::OneRtt)
    ];
    (direction, kind, any::<bool>(), 1u8..40, any::<bool>(), frames()).prop_map(
        |(direction, kind, early, number, updated, frames)| {
            let early = early && direction == Direction::ToServer && kind == PacketKind::OneRtt;
            let kind = if early { PacketKind::ZeroRtt } else { kind };
            Sent { direction, kind, number, updated, client_id: CLIENT_ID, frames }
        },
    )
}

/// quinn uses the first further ID at once, even one from early data, where Firefox issues one.
#[test]
fn rfc9000_7_2_a_server_may_use_an_id_issued_in_early_data() {
    let [hello, chosen] = hellos();
    let sent = |direction, kind, frames: &[u8]| Sent {
        direction,
        kind,
        client_id: OTHER_CLIENT_ID,
        frames: frames.to_vec(),
        ..hello.clone()
    };
    let first = [&[0x18, 1, 0, 4][..], &OTHER_CLIENT_ID, &[0; 16]].concat();
    let with_request = [&first[..], &[0x0b, 0, 3], b"GET"].concat();
    let accepted = crypto(0, &[8, 0, 0, 6, 0, 4, 0, 42, 0, 0, 20, 0, 0, 1, 9]);
    let all = [
        hello.clone(),
        sent(Direction::ToServer, PacketKind::ZeroRtt, &with_request),
        Sent { client_id: OTHER_CLIENT_ID, ..chosen },
        sent(Direction::ToClient, PacketKind::Handshake, &accepted),
        sent(Direction::ToClient, PacketKind::OneRtt, &[&[0x0b, 0, 4][..], b"page"].concat()),
    ];
    let mut observer = Observer::new();
    observer.add_secrets(&key_log());
    for (sent, now) in all.iter().zip(1..) {
        let (direction, frame) = (sent.direction, &sent.frame()[..]);
        let packet = Packet { direction, arrived: now, delivered: Some(now), frame };
        observer.packet(&packet);
    }
    let analyzed = observer.finish();
    assert_eq!(analyzed.len(), 1);
    assert_eq!(analyzed[0].quic().unwrap().unopened, 0);
    assert_eq!(analyzed[0].label().unwrap().kind, crate::LabelKind::EarlyAccepted);
    assert_eq!(analyzed[0].response_bytes, Some(4));
    let owned = all.iter().zip(1..).filter(|(sent, now)| {
        let (direction, frame) = (sent.direction, &sent.frame()[..]);
        analyzed[0].contains(&Packet { direction, arrived: *now, delivered: Some(*now), frame })
    });
    assert_eq!(owned.count(), all.len());
}

#[test]
fn rfc9001_5_7_a_response_is_not_read_before_the_handshake_is_complete() {
    use Direction::{ToClient, ToServer};
    let [hello, chosen] = hellos();
    let sent = |direction, kind, frames: Vec<u8>| Sent { direction, kind, frames, ..hello.clone() };
    let finished = crypto(0, &[8, 0, 0, 6, 0, 4, 0, 42, 0, 0, 20, 0, 0, 1, 9]);
    let request = [&[0x0b, 0, 3][..], b"GET"].concat();
    let response = [&[0x0b, 0, 4][..], b"page"].concat();
    let all = [
        (hello.clone(), 0, Some(10)),
        (sent(ToServer, PacketKind::ZeroRtt, request), 1, Some(11)),
        // The ServerHello is lost.
        (chosen.clone(), 12, None),
        (sent(ToClient, PacketKind::Handshake, finished), 13, Some(23)),
        (sent(ToClient, PacketKind::OneRtt, response), 14, Some(24)),
        (Sent { number: 1, ..chosen }, 50, Some(60)),
    ];
    let mut observer = Observer::new();
    observer.add_secrets(&key_log());
    for (sent, arrived, delivered) in all {
        let frame = &sent.frame()[..];
        observer.packet(&Packet { direction: sent.direction, arrived, delivered, frame });
    }
    let facts = &observer.finish()[0];
    let FirstResponse::Seen { arrived, delivered, .. } = facts.first_response else { panic!() };
    assert_eq!((arrived, delivered, facts.setup_done), (14, Some(60), Some(60)));
    let LastResponse::Seen { delivered, .. } = facts.last_response else { panic!() };
    assert_eq!(delivered, Some(60));
}

/// On a path of 20 ms the client sends its ClientHello again, once before and once after a response
/// could arrive.
#[test]
fn a_retransmission_before_a_response_could_arrive_is_premature() {
    let [hello, chosen] = hellos();
    let again = |number| Sent { number, ..hello.clone() };
    let mut observer = Observer::new();
    observer.add_secrets(&key_log());
    for (sent, arrived) in [(hello.clone(), 0), (chosen, 10), (again(1), 15), (again(2), 25)] {
        let frame = &sent.frame()[..];
        let delivered = Some(arrived + 10);
        observer.packet(&Packet { direction: sent.direction, arrived, delivered, frame });
    }
    let facts = &observer.finish()[0];
    let quic = facts.quic().unwrap();
    assert_eq!((quic.client_retransmissions, quic.server_retransmissions), (2, 0));
    assert_eq!(quic.premature_retransmissions, 1);
}

proptest! {
    // Each case encrypts and decrypts dozens of packets in an unoptimized build.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arbitrary_protected_frames_are_analyzed_without_panic(
        all in prop::collection::vec((sent(), 0u64..50, prop::option::of(0u64..30)), 0..40)
    ) {
        let mut observer = Observer::new();
        observer.add_secrets(&key_log());
        let hellos = hellos().map(|sent| (sent, 1, Some(1)));
        let mut now = 0;
        for (sent, gap, delay) in hellos.into_iter().chain(all) {
            now += gap;
            observer.packet(&Packet {
                direction: sent.direction,
                arrived: now,
                delivered: delay.map(|delay| now + delay),
                frame: &sent.frame(),
            });
        }
        let analyzed = observer.finish_traced(|_| true);
        prop_assert_eq!(analyzed.len(), 1);
        let (facts, trace) = &analyzed[0];
        let quic = facts.quic().unwrap();
        prop_assert_eq!(quic.unopened, 0);
        prop_assert!(facts.tls.is_some());
        prop_assert_eq!(facts.client, SocketAddr::from(([10, 0, 0, 1], 40_000)));
        if let (
            FirstResponse::Seen { round_trips: first, .. },
            LastResponse::Seen { round_trips: last, .. },
        ) = (facts.first_response, facts.last_response)
        {
            prop_assert!(1 <= first && first <= last);
            prop_assert!(facts.response_bytes > Some(0));
        }
        let trace = trace.as_ref().unwrap();
        prop_assert!(trace.packets.iter().all(|packet| !packet.carries.is_empty()));
        let _ = (facts.label(), serde_json::to_string(&analyzed).unwrap());
    }
}
