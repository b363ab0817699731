//! The epoch record in a store: since when the store has recorded without a gap.

use std::fmt;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::SharedConfig;

/// A digest of the cluster slots that a master owns; [`Slots::ALL`] without a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slots(u64);

impl Slots {
    /// Not a cluster: one master has all keys.
    pub const ALL: Self = Self(0);

    /// The digest of these ranges (first and last slot), in ascending order. Adjacent ranges are
    /// merged.
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

/// The epoch record of a store: since when it has recorded without a gap. The first node that finds
/// it missing, or of another process or replication history, writes a new one.
///
/// The store dates it, not the writer: the record is set with a lifetime of [`Epoch::LIFETIME`], and
/// its age is computed from the remaining lifetime (`PTTL`). A writer's timestamp could arrive late,
/// after a partition or from a stopped process, and make a new epoch look old. Only a node whose
/// clock is within the margin of the store's writes it: otherwise correcting the store's clock would
/// age it at once.
///
/// It contains the writer's settings, because records and windows depend on them. Nodes with
/// different settings replace each other's epoch, and none of them accepts early data until they
/// agree.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Epoch {
    /// The store process's `run_id`, new at each start.
    pub run_id: String,
    /// Its `master_replid`, new whenever a replica becomes a master.
    pub replication_id: String,
    /// The slots that the process owned as a cluster master. A master that gets further slots may
    /// lack the records of their flights.
    pub slots: Slots,
    /// The settings of the nodes.
    pub settings: SharedConfig,
}

impl Epoch {
    /// The record's lifetime (`PX`), from which its age is computed: a hundred years.
    pub const LIFETIME: Duration = Duration::from_secs(100 * 365 * 86_400);

    /// Replaces both ids while the store may evict records. No process has this id, so such an epoch
    /// never counts, not even for a node that starts after the eviction has ended.
    const VOID: &str = "void";

    /// The longest text that is parsed. A store's ids have 40 characters.
    const MAX_EPOCH_BYTES: usize = 256;

    /// Whether the epoch belongs to this process with these slots and settings.
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

    /// The record's age, given its remaining lifetime (`PTTL`).
    pub fn age(remaining: Duration) -> Duration {
        Self::LIFETIME.saturating_sub(remaining)
    }

    /// Parses a record. Returns `None` if it is invalid; it then counts as missing and is
    /// overwritten.
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

    /// An epoch under which nothing counts.
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

/// Format 1 had other flight keys and no slots. Nodes of different formats replace each other's
/// epoch.
const FORMAT: &str = "2";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_epoch_has_a_fixed_text_format() {
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
    fn an_invalid_epoch_is_rejected() {
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
    fn slot_digests_differ_by_the_owned_slots() {
        let two = Slots::of([(0, 5), (8, 9)]);
        assert_eq!(two, Slots::of([(0, 3), (4, 5), (8, 9)]));
        let others = [Slots::ALL, Slots::of([]), Slots::of([(0, 5)]), Slots::of([(0, 5), (8, 10)])];
        assert!(others.iter().all(|other| *other != two));
        assert_ne!(Slots::of([(0, u16::MAX)]), Slots::of([(0, u16::MAX), (0, 1)]));
    }

    #[test]
    fn the_age_is_computed_from_the_remaining_lifetime() {
        assert_eq!(Epoch::age(Epoch::LIFETIME), Duration::ZERO);
        assert_eq!(Epoch::age(Epoch::LIFETIME - Duration::from_secs(7)), Duration::from_secs(7));
        assert_eq!(Epoch::age(Duration::MAX), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn parsing_any_bytes_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Epoch::parse(&bytes);
        }

        #[test]
        fn an_epoch_survives_serialization(
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
