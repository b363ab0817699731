//! Serializes the function, for the next process.
//!
//! Numbers are big-endian. `magic (8) | epochs (4)`, then for each epoch, the oldest first:
//! `id (8) | opened (8) | last issued (8) | issued (4) | segments (4)`, then for each of its segments
//! that have values left: `number (4) | nodes (4)`, and for each node `number (2) | seed (16)`.

use std::collections::{BTreeMap, VecDeque};

use thiserror::Error;
use zeroize::Zeroizing;

use crate::epoch::Epoch;
use crate::node::{LEAVES, Node};
use crate::seed::Seed;
use crate::segment::Segment;

/// The bytes are not a snapshot of a puncturable function, or one of another version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("these bytes are not the state of punctured ticket keys, or of another version")]
pub struct InvalidSnapshot;

pub(crate) fn to_bytes(epochs: &VecDeque<Epoch>) -> Zeroizing<Vec<u8>> {
    let segment_len = |segment: &Segment| SEGMENT_HEADER + segment.len() * NODE;
    let epoch_len =
        |epoch: &Epoch| EPOCH_HEADER + epoch.segments.values().map(segment_len).sum::<usize>();
    let length = MAGIC.len() + 4 + epochs.iter().map(epoch_len).sum::<usize>();
    // Allocated once, so that growing leaves no copies behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(length));
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&(epochs.len() as u32).to_be_bytes());
    for epoch in epochs {
        bytes.extend_from_slice(&epoch.id);
        bytes.extend_from_slice(&epoch.opened.to_be_bytes());
        bytes.extend_from_slice(&epoch.last_issued.to_be_bytes());
        bytes.extend_from_slice(&epoch.issued.to_be_bytes());
        bytes.extend_from_slice(&(epoch.segments.len() as u32).to_be_bytes());
        for (number, segment) in &epoch.segments {
            bytes.extend_from_slice(&number.to_be_bytes());
            bytes.extend_from_slice(&(segment.len() as u32).to_be_bytes());
            for (node, seed) in segment.nodes() {
                bytes.extend_from_slice(&node.number().to_be_bytes());
                bytes.extend_from_slice(seed);
            }
        }
    }
    debug_assert_eq!(bytes.len(), length);
    bytes
}

pub(crate) fn parse(bytes: &[u8]) -> Result<VecDeque<Epoch>, InvalidSnapshot> {
    let mut reader = Reader(bytes);
    if reader.take()? != MAGIC {
        return Err(InvalidSnapshot);
    }
    let count = reader.count(EPOCH_HEADER)?;
    if count > MAX_EPOCHS {
        return Err(InvalidSnapshot);
    }
    let mut epochs = VecDeque::with_capacity(count);
    for at in 0..count {
        let epoch = read_epoch(&mut reader, at + 1 == count)?;
        if epochs.iter().any(|other: &Epoch| other.id == epoch.id) {
            return Err(InvalidSnapshot);
        }
        epochs.push_back(epoch);
    }
    match reader.0 {
        [] => Ok(epochs),
        _ => Err(InvalidSnapshot),
    }
}

/// `is_open`: whether the epoch still issues.
fn read_epoch(reader: &mut Reader<'_>, is_open: bool) -> Result<Epoch, InvalidSnapshot> {
    let mut epoch = Epoch {
        id: *reader.take()?,
        opened: reader.u64()?,
        last_issued: reader.u64()?,
        issued: reader.u32()?,
        segments: BTreeMap::new(),
    };
    if epoch.opened > epoch.last_issued {
        return Err(InvalidSnapshot);
    }
    for _ in 0..reader.count(SEGMENT_HEADER)? {
        let number = reader.u32()?;
        let is_ordered = epoch.segments.last_key_value().is_none_or(|(last, _)| *last < number);
        let first = number.checked_mul(LEAVES).ok_or(InvalidSnapshot)?;
        let issued = epoch.issued.saturating_sub(first).min(LEAVES);
        if !is_ordered || issued == 0 {
            return Err(InvalidSnapshot);
        }
        let is_open = is_open && issued < LEAVES;
        let segment = read_segment(reader, &epoch, number, (issued, is_open))?;
        epoch.segments.insert(number, segment);
    }
    // The segment that issues always has values left.
    let (segment, issued) = (epoch.issued / LEAVES, epoch.issued % LEAVES);
    match is_open && issued > 0 && !epoch.segments.contains_key(&segment) {
        true => Err(InvalidSnapshot),
        false => Ok(epoch),
    }
}

fn read_segment(
    reader: &mut Reader<'_>,
    epoch: &Epoch,
    number: u32,
    issued: (u32, bool),
) -> Result<Segment, InvalidSnapshot> {
    let count = reader.count(NODE)?;
    let mut nodes = Vec::with_capacity(count);
    for _ in 0..count {
        let node = Node::from_number(u16::from_be_bytes(*reader.take()?)).ok_or(InvalidSnapshot)?;
        nodes.push((node, Seed::new(reader.take()?)));
    }
    Segment::from_nodes(epoch.segment_id(number), nodes.into_iter(), issued)
        .map_err(|_| InvalidSnapshot)
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const LENGTH: usize>(&mut self) -> Result<&'a [u8; LENGTH], InvalidSnapshot> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(InvalidSnapshot)?;
        self.0 = rest;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32, InvalidSnapshot> {
        self.take().map(|bytes| u32::from_be_bytes(*bytes))
    }

    fn u64(&mut self) -> Result<u64, InvalidSnapshot> {
        self.take().map(|bytes| u64::from_be_bytes(*bytes))
    }

    /// Reads a number of items with at least `item_len` bytes each. Fails if the remaining bytes are too
    /// few for them.
    fn count(&mut self, item_len: usize) -> Result<usize, InvalidSnapshot> {
        let count = self.u32()? as usize;
        match count <= self.0.len() / item_len {
            true => Ok(count),
            false => Err(InvalidSnapshot),
        }
    }
}

const MAGIC: &[u8; 8] = b"ffpunct1";
const EPOCH_HEADER: usize = 8 + 8 + 8 + 4 + 4;
const SEGMENT_HEADER: usize = 4 + 4;
const NODE: usize = 2 + Seed::LENGTH;

/// The maximum number of epochs: 64 hours. It is reached only if the clock is set back;
/// otherwise epochs expire earlier.
pub(crate) const MAX_EPOCHS: usize = 64;
