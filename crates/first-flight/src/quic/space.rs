//! A packet number space (RFC 9000 section 12.3): packets received, and frames to send.

use std::collections::BTreeSet;

use firstflight_wire::{PacketKeys, put_varint};

use super::assembly::Assembly;
use crate::record::Messages;

/// One of the spaces Initial, Handshake and application data.
#[derive(Default)]
pub(crate) struct Space {
    pub(crate) read: Option<PacketKeys>,
    pub(crate) write: Option<PacketKeys>,
    /// The number of the next packet.
    pub(crate) next: u64,
    /// Numbers of the newest packets received.
    received: BTreeSet<u64>,
    pub(crate) largest: Option<u64>,
    pub(crate) ack_pending: bool,
    pub(crate) crypto: Assembly,
    pub(crate) messages: Messages,
    /// Number of handshake bytes sent.
    pub(crate) crypto_sent: u64,
    /// Frames to send, each no longer than a packet.
    pub(crate) frames: Vec<Vec<u8>>,
}

impl Space {
    /// Records a received packet.
    pub(crate) fn receive(&mut self, number: u64, elicits_ack: bool) {
        self.received.insert(number);
        if self.received.len() > MAX_RECEIVED {
            self.received.pop_first();
        }
        self.largest = self.largest.max(Some(number));
        self.ack_pending |= elicits_ack;
    }

    /// Whether a packet with this number was received.
    pub(crate) fn has(&self, number: u64) -> bool {
        let forgotten = self.received.len() == MAX_RECEIVED
            && self.received.first().is_some_and(|oldest| number < *oldest);
        forgotten || self.received.contains(&number)
    }

    /// Queues handshake messages in CRYPTO frames (RFC 9000 section 19.6).
    pub(crate) fn send_crypto(&mut self, messages: &[u8]) {
        for piece in messages.chunks(MAX_FRAME_DATA) {
            self.frames.push(crypto_frame(self.crypto_sent, piece));
            self.crypto_sent += piece.len() as u64;
        }
    }

    /// An ACK frame (section 19.3), if one is due.
    pub(crate) fn take_ack(&mut self) -> Option<Vec<u8>> {
        if !std::mem::take(&mut self.ack_pending) {
            return None;
        }
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for &number in self.received.iter().rev() {
            let count = ranges.len();
            match ranges.last_mut() {
                Some((low, _)) if *low == number + 1 => *low = number,
                _ if count == MAX_RANGES => break,
                _ => ranges.push((number, number)),
            }
        }
        let (mut low, high) = *ranges.first()?;
        let mut frame = vec![0x02];
        for value in [high, 0, ranges.len() as u64 - 1, high - low] {
            put_varint(&mut frame, value);
        }
        for (next_low, next_high) in &ranges[1..] {
            put_varint(&mut frame, low - next_high - 2);
            put_varint(&mut frame, next_high - next_low);
            low = *next_low;
        }
        Some(frame)
    }
}

/// A CRYPTO frame.
pub(crate) fn crypto_frame(offset: u64, data: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x06];
    put_varint(&mut frame, offset);
    put_varint(&mut frame, data.len() as u64);
    frame.extend_from_slice(data);
    frame
}

/// STREAM frames (section 19.8) for data from this offset of a stream on.
pub(crate) fn stream_frames(id: u64, mut offset: u64, data: &[u8], fin: bool) -> Vec<Vec<u8>> {
    let mut pieces: Vec<&[u8]> = data.chunks(MAX_FRAME_DATA).collect();
    if pieces.is_empty() {
        pieces.push(&[]);
    }
    let last = pieces.len() - 1;
    let mut frames = Vec::new();
    for (number, piece) in pieces.into_iter().enumerate() {
        let ends = fin && number == last;
        let mut frame = vec![0x0e | u8::from(ends)];
        put_varint(&mut frame, id);
        put_varint(&mut frame, offset);
        put_varint(&mut frame, piece.len() as u64);
        frame.extend_from_slice(piece);
        offset += piece.len() as u64;
        frames.push(frame);
    }
    frames
}

/// Maximum bytes of data in a frame; with its packet it fits into a datagram of 1,200 bytes.
pub(crate) const MAX_FRAME_DATA: usize = 1000;
/// Maximum number of remembered packet numbers.
const MAX_RECEIVED: usize = 512;
/// Maximum number of ranges in an ACK frame.
const MAX_RANGES: usize = 32;

#[cfg(test)]
mod tests {
    use firstflight_wire::{Frame, frames};

    use super::*;

    #[test]
    fn rfc9000_19_3_1_ranges_are_relative() {
        let mut space = Space::default();
        assert_eq!(space.take_ack(), None);
        for number in [0, 1, 4, 9, 8, 7] {
            space.receive(number, true);
        }
        // 9 down to 7, a gap of 6 and 5, 4, a gap of 3 and 2, 1 and 0.
        assert_eq!(space.take_ack(), Some(vec![2, 9, 0, 2, 2, 1, 0, 1, 1]));
        assert_eq!(space.take_ack(), None, "only once");
        assert!(space.has(4) && !space.has(5));
    }

    #[test]
    fn rfc9000_19_8_long_streams_take_several_frames() {
        let sent = stream_frames(4, 0, &[7; 2 * MAX_FRAME_DATA + 1], true).concat();
        let found: Vec<_> = frames(&sent)
            .map(|frame| match frame {
                Frame::Stream { id: 4, offset, data, fin } => (offset, data.len(), fin),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(found, [(0, 1000, false), (1000, 1000, false), (2000, 1, true)]);
        assert_eq!(stream_frames(0, 0, b"", true), [vec![0x0f, 0, 0, 0]]);
    }
}
