//! HTTP/2's frames as they go by, counted without the library: how much of its answers a client has
//! let go, and how many frames it sends that ask for nothing.
//!
//! A client can keep a connection busy with pings while its windows stay closed, and can have each
//! of its few bytes answered, or all streams looked through, as often as it likes.

use std::time::{Duration, Instant};

/// Reads one direction of a connection, in pieces of any size, as frames (RFC 9113 section 4.1).
#[derive(Debug, Default)]
pub(crate) struct FrameMeter {
    /// Bytes of the preface that are still to come.
    preface: usize,
    head: [u8; HEAD],
    /// Bytes of the head that are there, and of the payload that are not.
    have: usize,
    left: usize,
}

/// What was in some bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FrameCounts {
    /// Bytes of DATA frames.
    pub(crate) data: u64,
    /// HEADERS frames.
    pub(crate) requests: u64,
    /// Frames that carry nothing of a request: SETTINGS, PING, PRIORITY and what nobody knows.
    pub(crate) idle: u64,
}

const HEAD: usize = 9;
/// RFC 9113 section 3.4.
const PREFACE: usize = 24;

impl FrameMeter {
    /// For what a client sends.
    pub(crate) fn of_client() -> Self {
        Self { preface: PREFACE, ..Self::default() }
    }

    /// Takes the next bytes.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> FrameCounts {
        let mut counts = FrameCounts::default();
        bytes = &bytes[take(&mut self.preface, bytes.len())..];
        while !bytes.is_empty() {
            if self.have < HEAD {
                let count = bytes.len().min(HEAD - self.have);
                self.head[self.have..self.have + count].copy_from_slice(&bytes[..count]);
                self.have += count;
                bytes = &bytes[count..];
                if self.have < HEAD {
                    break;
                }
                let [a, b, c, ..] = self.head;
                self.left = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
                self.count(&mut counts);
            }
            let count = take(&mut self.left, bytes.len());
            if self.head[3] == DATA {
                counts.data += count as u64;
            }
            bytes = &bytes[count..];
            if self.left == 0 {
                self.have = 0;
            }
        }
        counts
    }

    fn count(&self, counts: &mut FrameCounts) {
        match self.head[3] {
            HEADERS => counts.requests += 1,
            DATA | RST_STREAM | WINDOW_UPDATE | CONTINUATION => {}
            _ => counts.idle += 1,
        }
    }
}

/// Takes up to `most` away; how many.
fn take(left: &mut usize, most: usize) -> usize {
    let count = most.min(*left);
    *left -= count;
    count
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

/// How many frames without a request a client may send: a thousand at once, a hundred a second, and
/// two with each request. A browser sends ten in all; one that is pinged to measure a path, a few a
/// second.
#[derive(Debug)]
pub(crate) struct IdleFrameLimit {
    left: u64,
    since: Instant,
}

impl IdleFrameLimit {
    pub(crate) fn new(now: Instant) -> Self {
        Self { left: AT_ONCE, since: now }
    }

    /// Takes note of what came. False: it is too much.
    pub(crate) fn allows(&mut self, counts: FrameCounts, now: Instant) -> bool {
        let seconds = now.saturating_duration_since(self.since).as_secs();
        self.since += Duration::from_secs(seconds);
        let more = seconds * A_SECOND + counts.requests * A_REQUEST;
        let left = self.left.saturating_add(more).min(AT_ONCE).checked_sub(counts.idle);
        self.left = left.unwrap_or(0);
        left.is_some()
    }
}

const AT_ONCE: u64 = 1000;
const A_SECOND: u64 = 100;
const A_REQUEST: u64 = 2;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, length: usize) -> Vec<u8> {
        let mut frame = (length as u32).to_be_bytes()[1..].to_vec();
        frame.extend([kind, 0, 0, 0, 0, 1]);
        frame.resize(HEAD + length, 0);
        frame
    }

    proptest! {
        #[test]
        fn rfc9113_4_1_frames_are_counted_however_they_are_cut(
            frames in prop::collection::vec((0u8..12, 0usize..300), 0..20),
            piece in 1usize..400,
        ) {
            let all: Vec<u8> =
                frames.iter().flat_map(|(kind, length)| frame(*kind, *length)).collect();
            let bytes = [vec![b'P'; PREFACE], all].concat();
            let mut meter = FrameMeter::of_client();
            let mut counted = FrameCounts::default();
            for piece in bytes.chunks(piece) {
                let FrameCounts { data, requests, idle } = meter.feed(piece);
                counted.data += data;
                counted.requests += requests;
                counted.idle += idle;
            }
            let data = frames.iter().filter(|(kind, _)| *kind == DATA);
            prop_assert_eq!(counted.data, data.map(|(_, length)| *length as u64).sum::<u64>());
            let of = |kinds: &[u8]| frames.iter().filter(|(kind, _)| kinds.contains(kind)).count() as u64;
            prop_assert_eq!(counted.requests, of(&[HEADERS]));
            prop_assert_eq!(counted.idle, of(&[2, 4, 5, 6, 7, 10, 11]));
        }
    }

    #[test]
    fn patience_ends_and_comes_back() {
        let began = Instant::now();
        let after = |seconds| began + Duration::from_secs(seconds);
        let idle = |idle| FrameCounts { idle, ..FrameCounts::default() };
        let mut limit = IdleFrameLimit::new(began);
        assert!(limit.allows(idle(1000), began));
        assert!(!limit.allows(idle(1), began));
        assert!(limit.allows(idle(100), after(1)));
        assert!(!limit.allows(idle(1), after(1)));
        // No more than at first, however long it lasts.
        assert!(!limit.allows(idle(1001), after(1_000_000)));
        let mut limit = IdleFrameLimit::new(began);
        for _ in 0..10_000 {
            assert!(limit.allows(FrameCounts { requests: 1, idle: 2, data: 0 }, began));
        }
    }
}
