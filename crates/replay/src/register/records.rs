//! The contents of a small register, as part of a model's state.

use super::shard::Record;
use super::*;

/// The records of a register with one shard, sorted, and its clock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Records {
    entries: Vec<(ClaimKey, bool, u32)>,
    clock: u32,
}

impl Records {
    /// Makes each record expire at the second that `end` returns, if that is earlier.
    pub(crate) fn shorten(&mut self, end: impl Fn(&ClaimKey) -> u64) {
        for (key, _, expires) in &mut self.entries {
            *expires = (*expires).min(end(key) as u32);
        }
        self.entries.retain(|(_, _, expires)| *expires > self.clock);
    }

    /// Makes each barred record expire at `end`, if that is earlier.
    pub(crate) fn shorten_barred(&mut self, end: u64) {
        for (_, barred, expires) in &mut self.entries {
            *expires = if *barred { (*expires).min(end as u32) } else { *expires };
        }
        self.entries.retain(|(_, _, expires)| *expires > self.clock);
    }

    /// Drops the barred records.
    pub(crate) fn drop_barred(&mut self) {
        self.entries.retain(|(_, barred, _)| !barred);
    }
}

impl StrikeRegister {
    /// The register's records.
    pub(crate) fn records(&self) -> Records {
        let shard = self.shards[0].lock().unwrap_or_else(PoisonError::into_inner);
        let barred = |record: &Record| record.state() == State::Barred;
        let mut entries: Vec<_> =
            shard.records().map(|record| (record.key, barred(record), record.expires)).collect();
        entries.sort_by_key(|(key, ..)| *key.as_bytes());
        Records { entries, clock: shard.clock }
    }

    /// Creates a register with these records.
    pub(crate) fn with_records(capacity: usize, records: &Records) -> Self {
        let register = Self::new(capacity);
        let clock = Duration::from_secs(records.clock.into());
        for (key, barred, expires) in &records.entries {
            let end = Duration::from_secs((*expires).into());
            register.claim_if(*key, end, clock, || !barred);
        }
        register.contains(ClaimKey::of_flight(&[0; 32]), clock);
        register
    }
}
