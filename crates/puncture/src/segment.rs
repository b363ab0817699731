//! One tree: the values of 32,768 indices, without those that were punctured.

use crate::cover::Cover;
use crate::node::{LEAVES, LEVELS, Node};
use crate::seed::{Seed, SegmentId, Value};
use crate::stack::wipe_stack;

/// A tree of seeds. Leaves are counted from 0.
#[derive(Debug)]
pub(crate) struct Segment {
    id: SegmentId,
    cover: Cover,
    /// The nodes to the right of the path to the leaf issued last, the nearest last. None of their
    /// leaves was issued, so none was punctured. They save most of the steps to the next leaf.
    unissued: Vec<(Node, Seed)>,
    /// The path to the leaf that was evaluated last: puncturing it usually follows. Dropped when any leaf
    /// is punctured.
    evaluated: Option<EvaluatedPath>,
    /// The leaves that were issued and not punctured.
    outstanding: u32,
}

/// The path to a leaf: the nodes that replace the stored node above the leaf when it is punctured.
#[derive(Debug)]
struct EvaluatedPath {
    leaf: u32,
    /// In the order of their leaves.
    siblings: Vec<(Node, Seed)>,
}

/// The stored nodes are not those of a segment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InvalidNodes;

impl Segment {
    /// A tree with a new random root.
    pub(crate) fn new(id: SegmentId) -> Self {
        let mut cover = Cover::default();
        cover.push(Node::ROOT, Seed::random());
        Self { id, cover, unissued: Vec::new(), evaluated: None, outstanding: 0 }
    }

    /// Restores a tree from its remaining nodes, in order. Its first `issued` leaves were issued;
    /// `is_open`: whether the others will be.
    pub(crate) fn from_nodes(
        id: SegmentId,
        nodes: impl Iterator<Item = (Node, Seed)>,
        (issued, is_open): (u32, bool),
    ) -> Result<Self, InvalidNodes> {
        let mut cover = Cover::default();
        let (mut next, mut outstanding) = (0, 0);
        // The leaves that no node covers were punctured, so they were issued.
        let is_gap_valid = |from: u32, to: u32| from == to || to <= issued || !is_open;
        for (node, seed) in nodes {
            let (first, last) = node.leaves();
            if first < next || !is_gap_valid(next, first) || (!is_open && last >= issued) {
                return Err(InvalidNodes);
            }
            outstanding += issued.min(last + 1).saturating_sub(first);
            next = last + 1;
            cover.push(node, seed);
        }
        if !is_gap_valid(next, LEAVES) || cover.is_empty() {
            return Err(InvalidNodes);
        }
        Ok(Self { id, cover, unissued: Vec::new(), evaluated: None, outstanding })
    }

    /// Issues a leaf, which must follow all issued leaves, and returns its value.
    pub(crate) fn issue(&mut self, leaf: u32) -> Option<Value> {
        let value = self.descend_to_unissued(leaf);
        wipe_stack::<WIPED_STACK_UNITS>();
        self.outstanding += u32::from(value.is_some());
        value
    }

    #[inline(never)]
    fn descend_to_unissued(&mut self, leaf: u32) -> Option<Value> {
        let is_before = |(node, _): &(Node, Seed)| !node.covers(leaf);
        // Not `pop`, which leaves the seed's bytes in the list's memory: `truncate` overwrites them.
        while self.unissued.last().is_some_and(is_before) {
            self.unissued.truncate(self.unissued.len() - 1);
        }
        let nearest = self.unissued.last().cloned();
        self.unissued.truncate(self.unissued.len().saturating_sub(1));
        let (mut node, mut seed) = match nearest {
            Some(nearest) => nearest,
            None => self.cover.find(leaf)?,
        };
        // The capacity suffices, so that seeds are not moved to another allocation.
        self.unissued.reserve_exact(LEVELS - self.unissued.len());
        while !node.is_leaf() {
            let ((left, right), (left_seed, right_seed)) =
                (node.children(), seed.children(node, self.id));
            if left.covers(leaf) {
                self.unissued.push((right, right_seed));
                (node, seed) = (left, left_seed);
            } else {
                (node, seed) = (right, right_seed);
            }
        }
        if self.unissued.is_empty() {
            // This was the last leaf.
            self.unissued = Vec::new();
        }
        Some(seed.value(node, self.id))
    }

    /// The value of a leaf, or `None` if it was punctured.
    pub(crate) fn evaluate(&mut self, leaf: u32) -> Option<Value> {
        let value = self.descend(leaf);
        wipe_stack::<WIPED_STACK_UNITS>();
        value
    }

    #[inline(never)]
    fn descend(&mut self, leaf: u32) -> Option<Value> {
        let (mut node, mut seed) = self.cover.find(leaf)?;
        // The capacity suffices, so that seeds are not moved to another allocation.
        let mut siblings = Vec::with_capacity(LEVELS);
        let mut before = 0;
        while !node.is_leaf() {
            let ((left, right), (left_seed, right_seed)) =
                (node.children(), seed.children(node, self.id));
            if left.covers(leaf) {
                siblings.insert(before, (right, right_seed));
                (node, seed) = (left, left_seed);
            } else {
                siblings.insert(before, (left, left_seed));
                before += 1;
                (node, seed) = (right, right_seed);
            }
        }
        self.evaluated = Some(EvaluatedPath { leaf, siblings });
        Some(seed.value(node, self.id))
    }

