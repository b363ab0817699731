//! Finds the response: over HTTP/3 the response frames (RFC 9114 section 7), otherwise everything
//! that the server sends on streams that the client opened.

use std::ops::Range;

use firstflight_wire::Input;

use super::counts::PacketCounts;
use super::flow::QuicFlow;

/// Where the response is.
pub(crate) struct QuicResponse {
    /// The datagram that first carried its first byte.
    pub(crate) first: usize,
    /// When it and all bytes before it had been delivered.
    pub(crate) first_delivered: Option<u64>,
    /// The last datagram that first carried some of it.
    pub(crate) last: usize,
    /// When all of it had been delivered.
    pub(crate) last_delivered: Option<u64>,
    /// Its length in bytes.
    pub(crate) bytes: u64,
}

impl QuicResponse {
    /// Returns `None` if the packets contain no response.
    pub(crate) fn find(flow: &QuicFlow, counts: &PacketCounts, alpn: Option<&str>) -> Option<Self> {
        let http3 = alpn.is_some_and(|alpn| alpn == "h3" || alpn.starts_with("h3-"));
        let mut found: Option<Self> = None;
        for stream_bytes in counts.responses.values() {
            let len = stream_bytes.bytes().len();
            let responses = match http3 {
                true => http3_responses(stream_bytes.bytes()),
                false if len == 0 => Vec::new(),
                false => std::iter::once(0..len).collect(),
            };
            let (Some(first_range), Some(last_range)) = (responses.first(), responses.last())
            else {
                continue;
            };
            let arrived = |datagram: &usize| flow.datagrams[*datagram].arrived;
            let start = first_range.start;
            let Some(first) = stream_bytes.datagrams_of(start..start + 1).next() else { continue };
            let all = responses.iter().flat_map(|range| stream_bytes.datagrams_of(range.clone()));
            let last = all.max_by_key(arrived).unwrap_or(first);
            let on_stream = Self {
                first,
                first_delivered: stream_bytes.delivered_up_to(start + 1),
                last,
                last_delivered: stream_bytes.delivered_up_to(last_range.end),
                bytes: responses.iter().map(|range| range.len() as u64).sum(),
            };
            found = Some(match found {
                None => on_stream,
                Some(before) => before.merge(on_stream, arrived),
            });
        }
        found
    }

    /// Combines the responses on two streams.
    fn merge(self, other: Self, arrived: impl Fn(&usize) -> u64) -> Self {
        let (starts_earlier, ends_later) = (
            arrived(&other.first) < arrived(&self.first),
            arrived(&other.last) > arrived(&self.last),
        );
        let first = if starts_earlier { &other } else { &self };
        Self {
            first: first.first,
            first_delivered: first.first_delivered,
            last: if ends_later { other.last } else { self.last },
            last_delivered: self.last_delivered.zip(other.last_delivered).map(|(a, b)| a.max(b)),
            bytes: self.bytes + other.bytes,
        }
    }
}

const DATA: u64 = 0x00;
const HEADERS: u64 = 0x01;

/// The ranges of HEADERS and DATA frames in a request stream. The last one may be truncated.
pub(crate) fn http3_responses(stream: &[u8]) -> Vec<Range<usize>> {
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
    fn rfc9114_7_2_only_headers_and_data_are_a_response() {
        // A reserved type, HEADERS, DATA, another reserved type, truncated DATA.
        let stream = [&[0x21, 1, 9][..], &[1, 2, 7, 7], &[0, 1, 8], &[0x40, 0x40, 0], &[0, 9, 5]];
        assert_eq!(http3_responses(&stream.concat()), [3..10, 13..16]);
        assert_eq!(http3_responses(&[0x21]), []);
    }

    proptest! {
        #[test]
        fn ranges_of_any_bytes_are_ascending(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut at = 0;
            for range in http3_responses(&bytes) {
                prop_assert!(at <= range.start && range.start < range.end);
                at = range.end;
            }
            prop_assert!(at <= bytes.len());
        }
    }
}
