//! The key schedule (RFC 8446 section 7.1). Functions take the hash of a transcript.

use crate::Suite;

/// The schedule at one of its three stages.
#[derive(Clone)]
pub(crate) struct Schedule {
    pub(crate) suite: Suite,
    secret: Vec<u8>,
}

impl Schedule {
    /// The early stage. Without a PSK, its input is zeros.
    pub(crate) fn early(suite: Suite, psk: Option<&[u8]>) -> Self {
        let zeros = vec![0; suite.hash_len()];
        let secret = suite.extract(&zeros, psk.unwrap_or(&zeros));
        Self { suite, secret }
    }

    /// The handshake stage, from the shared secret of the key shares.
    pub(crate) fn handshake(&self, shared: &[u8]) -> Self {
        self.next(shared)
    }

    /// The application stage.
    pub(crate) fn application(&self) -> Self {
        self.next(&vec![0; self.suite.hash_len()])
    }

    fn next(&self, input: &[u8]) -> Self {
        let salt = self.derive("derived", &self.suite.hash(b""));
        Self { suite: self.suite, secret: self.suite.extract(&salt, input) }
    }

    /// Derive-Secret, from the hash of the transcript.
    pub(crate) fn derive(&self, label: &str, transcript_hash: &[u8]) -> Vec<u8> {
        let len = self.suite.hash_len();
        self.suite.expand_label(&self.secret, label, transcript_hash, len)
    }

    /// The binder of a resumption PSK over a ClientHello without its binders (section 4.2.11.2).
    /// `prefix` is the transcript before it: empty, or the first ClientHello and its
    /// HelloRetryRequest.
    pub(crate) fn binder(&self, prefix: &[u8], truncated_hello: &[u8]) -> Vec<u8> {
        let key = self.derive("res binder", &self.suite.hash(b""));
        let transcript = [prefix, truncated_hello].concat();
        finished(self.suite, &key, &self.suite.hash(&transcript))
    }
}

/// The verify data of a Finished, under a traffic secret (section 4.4.4).
pub(crate) fn finished(suite: Suite, secret: &[u8], transcript_hash: &[u8]) -> Vec<u8> {
    let key = suite.expand_label(secret, "finished", b"", suite.hash_len());
    suite.hmac(&key, transcript_hash)
}

/// The PSK of a ticket (section 4.6.1).
pub(crate) fn ticket_psk(suite: Suite, resumption_master: &[u8], nonce: &[u8]) -> Vec<u8> {
    suite.expand_label(resumption_master, "resumption", nonce, suite.hash_len())
}

/// The traffic secret after a KeyUpdate (section 7.2).
pub(crate) fn next_traffic_secret(suite: Suite, secret: &[u8]) -> Vec<u8> {
    suite.expand_label(secret, "traffic upd", b"", suite.hash_len())
}
