//! The secret of a node, and the pseudorandom generator.

use std::fmt;

use aes::Aes128;
use aes::cipher::{BlockCipherEncrypt, KeyInit};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::node::Node;

/// The secret of a node: an AES-128 key. Overwritten on drop, and not shown by `Debug`.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub(crate) struct Seed([u8; Seed::LENGTH]);

/// Where a tree stands: the epoch's id and the number of the segment. It makes the generator's blocks
/// of each node unique.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
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
        let mut seed = Self([0; Self::LENGTH]);
        getrandom::fill(&mut seed.0).expect("the system gives random bytes");
        seed
    }

    pub(crate) fn new(bytes: &[u8; Self::LENGTH]) -> Self {
        Self(*bytes)
    }

    pub(crate) fn as_bytes(&self) -> &[u8; Self::LENGTH] {
        &self.0
    }

    /// The seeds of the children of `node`, whose seed this is.
    pub(crate) fn children(&self, node: Node, place: Place) -> (Self, Self) {
        let mut children = (Self([0; Self::LENGTH]), Self([0; Self::LENGTH]));
        self.generate(node, place, [LEFT, RIGHT], [&mut children.0.0, &mut children.1.0]);
        children
    }

    /// The value of `leaf`, whose seed this is.
    pub(crate) fn value(&self, leaf: Node, place: Place) -> Value {
        let mut value = Value::default();
        if let ([first, second], []) = value.as_chunks_mut() {
            self.generate(leaf, place, [VALUE_START, VALUE_END], [first, second]);
        }
        value
    }

    /// Two outputs of the generator: AES under the seed, of blocks that name the output.
    fn generate(
        &self,
        node: Node,
        place: Place,
        outputs: [u8; 2],
        blocks: [&mut [u8; Self::LENGTH]; 2],
    ) {
        let cipher = Aes128::new((&self.0).into());
        for (output, block) in outputs.into_iter().zip(blocks) {
            block[..8].copy_from_slice(&place.epoch);
            block[8..12].copy_from_slice(&place.segment.to_be_bytes());
            block[12..14].copy_from_slice(&node.number().to_be_bytes());
            block[14..].copy_from_slice(&[0, output]);
            cipher.encrypt_block(block.into());
        }
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
        let place = Place { epoch: [1, 2, 3, 4, 5, 6, 7, 8], segment: 9 };
        let (left, right) = seed.children(Node::ROOT, place);
        let cipher = Aes128::new(&[7; 16].into());
        for (child, output) in [(left, LEFT), (right, RIGHT)] {
            let mut block = [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 9, 0x7f, 0xff, 0, output].into();
            cipher.encrypt_block(&mut block);
            assert_eq!(child.as_bytes()[..], block[..]);
        }
    }

    #[test]
    fn outputs_differ_by_position_and_use() {
        let seed = Seed::new(&[7; 16]);
        let place = |epoch, segment| Place { epoch: [epoch; 8], segment };
        let leaf = Node::from_number(4).unwrap();
        let values = [
            seed.value(leaf, place(1, 1)),
            seed.value(leaf, place(1, 2)),
            seed.value(leaf, place(2, 1)),
            seed.value(Node::from_number(6).unwrap(), place(1, 1)),
        ];
        for (at, value) in values.iter().enumerate() {
            assert!(values[..at].iter().all(|other| other != value));
            assert_ne!(value[..16], value[16..]);
        }
    }
}
