//! Cells: the effects of a network on packets, without I/O.
//!
//! A cell takes a packet with its logical time, and passes it on with a later time, alters it or
//! drops it. It has no clock: the logical time is computed only from the packet's arrival at the
//! link, so delays caused by this machine do not affect cells.

mod delay;
mod distribution;
mod duplicate;
mod loss;
mod middlebox;
mod mtu;
mod rate;
mod reconfiguration;
mod spec;

use std::fmt;
use std::time::Duration;

pub use delay::{DelaySpec, JitterSpec, ReorderSpec};
pub use distribution::Distribution;
pub use duplicate::DuplicateSpec;
pub use loss::{BurstyLossSpec, LossSpec};
pub use middlebox::Middlebox;
pub use mtu::{MtuSpec, TooBig};
pub use rate::RateSpec;
pub use reconfiguration::ReconfigurationSpec;

spec::cells! {
    Delay(DelaySpec),
    Jitter(JitterSpec),
    Rate(RateSpec),
    Loss(LossSpec),
    BurstyLoss(BurstyLossSpec),
    Reorder(ReorderSpec),
    Duplicate(DuplicateSpec),
    Mtu(MtuSpec),
    Reconfiguration(ReconfigurationSpec),
    Middlebox(Middlebox),
}

/// The settings of one kind of cell.
pub(crate) trait CellSettings: fmt::Display {
    /// The name in counters and in the tap.
    fn name(&self) -> &'static str;

    /// Why the settings are invalid, as a clause.
    fn fault(&self) -> Option<String>;

    fn build(&self, seeds: Seeds) -> Box<dyn Cell>;

    /// Describes the cell for reports.
    fn describe(&self) -> String {
        self.to_string()
    }

    /// The delay that it adds without jitter, queues or reordering.
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

/// The random seeds of a cell.
#[derive(Clone, Copy)]
pub(crate) struct Seeds {
    /// The seed of this cell.
    pub(crate) cell: u64,
    /// The seed that both directions of a path share.
    pub(crate) path: u64,
}

/// A packet inside a cell.
pub(crate) struct PacketInCell<'a> {
    /// Its logical time in nanoseconds of the caller's clock; a delaying cell advances it.
    pub(crate) at_ns: u64,
    /// The Ethernet frame.
    pub(crate) frame: &'a [u8],
}

impl PacketInCell<'_> {
    /// The bytes that count towards a rate: the IP packet, without the Ethernet header.
    fn length(&self) -> u64 {
        self.frame.len().saturating_sub(ETHERNET_HEADER) as u64
    }
}

/// What a cell does with a packet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CellDecision {
    /// Passes it on.
    Pass,
    /// Passes on this frame instead.
    Alter(Vec<u8>),
    /// Passes it on twice.
    Duplicate,
    /// Drops it silently.
    Drop,
    /// Drops it, and returns this frame to the sender.
    Refuse(Vec<u8>),
}

/// A cell of one direction of one path.
pub(crate) trait Cell: fmt::Debug + Send {
    /// Processes the next packet, in the order of logical times.
    fn pass(&mut self, packet: &mut PacketInCell<'_>) -> CellDecision;

    /// Whether packets leave in the order in which they arrive.
    fn keeps_order(&self) -> bool {
        true
    }
}

/// Derives a seed for a part (SplitMix64, Steele et al., "Fast splittable pseudorandom number
/// generators", 2014).
pub(crate) fn mix(seed: u64, part: u64) -> u64 {
    let mut state = seed ^ part.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// Changes a delay in nanoseconds by some milliseconds, but not below zero.
fn shift_delay(delay_ns: u64, by_ms: f64) -> u64 {
    // Casts to integers saturate, so no drawn value can overflow.
    (delay_ns as f64 + by_ms * 1e6).max(0.0).round() as u64
}

/// A probability in percent, rounded to remove floating-point noise.
fn percent(probability: f64) -> f64 {
    (probability * 1e8).round() / 1e6
}

fn delay_fault(delay: Duration) -> Option<String> {
    (delay > MAX_DELAY).then(|| format!("a delay is at most {MAX_DELAY:?} each way, not {delay:?}"))
}

fn probability_fault(probabilities: &[f64]) -> Option<String> {
    let invalid = probabilities.iter().find(|probability| !(0.0..=1.0).contains(*probability))?;
    Some(format!("a probability is 0 to 1 (0 to 100 %), not {invalid}"))
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

const MAX_DELAY: Duration = Duration::from_secs(60);

/// Limits the bytes in transit over all paths: 200 ms at 2.6 Gbit/s, more than the link forwards.
pub(crate) const MAX_IN_TRANSIT_BYTES: usize = 64 << 20;

/// Length of an Ethernet II header.
pub(crate) const ETHERNET_HEADER: usize = 14;

#[cfg(test)]
mod testing {
    //! Runs packets through one cell.

    use super::*;

    /// When a packet of this IP length leaves, if it does.
    pub(super) fn pass(cell: &mut dyn Cell, at_ns: u64, length: usize) -> Option<u64> {
        let frame = vec![0; ETHERNET_HEADER + length];
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
    fn a_delay_changes_in_both_directions_but_not_below_zero() {
        assert_eq!(shift_delay(5_000_000, 1.5), 6_500_000);
        assert_eq!(shift_delay(5_000_000, -1.5), 3_500_000);
        assert_eq!(shift_delay(5_000_000, -6.0), 0);
        assert_eq!(shift_delay(0, f64::INFINITY), u64::MAX);
    }
}
