//! The secret of a node, and the pseudorandom generator.

use std::fmt;
use std::mem::ManuallyDrop;

use aes::Aes128Enc;
use aes::cipher::{BlockCipherEncrypt, KeyInit};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::node::Node;

/// The secret of a node: an AES-128 key. Overwritten on drop, and not shown by `Debug`.
///
/// Stored as words, because zeroize overwrites bytes one by one.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub(crate) struct Seed([u64; 2]);

/// Identifies a segment: the epoch's id and the segment's number. It is part of the generator's
/// blocks, so that those of each node are unique.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SegmentId {
    pub(crate) epoch: [u8; 8],
    pub(crate) segment: u32,
}

/// The secret value of an index. Overwritten on drop.
pub type Value = Zeroizing<[u8; 32]>;

impl Seed {
    pub(crate) const LENGTH: usize = 16;

    /// A new random seed.
    ///
    /// # Panics
    /// Panics if the system has no randomness.
    pub(crate) fn random() -> Self {
        let mut bytes = Zeroizing::new([0; Self::LENGTH]);
        getrandom::fill(&mut *bytes).expect("the system gives random bytes");
        Self::new(&bytes)
    }

    pub(crate) fn new(bytes: &[u8; Self::LENGTH]) -> Self {
        let words = u128::from_ne_bytes(*bytes);
        Self([(words >> 64) as u64, words as u64])
    }

    pub(crate) fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let [high, low] = self.0.map(u128::from);
        (high << 64 | low).to_ne_bytes()
    }

    /// The seeds of the children of `node`, whose seed this is.
    pub(crate) fn children(&self, node: Node, id: SegmentId) -> (Self, Self) {
        let [left, right] = self.generate(node, id, [LEFT, RIGHT]);
        (Self::new(&left), Self::new(&right))
    }

    /// The value of `leaf`, whose seed this is.
    pub(crate) fn value(&self, leaf: Node, id: SegmentId) -> Value {
        let [start, end] = self.generate(leaf, id, [VALUE_START, VALUE_END]);
        let mut value = Value::default();
        value[..Self::LENGTH].copy_from_slice(&start);
        value[Self::LENGTH..].copy_from_slice(&end);
        value
    }

    /// Two outputs of the generator: AES under the seed, of blocks that name the output. The round keys
    /// stay on the stack, which the segment wipes: wiping them on drop would take longer than the rest.
    fn generate(&self, node: Node, id: SegmentId, outputs: [u8; 2]) -> [[u8; Self::LENGTH]; 2] {
        let cipher = ManuallyDrop::new(Aes128Enc::new(&self.to_bytes().into()));
        outputs.map(|output| {
            let mut block = [0; Self::LENGTH];
            block[..8].copy_from_slice(&id.epoch);
            block[8..12].copy_from_slice(&id.segment.to_be_bytes());
            block[12..14].copy_from_slice(&node.number().to_be_bytes());
            block[15] = output;
            cipher.encrypt_block((&mut block).into());
            block
        })
    }
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(..)")
    }
}

const LEFT: u8 = 0;
const RIGHT: u8 = 1;
const VALUE_START: u8 = 2;
const VALUE_END: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_aes_of_the_position() {
        let seed = Seed::new(&[7; 16]);
        let id = SegmentId { epoch: [1, 2, 3, 4, 5, 6, 7, 8], segment: 9 };
        let (left, right) = seed.children(Node::ROOT, id);
        let cipher = Aes128Enc::new(&[7; 16].into());
        for (child, output) in [(left, LEFT), (right, RIGHT)] {
            let mut block = [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 9, 0x7f, 0xff, 0, output].into();
            cipher.encrypt_block(&mut block);
            assert_eq!(child.to_bytes()[..], block[..]);
        }
    }

    #[test]
    fn outputs_differ_by_position_and_use() {
        let seed = Seed::new(&[7; 16]);
        let id = |epoch, segment| SegmentId { epoch: [epoch; 8], segment };
        let leaf = Node::from_number(4).unwrap();
        let values = [
            seed.value(leaf, id(1, 1)),
            seed.value(leaf, id(1, 2)),
            seed.value(leaf, id(2, 1)),
            seed.value(Node::from_number(6).unwrap(), id(1, 1)),
        ];
        for (at, value) in values.iter().enumerate() {
            assert!(values[..at].iter().all(|other| other != value));
            assert_ne!(value[..16], value[16..]);
        }
    }
}
