//! How each datagram affects the count of round trips, by the rules at
//! [`FirstResponse`](crate::FirstResponse).

use firstflight_wire::{CoalescedPacket, PacketKind};

use super::counts::{DataStream, DatagramContent, PacketCounts, StreamSpace};
use super::decryption::DecryptedPackets;
use super::flow::QuicFlow;
use crate::Direction;
use crate::facts::BeforeValidation;
use crate::round_trips::{Causality, TimedPacket};

/// The traffic before the client's address was validated, when the server may send at most three
/// times what it received (RFC 9000 section 8.1). Amounts are UDP payload bytes.
pub(crate) struct AntiAmplification {
    /// Times, and the client's bytes delivered by then.
    received: Vec<(u64, u64)>,
    /// Times, and the server's bytes sent by then.
    sent: Vec<(u64, u64)>,
    /// When the client's first Handshake packet was delivered.
    validated_at: u64,
    /// When the server first exceeded the limit: from then on it does not apply, for example
    /// because of a token.
    unlimited_from: u64,
}

impl AntiAmplification {
    pub(crate) fn new(
        flow: &QuicFlow,
        packets: &DecryptedPackets<'_>,
        counts: &PacketCounts,
    ) -> Self {
        let handshake = packets.captured.iter().filter(|captured| match &captured.packet {
            CoalescedPacket::Protected(packet) => packet.kind == PacketKind::Handshake,
            _ => false,
        });
        let from_client = handshake.map(|captured| &flow.datagrams[captured.datagram]);
        let validated_at = from_client
            .filter(|datagram| datagram.direction == Direction::ToServer)
            .filter_map(|datagram| datagram.delivered)
            .min()
            .unwrap_or(u64::MAX);
        let sums = |direction, time: &dyn Fn(&crate::quic::flow::Datagram) -> Option<u64>| {
            let sent = flow.datagrams.iter().filter(|datagram| datagram.direction == direction);
            let mut all: Vec<_> =
                sent.filter_map(|d| Some((time(d)?, u64::from(d.wire_len)))).collect();
            all.sort_unstable_by_key(|(time, _)| *time);
            let mut sum = 0;
            for (_, bytes) in &mut all {
                sum += *bytes;
                *bytes = sum;
            }
            all
        };
        let mut anti_amplification = Self {
            received: sums(Direction::ToServer, &|datagram| datagram.delivered),
            sent: sums(Direction::ToClient, &|datagram| Some(datagram.arrived)),
            validated_at,
            unlimited_from: if counts.retries > 0 { 0 } else { u64::MAX },
        };
        let beyond = anti_amplification
            .sent
            .iter()
            .find(|(at, sent)| *sent > 3 * anti_amplification.received_by(*at));
        anti_amplification.unlimited_from =
            anti_amplification.unlimited_from.min(beyond.map_or(u64::MAX, |(at, _)| *at));
        anti_amplification
    }

    pub(crate) fn facts(&self) -> BeforeValidation {
        let before = |at: &u64| *at < self.validated_at;
        let sent = self.sent.iter().take_while(|(at, _)| before(at));
        let beyond = sent.clone().map(|(at, sent)| sent.saturating_sub(3 * self.received_by(*at)));
        let received = self.received.iter().take_while(|(at, _)| before(at));
        BeforeValidation {
            received: received.last().map_or(0, |(_, sum)| *sum),
            sent: sent.clone().last().map_or(0, |(_, sum)| *sum),
            beyond_limit: beyond.max().unwrap_or(0),
        }
    }

    fn received_by(&self, at: u64) -> u64 {
        sum_at(&self.received, |time| time <= at)
    }

    fn sent_before(&self, at: u64) -> u64 {
        sum_at(&self.sent, |time| time < at)
    }

    /// Whether the server may have waited for a delivery at time `at`, because it had used up the
    /// limit.
    fn unblocks_server(&self, at: u64) -> bool {
        let before = sum_at(&self.received, |time| time < at);
        at <= self.validated_at
            && at <= self.unlimited_from
            && self.sent_before(at) + MIN_DATAGRAM > 3 * before
    }
}

/// The minimum length of a datagram with an Initial packet (RFC 9000 section 14.1). A server that
/// may send less than this waits.
const MIN_DATAGRAM: u64 = 1200;

/// The recommended initial congestion window, approximately (RFC 9002 section 7.2).
const INITIAL_WINDOW: u64 = 10 * MIN_DATAGRAM;

/// The last of the ascending `sums` whose time is `included`, or 0.
fn sum_at(sums: &[(u64, u64)], included: impl Fn(u64) -> bool) -> u64 {
    let end = sums.partition_point(|(time, _)| included(*time));
    end.checked_sub(1).map_or(0, |at| sums[at].1)
}

/// The datagrams as input of the round-trip count. `response` is the number of the 1-RTT packet
/// with the first response byte, `finished` the time when the server's Finished was sent.
pub(crate) fn timed_packets<'a>(
    flow: &'a QuicFlow,
    counts: &'a PacketCounts,
    anti_amplification: &'a AntiAmplification,
    response: Option<u64>,
    finished: Option<u64>,
) -> impl Iterator<Item = TimedPacket<StreamSpace>> + 'a {
    flow.datagrams.iter().zip(&counts.contents).map(move |(datagram, content)| {
        let causality = match datagram.direction {
            Direction::ToClient => server_causality(content),
            Direction::ToServer => match (content.ranges.is_empty(), datagram.delivered) {
                (false, _) => Causality::Cause,
                (true, Some(at)) if content.acknowledges => {
                    let of_response = response.is_some() && content.acknowledged >= response;
                    let in_handshake = finished.is_none_or(|finished| finished > at);
                    let window =
                        in_handshake && anti_amplification.sent_before(at) >= INITIAL_WINDOW;
                    let is_cause = of_response || window || anti_amplification.unblocks_server(at);
                    if is_cause { Causality::Cause } else { Causality::Uncounted }
                }
                _ => Causality::Uncounted,
            },
        };
        TimedPacket {
            direction: datagram.direction,
            arrived: datagram.arrived,
            delivered: datagram.delivered,
            causality,
            ranges: content.ranges.clone(),
        }
    })
}

fn server_causality(content: &DatagramContent) -> Causality {
    let is_ticket = |(space, _): &(StreamSpace, _)| {
        space.stream == DataStream::Crypto(PacketKind::OneRtt.space())
    };
    match () {
        () if content.restarts_client => Causality::Cause,
        () if content.ranges.is_empty() => Causality::Uncounted,
        // After the handshake, CRYPTO frames of a server carry only tickets, for which no client
        // waits.
        () if content.ranges.iter().all(is_ticket) => Causality::NoCause,
        () => Causality::Cause,
    }
}
