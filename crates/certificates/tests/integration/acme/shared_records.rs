//! Shared records in memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use firstflight_certificates::acme::{SharedRecords, SharedRecordsError};

/// Contents, and when they expire.
type Records = HashMap<String, (Vec<u8>, Instant)>;

/// Clones share the records.
#[derive(Clone, Default)]
pub(crate) struct SharedMemory {
    records: Arc<Mutex<Records>>,
    unreachable: Arc<Mutex<bool>>,
    /// Records whose names contain this word cannot be read.
    unreadable: Arc<Mutex<Option<&'static str>>>,
}

impl SharedMemory {
    /// Simulates a store that cannot be reached.
    pub(crate) fn set_unreachable(&self, unreachable: bool) {
        *self.unreachable.lock().unwrap() = unreachable;
    }

    /// Simulates records encrypted with lost keys, until they are written again.
    pub(crate) fn make_unreadable(&self, word: &'static str) {
        *self.unreadable.lock().unwrap() = Some(word);
    }

    pub(crate) fn is_unreadable(&self, name: &str) -> bool {
        self.unreadable.lock().unwrap().is_some_and(|word| name.contains(word))
    }

    /// The names of the records with this suffix.
    pub(crate) fn names(&self, suffix: &str) -> Vec<String> {
        let records = self.records.lock().unwrap();
        records.keys().filter(|name| name.ends_with(suffix)).cloned().collect()
    }

    /// Expires the records with this suffix.
    pub(crate) fn expire(&self, suffix: &str) {
        self.records.lock().unwrap().retain(|name, _| !name.ends_with(suffix));
    }

    fn check_reachable(&self) -> Result<(), SharedRecordsError> {
        match *self.unreachable.lock().unwrap() {
            true => Err(SharedRecordsError("the store is away".to_owned())),
            false => Ok(()),
        }
    }
}

impl SharedRecords for SharedMemory {
    async fn get(&self, name: &str) -> Result<Option<Vec<u8>>, SharedRecordsError> {
        self.check_reachable()?;
        if self.is_unreadable(name) {
            return Ok(None);
        }
        let records = self.records.lock().unwrap();
        let alive = records.get(name).filter(|(_, end)| *end > Instant::now());
        Ok(alive.map(|(record, _)| record.clone()))
    }

    async fn put(
        &self,
        name: &str,
        record: &[u8],
        lifetime: Duration,
    ) -> Result<(), SharedRecordsError> {
        self.check_reachable()?;
        if self.is_unreadable(name) {
            *self.unreadable.lock().unwrap() = None;
        }
        let record = (record.to_vec(), Instant::now() + lifetime);
        self.records.lock().unwrap().insert(name.to_owned(), record);
        Ok(())
    }

    async fn put_new(
        &self,
        name: &str,
        record: &[u8],
        lifetime: Duration,
    ) -> Result<bool, SharedRecordsError> {
        self.check_reachable()?;
        let mut records = self.records.lock().unwrap();
        if records.get(name).is_some_and(|(_, end)| *end > Instant::now()) {
            return Ok(false);
        }
        records.insert(name.to_owned(), (record.to_vec(), Instant::now() + lifetime));
        Ok(true)
    }

    async fn remove(&self, name: &str) -> Result<(), SharedRecordsError> {
        self.check_reachable()?;
        self.records.lock().unwrap().remove(name);
        Ok(())
    }
}
