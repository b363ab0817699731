//! Puts one direction's segments back in order and remembers which packet brought which byte.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::round_trips::{Step, Weight};
use crate::{Direction, TcpFlags, TcpOptions};

/// A packet. Positions are counted from the SYN, which is 0, so that data starts at 1; they do
/// not wrap. A packet counts if it is a SYN or has payload: its range is not empty.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stored {
    pub(crate) direction: Direction,
    pub(crate) arrived: u64,
    pub(crate) delivered: Option<u64>,
    pub(crate) flags: TcpFlags,
    /// Of a SYN or SYN-ACK.
    pub(crate) options: Option<TcpOptions>,
    /// Where it starts, if it lies near the rest.
    pub(crate) position: Option<u64>,
    /// The position in the other direction up to which it acknowledges.
    pub(crate) acknowledged: Option<u64>,
    /// Its payload's length on the wire.
    pub(crate) wire_len: u32,
    /// Some of it had been sent before.
    pub(crate) again: bool,
    /// What counts of the sequence space that it occupies; a FIN is left out.
    pub(crate) range: Range<u64>,
    /// The payload from its first byte; shorter than the range if it was cut or not kept.
    pub(crate) payload: Box<[u8]>,
}

impl Stored {
    /// A SYN, or payload.
    pub(crate) fn counts(&self) -> bool {
        !self.range.is_empty()
    }

    pub(crate) fn is_syn(&self) -> bool {
        self.counts() && self.range.start == 0
    }

    /// Where its payload starts.
    pub(crate) fn data_start(&self) -> u64 {
        self.range.start.max(1)
    }

    /// What it is to the count of round trips.
    pub(crate) fn step(&self, weight: Weight) -> Step<()> {
        Step {
            direction: self.direction,
            arrived: self.arrived,
            delivered: self.delivered,
            weight,
            ranges: vec![((), self.range.clone())],
        }
    }

    /// Whether it has payload, kept or not.
    pub(crate) fn has_data(&self) -> bool {
        self.range.end > self.data_start()
    }
}

/// The stream that the packets of one direction make, up to the first gap.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    pub(crate) bytes: Vec<u8>,
    /// Where each packet's part starts, and the packet's index.
    parts: Vec<(usize, usize)>,
}

impl Stream {
    /// Puts together the packets of `direction`, which are in the order of their arrival. Where
    /// a byte came more than once the first copy counts.
    pub(crate) fn assemble(packets: &[Stored], direction: Direction) -> Self {
        let mut stream = Self::default();
        let mut waiting = BTreeSet::new();
        for (index, packet) in packets.iter().enumerate() {
            if packet.direction != direction || !packet.has_data() {
                continue;
            }
            waiting.insert((packet.data_start(), index));
            while let Some(&(start, index)) = waiting.first() {
                if start > stream.end() {
                    break;
                }
                waiting.pop_first();
                stream.append(start, index, &packets[index].payload);
            }
        }
        stream
    }

    /// The index of the packet that first brought the byte at `offset`.
    pub(crate) fn packet_at(&self, offset: usize) -> Option<usize> {
        if offset >= self.bytes.len() {
            return None;
        }
        let after = self.parts.partition_point(|(start, _)| *start <= offset);
        self.parts.get(after.checked_sub(1)?).map(|(_, packet)| *packet)
    }

    /// How many bytes from the start came in packets of which `counts` is true.
    pub(crate) fn prefix(&self, counts: impl Fn(usize) -> bool) -> usize {
        let end = self.parts.iter().find(|(_, packet)| !counts(*packet));
        end.map_or(self.bytes.len(), |(start, _)| *start)
    }

    /// The position in the sequence space after the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.bytes.len() as u64 + 1
    }

    /// The indices of the packets that first brought bytes of `range`.
    pub(crate) fn packets_of(&self, range: Range<usize>) -> impl Iterator<Item = usize> {
        let first = self.parts.partition_point(|(start, _)| *start <= range.start);
        let last = self.parts.partition_point(|(start, _)| *start < range.end);
        self.parts[first.saturating_sub(1).min(last)..last].iter().map(|(_, packet)| *packet)
    }

    /// Adds what is new of a packet's payload that starts at `start`, not beyond the end.
    pub(crate) fn append(&mut self, start: u64, index: usize, payload: &[u8]) {
        let known = (self.end() - start) as usize;
        if let Some(new) = payload.get(known..).filter(|new| !new.is_empty()) {
            self.parts.push((self.bytes.len(), index));
            self.bytes.extend_from_slice(new);
        }
    }
}

/// What has been seen of a sequence space: to tell retransmissions from new data.
#[derive(Debug, Default)]
pub(crate) struct Coverage {
    /// Disjoint, in order.
    ranges: Vec<Range<u64>>,
}

