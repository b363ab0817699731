//! One key-encryption key, and the format of sealed records.

use std::fmt;

use chacha20poly1305::XNonce;
use chacha20poly1305::aead::{Aead, Payload};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::UnsealError;
use crate::key::{cipher, fill_random};

/// A key under which records are sealed. Wiped when dropped, and not shown by `Debug`.
///
/// A record is `version (1) | key id (8) | nonce (24) | ciphertext | tag (16)`, sealed by
/// XChaCha20-Poly1305. The associated data are the 33 bytes before the ciphertext and the context.
#[derive(Clone)]
pub struct SealingKey {
    id: KeyId,
    secret: Zeroizing<[u8; SECRET_BYTES]>,
}

/// Identifies a key-encryption key without showing it: 8 bytes of the SHA-256 of a label and the
/// key. Keys are 32 random bytes, so they cannot be guessed from it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyId([u8; ID_BYTES]);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

/// A record's parts, still sealed.
pub(super) struct Envelope<'a> {
    pub(super) id: KeyId,
    header: &'a [u8; HEADER_BYTES],
    nonce: [u8; NONCE_BYTES],
    sealed: &'a [u8],
}

impl<'a> Envelope<'a> {
    /// Returns `None` if the bytes do not have this format.
    pub(super) fn read(record: &'a [u8]) -> Option<Self> {
        let (header, sealed) = record.split_first_chunk::<HEADER_BYTES>()?;
        if header[0] != VERSION || sealed.len() < TAG_BYTES {
            return None;
        }
        let id = KeyId(*header[1..].first_chunk()?);
        let nonce = *header[1 + ID_BYTES..].first_chunk()?;
        Some(Self { id, header, nonce, sealed })
    }
}

impl SealingKey {
    /// Creates a key from 32 random bytes.
    pub fn new(secret: Zeroizing<[u8; SECRET_BYTES]>) -> Self {
        let mut digest = Sha256::new();
        digest.update(b"firstflight key-encryption key id");
        digest.update(secret.as_ref());
        let mut id = [0; ID_BYTES];
        id.copy_from_slice(&digest.finalize()[..ID_BYTES]);
        Self { id: KeyId(id), secret }
    }

    /// Seals `content` for `context`, which says what the record is and where it is stored.
    pub fn seal(&self, content: &[u8], context: &str) -> Vec<u8> {
        let mut nonce = [0; NONCE_BYTES];
        fill_random(&mut nonce);
        let mut record = Vec::with_capacity(HEADER_BYTES + content.len() + TAG_BYTES);
        record.push(VERSION);
        record.extend_from_slice(&self.id.0);
        record.extend_from_slice(&nonce);
        let aad = [&record[..], context.as_bytes()].concat();
        let sealed = cipher(&self.secret)
            .encrypt(&XNonce::from(nonce), Payload { msg: content, aad: &aad })
            .expect("a record is shorter than the cipher's limit of 256 GiB");
        record.extend_from_slice(&sealed);
        record
    }

    /// Opens a record that was sealed for `context`. Returns `None` if it is sealed under another
    /// key.
    ///
    /// # Errors
    /// [`UnsealError::Forged`] or [`UnsealError::Malformed`].
    pub fn unseal(
        &self,
        record: &[u8],
        context: &str,
    ) -> Result<Option<Zeroizing<Vec<u8>>>, UnsealError> {
        let envelope = Envelope::read(record).ok_or(UnsealError::Malformed)?;
        if envelope.id != self.id {
            return Ok(None);
        }
        self.open(&envelope, context).map(Some).ok_or(UnsealError::Forged)
    }

    /// Returns the secret, for writing it to a file.
    pub(super) fn secret(&self) -> &[u8; SECRET_BYTES] {
        &self.secret
    }

    pub(super) fn id(&self) -> KeyId {
        self.id
    }

    /// Returns `None` if the record was changed, or sealed for another context.
    pub(super) fn open(
        &self,
        envelope: &Envelope<'_>,
        context: &str,
    ) -> Option<Zeroizing<Vec<u8>>> {
        let aad = [&envelope.header[..], context.as_bytes()].concat();
        let payload = Payload { msg: envelope.sealed, aad: &aad };
        let content = cipher(&self.secret).decrypt(&XNonce::from(envelope.nonce), payload).ok()?;
        Some(Zeroizing::new(content))
    }
}

impl fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealingKey").field("id", &self.id).finish_non_exhaustive()
    }
}

const VERSION: u8 = 1;
const ID_BYTES: usize = 8;
const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;
const HEADER_BYTES: usize = 1 + ID_BYTES + NONCE_BYTES;
pub(super) const SECRET_BYTES: usize = 32;
