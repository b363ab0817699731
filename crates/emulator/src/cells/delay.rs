//! A fixed delay.

use super::{Cell, Passage, Verdict};

/// Adds the same delay to each packet.
#[derive(Debug)]
pub(super) struct Delay {
    pub(super) delay_ns: u64,
}

impl Cell for Delay {
    fn pass(&mut self, packet: &mut Passage<'_>) -> Verdict {
        packet.at_ns = packet.at_ns.saturating_add(self.delay_ns);
        Verdict::Pass
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
