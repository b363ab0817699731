//! The remaining seeds of a tree, in the order of their nodes.

use zeroize::{DefaultIsZeroes, Zeroize};

use crate::node::Node;
use crate::seed::Seed;

/// Nodes with their seeds, none below another, sorted.
///
/// Stored in chunks of some dozens, 18 bytes each, so that inserting moves little memory and no node
/// needs a pointer. Memory that is freed or moved from is overwritten.
#[derive(Debug, Default)]
pub(crate) struct Cover {
    /// In order, none empty.
    chunks: Vec<Chunk>,
    /// The bytes of the chunks on the heap.
    chunk_bytes: usize,
}

impl Cover {
    /// The node above `leaf`, or the leaf itself, and its seed.
    pub(crate) fn find(&self, leaf: u32) -> Option<(Node, Seed)> {
        let (chunk, at) = self.position(leaf)?;
        let entry = &self.chunks[chunk].nodes()[at];
        Some((entry.node(), Seed::new(&entry.seed)))
    }

    /// Replaces the node above `leaf` by `nodes`, which have to lie below it, in order.
    pub(crate) fn replace(&mut self, leaf: u32, nodes: &[(Node, Seed)]) {
        let Some((chunk, at)) = self.position(leaf) else { return };
        self.change(chunk, |chunk| chunk.replace(at, 1, nodes));
        self.balance(chunk);
    }

    /// Adds a node after all others.
    pub(crate) fn push(&mut self, node: Node, seed: Seed) {
        if self.chunks.last().is_none_or(|chunk| chunk.len() >= MAX_ENTRIES) {
            self.chunks.push(Chunk::default());
        }
        let last = self.chunks.len() - 1;
        self.change(last, |chunk| chunk.replace(chunk.len(), 0, &[(node, seed)]));
    }

    /// Removes all nodes whose first leaf is `leaf` or a later one.
    pub(crate) fn truncate(&mut self, leaf: u32) {
        let is_kept = |entry: &Entry| entry.node().leaves().0 < leaf;
        for at in (0..self.chunks.len()).rev() {
            let kept = self.chunks[at].nodes().partition_point(is_kept);
            self.change(at, |chunk| chunk.replace(kept, chunk.len() - kept, &[]));
            self.balance(at);
            if kept > 0 {
                return;
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// The number of nodes.
    pub(crate) fn len(&self) -> usize {
        self.chunks.iter().map(Chunk::len).sum()
    }

    /// All nodes with their seeds, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Node, &[u8; Seed::LENGTH])> {
        let entries = self.chunks.iter().flat_map(Chunk::nodes);
        entries.map(|entry| (entry.node(), &entry.seed))
    }

    /// The bytes on the heap.
    pub(crate) fn bytes(&self) -> usize {
        self.chunk_bytes + self.chunks.capacity() * size_of::<Chunk>()
    }

    /// The chunk of the node above `leaf`, and the node's index in it.
    fn position(&self, leaf: u32) -> Option<(usize, usize)> {
        let following = self.chunks.partition_point(|chunk| chunk.first_leaf <= leaf);
        let chunk = following.checked_sub(1)?;
        let nodes = self.chunks[chunk].nodes();
        // Not a binary search: it would wait for memory at each step, here the reads overlap.
        let target = Node::leaf(leaf);
        let after = nodes.iter().filter(|entry| entry.node() <= target).count();
        // The subtree above a leaf reaches to both sides of its root.
        let covers = |at: &usize| nodes.get(*at).is_some_and(|entry| entry.node().covers(leaf));
        let at = after.checked_sub(1).filter(covers).or(Some(after).filter(covers))?;
        Some((chunk, at))
    }

    /// Changes a chunk, and updates `chunk_bytes`.
    fn change(&mut self, at: usize, change: impl FnOnce(&mut Chunk)) {
        let chunk = &mut self.chunks[at];
        self.chunk_bytes -= chunk.bytes();
        change(chunk);
        self.chunk_bytes += chunk.bytes();
    }

    /// Splits a chunk that has become too long, and removes or joins one that has become too short.
    fn balance(&mut self, at: usize) {
        match self.chunks[at].len() {
            0 => {
                self.chunk_bytes -= self.chunks[at].bytes();
                self.chunks.remove(at);
                if self.chunks.is_empty() {
                    self.chunks = Vec::new();
                }
            }
            count if count > MAX_ENTRIES => {
                let half = count / 2;
                let mut tail = Chunk::default();
                tail.append(&self.chunks[at].nodes()[half..]);
                self.change(at, |chunk| chunk.replace(half, count - half, &[]));
                self.chunk_bytes += tail.bytes();
                self.chunks.insert(at + 1, tail);
            }
            count if count < MIN_ENTRIES => {
                let joined = |at: usize| {
                    let next = self.chunks.get(at + 1)?;
                    (self.chunks[at].len() + next.len() <= MAX_JOINED).then_some(at)
                };
                if let Some(at) = joined(at).or_else(|| at.checked_sub(1).and_then(joined)) {
                    let next = self.chunks.remove(at + 1);
                    self.chunk_bytes -= next.bytes();
                    self.change(at, |chunk| chunk.append(next.nodes()));
                }
            }
            _ => {}
        }
    }
}

/// Some nodes, in order.
#[derive(Default)]
struct Chunk {
    /// The first `used` ones are in use, the others are zero.
    entries: Box<[Entry]>,
    used: u16,
    /// The first leaf of the first node. Stored here, so that a search touches no other memory.
    first_leaf: u32,
}

/// A node's number and its seed. `Copy`, so that they can be moved within a chunk; what a move leaves
/// behind is overwritten.
#[derive(Clone, Copy, Default)]
struct Entry {
    number: [u8; 2],
    seed: [u8; Seed::LENGTH],
}

impl Chunk {
    fn len(&self) -> usize {
        usize::from(self.used)
    }

    fn nodes(&self) -> &[Entry] {
        &self.entries[..self.len()]
    }

    fn bytes(&self) -> usize {
        match self.entries.len() {
            0 => 0,
            count => count * size_of::<Entry>() + ALLOCATION_OVERHEAD,
        }
    }

    /// Replaces `count` entries from `at` on.
    fn replace(&mut self, at: usize, count: usize, nodes: &[(Node, Seed)]) {
        let before = self.len();
        let after = before - count + nodes.len();
        self.resize(after.max(before));
        self.entries.copy_within(at + count..before, at + nodes.len());
        for (entry, (node, seed)) in self.entries[at..].iter_mut().zip(nodes) {
            *entry = Entry { number: node.number().to_ne_bytes(), seed: seed.to_bytes() };
        }
        self.used = after as u16;
        self.update_first_leaf();
        // The entries after these were not used before.
        self.entries[after..after.max(before)].zeroize();
        self.resize(after);
    }

    fn append(&mut self, nodes: &[Entry]) {
        let before = self.len();
        self.resize(before + nodes.len());
        self.entries[before..before + nodes.len()].copy_from_slice(nodes);
        self.used += nodes.len() as u16;
        self.update_first_leaf();
    }

    fn update_first_leaf(&mut self) {
        self.first_leaf = self.nodes().first().map_or(0, |entry| entry.node().leaves().0);
    }

    /// Makes room for `count` entries, and not for many more.
    fn resize(&mut self, count: usize) {
        let room = self.entries.len();
        if count <= room && room < count + 2 * STEP {
            return;
        }
        let mut entries = vec![Entry::default(); count.next_multiple_of(STEP)].into_boxed_slice();
        entries[..self.len()].copy_from_slice(self.nodes());
        self.entries.zeroize();
        self.entries = entries;
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.entries.zeroize();
    }
}

impl std::fmt::Debug for Chunk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chunk").field("used", &self.used).finish_non_exhaustive()
    }
}

