use std::collections::VecDeque;

use bytes::Bytes;
use firstflight_wire::Input;

use crate::frames::{Frames, TooLong, Truncated};

/// Filters the data of one HTTP/3 stream for a library that buffers everything it gets. Sans-IO:
/// returns the data that is pushed, without empty DATA frames and frames of unknown types. Refuses a
/// frame that is too long by its header, before the library waits for its payload.
#[derive(Debug)]
pub struct StreamFilter {
    kind: StreamKind,
    /// Unfiltered data for the library, ahead of the data of any frames.
    passthrough: VecDeque<Bytes>,
}

/// What a stream carries.
#[derive(Debug)]
enum StreamKind {
    /// A request or a response, filtered by frames.
    Message(Frames),
    /// A unidirectional stream whose type is not known yet, with the bytes of the type received so
    /// far.
    Untyped(Vec<u8>),
    /// The control stream, filtered by frames.
    Control(Frames),
    /// Any other unidirectional stream. Not filtered: the library reads only its type.
    Other,
}

impl StreamFilter {
    /// For a request or response stream. `max_head`: limit of an encoded header section, in bytes.
    pub fn message(max_head: u64) -> Self {
        Self::new(StreamKind::Message(Frames::new(max_head)))
    }

    /// For a unidirectional stream of any type (RFC 9114 section 6.2).
    pub fn unidirectional() -> Self {
        Self::new(StreamKind::Untyped(Vec::new()))
    }

    fn new(kind: StreamKind) -> Self {
        Self { kind, passthrough: VecDeque::new() }
    }

    /// Adds bytes received on the stream.
    ///
    /// # Errors
    /// [`TooLong`]: the stream must not be read further.
    pub fn push(&mut self, chunk: Bytes) -> Result<(), TooLong> {
        match &mut self.kind {
            StreamKind::Message(frames) | StreamKind::Control(frames) => frames.push(detach(chunk)),
            StreamKind::Untyped(stream_type) => {
                let mut count = 0;
                while Input(stream_type).varint().is_none() && count < chunk.len() {
                    stream_type.push(chunk[count]);
                    count += 1;
                }
                match Input(stream_type).varint() {
                    Some(CONTROL) => {
                        let mut frames = Frames::new(MAX_CONTROL_FRAME);
                        frames.push(detach(chunk.slice(count..)))?;
                        self.kind = StreamKind::Control(frames);
                        self.passthrough.push_back(chunk.slice(..count));
                    }
                    Some(_) => {
                        self.kind = StreamKind::Other;
                        self.passthrough.push_back(chunk);
                    }
                    None => self.passthrough.push_back(chunk),
                }
                Ok(())
            }
            StreamKind::Other => {
                self.passthrough.push_back(chunk);
                Ok(())
            }
        }
    }

    /// Returns the next data for the library, or `None` until more is pushed.
    pub fn next_piece(&mut self) -> Option<Bytes> {
        if let Some(piece) = self.passthrough.pop_front() {
            return Some(piece);
        }
        match &mut self.kind {
            StreamKind::Message(frames) | StreamKind::Control(frames) => frames.next(),
            StreamKind::Untyped(_) | StreamKind::Other => None,
        }
    }

    /// Handles the end of the stream.
    ///
    /// # Errors
    /// [`Truncated`] within a frame, which is a connection error (RFC 9114 section 7.1).
    pub fn end(&self) -> Result<(), Truncated> {
        match &self.kind {
            StreamKind::Message(frames) | StreamKind::Control(frames) => frames.end(),
            StreamKind::Untyped(_) | StreamKind::Other => Ok(()),
        }
    }

    /// Whether reading must pause until the library has delivered more of the body. `delivered`: bytes
    /// of the body that the library has delivered so far. No task is woken when there is room again:
    /// the task that consumes the library's data calls this again.
    pub fn is_full(&mut self, delivered: u64) -> bool {
        match &mut self.kind {
            StreamKind::Message(frames) => frames.backlog.is_full(delivered),
            _ => false,
        }
    }
}

/// Copies short chunks, so that a few bytes do not keep a whole datagram in memory.
fn detach(chunk: Bytes) -> Bytes {
    match chunk.len() < MAX_COPIED {
        true => Bytes::copy_from_slice(&chunk),
        false => chunk,
    }
}

/// The control stream's type (RFC 9114 section 6.2.1).
const CONTROL: u64 = 0;

/// Limit of a frame on the control stream, in bytes. SETTINGS and identifiers are much shorter.
const MAX_CONTROL_FRAME: u64 = 4096;

/// Chunks below this length, less than half of a datagram, are copied.
const MAX_COPIED: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    /// The filtered bytes of these chunks.
    fn filter(mut stream: StreamFilter, chunks: &[&[u8]]) -> Result<Vec<u8>, TooLong> {
        let mut out = Vec::new();
        for chunk in chunks {
            stream.push(Bytes::copy_from_slice(chunk))?;
            while let Some(piece) = stream.next_piece() {
                out.extend(piece);
            }
        }
        Ok(out)
    }

    #[test]
    fn rfc9114_6_2_a_unidirectional_stream_is_filtered_by_its_type() {
        // SETTINGS of no bytes, and an unknown frame.
        let control = [&[0x40, 0x00][..], &[4, 0], &[0x21, 1, 7]].concat();
        for cut in 0..control.len() {
            let (start, end) = control.split_at(cut);
            let filtered = filter(StreamFilter::unidirectional(), &[start, end]).unwrap();
            assert_eq!(filtered, [0x40, 0, 4, 0], "{cut}");
        }
        // QPACK streams contain no frames.
        let qpack = [2, 0x21, 1, 7];
        let filtered = filter(StreamFilter::unidirectional(), &[&qpack[..1], &qpack[1..]]).unwrap();
        assert_eq!(filtered, qpack);
        assert_eq!(filter(StreamFilter::unidirectional(), &[&[0x40]]).unwrap(), [0x40]);
    }

    #[test]
    fn a_frame_that_is_too_long_for_its_stream_is_refused_by_its_header() {
        let settings = [0, 4, 0x50, 0x01];
        assert!(filter(StreamFilter::unidirectional(), &[&settings]).is_err());
        let head = [1, 0x50, 0x01];
        assert!(filter(StreamFilter::message(4096), &[&head]).is_err());
        assert!(filter(StreamFilter::message(4097), &[&head]).is_ok());
    }

    #[test]
    fn a_body_of_small_frames_fills_the_library_until_it_is_delivered() {
        let mut filter = StreamFilter::message(4096);
        let mut count = 0;
        while !filter.is_full(0) {
            filter.push(Bytes::from_static(&[0, 1, b'x'])).unwrap();
            count += 1;
            assert!(count < 10_000);
        }
        assert!(!filter.is_full(count / 2));
    }
}
