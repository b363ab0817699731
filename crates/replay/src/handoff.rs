//! The handoff of a register to the process that replaces this one: a snapshot of all records, then
//! one query per flight.
//!
//! While connections are still open in the old process, a flight may arrive there after the
//! snapshot was taken. The old process forwards it to the new one as a [`HandoffQuery`] of 33 bytes.
//! So there is one register at any time, and no need for a new ticket epoch.

use std::time::Duration;

use crate::ClaimKey;
use crate::flight::FlightOffer;
use crate::gate::{Gate, Refusal, SpendOutcome};
use crate::register::{ClaimOutcome, SnapshotRecord};

/// The records of a closed [`crate::Gate`], with their remaining lifetimes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegisterSnapshot {
    /// When the gate was closed, by a clock that both processes read.
    pub(crate) closed_at: Duration,
    /// The ticket epoch of the recorded flights.
    pub(crate) epoch: u32,
    pub(crate) flights: Vec<SnapshotRecord>,
    pub(crate) names: Vec<SnapshotRecord>,
}

/// The bytes are not a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the register is of another version of firstflight; restart instead of upgrading")]
pub struct InvalidSnapshot;

impl RegisterSnapshot {
    /// Serializes as a format name, the epoch, a time and two lists of records, all big endian.
    pub fn to_bytes(&self) -> Vec<u8> {
        let records = self.flights.len() + self.names.len();
        let mut bytes = Vec::with_capacity(MAGIC.len() + 20 + records * RECORD_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&self.epoch.to_be_bytes());
        bytes.extend_from_slice(&millis(self.closed_at).to_be_bytes());
        for list in [&self.flights, &self.names] {
            // A register has far fewer records.
            bytes.extend_from_slice(&u32::try_from(list.len()).unwrap_or(u32::MAX).to_be_bytes());
            list.iter().for_each(|held| write(&mut bytes, held));
        }
        bytes
    }

    /// Parses the bytes of [`RegisterSnapshot::to_bytes`].
    ///
    /// # Errors
    /// Returns [`InvalidSnapshot`] if they are of another version, truncated, or too long.
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidSnapshot> {
        let mut rest = bytes.strip_prefix(MAGIC).ok_or(InvalidSnapshot)?;
        let epoch = u32::from_be_bytes(*take(&mut rest)?);
        let closed_at = time(&mut rest)?;
        let (flights, names) = (list(&mut rest)?, list(&mut rest)?);
        match rest.is_empty() {
            true => Ok(Self { closed_at, epoch, flights, names }),
            false => Err(InvalidSnapshot),
        }
    }

    /// The numbers of records of flights and of names.
    pub fn len(&self) -> (usize, usize) {
        (self.flights.len(), self.names.len())
    }
}

fn write(bytes: &mut Vec<u8>, held: &SnapshotRecord) {
    bytes.extend_from_slice(held.key.as_bytes());
    let state = if held.barred { BARRED } else { 0 };
    bytes.extend_from_slice(&(held.left.min(SnapshotRecord::MAX_LIFE_UNITS) | state).to_be_bytes());
}

fn list(rest: &mut &[u8]) -> Result<Vec<SnapshotRecord>, InvalidSnapshot> {
    let count = u32::from_be_bytes(*take(rest)?) as usize;
    let length = count.checked_mul(RECORD_BYTES).ok_or(InvalidSnapshot)?;
    let (records, left) = rest.split_at_checked(length).ok_or(InvalidSnapshot)?;
    *rest = left;
    let mut records = records;
    (0..count).map(|_| record(&mut records)).collect()
}

fn record(rest: &mut &[u8]) -> Result<SnapshotRecord, InvalidSnapshot> {
    let key = ClaimKey::from_bytes(*take(rest)?);
    let end = u32::from_be_bytes(*take(rest)?);
    Ok(SnapshotRecord { key, barred: end & BARRED != 0, left: end & !BARRED })
}

fn time(rest: &mut &[u8]) -> Result<Duration, InvalidSnapshot> {
    take(rest).map(|bytes| Duration::from_millis(u64::from_be_bytes(*bytes)))
}

fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Result<&'a [u8; N], InvalidSnapshot> {
    let (bytes, left) = rest.split_first_chunk().ok_or(InvalidSnapshot)?;
    *rest = left;
    Ok(bytes)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Name and version of the format.
const MAGIC: &[u8; 8] = b"ff-reg-2";

/// Bytes of a record: the key, then the remaining seconds with the state in the highest bit.
const RECORD_BYTES: usize = 20;

const BARRED: u32 = !SnapshotRecord::MAX_LIFE_UNITS;

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
    /// Whether the refused flight was spent.
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
            Self::Name(name, life) => HandoffReply::Name(gate.claim_name(*name, *life, now)),
            Self::Release(name) => {
                gate.release_name(*name, now);
                HandoffReply::Released
            }
        }
    }

    /// Serializes the query.
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let of = |kind, offer: &FlightOffer| {
            (kind, offer.key, offer.received_at, offer.skew_seconds, offer.epoch)
        };
        let (kind, key, time, skew, epoch) = match self {
            Self::Flight(offer) if offer.used_up => of(5, offer),
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
        Self::ALL.iter().find(|(one, _)| *one == byte).map(|(_, reply)| *reply)
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

    fn snapshot() -> impl Strategy<Value = RegisterSnapshot> {
        let held = (any::<[u8; 16]>(), any::<bool>(), 0..BARRED).prop_map(|(key, barred, left)| {
            SnapshotRecord { key: ClaimKey::from_bytes(key), barred, left }
        });
        let list = prop::collection::vec(held, 0..9);
        (any::<u32>(), any::<u32>(), list.clone(), list).prop_map(
            |(closed_at, epoch, flights, names)| RegisterSnapshot {
                closed_at: Duration::from_millis(closed_at.into()),
                epoch,
                flights,
                names,
            },
        )
    }

    proptest! {
        #[test]
        fn a_snapshot_survives_serialization(snapshot in snapshot()) {
            prop_assert_eq!(RegisterSnapshot::parse(&snapshot.to_bytes()), Ok(snapshot));
        }

        #[test]
        fn truncated_and_extended_snapshots_are_rejected(snapshot in snapshot(), cut in 0usize..400) {
            let mut bytes = snapshot.to_bytes();
            bytes.push(0);
            prop_assert_eq!(RegisterSnapshot::parse(&bytes), Err(InvalidSnapshot));
            bytes.truncate(cut.min(bytes.len() - 2));
            prop_assert_eq!(RegisterSnapshot::parse(&bytes), Err(InvalidSnapshot));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let bytes = [MAGIC, &bytes[..]].concat();
            if let Ok(snapshot) = RegisterSnapshot::parse(&bytes) {
                prop_assert_eq!(snapshot.to_bytes(), bytes);
            }
        }
    }

    #[test]
    fn a_count_beyond_the_bytes_allocates_nothing() {
        let bytes = [&MAGIC[..], &[0; 12], &[0xff; 4], &[0; 40]].concat();
        assert_eq!(RegisterSnapshot::parse(&bytes), Err(InvalidSnapshot));
    }

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
