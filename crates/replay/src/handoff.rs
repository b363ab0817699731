//! The handoff of a register to the process that replaces this one: a snapshot of all records
//! ([`crate::RegisterSnapshot`]), then one query per flight.
//!
//! While connections are still open in the old process, a flight may arrive there after the
//! snapshot was taken. The old process forwards it to the new one as a [`HandoffQuery`] of 33 bytes.
//! So there is one register at any time, and no need for a new ticket epoch. The old one also
//! records what is claimed by its queries: if the new process dies, its own gate opens again.

use std::time::Duration;

use crate::ClaimKey;
use crate::flight::FlightOffer;
use crate::gate::{Gate, Refusal, SpendOutcome};
use crate::register::ClaimOutcome;

/// A query from the process that has handed its register over. Times are by a clock that both
/// processes read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandoffQuery {
    /// Settles a flight's claim ([`Gate::claim`]).
    Flight(FlightOffer),
    /// Spends a refused flight ([`Gate::spend`]).
    Spend(FlightOffer),
    /// Claims a name for this long ([`Gate::claim_name`]).
    Name(ClaimKey, Duration),
    /// Releases a name ([`Gate::release_name`]).
    Release(ClaimKey),
}

/// The reply to a [`HandoffQuery`], one byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandoffReply {
    /// Whether the flight's claim is won, or why the flight is refused.
    Flight(Result<bool, Refusal>),
    /// The outcome of the spend.
    Spent(SpendOutcome),
    /// The outcome of the name's claim.
    Name(ClaimOutcome),
    /// The name is released.
    Released,
}

impl HandoffQuery {
    /// The length of a query in bytes.
    pub const LENGTH: usize = 1 + 16 + 8 + 4 + 4;

    /// Executes the query in the process that has the register. `common` is the current time on the
    /// clock that both processes read.
    pub fn execute(&self, gate: &Gate, common: Duration, now: Duration) -> HandoffReply {
        match self {
            Self::Flight(offer) => {
                let offer = by_local_clock(offer, common, now);
                HandoffReply::Flight(gate.claim(&offer, now).map(|flight| flight.won()))
            }
            Self::Spend(offer) => {
                HandoffReply::Spent(gate.spend(&by_local_clock(offer, common, now), now))
            }
            Self::Name(name, lifetime) => {
                HandoffReply::Name(gate.claim_name(*name, *lifetime, now))
            }
            Self::Release(name) => {
                gate.release_name(*name, now);
                HandoffReply::Released
            }
        }
    }

    /// Records what the query claimed or released in the process that sent it. Call it before a
    /// request runs because of the reply. Refused flights need no record there, because a new epoch
    /// starts before its gate opens again. `common` as in [`execute`](Self::execute).
    pub fn record(&self, reply: HandoffReply, gate: &Gate, common: Duration, now: Duration) {
        match (self, reply) {
            (Self::Flight(offer), HandoffReply::Flight(Ok(_))) => {
                gate.restore_flight(&by_local_clock(offer, common, now), now);
            }
            (
                Self::Name(name, lifetime),
                HandoffReply::Name(ClaimOutcome::Won | ClaimOutcome::Lost),
            ) => {
                gate.restore_name(*name, *lifetime, now);
            }
            (Self::Release(name), HandoffReply::Released) => gate.restore_release(*name, now),
            _ => {}
        }
    }

