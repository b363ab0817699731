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
        let skew = i64::from(flight.skew_seconds) * 1000;
        let passed = now.saturating_sub(flight.seen_at).as_millis();
        let aged = skew - i64::try_from(passed).unwrap_or(i64::MAX / 2);
        let window = i64::try_from(self.config.freshness.as_millis()).unwrap_or(i64::MAX / 2);
        skew <= window && aged >= -window
    }
}
