//! One ticket key, and the format of the tickets sealed under it.

use std::fmt;

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{Key, XChaCha20Poly1305, XNonce};
use zeroize::{Zeroize as _, Zeroizing};

use crate::zone::Origin;

/// A ticket key: a public name of 16 bytes and a secret of 32. The secret is wiped when the key
/// is dropped, and not shown by `Debug`.
///
/// A ticket is `kind (1) | key name (16) | nonce (24) | ciphertext | tag (16)`, sealed by
/// XChaCha20-Poly1305 with the 41 bytes before the ciphertext as associated data. The extended
/// nonce is the reason for this cipher: 192 random bits never meet again, so processes that share
/// a key need neither a counter in common nor a limit of tickets a key, as AES-GCM's 96 bits do
/// (2^32 messages, NIST SP 800-38D section 8.3).
///
/// The ciphertext starts with the [`Origin`] (8 bytes): zone and epoch. Four kinds of things are
/// sealed, and none opens as another:
///
/// | kind | what follows the origin | where it lives |
/// |---|---|---|
/// | 6 | the session | in the ticket |
/// | 7 | the id of a session kept elsewhere (16 bytes), and as many zeros as the session is longer | in the ticket |
/// | 8 | such a session; its id is associated data, too | with whoever keeps it |
/// | 9 | what a QUIC address token says (RFC 9000 section 8.1) | in the token |
///
/// Kinds 1 to 5 were sealed without a zone or without an epoch. They are not opened any more: early
/// data is accepted only by the zone and in the epoch that issued the ticket, which they do not
/// carry. That costs each client one full handshake.
#[derive(Clone, PartialEq, Eq)]
pub struct TicketKey {
    name: [u8; NAME],
    secret: Zeroizing<[u8; SECRET]>,
}

/// How many bytes a sealed ticket is longer than its content.
pub const RING_OVERHEAD: usize = HEADER + Origin::LENGTH + TAG;

/// The id of a session that is kept elsewhere than in its ticket.
pub type SessionId = [u8; 16];

