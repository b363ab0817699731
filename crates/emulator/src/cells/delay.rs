//! A fixed delay.

use std::fmt;
use std::time::Duration;

/// The same delay for each packet.
#[derive(Debug, Clone, PartialEq)]
pub struct DelaySpec {
    /// One way.
    pub delay: Duration,
}

impl CellSettings for DelaySpec {
    fn name(&self) -> &'static str {
        "delay"
    }

    fn fault(&self) -> Option<String> {
        delay_fault(self.delay)
    }

    fn base_delay(&self) -> Duration {
        self.delay
    }

    fn may_drop(&self) -> bool {
        false
    }

    fn build(&self, _: Seeds) -> Box<dyn Cell> {
        Box::new(Delay { delay_ns: nanoseconds(self.delay) })
    }
}

impl fmt::Display for DelaySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "delay {:?}", self.delay)
    }
}

use super::{Cell, CellDecision, CellSettings, PacketInCell, Seeds, delay_fault, nanoseconds};

/// Adds the same delay to each packet.
#[derive(Debug)]
pub(super) struct Delay {
    pub(super) delay_ns: u64,
}

impl Cell for Delay {
    fn pass(&mut self, packet: &mut PacketInCell<'_>) -> CellDecision {
        packet.at_ns = packet.at_ns.saturating_add(self.delay_ns);
        CellDecision::Pass
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::pass;
    use super::*;

    #[test]
    fn each_packet_gets_the_same_delay() {
        let mut cell = Delay { delay_ns: 7 };
        assert_eq!(pass(&mut cell, 10, 100), Some(17));
        assert_eq!(pass(&mut cell, 11, 1_500), Some(18));
        assert_eq!(pass(&mut cell, u64::MAX, 1), Some(u64::MAX));
    }
}