impl Entry {
    fn node(&self) -> Node {
        Node::from_stored(u16::from_ne_bytes(self.number))
    }
}

/// A whole entry is overwritten at once, not byte by byte.
impl DefaultIsZeroes for Entry {}

/// A chunk is split above `MAX_ENTRIES`, and joined with a neighbour below `MIN_ENTRIES`.
const MAX_ENTRIES: usize = 128;
const MIN_ENTRIES: usize = 32;

/// Two chunks are joined only if the result has at most this length.
const MAX_JOINED: usize = 96;

/// The capacity of chunks grows and shrinks by this number of entries.
const STEP: usize = 8;

/// What glibc's allocator adds to an allocation, and rounds it up by.
const ALLOCATION_OVERHEAD: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(number: u32) -> (Node, Seed) {
        (Node::from_number(2 * number as u16).unwrap(), Seed::new(&[number as u8 | 1; 16]))
    }

    #[test]
    fn nodes_stay_in_order_while_chunks_are_split_and_joined() {
        let mut cover = Cover::default();
        (0..1000).map(leaf).for_each(|(node, seed)| cover.push(node, seed));
        for used in (0..1000).filter(|number| number % 50 != 7) {
            cover.replace(used, &[]);
            assert!(cover.find(used).is_none());
        }
        assert_eq!(cover.len(), 20);
        assert_eq!(cover.chunks.len(), 1);
        assert_eq!(cover.chunk_bytes, cover.chunks[0].bytes());
        for left in (0..1000).filter(|number| number % 50 == 7) {
            assert_eq!(cover.find(left).unwrap(), self::leaf(left));
        }
        cover.truncate(507);
        assert_eq!(cover.len(), 10);
        cover.truncate(0);
        assert!(cover.is_empty());
        assert_eq!(cover.bytes(), 0);
    }

    #[test]
    fn a_chunk_that_becomes_too_long_is_split() {
        let mut cover = Cover::default();
        for number in (0..400).step_by(4) {
            let (node, seed) = leaf(number);
            cover.push(node, seed);
        }
        // Unlike in a tree, a leaf is replaced by itself and the next two leaves.
        for number in (0..400).step_by(4) {
            cover.replace(number, &[leaf(number), leaf(number + 1), leaf(number + 2)]);
        }
        assert!(cover.chunks.len() > 2);
        assert!(cover.chunks.iter().all(|chunk| chunk.len() <= MAX_ENTRIES));
        for number in 0..400 {
            assert_eq!(cover.find(number), (number % 4 != 3).then(|| leaf(number)));
        }
    }

    /// Moving entries within a chunk must leave no copy of a removed seed.
    #[test]
    fn unused_room_of_a_chunk_is_zero() {
        let mut chunk = Chunk::default();
        let nodes: Vec<_> = (0..20).map(leaf).collect();
        chunk.replace(0, 0, &nodes);
        chunk.replace(3, 1, &[]);
        chunk.replace(5, 4, &nodes[..1]);
        assert_eq!(chunk.len(), 16);
        for unused in &chunk.entries[chunk.len()..] {
            assert_eq!((unused.seed, unused.number), ([0; 16], [0; 2]));
        }
    }
}
