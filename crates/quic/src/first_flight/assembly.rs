//! Reassembles a ClientHello from CRYPTO frames, in any order.

use std::collections::BTreeMap;

/// The pieces received so far. Where they overlap, the piece received first counts.
#[derive(Default)]
pub(super) struct Assembly {
    /// The contiguous bytes from the start.
    prefix: Vec<u8>,
    /// Pieces after a gap, without overlaps.
    out_of_order: BTreeMap<usize, Vec<u8>>,
}

/// The bytes cannot be a ClientHello within the limits.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoClientHello;

impl Assembly {
    /// Adds a piece. Returns whether the ClientHello is complete. `limit` is its maximum
    /// length, including the header.
    pub(super) fn add(
        &mut self,
        offset: u64,
        piece: &[u8],
        limit: usize,
    ) -> Result<bool, NoClientHello> {
        if self.is_whole() {
            return Ok(true);
        }
        let offset = usize::try_from(offset).map_err(|_| NoClientHello)?;
        let end = offset.checked_add(piece.len()).ok_or(NoClientHello)?;
        if end > limit {
            return Err(NoClientHello);
        }
        self.store(offset, piece);
        if self.out_of_order.len() > MAX_PIECES {
            return Err(NoClientHello);
        }
        match (self.prefix.first(), self.length()) {
            (Some(&kind), _) if kind != CLIENT_HELLO => Err(NoClientHello),
            (_, Some(length)) if length > limit => Err(NoClientHello),
            _ => Ok(self.is_whole()),
        }
    }

    /// The message with its header, once it is complete.
    pub(super) fn message(&self) -> Option<&[u8]> {
        self.length().and_then(|length| self.prefix.get(..length))
    }

    /// Whether nothing was received.
    pub(super) fn is_empty(&self) -> bool {
        self.prefix.is_empty() && self.out_of_order.is_empty()
    }

    /// Stores the new bytes of a piece.
    fn store(&mut self, offset: usize, piece: &[u8]) {
        let end = offset + piece.len();
        let mut at = offset.max(self.prefix.len());
        while at < end {
            // The piece that covers `at`, or the next one after it.
            let before = self.out_of_order.range(..=at).next_back();
            if let Some((start, known)) = before
                && start + known.len() > at
            {
                at = start + known.len();
                continue;
            }
            let next =
                self.out_of_order.range(at..).next().map_or(end, |(start, _)| end.min(*start));
            self.out_of_order.insert(at, piece[at - offset..next - offset].to_vec());
            at = next;
        }
        while let Some(piece) = self.out_of_order.remove(&self.prefix.len()) {
            self.prefix.extend_from_slice(&piece);
        }
    }

    /// The message's length with its header (RFC 8446 section 4), once known.
    fn length(&self) -> Option<usize> {
        let [_, a, b, c] = *self.prefix.first_chunk()?;
        Some(4 + usize::from(a) * 0x1_0000 + usize::from(b) * 0x100 + usize::from(c))
    }

    fn is_whole(&self) -> bool {
        self.message().is_some()
    }
}

const CLIENT_HELLO: u8 = 1;

/// Maximum number of pieces after gaps. Browsers deliberately split a ClientHello into a dozen pieces.
const MAX_PIECES: usize = 64;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hello(length: usize) -> Vec<u8> {
        let mut hello = vec![CLIENT_HELLO, 0, (length >> 8) as u8, length as u8];
        hello.extend((0..length).map(|at| at as u8));
        hello
    }

    proptest! {
        #[test]
        fn a_client_hello_is_assembled_from_overlapping_pieces_in_any_order(
            length in 0usize..600,
            cuts in prop::collection::vec((0usize..600, 0usize..600), 0..20),
            seed in any::<u64>(),
        ) {
            let hello = hello(length);
            let mut pieces = cuts
                .iter()
                .map(|(from, to)| (from.min(to) % hello.len(), *from.max(to)))
                .map(|(from, to)| (from, to.clamp(from, hello.len())))
                .collect::<Vec<_>>();
            // Together the pieces cover the whole message.
            pieces.extend((0..hello.len()).step_by(97).map(|at| (at, hello.len().min(at + 97))));
            pieces.sort_by_key(|(from, to)| (seed ^ (*from as u64) << 32 ^ *to as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let mut assembly = Assembly::default();
            let mut missing = vec![true; hello.len()];
            for (from, to) in pieces {
                missing[from..to].fill(false);
                let whole = assembly.add(from as u64, &hello[from..to], 1000);
                prop_assert_eq!(whole, Ok(!missing.contains(&true)));
            }
            prop_assert_eq!(assembly.message(), Some(&hello[..]));
        }

        #[test]
        fn the_bytes_received_first_count_and_memory_is_bounded(
            pieces in prop::collection::vec(
                (0usize..300, prop::collection::vec(any::<u8>(), 0..80)), 0..100,
            ),
        ) {
            let mut assembly = Assembly::default();
            let mut first = [None; 400];
            for (offset, piece) in pieces {
                // A ClientHello that never ends, as its start is missing.
                let added = assembly.add(offset as u64 + 4, &piece, 500);
                for (at, byte) in piece.iter().enumerate() {
                    first[offset + at].get_or_insert(*byte);
                }
                let stored: usize = assembly.out_of_order.values().map(Vec::len).sum();
                prop_assert_eq!(stored, first.iter().flatten().count());
                prop_assert_eq!(added.is_err(), assembly.out_of_order.len() > MAX_PIECES);
            }
            for (start, piece) in &assembly.out_of_order {
                for (at, byte) in piece.iter().enumerate() {
                    prop_assert_eq!(first[start + at - 4], Some(*byte));
                }
            }
        }
    }

    #[test]
    fn bytes_that_cannot_become_a_client_hello_are_an_error() {
        let add = |offset, piece: &[u8]| Assembly::default().add(offset, piece, 1000);
        assert_eq!(add(0, &[2, 0, 0, 1, 0]), Err(NoClientHello), "a ServerHello");
        assert_eq!(add(0, &[1, 0, 3, 229]), Err(NoClientHello), "longer than the limit");
        assert_eq!(add(0, &[1, 0, 3, 228]), Ok(false));
        assert_eq!(add(999, &[0]), Ok(false));
        assert_eq!(add(1000, &[0]), Err(NoClientHello), "beyond the limit");
        assert_eq!(add(u64::MAX, &[0]), Err(NoClientHello));
        assert_eq!(add(0, &[]), Ok(false));
    }

    #[test]
    fn bytes_after_the_client_hello_do_not_belong_to_it() {
        let mut assembly = Assembly::default();
        let hello = hello(20);
        let more = [&hello[..], b"more"].concat();
        assert_eq!(assembly.add(0, &more, 1000), Ok(true));
        assert_eq!(assembly.message(), Some(&hello[..]));
        assert_eq!(assembly.add(5, b"late", 1000), Ok(true));
        assert_eq!(assembly.message(), Some(&hello[..]));
    }
}
