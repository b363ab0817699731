//! The unprotected parts of packet headers, the packets in a datagram, and the differences
//! between the versions of QUIC.

use std::fmt;

use serde::Serialize;

use crate::suite::{Aead, Cipher};

/// Parses the basic types of QUIC. Methods return `None` if the input is too short.
#[derive(Clone, Copy)]
pub struct Input<'a>(
    /// The remaining bytes.
    pub &'a [u8],
);

impl<'a> Input<'a> {
    /// The next bytes.
    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    /// The next byte.
    pub fn u8(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*taken))
    }

    /// A variable-length integer (RFC 9000 section 16).
    pub fn varint(&mut self) -> Option<u64> {
        let first = *self.0.first()?;
        let bytes = self.take(1 << (first >> 6))?;
        let value = bytes.iter().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
        Some(value & (u64::MAX >> (64 - (8 * bytes.len() as u32 - 2))))
    }

    /// A length and that many bytes.
    pub fn varint_vec(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.varint()?).ok()?;
        self.take(len)
    }

    fn connection_id(&mut self) -> Option<&'a [u8]> {
        let len = usize::from(self.u8()?);
        self.take(len)
    }
}

/// Appends a variable-length integer, in as few bytes as possible. The two highest bits of `value` are
/// lost.
pub fn put_varint(out: &mut Vec<u8>, value: u64) {
    match value {
        0..0x40 => out.push(value as u8),
        0x40..0x4000 => out.extend_from_slice(&(value as u16 | 1 << 14).to_be_bytes()),
        0x4000..0x4000_0000 => out.extend_from_slice(&(value as u32 | 2 << 30).to_be_bytes()),
        _ => out.extend_from_slice(&(value | 3 << 62).to_be_bytes()),
    }
}

/// The part of a long header that all versions share (RFC 8999 section 5.1).
#[derive(Clone, Copy, Debug)]
pub struct LongHeader<'a> {
    /// The first byte; its lower half is protected.
    pub first: u8,
    /// The version.
    pub version: u32,
    /// The destination connection id.
    pub destination: &'a [u8],
    /// The source connection id.
    pub source: &'a [u8],
    /// The bytes after this part.
    rest: &'a [u8],
}

impl<'a> LongHeader<'a> {
    /// Parses a long header. Returns `None` for a short header or malformed bytes.
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let mut input = Input(bytes);
        let first = input.u8().filter(|first| is_long(*first))?;
        let version = input.u32()?;
        let destination = input.connection_id()?;
        let source = input.connection_id()?;
        Some(Self { first, version, destination, source, rest: input.0 })
    }

    /// The type of the packet. Returns `None` if the version is not supported.
    pub fn long_type(&self) -> Option<LongType> {
        Some(Version::from_wire(self.version)?.long_type(self.first))
    }
}

/// Whether a packet with this first byte has a long header.
pub fn is_long(first: u8) -> bool {
    first & 0x80 != 0
}

/// One of the packets that are coalesced in a datagram (RFC 9000 section 12.2).
#[derive(Clone, Copy, Debug)]
pub enum CoalescedPacket<'a> {
    /// A Version Negotiation packet.
    VersionNegotiation,
    /// A Retry packet.
    Retry {
        /// Its version.
        version: Version,
        /// The source connection id.
        source: &'a [u8],
        /// The token.
        token: &'a [u8],
        /// The whole packet.
        bytes: &'a [u8],
    },
    /// A packet with protection.
    Protected(Protected<'a>),
    /// A packet of an unsupported version, or a malformed one.
    Other {
        /// Its length.
        len: usize,
    },
}

/// A packet with its protection.
#[derive(Clone, Copy, Debug)]
pub struct Protected<'a> {
    /// Its kind.
    pub kind: PacketKind,
    /// The version; `None` for a short header.
    pub version: Option<Version>,
    /// The destination connection id; empty for a short header, which does not show its length.
    pub destination: &'a [u8],
    /// The source connection id; empty for a short header.
    pub source: &'a [u8],
    /// The token of an Initial packet.
    pub token: &'a [u8],
    /// The whole packet.
    pub bytes: &'a [u8],
    /// Where its packet number starts; 0 for a short header, which does not show it.
    pub number_at: usize,
}

