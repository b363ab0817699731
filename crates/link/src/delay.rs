//! The delay cell: holds packets until their logical delivery time (sans-IO).
//!
//! Logical means: computed from the arrival alone. Whatever the machine adds when it delivers a
//! packet late is not handed on to the packets behind it, nor to a following cell.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A packet that left the cell.
#[derive(Debug, PartialEq, Eq)]
pub struct Departure<T> {
    /// The lane that it travelled on.
    pub lane: usize,
    /// When it was to be delivered, in nanoseconds of the caller's clock.
    pub due_ns: u64,
    /// The packet.
    pub item: T,
}

/// A fixed delay for each of several lanes, order kept within a lane.
///
/// It has no clock: every time is given by the caller, in nanoseconds of one clock.
#[derive(Debug)]
pub struct DelayCell<T> {
    lanes: Vec<Lane>,
    waiting: BinaryHeap<Reverse<Waiting<T>>>,
    sequence: u64,
}

impl<T> DelayCell<T> {
    /// A cell with one lane for each of `delays_ns`.
    pub fn new(delays_ns: impl IntoIterator<Item = u64>) -> Self {
        let lanes = delays_ns.into_iter().map(|delay_ns| Lane { delay_ns, last_due_ns: 0 });
        Self { lanes: lanes.collect(), waiting: BinaryHeap::new(), sequence: 0 }
    }

    /// Takes in a packet that arrived at `arrival_ns`, and says when it is due.
    ///
    /// # Panics
    /// If `lane` is none of the cell's.
    pub fn push(&mut self, lane: usize, arrival_ns: u64, item: T) -> u64 {
        let state = &mut self.lanes[lane];
        let due_ns = arrival_ns.saturating_add(state.delay_ns).max(state.last_due_ns);
        state.last_due_ns = due_ns;
        self.sequence += 1;
        self.waiting.push(Reverse(Waiting { due_ns, sequence: self.sequence, lane, item }));
        due_ns
    }

    /// When the next packet is due, if any waits.
    pub fn next_due(&self) -> Option<u64> {
        self.waiting.peek().map(|waiting| waiting.0.due_ns)
    }

    /// The next packet that is due at `now_ns`.
    pub fn pop(&mut self, now_ns: u64) -> Option<Departure<T>> {
        if self.next_due()? > now_ns {
            return None;
        }
        let Waiting { due_ns, lane, item, .. } = self.waiting.pop()?.0;
        Some(Departure { lane, due_ns, item })
    }

    /// Changes a lane's delay for the packets that arrive from now on.
    ///
    /// Packets under way keep theirs; later ones do not overtake them.
    ///
    /// # Panics
    /// If `lane` is none of the cell's.
    pub fn set_delay(&mut self, lane: usize, delay_ns: u64) {
        self.lanes[lane].delay_ns = delay_ns;
    }

    /// How many packets are under way.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no packet is under way.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[derive(Debug)]
struct Lane {
    delay_ns: u64,
    last_due_ns: u64,
}

#[derive(Debug)]
struct Waiting<T> {
    due_ns: u64,
    /// Keeps packets that are due at the same time in the order of their arrival.
    sequence: u64,
    lane: usize,
    item: T,
}

impl<T> Ord for Waiting<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due_ns, self.sequence).cmp(&(other.due_ns, other.sequence))
    }
}

impl<T> PartialOrd for Waiting<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Waiting<T> {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}

impl<T> Eq for Waiting<T> {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn each_lane_has_its_own_delay() {
        let mut cell = DelayCell::new([100 * MS, MS]);
        cell.push(0, 0, "slow");
        cell.push(1, 10, "fast");
        assert_eq!(cell.next_due(), Some(MS + 10));
        assert_eq!(cell.pop(MS + 9), None);
        assert_eq!(cell.pop(MS + 10), Some(Departure { lane: 1, due_ns: MS + 10, item: "fast" }));
        assert_eq!(cell.pop(MS + 10), None);
        assert_eq!(cell.pop(100 * MS).map(|d| d.item), Some("slow"));
        assert!(cell.is_empty());
    }

    #[test]
    fn late_delivery_does_not_delay_what_follows() {
        let mut cell = DelayCell::new([MS]);
        cell.push(0, 0, 1);
        cell.push(0, 10, 2);
        // The caller looks 50 ms too late: the logical times stay as they were.
        assert_eq!(cell.pop(50 * MS).map(|d| d.due_ns), Some(MS));
        assert_eq!(cell.pop(50 * MS).map(|d| d.due_ns), Some(MS + 10));
        cell.push(0, 51 * MS, 3);
        assert_eq!(cell.next_due(), Some(52 * MS));
    }

    #[test]
    fn a_shorter_delay_does_not_let_packets_overtake() {
        let mut cell = DelayCell::new([100 * MS]);
        cell.push(0, 0, "before");
        cell.set_delay(0, MS);
        cell.push(0, 10 * MS, "after");
        assert_eq!(cell.pop(u64::MAX).map(|d| (d.item, d.due_ns)), Some(("before", 100 * MS)));
        assert_eq!(cell.pop(u64::MAX).map(|d| (d.item, d.due_ns)), Some(("after", 100 * MS)));
        cell.push(0, 200 * MS, "later");
        assert_eq!(cell.next_due(), Some(201 * MS));
    }

    proptest! {
        /// A simulated clock drives the cell at arbitrary moments; whatever they are, nothing is
        /// lost, nothing is early, and lanes keep their order and their delay.
        #[test]
        fn nothing_is_lost_early_or_reordered(
            delays in proptest::collection::vec(0..300 * MS, 1..6),
            steps in proptest::collection::vec((0usize..6, 0..5 * MS, any::<bool>()), 0..200),
        ) {
            let mut cell = DelayCell::new(delays.clone());
            let (mut now, mut pushed, mut out) = (0, 0u64, Vec::new());
            for (lane, step, collect) in steps {
                now += step;
                cell.push(lane % delays.len(), now, (pushed, now));
                pushed += 1;
                while let Some(departure) = collect.then(|| cell.pop(now)).flatten() {
                    prop_assert!(departure.due_ns <= now);
                    out.push(departure);
                }
            }
            while let Some(due) = cell.next_due() {
                out.push(cell.pop(due).expect("due now"));
            }
            prop_assert_eq!(out.len() as u64, pushed);
            for lane in 0..delays.len() {
                let numbers: Vec<_> =
                    out.iter().filter(|d| d.lane == lane).map(|d| d.item.0).collect();
                prop_assert!(numbers.is_sorted());
            }
            for departure in &out {
                prop_assert_eq!(departure.due_ns, departure.item.1 + delays[departure.lane]);
            }
        }
    }
}
