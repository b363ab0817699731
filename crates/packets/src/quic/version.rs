//! What differs between the versions of QUIC: salts, labels, and the numbers of packet types.

use crate::decrypt::{Aead, Cipher};

/// A version that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Version {
    /// RFC 9000.
    One,
    /// RFC 9369.
    Two,
}

impl Version {
    pub(crate) const ALL: [Self; 2] = [Self::One, Self::Two];

    pub(crate) fn from_wire(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.number() == number)
    }

    pub(crate) fn number(self) -> u32 {
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
    pub(crate) fn long_type(self, first: u8) -> LongType {
        let bits = (first >> 4) & 3;
        match (self, bits) {
            (Self::One, 0) | (Self::Two, 1) => LongType::Initial,
            (Self::One, 1) | (Self::Two, 2) => LongType::ZeroRtt,
            (Self::One, 2) | (Self::Two, 3) => LongType::Handshake,
            _ => LongType::Retry,
        }
    }

    /// Whether a Retry packet's tag is that for the client's first connection ID (RFC 9001 section
    /// 5.8): nobody who has not seen the Initial packet can have made it.
    pub(crate) fn retry_is_good(self, original: &[u8], packet: &[u8]) -> bool {
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

/// What a long header is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LongType {
    Initial,
    ZeroRtt,
    Handshake,
    Retry,
}