    /// Serializes the query.
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let fields = |kind, offer: &FlightOffer| {
            (kind, offer.key, offer.received_at, offer.skew_seconds, offer.epoch)
        };
        let (kind, key, time, skew, epoch) = match self {
            Self::Flight(offer) if offer.used_up => fields(5, offer),
            Self::Flight(offer) => fields(1, offer),
            Self::Name(key, lifetime) => (2, *key, *lifetime, 0, 0),
            Self::Release(key) => (3, *key, Duration::ZERO, 0, 0),
            Self::Spend(offer) => fields(4, offer),
        };
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let mut bytes = [0; Self::LENGTH];
        bytes[0] = kind;
        bytes[1..17].copy_from_slice(key.as_bytes());
        bytes[17..25].copy_from_slice(&millis.to_be_bytes());
        bytes[25..29].copy_from_slice(&skew.to_be_bytes());
        bytes[29..].copy_from_slice(&epoch.to_be_bytes());
        bytes
    }

    /// Parses a query. Returns `None` if it is of another version.
    pub fn parse(bytes: &[u8; Self::LENGTH]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let (key, rest) = rest.split_first_chunk()?;
        let (millis, rest) = rest.split_first_chunk()?;
        let key = ClaimKey::from_bytes(*key);
        let (skew, rest) = rest.split_first_chunk()?;
        let time = Duration::from_millis(u64::from_be_bytes(*millis));
        let offer = || {
            let epoch = u32::from_be_bytes(*rest.first_chunk()?);
            Some(FlightOffer::new(key, i32::from_be_bytes(*skew), time, epoch))
        };
        match kind {
            1 => offer().map(Self::Flight),
            5 => offer().map(|offer| Self::Flight(FlightOffer { used_up: true, ..offer })),
            4 => offer().map(Self::Spend),
            2 => Some(Self::Name(key, time)),
            3 => Some(Self::Release(key)),
            _ => None,
        }
    }
}

impl HandoffReply {
    const ALL: [(u8, Self); 15] = [
        (10, Self::Flight(Ok(true))),
        (11, Self::Flight(Ok(false))),
        (12, Self::Flight(Err(Refusal::TicketEpoch))),
        (13, Self::Flight(Err(Refusal::RegisterFull))),
        (14, Self::Flight(Err(Refusal::TicketAge))),
        (15, Self::Flight(Err(Refusal::RefusedBefore))),
        (16, Self::Flight(Err(Refusal::HandedOver))),
        (17, Self::Spent(SpendOutcome::Recorded)),
        (18, Self::Spent(SpendOutcome::Executed)),
        (19, Self::Spent(SpendOutcome::HandedOver)),
        (20, Self::Name(ClaimOutcome::Won)),
        (21, Self::Name(ClaimOutcome::Lost)),
        (22, Self::Name(ClaimOutcome::Full)),
        (23, Self::Name(ClaimOutcome::Closed)),
        (30, Self::Released),
    ];

    /// Serializes the reply.
    pub fn to_byte(self) -> u8 {
        // Names are never barred.
        let known = Self::ALL.iter().find(|(_, reply)| *reply == self);
        known.map_or(0, |(byte, _)| *byte)
    }

    /// Parses a reply. Returns `None` if it is of another version.
    pub fn parse(byte: u8) -> Option<Self> {
        Self::ALL.iter().find(|(code, _)| *code == byte).map(|(_, reply)| *reply)
    }
}

/// Converts the flight's time from the common clock to this process's clock.
fn by_local_clock(offer: &FlightOffer, common: Duration, now: Duration) -> FlightOffer {
    let passed = common.saturating_sub(offer.received_at);
    FlightOffer { received_at: now.saturating_sub(passed), ..offer.clone() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_a_query_or_rejected(
            bytes in prop::collection::vec(any::<u8>(), HandoffQuery::LENGTH),
            kind in 0u8..6,
        ) {
            let mut bytes: [u8; HandoffQuery::LENGTH] = bytes.try_into().unwrap();
            bytes[0] = kind;
            let Some(query) = HandoffQuery::parse(&bytes) else { return Ok(()) };
            prop_assert_eq!(HandoffQuery::parse(&query.to_bytes()), Some(query));
        }
    }

    #[test]
    fn every_reply_has_its_own_byte() {
        for (byte, reply) in HandoffReply::ALL {
            assert_eq!((reply.to_byte(), HandoffReply::parse(byte)), (byte, Some(reply)));
        }
        assert_eq!(HandoffReply::parse(0), None);
    }
}
