//! Counts round trips: the causal depth of each packet, as defined at
//! [`FirstResponse`](crate::FirstResponse).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;

use crate::Direction;

/// A packet as input of the count. `K` identifies a sequence space, such as a QUIC stream.
pub(crate) struct TimedPacket<K> {
    pub(crate) direction: Direction,
    pub(crate) arrived: u64,
    pub(crate) delivered: Option<u64>,
    pub(crate) causality: Causality,
    /// The ranges of data that it carries; none in an acknowledgement.
    pub(crate) ranges: Vec<(K, Range<u64>)>,
}

/// The depth of each packet; `None` if it does not count. Packets are in the order of arrival at
/// the tap.
pub(crate) fn depths<K: Ord + Copy>(
    steps: impl Iterator<Item = TimedPacket<K>>,
) -> Vec<Option<u32>> {
    let (mut to_client, mut to_server) = (DirectionState::default(), DirectionState::default());
    let mut depths = Vec::new();
    for step in steps {
        if step.causality == Causality::Uncounted {
            depths.push(None);
            continue;
        }
        let depth = match step.direction {
            Direction::ToServer => {
                let fresh = 1 + to_client.deepest_delivered(step.arrived);
                to_server.depth_of(&step.ranges, fresh)
            }
            Direction::ToClient => {
                let fresh = to_server.deepest_delivered(step.arrived);
                to_client.depth_of(&step.ranges, fresh)
            }
        };
        if let (Some(delivered), Causality::Cause) = (step.delivered, step.causality) {
            let side = match step.direction {
                Direction::ToServer => &mut to_server,
                Direction::ToClient => &mut to_client,
            };
            side.in_flight.push(Reverse((delivered.max(step.arrived), depth)));
        }
        depths.push(Some(depth));
    }
    depths
}

/// How a packet affects the depth of the packets after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Causality {
    /// The packet does not count.
    Uncounted,
    /// The packet has a depth, but causes no other packets.
    NoCause,
    /// The packet may cause those that are sent after its delivery.
    Cause,
}

/// The state of one direction.
struct DirectionState<K> {
    /// Packets between tap and receiver: time of delivery, and depth.
    in_flight: BinaryHeap<Reverse<(u64, u32)>>,
    /// The deepest packet delivered so far.
    deepest: u32,
    /// The depth at which each part of a sequence space was first sent: start, end, depth.
    sent: BTreeMap<(K, u64), (u64, u32)>,
}

impl<K> Default for DirectionState<K> {
    fn default() -> Self {
        Self { in_flight: BinaryHeap::new(), deepest: 0, sent: BTreeMap::new() }
    }
}

impl<K: Ord + Copy> DirectionState<K> {
    /// The depth of the deepest packet delivered by `now`.
    fn deepest_delivered(&mut self, now: u64) -> u32 {
        while let Some(Reverse((delivered, depth))) = self.in_flight.peek()
            && *delivered <= now
        {
            self.deepest = self.deepest.max(*depth);
            self.in_flight.pop();
        }
        self.deepest
    }

    /// The depth of a packet with `ranges`: `fresh` if any of them is new or if there are none (an
    /// acknowledgement), otherwise the depth of the original.
    fn depth_of(&mut self, ranges: &[(K, Range<u64>)], fresh: u32) -> u32 {
        let filled = || ranges.iter().filter(|(_, range)| !range.is_empty());
        let originals: Vec<_> =
            filled().map(|(space, range)| self.depth_of_range(*space, range, fresh)).collect();
        match originals.iter().copied().collect::<Option<Vec<u32>>>() {
            Some(originals) => originals.into_iter().max().unwrap_or(fresh),
            None => fresh,
        }
    }

