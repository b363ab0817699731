//! First flights: their keys, their offers of early data, and their claims.

use std::fmt;
use std::time::Duration;

use sha2::{Digest, Sha256};

/// The key of a register's record: identifies a flight, or a name (an idempotency key or a nonce).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClaimKey([u8; 16]);

impl ClaimKey {
    /// The key of the flight with this digest of ClientHello and PSK binder
    /// (`firstflight_tls::OfferedFlight::digest`, RFC 8446 section 8.2). All copies of a flight have
    /// the same key, and no other flight can be made to have it.
    pub fn of_flight(digest: &[u8; 32]) -> Self {
        let mut key = [0; 16];
        key.copy_from_slice(&digest[..16]);
        Self(key)
    }

    /// The key of a name that consists of these parts, such as a kind, a site and a header's value.
    /// Lengths are part of the digest: `["a", "bc"]` and `["ab", "c"]` are different names.
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

    /// The key's bytes.
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

/// A first flight that offers early data, and whose claim is not settled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlightOffer {
    pub(crate) key: ClaimKey,
    pub(crate) skew_seconds: i32,
    pub(crate) received_at: Duration,
    pub(crate) epoch: u32,
    /// Whether its ticket is used up, so that no copy of it can be accepted.
    pub(crate) used_up: bool,
}

impl FlightOffer {
    /// Creates an offer. `ticket_age_skew_seconds` is the ticket age stated by the client minus the
    /// one measured by the server (`SSL_get_ticket_age_skew`).
    ///
    /// Read `received_at` just *before* TLS processes the ClientHello. The flight ages from then on,
    /// so if the process pauses anywhere before the claim, the flight looks older, never younger.
    ///
    /// Read `epoch` ([`crate::TicketEpochs::current`]) before TLS processes the ClientHello, too. If
    /// the epoch has ended by the time of the claim, the flight is refused.
    pub fn new(
        key: ClaimKey,
        ticket_age_skew_seconds: i32,
        received_at: Duration,
        epoch: u32,
    ) -> Self {
        Self { key, skew_seconds: ticket_age_skew_seconds, received_at, epoch, used_up: false }
    }

    /// Creates an offer with a ticket that this connection has used up. No copy of the flight can be
    /// accepted, at any time and by any clock, so its ticket age and its epoch do not matter. It is
    /// recorded nevertheless: a copy may have been sent first, and then the client's own flight is the
    /// one that is refused ([`crate::SpendOutcome::Executed`]).
    pub fn with_used_up_ticket(key: ClaimKey, received_at: Duration) -> Self {
        Self { key, skew_seconds: 0, received_at, epoch: 0, used_up: true }
    }

    /// When the ClientHello was received.
    pub fn received_at(&self) -> Duration {
        self.received_at
    }

    /// When the ticket age stated by the client would be exact, by the clock of `received_at`. It is
    /// the same for all copies of the flight.
    pub fn exact_at(&self) -> Duration {
        let skew = Duration::from_secs(self.skew_seconds.unsigned_abs().into());
        match self.skew_seconds < 0 {
            true => self.received_at.saturating_sub(skew),
            false => self.received_at.saturating_add(skew),
        }
    }

    /// The flight's key in the strike register.
    pub fn key(&self) -> ClaimKey {
        self.key
    }

    /// The flight with its claim settled, here or by the process that now has the register.
    pub fn settled(&self, won: bool) -> Flight {
        Flight { key: self.key, won }
    }
}

/// The first flight of a connection on which TLS accepted early data, with its claim settled. All
/// requests of a connection share it.
///
/// It decides about each request that arrived wholly or partly as early data, *also* if the
/// handshake is complete by the time the request is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flight {
    key: ClaimKey,
    won: bool,
}

/// What to do with an early request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Run it.
    Execute,
    /// Hold it until the handshake is complete, then call [`Flight::handshake_complete`].
    Hold(HoldReason),
}

/// Why an early request is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HoldReason {
    /// The policy does not allow this request to run early.
    Policy,
    /// Another connection has won this flight's claim (RFC 8446 section 8.2).
    Replayed,
}

/// What to do with a held request once the handshake is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// Run it.
    Execute,
    /// Respond 425 (Too Early): a copy of the flight was executed, or may have been. The client
    /// decides whether to send a new request (RFC 8470 section 5.2).
    TooEarly,
}

impl Flight {
    /// The flight's key in the strike register.
    pub fn key(&self) -> ClaimKey {
        self.key
    }

    /// Whether this connection has won the flight's claim. If not, another one has.
    pub fn won(&self) -> bool {
        self.won
    }

    /// Decides about a request that arrived wholly or partly as early data. `may_run_early` is the
    /// policy's decision. The policy may differ between connections (after a reload) and between
    /// nodes, because the flight is recorded in any case.
    pub fn early_request(&self, may_run_early: bool) -> Decision {
        match (self.won, may_run_early) {
            (false, _) => Decision::Hold(HoldReason::Replayed),
            (true, false) => Decision::Hold(HoldReason::Policy),
            (true, true) => Decision::Execute,
        }
    }

    /// Decides about held requests. Call it only after the client's Finished has been verified.
    ///
    /// A request of a lost flight gets 425 even if the policy would hold it on every connection: the
    /// connection that won the claim may have had another policy.
    pub fn handshake_complete(&self) -> Release {
        match self.won {
            true => Release::Execute,
            false => Release::TooEarly,
        }
    }
}

/// The maximum lifetime of a ticket (RFC 8446 section 4.6.1). TLS accepts no ticket from the future, so
/// flights whose stated ages are exact later than this are never accepted.
pub const MAX_TICKET_LIFETIME: Duration = Duration::from_secs(7 * 86_400);

/// TLS counts skews in whole seconds: the exact times of two copies may differ by this.
pub(crate) const AGE_ROUNDING: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exact_time_does_not_depend_on_the_servers_clock() {
        let exact = |skew, received_at| {
            FlightOffer::new(ClaimKey([1; 16]), skew, Duration::from_secs(received_at), 0)
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
    fn names_with_different_parts_have_different_keys() {
        let name = |parts: &[&str]| {
            let parts: Vec<_> = parts.iter().map(|part| part.as_bytes()).collect();
            ClaimKey::from_name(&parts)
        };
        assert_eq!(name(&["a", "bc"]), name(&["a", "bc"]));
        assert_ne!(name(&["a", "bc"]), name(&["ab", "c"]));
        assert_ne!(name(&["a", ""]), name(&["a"]));
    }

    #[test]
    fn rfc8470_5_1_a_request_that_the_policy_holds_runs_after_the_handshake() {
        let won = FlightOffer::new(ClaimKey([1; 16]), 0, Duration::ZERO, 1).settled(true);
        assert_eq!(won.early_request(true), Decision::Execute);
        assert_eq!(won.early_request(false), Decision::Hold(HoldReason::Policy));
        assert_eq!(won.handshake_complete(), Release::Execute);
    }

    #[test]
    fn rfc8470_5_2_no_request_of_a_lost_flight_runs() {
        let lost = FlightOffer::new(ClaimKey([1; 16]), 0, Duration::ZERO, 1).settled(false);
        for may_run_early in [false, true] {
            assert_eq!(lost.early_request(may_run_early), Decision::Hold(HoldReason::Replayed));
        }
        assert_eq!(lost.handshake_complete(), Release::TooEarly);
    }
}