/// The packets that are coalesced in a datagram (RFC 9000 section 12.2).
pub fn coalesced_packets(datagram: &[u8]) -> impl Iterator<Item = CoalescedPacket<'_>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let first = *rest.first()?;
        let taken = std::mem::take(&mut rest);
        if is_long(first) {
            let len = taken.len();
            let (packet, after) =
                parse_long(taken).unwrap_or((CoalescedPacket::Other { len }, &[]));
            rest = after;
            return Some(packet);
        }
        // Some senders pad a datagram after its packets.
        if taken.iter().all(|byte| *byte == 0) {
            return None;
        }
        Some(CoalescedPacket::Protected(Protected {
            kind: PacketKind::OneRtt,
            version: None,
            destination: &[],
            source: &[],
            token: &[],
            bytes: taken,
            number_at: 0,
        }))
    })
}

fn parse_long(bytes: &[u8]) -> Option<(CoalescedPacket<'_>, &[u8])> {
    let header = LongHeader::read(bytes)?;
    if header.version == 0 {
        return Some((CoalescedPacket::VersionNegotiation, &[]));
    }
    let version = Version::from_wire(header.version)?;
    let mut input = Input(header.rest);
    let kind = match version.long_type(header.first) {
        LongType::Initial => PacketKind::Initial,
        LongType::ZeroRtt => PacketKind::ZeroRtt,
        LongType::Handshake => PacketKind::Handshake,
        LongType::Retry => {
            let token = header.rest.split_last_chunk::<16>()?.0;
            let source = header.source;
            return Some((CoalescedPacket::Retry { version, source, token, bytes }, &[]));
        }
    };
    let token = if kind == PacketKind::Initial { input.varint_vec()? } else { &[] };
    let len = usize::try_from(input.varint()?).ok()?;
    let number_at = bytes.len() - input.0.len();
    let (packet, after) = bytes.split_at_checked(number_at.checked_add(len)?)?;
    let protected = Protected {
        kind,
        version: Some(version),
        destination: header.destination,
        source: header.source,
        token,
        bytes: packet,
        number_at,
    };
    Some((CoalescedPacket::Protected(protected), after))
}

/// A kind of protected QUIC packet (RFC 9000 section 17).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PacketKind {
    /// Initial.
    Initial,
    /// 0-RTT.
    ZeroRtt,
    /// Handshake.
    Handshake,
    /// 1-RTT.
    OneRtt,
}

impl PacketKind {
    /// The index of its packet number space (RFC 9000 section 12.3).
    pub fn space(self) -> usize {
        match self {
            Self::Initial => 0,
            Self::Handshake => 1,
            Self::ZeroRtt | Self::OneRtt => 2,
        }
    }
}

impl fmt::Display for PacketKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Initial => "Initial",
            Self::ZeroRtt => "0-RTT",
            Self::Handshake => "Handshake",
            Self::OneRtt => "1-RTT",
        })
    }
}

/// A supported version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// RFC 9000.
    One,
    /// RFC 9369.
    Two,
}

impl Version {
    /// All versions.
    pub const ALL: [Self; 2] = [Self::One, Self::Two];

