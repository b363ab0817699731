//! Packet protection (RFC 9001 section 5).

use aes::cipher::{BlockCipherEncrypt, KeyInit};
use aes::{Aes128, Aes256};
use chacha20::ChaCha20;
use chacha20::cipher::{KeyIvInit, StreamCipher, StreamCipherSeek};

use crate::header::Version;
use crate::suite::{Aead, Suite, nonce};

/// A packet without its protection.
#[derive(Debug, PartialEq, Eq)]
pub struct Unprotected {
    /// Its number.
    pub number: u64,
    /// The key phase bit of a packet with a short header.
    pub key_phase: bool,
    /// Its frames.
    pub frames: Vec<u8>,
}

/// The keys of one traffic secret.
pub struct PacketKeys {
    /// The version, which determines labels and salts.
    pub version: Version,
    suite: Suite,
    secret: Vec<u8>,
    aead: Aead,
    iv: [u8; 12],
    header_key: HeaderProtectionKey,
}

/// Who sends a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The client.
    Client,
    /// The server.
    Server,
}

/// The key of header protection, which key updates do not change (RFC 9001 section 6).
#[derive(Clone)]
enum HeaderProtectionKey {
    Aes128(Box<Aes128>),
    Aes256(Box<Aes256>),
    ChaCha20([u8; 32]),
}

impl HeaderProtectionKey {
    fn new(suite: Suite, key: &[u8]) -> Option<Self> {
        Some(match suite {
            Suite::Aes128GcmSha256 => Self::Aes128(Box::new(Aes128::new_from_slice(key).ok()?)),
            Suite::Aes256GcmSha384 => Self::Aes256(Box::new(Aes256::new_from_slice(key).ok()?)),
            Suite::ChaCha20Poly1305Sha256 => Self::ChaCha20(key.try_into().ok()?),
        })
    }

    /// RFC 9001 sections 5.4.3 and 5.4.4.
    fn mask(&self, sample: &[u8; 16]) -> [u8; 5] {
        let mut mask = [0; 5];
        match self {
            Self::Aes128(aes) => {
                let mut block = (*sample).into();
                aes.encrypt_block(&mut block);
                mask.copy_from_slice(&block[..5]);
            }
            Self::Aes256(aes) => {
                let mut block = (*sample).into();
                aes.encrypt_block(&mut block);
                mask.copy_from_slice(&block[..5]);
            }
            Self::ChaCha20(key) => {
                let [a, b, c, d, nonce @ ..] = *sample;
                let counter = u32::from_le_bytes([a, b, c, d]);
                let mut stream = ChaCha20::new(&(*key).into(), &nonce.into());
                if stream.try_seek(u64::from(counter) * 64).is_ok() {
                    stream.apply_keystream(&mut mask);
                }
            }
        }
        mask
    }
}

impl PacketKeys {
    /// Returns `None` if the secret does not have the length of the suite's hash.
    pub fn new(version: Version, suite: Suite, secret: &[u8]) -> Option<Self> {
        if secret.len() != suite.hash_len() {
            return None;
        }
        let len = suite.cipher().key_len();
        let header_key = suite.expand_label(secret, version.labels().hp, b"", len);
        let header_key = HeaderProtectionKey::new(suite, &header_key)?;
        Self::with_header_key(version, suite, secret, header_key)
    }

    fn with_header_key(
        version: Version,
        suite: Suite,
        secret: &[u8],
        header_key: HeaderProtectionKey,
    ) -> Option<Self> {
        let labels = version.labels();
        let cipher = suite.cipher();
        let aead =
            Aead::new(cipher, &suite.expand_label(secret, labels.key, b"", cipher.key_len()))?;
        let iv = suite.expand_label(secret, labels.iv, b"", 12).try_into().ok()?;
        Some(Self { version, suite, secret: secret.to_vec(), aead, iv, header_key })
    }

