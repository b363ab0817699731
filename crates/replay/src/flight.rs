//! One connection's first flight: who it is, how old its ticket said it was, who has its claim.

use std::fmt;
use std::time::Duration;

use sha2::{Digest, Sha256};

/// The key of a record in a register: a flight's, or a name's.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClaimKey([u8; 16]);

impl ClaimKey {
    /// The key of the flight with this name (`firstflight_tls::OfferedFlight::name`), a digest of
    /// its ClientHello and its PSK binder (RFC 8446 section 8.2): a copy has the same one, and who
    /// knows only a part of the flight cannot make another flight with it.
    pub fn of_flight(name: &[u8; 32]) -> Self {
        let mut key = [0; 16];
        key.copy_from_slice(&name[..16]);
        Self(key)
    }

    /// The key of what these parts name together, such as a kind, a site and a header's value.
    /// Other parts are another name, also where they read the same one after the other.
    pub fn from_name(parts: &[&[u8]]) -> Self {
        let mut digest = Sha256::new();
        for part in parts {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        let mut key = [0; 16];
        key.copy_from_slice(&digest.finalize()[..16]);
        Self(key)
    }

    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The key's bytes, as a shared store would hold them.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for ClaimKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClaimKey({self})")
    }
}

/// In hexadecimal.
impl fmt::Display for ClaimKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A first flight that offers early data and has no record yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    pub(crate) key: ClaimKey,
    pub(crate) skew_seconds: i32,
    pub(crate) seen_at: Duration,
    pub(crate) epoch: u32,
}

impl Offer {
    /// The flight with this key, whose ticket age is off by `ticket_age_skew_seconds` (client's
    /// ticket age minus server's, as `SSL_get_ticket_age_skew` gives it).
    ///
    /// Take `seen_at` just *before* TLS was given the ClientHello. The flight ages from there, so
    /// a pause of the process at any point up to the claim makes it look older, never younger.
    ///
    /// `epoch`: the ticket epoch ([`crate::TicketEpochs::current`]) read before TLS was given the
    /// ClientHello. If it has ended by the time of the claim, the flight is refused.
    pub fn new(key: ClaimKey, ticket_age_skew_seconds: i32, seen_at: Duration, epoch: u32) -> Self {
        Self { key, skew_seconds: ticket_age_skew_seconds, seen_at, epoch }
    }

    /// When the ClientHello came.
    pub fn seen_at(&self) -> Duration {
        self.seen_at
    }

    /// When the ticket age that the client states is exact, by the clock of `seen_at`: the one
    /// moment that all copies of the flight have in common.
    pub fn exact_at(&self) -> Duration {
        let skew = Duration::from_secs(self.skew_seconds.unsigned_abs().into());
        match self.skew_seconds < 0 {
            true => self.seen_at.saturating_sub(skew),
            false => self.seen_at.saturating_add(skew),
        }
    }

    /// The flight's key in the strike register.
    pub fn key(&self) -> ClaimKey {
        self.key
    }

    /// The flight, now that its claim is settled, here or by the process that has the register.
    pub fn settled(&self, won: bool) -> Flight {
        Flight { key: self.key, won }
    }
}

/// The first flight of one connection on which TLS accepted early data, its claim settled. One per
/// connection: the requests of an HTTP/2 flight share it.
///
/// Ask it about each request of which any byte came as early data, *also* if the handshake is
/// complete by the time that it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flight {
    key: ClaimKey,
    won: bool,
}

/// What becomes of an early request now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Run it.
    Execute,
    /// Keep it until the handshake is complete, then ask [`Flight::handshake_complete`].
    Hold(HoldReason),
}

/// Why an early request is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HoldReason {
    /// The policy does not let this request run early.
    Policy,
    /// Another connection has the claim of this flight (RFC 8446 section 8.2).
    Replayed,
}

/// What becomes of a held request once its connection's handshake is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// Run it.
    Execute,
    /// Answer 425 (Too Early): a copy of the flight was, or may have been, executed. The client
    /// decides whether to send a new request (RFC 8470 section 5.2).
    TooEarly,
}

impl Flight {
    /// The flight's key in the strike register.
    pub fn key(&self) -> ClaimKey {
        self.key
    }

    /// Whether this connection has the flight's claim; if not, another one has.
    pub fn won(&self) -> bool {
        self.won
    }

    /// Decides over a request that came, wholly or in part, as early data. `may_run_early`: the
    /// policy's word. It may change from one connection to the next, by a reload or between nodes:
    /// nothing rests on it, since a flight has its record whatever the policy says.
    pub fn early_request(&self, may_run_early: bool) -> Decision {
        match (self.won, may_run_early) {
            (false, _) => Decision::Hold(HoldReason::Replayed),
            (true, false) => Decision::Hold(HoldReason::Policy),
            (true, true) => Decision::Execute,
        }
    }

    /// Decides over the requests that were held, when (and only when) the client's Finished has
    /// been verified.
    ///
    /// A request of a lost flight is too early also where the policy holds it: on the connection
    /// that has the claim another policy may have let it run.
    pub fn handshake_complete(&self) -> Release {
        match self.won {
            true => Release::Execute,
            false => Release::TooEarly,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exact_time_does_not_depend_on_the_clock_that_measures() {
        let exact = |skew, seen_at| {
            Offer::new(ClaimKey([1; 16]), skew, Duration::from_secs(seen_at), 0)
                .exact_at()
                .as_secs()
        };
        assert_eq!(exact(0, 1000), 1000);
        // A clock that is 100 s ahead finds the stated age 100 s short.
        assert_eq!(exact(-100, 1100), 1000);
        assert_eq!(exact(3600, 1000), 4600);
        assert_eq!(exact(i32::MIN, 1000), 0);
    }

    #[test]
    fn names_differ_by_their_parts() {
        let name = |parts: &[&str]| {
            let parts: Vec<_> = parts.iter().map(|part| part.as_bytes()).collect();
            ClaimKey::from_name(&parts)
        };
        assert_eq!(name(&["a", "bc"]), name(&["a", "bc"]));
        assert_ne!(name(&["a", "bc"]), name(&["ab", "c"]));
        assert_ne!(name(&["a", ""]), name(&["a"]));
    }

    #[test]
    fn rfc8470_5_1_what_the_policy_holds_runs_after_the_handshake() {
        let won = Offer::new(ClaimKey([1; 16]), 0, Duration::ZERO, 1).settled(true);
        assert_eq!(won.early_request(true), Decision::Execute);
        assert_eq!(won.early_request(false), Decision::Hold(HoldReason::Policy));
        assert_eq!(won.handshake_complete(), Release::Execute);
    }

    #[test]
    fn rfc8470_5_2_nothing_of_a_lost_flight_runs() {
        let lost = Offer::new(ClaimKey([1; 16]), 0, Duration::ZERO, 1).settled(false);
        for may_run_early in [false, true] {
            assert_eq!(lost.early_request(may_run_early), Decision::Hold(HoldReason::Replayed));
        }
        assert_eq!(lost.handshake_complete(), Release::TooEarly);
    }
}
