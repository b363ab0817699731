//! Frames (RFC 9000 section 19).

use crate::header::Input;

/// A frame, parsed as far as the analysis needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A run of PADDING frames of this length.
    Padding(usize),
    /// PING.
    Ping,
    /// ACK.
    Ack {
        /// The largest acknowledged packet number.
        largest: u64,
    },
    /// CRYPTO.
    Crypto {
        /// Where the data is in the stream of handshake messages.
        offset: u64,
        /// The data.
        data: &'a [u8],
    },
    /// NEW_TOKEN.
    NewToken {
        /// The token.
        token: &'a [u8],
    },
    /// RESET_STREAM.
    ResetStream {
        /// The stream.
        id: u64,
        /// The application's error code.
        code: u64,
    },
    /// STREAM.
    Stream {
        /// The stream.
        id: u64,
        /// Where the data is in the stream.
        offset: u64,
        /// The data.
        data: &'a [u8],
        /// Whether the stream ends with the data.
        fin: bool,
    },
    /// NEW_CONNECTION_ID.
    NewConnectionId {
        /// The connection id.
        id: &'a [u8],
    },
    /// PATH_CHALLENGE or PATH_RESPONSE, by its type.
    Path(u64),
    /// CONNECTION_CLOSE.
    Close {
        /// The error code.
        code: u64,
        /// Whether the code is the application protocol's.
        by_application: bool,
    },
    /// Any other frame, by its type.
    Other(u64),
}

impl Frame<'_> {
    /// Whether this is a probing frame (RFC 9000 section 9.1).
    pub fn is_probing(&self) -> bool {
        matches!(self, Self::Padding(_) | Self::Path(_) | Self::NewConnectionId { .. })
    }
}

/// The type of RESET_STREAM.
pub const RESET_STREAM: u64 = 0x04;
/// The type of PING.
pub const PING: u64 = 0x01;
/// The type of NEW_CONNECTION_ID.
pub const NEW_CONNECTION_ID: u64 = 0x18;
/// The type of IMMEDIATE_ACK, from draft-ietf-quic-ack-frequency; quinn sends it in probes.
pub const IMMEDIATE_ACK: u64 = 0x1f;

/// The frames of a packet, up to the first malformed or unknown one.
pub fn frames(bytes: &[u8]) -> impl Iterator<Item = Frame<'_>> {
    let mut input = Input(bytes);
    std::iter::from_fn(move || {
        let frame = (!input.0.is_empty()).then(|| next(&mut input)).flatten();
        if frame.is_none() {
            input.0 = &[];
        }
        frame
    })
}

fn next<'a>(input: &mut Input<'a>) -> Option<Frame<'a>> {
    let kind = input.varint()?;
    Some(match kind {
        0x00 => {
            let more = input.0.iter().take_while(|byte| **byte == 0).count();
            input.take(more)?;
            Frame::Padding(1 + more)
        }
        PING => Frame::Ping,
        0x02 | 0x03 => ack(input, kind == 0x03)?,
        RESET_STREAM => {
            let frame = Frame::ResetStream { id: input.varint()?, code: input.varint()? };
            skip_varints(input, 1)?;
            frame
        }
        0x06 => Frame::Crypto { offset: input.varint()?, data: input.varint_vec()? },
        0x07 => Frame::NewToken { token: input.varint_vec()? },
        0x08..=0x0f => {
            let id = input.varint()?;
            let offset = if kind & 0x04 != 0 { input.varint()? } else { 0 };
            let data = match kind & 0x02 {
                0 => input.take(input.0.len())?,
                _ => input.varint_vec()?,
            };
            Frame::Stream { id, offset, data, fin: kind & 0x01 != 0 }
        }
        NEW_CONNECTION_ID => {
            skip_varints(input, 2)?;
            let len = usize::from(input.u8()?);
            let id = input.take(len)?;
            input.take(16)?;
            Frame::NewConnectionId { id }
        }
        0x1a | 0x1b => {
            input.take(8)?;
            Frame::Path(kind)
        }
        0x1c | 0x1d => {
            let code = input.varint()?;
            skip_varints(input, if kind == 0x1c { 1 } else { 0 })?;
            input.varint_vec()?;
            Frame::Close { code, by_application: kind == 0x1d }
        }
        // DATAGRAM (RFC 9221).
        0x30 => {
            input.take(input.0.len())?;
            Frame::Other(kind)
        }
        0x31 => {
            input.varint_vec()?;
            Frame::Other(kind)
        }
        _ => {
            skip_varints(input, varint_count(kind)?)?;
            Frame::Other(kind)
        }
    })
}

