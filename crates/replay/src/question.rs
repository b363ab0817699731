//! What a process that has handed its register over asks the one that has it now.

use std::time::Duration;

use crate::ClaimKey;
use crate::flight::Offer;
use crate::gate::{Gate, Refusal};
use crate::register::Claim;

/// A question from a process whose gate was handed over, as a few bytes. Times are by a clock that
/// both processes read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// Whose is this flight?
    Flight(Offer),
    /// Has nobody claimed this name? For so long it is to be remembered.
    Name(ClaimKey, Duration),
    /// This name's claim is given back.
    Release(ClaimKey),
}

/// The answer, one byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// What became of the flight's claim: whether it is won, or why it is refused.
    Flight(Result<bool, Refusal>),
    /// What became of the name's.
    Name(Claim),
    /// It is given back.
    Released,
}

impl Question {
    /// How many bytes a question has.
    pub const LENGTH: usize = 1 + 16 + 8 + 4;

    /// Answers it in the process that has the register. `common`: now, by the clock that both
    /// read.
    pub fn answer(&self, gate: &Gate, common: Duration, now: Duration) -> Answer {
        match self {
            Self::Flight(offer) => {
                let passed = common.saturating_sub(offer.seen_at);
                let offer = Offer { seen_at: now.saturating_sub(passed), ..offer.clone() };
                Answer::Flight(gate.claim(&offer, now).map(|flight| flight.won()))
            }
            Self::Name(name, life) => Answer::Name(gate.claim_name(*name, *life, now)),
            Self::Release(name) => {
                gate.release_name(*name, now);
                Answer::Released
            }
        }
    }

    /// The bytes.
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let (kind, key, time, skew) = match self {
            Self::Flight(offer) => (1, offer.key, offer.seen_at, offer.skew_seconds),
            Self::Name(key, life) => (2, *key, *life, 0),
            Self::Release(key) => (3, *key, Duration::ZERO, 0),
        };
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let mut bytes = [0; Self::LENGTH];
        bytes[0] = kind;
        bytes[1..17].copy_from_slice(key.as_bytes());
        bytes[17..25].copy_from_slice(&millis.to_be_bytes());
        bytes[25..].copy_from_slice(&skew.to_be_bytes());
        bytes
    }

    /// Reads them. `None`: a question of another version.
    pub fn parse(bytes: &[u8; Self::LENGTH]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let (key, rest) = rest.split_first_chunk()?;
        let (millis, rest) = rest.split_first_chunk()?;
        let key = ClaimKey::from_bytes(*key);
        let time = Duration::from_millis(u64::from_be_bytes(*millis));
        let skew_seconds = i32::from_be_bytes(*rest.first_chunk()?);
        match kind {
            1 => Some(Self::Flight(Offer { key, skew_seconds, seen_at: time })),
            2 => Some(Self::Name(key, time)),
            3 => Some(Self::Release(key)),
            _ => None,
        }
    }
}

impl Answer {
    const ALL: [(u8, Self); 12] = [
        (10, Self::Flight(Ok(true))),
        (11, Self::Flight(Ok(false))),
        (12, Self::Flight(Err(Refusal::StartupWindow))),
        (13, Self::Flight(Err(Refusal::RegisterFull))),
        (14, Self::Flight(Err(Refusal::TicketAge))),
        (15, Self::Flight(Err(Refusal::RefusedBefore))),
        (16, Self::Flight(Err(Refusal::HandedOver))),
        (20, Self::Name(Claim::Won)),
        (21, Self::Name(Claim::Lost)),
        (22, Self::Name(Claim::Full)),
        (23, Self::Name(Claim::Closed)),
        (30, Self::Released),
    ];

    /// The byte.
    pub fn to_byte(self) -> u8 {
        // Names are never barred.
        let known = Self::ALL.iter().find(|(_, answer)| *answer == self);
        known.map_or(0, |(byte, _)| *byte)
    }

    /// Reads it. `None`: an answer of another version.
    pub fn parse(byte: u8) -> Option<Self> {
        Self::ALL.iter().find(|(one, _)| *one == byte).map(|(_, answer)| *answer)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_a_question_or_none(
            bytes in prop::array::uniform29(any::<u8>()),
            kind in 0u8..5,
        ) {
            let mut bytes = bytes;
            bytes[0] = kind;
            let Some(question) = Question::parse(&bytes) else { return Ok(()) };
            prop_assert_eq!(Question::parse(&question.to_bytes()), Some(question));
        }
    }

    #[test]
    fn every_answer_has_its_byte() {
        for (byte, answer) in Answer::ALL {
            assert_eq!((answer.to_byte(), Answer::parse(byte)), (byte, Some(answer)));
        }
        assert_eq!(Answer::parse(0), None);
    }
}
