//! The slots of a cluster: the slot of a key, and the owner of a slot.

use firstflight_replay::Slots;
use redis::Value;

use super::address;
use crate::Address;
use crate::connection::{integer, text};

/// Number of slots in a cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// Returns the slot of a key: CRC16 of the part in the first pair of braces, or of the whole key if
/// that part is empty or missing.
pub(super) fn slot_of(key: &[u8]) -> u16 {
    crc16(tag(key).unwrap_or(key)) % SLOTS
}

fn tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|byte| *byte == b'{')? + 1;
    let length = key[open..].iter().position(|byte| *byte == b'}')?;
    (length > 0).then(|| &key[open..open + length])
}

/// CRC-16/XMODEM: polynomial 0x1021, initial value 0, not reflected.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| match crc & 0x8000 {
            0 => crc << 1,
            _ => crc << 1 ^ 0x1021,
        })
    })
}

/// Returns the smallest number whose decimal form has this slot.
pub(super) fn number_with_slot(slot: u16) -> u32 {
    let has = |number: &u32| slot_of(number.to_string().as_bytes()) == slot;
    (0..=u32::MAX).find(has).unwrap_or_default()
}

/// Which master owns which slots. Two maps are equal if the same nodes own the same slots; addresses
/// are not compared.
#[derive(Debug, Clone)]
pub(crate) struct SlotMap {
    ranges: Vec<Range>,
}

#[derive(Debug, Clone)]
pub(crate) struct Range {
    pub first: u16,
    pub last: u16,
    /// The master's id in the cluster.
    pub node: String,
    pub address: Address,
}

impl SlotMap {
    /// Parses the reply to `CLUSTER SLOTS` of the node at `responder`. Returns `None` if it is
    /// invalid or without any slot.
    pub(crate) fn parse(reply: &Value, responder: &Address) -> Option<Self> {
        let Value::Array(rows) = reply else { return None };
        let ranges: Option<Vec<_>> = rows.iter().map(|row| Range::parse(row, responder)).collect();
        let mut ranges = ranges.filter(|ranges| !ranges.is_empty())?;
        ranges.sort_by_key(|range| range.first);
        let disjoint = |pair: &[Range]| pair[0].last < pair[1].first;
        ranges.windows(2).all(disjoint).then_some(Self { ranges })
    }

    /// Returns each master once, with its lowest range.
    pub(crate) fn masters(&self) -> Vec<&Range> {
        let mut masters: Vec<&Range> = Vec::new();
        for range in &self.ranges {
            if masters.iter().all(|master| master.node != range.node) {
                masters.push(range);
            }
        }
        masters
    }

    /// Returns the slots of a master.
    pub(crate) fn slots_of(&self, node: &str) -> Slots {
        let owned = self.ranges.iter().filter(|range| range.node == node);
        Slots::of(owned.map(|range| (range.first, range.last)))
    }

    /// Returns the id of a slot's owner.
    pub(crate) fn owner(&self, slot: u16) -> Option<&str> {
        let index = self.ranges.partition_point(|range| range.last < slot);
        let range = self.ranges.get(index).filter(|range| range.first <= slot)?;
        Some(&range.node)
    }
}

impl PartialEq for SlotMap {
    fn eq(&self, other: &Self) -> bool {
        let same =
            |(a, b): (&Range, &Range)| (a.first, a.last, &a.node) == (b.first, b.last, &b.node);
        self.ranges.len() == other.ranges.len() && self.ranges.iter().zip(&other.ranges).all(same)
    }
}

impl Range {
    /// Parses a row: first and last slot, then the master (host, port, id), then its replicas.
    fn parse(row: &Value, responder: &Address) -> Option<Self> {
        let Value::Array(row) = row else { return None };
        let [first, last, Value::Array(master), ..] = row.as_slice() else { return None };
        let [host, port, node, ..] = master.as_slice() else { return None };
        let slot = |value| u16::try_from(integer(value)?).ok().filter(|slot| *slot < SLOTS);
        let (first, last) = (slot(first)?, slot(last)?);
        let host = match host {
            Value::Nil => "",
            host => text(host)?,
        };
        let address = address(host, integer(port)?, responder)?;
        (first <= last).then_some(Self { first, last, node: text(node)?.to_owned(), address })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_match_cluster_keyslot() {
        // CLUSTER KEYSLOT
        assert_eq!(slot_of(b"foo"), 12182);
        assert_eq!(slot_of(b"123456789"), 0x31c3 % SLOTS);
        assert_eq!(slot_of(b"x{foo}y"), 12182);
        assert_eq!(slot_of(b"x{foo}{bar}"), 12182);
        assert_ne!(slot_of(b"{}foo"), 12182);
        assert_eq!(slot_of(b""), 0);
    }

    #[test]
    fn every_slot_has_a_number() {
        for slot in (0..SLOTS).step_by(97) {
            assert_eq!(slot_of(number_with_slot(slot).to_string().as_bytes()), slot);
        }
    }

    fn responder() -> Address {
        Address::Tcp("responder".to_owned(), 1)
    }

    fn reply(rows: &[(i64, i64, &str, i64, &str)]) -> Value {
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let row = |(first, last, host, port, node): &(i64, i64, &str, i64, &str)| {
            let master = Value::Array(vec![bulk(host), Value::Int(*port), bulk(node)]);
            Value::Array(vec![Value::Int(*first), Value::Int(*last), master])
        };
        Value::Array(rows.iter().map(row).collect())
    }

    #[test]
    fn a_map_has_owners_and_gaps() {
        let rows = [(8, 9, "b", 7, "B"), (0, 5, "", 7, "A"), (20, 30, "", 7, "A")];
        let map = SlotMap::parse(&reply(&rows), &responder()).unwrap();
        let owners: Vec<_> = [0, 5, 6, 8, 9, 10, 30, 31].map(|slot| map.owner(slot)).into();
        let (a, b) = (Some("A"), Some("B"));
        assert_eq!(owners, [a, a, None, b, b, None, a, None]);
        assert_eq!(map.masters()[0].address, Address::Tcp("responder".to_owned(), 7));
        assert_eq!(map.masters().len(), 2);
    }

    #[test]
    fn an_invalid_map_is_refused() {
        for rows in [
            &[][..],
            &[(5, 4, "a", 7, "A")],
            &[(0, 16_384, "a", 7, "A")],
            &[(-1, 4, "a", 7, "A")],
            &[(0, 4, "a", 70_000, "A")],
            &[(0, 4, "a", 7, "A"), (4, 6, "b", 7, "B")],
        ] {
            assert_eq!(SlotMap::parse(&reply(rows), &responder()), None, "{rows:?}");
        }
        assert_eq!(SlotMap::parse(&Value::Okay, &responder()), None);
        assert_eq!(SlotMap::parse(&Value::Array(vec![Value::Nil]), &responder()), None);
    }
}
