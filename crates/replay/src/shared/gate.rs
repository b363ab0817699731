//! What becomes of a flight by the store's word.

use std::time::Duration;

use super::{SharedConfig, StoreAnswer, Unknown};
use crate::flight::{Flight, Standing};

/// What to do with the early data of a connection whose ClientHello TLS would accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Acceptance {
    /// Let TLS accept it; [`Flight::claim_won`] says whether its requests may run early.
    Accept,
    /// Let TLS refuse it: the client resumes and sends its request again.
    Refuse(SharedRefusal),
}

/// Why early data is refused by TLS though the ticket was good for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SharedRefusal {
    /// The ticket age is off by more than the freshness window (RFC 8446 section 8.3).
    TicketAge,
    /// The store's word is missing or does not count.
    Store(Unknown),
}

/// Decides over first flights by the shared register's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SharedGate {
    config: SharedConfig,
}

impl SharedGate {
    /// A gate with these settings.
    pub fn new(config: SharedConfig) -> Self {
        Self { config }
    }

    /// The settings.
    pub fn config(&self) -> &SharedConfig {
        &self.config
    }

    /// Settles `flight` by the store's answer to its claim, which came at `now`. Call it once for
    /// each flight, before anything of the handshake was sent; the flight then knows whether its
    /// requests may run early, and [`crate::Gate::early_request`] answers by that.
    ///
    /// `now` and the flight's `seen_at` are readings of the clock by which ticket ages are measured
    /// and which the store's is compared to; and `seen_at` is from *before* TLS was given the
    /// ClientHello. So neither a pause of the process at any point, nor that clock's being set
    /// meanwhile, makes a flight look younger than it is when its claim is made.
    pub fn settle(&self, flight: &mut Flight, answer: StoreAnswer, now: Duration) -> Acceptance {
        match answer {
            StoreAnswer::Lost => {
                flight.standing = Standing::Lost;
                Acceptance::Accept
            }
            StoreAnswer::Unknown(why) => Acceptance::Refuse(SharedRefusal::Store(why)),
            StoreAnswer::Won if self.is_fresh(flight, now) => {
                flight.standing = Standing::Owned;
                Acceptance::Accept
            }
            StoreAnswer::Won => Acceptance::Refuse(SharedRefusal::TicketAge),
        }
    }

    /// Whether the skew lies within the freshness window at the ClientHello and at `now`.
    fn is_fresh(&self, flight: &Flight, now: Duration) -> bool {
        let Some(passed) = now.checked_sub(flight.seen_at) else { return false };
        let skew = i64::from(flight.skew_seconds) * 1000;
        let aged = skew - i64::try_from(passed.as_millis()).unwrap_or(i64::MAX / 2);
        let window = i64::try_from(self.config.freshness.as_millis()).unwrap_or(i64::MAX / 2);
        skew <= window && aged >= -window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settle(
        skew: i32,
        seen_at: u64,
        answer: StoreAnswer,
        now: u64,
    ) -> (Acceptance, Option<bool>) {
        let mut flight = Flight::new(&[1; 32], skew, Duration::from_millis(seen_at));
        let gate = SharedGate::new(SharedConfig::default());
        let acceptance = gate.settle(&mut flight, answer, Duration::from_millis(now));
        (acceptance, flight.claim_won())
    }

    const STALE: (Acceptance, Option<bool>) = (Acceptance::Refuse(SharedRefusal::TicketAge), None);
    const RUNS: (Acceptance, Option<bool>) = (Acceptance::Accept, Some(true));

    #[test]
    fn rfc8446_8_3_only_fresh_flights_run_early() {
        for (skew, expected) in [
            (i32::MIN, STALE),
            (-11, STALE),
            (-10, RUNS),
            (10, RUNS),
            (11, STALE),
            (i32::MAX, STALE),
        ] {
            assert_eq!(settle(skew, 5000, StoreAnswer::Won, 5000), expected, "{skew}");
        }
    }

    #[test]
    fn rfc8446_8_3_a_flight_ages_until_its_claim_is_settled() {
        assert_eq!(settle(0, 5000, StoreAnswer::Won, 15_000), RUNS);
        assert_eq!(settle(0, 5000, StoreAnswer::Won, 15_001), STALE);
        assert_eq!(settle(0, 5000, StoreAnswer::Won, u64::MAX), STALE);
        // A clock that was set back meanwhile: nothing is known of the age.
        assert_eq!(settle(0, 5000, StoreAnswer::Won, 4999), STALE);
    }

    #[test]
    fn rfc8446_8_2_a_lost_claim_is_held_and_an_unknown_one_refused() {
        let lost = (Acceptance::Accept, Some(false));
        assert_eq!(settle(0, 5000, StoreAnswer::Lost, 5000), lost);
        assert_eq!(settle(-60, 5000, StoreAnswer::Lost, 5000), lost, "a stale original, too");
        let why = Unknown::Slow;
        let refused = (Acceptance::Refuse(SharedRefusal::Store(why)), None);
        assert_eq!(settle(0, 5000, StoreAnswer::Unknown(why), 5000), refused);
    }
}