    /// The keys of Initial packets of `sender`, derived from the destination connection ID of the
    /// client's first one (RFC 9001 section 5.2).
    pub fn initial(version: Version, id: &[u8], sender: Sender) -> Option<Self> {
        let suite = Suite::Aes128GcmSha256;
        let secret = suite.extract(&version.initial_salt(), id);
        let label = match sender {
            Sender::Client => "client in",
            Sender::Server => "server in",
        };
        Self::new(version, suite, &suite.expand_label(&secret, label, b"", 32))
    }

    /// The keys after a key update (RFC 9001 section 6.1).
    pub fn updated(&self) -> Option<Self> {
        let label = self.version.labels().update;
        let secret = self.suite.expand_label(&self.secret, label, b"", self.secret.len());
        Self::with_header_key(self.version, self.suite, &secret, self.header_key.clone())
    }

    /// The key phase bit of a packet with a short header whose number starts at `number_at`, if it
    /// is protected by these keys.
    pub fn key_phase(&self, packet: &[u8], number_at: usize) -> Option<bool> {
        let mask = self.mask_for(packet, number_at)?;
        Some((packet.first()? ^ (mask[0] & 0x1f)) & 0x04 != 0)
    }

    /// Decrypts a packet. `largest` is the largest number of its space so far. Returns `None` if it
    /// is not protected by these keys.
    pub fn open(
        &self,
        packet: &[u8],
        number_at: usize,
        largest: Option<u64>,
    ) -> Option<Unprotected> {
        let mask = self.mask_for(packet, number_at)?;
        let first = packet.first()?;
        let first = first ^ (mask[0] & if first & 0x80 != 0 { 0x0f } else { 0x1f });
        let len = usize::from(first & 3) + 1;
        let (header, sealed) = packet.split_at_checked(number_at + len)?;
        let mut header = header.to_vec();
        header[0] = first;
        let mut truncated = 0;
        for (byte, mask) in header[number_at..].iter_mut().zip(&mask[1..]) {
            *byte ^= mask;
            truncated = truncated << 8 | u64::from(*byte);
        }
        let number = packet_number(largest, truncated, 8 * len as u32);
        let mut frames = sealed.to_vec();
        self.aead.open(&nonce(&self.iv, number), &header, &mut frames)?;
        Some(Unprotected { number, key_phase: first & 0x04 != 0, frames })
    }

    /// Encrypts a packet. `header` ends with the truncated packet number, whose length is in the first
    /// byte. The Length field of a long header has to include the tag of 16 bytes. The frames must be at
    /// least four bytes long.
    pub fn seal(&self, number: u64, header: &[u8], frames: &[u8]) -> Vec<u8> {
        let mut sealed = frames.to_vec();
        self.aead.seal(&nonce(&self.iv, number), header, &mut sealed);
        let mut packet = [header, &sealed].concat();
        let first = header.first().copied().unwrap_or(0);
        let number_at = header.len().saturating_sub(usize::from(first & 3) + 1);
        if let Some(mask) = self.mask_for(&packet, number_at) {
            packet[0] ^= mask[0] & if first & 0x80 != 0 { 0x0f } else { 0x1f };
            for (byte, mask) in packet[number_at..header.len()].iter_mut().zip(&mask[1..]) {
                *byte ^= mask;
            }
        }
        packet
    }

    /// The mask from the sample four bytes after the start of the number (RFC 9001 section 5.4.2).
    fn mask_for(&self, packet: &[u8], number_at: usize) -> Option<[u8; 5]> {
        Some(self.header_key.mask(packet.get(number_at + 4..)?.first_chunk()?))
    }
}

