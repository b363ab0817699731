//! Decrypts TLS 1.3 records with their traffic secrets (RFC 8446 sections 5.2 and 7.3).

use firstflight_wire::{Aead, Suite, nonce};

use super::record::Record;

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
        let (index, opened) = self
            .candidates
            .iter_mut()
            .enumerate()
            .find_map(|(index, keys)| Some((index, keys.open(record)?)))?;
        self.candidates.swap(0, index);
        self.candidates.truncate(1);
        Some(opened)
    }

    /// Moves to the next generation after a KeyUpdate (RFC 8446 section 7.2).
    pub(crate) fn update(&mut self) {
        for keys in &mut self.candidates {
            if let Some(next) = RecordKeys::new(
                keys.suite,
                &keys.suite.expand_label(&keys.secret, "traffic upd", b"", keys.secret.len()),
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

impl RecordKeys {
    /// Returns `None` if the secret does not have the length of the suite's hash.
    fn new(suite: Suite, secret: &[u8]) -> Option<Self> {
        if secret.len() != suite.hash_len() {
            return None;
        }
        let cipher = suite.cipher();
        let key = suite.expand_label(secret, "key", b"", cipher.key_len());
        let aead = Aead::new(cipher, &key)?;
        let iv = suite.expand_label(secret, "iv", b"", 12).try_into().ok()?;
        Some(Self { suite, secret: secret.to_vec(), aead, iv, sequence: 0 })
    }

    fn open(&mut self, record: &Record<'_>) -> Option<Opened> {
        let mut content = record.payload.to_vec();
        self.aead.open(&nonce(&self.iv, self.sequence), &record.header, &mut content)?;
        self.sequence += 1;
        // The type is the last byte that is not padding (RFC 8446 section 5.4).
        let end = content.iter().rposition(|byte| *byte != 0)?;
        let content_type = content[end];
        content.truncate(end);
        Some(Opened { content_type, content })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_another_hash_length_are_no_candidates() {
        let secrets = [&[1u8; 32][..], &[2u8; 48][..], &[3u8; 5][..]];
        assert_eq!(Opener::new(&Suite::ALL, secrets.into_iter()).candidates.len(), 3);
    }
}
