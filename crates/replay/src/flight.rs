//! One connection's first flight: who it is, how old its ticket said it was, who owns its claim.

use std::fmt;
use std::time::Duration;

use sha2::{Digest, Sha256};

/// A flight's identity in the strike register: 16 bytes of SHA-256 over the client random.
///
/// A copy has the same client random byte for byte; changing it breaks the PSK binder, so the
/// random may serve as the key once the binder is verified (RFC 8446 section 8.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClaimKey([u8; 16]);

impl ClaimKey {
    /// The key of the flight whose ClientHello carries `random`.
    ///
    /// Ask only after the binder was verified, that is, once TLS has accepted early data:
    /// otherwise anybody could claim a flight that he merely saw the random of.
    pub fn from_client_random(random: &[u8; 32]) -> Self {
        let digest = Sha256::digest(random);
        let mut key = [0; 16];
        key.copy_from_slice(&digest[..16]);
        Self(key)
    }

    /// The key's bytes, as a shared store would hold them.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for ClaimKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClaimKey(")?;
        for byte in self.0 {
            write!(f, "{byte:02x}")?;
        }
        write!(f, ")")
    }
}

/// The first flight of one connection on which TLS accepted early data. One per connection: the
/// requests of an HTTP/2 flight share it, and its claim.
#[derive(Debug)]
pub struct Flight {
    pub(crate) key: ClaimKey,
    pub(crate) skew_seconds: i32,
    pub(crate) seen_at: Duration,
    pub(crate) standing: Standing,
}

impl Flight {
    /// The flight with `client_random`, whose ticket age was off by `ticket_age_skew_seconds`
    /// (client's ticket age minus server's, as `SSL_get_ticket_age_skew` gives it) when TLS
    /// processed its ClientHello at `seen_at`.
    ///
    /// Take `seen_at` at once after TLS handed over the connection as early. The gate lets the
    /// skew age from there: a copy that sends its ClientHello now and its request a minute later
    /// is a minute old.
    pub fn new(client_random: &[u8; 32], ticket_age_skew_seconds: i32, seen_at: Duration) -> Self {
        Self {
            key: ClaimKey::from_client_random(client_random),
            skew_seconds: ticket_age_skew_seconds,
            seen_at,
            standing: Standing::Undecided,
        }
    }

    /// The flight's key in the strike register.
    pub fn key(&self) -> ClaimKey {
        self.key
    }

    /// Whether this connection won its flight's claim (`Some(true)`), lost it to another
    /// connection (`Some(false)`), or has not needed one so far. For the access log.
    pub fn claim_won(&self) -> Option<bool> {
        match self.standing {
            Standing::Undecided => None,
            Standing::Owned => Some(true),
            Standing::Lost => Some(false),
        }
    }
}

/// What this connection knows about its flight's claim. Decided once, then kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Standing {
    Undecided,
    Owned,
    Lost,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_the_first_half_of_sha256() {
        // SHA-256 of 32 zero bytes.
        let key = ClaimKey::from_client_random(&[0; 32]);
        assert_eq!(format!("{key:?}"), "ClaimKey(66687aadf862bd776c8fc18b8e9f8e20)");
    }

    #[test]
    fn one_flipped_bit_is_another_flight() {
        let mut random = [7; 32];
        let key = ClaimKey::from_client_random(&random);
        random[31] ^= 1;
        assert_ne!(key, ClaimKey::from_client_random(&random));
    }
}
