//! Cells: what a network does to a packet, one file for each (sans-IO).
//!
//! A cell takes a packet with its logical time and hands it on with a later one, changes it, or
//! drops it. It has no clock: the logical time is computed from the packet's arrival at the link
//! alone, so what the machine adds when it is late reaches no cell.

mod bursty_loss;
mod delay;
mod distribution;
mod jitter;
mod loss;
mod middlebox;
mod mtu;
mod rate;
mod reconfiguration;
mod reorder;
mod spec;

use std::fmt;

pub use distribution::Distribution;
pub use middlebox::Middlebox;
pub use mtu::TooBig;
pub use spec::CellSpec;

/// A packet inside a cell.
pub(crate) struct Passage<'a> {
    /// When it is here, in nanoseconds of the caller's clock; a cell that delays moves it on.
    pub(crate) at_ns: u64,
    /// The Ethernet frame.
    pub(crate) frame: &'a [u8],
}

impl Passage<'_> {
    /// Bytes that a rate is counted in: the IP packet, without the Ethernet header.
    fn length(&self) -> u64 {
        self.frame.len().saturating_sub(ETHERNET) as u64
    }
}

/// What a cell did with a packet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Handed on.
    Pass,
    /// Handed on as this frame.
    Alter(Vec<u8>),
    /// Dropped without a word.
    Drop,
    /// Dropped, and this frame goes back to the sender.
    Refuse(Vec<u8>),
}

/// One cell of one direction of one path.
pub(crate) trait Cell: fmt::Debug + Send {
    /// Takes the next packet, in the order of logical times.
    fn pass(&mut self, packet: &mut Passage<'_>) -> Verdict;

    /// Whether packets leave in the order in which they came.
    fn keeps_order(&self) -> bool {
        true
    }
}

/// The parts of a number that make the randomness of a cell its own (SplitMix64, Steele et al.,
/// "Fast splittable pseudorandom number generators", 2014).
pub(crate) fn mix(seed: u64, part: u64) -> u64 {
    let mut state = seed ^ part.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// A delay in nanoseconds moved by some milliseconds, never below zero.
fn moved(delay_ns: u64, by_ms: f64) -> u64 {
    // Casts to integers saturate, so nothing that a distribution draws can overflow.
    (delay_ns as f64 + by_ms * 1e6).max(0.0).round() as u64
}

/// Length of an Ethernet II header.
pub(crate) const ETHERNET: usize = 14;

#[cfg(test)]
mod trial {
    //! Runs packets through one cell.

    use super::*;

    /// When a packet of so many bytes (IP) leaves, if it does.
    pub(super) fn pass(cell: &mut dyn Cell, at_ns: u64, length: usize) -> Option<u64> {
        let frame = vec![0; ETHERNET + length];
        let mut packet = Passage { at_ns, frame: &frame };
        (cell.pass(&mut packet) == Verdict::Pass).then_some(packet.at_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_seed_differ() {
        let all: std::collections::BTreeSet<u64> =
            (0..100).flat_map(|seed| (0..100).map(move |part| mix(seed, part))).collect();
        assert_eq!(all.len(), 10_000);
    }

    #[test]
    fn a_delay_is_moved_both_ways_but_not_below_zero() {
        assert_eq!(moved(5_000_000, 1.5), 6_500_000);
        assert_eq!(moved(5_000_000, -1.5), 3_500_000);
        assert_eq!(moved(5_000_000, -6.0), 0);
        assert_eq!(moved(0, f64::INFINITY), u64::MAX);
    }
}
