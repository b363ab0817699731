//! What a process that has handed its register over asks the one that has it now.

use std::time::Duration;

use crate::ClaimKey;
use crate::flight::Offer;
use crate::gate::{Gate, Refusal, Spent};
use crate::register::Claim;

/// A question from a process whose gate was handed over, as a few bytes. Times are by a clock that
/// both processes read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandoffQuery {
    /// Whose is this flight?
    Flight(Offer),
    /// May the requests of this refused flight run?
    Spend(Offer),
    /// Has nobody claimed this name? For so long it is to be remembered.
    Name(ClaimKey, Duration),
    /// This name's claim is given back.
    Release(ClaimKey),
}

/// The response, one byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// What became of the flight's claim: whether it is won, or why it is refused.
    Flight(Result<bool, Refusal>),
    /// What became of a refused flight.
    Spent(Spent),
    /// What became of the name's.
    Name(Claim),
    /// It is given back.
    Released,
}

impl HandoffQuery {
    /// How many bytes a question has.
    pub const LENGTH: usize = 1 + 16 + 8 + 4 + 4;

    /// Answers it in the process that has the register. `common`: now, by the clock that both
    /// read.
    pub fn reply(&self, gate: &Gate, common: Duration, now: Duration) -> Answer {
        match self {
            Self::Flight(offer) => {
                let offer = by_own_clock(offer, common, now);
                Answer::Flight(gate.claim(&offer, now).map(|flight| flight.won()))
            }
            Self::Spend(offer) => Answer::Spent(gate.spend(&by_own_clock(offer, common, now), now)),
            Self::Name(name, life) => Answer::Name(gate.claim_name(*name, *life, now)),
            Self::Release(name) => {
                gate.release_name(*name, now);
                Answer::Released
            }
        }
    }

    /// The bytes.
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let of =
            |kind, offer: &Offer| (kind, offer.key, offer.seen_at, offer.skew_seconds, offer.epoch);
        let (kind, key, time, skew, epoch) = match self {
            Self::Flight(offer) => of(1, offer),
            Self::Name(key, life) => (2, *key, *life, 0, 0),
            Self::Release(key) => (3, *key, Duration::ZERO, 0, 0),
            Self::Spend(offer) => of(4, offer),
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

    /// Reads them. `None`: a question of another version.
    pub fn parse(bytes: &[u8; Self::LENGTH]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let (key, rest) = rest.split_first_chunk()?;
        let (millis, rest) = rest.split_first_chunk()?;
        let key = ClaimKey::from_bytes(*key);
        let (skew, rest) = rest.split_first_chunk()?;
        let time = Duration::from_millis(u64::from_be_bytes(*millis));
        let offer = || {
            let epoch = u32::from_be_bytes(*rest.first_chunk()?);
            Some(Offer::new(key, i32::from_be_bytes(*skew), time, epoch))
        };
        match kind {
            1 => offer().map(Self::Flight),
            4 => offer().map(Self::Spend),
            2 => Some(Self::Name(key, time)),
            3 => Some(Self::Release(key)),
            _ => None,
        }
    }
}

impl Answer {
    const ALL: [(u8, Self); 15] = [
        (10, Self::Flight(Ok(true))),
        (11, Self::Flight(Ok(false))),
        (12, Self::Flight(Err(Refusal::TicketEpoch))),
        (13, Self::Flight(Err(Refusal::RegisterFull))),
        (14, Self::Flight(Err(Refusal::TicketAge))),
        (15, Self::Flight(Err(Refusal::RefusedBefore))),
        (16, Self::Flight(Err(Refusal::HandedOver))),
        (17, Self::Spent(Spent::Recorded)),
        (18, Self::Spent(Spent::Executed)),
        (19, Self::Spent(Spent::HandedOver)),
        (20, Self::Name(Claim::Won)),
        (21, Self::Name(Claim::Lost)),
        (22, Self::Name(Claim::Full)),
        (23, Self::Name(Claim::Closed)),
        (30, Self::Released),
    ];

    /// The byte.
    pub fn to_byte(self) -> u8 {
        // Names are never barred.
        let known = Self::ALL.iter().find(|(_, reply)| *reply == self);
        known.map_or(0, |(byte, _)| *byte)
    }

    /// Reads it. `None`: a response of another version.
    pub fn parse(byte: u8) -> Option<Self> {
        Self::ALL.iter().find(|(one, _)| *one == byte).map(|(_, reply)| *reply)
    }
}

/// The flight by this process's clock instead of the common one.
fn by_own_clock(offer: &Offer, common: Duration, now: Duration) -> Offer {
    let passed = common.saturating_sub(offer.seen_at);
    Offer { seen_at: now.saturating_sub(passed), ..offer.clone() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_a_question_or_none(
            bytes in prop::collection::vec(any::<u8>(), HandoffQuery::LENGTH),
            kind in 0u8..5,
        ) {
            let mut bytes: [u8; HandoffQuery::LENGTH] = bytes.try_into().unwrap();
            bytes[0] = kind;
            let Some(question) = HandoffQuery::parse(&bytes) else { return Ok(()) };
            prop_assert_eq!(HandoffQuery::parse(&question.to_bytes()), Some(question));
        }
    }

    #[test]
    fn every_answer_has_its_byte() {
        for (byte, reply) in Answer::ALL {
            assert_eq!((reply.to_byte(), Answer::parse(byte)), (byte, Some(reply)));
        }
        assert_eq!(Answer::parse(0), None);
    }
}
