//! One ticket key, and the format of the tickets sealed under it.

use std::fmt;

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{Key, XChaCha20Poly1305, XNonce};
use rand::Rng as _;
use zeroize::{Zeroize as _, Zeroizing};

use crate::zone::Origin;

/// A ticket key: a public name of 16 bytes and a secret of 32. The secret is wiped on drop and not
/// shown by `Debug`.
///
/// A ticket is `kind (1) | key name (16) | nonce (24) | ciphertext | tag (16)`, sealed by
/// XChaCha20-Poly1305 with the 41 bytes before the ciphertext as associated data. This cipher was
/// chosen for its nonce: 192 random bits never repeat, so processes that share a key need neither a
/// common counter nor a limit of tickets per key. AES-GCM with its 96 bits would (2^32 messages,
/// NIST SP 800-38D section 8.3).
///
/// The plaintext starts with the [`Origin`] (8 bytes): zone and epoch. There are four kinds, and none
/// opens as another:
///
/// | kind | what follows the origin | where it is stored |
/// |---|---|---|
/// | 6 | the session | in the ticket |
/// | 7 | the id of a detached session (16 bytes), zero-padded to the session's length | in the ticket |
/// | 8 | a detached session; its id is associated data, too | in a store |
/// | 9 | the content of a QUIC address token (RFC 9000 section 8.1) | in the token |
///
/// Kinds 1 to 5, of older versions, have no zone or no epoch. They are not opened, since early data
/// is accepted only in the zone and epoch that issued the ticket. That costs each client one full
/// handshake.
#[derive(Clone, PartialEq, Eq)]
pub struct TicketKey {
    name: [u8; NAME_BYTES],
    secret: Zeroizing<[u8; SECRET_BYTES]>,
}

/// How many bytes a sealed ticket is longer than its content.
pub const TICKET_OVERHEAD: usize = HEADER_BYTES + Origin::LENGTH + TAG_BYTES;

/// The id of a detached session.
pub type SessionId = [u8; 16];

/// The outcome of opening a ticket. If it is not opened, the handshake ignores the ticket and is a
/// full one (RFC 8446 section 4.2.11, RFC 5077 section 3.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opened {
    /// A session.
    Ticket {
        /// The content that was sealed.
        content: Vec<u8>,
        /// Where and when the ticket was issued.
        origin: Origin,
    },
    /// A reference to a detached session.
    Reference {
        /// Its id.
        id: SessionId,
        /// Where and when the ticket was issued.
        origin: Origin,
    },
    /// Not a ticket of this format, or its key was dropped.
    UnknownKey,
    /// Names a key of the ring that did not seal it.
    Forged,
}

impl TicketKey {
    /// A key from its name and secret.
    pub fn new(name: [u8; 16], secret: [u8; 32]) -> Self {
        Self { name, secret: Zeroizing::new(secret) }
    }

    /// Generates a random key.
    ///
    /// # Panics
    /// Panics if the system has no randomness.
    pub fn random() -> Self {
        let mut key = Self { name: [0; NAME_BYTES], secret: Zeroizing::new([0; SECRET_BYTES]) };
        fill_random(&mut key.name);
        fill_random(key.secret.as_mut());
        key
    }

    /// The name, which tickets carry in the clear.
    pub fn name(&self) -> &[u8; 16] {
        &self.name
    }

    /// The secret, for writing it to a key file.
    pub(crate) fn secret(&self) -> &[u8; 32] {
        &self.secret
    }

    /// Seals `content` into a ticket of `origin`, [`TICKET_OVERHEAD`] bytes longer.
    pub fn seal(&self, content: &[u8], origin: impl Into<Origin>) -> Vec<u8> {
        self.seal_as(SESSION, content, origin.into(), &[])
    }

    /// Seals a ticket that refers to a detached session of `length` bytes. It is as long as a ticket
    /// with the session in it, because BoringSSL requires that a session is no longer than its
    /// ticket.
    pub(crate) fn seal_reference(&self, id: &SessionId, length: usize, origin: Origin) -> Vec<u8> {
        let mut content = id.to_vec();
        content.resize(length.max(id.len()), 0);
        self.seal_as(REFERENCE, &content, origin, &[])
    }

    /// Seals the detached session `id`.
    pub(crate) fn seal_detached(&self, session: &[u8], id: &SessionId, origin: Origin) -> Vec<u8> {
        self.seal_as(DETACHED, session, origin, id)
    }

