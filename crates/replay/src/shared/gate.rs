//! Decides about a flight by the store's reply.

use std::time::Duration;

use super::{SharedConfig, StoreReply, Unknown};
use crate::flight::{Flight, FlightOffer};

/// Why TLS has to refuse early data whose ticket allows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SharedRefusal {
    /// The ticket age is off by more than the freshness window (RFC 8446 section 8.3).
    TicketAge,
    /// The store's reply is missing or does not count.
    Store(Unknown),
}

/// Decides about first flights by the shared register's replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SharedGate {
    config: SharedConfig,
}

impl SharedGate {
    /// Creates a gate with these settings.
    pub fn new(config: SharedConfig) -> Self {
        Self { config }
    }

    /// The settings.
    pub fn config(&self) -> &SharedConfig {
        &self.config
    }

    /// When the store drops a flight's record, on its own clock ([`SharedConfig::record_end`]).
    pub fn record_end(&self, exact_at: Duration) -> Duration {
        self.config.record_end(exact_at)
    }

    /// When nodes stop accepting copies of a flight, on a clock within the margin of the store's
    /// ([`SharedConfig::closed_at`]).
    pub fn closed_at(&self, exact_at: Duration) -> Duration {
        self.config.closed_at(exact_at)
    }

    /// Settles a flight by the store's reply to its claim, received at `now`. Call it once for each
    /// flight, before anything of the handshake is sent.
    ///
    /// `now` and the offer's `received_at` are on the clock by which ticket ages are measured, and to
    /// which the store's clock is compared. So neither a pause of the process nor a step of that
    /// clock makes a flight look younger than it is.
    ///
    /// # Errors
    /// TLS has to refuse early data. The client resumes its session and sends its requests again.
    pub fn settle(
        &self,
        offer: &FlightOffer,
        reply: StoreReply,
        now: Duration,
    ) -> Result<Flight, SharedRefusal> {
        match reply {
            StoreReply::Lost => Ok(offer.settled(false)),
            StoreReply::Unknown(why) => Err(SharedRefusal::Store(why)),
            StoreReply::Won if self.is_fresh(offer, now) => Ok(offer.settled(true)),
            StoreReply::Won => Err(SharedRefusal::TicketAge),
        }
    }

    /// Whether the skew lies within the freshness window at the ClientHello and at `now`.
    fn is_fresh(&self, offer: &FlightOffer, now: Duration) -> bool {
        let Some(elapsed) = now.checked_sub(offer.received_at) else { return false };
        let skew = i64::from(offer.skew_seconds) * 1000;
        let aged = skew - i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX / 2);
        let window = i64::try_from(self.config.freshness.as_millis()).unwrap_or(i64::MAX / 2);
        skew <= window && aged >= -window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the claim is won, if the flight is accepted.
    fn settle(
        skew: i32,
        received_at: u64,
        reply: StoreReply,
        now: u64,
    ) -> Result<bool, SharedRefusal> {
        let offer = FlightOffer::new(
            crate::ClaimKey::of_flight(&[1; 32]),
            skew,
            Duration::from_millis(received_at),
            0,
        );
        let gate = SharedGate::new(SharedConfig::default());
        let settled = gate.settle(&offer, reply, Duration::from_millis(now));
        settled.map(|flight| flight.won())
    }

    const STALE: Result<bool, SharedRefusal> = Err(SharedRefusal::TicketAge);
    const WON: Result<bool, SharedRefusal> = Ok(true);

    #[test]
    fn rfc8446_8_3_only_fresh_flights_run_early() {
        for (skew, expected) in
            [(i32::MIN, STALE), (-11, STALE), (-10, WON), (10, WON), (11, STALE), (i32::MAX, STALE)]
        {
            assert_eq!(settle(skew, 5000, StoreReply::Won, 5000), expected, "{skew}");
        }
    }

    #[test]
    fn rfc8446_8_3_a_flight_ages_until_its_claim_is_settled() {
        assert_eq!(settle(0, 5000, StoreReply::Won, 15_000), WON);
        assert_eq!(settle(0, 5000, StoreReply::Won, 15_001), STALE);
        assert_eq!(settle(0, 5000, StoreReply::Won, u64::MAX), STALE);
        // A clock that was set back meanwhile: the age is unknown.
        assert_eq!(settle(0, 5000, StoreReply::Won, 4999), STALE);
    }

    #[test]
    fn rfc8446_8_2_a_lost_claim_is_accepted_and_an_unknown_one_refused() {
        assert_eq!(settle(0, 5000, StoreReply::Lost, 5000), Ok(false));
        assert_eq!(settle(-60, 5000, StoreReply::Lost, 5000), Ok(false), "a stale original, too");
        let why = Unknown::Slow;
        let refused = Err(SharedRefusal::Store(why));
        assert_eq!(settle(0, 5000, StoreReply::Unknown(why), 5000), refused);
    }
}
