//! Finds the response: by HTTP/3 the frames of responses, else all that the server sends on streams
//! that the client opened.

use super::flow::QuicFlow;
use super::http3;
use super::tally::Tally;

/// Where the response lies.
pub(crate) struct Response {
    /// The datagram that first brought its first byte.
    pub(crate) first: usize,
    /// When that byte first was with the client.
    pub(crate) first_delivered: Option<u64>,
    /// The last of the datagrams that first brought some of it.
    pub(crate) last: usize,
    /// When all of it was with the client.
    pub(crate) last_delivered: Option<u64>,
    /// How long it is.
    pub(crate) bytes: u64,
}

impl Response {
    /// `None` if there is none as far as the packets go.
    pub(crate) fn find(flow: &QuicFlow, tally: &Tally, alpn: Option<&str>) -> Option<Self> {
        let http3 = alpn.is_some_and(|alpn| alpn == "h3" || alpn.starts_with("h3-"));
        let mut found: Option<Self> = None;
        for pieces in tally.responses.values() {
            let len = pieces.bytes().len();
            let responses = match http3 {
                true => http3::responses(pieces.bytes()),
                false if len == 0 => Vec::new(),
                false => std::iter::once(0..len).collect(),
            };
            let (Some(begin), Some(end)) = (responses.first(), responses.last()) else { continue };
            let arrived = |datagram: &usize| flow.datagrams[*datagram].arrived;
            let Some(first) = pieces.brought_by(begin.start..begin.start + 1).next() else {
                continue;
            };
            let all = responses.iter().flat_map(|range| pieces.brought_by(range.clone()));
            let last = all.max_by_key(arrived).unwrap_or(first);
            let here = Self {
                first,
                first_delivered: pieces.delivered(begin.start),
                last,
                last_delivered: pieces.delivered_up_to(end.end),
                bytes: responses.iter().map(|range| range.len() as u64).sum(),
            };
            found = Some(match found {
                None => here,
                Some(before) => before.and(here, arrived),
            });
        }
        found
    }

    /// With the response on another stream.
    fn and(self, other: Self, arrived: impl Fn(&usize) -> u64) -> Self {
        let (begins, ends) = (
            arrived(&other.first) < arrived(&self.first),
            arrived(&other.last) > arrived(&self.last),
        );
        let first = if begins { &other } else { &self };
        Self {
            first: first.first,
            first_delivered: first.first_delivered,
            last: if ends { other.last } else { self.last },
            last_delivered: self.last_delivered.zip(other.last_delivered).map(|(a, b)| a.max(b)),
            bytes: self.bytes + other.bytes,
        }
    }
}
