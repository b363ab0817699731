//! The order of samples.

use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

/// One sample to take: a cell and its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The cell, by its place in the plan.
    pub cell: usize,
    /// In each block every cell of a path comes once.
    pub block: usize,
}

/// Fewer samples have no interval.
pub const MIN_FOR_CONTROL: usize = 6;

/// Blocks in which each of these cells comes once, as long as it has samples, each block in an
/// order of its own.
pub fn blocks(cells: &[usize], samples: &dyn Fn(usize) -> usize, seed: u64) -> Vec<Slot> {
    let mut rng = StdRng::seed_from_u64(seed);
    let most = cells.iter().map(|cell| samples(*cell)).max().unwrap_or(0);
    let mut order = Vec::new();
    for block in 0..most {
        let present = cells.iter().filter(|cell| samples(**cell) > block);
        let mut slots: Vec<Slot> = present.map(|&cell| Slot { cell, block }).collect();
        slots.shuffle(&mut rng);
        order.append(&mut slots);
    }
    order
}
