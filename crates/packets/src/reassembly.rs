//! Reassembles byte streams from TCP segments or QUIC frames, and records which packet first
//! carried which byte.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::copies::TapPacket;
use crate::round_trips::{Causality, TimedPacket};
use crate::{Direction, TcpFlags, TcpOptions};

/// A stored TCP segment. Positions are relative to the SYN, which is 0, so data starts at 1; they
/// do not wrap.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoredSegment {
    pub(crate) direction: Direction,
    pub(crate) arrived: u64,
    pub(crate) delivered: Option<u64>,
    pub(crate) flags: TcpFlags,
    /// The options of a SYN or SYN-ACK.
    pub(crate) options: Option<TcpOptions>,
    /// Its sequence number.
    pub(crate) seq: u32,
    /// Its acknowledgement number.
    pub(crate) ack: Option<u32>,
    /// Its frame's length on the wire.
    pub(crate) frame_len: u32,
    /// Its payload's length on the wire.
    pub(crate) wire_len: u32,
    /// The payload from its first byte; shorter than `wire_len` if it was truncated or not stored.
    pub(crate) payload: Box<[u8]>,
    /// Where it starts; `None` if it is far from the other segments. This field and those below are
    /// set when all packets have been seen.
    pub(crate) position: Option<u64>,
    /// The position in the other direction up to which it acknowledges.
    pub(crate) acknowledged: Option<u64>,
    /// Whether some of it had been sent before.
    pub(crate) retransmission: bool,
    /// The part of the sequence space that it occupies, without a FIN.
    pub(crate) range: Range<u64>,
}

impl TapPacket for StoredSegment {
    fn arrived(&self) -> u64 {
        self.arrived
    }

    fn delivered(&mut self) -> &mut Option<u64> {
        &mut self.delivered
    }

    fn equals(&self, other: &Self) -> bool {
        let header = |segment: &Self| {
            (segment.direction, segment.seq, segment.ack, segment.flags, segment.wire_len)
        };
        header(self) == header(other)
    }
}

impl StoredSegment {
    /// Whether it is a SYN or has payload: only such segments count as round trips.
    pub(crate) fn has_data_or_syn(&self) -> bool {
        !self.range.is_empty()
    }

    pub(crate) fn is_syn(&self) -> bool {
        self.has_data_or_syn() && self.range.start == 0
    }

    /// Where its payload starts.
    pub(crate) fn data_start(&self) -> u64 {
        self.range.start.max(1)
    }

    /// The segment as input of the round-trip count.
    pub(crate) fn timed_packet(&self, causality: Causality) -> TimedPacket<()> {
        TimedPacket {
            direction: self.direction,
            arrived: self.arrived,
            delivered: self.delivered,
            causality,
            ranges: vec![((), self.range.clone())],
        }
    }

    /// Whether it has payload, stored or not.
    pub(crate) fn has_data(&self) -> bool {
        self.range.end > self.data_start()
    }
}

/// The byte stream of one direction up to the first gap.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    pub(crate) bytes: Vec<u8>,
    /// Where each packet's bytes start, and the packet's index.
    parts: Vec<(usize, usize)>,
}

impl Stream {
    /// Reassembles the segments of `direction`, which are in the order of arrival. Of repeated
    /// bytes the first copy counts.
    pub(crate) fn assemble(packets: &[StoredSegment], direction: Direction) -> Self {
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

    /// The index of the packet that first carried the byte at `offset`.
    pub(crate) fn packet_at(&self, offset: usize) -> Option<usize> {
        if offset >= self.bytes.len() {
            return None;
        }
        let after = self.parts.partition_point(|(start, _)| *start <= offset);
        self.parts.get(after.checked_sub(1)?).map(|(_, packet)| *packet)
    }

    /// How many bytes from the start arrived in packets for which `includes` is true.
    pub(crate) fn prefix(&self, includes: impl Fn(usize) -> bool) -> usize {
        let end = self.parts.iter().find(|(_, packet)| !includes(*packet));
        end.map_or(self.bytes.len(), |(start, _)| *start)
    }

    /// The position in the sequence space after the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.bytes.len() as u64 + 1
    }

    /// The indices of the packets that first carried bytes of `range`.
    pub(crate) fn packets_of(&self, range: Range<usize>) -> impl Iterator<Item = usize> {
        let first = self.parts.partition_point(|(start, _)| *start <= range.start);
        let last = self.parts.partition_point(|(start, _)| *start < range.end);
        self.parts[first.saturating_sub(1).min(last)..last].iter().map(|(_, packet)| *packet)
    }

    /// Appends the new bytes of a payload that starts at `start`, which is not beyond the end.
    pub(crate) fn append(&mut self, start: u64, index: usize, payload: &[u8]) {
        let known = (self.end() - start) as usize;
        if let Some(new) = payload.get(known..).filter(|new| !new.is_empty()) {
            self.parts.push((self.bytes.len(), index));
            self.bytes.extend_from_slice(new);
        }
    }
}

/// The seen ranges of a sequence space: tells retransmissions from new data.
#[derive(Debug, Default)]
pub(crate) struct Coverage {
    /// Disjoint and ascending.
    ranges: Vec<Range<u64>>,
}

/// How a range relates to the ranges seen before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overlap {
    /// All of it is new and follows the seen ranges.
    New,
    /// All of it is new, but later bytes were seen before.
    OutOfOrder,
    /// Some of it was seen before.
    PartlyRepeated,
    /// All of it was seen before.
    Repeated,
}

impl Coverage {
    /// With more ranges than this the lowest gap is closed, so memory is bounded.
    const MAX_RANGES: usize = 128;

