//! The record in the store itself that says since when it has recorded without a gap.

use std::fmt;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::SharedConfig;

/// Which slots of a cluster a master owns, as a digest; [`Slots::ALL`] without a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slots(u64);

impl Slots {
    /// Not a part of a cluster: all keys are with one master.
    pub const ALL: Self = Self(0);

    /// These ranges (first and last slot), in rising order. Adjacent ones count as one.
    pub fn of(ranges: impl IntoIterator<Item = (u16, u16)>) -> Self {
        let mut merged: Vec<(u16, u16)> = Vec::new();
        for (first, last) in ranges {
            match merged.last_mut() {
                Some((_, end)) if end.checked_add(1) == Some(first) => *end = last,
                _ => merged.push((first, last)),
            }
        }
        let mut digest = Sha256::new();
        for (first, last) in merged {
            digest.update(first.to_be_bytes());
            digest.update(last.to_be_bytes());
        }
        let digest = digest.finalize();
        let number = digest.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        Self(number.max(1))
    }
}

/// Since when the store has recorded without a gap. One record in the store itself, written by
/// whichever node first sees that it is missing or belongs to another life of the store.
///
/// The time of its writing is the store's to say, not the writer's: the record is set with a life
/// of [`Epoch::LIFE`], and its age is read off the life that is left (`PTTL`). A writer's own stamp
/// could come late (held up in a socket by a partition or a stopped process) and call an epoch old
/// that has just started. And it is written only by a node whose clock is within the margin of the
/// store's: otherwise a store's clock that is set right afterwards would age it at once.
///
/// It bears the writer's settings, since records and windows of nodes that differ in them do not
/// fit each other. Such nodes undo each other's epoch, and none of them runs anything early until
/// they agree.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Epoch {
    /// The store process's own id (`run_id`), new at each of its starts.
    pub run_id: String,
    /// Its replication id (`master_replid`), new whenever a replica becomes a master.
    pub replication_id: String,
    /// The slots that the process owned as a master of a cluster. A master that is given another
    /// slot, without its claims, may have forgotten them.
    pub slots: Slots,
    /// The settings of the nodes that count by it.
    pub settings: SharedConfig,
}

impl Epoch {
    /// The life that the record is given (`PX`), from which its age is reckoned: a hundred years.
    pub const LIFE: Duration = Duration::from_secs(100 * 365 * 86_400);

    /// What stands in the place of both ids while the store may drop records: no process has it,
    /// so nobody counts by such an epoch, also who comes when the store is well again.
    const VOID: &str = "void";

    /// Longest text that is read, in bytes. A store's ids have 40 characters.
    const MAX_EPOCH_BYTES: usize = 256;

    /// Whether the epoch is that of this process with these slots, under these settings.
    pub fn is_of(
        &self,
        run_id: &str,
        replication_id: &str,
        slots: Slots,
        settings: &SharedConfig,
    ) -> bool {
        self.run_id == run_id
            && self.replication_id == replication_id
            && self.slots == slots
            && self.settings == *settings
    }

    /// The record's age when it has `left` to live, as `PTTL` says.
    pub fn age(left: Duration) -> Duration {
        Self::LIFE.saturating_sub(left)
    }

    /// Reads an epoch from the store's bytes. `None` for whatever is none: it counts as missing,
    /// and is overwritten.
    pub fn parse(text: &[u8]) -> Option<Self> {
        if text.len() > Self::MAX_EPOCH_BYTES {
            return None;
        }
        let mut words = std::str::from_utf8(text).ok()?.split(' ');
        if words.next()? != FORMAT {
            return None;
        }
        let mut id = || words.next().filter(|word| is_id(word)).map(str::to_owned);
        let (run_id, replication_id) = (id()?, id()?);
        let slots = words.next().filter(|word| is_digest(word))?;
        let slots = Slots(u64::from_str_radix(slots, 16).ok()?);
        let mut time = || words.next()?.parse().ok().map(Duration::from_micros);
        let settings =
            SharedConfig { freshness: time()?, clock_margin: time()?, confirmation: time()? };
        words.next().is_none().then_some(Self { run_id, replication_id, slots, settings })
    }

    /// The epoch that says that nothing counts.
    pub(super) fn void(settings: SharedConfig) -> Self {
        let id = || Self::VOID.to_owned();
        Self { run_id: id(), replication_id: id(), slots: Slots::ALL, settings }
    }

