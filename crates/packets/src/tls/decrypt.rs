//! Decrypts TLS 1.3 records with their traffic secrets (RFC 8446 sections 5.2 and 7.3). QUIC shares
//! the suites, ciphers and key derivation.

use aes_gcm::{Aes128Gcm, Aes256Gcm};
use chacha20poly1305::ChaCha20Poly1305;
use chacha20poly1305::aead::{AeadInOut, KeyInit};
use hkdf::Hkdf;
use sha2::{Sha256, Sha384};

use super::record::Record;

/// The supported cipher suites of TLS 1.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Suite {
    Aes128GcmSha256,
    Aes256GcmSha384,
    ChaCha20Poly1305Sha256,
}

impl Suite {
    pub(crate) const ALL: [Self; 3] =
        [Self::Aes128GcmSha256, Self::Aes256GcmSha384, Self::ChaCha20Poly1305Sha256];

    pub(crate) fn from_wire(id: u16) -> Option<Self> {
        match id {
            0x1301 => Some(Self::Aes128GcmSha256),
            0x1302 => Some(Self::Aes256GcmSha384),
            0x1303 => Some(Self::ChaCha20Poly1305Sha256),
            _ => None,
        }
    }

    pub(crate) fn cipher(self) -> Cipher {
        match self {
            Self::Aes128GcmSha256 => Cipher::Aes128Gcm,
            Self::Aes256GcmSha384 => Cipher::Aes256Gcm,
            Self::ChaCha20Poly1305Sha256 => Cipher::ChaCha20Poly1305,
        }
    }

    pub(crate) fn secret_len(self) -> usize {
        match self {
            Self::Aes128GcmSha256 | Self::ChaCha20Poly1305Sha256 => 32,
            Self::Aes256GcmSha384 => 48,
        }
    }
}

/// A decrypted record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Opened {
    pub(crate) content_type: u8,
    pub(crate) content: Vec<u8>,
}

/// Decrypts the records of one direction under one traffic secret. Starts with every candidate pair
/// of secret and suite, and stays with the pair that decrypts the first record.
#[derive(Default)]
pub(crate) struct Opener {
    candidates: Vec<RecordKeys>,
}

impl Opener {
    /// Uses every pair of `suites` and `secrets` whose lengths match; there may be none.
    pub(crate) fn new<'a>(suites: &[Suite], secrets: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut candidates = Vec::new();
        for secret in secrets {
            candidates.extend(suites.iter().filter_map(|suite| RecordKeys::new(*suite, secret)));
        }
        Self { candidates }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.candidates.is_empty()
    }

    /// Decrypts the next record. Returns `None`, without a change of state, if the keys do not
    /// match.
    pub(crate) fn open(&mut self, record: &Record<'_>) -> Option<Opened> {
        let (fits, opened) = self
            .candidates
            .iter_mut()
            .enumerate()
            .find_map(|(fits, keys)| Some((fits, keys.open(record)?)))?;
        self.candidates.swap(0, fits);
        self.candidates.truncate(1);
        Some(opened)
    }

    /// Moves to the next generation after a KeyUpdate (RFC 8446 section 7.2).
    pub(crate) fn update(&mut self) {
        for keys in &mut self.candidates {
            if let Some(next) = RecordKeys::new(
                keys.suite,
                &expand_label(keys.suite, &keys.secret, "traffic upd", keys.secret.len()),
            ) {
                *keys = next;
            }
        }
    }
}

/// The key, IV and sequence number of one traffic secret.
struct RecordKeys {
    suite: Suite,
    secret: Vec<u8>,
    aead: Aead,
    iv: [u8; 12],
    sequence: u64,
}

/// An AEAD cipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cipher {
    Aes128Gcm,
    Aes256Gcm,
    ChaCha20Poly1305,
}

impl Cipher {
    pub(crate) fn key_len(self) -> usize {
        match self {
            Self::Aes128Gcm => 16,
            Self::Aes256Gcm | Self::ChaCha20Poly1305 => 32,
        }
    }
}

/// A cipher with its key.
pub(crate) enum Aead {
    Aes128Gcm(Box<Aes128Gcm>),
    Aes256Gcm(Box<Aes256Gcm>),
    ChaCha20Poly1305(Box<ChaCha20Poly1305>),
}

