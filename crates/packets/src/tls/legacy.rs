//! Decrypts records of TLS 1.2 with their master secret, for AEAD cipher suites
//! (RFC 5246 section 6.3, RFC 5288, RFC 7905).

use firstflight_wire::{Aead, Cipher};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Sha256, Sha384};

use super::decrypt::Opened;
use super::handshake::{ClientHello, ServerHello};
use super::record::Record;
use crate::Direction;
use crate::facts::Unknown;
use crate::keylog::{KeyLog, SecretLabel};

/// Decrypts the records of one direction after its ChangeCipherSpec. Starts with every candidate
/// master secret, and stays with the one that decrypts the first record.
pub(crate) struct LegacyOpener {
    candidates: Vec<WriteKeys>,
    sequence: u64,
    /// Why decryption fails when there are no candidates.
    why: Unknown,
}

impl LegacyOpener {
    /// Uses every master secret of the connection; there may be none.
    pub(crate) fn new(
        client: &ClientHello,
        server: &ServerHello,
        direction: Direction,
        keys: &KeyLog,
    ) -> Self {
        let Some(suite) = LegacySuite::from_wire(server.cipher_suite) else {
            return Self { candidates: Vec::new(), sequence: 0, why: Unknown::CipherSuite };
        };
        let masters = keys.secrets(&client.random, SecretLabel::Master);
        let randoms = [server.random, client.random].concat();
        let candidates =
            masters.filter_map(|master| suite.write_keys(master, &randoms, direction)).collect();
        Self { candidates, sequence: 0, why: Unknown::NoSecrets }
    }

    /// Decrypts the next record.
    ///
    /// # Errors
    /// Returns why the record cannot be decrypted. All further calls fail as well.
    pub(crate) fn open(&mut self, record: &Record<'_>) -> Result<Opened, Unknown> {
        if self.candidates.is_empty() {
            return Err(self.why);
        }
        let sequence = self.sequence;
        let opened = self
            .candidates
            .iter()
            .enumerate()
            .find_map(|(index, keys)| Some((index, keys.open(record, sequence)?)));
        let Some((index, content)) = opened else {
            self.candidates.clear();
            self.why = Unknown::WrongSecrets;
            return Err(self.why);
        };
        self.candidates.swap(0, index);
        self.candidates.truncate(1);
        self.sequence += 1;
        Ok(Opened { content_type: record.content_type, content })
    }
}

/// The plaintext length of a record, which follows from its length if the cipher suite is an AEAD
/// one. Returns `None` for other suites.
pub(crate) fn plain_len(suite: u16, payload_len: usize) -> Option<u64> {
    let overhead = LegacySuite::from_wire(suite)?.explicit_nonce() + TAG_LEN;
    Some(payload_len.checked_sub(overhead)? as u64)
}

const TAG_LEN: usize = 16;

/// The properties of a suite that matter to its records.
#[derive(Clone, Copy)]
struct LegacySuite {
    cipher: Cipher,
    /// Whether key derivation uses SHA-384 instead of SHA-256.
    sha384: bool,
}

impl LegacySuite {
    fn from_wire(id: u16) -> Option<Self> {
        let (cipher, sha384) = match id {
            0x009c | 0x009e | 0xc02b | 0xc02f => (Cipher::Aes128Gcm, false),
            0x009d | 0x009f | 0xc02c | 0xc030 => (Cipher::Aes256Gcm, true),
            0xcca8..=0xccaa => (Cipher::ChaCha20Poly1305, false),
            _ => return None,
        };
        Some(Self { cipher, sha384 })
    }

    /// Bytes of the nonce that each record carries.
    fn explicit_nonce(self) -> usize {
        match self.cipher {
            Cipher::Aes128Gcm | Cipher::Aes256Gcm => 8,
            Cipher::ChaCha20Poly1305 => 0,
        }
    }

    fn write_keys(self, master: &[u8], randoms: &[u8], direction: Direction) -> Option<WriteKeys> {
        let (key_len, iv_len) = (self.cipher.key_len(), NONCE_LEN - self.explicit_nonce());
        let block = self.key_block(master, randoms, 2 * (key_len + iv_len))?;
        let (keys, ivs) = block.split_at(2 * key_len);
        // The client's key and IV come first.
        let side = direction as usize;
        let aead = Aead::new(self.cipher, &keys[side * key_len..][..key_len])?;
        Some(WriteKeys { suite: self, aead, iv: ivs[side * iv_len..][..iv_len].to_vec() })
    }

    /// The pseudorandom function over "key expansion" (RFC 5246 section 5).
    fn key_block(self, master: &[u8], randoms: &[u8], len: usize) -> Option<Vec<u8>> {
        let seed = [b"key expansion", randoms].concat();
        let hash = |parts: [&[u8]; 2]| match self.sha384 {
            true => mac::<Hmac<Sha384>>(master, parts),
            false => mac::<Hmac<Sha256>>(master, parts),
        };
        let (mut block, mut a) = (Vec::new(), seed.clone());
        while block.len() < len {
            a = hash([&a, &[]])?;
            block.extend(hash([&a, &seed])?);
        }
        block.truncate(len);
        Some(block)
    }
}

const NONCE_LEN: usize = 12;

fn mac<M: Mac + KeyInit>(key: &[u8], parts: [&[u8]; 2]) -> Option<Vec<u8>> {
    let mut mac = <M as KeyInit>::new_from_slice(key).ok()?;
    parts.iter().for_each(|part| mac.update(part));
    Some(mac.finalize().into_bytes().to_vec())
}

/// The write keys of one side.
struct WriteKeys {
    suite: LegacySuite,
    aead: Aead,
    iv: Vec<u8>,
}

impl WriteKeys {
    fn open(&self, record: &Record<'_>, sequence: u64) -> Option<Vec<u8>> {
        let (explicit, sealed) = record.payload.split_at_checked(self.suite.explicit_nonce())?;
        let mut nonce = [0; NONCE_LEN];
        nonce[..self.iv.len()].copy_from_slice(&self.iv);
        if explicit.is_empty() {
            for (byte, sequence_byte) in nonce[4..].iter_mut().zip(sequence.to_be_bytes()) {
                *byte ^= sequence_byte;
            }
        } else {
            nonce[self.iv.len()..].copy_from_slice(explicit);
        }
        let len = u16::try_from(sealed.len().checked_sub(TAG_LEN)?).ok()?;
        let mut additional = sequence.to_be_bytes().to_vec();
        additional.extend_from_slice(&record.header[..3]);
        additional.extend(len.to_be_bytes());
        let mut content = sealed.to_vec();
        self.aead.open(&nonce, &additional, &mut content)?;
        Some(content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc5288_3_the_length_of_an_aead_record_determines_its_plaintext_length() {
        assert_eq!(plain_len(0xc02b, 124), Some(100));
        assert_eq!(plain_len(0xcca9, 116), Some(100));
        assert_eq!(plain_len(0x002f, 116), None, "CBC pads");
        assert_eq!(plain_len(0xc02b, 23), None, "too short for its own tag");
    }
}
