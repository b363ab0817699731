//! Ticket keys that nodes share through the store, without a leader, and the status of these nodes.
//!
//! [`firstflight_tickets::SharedKeys`] decides which keys to read and to offer, and when each key seals;
//! this module accesses the store. The records in the store are:
//!
//! - `ring`: the list of keys, a line each ([`firstflight_tickets::KeyEntry`]);
//! - `ring:SLOT`: a key, sealed under the key-encryption key;
//! - `nodes`, and `node:NAME`: see [`NodeStatus`].

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use firstflight_tickets::{
    KeyEncryption, KeyEncryptionError, KeyEntry, KeyId, KeyOffer, KeyRecords, KeyStatus,
    RecordError, Ring, Schedule, SharedKeys, Slot, UnixTime,
};
use serde::{Deserialize, Serialize};

use crate::{Store, StoreError};

/// The ticket keys that nodes share through a store. Share it in an `Arc`.
#[derive(Debug)]
pub struct SharedRing<S = Store> {
    store: S,
    records: Arc<KeyRecords>,
    state: Mutex<State>,
}

/// Why the shared keys, or some of them, are not available.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SharedRingError {
    /// The store failed.
    #[error("ticket keys: {0}")]
    Store(#[from] StoreError),
    /// The key-encryption keys cannot be used.
    #[error(transparent)]
    KeyEncryption(#[from] KeyEncryptionError),
    /// A record cannot be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The store has no keys.
    #[error(
        "there are no ticket keys in the store; start a server with `keys = \"store\"` in its \
         [tickets]"
    )]
    Empty,
    /// Another rotation stored its key first.
    #[error("another rotation was faster; check the keys, and try again if needed")]
    Overtaken,
}

#[derive(Debug)]
struct State {
    keys: SharedKeys,
    /// Records that cannot be read, by their slots.
    unreadable: BTreeMap<Slot, RecordError>,
    /// Records that were sealed again, so that nodes with different orders of key-encryption keys do
    /// not keep replacing each other's records.
    resealed: HashSet<(Slot, KeyId)>,
    /// Warnings that [`SharedRing::take_warnings`] has not returned yet.
    warnings: Vec<SharedRingError>,
}

impl<S: Records> SharedRing<S> {
    /// Creates a ring of keys in `store`, sealed under `key_encryption`. Does not access the store yet.
    /// The schedule must be the same on all nodes.
    pub fn new(store: S, key_encryption: KeyEncryption, schedule: Schedule) -> Self {
        let records = Arc::new(KeyRecords::new(key_encryption, store.cluster()));
        let state = Mutex::new(State {
            keys: SharedKeys::new(schedule),
            unreadable: BTreeMap::new(),
            resealed: HashSet::new(),
            warnings: Vec::new(),
        });
        Self { store, records, state }
    }

    /// Loads the keys from the store, offers missing ones, and returns the ring at `now`. Call it about
    /// once a second.
    ///
    /// # Errors
    /// [`SharedRingError`]. The previous ring remains usable, since it has the next period's key
    /// too. Problems that leave a ring are returned by [`take_warnings`](Self::take_warnings).
    pub async fn refresh(&self, now: UnixTime) -> Result<Ring, SharedRingError> {
        let listed = self.load_all(now).await?;
        let offers = self.state().offers(&listed, now);
        for offer in offers {
            self.offer(&offer, now).await?;
        }
        self.ring()
    }

    /// Returns the ring in the store at `now`; offers no keys.
    ///
    /// # Errors
    /// [`SharedRingError`].
    pub async fn read(&self, now: UnixTime) -> Result<Ring, SharedRingError> {
        self.load_all(now).await?;
        self.ring()
    }

    /// Stores a new key. All nodes have it within two seconds. It is the current key from
    /// [`SharedKeys::PROPAGATION_DELAY`] on until the next period, which gets a new key too.
    ///
    /// # Errors
    /// [`SharedRingError`].
    pub async fn rotate(&self, now: UnixTime) -> Result<Ring, SharedRingError> {
        self.refresh(now).await?;
        let offer = self.state().keys.rotation(now);
        if !self.offer(&offer, now).await? {
            return Err(SharedRingError::Overtaken);
        }
        let replacement = self.state().keys.replacement(offer.key.not_before, now);
        if let Some(replacement) = replacement {
            self.replace(&replacement, now).await?;
        }
        self.ring()
    }

    /// Reloads the file of key-encryption keys if it was replaced; call it before
    /// [`refresh`](Self::refresh). Reads a file, so it may block.
    pub fn refresh_key_encryption(&self, now: UnixTime) {
        match self.records.key_encryption().refresh(now) {
            Ok(false) => {}
            Ok(true) => self.state().keys.reread_all(),
            Err(error) => self.state().warnings.push(error.into()),
        }
    }

