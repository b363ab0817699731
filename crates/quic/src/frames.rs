//! Decides which frames of a stream reach the HTTP/3 library. Sans-IO.
//!
//! The library buffers each frame until it is complete, whatever length the peer announces, even
//! frames of unknown types, which it then discards. It also reads ahead of the application, so many
//! small DATA frames accumulate. This module therefore refuses long frames by their headers and
//! drops frames of unknown types, and [`Backlog`] counts what is buffered in the library.

use std::collections::VecDeque;

use bytes::Bytes;
use firstflight_wire::Input;

/// A frame that is longer than the receiver's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame of type {kind:#x} has {length} bytes, more than the limit")]
pub struct TooLong {
    kind: u64,
    length: u64,
}

/// A stream that ended within a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stream ends within a frame")]
pub struct Truncated;

/// Parses a stream's frames (RFC 9114 section 7.1) as they arrive.
#[derive(Debug)]
pub(crate) struct Frames {
    /// Maximum number of bytes of a frame other than DATA.
    limit: u64,
    state: State,
    /// The bytes of the current frame's header that have arrived.
    header: Vec<u8>,
    /// Data for the library, in order.
    output: VecDeque<Bytes>,
    pub(crate) backlog: Backlog,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Header,
    Pass { left: u64 },
    Skip { left: u64 },
}

/// The DATA frames that the library has and the application has not read yet.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    frames: VecDeque<u64>,
    cost: u64,
    /// DATA bytes that the application has read so far.
    delivered: u64,
}

impl Frames {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            limit,
            state: State::Header,
            header: Vec::new(),
            output: VecDeque::new(),
            backlog: Backlog::default(),
        }
    }

    /// Adds bytes received on the stream.
    ///
    /// # Errors
    /// [`TooLong`].
    pub(crate) fn push(&mut self, mut chunk: Bytes) -> Result<(), TooLong> {
        while !chunk.is_empty() {
            match self.state {
                State::Header => match header(&chunk).filter(|_| self.header.is_empty()) {
                    // Most headers arrive complete, and are passed in one piece with the payload.
                    Some((kind, length, size)) => {
                        self.start_frame(kind, length)?;
                        let count = at_most(length, chunk.len() - size);
                        self.pass(chunk.split_to(size + count), count);
                    }
                    None => {
                        self.header.push(chunk[0]);
                        chunk = chunk.slice(1..);
                        if let Some((kind, length, _)) = header(&self.header) {
                            self.start_frame(kind, length)?;
                            self.pass(Bytes::copy_from_slice(&self.header), 0);
                        }
                    }
                },
                State::Pass { left } | State::Skip { left } => {
                    let count = at_most(left, chunk.len());
                    self.pass(chunk.split_to(count), count);
                }
            }
        }
        Ok(())
    }

    /// Returns the next data for the library.
    pub(crate) fn next(&mut self) -> Option<Bytes> {
        self.output.pop_front()
    }

    /// Handles the end of the stream. The library would accept a truncated DATA frame as complete.
    ///
    /// # Errors
    /// [`Truncated`] (RFC 9114 section 7.1).
    pub(crate) fn end(&self) -> Result<(), Truncated> {
        match self.state == State::Header && self.header.is_empty() {
            true => Ok(()),
            false => Err(Truncated),
        }
    }

    fn start_frame(&mut self, kind: u64, length: u64) -> Result<(), TooLong> {
        let is_passed = match kind {
            DATA => length > 0,
            _ => KNOWN.contains(&kind),
        };
        if is_passed && kind != DATA && length > self.limit {
            return Err(TooLong { kind, length });
        }
        if is_passed && kind == DATA {
            self.backlog.add(length);
        }
        self.state =
            if is_passed { State::Pass { left: length } } else { State::Skip { left: length } };
        Ok(())
    }

    /// Passes or drops a piece of the current frame, with `count` bytes of its content.
    fn pass(&mut self, piece: Bytes, count: usize) {
        let (State::Pass { left } | State::Skip { left }) = &mut self.state else { return };
        *left -= count as u64;
        let is_last = *left == 0;
        if let State::Pass { .. } = self.state {
            self.output.push_back(piece);
        }
        if is_last {
            self.state = State::Header;
            self.header.clear();
        }
    }
}

impl Backlog {
    fn add(&mut self, length: u64) {
        self.frames.push_back(length);
        self.cost += length.saturating_add(FRAME_COST);
    }

    /// Returns whether reading has to pause because of the frames in the library. `delivered` is
    /// the number of DATA bytes that the library has delivered so far.
    pub(crate) fn is_full(&mut self, delivered: u64) -> bool {
        let mut newly_delivered = delivered - self.delivered;
        self.delivered = delivered;
        while let Some(left) = self.frames.front_mut() {
            let count = newly_delivered.min(*left);
            newly_delivered -= count;
            *left -= count;
            self.cost -= count;
            if *left > 0 {
                break;
            }
            self.frames.pop_front();
            self.cost -= FRAME_COST;
        }
        self.frames.len() > 1 && self.cost > MAX_BACKLOG
    }
}

