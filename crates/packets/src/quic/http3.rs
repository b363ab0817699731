//! Finds the frames of a response in what a server sends on a request's stream over HTTP/3 (RFC
//! 9114 section 7).

use std::ops::Range;

use super::header::Input;

const DATA: u64 = 0x00;
const HEADERS: u64 = 0x01;

/// Where HEADERS and DATA frames lie in a request stream, as far as it goes: the last may be cut.
pub(crate) fn responses(stream: &[u8]) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    let mut at = 0;
    while at < stream.len() {
        let mut input = Input(&stream[at..]);
        let Some((kind, len)) = input.varint().zip(input.varint()) else { break };
        let header = stream.len() - at - input.0.len();
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let end = at.saturating_add(header).saturating_add(len).min(stream.len());
        if matches!(kind, DATA | HEADERS) {
            match found.last_mut() {
                Some(last) if last.end == at => last.end = end,
                _ => found.push(at..end),
            }
        }
        at = end;
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rfc9114_7_2_only_headers_and_data_are_an_answer() {
        // A reserved type, HEADERS, DATA, another reserved one, DATA that is cut.
        let stream = [&[0x21, 1, 9][..], &[1, 2, 7, 7], &[0, 1, 8], &[0x40, 0x40, 0], &[0, 9, 5]];
        assert_eq!(responses(&stream.concat()), [3..10, 13..16]);
        assert_eq!(responses(&[0x21]), []);
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered_in_order(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut at = 0;
            for range in responses(&bytes) {
                prop_assert!(at <= range.start && range.start < range.end);
                at = range.end;
            }
            prop_assert!(at <= bytes.len());
        }
    }
}