    /// Returns new problems with records and with the key-encryption keys. Each is returned once
    /// while it lasts.
    pub fn take_warnings(&self) -> Vec<SharedRingError> {
        std::mem::take(&mut self.state().warnings)
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Reads new keys from the store. Returns the listed entries that have a record.
    async fn load_all(&self, now: UnixTime) -> Result<BTreeSet<KeyEntry>, SharedRingError> {
        let mut listed = BTreeSet::new();
        for line in self.store.members(LIST).await? {
            match line.parse() {
                Ok(entry) => drop(listed.insert(entry)),
                Err(_) => self.store.remove(LIST, &line).await?,
            }
        }
        let to_read = self.state().forget_unlisted(&listed).to_read(&listed, now);
        for entry in to_read {
            let content = self.read_slot(entry.slot, now).await?;
            self.state().keys.mark_read(entry, now);
            match content {
                SlotContent::Key(name) if name != entry.name => {
                    // Its writer may have failed before listing it.
                    let actual = KeyEntry { name, ..entry };
                    self.store.add(LIST, &actual.to_string()).await?;
                    listed.insert(actual);
                    self.remove_entry(&mut listed, entry).await?;
                }
                SlotContent::Nothing => self.remove_entry(&mut listed, entry).await?,
                SlotContent::Key(_) | SlotContent::Unreadable => {}
            }
        }
        Ok(listed)
    }

    /// Removes an entry without a record from the list.
    async fn remove_entry(
        &self,
        listed: &mut BTreeSet<KeyEntry>,
        entry: KeyEntry,
    ) -> Result<(), SharedRingError> {
        listed.remove(&entry);
        Ok(self.store.remove(LIST, &entry.to_string()).await?)
    }

    /// Reads the record in `slot`, if there is one, and seals it again if it is not sealed under the
    /// newest key-encryption key.
    async fn read_slot(&self, slot: Slot, now: UnixTime) -> Result<SlotContent, SharedRingError> {
        let Some(record) = self.store.get(&record_key(slot)).await? else {
            self.state().unreadable.remove(&slot);
            return Ok(SlotContent::Nothing);
        };
        let (key, up_to_date) = match self.records.open(slot, &record) {
            Ok(opened) => opened,
            Err(error) => {
                self.state().note_unreadable(slot, error);
                return Ok(SlotContent::Unreadable);
            }
        };
        let sealing_key = self.records.key_encryption().sealing_key();
        let ttl = {
            let mut state = self.state();
            state.unreadable.remove(&slot);
            state.keys.adopt(slot, key.clone(), now);
            let due = !up_to_date && !state.resealed.contains(&(slot, sealing_key));
            due.then(|| state.keys.lifetime_of(&key, now))
        };
        if let Some(ttl) = ttl {
            self.store.put(&record_key(slot), &self.records.seal(slot, &key), ttl).await?;
            self.state().resealed.insert((slot, sealing_key));
        }
        Ok(SlotContent::Key(*key.key.name()))
    }

    /// Stores a key in its slot, or reads the key that is there. Returns whether it was stored.
    async fn offer(&self, offer: &KeyOffer, now: UnixTime) -> Result<bool, SharedRingError> {
        let KeyOffer { slot, key, lifetime: ttl } = offer;
        let record = self.records.seal(*slot, key);
        let put = self.store.put_new(&record_key(*slot), &record, *ttl).await?;
        // Read back in any case: other nodes use what is in the store.
        if let SlotContent::Key(name) = self.read_slot(*slot, now).await? {
            // List it after storing it, so that every listed entry has a record.
            self.store.add(LIST, &KeyEntry { slot: *slot, name }.to_string()).await?;
        }
        Ok(put)
    }

    /// Stores a key in its slot, replacing another one.
    ///
    /// # Errors
    /// [`SharedRingError::Overtaken`] if another node has put back the old one, sealed anew.
    async fn replace(&self, offer: &KeyOffer, now: UnixTime) -> Result<(), SharedRingError> {
        let KeyOffer { slot, key, lifetime: ttl } = offer;
        let old = self.state().keys.held(*slot);
        self.store.put(&record_key(*slot), &self.records.seal(*slot, key), *ttl).await?;
        if let SlotContent::Key(name) = self.read_slot(*slot, now).await? {
            let new = KeyEntry { slot: *slot, name };
            if old == Some(new) {
                return Err(SharedRingError::Overtaken);
            }
            self.store.add(LIST, &new.to_string()).await?;
            if let Some(old) = old {
                self.store.remove(LIST, &old.to_string()).await?;
            }
        }
        Ok(())
    }

    fn ring(&self) -> Result<Ring, SharedRingError> {
        let state = self.state();
        match (state.keys.ring(), state.unreadable.last_key_value()) {
            (Some(ring), _) => Ok(ring),
            (None, Some((_, error))) => Err(error.clone().into()),
            (None, None) => Err(SharedRingError::Empty),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Forgets errors of records that are not listed any more.
    fn forget_unlisted(&mut self, listed: &BTreeSet<KeyEntry>) -> &mut SharedKeys {
        let slots: BTreeSet<Slot> = listed.iter().map(|entry| entry.slot).collect();
        self.unreadable.retain(|slot, _| slots.contains(slot));
        self.resealed.retain(|(slot, _)| slots.contains(slot));
        &mut self.keys
    }

    /// Offers no keys while a record is sealed under an unknown key-encryption key: other nodes could
    /// not read this node's keys, which would block the slots. So one node with a wrong file cannot
    /// keep all others from their next key.
    fn offers(&mut self, listed: &BTreeSet<KeyEntry>, now: UnixTime) -> Vec<KeyOffer> {
        self.keys.drop_dead(now);
        let mut unreadable = self.unreadable.values();
        if unreadable.any(RecordError::is_unknown_key) {
            return Vec::new();
        }
        self.keys.offers(listed, now)
    }

    fn note_unreadable(&mut self, slot: Slot, error: RecordError) {
        if self.unreadable.get(&slot) != Some(&error) {
            self.warnings.push(error.clone().into());
            self.unreadable.insert(slot, error);
        }
    }
}

/// The content of a slot.
enum SlotContent {
    /// A key with this name.
    Key([u8; 16]),
    /// A record that cannot be read.
    Unreadable,
    /// Nothing.
    Nothing,
}

fn record_key(slot: Slot) -> String {
    format!("{LIST}:{slot}")
}

const LIST: &str = "ring";

#[cfg(test)]
mod tests;

/// The status of a node and its ticket keys, for operators. Times are seconds since 1970, by the
/// node's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its name.
    pub node: String,
    /// Its zone, if it has one.
    pub zone: Option<String>,
    /// When its process started.
    pub started: u64,
    /// Its version of this program.
    pub version: String,
    /// Its ring, the oldest key first, each with its last use on this node.
    pub keys: Vec<KeyStatus>,
    /// When it wrote this status.
    pub seen_at: u64,
}

impl<S: Records> SharedRing<S> {
    /// Publishes this node's status. Call it about every ten seconds: the record expires after
    /// thirty.
    ///
    /// # Errors
    /// [`SharedRingError::Store`].
    pub async fn publish_status(&self, status: &NodeStatus) -> Result<(), SharedRingError> {
        // Only numbers and text, so this cannot fail.
        let record = serde_json::to_vec(status).unwrap_or_default();
        self.store.put(&status_key(&status.node), &record, STATUS_TTL).await?;
        Ok(self.store.add(NODES, &status.node).await?)
    }

    /// Returns the nodes that published their status in the last 30 seconds, sorted by name.
    ///
    /// # Errors
    /// [`SharedRingError::Store`].
    pub async fn nodes(&self) -> Result<Vec<NodeStatus>, SharedRingError> {
        let mut names = self.store.members(NODES).await?;
        names.sort();
        let mut nodes = Vec::with_capacity(names.len());
        for name in names {
            match self.store.get(&status_key(&name)).await? {
                // An unreadable record may come from another version, so it stays.
                Some(record) => nodes.extend(serde_json::from_slice::<NodeStatus>(&record).ok()),
                None => self.store.remove(NODES, &name).await?,
            }
        }
        Ok(nodes)
    }
}

fn status_key(node: &str) -> String {
    format!("node:{node}")
}

const NODES: &str = "nodes";
const STATUS_TTL: Duration = Duration::from_secs(30);

/// Small records in a store. Implemented by [`Store`]; tests use an implementation that loses data
/// and replies on demand.
pub trait Records: Send + Sync {
    /// Returns a name that distinguishes this cluster's records from those of others in the store.
    fn cluster(&self) -> &str;
    /// See [`Store::get`].
    fn get(&self, key: &str) -> impl Future<Output = Result<Option<Vec<u8>>, StoreError>> + Send;
    /// See [`Store::put`].
    fn put(
        &self,
        key: &str,
        value: &[u8],
        ttl: Duration,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
    /// See [`Store::put_new`].
    fn put_new(
        &self,
        key: &str,
        value: &[u8],
        ttl: Duration,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;
    /// See [`Store::members`].
    fn members(&self, set: &str) -> impl Future<Output = Result<Vec<String>, StoreError>> + Send;
    /// See [`Store::add`].
    fn add(&self, set: &str, member: &str) -> impl Future<Output = Result<(), StoreError>> + Send;
    /// See [`Store::remove`].
    fn remove(
        &self,
        set: &str,
        member: &str,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}

impl Records for Store {
    fn cluster(&self) -> &str {
        self.prefix()
    }

    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.get(key).await
    }

    async fn put(&self, key: &str, value: &[u8], ttl: Duration) -> Result<(), StoreError> {
        self.put(key, value, ttl).await
    }

    async fn put_new(&self, key: &str, value: &[u8], ttl: Duration) -> Result<bool, StoreError> {
        self.put_new(key, value, ttl).await
    }

    async fn members(&self, set: &str) -> Result<Vec<String>, StoreError> {
        self.members(set).await
    }

    async fn add(&self, set: &str, member: &str) -> Result<(), StoreError> {
        self.add(set, member).await
    }

    async fn remove(&self, set: &str, member: &str) -> Result<(), StoreError> {
        self.remove(set, member).await
    }
}