/// Parses a frame header. Returns the frame's type and length, and the header's length, or `None` if
/// the header is incomplete.
fn header(bytes: &[u8]) -> Option<(u64, u64, usize)> {
    let mut input = Input(bytes);
    let (kind, length) = (input.varint()?, input.varint()?);
    Some((kind, length, bytes.len() - input.0.len()))
}

fn at_most(left: u64, available: usize) -> usize {
    usize::try_from(left).unwrap_or(usize::MAX).min(available)
}

const DATA: u64 = 0;

/// HEADERS, CANCEL_PUSH, SETTINGS, PUSH_PROMISE, GOAWAY, MAX_PUSH_ID, and the frames of
/// HTTP/2 that are forbidden (RFC 9114 section 7.2): the library handles them.
const KNOWN: [u64; 10] = [1, 3, 4, 5, 7, 0xd, 2, 6, 8, 9];

/// Estimated memory of a frame in addition to its bytes.
const FRAME_COST: u64 = 128;

/// Maximum size of the DATA frames of a stream in the library.
const MAX_BACKLOG: u64 = 256 * 1024;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        for number in [kind, payload.len() as u64] {
            // Lengths may be encoded in eight bytes.
            frame.extend((number | 0xc0 << 56).to_be_bytes());
        }
        frame.extend(payload);
        frame
    }

    /// The filtered bytes if `bytes` arrive in pieces of these lengths.
    fn filter(limit: u64, bytes: &[u8], pieces: &[usize]) -> Result<Vec<u8>, TooLong> {
        let mut frames = Frames::new(limit);
        let (mut rest, mut out) = (bytes, Vec::new());
        let mut lengths = pieces.iter().cycle();
        while !rest.is_empty() {
            let count = lengths.next().map_or(rest.len(), |length| (*length).clamp(1, rest.len()));
            frames.push(Bytes::copy_from_slice(&rest[..count]))?;
            rest = &rest[count..];
            while let Some(piece) = frames.next() {
                assert!(!piece.is_empty());
                out.extend(piece);
            }
        }
        Ok(out)
    }

    #[test]
    fn rfc9114_7_2_8_unknown_frames_of_any_length_are_dropped() {
        let head = frame(1, b"head");
        let unknown = frame(0x21, &[0; 100_000]);
        let bytes = [&unknown[..], &head, &unknown, &frame(0, b""), &frame(0, b"data")].concat();
        let expected = [head, frame(0, b"data")].concat();
        for pieces in [&[1][..], &[7, 1000], &[1_000_000]] {
            assert_eq!(filter(10, &bytes, pieces), Ok(expected.clone()));
        }
    }

    #[test]
    fn long_header_sections_are_refused_by_the_frame_header() {
        for kind in KNOWN {
            let header = &frame(kind, &[0; 11])[..16];
            assert_eq!(filter(10, header, &[]), Err(TooLong { kind, length: 11 }));
            assert_eq!(filter(11, header, &[]), Ok(header.to_vec()));
        }
        assert!(filter(10, &frame(DATA, &[0; 11]), &[]).is_ok(), "a body may be long");
    }

    #[test]
    fn rfc9114_7_1_a_truncated_frame_of_any_type_is_noticed() {
        for kind in [0, 1, 4, 0x21] {
            let whole = frame(kind, b"payload");
            for length in 0..=whole.len() {
                let mut frames = Frames::new(100);
                frames.push(Bytes::copy_from_slice(&whole[..length])).unwrap();
                let expected =
                    if length == 0 || length == whole.len() { Ok(()) } else { Err(Truncated) };
                assert_eq!(frames.end(), expected, "{kind} {length}");
            }
        }
    }

    #[test]
    fn the_backlog_of_small_frames_is_limited() {
        let mut frames = Frames::new(10);
        let mut count = 0;
        while !frames.backlog.is_full(0) {
            frames.push(frame(0, b"x").into()).unwrap();
            count += 1;
        }
        assert!((1000..3000).contains(&count), "{count}");
        assert!(
            frames.backlog.is_full(1) || !frames.backlog.is_full(2),
            "there is room after a read"
        );
        // One frame never fills the backlog: it is delivered as it arrives.
        let mut frames = Frames::new(10);
        frames.push(Bytes::copy_from_slice(&frame(0, &[0; 1 << 20])[..1 << 19])).unwrap();
        assert!(!frames.backlog.is_full(0));
    }

    proptest! {
        #[test]
        fn the_result_does_not_depend_on_the_sizes_of_the_pieces(
            kinds in prop::collection::vec((0_u64..16, 0_usize..40), 0..12),
            cut in 0_usize..400,
            pieces in prop::collection::vec(1_usize..50, 1..8),
        ) {
            let all: Vec<u8> =
                kinds.iter().flat_map(|(kind, length)| frame(*kind, &vec![7; *length])).collect();
            let bytes = &all[..cut.min(all.len())];
            prop_assert_eq!(filter(30, bytes, &pieces), filter(30, bytes, &[]));
        }

        #[test]
        fn any_bytes_are_filtered_without_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let _ = filter(100, &bytes, &[13]);
        }
    }
}