impl Aead {
    /// Returns `None` if the key does not have the cipher's key length.
    pub(crate) fn new(cipher: Cipher, key: &[u8]) -> Option<Self> {
        Some(match cipher {
            Cipher::Aes128Gcm => Self::Aes128Gcm(Box::new(Aes128Gcm::new_from_slice(key).ok()?)),
            Cipher::Aes256Gcm => Self::Aes256Gcm(Box::new(Aes256Gcm::new_from_slice(key).ok()?)),
            Cipher::ChaCha20Poly1305 => {
                Self::ChaCha20Poly1305(Box::new(ChaCha20Poly1305::new_from_slice(key).ok()?))
            }
        })
    }

    /// Decrypts `content` in place and removes its tag. Returns `None` if it is not authentic.
    pub(crate) fn open(
        &self,
        nonce: &[u8; 12],
        additional: &[u8],
        content: &mut Vec<u8>,
    ) -> Option<()> {
        let nonce = nonce.into();
        match self {
            Self::Aes128Gcm(aead) => aead.decrypt_in_place(nonce, additional, content),
            Self::Aes256Gcm(aead) => aead.decrypt_in_place(nonce, additional, content),
            Self::ChaCha20Poly1305(aead) => aead.decrypt_in_place(nonce, additional, content),
        }
        .ok()
    }
}

impl RecordKeys {
    /// Returns `None` if the secret does not have the length of the suite's hash.
    fn new(suite: Suite, secret: &[u8]) -> Option<Self> {
        if secret.len() != suite.secret_len() {
            return None;
        }
        let cipher = suite.cipher();
        let key = expand_label(suite, secret, "key", cipher.key_len());
        let aead = Aead::new(cipher, &key)?;
        let iv = expand_label(suite, secret, "iv", 12).try_into().ok()?;
        Some(Self { suite, secret: secret.to_vec(), aead, iv, sequence: 0 })
    }

    fn open(&mut self, record: &Record<'_>) -> Option<Opened> {
        let mut nonce = self.iv;
        for (byte, sequence) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= sequence;
        }
        let mut content = record.payload.to_vec();
        self.aead.open(&nonce, &record.header, &mut content)?;
        self.sequence += 1;
        // The type is the last byte that is not padding (RFC 8446 section 5.4).
        let end = content.iter().rposition(|byte| *byte != 0)?;
        let content_type = content[end];
        content.truncate(end);
        Some(Opened { content_type, content })
    }
}

/// HKDF-Expand-Label with an empty context (RFC 8446 section 7.1). The secret has the length of the
/// suite's hash, so neither step can fail; an empty result would be rejected as a key.
pub(crate) fn expand_label(suite: Suite, secret: &[u8], label: &str, len: usize) -> Vec<u8> {
    let mut info = (len as u16).to_be_bytes().to_vec();
    info.push((6 + label.len()) as u8);
    info.extend_from_slice(b"tls13 ");
    info.extend_from_slice(label.as_bytes());
    info.push(0);
    let mut out = vec![0; len];
    let done = match suite {
        Suite::Aes128GcmSha256 | Suite::ChaCha20Poly1305Sha256 => {
            Hkdf::<Sha256>::from_prk(secret).is_ok_and(|hkdf| hkdf.expand(&info, &mut out).is_ok())
        }
        Suite::Aes256GcmSha384 => {
            Hkdf::<Sha384>::from_prk(secret).is_ok_and(|hkdf| hkdf.expand(&info, &mut out).is_ok())
        }
    };
    if done { out } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The server handshake traffic secret, key and IV of RFC 8448 section 3.
    #[test]
    fn rfc8446_7_3_derives_the_keys_of_rfc8448_section_3() {
        let secret =
            hex::decode("b67b7d690cc16c4e75e54213cb2d37b4e9c912bcded9105d42befd59d391ad38")
                .unwrap();
        let suite = Suite::Aes128GcmSha256;
        let key = expand_label(suite, &secret, "key", 16);
        let iv = expand_label(suite, &secret, "iv", 12);
        assert_eq!(hex::encode(key), "3fce516009c21727d0f2e4e86ee403bc");
        assert_eq!(hex::encode(iv), "5d313eb2671276ee13000b30");
    }

    #[test]
    fn secrets_of_another_hash_length_are_no_candidates() {
        let secrets = [&[1u8; 32][..], &[2u8; 48][..], &[3u8; 5][..]];
        assert_eq!(Opener::new(&Suite::ALL, secrets.into_iter()).candidates.len(), 3);
    }
}
