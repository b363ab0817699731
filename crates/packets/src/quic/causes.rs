//! What each datagram does to the count of round trips. The rule is written in `FirstResponse`.

use super::flow::QuicFlow;
use super::header::{Kind, Part};
use super::opening::Opening;
use super::tally::{Load, Of, Space, Tally};
use crate::Direction;
use crate::facts::BeforeValidation;
use crate::round_trips::{Step, Weight};

/// What went over the path by when, before the client's address was validated (RFC 9000 section
/// 8.1). Positions are UDP payload bytes.
pub(crate) struct Credit {
    /// When so much of the client's had been delivered.
    received: Vec<(u64, u64)>,
    /// When so much of the server's had been sent.
    sent: Vec<(u64, u64)>,
    /// When the server got the first Handshake packet of the client.
    validated: u64,
    /// When the server first sent more than three times what it had got: something let it.
    unbound: u64,
}

impl Credit {
    pub(crate) fn new(flow: &QuicFlow, opening: &Opening<'_>, tally: &Tally) -> Self {
        let handshake = opening.slots.iter().filter(|slot| match &slot.part {
            Part::Protected(packet) => packet.kind == Kind::Handshake,
            _ => false,
        });
        let from_client = handshake.map(|slot| &flow.datagrams[slot.datagram]);
        let validated = from_client
            .filter(|datagram| datagram.direction == Direction::ToServer)
            .filter_map(|datagram| datagram.delivered)
            .min()
            .unwrap_or(u64::MAX);
        let sums = |direction, time: &dyn Fn(&super::flow::Datagram) -> Option<u64>| {
            let of = flow.datagrams.iter().filter(|datagram| datagram.direction == direction);
            let mut all: Vec<_> =
                of.filter_map(|d| Some((time(d)?, u64::from(d.wire_len)))).collect();
            all.sort_unstable_by_key(|(time, _)| *time);
            let mut sum = 0;
            for (_, bytes) in &mut all {
                sum += *bytes;
                *bytes = sum;
            }
            all
        };
        let mut credit = Self {
            received: sums(Direction::ToServer, &|datagram| datagram.delivered),
            sent: sums(Direction::ToClient, &|datagram| Some(datagram.arrived)),
            validated,
            unbound: if tally.retries > 0 { 0 } else { u64::MAX },
        };
        let beyond = credit.sent.iter().find(|(at, sent)| *sent > 3 * credit.received_by(*at));
        credit.unbound = credit.unbound.min(beyond.map_or(u64::MAX, |(at, _)| *at));
        credit
    }

    pub(crate) fn facts(&self) -> BeforeValidation {
        let before = |at: &u64| *at < self.validated;
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
        last(&self.received, |time| time <= at)
    }

    fn sent_before(&self, at: u64) -> u64 {
        last(&self.sent, |time| time < at)
    }

    /// Whether what reaches the server at `at` may be what it waited for: it had used up what an
    /// address that is not validated may be sent.
    fn is_waited_for(&self, at: u64) -> bool {
        let before = last(&self.received, |time| time < at);
        at <= self.validated
            && at <= self.unbound
            && self.sent_before(at) + MIN_DATAGRAM > 3 * before
    }
}

/// A datagram with an Initial packet is as long at least (RFC 9000 section 14.1): with less room a
/// server waits.
const MIN_DATAGRAM: u64 = 1200;

/// About the least that a congestion window is at the start (RFC 9002 section 7.2).
const INITIAL_WINDOW: u64 = 10 * MIN_DATAGRAM;

fn last(sums: &[(u64, u64)], before: impl Fn(u64) -> bool) -> u64 {
    let end = sums.partition_point(|(time, _)| before(*time));
    end.checked_sub(1).map_or(0, |at| sums[at].1)
}

/// The datagrams as the count of round trips sees them. `response` is the number of the 1-RTT
/// packet with the first response byte; `finished` when the server's Finished was sent.
pub(crate) fn steps<'a>(
    flow: &'a QuicFlow,
    tally: &'a Tally,
    credit: &'a Credit,
    response: Option<u64>,
    finished: Option<u64>,
) -> impl Iterator<Item = Step<Space>> + 'a {
    flow.datagrams.iter().zip(&tally.loads).map(move |(datagram, load)| {
        let weight = match datagram.direction {
            Direction::ToClient => server(load),
            Direction::ToServer => match (load.ranges.is_empty(), datagram.delivered) {
                (false, _) => Weight::Cause,
                (true, Some(at)) if load.acknowledges => {
                    let of_response = response.is_some() && load.acknowledged >= response;
                    let in_handshake = finished.is_none_or(|finished| finished > at);
                    let window = in_handshake && credit.sent_before(at) >= INITIAL_WINDOW;
                    let counts = of_response || window || credit.is_waited_for(at);
                    if counts { Weight::Cause } else { Weight::Nothing }
                }
                _ => Weight::Nothing,
            },
        };
        Step {
            direction: datagram.direction,
            arrived: datagram.arrived,
            delivered: datagram.delivered,
            weight,
            ranges: load.ranges.clone(),
        }
    })
}

fn server(load: &Load) -> Weight {
    let ticket = |(space, _): &(Space, _)| space.of == Of::Crypto(Kind::OneRtt.space());
    match () {
        () if load.turns_back => Weight::Cause,
        () if load.ranges.is_empty() => Weight::Nothing,
        // After the handshake a server sends tickets alone in CRYPTO frames, for which no client
        // waits.
        () if load.ranges.iter().all(ticket) => Weight::Idle,
        () => Weight::Cause,
    }
}
