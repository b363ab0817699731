//! Counts round trips: the causal depth of each packet. The rule is written in `FirstResponse`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;

use crate::Direction;

/// A packet as the count sees it. `K` tells apart what is numbered on its own, as the streams of
/// QUIC are.
pub(crate) struct Step<K> {
    pub(crate) direction: Direction,
    pub(crate) arrived: u64,
    pub(crate) delivered: Option<u64>,
    pub(crate) weight: Weight,
    /// What it carries; nothing in an acknowledgement.
    pub(crate) ranges: Vec<(K, Range<u64>)>,
}

/// The depth of each of `steps`, which are in the order of their arrival at the tap; `None` where
/// a packet does not count.
pub(crate) fn depths<K: Ord + Copy>(steps: impl Iterator<Item = Step<K>>) -> Vec<Option<u32>> {
    let (mut to_client, mut to_server) = (Side::default(), Side::default());
    let mut depths = Vec::new();
    for step in steps {
        if step.weight == Weight::Nothing {
            depths.push(None);
            continue;
        }
        let depth = match step.direction {
            Direction::ToServer => {
                let fresh = 1 + to_client.reached(step.arrived);
                to_server.first_sent(&step.ranges, fresh)
            }
            Direction::ToClient => {
                let fresh = to_server.reached(step.arrived);
                to_client.first_sent(&step.ranges, fresh)
            }
        };
        if let (Some(delivered), Weight::Cause) = (step.delivered, step.weight) {
            let side = match step.direction {
                Direction::ToServer => &mut to_server,
                Direction::ToClient => &mut to_client,
            };
            side.under_way.push(Reverse((delivered.max(step.arrived), depth)));
        }
        depths.push(Some(depth));
    }
    depths
}

/// What a packet does to the depth of those after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    /// It has no depth.
    Nothing,
    /// It has one but sets nothing off.
    Idle,
    /// What follows its delivery may be its doing.
    Cause,
}

/// One direction.
struct Side<K> {
    /// Packets between tap and receiver: when each is delivered, and its depth.
    under_way: BinaryHeap<Reverse<(u64, u32)>>,
    /// The deepest packet delivered so far.
    deepest: u32,
    /// The depth at which each part of a sequence space was first sent: start to end, depth.
    sent: BTreeMap<(K, u64), (u64, u32)>,
}

impl<K> Default for Side<K> {
    fn default() -> Self {
        Self { under_way: BinaryHeap::new(), deepest: 0, sent: BTreeMap::new() }
    }
}

impl<K: Ord + Copy> Side<K> {
    /// The deepest packet that its receiver has at `now`.
    fn reached(&mut self, now: u64) -> u32 {
        while let Some(Reverse((delivered, depth))) = self.under_way.peek()
            && *delivered <= now
        {
            self.deepest = self.deepest.max(*depth);
            self.under_way.pop();
        }
        self.deepest
    }

    /// The depth of a packet with `ranges`: `fresh` if anything in them is new, or if there is
    /// nothing, for an acknowledgement is of its own time; else that of the original.
    fn first_sent(&mut self, ranges: &[(K, Range<u64>)], fresh: u32) -> u32 {
        let filled = || ranges.iter().filter(|(_, range)| !range.is_empty());
        let originals: Vec<_> =
            filled().map(|(space, range)| self.first_sent_part(*space, range, fresh)).collect();
        match originals.iter().copied().collect::<Option<Vec<u32>>>() {
            Some(originals) => originals.into_iter().max().unwrap_or(fresh),
            None => fresh,
        }
    }

    /// The depth of what is in `range`; `None`, and it is noted, if some of it is new.
    fn first_sent_part(&mut self, space: K, range: &Range<u64>, fresh: u32) -> Option<u32> {
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
    use super::Direction::{ToClient, ToServer};
    use super::*;
    use crate::reassembly::Stored;

    /// Packets as (direction, arrived, delivered, from, to).
    fn packets(list: &[(Direction, u64, Option<u64>, u64, u64)]) -> Vec<Stored> {
        list.iter()
            .map(|&(direction, arrived, delivered, from, to)| Stored {
                direction,
                arrived,
                delivered,
                range: from..to,
                ..Stored::default()
            })
            .collect()
    }

    fn count(list: &[(Direction, u64, Option<u64>, u64, u64)]) -> Vec<u32> {
        let depths = depths(packets(list).iter().map(|packet| packet.step(Weight::Cause)));
        depths.into_iter().map(Option::unwrap).collect()
    }

    #[test]
    fn each_answer_to_an_answer_is_one_deeper() {
        let list = [
            (ToServer, 0, Some(10), 0, 1),
            (ToClient, 10, Some(20), 0, 1),
            (ToServer, 20, Some(30), 1, 100),
            (ToClient, 30, Some(40), 1, 100),
        ];
        assert_eq!(count(&list), [1, 1, 2, 2]);
    }

    #[test]
    fn what_is_still_under_way_causes_nothing() {
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
    fn a_copy_with_something_new_is_as_deep_as_the_new() {
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
    fn idle_packets_deepen_nothing_and_others_have_no_depth() {
        let list = packets(&[
            (ToServer, 0, Some(10), 0, 1),
            (ToClient, 10, Some(20), 0, 1),
            (ToServer, 22, Some(32), 1, 1),
            (ToServer, 25, Some(35), 1, 100),
        ]);
        let weight = |packet: &Stored| match packet.direction {
            ToClient => Weight::Idle,
            ToServer if packet.counts() => Weight::Cause,
            ToServer => Weight::Nothing,
        };
        let steps = list.iter().map(|packet| packet.step(weight(packet)));
        assert_eq!(depths(steps), [Some(1), Some(1), None, Some(1)]);
    }

    #[test]
    fn acknowledgements_that_count_deepen_what_waited_for_them() {
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
    fn what_is_numbered_apart_is_no_copy_of_each_other() {
        let step = |direction, arrived, ranges: &[(u8, Range<u64>)]| Step {
            direction,
            arrived,
            delivered: Some(arrived + 10),
            weight: Weight::Cause,
            ranges: ranges.to_vec(),
        };
        let steps = [
            step(ToServer, 0, &[(0, 0..300), (4, 0..50)]),
            step(ToClient, 10, &[(0, 0..100)]),
            // Both again, one of them again, one of another number, one and more of it.
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
