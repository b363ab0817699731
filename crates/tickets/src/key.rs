//! One ticket key, and the format of the tickets sealed under it.

use std::fmt;

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{Key, XChaCha20Poly1305, XNonce};
use zeroize::Zeroizing;

/// A ticket key: a public name of 16 bytes and a secret of 32. The secret is wiped when the key
/// is dropped, and not shown by `Debug`.
///
/// A ticket is `version (1) | key name (16) | nonce (24) | ciphertext | tag (16)`, sealed by
/// XChaCha20-Poly1305 with the 41 bytes before the ciphertext as associated data. The extended
/// nonce is the reason for this cipher: 192 random bits never meet again, so processes that share
/// a key need neither a counter in common nor a limit of tickets a key, as AES-GCM's 96 bits do
/// (2^32 messages, NIST SP 800-38D section 8.3).
#[derive(Clone, PartialEq, Eq)]
pub struct TicketKey {
    name: [u8; NAME],
    secret: Zeroizing<[u8; SECRET]>,
}

/// How many bytes a sealed ticket is longer than its content.
pub const RING_OVERHEAD: usize = HEADER + TAG;

/// What came of a ticket. All but [`Opened::Ticket`] mean the same for the handshake: ignore the
/// ticket and make a full one (RFC 8446 section 4.2.11, RFC 5077 section 3.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opened {
    /// The content that was sealed.
    Ticket(Vec<u8>),
    /// No ticket of ours, or its key is gone.
    UnknownKey,
    /// It names a key of the ring, which did not seal it.
    Forged,
}

impl TicketKey {
    /// A key from given bytes.
    pub fn new(name: [u8; 16], secret: [u8; 32]) -> Self {
        Self { name, secret: Zeroizing::new(secret) }
    }

    /// A fresh random key.
    ///
    /// # Panics
    /// If the system has no randomness to give, without which no key can be made at all.
    pub fn random() -> Self {
        let mut key = Self { name: [0; NAME], secret: Zeroizing::new([0; SECRET]) };
        fill_random(&mut key.name);
        fill_random(key.secret.as_mut());
        key
    }

    /// The name that tickets carry in the clear.
    pub fn name(&self) -> &[u8; 16] {
        &self.name
    }

    /// The secret, for writing it to a key file.
    pub(crate) fn secret(&self) -> &[u8; 32] {
        &self.secret
    }

    /// Seals `content` into a ticket, [`RING_OVERHEAD`] bytes longer.
    pub fn seal(&self, content: &[u8]) -> Vec<u8> {
        let mut nonce = [0; NONCE];
        fill_random(&mut nonce);
        let mut ticket = Vec::with_capacity(content.len() + RING_OVERHEAD);
        ticket.push(VERSION);
        ticket.extend_from_slice(&self.name);
        ticket.extend_from_slice(&nonce);
        let sealed = self
            .cipher()
            .encrypt(&XNonce::from(nonce), Payload { msg: content, aad: &ticket })
            .expect("a ticket is shorter than the cipher's limit of 256 GiB");
        ticket.extend_from_slice(&sealed);
        ticket
    }

    /// Opens a ticket that carries this key's name.
    pub fn open(&self, ticket: &[u8]) -> Opened {
        if key_name(ticket) != Some(&self.name) {
            return Opened::UnknownKey;
        }
        let (header, sealed) = ticket.split_at(HEADER);
        let mut nonce = [0; NONCE];
        nonce.copy_from_slice(&header[1 + NAME..]);
        match self.cipher().decrypt(&XNonce::from(nonce), Payload { msg: sealed, aad: header }) {
            Ok(content) => Opened::Ticket(content),
            Err(_) => Opened::Forged,
        }
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new(&Key::from(*self.secret))
    }
}

impl fmt::Debug for TicketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TicketKey").field("name", &hex::encode(self.name)).finish_non_exhaustive()
    }
}

/// The name of the key that a ticket says it is sealed under, if it has our format at all.
pub(crate) fn key_name(ticket: &[u8]) -> Option<&[u8; NAME]> {
    if ticket.len() < RING_OVERHEAD || ticket[0] != VERSION {
        return None;
    }
    ticket[1..].first_chunk()
}

fn fill_random(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the system gives random bytes");
}

const VERSION: u8 = 1;
const NAME: usize = 16;
const SECRET: usize = 32;
const NONCE: usize = 24;
const TAG: usize = 16;
const HEADER: usize = 1 + NAME + NONCE;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn seals_and_opens() {
        let key = TicketKey::random();
        for content in [&b""[..], b"session", &[0; 5000]] {
            let ticket = key.seal(content);
            assert_eq!(ticket.len(), content.len() + RING_OVERHEAD);
            assert_eq!(key.open(&ticket), Opened::Ticket(content.to_vec()));
            assert_eq!(TicketKey::random().open(&ticket), Opened::UnknownKey);
        }
    }

    #[test]
    fn two_tickets_of_the_same_content_differ() {
        let key = TicketKey::random();
        assert_ne!(key.seal(b"session"), key.seal(b"session"));
    }

    #[test]
    fn rfc5077_4_a_change_to_any_byte_is_found() {
        let key = TicketKey::random();
        let ticket = key.seal(b"a session of some bytes");
        for at in 0..ticket.len() {
            for flip in [1, 0x80, 0xff] {
                let mut changed = ticket.clone();
                changed[at] ^= flip;
                let expected = if at < 17 { Opened::UnknownKey } else { Opened::Forged };
                assert_eq!(key.open(&changed), expected, "byte {at}");
            }
        }
        for length in 0..ticket.len() {
            assert!(!matches!(key.open(&ticket[..length]), Opened::Ticket(_)), "{length} bytes");
        }
    }

    #[test]
    fn the_same_name_with_another_secret_is_forged() {
        let ticket = TicketKey::new([1; 16], [2; 32]).seal(b"session");
        assert_eq!(TicketKey::new([1; 16], [3; 32]).open(&ticket), Opened::Forged);
    }

    #[test]
    fn debug_shows_no_secret() {
        let shown = format!("{:?}", TicketKey::new([0x11; 16], [0xab; 32]));
        assert!(shown.contains("1111"), "{shown}");
        assert!(!shown.contains("ab") && !shown.contains("171"), "{shown}");
    }

    proptest! {
        #[test]
        fn garbage_never_opens(mut bytes in prop::collection::vec(any::<u8>(), 0..200), ours: bool) {
            let key = TicketKey::random();
            if ours && bytes.len() >= 17 {
                bytes[0] = VERSION;
                bytes[1..17].copy_from_slice(key.name());
            }
            prop_assert!(!matches!(key.open(&bytes), Opened::Ticket(_)));
        }
    }
}
