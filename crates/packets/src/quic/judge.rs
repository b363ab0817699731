//! Reads a connection from its kept datagrams: what was said, depths, the response.

use super::causes::{Credit, steps};
use super::flow::QuicFlow;
use super::header::Kind;
use super::opening::Opening;
use super::response::Response;
use super::tally::Tally;
use crate::facts::{EarlyData, Unknown};
use crate::{Direction, KeyLog, round_trips};

/// A connection whose datagrams lie in the order of their arrival.
pub(crate) struct Judge<'a> {
    pub(crate) flow: &'a QuicFlow,
    pub(crate) opening: Opening<'a>,
    pub(crate) tally: Tally,
    pub(crate) credit: Credit,
    pub(crate) response: Option<Response>,
    /// How deep each datagram lies.
    pub(crate) depths: Vec<Option<u32>>,
}

impl<'a> Judge<'a> {
    pub(crate) fn new(flow: &'a QuicFlow, keys: &KeyLog) -> Self {
        let opening = Opening::new(flow, keys);
        let refused = match &opening.handshake.extensions {
            Some(extensions) => !extensions.early_data,
            None => opening.handshake.retries > 0,
        };
        let tally = Tally::new(flow, &opening, refused);
        let credit = Credit::new(flow, &opening, &tally);
        let response = Response::find(flow, &tally, alpn(&opening));
        let number = response.as_ref().and_then(|found| tally.loads[found.first].one_rtt_number);
        let finished = opening.handshake.server_finished.and_then(|end| {
            let level = opening.handshake.level(Direction::ToClient, Kind::Handshake);
            let brought = level.pieces.brought_by(end - 1..end).next()?;
            Some(flow.datagrams[brought].arrived)
        });
        let depths = round_trips::depths(steps(flow, &tally, &credit, number, finished));
        Self { flow, opening, tally, credit, response, depths }
    }

    /// RFC 8446 section 4.2.10, as over TCP; early data goes in packets of its own.
    pub(crate) fn verdict(&self) -> EarlyData {
        let handshake = &self.opening.handshake;
        let offered = handshake.hello.as_ref().is_some_and(|hello| hello.early_data);
        if !offered {
            return EarlyData::NotOffered;
        }
        if self.tally.early_packets == 0 {
            return match self.is_cut() {
                true => EarlyData::Unknown(Unknown::CaptureGap),
                false => EarlyData::NotOffered,
            };
        }
        if handshake.retries > 0 {
            return EarlyData::Refused;
        }
        let Some(chosen) = &handshake.server_hello else {
            return EarlyData::Unknown(Unknown::NoServerHello);
        };
        match &handshake.extensions {
            _ if !chosen.pre_shared_key => EarlyData::Refused,
            Some(found) if found.early_data => EarlyData::Accepted,
            Some(_) => EarlyData::Refused,
            None => EarlyData::Unknown(self.why_silent().unwrap_or(Unknown::Ended)),
        }
    }

    /// Why the packets do not show all of the response, if anything is in the way.
    pub(crate) fn why_silent(&self) -> Option<Unknown> {
        let closed = [
            (Direction::ToClient, Kind::Initial),
            (Direction::ToClient, Kind::Handshake),
            (Direction::ToClient, Kind::OneRtt),
        ];
        let mut closed = closed.into_iter();
        let why = closed.find_map(|(direction, kind)| self.opening.why_closed(direction, kind));
        let gap = self.is_cut() || self.tally.responses.values().any(|pieces| pieces.has_gap());
        why.or(self.opening.handshake.broken).or(gap.then_some(Unknown::CaptureGap))
    }

    /// Whether the capture lacks some of what was sent.
    fn is_cut(&self) -> bool {
        let whole = self.flow.datagrams.iter().all(|datagram| datagram.is_whole());
        self.flow.blind_from.is_some() || !whole
    }

    /// The depth and arrival of a datagram, or why its depth is not known.
    pub(crate) fn carrier(&self, datagram: usize) -> Result<(u32, u64), Unknown> {
        let arrived = self.flow.datagrams[datagram].arrived;
        if self.flow.blind_from.is_some_and(|blind| blind <= arrived) {
            return Err(Unknown::CaptureGap);
        }
        // What a client's packets are is not known if none was opened.
        for kind in [Kind::Handshake, Kind::OneRtt] {
            if let Some(why) = self.opening.why_closed(Direction::ToServer, kind) {
                return Err(why);
            }
        }
        self.depths[datagram].map(|depth| (depth, arrived)).ok_or(Unknown::CaptureGap)
    }
}

/// The protocol that was chosen, or the only one that can have been.
fn alpn<'o>(opening: &'o Opening<'_>) -> Option<&'o str> {
    let handshake = &opening.handshake;
    if let Some(extensions) = &handshake.extensions {
        return extensions.alpn.as_deref();
    }
    match handshake.hello.as_ref()?.alpn.as_slice() {
        [only] => Some(only),
        _ => None,
    }
}
