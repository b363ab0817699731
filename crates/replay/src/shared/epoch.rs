//! The record in the store itself that says since when it has recorded without a gap.

use std::fmt;
use std::time::Duration;

use super::SharedConfig;

/// Since when the store has recorded without a gap. One record in the store itself, written by
/// whichever node first sees that it is missing or belongs to another life of the store.
///
/// The time of its writing is the store's to say, not the writer's: the record is set with a life
/// of [`Epoch::LIFE`], and its age is read off the life that is left (`PTTL`). A writer's own stamp
/// could come late (held up in a socket by a partition or a stopped process) and call an epoch old
/// that has just begun. And it is written only by a node whose clock is within the margin of the
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
    const LONGEST: usize = 256;

    /// Whether the epoch is that of this process, under these settings.
    pub fn is_of(&self, run_id: &str, replication_id: &str, settings: &SharedConfig) -> bool {
        self.run_id == run_id && self.replication_id == replication_id && self.settings == *settings
    }

    /// The record's age when it has `left` to live, as `PTTL` says.
    pub fn age(left: Duration) -> Duration {
        Self::LIFE.saturating_sub(left)
    }

    /// Reads an epoch from the store's bytes. `None` for whatever is none: it counts as missing,
    /// and is overwritten.
    pub fn parse(text: &[u8]) -> Option<Self> {
        if text.len() > Self::LONGEST {
            return None;
        }
        let mut words = std::str::from_utf8(text).ok()?.split(' ');
        if words.next()? != FORMAT {
            return None;
        }
        let mut id = || words.next().filter(|word| is_id(word)).map(str::to_owned);
        let (run_id, replication_id) = (id()?, id()?);
        let mut time = || words.next()?.parse().ok().map(Duration::from_micros);
        let settings =
            SharedConfig { freshness: time()?, clock_margin: time()?, confirmation: time()? };
        words.next().is_none().then_some(Self { run_id, replication_id, settings })
    }

    /// The epoch that says that nothing counts.
    pub(super) fn void(settings: SharedConfig) -> Self {
        let id = || Self::VOID.to_owned();
        Self { run_id: id(), replication_id: id(), settings }
    }

    pub(super) fn is_void(&self) -> bool {
        self.run_id == Self::VOID
    }
}

/// The text that [`Epoch::parse`] reads: a format number, both ids, and the settings in
/// microseconds.
impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SharedConfig { freshness, clock_margin, confirmation } = &self.settings;
        write!(f, "{FORMAT} {} {}", self.run_id, self.replication_id)?;
        [freshness, clock_margin, confirmation]
            .iter()
            .try_for_each(|time| write!(f, " {}", time.as_micros()))
    }
}

fn is_id(word: &str) -> bool {
    !word.is_empty() && word.len() <= 64 && word.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

const FORMAT: &str = "1";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_of_an_epoch() {
        let epoch = Epoch {
            run_id: "a1".into(),
            replication_id: "b2".into(),
            settings: SharedConfig::default(),
        };
        assert_eq!(epoch.to_string(), "1 a1 b2 10000000 6000000 5000000");
        assert_eq!(Epoch::parse(b"1 a1 b2 10000000 6000000 5000000"), Some(epoch));
    }

    #[test]
    fn what_is_no_epoch_is_none() {
        for text in [
            "",
            "1",
            "2 a1 b2 1 1 1",
            "1 a1 b2 1 1",
            "1 a1 b2 1 1 1 1",
            "1 a1 b2 1 1 1 ",
            "1  b2 1 1 1",
            "1 a1 b2 1 1 -1",
            "1 a1 b2 1 1 18446744073709551616",
            "1 a\u{e4} b2 1 1 1",
            "1 a1\nb2 b2 1 1 1",
        ] {
            assert_eq!(Epoch::parse(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(Epoch::parse(&[0xff; 20]), None);
        assert_eq!(Epoch::parse(format!("1 {} b 1 1 1", "a".repeat(65)).as_bytes()), None);
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
            times in any::<[u64; 3]>(),
        ) {
            let [freshness, clock_margin, confirmation] = times.map(Duration::from_micros);
            let settings = SharedConfig { freshness, clock_margin, confirmation };
            let epoch = Epoch { run_id, replication_id, settings };
            prop_assert_eq!(Epoch::parse(epoch.to_string().as_bytes()), Some(epoch));
        }
    }
}
