//! A ticket key as a store holds it.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;
use zeroize::Zeroizing;

use crate::key::TicketKey;
use crate::key_encryption::{KeyEncryption, UnsealError};
use crate::ring::DatedKey;
use crate::schedule::UnixTime;

/// Where a key lies in the store: seconds since 1970, the start of its period, or the time
/// from which it was wanted beside the schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u64);

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A line of the store's list of keys, `SLOT-NAME_BYTES`. With the name in it, a node sees at once that
/// a slot's key is another one than it holds, as after a store has come back empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyEntry {
    /// Where the key lies.
    pub slot: Slot,
    /// Its name.
    pub name: [u8; 16],
}

impl fmt::Display for KeyEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.slot, hex::encode(self.name))
    }
}

impl FromStr for KeyEntry {
    type Err = InvalidKeyEntry;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (slot, name) = text.split_once('-').ok_or(InvalidKeyEntry)?;
        let mut bytes = [0; 16];
        hex::decode_to_slice(name, &mut bytes).map_err(|_| InvalidKeyEntry)?;
        let entry = Self { slot: Slot(slot.parse().map_err(|_| InvalidKeyEntry)?), name: bytes };
        // Written otherwise, it could not be removed by its own name.
        if entry.to_string() == text { Ok(entry) } else { Err(InvalidKeyEntry) }
    }
}

/// A text is no [`KeyEntry`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a line of the list of ticket keys is a time, a dash and a key's name")]
pub struct InvalidKeyEntry;

/// Seals and opens the records of one cluster's keys.
#[derive(Debug)]
pub struct KeyRecords {
    keys: KeyEncryption,
    cluster: String,
}

/// A record whose key cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RecordError {
    /// It does not open.
    #[error("the ticket key {slot} in the store cannot be read: {why}")]
    Sealed {
        /// Its slot.
        slot: Slot,
        /// Why not.
        why: UnsealError,
    },
    /// It opens and is something else.
    #[error(
        "the ticket key {0} in the store is of another version of firstflight; run the same \
         version on all nodes"
    )]
    Version(Slot),
}

impl RecordError {
    /// Whether the record is sealed under a key-encryption key that is not here.
    pub fn is_unknown_key(&self) -> bool {
        matches!(self, Self::Sealed { why: UnsealError::UnknownKey { .. }, .. })
    }
}

impl KeyRecords {
    /// Records under `keys`, of the cluster whose name in the store (its keys' prefix) is
    /// `cluster`. A record is bound to cluster and slot: it opens nowhere else.
    pub fn new(keys: KeyEncryption, cluster: &str) -> Self {
        Self { keys, cluster: cluster.to_owned() }
    }

    /// The key-encryption keys.
    pub fn key_encryption(&self) -> &KeyEncryption {
        &self.keys
    }

    /// The record for `slot` with `key` in it.
    pub fn seal(&self, slot: Slot, key: &DatedKey) -> Vec<u8> {
        // `version (1) | not_before (8) | name (16) | secret (32)`
        let mut plain = Zeroizing::new(Vec::with_capacity(LENGTH));
        plain.push(VERSION);
        plain.extend_from_slice(&key.not_before.0.to_be_bytes());
        plain.extend_from_slice(key.key.name());
        plain.extend_from_slice(key.key.secret());
        self.keys.seal(&plain, &self.context(slot))
    }

    /// The key in a record of `slot`, and whether it is sealed under the key-encryption key that
    /// seals now.
    ///
    /// # Errors
    /// [`RecordError`], one sentence for the operator.
    pub fn open(&self, slot: Slot, record: &[u8]) -> Result<(DatedKey, bool), RecordError> {
        let unsealed = self
            .keys
            .unseal(record, &self.context(slot))
            .map_err(|why| RecordError::Sealed { slot, why })?;
        let key = decode(&unsealed.content).ok_or(RecordError::Version(slot))?;
        Ok((key, unsealed.up_to_date))
    }

    fn context(&self, slot: Slot) -> String {
        // The length keeps apart what a name with a slash could make look alike.
        format!("{}:{}/ticket-key/{slot}", self.cluster.len(), self.cluster)
    }
}

fn decode(plain: &[u8]) -> Option<DatedKey> {
    if plain.len() != LENGTH || plain[0] != VERSION {
        return None;
    }
    let (not_before, rest) = plain[1..].split_first_chunk()?;
    let (name, rest) = rest.split_first_chunk()?;
    let secret = Zeroizing::new(*rest.first_chunk()?);
    let key = TicketKey::new(*name, *secret);
    Some(DatedKey { key, not_before: UnixTime(u64::from_be_bytes(*not_before)) })
}

const VERSION: u8 = 1;
const LENGTH: usize = 1 + 8 + 16 + 32;
