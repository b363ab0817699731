//! The test vectors of RFC 9001 appendix A, and properties of all packets.

use bytes::BytesMut;
use proptest::prelude::*;
use quinn_proto::crypto::{HeaderKey as _, PacketKey as _};

use crate::header::HeaderKey;
use crate::initial::{initial_secrets, is_valid_retry, retry_tag};
use crate::packet::PacketKey;
use crate::suite::{Secret, Suite};

const DST_CID: &str = "8394c8f03e515708";

fn hex(text: &str) -> Vec<u8> {
    hex::decode(text.split_whitespace().collect::<String>()).unwrap()
}

fn expanded(secret: &Secret, label: &str, length: usize) -> String {
    let mut out = vec![0; length];
    secret.expand(label, &mut out);
    hex::encode(out)
}

fn assert_keys(secret: &Secret, key: &str, iv: &str, hp: &str) {
    assert_eq!(expanded(secret, "quic key", key.len() / 2), key);
    assert_eq!(expanded(secret, "quic iv", iv.len() / 2), iv);
    assert_eq!(expanded(secret, "quic hp", hp.len() / 2), hp);
}

/// Protects a packet whose header ends with the packet number.
fn protect(secret: &Secret, number: u64, header: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut packet = [header, payload, &[0; 16]].concat();
    PacketKey::new(secret).encrypt(number, &mut packet, header.len());
    let pn_len = usize::from(header[0] & 3) + 1;
    HeaderKey::new(secret).encrypt(header.len() - pn_len, &mut packet);
    packet
}

/// Removes the protection of a packet. Returns header and payload.
fn unprotect(secret: &Secret, number: u64, pn_offset: usize, packet: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut packet = packet.to_vec();
    HeaderKey::new(secret).decrypt(pn_offset, &mut packet);
    let header_len = pn_offset + usize::from(packet[0] & 3) + 1;
    let mut payload = BytesMut::from(&packet[header_len..]);
    packet.truncate(header_len);
    PacketKey::new(secret).decrypt(number, &packet, &mut payload).unwrap();
    (packet, payload.to_vec())
}

#[test]
fn rfc9001_a_1_keys() {
    let (client, server) = initial_secrets(&hex(DST_CID));
    assert_keys(
        &client,
        "1f369613dd76d5467730efcbe3b1a22d",
        "fa044b2f42a3fd3b46fb255c",
        "9f50449e04a0e810283a1e9933adedd2",
    );
    assert_keys(
        &server,
        "cf3a5331653c364c88f0f379b6067e37",
        "0ac1493ca1905853b0bba03e",
        "c206b8d9b9f0f37644430b490eeaa314",
    );
}

