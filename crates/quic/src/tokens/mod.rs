//! Address tokens (RFC 9000 section 8.1): what a Retry packet or a NEW_TOKEN frame carries, so that
//! a client shows at its next Initial packet that it receives at its address.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use firstflight_tickets::{TicketKeys, UnixTime};
use quinn_proto::crypto::{AeadKey, CryptoError, HandshakeTokenKey};

mod spent;

pub use spent::SpentTokens;

/// Seals and opens address tokens, of Retry and of NEW_TOKEN, under the ticket keys: any node that
/// has the ring opens them, for as long as a ticket that was sealed with them. A token never opens
/// as a ticket, nor a ticket as a token. Cheap to clone.
///
/// Each NEW_TOKEN token carries who issued it and a running number, sealed. So which ones are spent
/// takes one bit a token ([`SpentTokens`]), and that no token is accepted twice needs no list of
/// them.
///
/// A node takes NEW_TOKEN tokens of its own zone alone: another zone's nodes do not know which of
/// them are spent. Retry's tokens are good everywhere: they live for seconds, and name the
/// client's port and connection id.
#[derive(Clone)]
pub struct AddressTokens(Arc<Inner>);

/// What names a NEW_TOKEN token among all that the nodes ever issue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenSerial {
    /// The process that issued it, by a random number.
    pub issuer: u64,
    /// How many it had issued before.
    pub number: u64,
}

struct Inner {
    keys: Arc<TicketKeys>,
    clock: fn() -> UnixTime,
    issuer: u64,
    issued: AtomicU64,
}

impl AddressTokens {
    /// Under these keys, whose tickets are aged by `clock`. One object serves all endpoints of a
    /// process.
    ///
    /// # Panics
    /// If the system has no randomness to give.
    pub fn new(keys: Arc<TicketKeys>, clock: fn() -> UnixTime) -> Self {
        let mut issuer = [0; 8];
        boring::rand::rand_bytes(&mut issuer).expect("the system gives random bytes");
        let issuer = u64::from_be_bytes(issuer);
        Self(Arc::new(Inner { keys, clock, issuer, issued: AtomicU64::new(0) }))
    }

    /// The serial of a NEW_TOKEN token as an Initial packet carries it; `None`: it is another
    /// kind of token, or none that opens here.
    pub fn serial(&self, token: &[u8]) -> Option<TokenSerial> {
        let (sealed, nonce) = token.split_last_chunk::<NONCE>()?;
        self.0.open(sealed, nonce)?.0
    }
}

impl Inner {
    /// What was sealed, with its serial if it has one.
    fn open(&self, sealed: &[u8], nonce: &[u8]) -> Option<(Option<TokenSerial>, Vec<u8>)> {
        let (content, zone) = self.keys.open_token(sealed, nonce, (self.clock)())?;
        let (&kind, content) = content.split_first()?;
        if kind == PLAIN {
            return Some((None, content.to_vec()));
        }
        let (issuer, content) = content.split_first_chunk()?;
        let (number, content) = content.split_first_chunk()?;
        let serial = TokenSerial {
            issuer: u64::from_be_bytes(*issuer),
            number: u64::from_be_bytes(*number),
        };
        (zone == self.keys.zone()).then(|| (Some(serial), content.to_vec()))
    }

    fn seal(&self, payload: &[u8], nonce: &[u8]) -> Vec<u8> {
        let mut content = Vec::with_capacity(1 + 16 + payload.len());
        // A Retry's token is bound to one handshake: a number would be a bit wasted.
        if payload.first() == Some(&OF_RETRY) {
            content.push(PLAIN);
        } else {
            content.push(NUMBERED);
            content.extend_from_slice(&self.issuer.to_be_bytes());
            let number = self.issued.fetch_add(1, Ordering::Relaxed);
            content.extend_from_slice(&number.to_be_bytes());
        }
        content.extend_from_slice(payload);
        self.keys.seal_token(&content, nonce, (self.clock)())
    }
}

impl HandshakeTokenKey for AddressTokens {
    fn aead_from_hkdf(&self, random_bytes: &[u8]) -> Box<dyn AeadKey> {
        Box::new(TokenKey { inner: Arc::clone(&self.0), nonce: random_bytes.to_vec() })
    }
}

/// For the token with this nonce, which follows the sealed part in the clear.
struct TokenKey {
    inner: Arc<Inner>,
    nonce: Vec<u8>,
}

impl AeadKey for TokenKey {
    fn seal(&self, data: &mut Vec<u8>, _additional_data: &[u8]) -> Result<(), CryptoError> {
        *data = self.inner.seal(data, &self.nonce);
        Ok(())
    }

    fn open<'a>(
        &self,
        data: &'a mut [u8],
        _additional_data: &[u8],
    ) -> Result<&'a mut [u8], CryptoError> {
        let (serial, payload) = self.inner.open(data, &self.nonce).ok_or(CryptoError)?;
        let nonce = <[u8; NONCE]>::try_from(&self.nonce[..]).map_err(|_| CryptoError)?;
        OPENED.set(serial.map(|serial| (u128::from_le_bytes(nonce), serial)));
        let room = data.get_mut(..payload.len()).ok_or(CryptoError)?;
        room.copy_from_slice(&payload);
        Ok(room)
    }
}

thread_local! {
    /// The NEW_TOKEN token that was opened last on this thread, by quinn's nonce. quinn asks its
    /// log for it in the same call that has opened it, and gives the log no more than the nonce.
    static OPENED: Cell<Option<(u128, TokenSerial)>> = const { Cell::new(None) };
}

/// The serial of the token with this nonce, if it is the one that was opened last.
fn opened(nonce: u128) -> Option<TokenSerial> {
    OPENED.take().filter(|(opened, _)| *opened == nonce).map(|(_, serial)| serial)
}

/// quinn's nonce at the end of a token.
const NONCE: usize = 16;
/// The first byte of what quinn seals for a Retry.
const OF_RETRY: u8 = 0;
const PLAIN: u8 = 0;
const NUMBERED: u8 = 1;

#[cfg(test)]
mod tests;