    /// Adds `range`, which is not empty, and returns how it relates to the ranges before it.
    pub(crate) fn add(&mut self, range: Range<u64>) -> Overlap {
        let first = self.ranges.partition_point(|known| known.end < range.start);
        let last = self.ranges.partition_point(|known| known.start <= range.end);
        let touched = &self.ranges[first..last];
        let overlap: u64 = touched
            .iter()
            .map(|known| known.end.min(range.end).saturating_sub(known.start.max(range.start)))
            .sum();
        let seen = match overlap {
            0 if self.ranges.last().is_none_or(|last| last.end <= range.start) => Overlap::New,
            0 => Overlap::OutOfOrder,
            all if all == range.end - range.start => Overlap::Repeated,
            _ => Overlap::PartlyRepeated,
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

    /// The number of positions seen.
    pub(crate) fn len(&self) -> u64 {
        self.ranges.iter().map(|known| known.end - known.start).sum()
    }

    /// Removes everything from `position` on.
    pub(crate) fn forget_from(&mut self, position: u64) {
        self.ranges.retain_mut(|known| {
            known.end = known.end.min(position);
            known.start < known.end
        });
    }
}

/// The bytes of one direction of a QUIC stream, or of the CRYPTO frames of one encryption level.
/// Bytes are attributed to datagrams by index.
#[derive(Debug, Default)]
pub(crate) struct StreamBytes {
    pub(crate) stream: Stream,
    waiting: BTreeMap<(u64, usize), Vec<u8>>,
    /// Every delivered copy: time of delivery, start, end.
    copies: Vec<(u64, u64, u64)>,
    /// The end of the last received byte.
    end: u64,
}

impl StreamBytes {
    /// Adds the bytes of a frame.
    pub(crate) fn add(
        &mut self,
        offset: u64,
        data: &[u8],
        datagram: usize,
        delivered: Option<u64>,
    ) {
        // No stream is longer than 2^62 bytes (RFC 9000 section 4.5).
        let Some(end) = offset.checked_add(data.len() as u64).filter(|end| *end <= 1 << 62) else {
            return;
        };
        self.end = self.end.max(end);
        self.copies.extend(delivered.map(|time| (time, offset, end)));
        if end <= self.stream.bytes.len() as u64 {
            return;
        }
        self.waiting.entry((offset, datagram)).or_insert_with(|| data.to_vec());
        while let Some(first) = self.waiting.first_entry() {
            let (offset, datagram) = *first.key();
            if offset > self.stream.bytes.len() as u64 {
                break;
            }
            // Positions in a `Stream` start at 1.
            self.stream.append(offset + 1, datagram, &first.remove());
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.stream.bytes
    }

    /// Whether bytes are missing before received ones.
    pub(crate) fn has_gap(&self) -> bool {
        self.end > self.stream.bytes.len() as u64
    }

    /// The datagrams that first carried bytes of `range`.
    pub(crate) fn datagrams_of(&self, range: Range<usize>) -> impl Iterator<Item = usize> {
        self.stream.packets_of(range)
    }

    /// When all bytes before `end` had been delivered.
    pub(crate) fn delivered_up_to(&self, end: usize) -> Option<u64> {
        let mut copies = self.copies.clone();
        copies.sort_unstable();
        let (mut reach, mut waiting) = (0, BTreeMap::new());
        for (time, start, stop) in copies {
            let longest: &mut u64 = waiting.entry(start).or_default();
            *longest = stop.max(*longest);
            while let Some(first) = waiting.first_entry()
                && *first.key() <= reach
            {
                reach = reach.max(first.remove());
            }
            if reach >= end as u64 {
                return Some(time);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packet(start: u64, payload: &[u8]) -> StoredSegment {
        StoredSegment {
            direction: Direction::ToServer,
            arrived: 0,
            delivered: Some(0),
            range: start..start + payload.len() as u64,
            payload: payload.into(),
            ..StoredSegment::default()
        }
    }

    #[test]
    fn a_byte_belongs_to_the_packet_that_first_carried_it() {
        let packets = [packet(4, b"def"), packet(1, b"abc"), packet(1, b"abcde"), packet(7, b"g")];
        let stream = Stream::assemble(&packets, Direction::ToServer);
        assert_eq!(stream.bytes, b"abcdefg");
        let from: Vec<_> = (0..8).map(|offset| stream.packet_at(offset)).collect();
        assert_eq!(
            from,
            [Some(1), Some(1), Some(1), Some(0), Some(0), Some(0), Some(3), None],
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
                    0 if later => Overlap::OutOfOrder,
                    0 => Overlap::New,
                    all if all == len => Overlap::Repeated,
                    _ => Overlap::PartlyRepeated,
                };
                prop_assert_eq!(coverage.add(range.clone()), expected);
                set.extend(range);
            }
        }
    }

    #[test]
    fn bytes_are_reassembled_and_their_deliveries_known() {
        let mut stream_bytes = StreamBytes::default();
        stream_bytes.add(3, b"def", 0, Some(30));
        assert!(stream_bytes.has_gap() && stream_bytes.bytes().is_empty());
        stream_bytes.add(0, b"abc", 1, None);
        stream_bytes.add(0, b"abcd", 2, Some(50));
        assert_eq!((stream_bytes.bytes(), stream_bytes.has_gap()), (&b"abcdef"[..], false));
        assert_eq!(stream_bytes.datagrams_of(1..4).collect::<Vec<_>>(), [1, 0]);
        assert_eq!(stream_bytes.delivered_up_to(2), Some(50));
        assert_eq!(stream_bytes.delivered_up_to(4), Some(50), "the fourth byte came at 30");
        assert_eq!(stream_bytes.delivered_up_to(7), None);
        stream_bytes.add(u64::MAX - 1, b"xyz", 3, Some(60));
        assert_eq!(stream_bytes.bytes().len(), 6);
    }
}
