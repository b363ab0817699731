//! Puts a stream of frames back in order and remembers which packet brought which byte.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::reassembly::Stream;

/// The bytes of one direction of a stream, or of CRYPTO frames of one level. `brought` is the
/// index of the datagram in whose packet they were.
#[derive(Debug, Default)]
pub(crate) struct StreamBytes {
    pub(crate) stream: Stream,
    waiting: BTreeMap<(u64, usize), Vec<u8>>,
    /// Every copy: when it was delivered to its receiver, where it starts and ends.
    copies: Vec<(u64, u64, u64)>,
    /// Where the last byte ends that is there.
    end: u64,
}

impl StreamBytes {
    /// Takes a frame's bytes in.
    pub(crate) fn add(&mut self, offset: u64, data: &[u8], brought: usize, delivered: Option<u64>) {
        // Beyond 2^62 no stream goes (RFC 9000 section 4.5).
        let Some(end) = offset.checked_add(data.len() as u64).filter(|end| *end <= 1 << 62) else {
            return;
        };
        self.end = self.end.max(end);
        self.copies.extend(delivered.map(|time| (time, offset, end)));
        if end <= self.stream.bytes.len() as u64 {
            return;
        }
        self.waiting.entry((offset, brought)).or_insert_with(|| data.to_vec());
        while let Some(first) = self.waiting.first_entry() {
            let (offset, brought) = *first.key();
            if offset > self.stream.bytes.len() as u64 {
                break;
            }
            // Positions in a `Stream` start at 1.
            self.stream.append(offset + 1, brought, &first.remove());
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.stream.bytes
    }

    /// Whether bytes are missing before others that are there.
    pub(crate) fn has_gap(&self) -> bool {
        self.end > self.stream.bytes.len() as u64
    }

    /// The datagrams that first brought bytes of `range`.
    pub(crate) fn brought_by(&self, range: Range<usize>) -> impl Iterator<Item = usize> {
        self.stream.packets_of(range)
    }

    /// When any copy of the byte at `offset` first was with the receiver.
    pub(crate) fn delivered(&self, offset: usize) -> Option<u64> {
        let offset = offset as u64;
        let copies = self.copies.iter().filter(|(_, start, end)| (*start..*end).contains(&offset));
        copies.map(|(time, ..)| *time).min()
    }

    /// When all bytes before `end` were with the receiver.
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
    use super::*;

    #[test]
    fn bytes_are_put_in_order_and_their_deliveries_told() {
        let mut pieces = StreamBytes::default();
        pieces.add(3, b"def", 0, Some(30));
        assert!(pieces.has_gap() && pieces.bytes().is_empty());
        pieces.add(0, b"abc", 1, None);
        pieces.add(0, b"abcd", 2, Some(50));
        assert_eq!((pieces.bytes(), pieces.has_gap()), (&b"abcdef"[..], false));
        assert_eq!(pieces.brought_by(1..4).collect::<Vec<_>>(), [1, 0]);
        assert_eq!((pieces.delivered(0), pieces.delivered(3)), (Some(50), Some(30)));
        assert_eq!(pieces.delivered_up_to(2), Some(50));
        assert_eq!(pieces.delivered_up_to(7), None);
        pieces.add(u64::MAX - 1, b"xyz", 3, Some(60));
        assert_eq!(pieces.bytes().len(), 6);
    }
}
