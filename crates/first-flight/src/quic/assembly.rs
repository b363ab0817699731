//! Puts the data of a stream into order.

use std::collections::BTreeMap;

use crate::ProtocolError;

/// A stream of handshake messages or of the application (RFC 9000 section 2.2).
#[derive(Default)]
pub(crate) struct Assembly {
    /// Number of bytes taken.
    taken: u64,
    /// Pieces that have arrived, by their offset. They may overlap.
    pieces: BTreeMap<u64, Vec<u8>>,
    held: usize,
    /// The length of the stream, if its end is known.
    len: Option<u64>,
}

impl Assembly {
    /// Adds a piece.
    pub(crate) fn add(&mut self, offset: u64, data: &[u8], fin: bool) -> Result<(), ProtocolError> {
        let end = offset.checked_add(data.len() as u64).ok_or(ProtocolError::Malformed)?;
        if fin {
            self.len = Some(end);
        }
        if end > self.taken && !data.is_empty() {
            let known = self.pieces.get(&offset).map_or(0, Vec::len);
            if known < data.len() {
                self.held += data.len() - known;
                self.pieces.insert(offset, data.to_vec());
            }
        }
        let too_much = end > MAX_STREAM_BYTES || self.held as u64 > MAX_STREAM_BYTES;
        if too_much || self.pieces.len() > MAX_PIECES {
            return Err(ProtocolError::TooLong);
        }
        Ok(())
    }

    /// Takes the data that is contiguous by now.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        while let Some(entry) = self.pieces.first_entry() {
            if *entry.key() > self.taken {
                break;
            }
            let (offset, piece) = entry.remove_entry();
            self.held -= piece.len();
            let skip = (self.taken - offset).min(piece.len() as u64) as usize;
            out.extend_from_slice(&piece[skip..]);
            self.taken += (piece.len() - skip) as u64;
        }
        out
    }

    /// Whether everything was taken.
    pub(crate) fn is_at_end(&self) -> bool {
        self.len.is_some_and(|len| self.taken >= len)
    }
}

/// Maximum size of a stream, as announced in the transport parameters.
pub(crate) const MAX_STREAM_BYTES: u64 = 1 << 20;
/// Maximum number of buffered pieces.
const MAX_PIECES: usize = 2048;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rfc9000_2_2_pieces_in_any_order_make_the_stream(
            mut cuts in prop::collection::vec((0_usize..200, 0_usize..50), 1..40),
        ) {
            let stream: Vec<u8> = (0..200).map(|number| number as u8).collect();
            cuts.extend((0..10).map(|number| (number * 20, 20)));
            let (mut assembly, mut out) = (Assembly::default(), Vec::new());
            for (start, len) in cuts {
                let end = (start + len).min(200);
                assembly.add(start as u64, &stream[start..end], end == 200).unwrap();
                out.extend(assembly.take());
            }
            prop_assert_eq!(out, stream);
            prop_assert!(assembly.is_at_end());
            prop_assert_eq!(assembly.held, 0);
        }
    }

    #[test]
    fn buffered_data_is_limited() {
        let mut assembly = Assembly::default();
        assert_eq!(assembly.add(MAX_STREAM_BYTES, b"a", false), Err(ProtocolError::TooLong));
        assert_eq!(assembly.add(u64::MAX, b"a", false), Err(ProtocolError::Malformed));
        let mut assembly = Assembly::default();
        let outcomes = (1..4000).map(|number| assembly.add(2 * number, b"a", false));
        assert_eq!(outcomes.last(), Some(Err(ProtocolError::TooLong)));
    }
}
