//! Which frames of a stream the HTTP/3 library is given. Sans-IO.
//!
//! The library keeps a frame until it is whole, of any length that its peer names, and ones that it
//! does not know as well, only to drop them then. It reads on while it hands over, so that many
//! small DATA frames pile up. So long frames are refused here by their headers, frames that mean
//! nothing are left out, and [`Backlog`] knows what waits in the library.

use std::collections::VecDeque;

use bytes::Bytes;

/// A frame that is longer than its receiver takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame of type {kind:#x} of {length} bytes is more than is taken")]
pub struct TooLong {
    kind: u64,
    length: u64,
}

/// Reads a stream's frames (RFC 9114 section 7.1) as they come in.
#[derive(Debug)]
pub(crate) struct Frames {
    /// Bytes of a frame that has to be whole before it means anything.
    limit: u64,
    state: State,
    /// The header of the frame that is being read, as far as it is there.
    header: Vec<u8>,
    /// What has been let through, in order.
    passed: VecDeque<Bytes>,
    pub(crate) backlog: Backlog,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Header,
    Pass { left: u64 },
    Skip { left: u64 },
}

/// The DATA frames that were let through and not handed on.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    frames: VecDeque<u64>,
    cost: u64,
    /// Bytes handed on so far.
    handed_on: u64,
}

impl Frames {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            limit,
            state: State::Header,
            header: Vec::new(),
            passed: VecDeque::new(),
            backlog: Backlog::default(),
        }
    }

    /// Takes in what the stream has brought.
    ///
    /// # Errors
    /// [`TooLong`].
    pub(crate) fn feed(&mut self, mut chunk: Bytes) -> Result<(), TooLong> {
        while !chunk.is_empty() {
            match self.state {
                State::Header => {
                    self.header.push(chunk[0]);
                    chunk = chunk.slice(1..);
                    if let Some((kind, length)) = header(&self.header) {
                        self.begin(kind, length)?;
                    }
                }
                State::Pass { left } | State::Skip { left } => {
                    let count = usize::try_from(left).unwrap_or(usize::MAX).min(chunk.len());
                    let piece = chunk.split_to(count);
                    let left = left - count as u64;
                    if let State::Pass { .. } = self.state {
                        self.passed.push_back(piece);
                        self.state = State::Pass { left };
                    } else {
                        self.state = State::Skip { left };
                    }
                    self.end_if(left == 0);
                }
            }
        }
        Ok(())
    }

    /// What of it the library is given next.
    pub(crate) fn next(&mut self) -> Option<Bytes> {
        self.passed.pop_front()
    }

    /// The stream has ended. In the middle of a frame that was left out the library has to see so
    /// (RFC 9114 section 7.1).
    pub(crate) fn end(&mut self) {
        if matches!(self.state, State::Header | State::Skip { .. }) && !self.header.is_empty() {
            self.passed.push_back(std::mem::take(&mut self.header).into());
        }
    }

    fn begin(&mut self, kind: u64, length: u64) -> Result<(), TooLong> {
        let passes = match kind {
            DATA => length > 0,
            _ => KNOWN.contains(&kind),
        };
        if !passes {
            self.state = State::Skip { left: length };
        } else if kind != DATA && length > self.limit {
            return Err(TooLong { kind, length });
        } else {
            if kind == DATA {
                self.backlog.passed(length);
            }
            self.passed.push_back(Bytes::copy_from_slice(&self.header));
            self.state = State::Pass { left: length };
        }
        self.end_if(length == 0);
        Ok(())
    }

    fn end_if(&mut self, ended: bool) {
        if ended {
            self.state = State::Header;
            self.header.clear();
        }
    }
}

impl Backlog {
    fn passed(&mut self, length: u64) {
        self.frames.push_back(length);
        self.cost += length.saturating_add(FRAME_COST);
    }