/// How a segment relates to what was seen before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentOverlap {
    /// All of it is new and follows the rest.
    New,
    /// All of it is new, but later bytes came first.
    OutOfOrder,
    /// Some of it was seen before.
    PartlyBefore,
    /// All of it was seen before.
    Before,
}

impl Coverage {
    /// More gaps than this are closed from below, so that memory stays bounded.
    const MAX_RANGES: usize = 128;

    /// Notes `range`, which is not empty, and says what it was.
    pub(crate) fn add(&mut self, range: Range<u64>) -> SegmentOverlap {
        let first = self.ranges.partition_point(|known| known.end < range.start);
        let last = self.ranges.partition_point(|known| known.start <= range.end);
        let touched = &self.ranges[first..last];
        let overlap: u64 = touched
            .iter()
            .map(|known| known.end.min(range.end).saturating_sub(known.start.max(range.start)))
            .sum();
        let seen = match overlap {
            0 if self.ranges.last().is_none_or(|last| last.end <= range.start) => {
                SegmentOverlap::New
            }
            0 => SegmentOverlap::OutOfOrder,
            all if all == range.end - range.start => SegmentOverlap::Before,
            _ => SegmentOverlap::PartlyBefore,
        };
        let start = touched.first().map_or(range.start, |known| known.start.min(range.start));
        let end = touched.last().map_or(range.end, |known| known.end.max(range.end));
        self.ranges.splice(first..last, std::iter::once(start..end));
        if self.ranges.len() > Self::MAX_RANGES {
            self.ranges[1].start = self.ranges[0].start;
            self.ranges.remove(0);
        }
        seen
    }

    /// How many positions were seen.
    pub(crate) fn len(&self) -> u64 {
        self.ranges.iter().map(|known| known.end - known.start).sum()
    }

    /// Forgets all from `position` on.
    pub(crate) fn forget_from(&mut self, position: u64) {
        self.ranges.retain_mut(|known| {
            known.end = known.end.min(position);
            known.start < known.end
        });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packet(start: u64, payload: &[u8]) -> Stored {
        Stored {
            direction: Direction::ToServer,
            arrived: 0,
            delivered: Some(0),
            range: start..start + payload.len() as u64,
            payload: payload.into(),
            ..Stored::default()
        }
    }

    #[test]
    fn the_first_copy_of_a_byte_names_its_packet() {
        let packets = [packet(4, b"def"), packet(1, b"abc"), packet(1, b"abcde"), packet(7, b"g")];
        let stream = Stream::assemble(&packets, Direction::ToServer);
        assert_eq!(stream.bytes, b"abcdefg");
        let from: Vec<_> = (0..8).map(|offset| stream.packet_at(offset)).collect();
        let one = |index| Some(index);
        assert_eq!(
            from,
            [one(1), one(1), one(1), one(0), one(0), one(0), one(3), None],
            "index of the packet for each byte"
        );
        assert_eq!(stream.prefix(|index| index != 3), 6);
    }

    #[test]
    fn a_gap_ends_the_stream() {
        let stream = Stream::assemble(&[packet(1, b"ab"), packet(4, b"d")], Direction::ToServer);
        assert_eq!((stream.bytes.as_slice(), stream.end()), (&b"ab"[..], 3));
    }

    proptest! {
        #[test]
        fn any_order_and_overlap_gives_the_same_bytes(
            cuts in prop::collection::vec((0usize..200, 1usize..40), 0..60),
            seed in prop::collection::vec(any::<u8>(), 240)
        ) {
            let mut packets: Vec<_> = cuts
                .iter()
                .map(|(at, len)| packet(*at as u64 + 1, &seed[*at..at + len]))
                .collect();
            packets.extend((0..6).map(|n| packet(n * 40 + 1, &seed[n as usize * 40..][..40])));
            let stream = Stream::assemble(&packets, Direction::ToServer);
            prop_assert_eq!(stream.bytes, seed);
        }

        #[test]
        fn coverage_agrees_with_a_set_of_bytes(
            adds in prop::collection::vec((0u64..100, 1u64..20), 1..60)
        ) {
            let mut coverage = Coverage::default();
            let mut set = std::collections::BTreeSet::new();
            for (start, len) in adds {
                let range = start..start + len;
                let before = range.clone().filter(|at| set.contains(at)).count() as u64;
                let later = set.range(range.end..).next().is_some();
                let expected = match before {
                    0 if later => SegmentOverlap::OutOfOrder,
                    0 => SegmentOverlap::New,
                    all if all == len => SegmentOverlap::Before,
                    _ => SegmentOverlap::PartlyBefore,
                };
                prop_assert_eq!(coverage.add(range.clone()), expected);
                set.extend(range);
            }
        }
    }
}