#[test]
fn rfc9001_a_2_client_initial() {
    let (client, _) = initial_secrets(&hex(DST_CID));
    let header = hex("c300000001088394c8f03e5157080000449e00000002");
    let mut payload = hex("060040f1010000ed0303ebf8fa56f12939b9584a3896472ec40bb863cfd3e868
         04fe3a47f06a2b69484c00000413011302010000c000000010000e00000b6578
         616d706c652e636f6dff01000100000a00080006001d00170018001000070005
         04616c706e000500050100000000003300260024001d00209370b2c9caa47fba
         baf4559fedba753de171fa71f50f1ce15d43e994ec74d748002b000302030400
         0d0010000e0403050306030203080408050806002d00020101001c0002400100
         3900320408ffffffffffffffff05048000ffff07048000ffff08011001048000
         75300901100f088394c8f03e51570806048000ffff");
    payload.resize(1162, 0);
    let packet = protect(&client, 2, &header, &payload);
    assert_eq!(packet.len(), 1200);
    let (start, end) = (&packet[..54], &packet[packet.len() - 16..]);
    assert_eq!(
        hex::encode(start),
        "c000000001088394c8f03e5157080000449e7b9aec34d1b1c98dd7689fb8ec11\
         d242b123dc9bd8bab936b47d92ec356c0bab7df5976d"
    );
    assert_eq!(hex::encode(end), "e221af44860018ab0856972e194cd934");
    assert_eq!(unprotect(&client, 2, 18, &packet), (header, payload));
}

#[test]
fn rfc9001_a_3_server_initial() {
    let (_, server) = initial_secrets(&hex(DST_CID));
    let header = hex("c1000000010008f067a5502a4262b50040750001");
    let payload = hex("02000000000600405a020000560303eefce7f7b37ba1d1632e96677825ddf739
         88cfc79825df566dc5430b9a045a1200130100002e00330024001d00209d3c94
         0d89690b84d08a60993c144eca684d1081287c834d5311bcf32bb9da1a002b00
         020304");
    let packet = protect(&server, 1, &header, &payload);
    let expected = hex("cf000000010008f067a5502a4262b5004075c0d95a482cd0991cd25b0aac406a
         5816b6394100f37a1c69797554780bb38cc5a99f5ede4cf73c3ec2493a1839b3
         dbcba3f6ea46c5b7684df3548e7ddeb9c3bf9c73cc3f3bded74b562bfb19fb84
         022f8ef4cdd93795d77d06edbb7aaf2f58891850abbdca3d20398c276456cbc4
         2158407dd074ee");
    assert_eq!(packet, expected);
    assert_eq!(unprotect(&server, 1, 18, &packet), (header, payload));
}

#[test]
fn rfc9001_a_4_retry() {
    let packet = hex("ff000000010008f067a5502a4262b5746f6b656e04a265ba2eff4d829058fb3f0f2496ba");
    let (head, tag) = packet.split_at(packet.len() - 16);
    assert_eq!(retry_tag(&hex(DST_CID), &[head]), tag);
    let (header, payload) = packet.split_at(packet.len() - 16 - 5);
    assert!(is_valid_retry(&hex(DST_CID), header, payload));
    assert!(!is_valid_retry(&hex("8394c8f03e515709"), header, payload));
    assert!(!is_valid_retry(&hex(DST_CID), header, &payload[..15]));
}

#[test]
fn rfc9001_a_5_chacha20_poly1305_short_header() {
    let secret = hex("9ac312a7f877468ebe69422748ad00a15443f18203a07d6060f688f30f21632b");
    let secret = Secret::new(Suite::ChaCha20Poly1305, &secret).unwrap();
    assert_keys(
        &secret,
        "c6d98ff3441c3fe1b2182094f69caa2ed4b716b65488960a7a984979fb23e1c8",
        "e0459b3474bdd0e44a41c144",
        "25a282b9e82f06f21f488917a4fc8f1b73573685608597d0efcb076b0ab7a7a4",
    );
    assert_eq!(
        expanded(&secret, "quic ku", 32),
        "1223504755036d556342ee9361d253421a826c9ecdf3c7148684b36b714881f9"
    );
    let packet = protect(&secret, 654_360_564, &hex("4200bff4"), &[1]);
    assert_eq!(hex::encode(&packet), "4cfe4189655e5cd55c41f69080575d7999c25a5bfb");
    assert_eq!(unprotect(&secret, 654_360_564, 1, &packet), (hex("4200bff4"), vec![1]));
}

#[test]
fn rfc9001_6_6_limits() {
    for (suite, confidentiality, integrity) in [
        (Suite::Aes128Gcm, 1 << 23, 1 << 52),
        (Suite::Aes256Gcm, 1 << 23, 1 << 52),
        (Suite::ChaCha20Poly1305, u64::MAX, 1 << 36),
    ] {
        let key = PacketKey::new(&Secret::new(suite, &[1; 32]).unwrap());
        assert_eq!(key.confidentiality_limit(), confidentiality);
        assert_eq!(key.integrity_limit(), integrity);
    }
}

fn secrets() -> impl Strategy<Value = Secret> {
    let suites = prop_oneof![
        Just((Suite::Aes128Gcm, 32)),
        Just((Suite::Aes256Gcm, 48)),
        Just((Suite::ChaCha20Poly1305, 32)),
    ];
    (suites, any::<[u8; 32]>()).prop_map(|((suite, length), bytes)| {
        Secret::new(suite, &bytes.repeat(2)[..length]).unwrap()
    })
}

proptest! {
    #[test]
    fn unprotect_returns_what_was_protected(
        secret in secrets(),
        number: u64,
        first: u8,
        rest in proptest::collection::vec(any::<u8>(), 4..40),
        payload in proptest::collection::vec(any::<u8>(), 4..200),
    ) {
        let header = [&[first], &rest[..]].concat();
        let packet = protect(&secret, number, &header, &payload);
        let pn_offset = header.len() - usize::from(first & 3) - 1;
        prop_assert_eq!(unprotect(&secret, number, pn_offset, &packet), (header, payload));
    }

    #[test]
    fn rfc9001_5_3_a_packet_with_a_flipped_bit_does_not_decrypt(
        secret in secrets(),
        number in 0..u64::MAX,
        header in proptest::collection::vec(any::<u8>(), 1..40),
        payload in proptest::collection::vec(any::<u8>(), 0..100),
        at: proptest::sample::Index,
        bit in 0..8_u8,
    ) {
        let key = PacketKey::new(&secret);
        let mut packet = [&header[..], &payload, &[0; 16]].concat();
        key.encrypt(number, &mut packet, header.len());
        let open = |number, packet: &[u8]| {
            let mut text = BytesMut::from(&packet[header.len()..]);
            key.decrypt(number, &packet[..header.len()], &mut text).map(|()| text.to_vec())
        };
        prop_assert_eq!(open(number, &packet).unwrap(), payload);
        prop_assert!(open(number + 1, &packet).is_err());
        let at = at.index(packet.len());
        packet[at] ^= 1 << bit;
        prop_assert!(open(number, &packet).is_err());
    }

    #[test]
    fn packets_of_any_length_are_processed_without_panic(
        secret in secrets(),
        mut packet in proptest::collection::vec(any::<u8>(), 1..60),
        pn_offset in 0..70_usize,
    ) {
        HeaderKey::new(&secret).decrypt(pn_offset, &mut packet);
        HeaderKey::new(&secret).encrypt(pn_offset, &mut packet);
        let mut payload = BytesMut::from(&packet[..]);
        prop_assert!(PacketKey::new(&secret).decrypt(0, &[], &mut payload).is_err());
    }
}
