//! An epoch: the indices that were issued within one period.

use std::collections::BTreeMap;

use crate::node::LEAVES;
use crate::seed::{SegmentId, Value};
use crate::segment::Segment;

/// The random id of an epoch. Tickets carry it, so that tickets of another process or of an earlier run
/// are recognized.
pub type EpochId = [u8; 8];

/// The indices of one period. They expire together.
#[derive(Debug)]
pub(crate) struct Epoch {
    pub(crate) id: EpochId,
    /// When the first and the last index were issued, in seconds.
    pub(crate) opened: u64,
    pub(crate) last_issued: u64,
    /// How many indices were issued.
    pub(crate) issued: u32,
    /// The trees that have values left, by their numbers.
    pub(crate) segments: BTreeMap<u32, Segment>,
}

impl Epoch {
    /// An epoch with a new random id.
    ///
    /// # Panics
    /// Panics if the system has no randomness.
    pub(crate) fn open(now: u64) -> Self {
        let mut id = EpochId::default();
        getrandom::fill(&mut id).expect("the system gives random bytes");
        Self { id, opened: now, last_issued: now, issued: 0, segments: BTreeMap::new() }
    }

    /// Issues the next index, or returns `None` if there is none.
    pub(crate) fn issue(&mut self, now: u64) -> Option<(u32, Value)> {
        let (number, segment_id) = (self.issued, self.segment_id(self.issued / LEAVES));
        let next = number.checked_add(1)?;
        let segment =
            self.segments.entry(segment_id.segment).or_insert_with(|| Segment::new(segment_id));
        let value = segment.issue(number % LEAVES)?;
        self.issued = next;
        self.last_issued = self.last_issued.max(now);
        Some((number, value))
    }

    /// The value of an issued index that was not punctured.
    pub(crate) fn evaluate(&mut self, number: u32) -> Option<Value> {
        if number >= self.issued {
            return None;
        }
        self.segments.get_mut(&(number / LEAVES))?.evaluate(number % LEAVES)
    }

    /// Punctures an index. Returns false if it has no value.
    pub(crate) fn puncture(&mut self, number: u32) -> bool {
        if number >= self.issued {
            return false;
        }
        let Some(segment) = self.segments.get_mut(&(number / LEAVES)) else { return false };
        let is_new = segment.puncture(number % LEAVES);
        if segment.is_empty() {
            self.segments.remove(&(number / LEAVES));
        }
        is_new
    }

    /// Destroys the values of the indices that were not issued.
    pub(crate) fn close(&mut self) {
        let (last, issued) = (self.issued / LEAVES, self.issued % LEAVES);
        if let Some(segment) = self.segments.get_mut(&last) {
            segment.close(issued);
            if segment.is_empty() {
                self.segments.remove(&last);
            }
        }
    }

    /// The number of issued indices that were not punctured.
    pub(crate) fn outstanding(&self) -> u64 {
        self.segments.values().map(|segment| u64::from(segment.outstanding())).sum()
    }

    /// The memory of all segments, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.segments.keys().map(|segment| self.segment_bytes(*segment)).sum()
    }

    /// The memory of one segment, or 0 if nothing is left of it.
    pub(crate) fn segment_bytes(&self, segment: u32) -> usize {
        self.segments.get(&segment).map_or(0, |segment| segment.bytes() + SEGMENT_OVERHEAD)
    }

    pub(crate) fn segment_id(&self, segment: u32) -> SegmentId {
        SegmentId { epoch: self.id, segment }
    }
}

/// A segment's own memory, in a node of the map.
const SEGMENT_OVERHEAD: usize = 128;