    /// Punctures a leaf that was issued. Returns false if it was punctured before.
    pub(crate) fn puncture(&mut self, leaf: u32) -> bool {
        let is_new = self.remove(leaf);
        self.outstanding -= u32::from(is_new);
        is_new
    }

    /// Destroys the values of all leaves from `issued` on, which will never be issued.
    pub(crate) fn close(&mut self, issued: u32) {
        self.unissued = Vec::new();
        if issued < LEAVES {
            // Afterwards each node is on one side of this leaf.
            self.remove(issued);
            self.cover.truncate(issued);
        }
    }

    pub(crate) fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Whether no value is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.cover.is_empty()
    }

    /// The number of nodes.
    pub(crate) fn len(&self) -> usize {
        self.cover.len()
    }

    /// The nodes and their seeds, in order.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (Node, &[u8; Seed::LENGTH])> {
        self.cover.iter()
    }

    /// The bytes on the heap.
    pub(crate) fn bytes(&self) -> usize {
        self.cover.bytes() + self.unissued.capacity() * size_of::<(Node, Seed)>()
    }

    /// Replaces the node above a leaf by the siblings on the path to the leaf.
    fn remove(&mut self, leaf: u32) -> bool {
        let is_new = self.split(leaf);
        wipe_stack::<WIPED_STACK_UNITS>();
        is_new
    }

    #[inline(never)]
    fn split(&mut self, leaf: u32) -> bool {
        if self.evaluated.as_ref().is_none_or(|path| path.leaf != leaf) {
            self.evaluated = None;
            self.descend(leaf);
        }
        let Some(path) = self.evaluated.take() else { return false };
        self.cover.replace(leaf, &path.siblings);
        true
    }
}

/// Exceeds the stack use of [`Segment::descend`], [`Segment::split`] and the functions that they
/// call, in units of 16 bytes.
const WIPED_STACK_UNITS: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    const ID: SegmentId = SegmentId { epoch: [0; 8], segment: 0 };

    #[test]
    fn puncturing_leaves_the_siblings_and_no_seed_of_the_path() {
        let mut segment = Segment::new(ID);
        let values: Vec<_> = (0..LEAVES).step_by(1111).map(|leaf| segment.issue(leaf)).collect();
        let path: Vec<_> = {
            let (mut node, mut seed) = segment.cover.find(4444).unwrap();
            let mut path = vec![seed.clone()];
            while !node.is_leaf() {
                let ((left, right), (left_seed, right_seed)) =
                    (node.children(), seed.children(node, ID));
                (node, seed) =
                    if left.covers(4444) { (left, left_seed) } else { (right, right_seed) };
                path.push(seed.clone());
            }
            path
        };
        assert!(segment.puncture(4444) && !segment.puncture(4444));
        assert_eq!(segment.len(), LEVELS);
        assert!(
            segment.nodes().all(|(_, seed)| path.iter().all(|removed| removed.to_bytes() != *seed))
        );
        for (leaf, value) in (0..LEAVES).step_by(1111).zip(values) {
            assert_eq!(segment.evaluate(leaf), value.filter(|_| leaf != 4444));
        }
    }

    #[test]
    fn issued_values_are_those_that_follow_from_the_root() {
        let mut issuing = Segment::new(ID);
        let root = issuing.cover.find(0).unwrap();
        let mut whole = Segment::from_nodes(ID, [root].into_iter(), (0, true)).unwrap();
        // Leaves are left out where an epoch was restored.
        for leaf in (0..300).chain(500..700).chain([4096, 8191, LEAVES - 2, LEAVES - 1]) {
            let value = issuing.issue(leaf).unwrap();
            assert_eq!(Some(&value), whole.evaluate(leaf).as_ref(), "{leaf}");
            assert!(issuing.unissued.iter().all(|(node, _)| node.leaves().0 > leaf));
            assert!(issuing.puncture(leaf) && issuing.evaluate(leaf).is_none());
        }
        assert_eq!(issuing.unissued.capacity(), 0);
    }

    #[test]
    fn the_path_to_a_leaf_is_forgotten_when_another_one_is_punctured() {
        let mut segment = Segment::new(ID);
        for leaf in 0..8 {
            segment.issue(leaf).unwrap();
        }
        // The path to leaf 0 has the node above leaves 2 and 3.
        assert!(
            segment.evaluate(0).is_some() && segment.puncture(2) && segment.evaluated.is_none()
        );
        assert!(segment.puncture(0) && segment.evaluate(2).is_none());
        // Another puncture does not find it either.
        assert!(!segment.puncture(2) && segment.evaluated.is_none());
        assert!([1, 3, 4].into_iter().all(|leaf| segment.evaluate(leaf).is_some()));
    }

    #[test]
    fn a_used_up_segment_is_empty() {
        let mut segment = Segment::new(ID);
        for leaf in 0..100 {
            segment.issue(leaf).unwrap();
        }
        segment.close(100);
        assert_eq!(segment.outstanding(), 100);
        assert!((100..LEAVES).all(|leaf| segment.evaluate(leaf).is_none()));
        for leaf in (0..100).rev() {
            assert!(!segment.is_empty() && segment.puncture(leaf));
        }
        assert!(segment.is_empty());
        assert_eq!((segment.outstanding(), segment.bytes()), (0, 0));
    }
}