    /// Whether so much waits that no more is to be read; `handed_on`: bytes of DATA frames that the
    /// library has given away so far. What waits will be requested.
    pub(crate) fn is_full(&mut self, handed_on: u64) -> bool {
        let mut fresh = handed_on - self.handed_on;
        self.handed_on = handed_on;
        while let Some(left) = self.frames.front_mut() {
            let count = fresh.min(*left);
            fresh -= count;
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

/// Type and length, once both are there.
fn header(bytes: &[u8]) -> Option<(u64, u64)> {
    let (kind, rest) = number(bytes)?;
    let (length, _) = number(rest)?;
    Some((kind, length))
}

/// A number, if it is whole, and what comes after it (RFC 9000 section 16).
pub(crate) fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let length = 1 << (bytes.first()? >> 6);
    let (digits, rest) = bytes.split_at_checked(length)?;
    let first = u64::from(digits[0] & 0x3f);
    Some((digits[1..].iter().fold(first, |value, byte| value << 8 | u64::from(*byte)), rest))
}

const DATA: u64 = 0;

/// HEADERS, CANCEL_PUSH, SETTINGS, PUSH_PROMISE, GOAWAY, MAX_PUSH_ID, and those of HTTP/2 that are
/// forbidden (RFC 9114 section 7.2): the library knows what to make of them where.
const KNOWN: [u64; 10] = [1, 3, 4, 5, 7, 0xd, 2, 6, 8, 9];

/// What a frame costs in memory besides its bytes, roughly.
const FRAME_COST: u64 = 128;

/// What may wait in the library of a body.
const MAX_BACKLOG: u64 = 256 * 1024;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        for number in [kind, payload.len() as u64] {
            // Lengths of eight bytes are as good as any.
            frame.extend((number | 0xc0 << 56).to_be_bytes());
        }
        frame.extend(payload);
        frame
    }

    /// What passes of these bytes, in pieces of such lengths.
    fn passes(limit: u64, bytes: &[u8], pieces: &[usize]) -> Result<Vec<u8>, TooLong> {
        let mut frames = Frames::new(limit);
        let (mut rest, mut out) = (bytes, Vec::new());
        let mut lengths = pieces.iter().cycle();
        while !rest.is_empty() {
            let count = lengths.next().map_or(rest.len(), |length| (*length).clamp(1, rest.len()));
            frames.feed(Bytes::copy_from_slice(&rest[..count]))?;
            rest = &rest[count..];
            while let Some(piece) = frames.next() {
                assert!(!piece.is_empty());
                out.extend(piece);
            }
        }
        frames.end();
        while let Some(piece) = frames.next() {
            out.extend(piece);
        }
        Ok(out)
    }

    #[test]
    fn rfc9114_7_2_8_what_nobody_knows_is_left_out_whatever_its_length() {
        let head = frame(1, b"head");
        let unknown = frame(0x21, &[0; 100_000]);
        let bytes = [&unknown[..], &head, &unknown, &frame(0, b""), &frame(0, b"data")].concat();
        let expected = [head, frame(0, b"data")].concat();
        for pieces in [&[1][..], &[7, 1000], &[1_000_000]] {
            assert_eq!(passes(10, &bytes, pieces), Ok(expected.clone()));
        }
    }

    #[test]
    fn long_heads_are_refused_by_their_header() {
        for kind in KNOWN {
            let header = &frame(kind, &[0; 11])[..16];
            assert_eq!(passes(10, header, &[]), Err(TooLong { kind, length: 11 }));
            assert_eq!(passes(11, header, &[]), Ok(header.to_vec()));
        }
        assert!(passes(10, &frame(DATA, &[0; 11]), &[]).is_ok(), "a body may be long");
    }

    #[test]
    fn rfc9114_7_1_the_library_sees_a_frame_that_breaks_off() {
        for bytes in [&frame(0x21, b"unknown")[..20], &frame(1, b"head")[..3]] {
            let passed = passes(100, bytes, &[]).unwrap();
            assert!(!passed.is_empty() && bytes.starts_with(&passed));
        }
    }

    #[test]
    fn small_frames_pile_up_only_so_far() {
        let mut frames = Frames::new(10);
        let mut count = 0;
        while !frames.backlog.is_full(0) {
            frames.feed(frame(0, b"x").into()).unwrap();
            count += 1;
        }
        assert!((1000..3000).contains(&count), "{count}");
        assert!(frames.backlog.is_full(1) || !frames.backlog.is_full(2), "taken, there is room");
        // One frame is never too much: it is handed on as it comes in.
        let mut frames = Frames::new(10);
        frames.feed(Bytes::copy_from_slice(&frame(0, &[0; 1 << 20])[..1 << 19])).unwrap();
        assert!(!frames.backlog.is_full(0));
    }

    proptest! {
        #[test]
        fn how_bytes_are_cut_makes_no_difference(
            kinds in prop::collection::vec((0_u64..16, 0_usize..40), 0..12),
            cut in 0_usize..400,
            pieces in prop::collection::vec(1_usize..50, 1..8),
        ) {
            let all: Vec<u8> =
                kinds.iter().flat_map(|(kind, length)| frame(*kind, &vec![7; *length])).collect();
            let bytes = &all[..cut.min(all.len())];
            prop_assert_eq!(passes(30, bytes, &pieces), passes(30, bytes, &[]));
        }

        #[test]
        fn any_bytes_pass_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = passes(100, &bytes, &[13]);
        }
    }
}
