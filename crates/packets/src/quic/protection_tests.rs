use proptest::prelude::*;

use super::super::header::{Part, parts};
use super::*;

/// The connection ID of RFC 9001 appendix A and RFC 9369 appendix A.
const ID: [u8; 8] = [0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08];

fn open(keys: &PacketKeys, datagram: &[u8]) -> Option<Unprotected> {
    let Part::Protected(packet) = parts(datagram).next()? else { panic!() };
    keys.open(packet.bytes, packet.number_at, None)
}

#[test]
fn rfc9001_a_1_initial_keys() {
    let keys = PacketKeys::initial(Version::One, &ID, Direction::ToServer).unwrap();
    assert_eq!(
        hex::encode(&keys.secret),
        "c00cf151ca5be075ed0ebfb5c80323c42d6b7db67881289af4008f1f6c357aea"
    );
    assert_eq!(hex::encode(keys.iv), "fa044b2f42a3fd3b46fb255c");
    let sample = hex::decode("d1b1c98dd7689fb8ec11d242b123dc9b").unwrap();
    assert_eq!(hex::encode(keys.mask.mask(sample[..].try_into().unwrap())), "437b9aec36");
}

#[test]
fn rfc9001_a_3_the_servers_initial_packet() {
    let datagram = hex::decode(
        "cf000000010008f067a5502a4262b5004075c0d95a482cd0991cd25b0aac406a5816b6394100f37a1c69797554\
         780bb38cc5a99f5ede4cf73c3ec2493a1839b3dbcba3f6ea46c5b7684df3548e7ddeb9c3bf9c73cc3f3bded74b\
         562bfb19fb84022f8ef4cdd93795d77d06edbb7aaf2f58891850abbdca3d20398c276456cbc42158407dd074ee",
    )
    .unwrap();
    let keys = PacketKeys::initial(Version::One, &ID, Direction::ToClient).unwrap();
    let opened = open(&keys, &datagram).unwrap();
    assert_eq!((opened.number, opened.frames.len()), (1, 0x75 - 2 - 16));
    assert_eq!(opened.frames[..8], [2, 0, 0, 0, 0, 6, 0, 0x40]);
    for wrong in [
        PacketKeys::initial(Version::One, &ID, Direction::ToServer),
        PacketKeys::initial(Version::Two, &ID, Direction::ToClient),
        PacketKeys::initial(Version::One, &ID[1..], Direction::ToClient),
    ] {
        assert_eq!(open(&wrong.unwrap(), &datagram), None);
    }
}

#[test]
fn rfc9001_a_4_and_rfc9369_a_4_retry_packets() {
    let samples = [
        (Version::One, "ff000000010008f067a5502a4262b5746f6b656e04a265ba2eff4d829058fb3f0f2496ba"),
        (Version::Two, "cf6b3343cf0008f067a5502a4262b5746f6b656ec8646ce8bfe33952d955543665dcc7b6"),
    ];
    for (version, packet) in samples {
        let mut packet = hex::decode(packet).unwrap();
        let Some(Part::Retry { token, bytes, .. }) = parts(&packet).next() else { panic!() };
        assert_eq!(token, b"token");
        assert!(version.retry_is_good(&ID, bytes));
        assert!(!version.retry_is_good(&ID[1..], bytes));
        packet[16] ^= 1;
        assert!(!version.retry_is_good(&ID, &packet));
    }
}

#[test]
fn rfc9001_a_5_and_rfc9369_a_5_chacha20_short_headers() {
    let secret =
        hex::decode("9ac312a7f877468ebe69422748ad00a15443f18203a07d6060f688f30f21632b").unwrap();
    for (version, packet) in [
        (Version::One, "4cfe4189655e5cd55c41f69080575d7999c25a5bfb"),
        (Version::Two, "5558b1c60ae7b6b932bc27d786f4bc2bb20f2162ba"),
    ] {
        let keys = PacketKeys::new(version, Suite::ChaCha20Poly1305Sha256, &secret).unwrap();
        let packet = hex::decode(packet).unwrap();
        let opened = keys.open(&packet, 1, Some(654_360_563)).unwrap();
        assert_eq!(
            (opened.number, &*opened.frames, opened.key_phase),
            (654_360_564, &[1][..], false)
        );
        assert_eq!(keys.key_phase(&packet, 1), Some(false));
        assert_eq!(keys.updated().unwrap().open(&packet, 1, Some(654_360_563)), None);
    }
}

#[test]
fn rfc9000_a_3_packet_numbers() {
    assert_eq!(packet_number(Some(0xa82f_30ea), 0x9b32, 16), 0xa82f_9b32);
    assert_eq!(packet_number(None, 0, 8), 0);
}

proptest! {
    #[test]
    fn rfc9000_a_3_any_number_near_the_largest_is_found(
        largest in 0u64..1 << 61, off in -100i64..100, len in 1u32..=4
    ) {
        let number = largest.saturating_add_signed(off);
        let truncated = number & ((1 << (8 * len)) - 1);
        prop_assert_eq!(packet_number(Some(largest), truncated, 8 * len), number);
    }
}
