//! Memory of received datagrams.

use std::collections::VecDeque;

use bytes::BytesMut;

/// Copies each datagram into its own buffer: a connection may keep a part of a datagram for long, and
/// counts the memory of the whole datagram.
///
/// Most buffers are dropped soon, and reused here: glibc has no free list for each thread in the size of
/// a full datagram, and allocating one takes longer than everything else that this crate does with it.
#[derive(Default)]
pub(crate) struct DatagramBuffers {
    /// The buffers of the last full datagrams, the oldest first. A buffer is free once its datagram is
    /// dropped.
    recent: VecDeque<BytesMut>,
}

impl DatagramBuffers {
    /// A copy of a datagram.
    pub(crate) fn copy(&mut self, datagram: &[u8]) -> BytesMut {
        if !(MIN_REUSED_BYTES..=BUFFER_BYTES).contains(&datagram.len()) {
            return datagram.into();
        }
        let free = self.recent.pop_front().and_then(|mut oldest| {
            if oldest.try_reclaim(datagram.len()) {
                return Some(oldest);
            }
            self.recent.push_back(oldest);
            None
        });
        let mut buffer = free.unwrap_or_else(|| BytesMut::with_capacity(BUFFER_BYTES));
        buffer.extend_from_slice(datagram);
        let copy = buffer.split();
        if self.recent.len() < MAX_BUFFERS {
            self.recent.push_back(buffer);
        }
        copy
    }
}

/// The size of a buffer: that of a datagram in an Ethernet frame, too small for two datagrams that are
/// copied here.
const BUFFER_BYTES: usize = 1500;

/// About the largest size for which glibc has free lists for each thread.
const MIN_REUSED_BYTES: usize = 1024;

/// Twice the buffers that are received at once, with 96 kB of memory.
const MAX_BUFFERS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_reused_once_its_datagram_is_dropped() {
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
    fn memory_is_not_reused_while_a_part_of_its_datagram_is_kept() {
        let mut buffers = DatagramBuffers::default();
        let parts: Vec<_> = (0..3 * MAX_BUFFERS)
            .map(|number| buffers.copy(&[number as u8; 1200]).freeze().slice(1100..1101))
            .collect();
        for (number, part) in parts.iter().enumerate() {
            assert_eq!(part[..], [number as u8]);
        }
        assert_eq!(buffers.recent.len(), MAX_BUFFERS);
        drop(parts);
        let copies: Vec<_> = (0..MAX_BUFFERS).map(|_| buffers.copy(&[7; 1200])).collect();
        assert_eq!((copies.len(), buffers.recent.len()), (MAX_BUFFERS, MAX_BUFFERS));
    }

    #[test]
    fn small_and_jumbo_datagrams_have_as_much_memory_as_they_need() {
        let mut buffers = DatagramBuffers::default();
        for length in [0, 1, MIN_REUSED_BYTES - 1, BUFFER_BYTES + 1, 9000] {
            let copy = buffers.copy(&vec![5; length]);
            assert_eq!((copy.len(), copy.capacity()), (length, length));
        }
        assert!(buffers.recent.is_empty());
    }
}
