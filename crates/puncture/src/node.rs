//! The positions of nodes in a tree of 32,768 leaves.

/// A node's position, by in-order numbering: the nodes of each subtree have consecutive numbers, its
/// root in the middle. Leaves have even numbers, and the number of trailing ones is the level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Node(u16);

impl Node {
    /// The root.
    pub(crate) const ROOT: Self = Self(LEAVES as u16 - 1);

    /// The node with this number, or `None` if there is none.
    pub(crate) fn from_number(number: u16) -> Option<Self> {
        (number < u16::MAX).then_some(Self(number))
    }

    /// The node with this number, which came from [`Node::number`].
    pub(crate) fn from_stored(number: u16) -> Self {
        Self(number)
    }

    /// The node that is this leaf.
    pub(crate) fn leaf(leaf: u32) -> Self {
        Self(2 * leaf as u16)
    }

    pub(crate) fn number(self) -> u16 {
        self.0
    }

    pub(crate) fn is_leaf(self) -> bool {
        self.0 & 1 == 0
    }

    /// The first and the last leaf below the node, which are the node itself if it is a leaf.
    pub(crate) fn leaves(self) -> (u32, u32) {
        let (number, half) = (u32::from(self.0), self.reach());
        ((number - half) / 2, (number + half) / 2)
    }

    pub(crate) fn covers(self, leaf: u32) -> bool {
        let (first, last) = self.leaves();
        (first..=last).contains(&leaf)
    }

    /// The children. The node must not be a leaf.
    pub(crate) fn children(self) -> (Self, Self) {
        let step = self.reach().div_ceil(2) as u16;
        (Self(self.0 - step), Self(self.0 + step))
    }

    /// How far the numbers of the subtree reach to either side.
    fn reach(self) -> u32 {
        (1 << self.0.trailing_ones()) - 1
    }
}

/// The number of leaves of a tree.
pub(crate) const LEAVES: u32 = 1 << LEVELS;

/// The number of steps from the root to a leaf.
pub(crate) const LEVELS: usize = 15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_from_the_root_ends_at_its_leaf() {
        for leaf in (0..LEAVES).step_by(7).chain([LEAVES - 1]) {
            let (mut node, mut steps) = (Node::ROOT, 0);
            while !node.is_leaf() {
                assert!(node.covers(leaf));
                let (left, right) = node.children();
                assert_eq!(left.leaves().1 + 1, right.leaves().0);
                assert_eq!((left.leaves().0, right.leaves().1), node.leaves());
                node = if left.covers(leaf) { left } else { right };
                steps += 1;
            }
            assert_eq!((node.leaves(), steps), ((leaf, leaf), LEVELS));
        }
        assert_eq!(Node::ROOT.leaves(), (0, LEAVES - 1));
        assert_eq!(Node::from_number(u16::MAX), None);
    }
}
