//! A bottleneck: a rate with a drop-tail queue limited in bytes.

use std::fmt;
use std::time::Duration;

use super::{Cell, CellDecision, CellSettings, MAX_IN_TRANSIT_BYTES, PacketInCell, Seeds};

/// A bottleneck with a drop-tail queue.
#[derive(Debug, Clone, PartialEq)]
pub struct RateSpec {
    /// The rate of IP packets in megabits (10^6 bits) per second. IP and TCP headers count,
    /// Ethernet headers do not.
    pub mbits: f64,
    /// The size of the queue in bytes, including the packet being sent. See
    /// [`RateSpec::default_queue_bytes`].
    pub queue_bytes: u64,
    /// How many bytes may pass at once after idle time.
    pub burst_bytes: u64,
}

impl RateSpec {
    /// The default size of the queue: what the bottleneck sends in a round trip of the path, or in
    /// 100 ms if that is more; but at least 30,000 bytes, which are two initial windows of 10
    /// segments (RFC 6928), and at most 64 MiB, which is all that the link keeps in transit.
    pub fn default_queue_bytes(mbits: f64, rtt: Duration) -> u64 {
        let seconds = rtt.max(Duration::from_millis(100)).as_secs_f64();
        // The cast saturates.
        ((mbits * 1e6 / 8.0 * seconds).round() as u64).clamp(30_000, MAX_QUEUE_BYTES)
    }
}

impl CellSettings for RateSpec {
    fn name(&self) -> &'static str {
        "rate"
    }

    fn fault(&self) -> Option<String> {
        let Self { mbits, queue_bytes, burst_bytes } = self;
        if !(MIN_MBITS..=MAX_MBITS).contains(mbits) {
            return Some(format!("a rate is {MIN_MBITS} to {MAX_MBITS} Mbit/s, not {mbits}"));
        }
        let bytes = queue_bytes.max(burst_bytes);
        (*bytes > MAX_QUEUE_BYTES).then(|| {
            format!(
                "a queue or burst is at most {MAX_QUEUE_BYTES} bytes, which all paths share, not \
                 {bytes}"
            )
        })
    }

    fn build(&self, _: Seeds) -> Box<dyn Cell> {
        Box::new(Rate::new(self.mbits * 1e6, self.queue_bytes, self.burst_bytes))
    }
}

impl fmt::Display for RateSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rate {} Mbit/s, queue {} bytes", self.mbits, self.queue_bytes)?;
        match self.burst_bytes {
            0 => Ok(()),
            burst => write!(f, ", burst {burst} bytes"),
        }
    }
}

const MIN_MBITS: f64 = 0.001;
/// More than the link forwards.
const MAX_MBITS: f64 = 100_000.0;
/// A longer queue would never be full.
const MAX_QUEUE_BYTES: u64 = MAX_IN_TRANSIT_BYTES as u64;

/// Sends packets one after the other at a rate. Packets that find the queue full are dropped.
#[derive(Debug)]
pub(super) struct Rate {
    bits_per_second: f64,
    queue_bytes: f64,
    /// The idle time that may be caught up, in picoseconds.
    burst_ps: u128,
    /// When the last accepted packet leaves, in picoseconds. Whole nanoseconds would be off by a
    /// percent for short packets at a gigabit.
    free_ps: u128,
}

impl Rate {
    pub(super) fn new(bits_per_second: f64, queue_bytes: u64, burst_bytes: u64) -> Self {
        let burst_ps = (burst_bytes as f64 * 8.0 * PS_PER_SECOND / bits_per_second) as u128;
        Self { bits_per_second, queue_bytes: queue_bytes as f64, burst_ps, free_ps: 0 }
    }

    fn time_ps(&self, bytes: u64) -> u128 {
        (bytes as f64 * 8.0 * PS_PER_SECOND / self.bits_per_second) as u128
    }
}

