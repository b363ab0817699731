use std::sync::Arc;
use std::time::{Duration, SystemTime};

use firstflight_tickets::TicketKeys;
use quinn_proto::crypto::{AeadKey, HandshakeTokenKey};

/// Seals and opens address tokens, of Retry and of NEW_TOKEN, under the ticket keys: any node that
/// has the ring accepts them.
pub struct AddressTokens;

impl AddressTokens {
    /// Under these keys.
    pub fn new(_keys: Arc<TicketKeys>) -> Self {
        unimplemented!()
    }
}

impl HandshakeTokenKey for AddressTokens {
    fn aead_from_hkdf(&self, _random_bytes: &[u8]) -> Box<dyn AeadKey> {
        unimplemented!()
    }
}

/// The tokens that this process has accepted: each counts once in its lifetime. Memory is bounded;
/// a full log accepts no token, which costs its client nothing but the room for a long answer.
pub struct SpentTokens;

impl SpentTokens {
    /// Remembers `capacity` tokens at a time.
    pub fn new(_capacity: usize) -> Self {
        unimplemented!()
    }
}

impl quinn_proto::TokenLog for SpentTokens {
    fn check_and_insert(
        &self,
        _nonce: u128,
        _issued: SystemTime,
        _lifetime: Duration,
    ) -> Result<(), quinn_proto::TokenReuseError> {
        unimplemented!()
    }
}
