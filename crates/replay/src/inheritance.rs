//! What a process leaves to the one that takes its place: all that its gate knows, as bytes.

use std::time::Duration;

use crate::ClaimKey;
use crate::register::Held;

/// All that a [`crate::Gate`] knows, when it has been closed. Times are what is left of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inheritance {
    /// When the gate was closed, by a clock that both processes read.
    pub(crate) closed_at: Duration,
    /// The ticket epoch whose flights the records are about.
    pub(crate) epoch: u32,
    pub(crate) flights: Vec<Held>,
    pub(crate) names: Vec<Held>,
}

/// Bytes that are no inheritance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this is no register of a process of this version; start the new process by itself")]
pub struct BadInheritance;

impl Inheritance {
    /// The bytes: a format name, the epoch, a time and two lists of records, all big endian.
    pub fn to_bytes(&self) -> Vec<u8> {
        let records = self.flights.len() + self.names.len();
        let mut bytes = Vec::with_capacity(MAGIC.len() + 20 + records * RECORD);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&self.epoch.to_be_bytes());
        bytes.extend_from_slice(&millis(self.closed_at).to_be_bytes());
        for list in [&self.flights, &self.names] {
            // A register holds fewer by far.
            bytes.extend_from_slice(&u32::try_from(list.len()).unwrap_or(u32::MAX).to_be_bytes());
            list.iter().for_each(|held| write(&mut bytes, held));
        }
        bytes
    }

    /// Reads them.
    ///
    /// # Errors
    /// [`BadInheritance`]: another version, cut short, or with something behind.
    pub fn parse(bytes: &[u8]) -> Result<Self, BadInheritance> {
        let mut rest = bytes.strip_prefix(MAGIC).ok_or(BadInheritance)?;
        let epoch = u32::from_be_bytes(*take(&mut rest)?);
        let closed_at = time(&mut rest)?;
        let (flights, names) = (list(&mut rest)?, list(&mut rest)?);
        match rest.is_empty() {
            true => Ok(Self { closed_at, epoch, flights, names }),
            false => Err(BadInheritance),
        }
    }

    /// How many records it has: of flights, and of names.
    pub fn len(&self) -> (usize, usize) {
        (self.flights.len(), self.names.len())
    }
}

fn write(bytes: &mut Vec<u8>, held: &Held) {
    bytes.extend_from_slice(held.key.as_bytes());
    let state = if held.barred { BARRED } else { 0 };
    bytes.extend_from_slice(&(held.left.min(Held::MAX_LIFE_UNITS) | state).to_be_bytes());
}

fn list(rest: &mut &[u8]) -> Result<Vec<Held>, BadInheritance> {
    let count = u32::from_be_bytes(*take(rest)?) as usize;
    let length = count.checked_mul(RECORD).ok_or(BadInheritance)?;
    let (records, left) = rest.split_at_checked(length).ok_or(BadInheritance)?;
    *rest = left;
    let mut records = records;
    (0..count).map(|_| record(&mut records)).collect()
}

fn record(rest: &mut &[u8]) -> Result<Held, BadInheritance> {
    let key = ClaimKey::from_bytes(*take(rest)?);
    let end = u32::from_be_bytes(*take(rest)?);
    Ok(Held { key, barred: end & BARRED != 0, left: end & !BARRED })
}

fn time(rest: &mut &[u8]) -> Result<Duration, BadInheritance> {
    take(rest).map(|bytes| Duration::from_millis(u64::from_be_bytes(*bytes)))
}

fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Result<&'a [u8; N], BadInheritance> {
    let (bytes, left) = rest.split_first_chunk().ok_or(BadInheritance)?;
    *rest = left;
    Ok(bytes)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The name of the format, with its version.
const MAGIC: &[u8; 8] = b"ff-reg-2";

/// Bytes of a record: the key, and what is left of its life in seconds with the state on top.
const RECORD: usize = 20;

const BARRED: u32 = !Held::MAX_LIFE_UNITS;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn inheritance() -> impl Strategy<Value = Inheritance> {
        let held = (any::<[u8; 16]>(), any::<bool>(), 0..BARRED)
            .prop_map(|(key, barred, left)| Held { key: ClaimKey::from_bytes(key), barred, left });
        let list = prop::collection::vec(held, 0..9);
        (any::<u32>(), any::<u32>(), list.clone(), list).prop_map(
            |(closed_at, epoch, flights, names)| Inheritance {
                closed_at: Duration::from_millis(closed_at.into()),
                epoch,
                flights,
                names,
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(inheritance in inheritance()) {
            prop_assert_eq!(Inheritance::parse(&inheritance.to_bytes()), Ok(inheritance));
        }

        #[test]
        fn nothing_shorter_or_longer_is_read(inheritance in inheritance(), cut in 0usize..400) {
            let mut bytes = inheritance.to_bytes();
            bytes.push(0);
            prop_assert_eq!(Inheritance::parse(&bytes), Err(BadInheritance));
            bytes.truncate(cut.min(bytes.len() - 2));
            prop_assert_eq!(Inheritance::parse(&bytes), Err(BadInheritance));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let bytes = [MAGIC, &bytes[..]].concat();
            if let Ok(inheritance) = Inheritance::parse(&bytes) {
                prop_assert_eq!(inheritance.to_bytes(), bytes);
            }
        }
    }

    #[test]
    fn a_count_beyond_the_bytes_reserves_nothing() {
        let bytes = [&MAGIC[..], &[0; 12], &[0xff; 4], &[0; 40]].concat();
        assert_eq!(Inheritance::parse(&bytes), Err(BadInheritance));
    }
}
