//! All records of a register, for the process that replaces this one.

use std::time::Duration;

use crate::ClaimKey;
use crate::register::SnapshotRecord;

/// One moment by the clocks of a handoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandoffTime {
    /// By the gate's clock.
    pub gate: Duration,
    /// By a monotonic clock that both processes read.
    pub common: Duration,
    /// By the process's clock that issues and ages tickets.
    pub tickets: Duration,
}

/// The records of a closed [`crate::Gate`], with their remaining lifetimes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegisterSnapshot {
    /// When the gate was closed, by a clock that both processes read.
    pub(crate) closed_at: Duration,
    /// The same moment by the clock that aged the flights' tickets.
    pub(crate) closed_at_ticket_time: Duration,
    /// How long after a flight's exact time the record of a refused flight lives, without margins.
    pub(crate) freshness: Duration,
    /// How long before `closed_at` names were lost, if any were ([`crate::Gate::take_back`]).
    pub(crate) names_lost: Option<Duration>,
    /// The ticket epoch of the recorded flights.
    pub(crate) epoch: u32,
    pub(crate) flights: Vec<SnapshotRecord>,
    pub(crate) names: Vec<SnapshotRecord>,
}

/// The bytes are not a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the register is of another version of firstflight; restart instead of upgrading")]
pub struct InvalidRegister;

impl RegisterSnapshot {
    /// Serializes as a format name, the epoch, two times, the freshness, when names were lost if any were,
    /// and two lists of records, all big endian.
    pub fn to_bytes(&self) -> Vec<u8> {
        let records = self.flights.len() + self.names.len();
        let mut bytes = Vec::with_capacity(MAGIC.len() + 44 + records * RECORD_BYTES);
        bytes.extend_from_slice(match self.names_lost {
            None => MAGIC,
            Some(_) => MAGIC_NAMES_LOST,
        });
        bytes.extend_from_slice(&self.epoch.to_be_bytes());
        let times = [self.closed_at, self.closed_at_ticket_time, self.freshness];
        for time in times.into_iter().chain(self.names_lost) {
            bytes.extend_from_slice(&millis(time).to_be_bytes());
        }
        for list in [&self.flights, &self.names] {
            // A register has far fewer records.
            bytes.extend_from_slice(&u32::try_from(list.len()).unwrap_or(u32::MAX).to_be_bytes());
            list.iter().for_each(|record| write_record(&mut bytes, record));
        }
        bytes
    }

    /// Parses the bytes of [`RegisterSnapshot::to_bytes`].
    ///
    /// # Errors
    /// Returns [`InvalidRegister`] if they are of another version, truncated, or too long.
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidRegister> {
        let (magic, mut rest) = bytes.split_first_chunk::<8>().ok_or(InvalidRegister)?;
        let has_lost_names = match magic {
            MAGIC => false,
            MAGIC_NAMES_LOST => true,
            _ => return Err(InvalidRegister),
        };
        let epoch = u32::from_be_bytes(*take(&mut rest)?);
        let (closed_at, closed_at_ticket_time) = (read_time(&mut rest)?, read_time(&mut rest)?);
        let freshness = read_time(&mut rest)?;
        let names_lost = has_lost_names.then(|| read_time(&mut rest)).transpose()?;
        let (flights, names) = (read_list(&mut rest)?, read_list(&mut rest)?);
        match rest.is_empty() {
            true => Ok(Self {
                closed_at,
                closed_at_ticket_time,
                freshness,
                names_lost,
                epoch,
                flights,
                names,
            }),
            false => Err(InvalidRegister),
        }
    }

    /// The numbers of records of flights and of names.
    pub fn len(&self) -> (usize, usize) {
        (self.flights.len(), self.names.len())
    }
}

fn write_record(bytes: &mut Vec<u8>, record: &SnapshotRecord) {
    bytes.extend_from_slice(record.key.as_bytes());
    let state = if record.barred { BARRED } else { 0 };
    let lifetime = record.lifetime_seconds.min(SnapshotRecord::MAX_LIFETIME_SECONDS);
    bytes.extend_from_slice(&(lifetime | state).to_be_bytes());
}