    /// The depth of the original of `range`. Returns `None` and stores `fresh` for the new part if
    /// some of it is new.
    fn depth_of_range(&mut self, space: K, range: &Range<u64>, fresh: u32) -> Option<u32> {
        let mut at = range.start;
        let mut original = 0;
        let mut new = Vec::new();
        let before = self.sent.range((space, 0)..=(space, at)).next_back();
        let before = before.map_or(at, |((_, start), _)| *start);
        for (&(_, start), &(end, depth)) in self.sent.range((space, before)..(space, range.end)) {
            if end <= at {
                continue;
            }
            if start > at {
                new.push(at..start);
            }
            original = original.max(depth);
            at = end;
        }
        if at < range.end {
            new.push(at..range.end);
        }
        if new.is_empty() {
            return Some(original);
        }
        self.sent.extend(new.into_iter().map(|part| ((space, part.start), (part.end, fresh))));
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reassembly::StoredSegment;
    use crate::round_trips::Direction::{ToClient, ToServer};

    /// Packets as (direction, arrived, delivered, from, to).
    fn packets(list: &[(Direction, u64, Option<u64>, u64, u64)]) -> Vec<StoredSegment> {
        list.iter()
            .map(|&(direction, arrived, delivered, from, to)| StoredSegment {
                direction,
                arrived,
                delivered,
                range: from..to,
                ..StoredSegment::default()
            })
            .collect()
    }

    fn count(list: &[(Direction, u64, Option<u64>, u64, u64)]) -> Vec<u32> {
        let depths =
            depths(packets(list).iter().map(|packet| packet.timed_packet(Causality::Cause)));
        depths.into_iter().map(Option::unwrap).collect()
    }

    #[test]
    fn each_reply_to_a_reply_is_one_deeper() {
        let list = [
            (ToServer, 0, Some(10), 0, 1),
            (ToClient, 10, Some(20), 0, 1),
            (ToServer, 20, Some(30), 1, 100),
            (ToClient, 30, Some(40), 1, 100),
        ];
        assert_eq!(count(&list), [1, 1, 2, 2]);
    }

    #[test]
    fn packets_in_flight_cause_nothing() {
        let list = [
            (ToServer, 0, Some(10), 0, 1),
            (ToClient, 10, Some(20), 0, 1),
            (ToServer, 19, Some(29), 1, 100),
            (ToServer, 20, Some(40), 100, 200),
            (ToClient, 39, Some(49), 1, 100),
            (ToClient, 40, Some(50), 100, 200),
        ];
        assert_eq!(count(&list), [1, 1, 1, 2, 1, 2]);
    }

    #[test]
    fn a_dropped_packet_causes_nothing_and_its_copy_keeps_its_depth() {
        let list = [
            (ToServer, 0, Some(10), 0, 1),
            (ToClient, 10, Some(20), 0, 1),
            (ToServer, 20, None, 1, 100),
            (ToClient, 35, Some(45), 1, 50),
            (ToServer, 220, Some(230), 1, 100),
            (ToClient, 230, Some(240), 50, 100),
        ];
        assert_eq!(count(&list), [1, 1, 2, 1, 2, 2]);
    }

    #[test]
    fn a_copy_with_new_data_is_as_deep_as_the_new_data() {
        let list = [
            (ToServer, 0, Some(10), 0, 1),
            (ToClient, 10, Some(20), 0, 1),
            (ToServer, 20, Some(30), 1, 100),
            (ToClient, 30, Some(40), 1, 100),
            (ToServer, 41, Some(51), 1, 100),
            (ToServer, 42, Some(52), 50, 150),
            (ToServer, 43, Some(53), 1, 150),
        ];
        assert_eq!(count(&list), [1, 1, 2, 2, 2, 3, 3]);
    }

    #[test]
    fn packets_without_effect_deepen_nothing() {
        let list = packets(&[
            (ToServer, 0, Some(10), 0, 1),
            (ToClient, 10, Some(20), 0, 1),
            (ToServer, 22, Some(32), 1, 1),
            (ToServer, 25, Some(35), 1, 100),
        ]);
        let causality = |packet: &StoredSegment| match packet.direction {
            ToClient => Causality::NoCause,
            ToServer if packet.has_data_or_syn() => Causality::Cause,
            ToServer => Causality::Uncounted,
        };
        let steps = list.iter().map(|packet| packet.timed_packet(causality(packet)));
        assert_eq!(depths(steps), [Some(1), Some(1), None, Some(1)]);
    }

    #[test]
    fn counted_acknowledgements_deepen_what_waited_for_them() {
        let list = [
            (ToServer, 0, Some(10), 0, 1),
            (ToClient, 10, Some(20), 0, 1),
            (ToServer, 20, Some(30), 1, 100),
            // A window of two packets, and the next when the first is acknowledged.
            (ToClient, 30, Some(40), 1, 1000),
            (ToClient, 31, Some(41), 1000, 2000),
            (ToServer, 40, Some(50), 100, 100),
            (ToClient, 50, Some(60), 2000, 3000),
            (ToClient, 51, Some(61), 3000, 4000),
        ];
        assert_eq!(count(&list), [1, 1, 2, 2, 2, 3, 3, 3]);
    }

    #[test]
    fn sequence_spaces_are_independent() {
        let step = |direction, arrived, ranges: &[(u8, Range<u64>)]| TimedPacket {
            direction,
            arrived,
            delivered: Some(arrived + 10),
            causality: Causality::Cause,
            ranges: ranges.to_vec(),
        };
        let steps = [
            step(ToServer, 0, &[(0, 0..300), (4, 0..50)]),
            step(ToClient, 10, &[(0, 0..100)]),
            // Both ranges again, part of one, a new stream, old and new data, an acknowledgement.
            step(ToServer, 21, &[(0, 0..300), (4, 0..50)]),
            step(ToServer, 22, &[(4, 10..20)]),
            step(ToServer, 23, &[(8, 0..50)]),
            step(ToServer, 24, &[(4, 0..60), (0, 0..10)]),
            step(ToServer, 25, &[]),
        ];
        let expected = [1, 1, 1, 1, 2, 2, 2].map(Some);
        assert_eq!(depths(steps.into_iter()), expected);
    }
}
