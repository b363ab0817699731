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
use std::time::Duration;

pub use bursty_loss::BurstyLossSpec;
pub use delay::DelaySpec;
pub use distribution::Distribution;
pub use jitter::JitterSpec;
pub use loss::LossSpec;
pub use middlebox::Middlebox;
pub use mtu::{MtuSpec, TooBig};
pub use rate::RateSpec;
pub use reconfiguration::ReconfigurationSpec;
pub use reorder::ReorderSpec;
pub use spec::CellSpec;

/// What a profile asks of one kind of cell.
pub(crate) trait CellSettings: fmt::Display {
    /// Its name in counters and in the tap.
    fn name(&self) -> &'static str;

    /// Why it cannot be built, as a clause.
    fn fault(&self) -> Option<String>;

    fn build(&self, seeds: Seeds) -> Box<dyn Cell>;

    /// The cell in words, for reports.
    fn words(&self) -> String {
        self.to_string()
    }

    /// The delay that it adds without jitter, queue or reordering.
    fn base_delay(&self) -> Duration {
        Duration::ZERO
    }

    /// See [`CellSpec::varies_delay`].
    fn varies_delay(&self) -> bool {
        false
    }

    /// See [`CellSpec::may_drop`].
    fn may_drop(&self) -> bool {
        true
    }
}

/// Where the randomness of a cell comes from.
#[derive(Clone, Copy)]
pub(crate) struct Seeds {
    /// This cell's own.
    pub(crate) cell: u64,
    /// The same for both directions of its path.
    pub(crate) path: u64,
}

/// A packet inside a cell.
pub(crate) struct PacketInCell<'a> {
    /// When it is here, in nanoseconds of the caller's clock; a cell that delays moves it on.
    pub(crate) at_ns: u64,
    /// The Ethernet frame.
    pub(crate) frame: &'a [u8],
}

impl PacketInCell<'_> {
    /// Bytes that a rate is counted in: the IP packet, without the Ethernet header.
    fn length(&self) -> u64 {
        self.frame.len().saturating_sub(ETHERNET) as u64
    }
}

/// What a cell did with a packet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CellDecision {
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
    fn pass(&mut self, packet: &mut PacketInCell<'_>) -> CellDecision;

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

/// A probability in per cent, without the noise of floating point.
fn percent(probability: f64) -> f64 {
    (probability * 1e8).round() / 1e6
}

fn delay_fault(delay: Duration) -> Option<String> {
    (delay > MAX_DELAY).then(|| format!("a delay is at most {MAX_DELAY:?} each way, not {delay:?}"))
}

fn probability_fault(probabilities: &[f64]) -> Option<String> {
    let wrong = probabilities.iter().find(|probability| !(0.0..=1.0).contains(*probability))?;
    Some(format!("a probability is 0 to 1 (0 to 100 %), not {wrong}"))
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

const MAX_DELAY: Duration = Duration::from_secs(60);

/// Length of an Ethernet II header.
pub(crate) const ETHERNET: usize = 14;

#[cfg(test)]
mod trial {
    //! Runs packets through one cell.

    use super::*;

    /// When a packet of so many bytes (IP) leaves, if it does.
    pub(super) fn pass(cell: &mut dyn Cell, at_ns: u64, length: usize) -> Option<u64> {
        let frame = vec![0; ETHERNET + length];
        let mut packet = PacketInCell { at_ns, frame: &frame };
        (cell.pass(&mut packet) == CellDecision::Pass).then_some(packet.at_ns)
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