/// The number of fields of a frame that consists of variable-length integers only. Returns `None`
/// if the type is unknown.
fn varint_count(kind: u64) -> Option<usize> {
    Some(match kind {
        // HANDSHAKE_DONE.
        0x1e | IMMEDIATE_ACK => 0,
        // MAX_DATA, MAX_STREAMS, DATA_BLOCKED, STREAMS_BLOCKED, RETIRE_CONNECTION_ID.
        0x10 | 0x12 | 0x13 | 0x14 | 0x16 | 0x17 | 0x19 => 1,
        // STOP_SENDING, MAX_STREAM_DATA, STREAM_DATA_BLOCKED.
        0x05 | 0x11 | 0x15 => 2,
        // ACK_FREQUENCY, and RESET_STREAM_AT (draft-ietf-quic-reliable-stream-reset).
        0xaf | 0x24 => 4,
        _ => return None,
    })
}

fn ack<'a>(input: &mut Input<'a>, with_ecn_counts: bool) -> Option<Frame<'a>> {
    let largest = input.varint()?;
    input.varint()?;
    let ranges = input.varint()?;
    input.varint()?;
    for _ in 0..ranges {
        skip_varints(input, 2)?;
    }
    skip_varints(input, if with_ecn_counts { 3 } else { 0 })?;
    Some(Frame::Ack { largest })
}

fn skip_varints(input: &mut Input<'_>, count: usize) -> Option<()> {
    (0..count).try_for_each(|_| input.varint().map(drop))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rfc9000_19_frames_are_parsed_in_sequence() {
        let bytes = [
            &[0, 0, 0, 1][..],
            &[2, 9, 0, 1, 3, 2, 2],
            &[3, 9, 0, 0, 3, 1, 1, 1],
            &[6, 5, 2, 0xaa, 0xbb],
            &[7, 1, 0xcc],
            &[0x0e, 4, 7, 1, 0xdd],
            &[0x18, 1, 0, 2, 0xee, 0xff],
            &[0; 16],
            &[0x04, 8, 0x41, 0x00, 3],
            &[0x10, 0x40, 0x80, 0x1e, 0x1d, 0x41, 0x00, 0],
            &[0x09, 0, 0x99],
        ]
        .concat();
        let found: Vec<_> = frames(&bytes).collect();
        let expected = [
            Frame::Padding(3),
            Frame::Ping,
            Frame::Ack { largest: 9 },
            Frame::Ack { largest: 9 },
            Frame::Crypto { offset: 5, data: &[0xaa, 0xbb] },
            Frame::NewToken { token: &[0xcc] },
            Frame::Stream { id: 4, offset: 7, data: &[0xdd], fin: false },
            Frame::NewConnectionId { id: &[0xee, 0xff] },
            Frame::ResetStream { id: 8, code: 0x100 },
            Frame::Other(0x10),
            Frame::Other(0x1e),
            Frame::Close { code: 0x100, by_application: true },
            Frame::Stream { id: 0, offset: 0, data: &[0x99], fin: true },
        ];
        assert_eq!(found, expected);
        assert_eq!(frames(&[0x40, 0x99, 1, 1, 1]).count(), 0, "parsing stops at an unknown frame");
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(frames(&bytes).count() <= bytes.len());
        }
    }
}