/// What came of a ticket. The last two mean the same for the handshake: ignore the ticket and
/// make a full one (RFC 8446 section 4.2.11, RFC 5077 section 3.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opened {
    /// A session.
    Ticket {
        /// The content that was sealed.
        content: Vec<u8>,
        /// Where and when the ticket was issued.
        origin: Origin,
    },
    /// A session that is kept elsewhere.
    Reference {
        /// Its id.
        id: SessionId,
        /// Where and when the ticket was issued.
        origin: Origin,
    },
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

    /// Seals `content` into a ticket of `origin`, [`RING_OVERHEAD`] bytes longer.
    pub fn seal(&self, content: &[u8], origin: impl Into<Origin>) -> Vec<u8> {
        self.seal_as(SESSION, content, origin.into(), &[])
    }

    /// Seals a ticket of `origin` that refers to a session of `length` bytes kept elsewhere. It is
    /// as long as one with the session in it: TLS has room for a session no longer than its
    /// ticket.
    pub(crate) fn seal_reference(&self, id: &SessionId, length: usize, origin: Origin) -> Vec<u8> {
        let mut content = id.to_vec();
        content.resize(length.max(id.len()), 0);
        self.seal_as(REFERENCE, &content, origin, &[])
    }

    /// Seals the session that the tickets with `id` refer to. It opens as nothing else.
    pub(crate) fn seal_kept(&self, session: &[u8], id: &SessionId, origin: Origin) -> Vec<u8> {
        self.seal_as(KEPT, session, origin, id)
    }

    /// Seals what an address token says, together with `bound_to`, which has to be there again to
    /// open it. It opens as nothing else.
    pub(crate) fn seal_token(&self, content: &[u8], bound_to: &[u8], origin: Origin) -> Vec<u8> {
        self.seal_as(TOKEN, content, origin, bound_to)
    }

    /// Opens a ticket that carries this key's name.
    pub fn open(&self, ticket: &[u8]) -> Opened {
        match ticket.first() {
            Some(&SESSION) => match self.open_as(SESSION, ticket, &[]) {
                Ok((content, origin)) => Opened::Ticket { content, origin },
                Err(closed) => closed,
            },
            Some(&REFERENCE) => match self.open_as(REFERENCE, ticket, &[]) {
                Ok((content, origin)) => match content.first_chunk() {
                    Some(id) => Opened::Reference { id: *id, origin },
                    None => Opened::Forged,
                },
                Err(closed) => closed,
            },
            _ => Opened::UnknownKey,
        }
    }

    /// Opens what [`seal_kept`](Self::seal_kept) made for `id`.
    pub(crate) fn open_kept(&self, sealed: &[u8], id: &SessionId) -> Opened {
        match self.open_as(KEPT, sealed, id) {
            Ok((content, origin)) => Opened::Ticket { content, origin },
            Err(closed) => closed,
        }
    }

    /// Opens what [`seal_token`](Self::seal_token) made.
    pub(crate) fn open_token(&self, token: &[u8], bound_to: &[u8]) -> Opened {
        match self.open_as(TOKEN, token, bound_to) {
            Ok((content, origin)) => Opened::Ticket { content, origin },
            Err(closed) => closed,
        }
    }

    fn seal_as(&self, kind: u8, content: &[u8], origin: Origin, bound_to: &[u8]) -> Vec<u8> {
        let mut nonce = [0; NONCE];
        fill_random(&mut nonce);
        let mut ticket = Vec::with_capacity(content.len() + RING_OVERHEAD);
        ticket.push(kind);
        ticket.extend_from_slice(&self.name);
        ticket.extend_from_slice(&nonce);
        let plain = Zeroizing::new([&origin.to_bytes(), content].concat());
        let aad = [&ticket, bound_to].concat();
        let sealed = self
            .cipher()
            .encrypt(&XNonce::from(nonce), Payload { msg: &plain, aad: &aad })
            .expect("a ticket is shorter than the cipher's limit of 256 GiB");
        ticket.extend_from_slice(&sealed);
        ticket
    }

    fn open_as(
        &self,
        kind: u8,
        ticket: &[u8],
        bound_to: &[u8],
    ) -> Result<(Vec<u8>, Origin), Opened> {
        if key_name(ticket) != Some(&self.name) || ticket[0] != kind {
            return Err(Opened::UnknownKey);
        }
        let (header, sealed) = ticket.split_at(HEADER);
        let mut nonce = [0; NONCE];
        nonce.copy_from_slice(&header[1 + NAME..]);
        let aad = [header, bound_to].concat();
        let mut plain = self
            .cipher()
            .decrypt(&XNonce::from(nonce), Payload { msg: sealed, aad: &aad })
            .map_err(|_| Opened::Forged)?;
        let Some((tag, content)) = plain.split_first_chunk() else {
            return Err(Opened::Forged);
        };
        let opened = (content.to_vec(), Origin::from_bytes(*tag));
        plain.zeroize();
        Ok(opened)
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

/// The name of the key that something sealed says it is sealed under, if it has our format at all.
pub(crate) fn key_name(sealed: &[u8]) -> Option<&[u8; NAME]> {
    if sealed.len() < RING_OVERHEAD || !(SESSION..=TOKEN).contains(&sealed[0]) {
        return None;
    }
    sealed[1..].first_chunk()
}

pub(crate) fn fill_random(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the system gives random bytes");
}

const SESSION: u8 = 6;
const REFERENCE: u8 = 7;
const KEPT: u8 = 8;
const TOKEN: u8 = 9;
const NAME: usize = 16;
const SECRET: usize = 32;
const NONCE: usize = 24;
const TAG: usize = 16;
const HEADER: usize = 1 + NAME + NONCE;

#[cfg(test)]
#[path = "key_tests.rs"]
mod tests;