/// The packet number whose lowest `bits` bits are `truncated` (RFC 9000 appendix A.3).
fn packet_number(largest: Option<u64>, truncated: u64, bits: u32) -> u64 {
    const MAX_PACKET_NUMBER: u64 = 1 << 62;
    let expected = largest.map_or(0, |largest| largest + 1);
    let window = 1u64 << bits;
    let candidate = (expected & !(window - 1)) | truncated;
    if candidate + window / 2 <= expected && candidate + window < MAX_PACKET_NUMBER {
        candidate + window
    } else if candidate > expected + window / 2 && candidate >= window {
        candidate - window
    } else {
        candidate
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::header::{CoalescedPacket, coalesced_packets};

    /// The connection ID of RFC 9001 appendix A and RFC 9369 appendix A.
    const ID: [u8; 8] = [0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08];

    fn open(keys: &PacketKeys, datagram: &[u8]) -> Option<Unprotected> {
        let CoalescedPacket::Protected(packet) = coalesced_packets(datagram).next()? else {
            panic!()
        };
        keys.open(packet.bytes, packet.number_at, None)
    }

    #[test]
    fn rfc9001_a_1_initial_keys() {
        let keys = PacketKeys::initial(Version::One, &ID, Sender::Client).unwrap();
        assert_eq!(
            hex::encode(&keys.secret),
            "c00cf151ca5be075ed0ebfb5c80323c42d6b7db67881289af4008f1f6c357aea"
        );
        assert_eq!(hex::encode(keys.iv), "fa044b2f42a3fd3b46fb255c");
        let sample = hex::decode("d1b1c98dd7689fb8ec11d242b123dc9b").unwrap();
        assert_eq!(hex::encode(keys.header_key.mask(sample[..].try_into().unwrap())), "437b9aec36");
    }

    #[test]
    fn rfc9001_a_3_the_servers_initial_packet() {
        let datagram = hex::decode(
            "cf000000010008f067a5502a4262b5004075c0d95a482cd0991cd25b0aac406a5816b6394100f37a1c69797554\
             780bb38cc5a99f5ede4cf73c3ec2493a1839b3dbcba3f6ea46c5b7684df3548e7ddeb9c3bf9c73cc3f3bded74b\
             562bfb19fb84022f8ef4cdd93795d77d06edbb7aaf2f58891850abbdca3d20398c276456cbc42158407dd074ee",
        )
        .unwrap();
        let keys = PacketKeys::initial(Version::One, &ID, Sender::Server).unwrap();
        let opened = open(&keys, &datagram).unwrap();
        assert_eq!((opened.number, opened.frames.len()), (1, 0x75 - 2 - 16));
        assert_eq!(opened.frames[..8], [2, 0, 0, 0, 0, 6, 0, 0x40]);
        let header =
            [&hex::decode("c1000000010008f067a5502a4262b5004075").unwrap()[..], &[0, 1]].concat();
        assert_eq!(keys.seal(1, &header, &opened.frames), datagram);
        for wrong in [
            PacketKeys::initial(Version::One, &ID, Sender::Client),
            PacketKeys::initial(Version::Two, &ID, Sender::Server),
            PacketKeys::initial(Version::One, &ID[1..], Sender::Server),
        ] {
            assert_eq!(open(&wrong.unwrap(), &datagram), None);
        }
    }

    #[test]
    fn rfc9001_a_4_and_rfc9369_a_4_retry_packets() {
        let samples = [
            (
                Version::One,
                "ff000000010008f067a5502a4262b5746f6b656e04a265ba2eff4d829058fb3f0f2496ba",
            ),
            (
                Version::Two,
                "cf6b3343cf0008f067a5502a4262b5746f6b656ec8646ce8bfe33952d955543665dcc7b6",
            ),
        ];
        for (version, packet) in samples {
            let mut packet = hex::decode(packet).unwrap();
            let Some(CoalescedPacket::Retry { token, bytes, .. }) =
                coalesced_packets(&packet).next()
            else {
                panic!()
            };
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
            hex::decode("9ac312a7f877468ebe69422748ad00a15443f18203a07d6060f688f30f21632b")
                .unwrap();
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
}
