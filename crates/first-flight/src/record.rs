//! Records: framing, protection and reassembly of messages (RFC 8446 section 5).

use firstflight_wire::{Aead, Suite, nonce};

use crate::{ProtocolError, schedule};

pub(crate) const CHANGE_CIPHER_SPEC: u8 = 20;
pub(crate) const ALERT: u8 = 21;
pub(crate) const HANDSHAKE: u8 = 22;
pub(crate) const APPLICATION_DATA: u8 = 23;

/// Maximum size of the plaintext in a record, in bytes.
pub(crate) const MAX_PLAINTEXT: usize = 1 << 14;
/// Maximum size of the ciphertext in a record, in bytes (section 5.2).
const MAX_CIPHERTEXT: usize = MAX_PLAINTEXT + 256;
/// Maximum size of buffered handshake messages, in bytes; fits a long chain of certificates.
const MAX_MESSAGE_BYTES: usize = 128 * 1024;

/// Key, IV and sequence number of a traffic secret (section 7.3).
pub(crate) struct RecordKeys {
    suite: Suite,
    secret: Vec<u8>,
    aead: Aead,
    iv: [u8; 12],
    sequence: u64,
}

impl RecordKeys {
    pub(crate) fn new(suite: Suite, secret: &[u8]) -> Self {
        let cipher = suite.cipher();
        let key = suite.expand_label(secret, "key", b"", cipher.key_len());
        let aead = Aead::new(cipher, &key).expect("a key of the cipher's length");
        let mut iv = [0; 12];
        iv.copy_from_slice(&suite.expand_label(secret, "iv", b"", 12));
        Self { suite, secret: secret.to_vec(), aead, iv, sequence: 0 }
    }

    /// Appends records with this content.
    pub(crate) fn seal(&mut self, content_type: u8, content: &[u8], out: &mut Vec<u8>) {
        for piece in content.chunks(MAX_PLAINTEXT) {
            let mut sealed = piece.to_vec();
            sealed.push(content_type);
            let mut header = [APPLICATION_DATA, 3, 3, 0, 0];
            header[3..].copy_from_slice(&(sealed.len() as u16 + 16).to_be_bytes());
            self.aead.seal(&nonce(&self.iv, self.sequence), &header, &mut sealed);
            self.sequence += 1;
            out.extend_from_slice(&header);
            out.extend_from_slice(&sealed);
        }
    }

    /// Opens a record, and returns its type and content. If decryption fails, the state is
    /// unchanged.
    pub(crate) fn open(&mut self, record: &Record) -> Option<(u8, Vec<u8>)> {
        let mut content = record.payload.clone();
        let nonce = nonce(&self.iv, self.sequence);
        self.aead.open(&nonce, &record.header, &mut content)?;
        self.sequence += 1;
        // The type is the last byte that is not padding (section 5.4).
        let end = content.iter().rposition(|byte| *byte != 0)?;
        let content_type = content[end];
        content.truncate(end);
        Some((content_type, content))
    }

    /// Skips sequence numbers that were used before.
    pub(crate) fn skip(&mut self, records: u64) {
        self.sequence += records;
    }

    /// The keys after a KeyUpdate.
    pub(crate) fn update(&mut self) {
        let secret = schedule::next_traffic_secret(self.suite, &self.secret);
        *self = Self::new(self.suite, &secret);
    }
}

/// A received record.
pub(crate) struct Record {
    pub(crate) header: [u8; 5],
    pub(crate) payload: Vec<u8>,
}

impl Record {
    pub(crate) fn content_type(&self) -> u8 {
        self.header[0]
    }
}

/// Appends an unprotected record. The first of a client has the version of TLS 1.0 (section 5.1).
pub(crate) fn put_plain(content_type: u8, version: u8, content: &[u8], out: &mut Vec<u8>) {
    for piece in content.chunks(MAX_PLAINTEXT) {
        out.extend_from_slice(&[content_type, 3, version]);
        out.extend_from_slice(&(piece.len() as u16).to_be_bytes());
        out.extend_from_slice(piece);
    }
}

/// Splits a stream into records.
#[derive(Default)]
pub(crate) struct Records {
    bytes: Vec<u8>,
    /// Bytes of records that were taken.
    taken: usize,
}

impl Records {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..std::mem::take(&mut self.taken));
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole record.
    pub(crate) fn next(&mut self) -> Result<Option<Record>, ProtocolError> {
        let rest = &self.bytes[self.taken..];
        let Some(content_type) = rest.first() else { return Ok(None) };
        if !(CHANGE_CIPHER_SPEC..=APPLICATION_DATA).contains(content_type)
            || rest.get(1).is_some_and(|version| *version != 3)
        {
            return Err(ProtocolError::NotTls);
        }
        let Some(header) = rest.first_chunk::<5>().copied() else { return Ok(None) };
        let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if len > MAX_CIPHERTEXT {
            return Err(ProtocolError::TooLong);
        }
        let Some(payload) = rest.get(5..5 + len).map(<[u8]>::to_vec) else { return Ok(None) };
        self.taken += 5 + len;
        Ok(Some(Record { header, payload }))
    }
}

/// Reassembles handshake messages from the content of records.
#[derive(Default)]
pub(crate) struct Messages(Vec<u8>);

impl Messages {
    pub(crate) fn push(&mut self, content: &[u8]) -> Result<(), ProtocolError> {
        if self.0.len() + content.len() > MAX_MESSAGE_BYTES {
            return Err(ProtocolError::TooLong);
        }
        self.0.extend_from_slice(content);
        Ok(())
    }

    /// The next whole message, with its header.
    pub(crate) fn next(&mut self) -> Option<Vec<u8>> {
        let [_, a, b, c, ..] = *self.0 else { return None };
        let len = 4 + u32::from_be_bytes([0, a, b, c]) as usize;
        (self.0.len() >= len).then(|| self.0.drain(..len).collect())
    }

    /// Whether no partial message is buffered. There must be none when keys change (section 5.1).
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
