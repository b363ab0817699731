//! Counts the frames of an HTTP/2 connection, and limits those that carry no part of a request.

use std::time::{Duration, Instant};

/// Counts the HTTP/2 frames in one direction of a connection (RFC 9113 section 4.1). Accepts pieces
/// of any size.
#[derive(Debug, Default)]
pub(crate) struct FrameMeter {
    /// Bytes of the preface that have not arrived.
    preface_left: usize,
    header: [u8; FRAME_HEADER_BYTES],
    /// Bytes of `header` that have arrived.
    header_bytes: usize,
    /// Bytes of the frame's payload that have not arrived.
    payload_left: usize,
}

/// The frames in some bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FrameCounts {
    /// Bytes of DATA frames.
    pub(crate) data: u64,
    /// DATA frames that are not empty.
    pub(crate) data_frames: u64,
    /// HEADERS frames.
    pub(crate) requests: u64,
    /// Frames without a part of a request: SETTINGS, PING, PRIORITY and unknown types.
    pub(crate) idle: u64,
}

const FRAME_HEADER_BYTES: usize = 9;
/// RFC 9113 section 3.4.
const PREFACE_BYTES: usize = 24;

impl FrameMeter {
    /// For the client's direction, which starts with the preface.
    pub(crate) fn for_client() -> Self {
        Self { preface_left: PREFACE_BYTES, ..Self::default() }
    }

    /// Counts the next bytes.
    pub(crate) fn count(&mut self, mut bytes: &[u8]) -> FrameCounts {
        let mut counts = FrameCounts::default();
        bytes = &bytes[subtract_up_to(&mut self.preface_left, bytes.len())..];
        while !bytes.is_empty() {
            if self.header_bytes < FRAME_HEADER_BYTES {
                let count = bytes.len().min(FRAME_HEADER_BYTES - self.header_bytes);
                self.header[self.header_bytes..self.header_bytes + count]
                    .copy_from_slice(&bytes[..count]);
                self.header_bytes += count;
                bytes = &bytes[count..];
                if self.header_bytes < FRAME_HEADER_BYTES {
                    break;
                }
                let [a, b, c, ..] = self.header;
                self.payload_left = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
                self.count_frame(&mut counts);
            }
            let count = subtract_up_to(&mut self.payload_left, bytes.len());
            if self.header[3] == DATA {
                counts.data += count as u64;
            }
            bytes = &bytes[count..];
            if self.payload_left == 0 {
                self.header_bytes = 0;
            }
        }
        counts
    }

    fn count_frame(&self, counts: &mut FrameCounts) {
        match self.header[3] {
            HEADERS => counts.requests += 1,
            DATA if self.payload_left > 0 => counts.data_frames += 1,
            DATA | RST_STREAM | WINDOW_UPDATE | CONTINUATION => {}
            _ => counts.idle += 1,
        }
    }
}

/// Subtracts up to `max` from `left`. Returns how much.
fn subtract_up_to(left: &mut usize, max: usize) -> usize {
    let count = max.min(*left);
    *left -= count;
    count
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

/// Limits frames that carry no part of a request: a thousand at once, a hundred a second, two with
/// each request, and one for each DATA frame of a response. A browser sends ten in all; gRPC
/// clients measure the path by a PING in each round trip in which they receive data.
#[derive(Debug)]
pub(crate) struct IdleFrameLimit {
    frames_left: u64,
    refilled_at: Instant,
}

impl IdleFrameLimit {
    pub(crate) fn new(now: Instant) -> Self {
        Self { frames_left: MAX_IDLE_FRAMES, refilled_at: now }
    }

    /// Permits this many further frames, up to the initial limit.
    pub(crate) fn permit(&mut self, frames: u64) {
        self.frames_left = self.frames_left.saturating_add(frames).min(MAX_IDLE_FRAMES);
    }

    /// Counts received frames. Returns false if the limit is exceeded.
    pub(crate) fn allows(&mut self, counts: FrameCounts, now: Instant) -> bool {
        let seconds = now.saturating_duration_since(self.refilled_at).as_secs();
        self.refilled_at += Duration::from_secs(seconds);
        let more = seconds * IDLE_FRAMES_PER_SECOND + counts.requests * IDLE_FRAMES_PER_REQUEST;
        let left =
            self.frames_left.saturating_add(more).min(MAX_IDLE_FRAMES).checked_sub(counts.idle);
        self.frames_left = left.unwrap_or(0);
        left.is_some()
    }
}

const MAX_IDLE_FRAMES: u64 = 1000;
const IDLE_FRAMES_PER_SECOND: u64 = 100;
const IDLE_FRAMES_PER_REQUEST: u64 = 2;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, length: usize) -> Vec<u8> {
        let mut frame = (length as u32).to_be_bytes()[1..].to_vec();
        frame.extend([kind, 0, 0, 0, 0, 1]);
        frame.resize(FRAME_HEADER_BYTES + length, 0);
        frame
    }

    proptest! {
        #[test]
        fn rfc9113_4_1_frames_are_counted_however_they_are_split(
            frames in prop::collection::vec((0u8..12, 0usize..300), 0..20),
            piece in 1usize..400,
        ) {
            let all: Vec<u8> =
                frames.iter().flat_map(|(kind, length)| frame(*kind, *length)).collect();
            let bytes = [vec![b'P'; PREFACE_BYTES], all].concat();
            let mut meter = FrameMeter::for_client();
            let mut counted = FrameCounts::default();
            for piece in bytes.chunks(piece) {
                let FrameCounts { data, data_frames, requests, idle } = meter.count(piece);
                counted.data += data;
                counted.data_frames += data_frames;
                counted.requests += requests;
                counted.idle += idle;
            }
            let data = frames.iter().filter(|(kind, _)| *kind == DATA);
            prop_assert_eq!(counted.data, data.map(|(_, length)| *length as u64).sum::<u64>());
            let data = frames.iter().filter(|(kind, length)| *kind == DATA && *length > 0);
            prop_assert_eq!(counted.data_frames, data.count() as u64);
            let count_of = |kinds: &[u8]| frames.iter().filter(|(kind, _)| kinds.contains(kind)).count() as u64;
            prop_assert_eq!(counted.requests, count_of(&[HEADERS]));
            prop_assert_eq!(counted.idle, count_of(&[2, 4, 5, 6, 7, 10, 11]));
        }
    }

    #[test]
    fn idle_frames_are_limited_and_the_limit_recovers() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let idle = |idle| FrameCounts { idle, ..FrameCounts::default() };
        let mut limit = IdleFrameLimit::new(start);
        assert!(limit.allows(idle(1000), start));
        assert!(!limit.allows(idle(1), start));
        assert!(limit.allows(idle(100), after(1)));
        assert!(!limit.allows(idle(1), after(1)));
        // A gRPC client measures the path while it gets data.
        limit.permit(20);
        assert!(limit.allows(idle(20), after(1)));
        assert!(!limit.allows(idle(1), after(1)));
        // The limit does not grow beyond its initial value.
        assert!(!limit.allows(idle(1001), after(1_000_000)));
        let mut limit = IdleFrameLimit::new(start);
        for _ in 0..10_000 {
            assert!(limit.allows(FrameCounts { requests: 1, ..idle(2) }, start));
        }
    }
}
