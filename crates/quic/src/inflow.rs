use std::collections::VecDeque;

use bytes::Bytes;
use firstflight_wire::Input;

use crate::frames::{Frames, TooLong, Truncated};

/// Filters the data of one HTTP/3 stream for a library that buffers everything it gets.
/// Sans-IO: what is fed comes out again, without frames that mean nothing, and a frame that is too
/// long is refused by its header, before the library waits for the rest of it.
#[derive(Debug)]
pub struct Inflow {
    reads: Reads,
    /// What goes to the library as it is, before any frames.
    passed: VecDeque<Bytes>,
}

/// How received bytes are interpreted.
#[derive(Debug)]
enum Reads {
    /// A request or a response: by its frames.
    Message(Frames),
    /// A stream in one direction, of which the type is not known yet, with what is there of it.
    Untyped(Vec<u8>),
    /// The control stream: by its frames.
    Control(Frames),
    /// Any other, which the library reads no further than its type.
    Other,
}

impl Inflow {
    /// Of a stream with a request or a response. `head`: bytes that a head may have as it is sent.
    pub fn message(head: u64) -> Self {
        Self::new(Reads::Message(Frames::new(head)))
    }

    /// Of a unidirectional stream of any type (RFC 9114 section 6.2).
    pub fn one_way() -> Self {
        Self::new(Reads::Untyped(Vec::new()))
    }

    fn new(reads: Reads) -> Self {
        Self { reads, passed: VecDeque::new() }
    }

    /// Takes in what the stream has brought.
    ///
    /// # Errors
    /// [`TooLong`]: nothing more is to be read.
    pub fn feed(&mut self, chunk: Bytes) -> Result<(), TooLong> {
        match &mut self.reads {
            Reads::Message(frames) | Reads::Control(frames) => frames.feed(unbound(chunk)),
            Reads::Untyped(head) => {
                let mut count = 0;
                while Input(head).varint().is_none() && count < chunk.len() {
                    head.push(chunk[count]);
                    count += 1;
                }
                match Input(head).varint() {
                    Some(CONTROL) => {
                        let mut frames = Frames::new(MAX_CONTROL_FRAME);
                        frames.feed(unbound(chunk.slice(count..)))?;
                        self.reads = Reads::Control(frames);
                        self.passed.push_back(chunk.slice(..count));
                    }
                    Some(_) => {
                        self.reads = Reads::Other;
                        self.passed.push_back(chunk);
                    }
                    None => self.passed.push_back(chunk),
                }
                Ok(())
            }
            Reads::Other => {
                self.passed.push_back(chunk);
                Ok(())
            }
        }
    }

    /// Returns the next data for the library, or `None` when more has to be fed first.
    pub fn next_piece(&mut self) -> Option<Bytes> {
        if let Some(piece) = self.passed.pop_front() {
            return Some(piece);
        }
        match &mut self.reads {
            Reads::Message(frames) | Reads::Control(frames) => frames.next(),
            Reads::Untyped(_) | Reads::Other => None,
        }
    }

    /// The stream has ended.
    ///
    /// # Errors
    /// [`Truncated`]: within a frame, which is a connection error (RFC 9114 section 7.1).
    pub fn end(&self) -> Result<(), Truncated> {
        match &self.reads {
            Reads::Message(frames) | Reads::Control(frames) => frames.end(),
            Reads::Untyped(_) | Reads::Other => Ok(()),
        }
    }

    /// Whether the library has to deliver the data that it has of a body before it gets more;
    /// `handed_on`: bytes of it that the library has delivered so far. A task that reads what the
    /// library has calls this again in any case, so nobody has to be woken.
    pub fn is_full(&mut self, handed_on: u64) -> bool {
        match &mut self.reads {
            Reads::Message(frames) => frames.backlog.is_full(handed_on),
            _ => false,
        }
    }
}

/// Of a copy, so that a few bytes do not keep their whole datagram in memory.
fn unbound(chunk: Bytes) -> Bytes {
    match chunk.len() < SMALL {
        true => Bytes::copy_from_slice(&chunk),
        false => chunk,
    }
}

/// The control stream's type (RFC 9114 section 6.2.1).
const CONTROL: u64 = 0;

/// Settings and identifiers are much shorter.
const MAX_CONTROL_FRAME: u64 = 4096;

/// Less than half of a datagram.
const SMALL: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes out of these chunks.
    fn through(mut inflow: Inflow, chunks: &[&[u8]]) -> Result<Vec<u8>, TooLong> {
        let mut out = Vec::new();
        for chunk in chunks {
            inflow.feed(Bytes::copy_from_slice(chunk))?;
            while let Some(piece) = inflow.next_piece() {
                out.extend(piece);
            }
        }
        Ok(out)
    }

    #[test]
    fn rfc9114_6_2_a_stream_in_one_direction_is_read_by_its_type() {
        // SETTINGS of no bytes, and an unknown frame.
        let control = [&[0x40, 0x00][..], &[4, 0], &[0x21, 1, 7]].concat();
        for cut in 0..control.len() {
            let (one, two) = control.split_at(cut);
            assert_eq!(through(Inflow::one_way(), &[one, two]).unwrap(), [0x40, 0, 4, 0], "{cut}");
        }
        // QPACK's are no frames.
        let qpack = [2, 0x21, 1, 7];
        assert_eq!(through(Inflow::one_way(), &[&qpack[..1], &qpack[1..]]).unwrap(), qpack);
        assert_eq!(through(Inflow::one_way(), &[&[0x40]]).unwrap(), [0x40]);
    }

    #[test]
    fn what_is_too_long_for_its_stream_is_refused_by_its_header() {
        let settings = [0, 4, 0x50, 0x01];
        assert!(through(Inflow::one_way(), &[&settings]).is_err());
        let head = [1, 0x50, 0x01];
        assert!(through(Inflow::message(4096), &[&head]).is_err());
        assert!(through(Inflow::message(4097), &[&head]).is_ok());
    }

    #[test]
    fn a_body_of_small_frames_waits_until_it_is_handed_on() {
        let mut inflow = Inflow::message(4096);
        let mut count = 0;
        while !inflow.is_full(0) {
            inflow.feed(Bytes::from_static(&[0, 1, b'x'])).unwrap();
            count += 1;
            assert!(count < 10_000);
        }
        assert!(!inflow.is_full(count / 2));
    }
}
