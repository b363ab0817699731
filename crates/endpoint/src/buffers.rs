//! Memory of received datagrams.

use std::collections::VecDeque;

use bytes::BytesMut;

/// Copies datagrams, each into memory of its own: connections keep parts of some for long, and count
/// the memory of the whole datagram.
///
/// Most are dropped soon. glibc keeps no lists of free memory of the size of a full datagram, and to get
/// some takes it longer than all else that this crate does with a datagram. So this does.
#[derive(Default)]
pub(crate) struct DatagramBuffers {
    /// The memory of the last full datagrams, the oldest first. It is free once its datagram is dropped.
    recent: VecDeque<BytesMut>,
}

impl DatagramBuffers {
    /// A copy of a datagram.
    pub(crate) fn copy(&mut self, datagram: &[u8]) -> BytesMut {
        if !(MIN_KEPT..=SIZE).contains(&datagram.len()) {
            return datagram.into();
        }
        let free = self.recent.pop_front().and_then(|mut oldest| {
            if oldest.try_reclaim(datagram.len()) {
                return Some(oldest);
            }
            self.recent.push_back(oldest);
            None
        });
        let mut buffer = free.unwrap_or_else(|| BytesMut::with_capacity(SIZE));
        buffer.extend_from_slice(datagram);
        let copy = buffer.split();
        if self.recent.len() < MAX_KEPT {
            self.recent.push_back(buffer);
        }
        copy
    }
}

/// The size of a buffer: of a datagram in an Ethernet frame. There is no room for a second one that is
/// copied here.
const SIZE: usize = 1500;

/// glibc's lists of free memory for each thread end here.
const MIN_KEPT: usize = 1024;

/// Twice what is received at once, with 96 kB of memory.
const MAX_KEPT: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_once_its_datagram_is_dropped() {
        let mut buffers = DatagramBuffers::default();
        let first = buffers.copy(&[1; 1200]);
        let second = buffers.copy(&[2; 1500]);
        let places = [first.as_ptr(), second.as_ptr()];
        drop((first, second));
        let again = [buffers.copy(&[3; 1500]), buffers.copy(&[4; 1024])];
        assert_eq!([again[0].as_ptr(), again[1].as_ptr()], places);
        assert!(again[0] == [3; 1500][..] && again[1] == [4; 1024][..]);
    }

    #[test]
    fn memory_of_a_datagram_of_which_a_part_is_kept_is_not_used_again() {
        let mut buffers = DatagramBuffers::default();
        let parts: Vec<_> = (0..3 * MAX_KEPT)
            .map(|number| buffers.copy(&[number as u8; 1200]).freeze().slice(1100..1101))
            .collect();
        for (number, part) in parts.iter().enumerate() {
            assert_eq!(part[..], [number as u8]);
        }
        assert_eq!(buffers.recent.len(), MAX_KEPT);
        drop(parts);
        let copies: Vec<_> = (0..MAX_KEPT).map(|_| buffers.copy(&[7; 1200])).collect();
        assert_eq!((copies.len(), buffers.recent.len()), (MAX_KEPT, MAX_KEPT));
    }

    #[test]
    fn small_and_jumbo_datagrams_have_as_much_memory_as_they_need() {
        let mut buffers = DatagramBuffers::default();
        for length in [0, 1, MIN_KEPT - 1, SIZE + 1, 9000] {
            let copy = buffers.copy(&vec![5; length]);
            assert_eq!((copy.len(), copy.capacity()), (length, length));
        }
        assert!(buffers.recent.is_empty());
    }
}
