//! The cipher suites: their hashes, HKDF and AEADs (RFC 8446 sections 7.1 and B.4).

use aes_gcm::{Aes128Gcm, Aes256Gcm};
use chacha20poly1305::ChaCha20Poly1305;
use chacha20poly1305::aead::{AeadInOut, KeyInit};
use hkdf::Hkdf;
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256, Sha384};

/// A cipher suite of TLS 1.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Suite {
    /// TLS_AES_128_GCM_SHA256
    Aes128GcmSha256,
    /// TLS_AES_256_GCM_SHA384
    Aes256GcmSha384,
    /// TLS_CHACHA20_POLY1305_SHA256
    ChaCha20Poly1305Sha256,
}

/// Runs an expression with `$hash` as the suite's hash type.
macro_rules! with_hash {
    ($suite:expr, $hash:ident => $body:expr) => {
        match $suite {
            Suite::Aes128GcmSha256 | Suite::ChaCha20Poly1305Sha256 => {
                type $hash = Sha256;
                $body
            }
            Suite::Aes256GcmSha384 => {
                type $hash = Sha384;
                $body
            }
        }
    };
}

impl Suite {
    /// All suites, in the order in which they are offered.
    pub const ALL: [Self; 3] =
        [Self::Aes128GcmSha256, Self::Aes256GcmSha384, Self::ChaCha20Poly1305Sha256];

    /// The suite's number in the IANA registry.
    pub fn id(self) -> u16 {
        match self {
            Self::Aes128GcmSha256 => 0x1301,
            Self::Aes256GcmSha384 => 0x1302,
            Self::ChaCha20Poly1305Sha256 => 0x1303,
        }
    }

    /// The suite with this number.
    pub fn from_id(id: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|suite| suite.id() == id)
    }

    /// Length of the hash and of every secret, in bytes.
    pub fn hash_len(self) -> usize {
        match self {
            Self::Aes256GcmSha384 => 48,
            Self::Aes128GcmSha256 | Self::ChaCha20Poly1305Sha256 => 32,
        }
    }

    /// The AEAD.
    pub fn cipher(self) -> Cipher {
        match self {
            Self::Aes128GcmSha256 => Cipher::Aes128Gcm,
            Self::Aes256GcmSha384 => Cipher::Aes256Gcm,
            Self::ChaCha20Poly1305Sha256 => Cipher::ChaCha20Poly1305,
        }
    }

    /// The hash of these bytes.
    pub fn hash(self, bytes: &[u8]) -> Vec<u8> {
        with_hash!(self, H => H::digest(bytes).to_vec())
    }

    /// HMAC with the hash.
    pub fn hmac(self, key: &[u8], bytes: &[u8]) -> Vec<u8> {
        with_hash!(self, H => {
            let mut mac =
                <Hmac<H> as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
            mac.update(bytes);
            mac.finalize().into_bytes().to_vec()
        })
    }

    /// HKDF-Extract.
    pub fn extract(self, salt: &[u8], input: &[u8]) -> Vec<u8> {
        with_hash!(self, H => Hkdf::<H>::extract(Some(salt), input).0.to_vec())
    }

    /// HKDF-Expand-Label (RFC 8446 section 7.1).
    ///
    /// # Panics
    /// If the secret is shorter than the hash, or more than 255 hashes are requested.
    pub fn expand_label(self, secret: &[u8], label: &str, context: &[u8], len: usize) -> Vec<u8> {
        let mut info = (len as u16).to_be_bytes().to_vec();
        info.push((6 + label.len()) as u8);
        info.extend_from_slice(b"tls13 ");
        info.extend_from_slice(label.as_bytes());
        info.push(context.len() as u8);
        info.extend_from_slice(context);
        let mut out = vec![0; len];
        with_hash!(self, H => {
            let hkdf = Hkdf::<H>::from_prk(secret).expect("secrets have the length of the hash");
            hkdf.expand(&info, &mut out).expect("no more than 255 hashes");
        });
        out
    }
}

/// An AEAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// AES-GCM with a key of 128 bits.
    Aes128Gcm,
    /// AES-GCM with a key of 256 bits.
    Aes256Gcm,
    /// ChaCha20-Poly1305.
    ChaCha20Poly1305,
}

impl Cipher {
    /// Length of the key, in bytes.
    pub fn key_len(self) -> usize {
        match self {
            Self::Aes128Gcm => 16,
            Self::Aes256Gcm | Self::ChaCha20Poly1305 => 32,
        }
    }
}

/// An AEAD with its key.
pub struct Aead(Keyed);

enum Keyed {
    Aes128Gcm(Box<Aes128Gcm>),
    Aes256Gcm(Box<Aes256Gcm>),
    ChaCha20Poly1305(Box<ChaCha20Poly1305>),
}

impl Aead {
    /// Returns `None` if the key does not have the cipher's key length.
    pub fn new(cipher: Cipher, key: &[u8]) -> Option<Self> {
        Some(Self(match cipher {
            Cipher::Aes128Gcm => Keyed::Aes128Gcm(Box::new(Aes128Gcm::new_from_slice(key).ok()?)),
            Cipher::Aes256Gcm => Keyed::Aes256Gcm(Box::new(Aes256Gcm::new_from_slice(key).ok()?)),
            Cipher::ChaCha20Poly1305 => {
                Keyed::ChaCha20Poly1305(Box::new(ChaCha20Poly1305::new_from_slice(key).ok()?))
            }
        }))
    }

    /// Seals in place, and appends the tag.
    pub fn seal(&self, nonce: &[u8; 12], additional: &[u8], content: &mut Vec<u8>) {
        let nonce = nonce.into();
        match &self.0 {
            Keyed::Aes128Gcm(aead) => aead.encrypt_in_place(nonce, additional, content),
            Keyed::Aes256Gcm(aead) => aead.encrypt_in_place(nonce, additional, content),
            Keyed::ChaCha20Poly1305(aead) => aead.encrypt_in_place(nonce, additional, content),
        }
        .expect("records and packets are short enough");
    }

    /// Opens in place, and removes the tag. Returns `None` if the content is not authentic.
    pub fn open(&self, nonce: &[u8; 12], additional: &[u8], content: &mut Vec<u8>) -> Option<()> {
        let nonce = nonce.into();
        match &self.0 {
            Keyed::Aes128Gcm(aead) => aead.decrypt_in_place(nonce, additional, content),
            Keyed::Aes256Gcm(aead) => aead.decrypt_in_place(nonce, additional, content),
            Keyed::ChaCha20Poly1305(aead) => aead.decrypt_in_place(nonce, additional, content),
        }
        .ok()
    }
}

/// The nonce of a record or packet: its number XORed into the end of the IV (RFC 8446 section 5.3).
pub fn nonce(iv: &[u8; 12], number: u64) -> [u8; 12] {
    let mut nonce = *iv;
    for (byte, number) in nonce[4..].iter_mut().zip(number.to_be_bytes()) {
        *byte ^= number;
    }
    nonce
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
        let key = suite.expand_label(&secret, "key", b"", 16);
        let iv = suite.expand_label(&secret, "iv", b"", 12);
        assert_eq!(hex::encode(key), "3fce516009c21727d0f2e4e86ee403bc");
        assert_eq!(hex::encode(iv), "5d313eb2671276ee13000b30");
    }
}
