//! A ticket key as it is stored.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;
use zeroize::Zeroizing;

use crate::key::TicketKey;
use crate::key_encryption::{KeyEncryption, UnsealError};
use crate::ring::DatedKey;
use crate::schedule::UnixTime;

/// The position of a key in the store, in seconds since 1970: the start of its period, or the
/// requested start of an extra key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u64);

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An entry of the store's list of keys, `SLOT-NAME`. Because it contains the name, a node
/// notices at once that a slot has a different key than it knows, as after a store has restarted
/// empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyEntry {
    /// The slot of the key.
    pub slot: Slot,
    /// The name of the key.
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
        // With a different spelling, it could not be removed by its name.
        if entry.to_string() == text { Ok(entry) } else { Err(InvalidKeyEntry) }
    }
}

/// Invalid text for a [`KeyEntry`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("an entry of the list of ticket keys has the form TIME-NAME")]
pub struct InvalidKeyEntry;

/// Seals and opens the records of one cluster's keys.
#[derive(Debug)]
pub struct KeyRecords {
    keys: KeyEncryption,
    cluster: String,
}

/// A record without a usable key.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RecordError {
    /// The record cannot be opened.
    #[error("the ticket key {slot} in the store cannot be read: {why}")]
    Sealed {
        /// The slot.
        slot: Slot,
        /// The reason.
        why: UnsealError,
    },
    /// The record's content has an unknown format.
    #[error(
        "the ticket key {0} in the store is of another version of firstflight; run the same \
         version on all nodes"
    )]
    Version(Slot),
}

impl RecordError {
    /// Returns whether the record is sealed under an unknown key-encryption key.
    pub fn is_unknown_key(&self) -> bool {
        matches!(self, Self::Sealed { why: UnsealError::UnknownKey { .. }, .. })
    }
}

impl KeyRecords {
    /// Creates the records of the cluster `cluster` (the prefix of its keys in the store) under
    /// `keys`. A record is bound to cluster and slot and cannot be opened for another one.
    pub fn new(keys: KeyEncryption, cluster: &str) -> Self {
        Self { keys, cluster: cluster.to_owned() }
    }

    /// The key-encryption keys.
    pub fn key_encryption(&self) -> &KeyEncryption {
        &self.keys
    }

    /// Seals `key` for `slot`.
    pub fn seal(&self, slot: Slot, key: &DatedKey) -> Vec<u8> {
        // `version (1) | not_before (8) | name (16) | secret (32)`
        let mut plain = Zeroizing::new(Vec::with_capacity(LENGTH));
        plain.push(VERSION);
        plain.extend_from_slice(&key.not_before.0.to_be_bytes());
        plain.extend_from_slice(key.key.name());
        plain.extend_from_slice(key.key.secret());
        self.keys.seal(&plain, &self.context(slot))
    }

    /// Opens a record of `slot`. Also returns whether it is sealed under the key-encryption key
    /// that seals now.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn open(&self, slot: Slot, record: &[u8]) -> Result<(DatedKey, bool), RecordError> {
        let unsealed = self
            .keys
            .unseal(record, &self.context(slot))
            .map_err(|why| RecordError::Sealed { slot, why })?;
        let key = decode(&unsealed.content).ok_or(RecordError::Version(slot))?;
        Ok((key, unsealed.up_to_date))
    }

    fn context(&self, slot: Slot) -> String {
        // The length keeps names with slashes distinct.
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
