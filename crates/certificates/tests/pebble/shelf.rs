//! A shelf in memory, for nodes of one test.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use firstflight_certificates::acme::{SharedRecords, SharedRecordsError};

/// Contents, and the ends of their lives.
type Records = HashMap<String, (Vec<u8>, Instant)>;

/// Clones are one shelf.
#[derive(Clone, Default)]
pub(crate) struct Common {
    records: Arc<Mutex<Records>>,
    away: Arc<Mutex<bool>>,
    /// The records whose names have this word cannot be read.
    spoiled: Arc<Mutex<Option<&'static str>>>,
}

impl Common {
    /// As if the store could not be reached.
    pub(crate) fn set_away(&self, away: bool) {
        *self.away.lock().unwrap() = away;
    }

    /// As if such records were sealed under keys that nobody has any more, until they are put
    /// again.
    pub(crate) fn spoil(&self, word: &'static str) {
        *self.spoiled.lock().unwrap() = Some(word);
    }

    pub(crate) fn is_spoiled(&self, name: &str) -> bool {
        self.spoiled.lock().unwrap().is_some_and(|word| name.contains(word))
    }

    /// The names of the records that end so.
    pub(crate) fn names(&self, end: &str) -> Vec<String> {
        let records = self.records.lock().unwrap();
        records.keys().filter(|name| name.ends_with(end)).cloned().collect()
    }

    /// As if the lives of such records were over.
    pub(crate) fn expire(&self, end: &str) {
        self.records.lock().unwrap().retain(|name, _| !name.ends_with(end));
    }

    fn reach(&self) -> Result<(), SharedRecordsError> {
        match *self.away.lock().unwrap() {
            true => Err(SharedRecordsError("the store is away".to_owned())),
            false => Ok(()),
        }
    }
}

impl SharedRecords for Common {
    async fn get(&self, name: &str) -> Result<Option<Vec<u8>>, SharedRecordsError> {
        self.reach()?;
        if self.is_spoiled(name) {
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
        life: Duration,
    ) -> Result<(), SharedRecordsError> {
        self.reach()?;
        if self.is_spoiled(name) {
            *self.spoiled.lock().unwrap() = None;
        }
        let record = (record.to_vec(), Instant::now() + life);
        self.records.lock().unwrap().insert(name.to_owned(), record);
        Ok(())
    }

    async fn put_new(
        &self,
        name: &str,
        record: &[u8],
        life: Duration,
    ) -> Result<bool, SharedRecordsError> {
        self.reach()?;
        let mut records = self.records.lock().unwrap();
        if records.get(name).is_some_and(|(_, end)| *end > Instant::now()) {
            return Ok(false);
        }
        records.insert(name.to_owned(), (record.to_vec(), Instant::now() + life));
        Ok(true)
    }

    async fn remove(&self, name: &str) -> Result<(), SharedRecordsError> {
        self.reach()?;
        self.records.lock().unwrap().remove(name);
        Ok(())
    }
}
