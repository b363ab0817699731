//! Address tokens (RFC 9000 section 8.1), carried by Retry packets and NEW_TOKEN frames. A client
//! that returns one in an Initial packet proves that it receives packets at its address.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use firstflight_tickets::{TicketKeys, UnixTime};
use quinn_proto::crypto::{AeadKey, CryptoError, HandshakeTokenKey};

mod spent;

pub use spent::SpentTokens;

/// Seals and opens the address tokens of Retry and NEW_TOKEN under the ticket keys. Any node with
/// the same ticket ring can open them, for as long as a ticket sealed at the same time. A token is
/// never accepted as a ticket, nor a ticket as a token. Cheap to clone.
///
/// Each NEW_TOKEN token contains its issuer and a serial number, encrypted. Recording that a token
/// was spent therefore takes one bit ([`SpentTokens`]), without a list of tokens.
///
/// A node accepts NEW_TOKEN tokens only from its own zone, because nodes of another zone do not
/// know which of them are spent. Retry tokens are valid on all nodes: they live for seconds, and
/// are bound to the client's port and connection id.
#[derive(Clone)]
pub struct AddressTokens(Arc<Inner>);

/// Identifies a NEW_TOKEN token among all tokens of all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenSerial {
    /// The process that issued it, identified by a random number.
    pub issuer: u64,
    /// How many tokens the process had issued before.
    pub number: u64,
}

struct Inner {
    keys: Arc<TicketKeys>,
    clock: fn() -> UnixTime,
    issuer: u64,
    issued: AtomicU64,
}

impl AddressTokens {
    /// Creates tokens under `keys`, with the time of `clock`. One object serves all endpoints of a
    /// process.
    ///
    /// # Panics
    /// If the system provides no random bytes.
    pub fn new(keys: Arc<TicketKeys>, clock: fn() -> UnixTime) -> Self {
        let mut issuer = [0; 8];
        boring::rand::rand_bytes(&mut issuer).expect("the system gives random bytes");
        let issuer = u64::from_be_bytes(issuer);
        Self(Arc::new(Inner { keys, clock, issuer, issued: AtomicU64::new(0) }))
    }

    /// Returns the serial of a NEW_TOKEN token of an Initial packet. Returns `None` for other
    /// tokens, and for tokens that cannot be opened.
    pub fn serial(&self, token: &[u8]) -> Option<TokenSerial> {
        let (sealed, nonce) = token.split_last_chunk::<NONCE>()?;
        self.0.open(sealed, nonce)?.0
    }
}

impl Inner {
    /// Returns the sealed content, and the serial of a NEW_TOKEN token.
    fn open(&self, sealed: &[u8], nonce: &[u8]) -> Option<(Option<TokenSerial>, Vec<u8>)> {
        let (content, zone) = self.keys.open_token(sealed, nonce, (self.clock)())?;
        let (&kind, content) = content.split_first()?;
        if kind == WITHOUT_SERIAL {
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
        // A Retry token is bound to one handshake and needs no serial.
        if payload.first() == Some(&RETRY_PAYLOAD) {
            content.push(WITHOUT_SERIAL);
        } else {
            content.push(WITH_SERIAL);
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

/// The key for the token with this nonce, which follows the sealed part in plain text.
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
    /// The NEW_TOKEN token that this thread opened last, by quinn's nonce. In the same call that
    /// opened a token, quinn checks it against the log, and passes the nonce only.
    static OPENED: Cell<Option<(u128, TokenSerial)>> = const { Cell::new(None) };
}

/// Returns the serial of the token with this nonce, if it was the last one opened.
fn last_opened(nonce: u128) -> Option<TokenSerial> {
    OPENED.take().filter(|(opened, _)| *opened == nonce).map(|(_, serial)| serial)
}

/// Length of quinn's nonce at the end of a token.
const NONCE: usize = 16;
/// First byte of the payload that quinn seals for a Retry.
const RETRY_PAYLOAD: u8 = 0;
/// First byte of the sealed content: whether a serial follows.
const WITHOUT_SERIAL: u8 = 0;
const WITH_SERIAL: u8 = 1;

#[cfg(test)]
mod tests;