fn read_list(rest: &mut &[u8]) -> Result<Vec<SnapshotRecord>, InvalidRegister> {
    let count = u32::from_be_bytes(*take(rest)?) as usize;
    let length = count.checked_mul(RECORD_BYTES).ok_or(InvalidRegister)?;
    let (mut records, tail) = rest.split_at_checked(length).ok_or(InvalidRegister)?;
    *rest = tail;
    (0..count).map(|_| read_record(&mut records)).collect()
}

fn read_record(rest: &mut &[u8]) -> Result<SnapshotRecord, InvalidRegister> {
    let key = ClaimKey::from_bytes(*take(rest)?);
    let lifetime_and_state = u32::from_be_bytes(*take(rest)?);
    Ok(SnapshotRecord {
        key,
        barred: lifetime_and_state & BARRED != 0,
        lifetime_seconds: lifetime_and_state & !BARRED,
    })
}

fn read_time(rest: &mut &[u8]) -> Result<Duration, InvalidRegister> {
    take(rest).map(|bytes| Duration::from_millis(u64::from_be_bytes(*bytes)))
}

fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Result<&'a [u8; N], InvalidRegister> {
    let (bytes, tail) = rest.split_first_chunk().ok_or(InvalidRegister)?;
    *rest = tail;
    Ok(bytes)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Name and version of the format.
const MAGIC: &[u8; 8] = b"ff-reg-3";

/// As [`MAGIC`], with the time when names were lost. Older versions reject this format, because
/// they would ignore that time.
const MAGIC_NAMES_LOST: &[u8; 8] = b"ff-reg-4";

/// Bytes of a record: the key, then the remaining seconds with the state in the highest bit.
const RECORD_BYTES: usize = 20;

const BARRED: u32 = !SnapshotRecord::MAX_LIFETIME_SECONDS;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn snapshot() -> impl Strategy<Value = RegisterSnapshot> {
        let record = (any::<[u8; 16]>(), any::<bool>(), 0..BARRED).prop_map(
            |(key, barred, lifetime_seconds)| SnapshotRecord {
                key: ClaimKey::from_bytes(key),
                barred,
                lifetime_seconds,
            },
        );
        let list = prop::collection::vec(record, 0..9);
        let lost = any::<Option<u32>>();
        (any::<[u32; 3]>(), lost, any::<u32>(), list.clone(), list).prop_map(
            |(times, lost, epoch, flights, names)| RegisterSnapshot {
                closed_at: Duration::from_millis(times[0].into()),
                closed_at_ticket_time: Duration::from_millis(times[1].into()),
                freshness: Duration::from_millis(times[2].into()),
                names_lost: lost.map(|ago| Duration::from_millis(ago.into())),
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
            prop_assert_eq!(RegisterSnapshot::parse(&bytes), Err(InvalidRegister));
            bytes.truncate(cut.min(bytes.len() - 2));
            prop_assert_eq!(RegisterSnapshot::parse(&bytes), Err(InvalidRegister));
        }

        #[test]
        fn any_bytes_are_a_snapshot_or_rejected(
            names_lost in any::<bool>(),
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let magic = if names_lost { MAGIC_NAMES_LOST } else { MAGIC };
            let bytes = [magic, &bytes[..]].concat();
            if let Ok(snapshot) = RegisterSnapshot::parse(&bytes) {
                prop_assert_eq!(snapshot.to_bytes(), bytes);
            }
        }
    }

    #[test]
    fn a_snapshot_of_an_earlier_version_is_rejected() {
        // Version 2 has no ticket time and no freshness, which determine how long records live.
        let bytes = [&b"ff-reg-2"[..], &[0; 12], &[0; 8]].concat();
        assert_eq!(RegisterSnapshot::parse(&bytes), Err(InvalidRegister));
    }

    #[test]
    fn a_count_beyond_the_bytes_allocates_nothing() {
        let bytes = [&MAGIC[..], &[0; 28], &[0xff; 4], &[0; 40]].concat();
        assert_eq!(RegisterSnapshot::parse(&bytes), Err(InvalidRegister));
    }
}