    /// Seals the content of an address token. It opens only with the same `bound_to`.
    pub(crate) fn seal_token(&self, content: &[u8], bound_to: &[u8], origin: Origin) -> Vec<u8> {
        self.seal_as(TOKEN, content, origin, bound_to)
    }

    /// Opens a ticket that carries this key's name.
    pub fn open(&self, ticket: &[u8]) -> Opened {
        match ticket.first() {
            Some(&SESSION) => match self.open_as(SESSION, ticket, &[]) {
                Ok((content, origin)) => Opened::Ticket { content, origin },
                Err(not_opened) => not_opened,
            },
            Some(&REFERENCE) => match self.open_as(REFERENCE, ticket, &[]) {
                Ok((content, origin)) => match content.first_chunk() {
                    Some(id) => Opened::Reference { id: *id, origin },
                    None => Opened::Forged,
                },
                Err(not_opened) => not_opened,
            },
            _ => Opened::UnknownKey,
        }
    }

    /// Opens the detached session `id`.
    pub(crate) fn open_detached(&self, sealed: &[u8], id: &SessionId) -> Opened {
        match self.open_as(DETACHED, sealed, id) {
            Ok((content, origin)) => Opened::Ticket { content, origin },
            Err(not_opened) => not_opened,
        }
    }

    /// Opens an address token.
    pub(crate) fn open_token(&self, token: &[u8], bound_to: &[u8]) -> Opened {
        match self.open_as(TOKEN, token, bound_to) {
            Ok((content, origin)) => Opened::Ticket { content, origin },
            Err(not_opened) => not_opened,
        }
    }

    fn seal_as(&self, kind: u8, content: &[u8], origin: Origin, bound_to: &[u8]) -> Vec<u8> {
        let mut nonce = [0; NONCE_BYTES];
        fill_unique(&mut nonce);
        let mut ticket = Vec::with_capacity(content.len() + TICKET_OVERHEAD);
        ticket.push(kind);
        ticket.extend_from_slice(&self.name);
        ticket.extend_from_slice(&nonce);
        let plain = Zeroizing::new([&origin.to_bytes(), content].concat());
        let aad = [&ticket, bound_to].concat();
        let sealed = cipher(&self.secret)
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
        let (header, sealed) = ticket.split_at(HEADER_BYTES);
        let mut nonce = [0; NONCE_BYTES];
        nonce.copy_from_slice(&header[1 + NAME_BYTES..]);
        let aad = [header, bound_to].concat();
        let mut plain = cipher(&self.secret)
            .decrypt(&XNonce::from(nonce), Payload { msg: sealed, aad: &aad })
            .map_err(|_| Opened::Forged)?;
        let Some((origin, content)) = plain.split_first_chunk() else {
            return Err(Opened::Forged);
        };
        let opened = (content.to_vec(), Origin::from_bytes(*origin));
        plain.zeroize();
        Ok(opened)
    }
}

impl fmt::Debug for TicketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TicketKey").field("name", &hex::encode(self.name)).finish_non_exhaustive()
    }
}

/// Reads the key name from sealed bytes, if they have this format.
pub(crate) fn key_name(sealed: &[u8]) -> Option<&[u8; NAME_BYTES]> {
    if sealed.len() < TICKET_OVERHEAD || !(SESSION..=TOKEN).contains(&sealed[0]) {
        return None;
    }
    sealed[1..].first_chunk()
}

/// The cipher with this key, which it overwrites when it is dropped.
pub(crate) fn cipher(secret: &[u8; SECRET_BYTES]) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new(<&Key>::from(secret))
}

/// Random bytes for a ticket, from a generator in the thread: a system call for each would be a
/// hundredth of a handshake's cost.
pub(crate) fn fill_unique(bytes: &mut [u8]) {
    rand::rng().fill_bytes(bytes);
}

/// Random bytes for a key, from the system.
pub(crate) fn fill_random(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the system gives random bytes");
}

const SESSION: u8 = 6;
const REFERENCE: u8 = 7;
const DETACHED: u8 = 8;
const TOKEN: u8 = 9;
const NAME_BYTES: usize = 16;
const SECRET_BYTES: usize = 32;
const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;
const HEADER_BYTES: usize = 1 + NAME_BYTES + NONCE_BYTES;

#[cfg(test)]
#[path = "key_tests.rs"]
mod tests;