    /// The version with this number.
    pub fn from_wire(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.number() == number)
    }

    /// The number.
    pub fn number(self) -> u32 {
        match self {
            Self::One => 1,
            Self::Two => 0x6b33_43cf,
        }
    }

    /// The salt of the Initial secrets (RFC 9001 section 5.2, RFC 9369 section 3.3.1).
    pub(crate) fn initial_salt(self) -> [u8; 20] {
        match self {
            Self::One => [
                0x38, 0x76, 0x2c, 0xf7, 0xf5, 0x59, 0x34, 0xb3, 0x4d, 0x17, 0x9a, 0xe6, 0xa4, 0xc8,
                0x0c, 0xad, 0xcc, 0xbb, 0x7f, 0x0a,
            ],
            Self::Two => [
                0x0d, 0xed, 0xe3, 0xde, 0xf7, 0x00, 0xa6, 0xdb, 0x81, 0x93, 0x81, 0xbe, 0x6e, 0x26,
                0x9d, 0xcb, 0xf9, 0xbd, 0x2e, 0xd9,
            ],
        }
    }

    /// The labels of key, IV, header protection and key update (RFC 9001 sections 5.1 and 6.1).
    pub(crate) fn labels(self) -> Labels {
        match self {
            Self::One => {
                Labels { key: "quic key", iv: "quic iv", hp: "quic hp", update: "quic ku" }
            }
            Self::Two => {
                Labels { key: "quicv2 key", iv: "quicv2 iv", hp: "quicv2 hp", update: "quicv2 ku" }
            }
        }
    }

    /// The type of a long header by the two bits of its first byte (RFC 9000 section 17.2, RFC
    /// 9369 section 3.2).
    pub fn long_type(self, first: u8) -> LongType {
        let bits = (first >> 4) & 3;
        match (self, bits) {
            (Self::One, 0) | (Self::Two, 1) => LongType::Initial,
            (Self::One, 1) | (Self::Two, 2) => LongType::ZeroRtt,
            (Self::One, 2) | (Self::Two, 3) => LongType::Handshake,
            _ => LongType::Retry,
        }
    }

    /// Whether a Retry packet's integrity tag matches the client's first connection ID (RFC 9001
    /// section 5.8). Only an observer of the Initial packet can compute the tag.
    pub fn retry_is_good(self, original: &[u8], packet: &[u8]) -> bool {
        let (key, nonce) = match self {
            Self::One => (
                0xbe0c_690b_9f66_575a_1d76_6b54_e368_c84e_u128,
                0x4615_99d3_5d63_2bf2_2398_25bb_u128,
            ),
            Self::Two => (
                0x8fb4_b01b_56ac_48e2_60fb_cbce_ad7c_cc92_u128,
                0xd869_69bc_2d7c_6d99_90ef_b04a_u128,
            ),
        };
        let Some((covered, tag)) = packet.split_last_chunk::<16>() else {
            return false;
        };
        let mut nonce_bytes = [0; 12];
        nonce_bytes.copy_from_slice(&nonce.to_be_bytes()[4..]);
        let mut pseudo = Vec::with_capacity(1 + original.len() + covered.len());
        pseudo.push(original.len() as u8);
        pseudo.extend_from_slice(original);
        pseudo.extend_from_slice(covered);
        Aead::new(Cipher::Aes128Gcm, &key.to_be_bytes())
            .and_then(|aead| aead.open(&nonce_bytes, &pseudo, &mut tag.to_vec()))
            .is_some()
    }
}

/// The labels of a version's keys.
pub(crate) struct Labels {
    pub(crate) key: &'static str,
    pub(crate) iv: &'static str,
    pub(crate) hp: &'static str,
    pub(crate) update: &'static str,
}

/// The type of a packet with a long header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LongType {
    /// Initial.
    Initial,
    /// 0-RTT.
    ZeroRtt,
    /// Handshake.
    Handshake,
    /// Retry.
    Retry,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc9000_a_1_variable_length_integers() {
        let samples: [(&[u8], u64); 5] = [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
            (&[0x40, 0x25], 37),
        ];
        for (bytes, value) in samples {
            assert_eq!(Input(bytes).varint(), Some(value));
            assert_eq!(Input(&bytes[..bytes.len() - 1]).varint(), None);
            let mut shortest = Vec::new();
            put_varint(&mut shortest, value);
            assert_eq!(Input(&shortest).varint(), Some(value));
            assert!(shortest.len() <= bytes.len());
        }
    }

    #[test]
    fn rfc9000_12_2_packets_share_a_datagram() {
        // An Initial with a token of one byte, a Handshake packet, a short header, and padding.
        let mut datagram = vec![0xc0, 0, 0, 0, 1, 1, 7, 2, 8, 9, 1, 0xaa, 3, 1, 2, 3];
        let handshake = [0xe0, 0, 0, 0, 1, 1, 7, 0, 2, 4, 5];
        datagram.extend(handshake);
        datagram.extend([0x40, 7, 1, 2, 3]);
        let found: Vec<_> = coalesced_packets(&datagram)
            .map(|part| match part {
                CoalescedPacket::Protected(packet) => {
                    (packet.kind, packet.token.len(), packet.bytes.len(), packet.number_at)
                }
                other => panic!("{other:?}"),
            })
            .collect();
        let expected = [
            (PacketKind::Initial, 1, 16, 13),
            (PacketKind::Handshake, 0, 11, 9),
            (PacketKind::OneRtt, 0, 5, 0),
        ];
        assert_eq!(found, expected);
        let mut padded = handshake.to_vec();
        padded.extend([0; 20]);
        assert_eq!(coalesced_packets(&padded).count(), 1);
        assert!(matches!(
            coalesced_packets(&datagram[..12]).next(),
            Some(CoalescedPacket::Other { len: 12 })
        ));
    }
}