impl Cell for Rate {
    fn pass(&mut self, packet: &mut PacketInCell<'_>) -> CellDecision {
        let now_ps = u128::from(packet.at_ns) * PS_PER_NS;
        let waiting_ps = self.free_ps.saturating_sub(now_ps);
        let waiting_bytes = waiting_ps as f64 * self.bits_per_second / (8.0 * PS_PER_SECOND);
        // An idle line accepts any packet, however small the queue.
        if waiting_ps > 0 && waiting_bytes + packet.length() as f64 > self.queue_bytes {
            return CellDecision::Drop;
        }
        let start_ps = self.free_ps.max(now_ps.saturating_sub(self.burst_ps));
        self.free_ps = start_ps + self.time_ps(packet.length());
        let leaves_ns = self.free_ps.max(now_ps).div_ceil(PS_PER_NS);
        packet.at_ns = u64::try_from(leaves_ns).unwrap_or(u64::MAX);
        CellDecision::Pass
    }
}

const PS_PER_NS: u128 = 1_000;
const PS_PER_SECOND: f64 = 1e12;

#[cfg(test)]
mod tests {
    use super::super::testing::pass;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_idle_line_takes_the_time_of_the_packet() {
        let mut line = Rate::new(12e6, 100_000, 0);
        assert_eq!(pass(&mut line, 5_000_000, 1_500), Some(6_000_000));
        assert_eq!(pass(&mut line, 6_000_000, 1_500), Some(7_000_000), "idle again");
        assert_eq!(pass(&mut line, 6_000_000, 1_500), Some(8_000_000), "behind the other");
    }

    #[test]
    fn a_thousand_packets_keep_the_rate_exactly() {
        for mbits in [0.256, 10.0, 29.5, 100.0, 1_000.0] {
            let mut line = Rate::new(mbits * 1e6, 1 << 30, 0);
            let ends: Vec<_> = (0..1_000).filter_map(|_| pass(&mut line, 0, 1_500)).collect();
            let ideal = 1_000.0 * 1_500.0 * 8.0 / mbits * 1e3;
            let last = ends[999] as f64;
            assert!((last - ideal).abs() < 2.0, "{mbits}: {last} instead of {ideal}");
        }
    }

    #[test]
    fn a_full_queue_drops_the_newest_and_accepts_again_as_it_drains() {
        let mut line = Rate::new(12e6, 4_500, 0);
        let accepted: Vec<_> = (0..5).map(|_| pass(&mut line, 0, 1_500).is_some()).collect();
        assert_eq!(accepted, [true, true, true, false, false]);
        assert!(pass(&mut line, 999_999, 1_500).is_none(), "the first is still being sent");
        assert_eq!(pass(&mut line, 1_000_000, 1_500), Some(4_000_000));
    }

    #[test]
    fn a_queue_smaller_than_a_packet_lets_one_packet_pass_at_a_time() {
        let mut line = Rate::new(12e6, 0, 0);
        assert_eq!(pass(&mut line, 0, 1_500), Some(1_000_000));
        assert_eq!(pass(&mut line, 1, 40), None);
        assert_eq!(pass(&mut line, 1_000_000, 1_500), Some(2_000_000));
    }

    #[test]
    fn a_burst_after_idle_time_is_limited() {
        let mut line = Rate::new(12e6, 1 << 20, 3_000);
        let at = 1_000_000_000;
        let times: Vec<_> =
            (0..4).filter_map(|_| pass(&mut line, at, 1_500)).map(|t| t - at).collect();
        assert_eq!(times, [0, 0, 1_000_000, 2_000_000]);
    }

    proptest! {
        /// No more bytes leave than the rate allows, no packet leaves before it arrives, and order
        /// is kept.
        #[test]
        fn never_faster_than_the_rate(
            mbits in 0.1..2_000.0f64,
            queue in 0u64..100_000,
            packets in proptest::collection::vec((0..3_000_000u64, 20..1_500usize), 1..200),
        ) {
            let mut line = Rate::new(mbits * 1e6, queue, 0);
            let (mut now, mut last) = (0, 0u64);
            for (step, length) in packets {
                now += step;
                if let Some(leaves) = pass(&mut line, now, length) {
                    let shortest = (length as f64 * 8e3 / mbits) as u64;
                    prop_assert!(leaves + 1 >= last.max(now) + shortest);
                    let waits = (leaves - now) as f64 * mbits / 8e3;
                    prop_assert!(waits <= (queue as f64).max(length as f64) + 1.0 + mbits / 8e3);
                    last = leaves;
                }
            }
        }
    }
}
