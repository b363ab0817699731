//! Takes packet protection off (RFC 9001 section 5).

use aes::cipher::{BlockCipherEncrypt, KeyInit};
use aes::{Aes128, Aes256};
use chacha20::ChaCha20;
use chacha20::cipher::{KeyIvInit, StreamCipher, StreamCipherSeek};
use hkdf::Hkdf;
use sha2::Sha256;

use super::version::Version;
use crate::Direction;
use crate::decrypt::{Aead, Cipher, Suite, expand_label};

/// A packet whose protection is off.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unprotected {
    pub(crate) number: u64,
    pub(crate) key_phase: bool,
    /// Its frames.
    pub(crate) frames: Vec<u8>,
}

/// The keys of one traffic secret.
pub(crate) struct PacketKeys {
    pub(crate) version: Version,
    suite: Suite,
    secret: Vec<u8>,
    aead: Aead,
    iv: [u8; 12],
    mask: MaskKey,
}

/// The key of header protection, which updates leave as it is (RFC 9001 section 6).
#[derive(Clone)]
enum MaskKey {
    Aes128(Box<Aes128>),
    Aes256(Box<Aes256>),
    ChaCha20([u8; 32]),
}

impl MaskKey {
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
    /// `None` if the secret has not the length of the suite's hash.
    pub(crate) fn new(version: Version, suite: Suite, secret: &[u8]) -> Option<Self> {
        let len = suite.cipher().key_len();
        let mask = expand_label(suite, secret, version.labels().hp, len);
        Self::with_mask(version, suite, secret, MaskKey::new(suite, &mask)?)
    }

    fn with_mask(version: Version, suite: Suite, secret: &[u8], mask: MaskKey) -> Option<Self> {
        if secret.len() != suite.secret_len() {
            return None;
        }
        let labels = version.labels();
        let cipher: Cipher = suite.cipher();
        let aead = Aead::new(cipher, &expand_label(suite, secret, labels.key, cipher.key_len()))?;
        let iv = expand_label(suite, secret, labels.iv, 12).try_into().ok()?;
        Some(Self { version, suite, secret: secret.to_vec(), aead, iv, mask })
    }

    /// The keys of Initial packets that are sent in `direction`, from the connection ID to which
    /// the client sent its first one (RFC 9001 section 5.2).
    pub(crate) fn initial(version: Version, id: &[u8], direction: Direction) -> Option<Self> {
        let suite = Suite::Aes128GcmSha256;
        let (secret, _) = Hkdf::<Sha256>::extract(Some(&version.initial_salt()), id);
        let label = match direction {
            Direction::ToServer => "client in",
            Direction::ToClient => "server in",
        };
        Self::new(version, suite, &expand_label(suite, &secret, label, 32))
    }

    /// The keys after a key update (RFC 9001 section 6.1).
    pub(crate) fn updated(&self) -> Option<Self> {
        let label = self.version.labels().update;
        let secret = expand_label(self.suite, &self.secret, label, self.secret.len());
        Self::with_mask(self.version, self.suite, &secret, self.mask.clone())
    }

    /// The key phase of a packet with a short header whose number starts at `number_at`, were it
    /// under these keys.
    pub(crate) fn key_phase(&self, packet: &[u8], number_at: usize) -> Option<bool> {
        let mask = self.mask_of(packet, number_at)?;
        Some((packet.first()? ^ (mask[0] & 0x1f)) & 0x04 != 0)
    }

    /// Opens a packet; `largest` is the largest number of its space so far. `None` if it is not
    /// under these keys.
    pub(crate) fn open(
        &self,
        packet: &[u8],
        number_at: usize,
        largest: Option<u64>,
    ) -> Option<Unprotected> {
        let mask = self.mask_of(packet, number_at)?;
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
        let mut nonce = self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= number;
        }
        let mut frames = sealed.to_vec();
        self.aead.open(&nonce, &header, &mut frames)?;
        Some(Unprotected { number, key_phase: first & 0x04 != 0, frames })
    }

    /// The mask by the sample four bytes behind the number's start (RFC 9001 section 5.4.2).
    fn mask_of(&self, packet: &[u8], number_at: usize) -> Option<[u8; 5]> {
        Some(self.mask.mask(packet.get(number_at + 4..)?.first_chunk()?))
    }
}

/// The number of which `truncated` is the end, `bits` long (RFC 9000 appendix A.3).
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
#[path = "protection_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "sealed_tests.rs"]
mod sealed;