    pub(super) fn is_void(&self) -> bool {
        self.run_id == Self::VOID
    }
}

/// The text that [`Epoch::parse`] reads: a format number, both ids, the digest of the slots, and
/// the settings in microseconds.
impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SharedConfig { freshness, clock_margin, confirmation } = &self.settings;
        write!(f, "{FORMAT} {} {} {:016x}", self.run_id, self.replication_id, self.slots.0)?;
        [freshness, clock_margin, confirmation]
            .iter()
            .try_for_each(|time| write!(f, " {}", time.as_micros()))
    }
}

fn is_id(word: &str) -> bool {
    !word.is_empty() && word.len() <= 64 && word.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

fn is_digest(word: &str) -> bool {
    word.len() == 16 && word.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Nodes of format 1 recorded flights under other keys, and did not know of slots. They and newer
/// ones undo each other's epoch.
const FORMAT: &str = "2";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_of_an_epoch() {
        let epoch = Epoch {
            run_id: "a1".into(),
            replication_id: "b2".into(),
            slots: Slots(0xabc),
            settings: SharedConfig::default(),
        };
        assert_eq!(epoch.to_string(), "2 a1 b2 0000000000000abc 10000000 6000000 5000000");
        assert_eq!(Epoch::parse(b"2 a1 b2 0000000000000abc 10000000 6000000 5000000"), Some(epoch));
    }

    #[test]
    fn what_is_no_epoch_is_none() {
        for text in [
            "",
            "2",
            "1 a1 b2 1 1 1",
            "1 a1 b2 0000000000000000 1 1 1",
            "2 a1 b2 1 1 1",
            "2 a1 b2 0000000000000000 1 1",
            "2 a1 b2 0000000000000000 1 1 1 1",
            "2 a1 b2 0000000000000000 1 1 1 ",
            "2 a1 b2 00000000000000000 1 1 1",
            "2 a1 b2 000000000000000A 1 1 1",
            "2 a1 b2 +000000000000001 1 1 1",
            "2  b2 0000000000000000 1 1 1",
            "2 a1 b2 0000000000000000 1 1 -1",
            "2 a1 b2 0000000000000000 1 1 18446744073709551616",
            "2 a\u{e4} b2 0000000000000000 1 1 1",
            "2 a1\nb2 b2 0000000000000000 1 1 1",
        ] {
            assert_eq!(Epoch::parse(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(Epoch::parse(&[0xff; 20]), None);
        assert_eq!(
            Epoch::parse(format!("2 {} b 0000000000000000 1 1 1", "a".repeat(65)).as_bytes()),
            None
        );
    }

    #[test]
    fn slots_are_told_apart_by_what_is_owned() {
        let two = Slots::of([(0, 5), (8, 9)]);
        assert_eq!(two, Slots::of([(0, 3), (4, 5), (8, 9)]));
        let others = [Slots::ALL, Slots::of([]), Slots::of([(0, 5)]), Slots::of([(0, 5), (8, 10)])];
        assert!(others.iter().all(|other| *other != two));
        assert_ne!(Slots::of([(0, u16::MAX)]), Slots::of([(0, u16::MAX), (0, 1)]));
    }

    #[test]
    fn the_age_is_the_life_that_is_gone() {
        assert_eq!(Epoch::age(Epoch::LIFE), Duration::ZERO);
        assert_eq!(Epoch::age(Epoch::LIFE - Duration::from_secs(7)), Duration::from_secs(7));
        assert_eq!(Epoch::age(Duration::MAX), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Epoch::parse(&bytes);
        }

        #[test]
        fn what_was_written_is_read(
            run_id in "[0-9a-f]{1,64}",
            replication_id in "[0-9a-f]{1,64}",
            slots in any::<u64>(),
            times in any::<[u64; 3]>(),
        ) {
            let [freshness, clock_margin, confirmation] = times.map(Duration::from_micros);
            let settings = SharedConfig { freshness, clock_margin, confirmation };
            let epoch = Epoch { run_id, replication_id, slots: Slots(slots), settings };
            prop_assert_eq!(Epoch::parse(epoch.to_string().as_bytes()), Some(epoch));
        }
    }
}
