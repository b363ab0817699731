//! Goes through the opened packets in the order of their arrival and counts what they carry.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::ops::Range;

use super::flow::{Datagram, QuicFlow};
use super::frames::{Frame, IMMEDIATE_ACK, frames};
use super::header::{Kind, Part, Protected};
use super::opening::{Opened, Opening};
use super::pieces::StreamBytes;
use super::turns::{Turn, turns};
use crate::Direction;
use crate::facts::{AddressToken, Closed, TokenOrigin};
use crate::reassembly::{Coverage, SegmentOverlap};

/// What is numbered on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Space {
    pub(crate) of: Of,
    /// Of data that the server threw away: how often the client had started again when it sent it.
    /// Where such data comes again it is no copy.
    pub(crate) lost: Option<usize>,
}

/// The CRYPTO bytes of a level, or the bytes of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Of {
    Crypto(usize),
    Stream(u64),
}

/// What a datagram carries.
#[derive(Debug, Default)]
pub(crate) struct Load {
    pub(crate) ranges: Vec<(Space, Range<u64>)>,
    /// Some of it was there before.
    pub(crate) again: bool,
    /// It makes the client start again.
    pub(crate) turns_back: bool,
    /// It has an ACK frame of any level.
    pub(crate) acknowledges: bool,
    /// The largest 1-RTT packet that it acknowledges.
    pub(crate) acknowledged: Option<u64>,
    /// The least number of its 1-RTT packets.
    pub(crate) one_rtt_number: Option<u64>,
}

/// What all packets carry.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// By datagram.
    pub(crate) loads: Vec<Load>,
    /// What the server sent on streams that the client opened both ways.
    pub(crate) responses: BTreeMap<u64, StreamBytes>,
    pub(crate) retries: u32,
    /// The server's version, else the client's.
    pub(crate) version: Option<u32>,
    pub(crate) token: Option<AddressToken>,
    /// Each once, in order.
    pub(crate) new_tokens: Vec<Vec<u8>>,
    pub(crate) early_packets: u32,
    pub(crate) early_wire_bytes: u64,
    /// Of early data, each stream; `None` if no early packet was opened.
    pub(crate) early: Option<HashMap<u64, Coverage>>,
    pub(crate) retransmissions: [u32; 2],
    pub(crate) probes: u32,
    pub(crate) out_of_order: u32,
    pub(crate) duplicates: u32,
    pub(crate) unopened: u32,
    pub(crate) migrations: u32,
    pub(crate) closed: [Option<Closed>; 2],
}

/// NEW_TOKEN frames that are told apart, at most.
const MAX_TOKENS: usize = 64;

impl Tally {
    /// `refused`: the server took no early data.
    pub(crate) fn new(flow: &QuicFlow, opening: &Opening<'_>, refused: bool) -> Self {
        let turns = turns(flow, &opening.slots);
        let mut found = Self::default();
        found.loads.resize_with(flow.datagrams.len(), Load::default);
        for turn in &turns {
            found.loads[turn.datagram].turns_back = true;
            found.retries += u32::from(turn.token.is_some());
        }
        let mut counter = Counter {
            found,
            refused,
            turns,
            coverage: HashMap::new(),
            largest_datagram: [0; 2],
            newest: None,
        };
        for slot in &opening.slots {
            let datagram = &flow.datagrams[slot.datagram];
            match (&slot.part, &slot.opened) {
                (Part::Protected(packet), opened) => {
                    counter.header(datagram, packet);
                    match opened {
                        Some(opened) if opened.duplicate => counter.found.duplicates += 1,
                        Some(opened) => {
                            counter.packet(slot.datagram, datagram, packet.kind, opened);
                        }
                        None => counter.found.unopened += 1,
                    }
                }
                (Part::Other { .. }, _) => counter.found.unopened += 1,
                (Part::Retry { .. } | Part::VersionNegotiation, _) => {}
            }
            let largest = &mut counter.largest_datagram[datagram.direction as usize];
            *largest = datagram.wire_len.max(*largest);
        }
        counter.found
    }

    /// Bytes of early data, each counted once.
    pub(crate) fn early_bytes(&self) -> Option<u64> {
        Some(self.early.as_ref()?.values().map(Coverage::len).sum())
    }
}

struct Counter<'a> {
    found: Tally,
    refused: bool,
    turns: Vec<Turn<'a>>,
    coverage: HashMap<(Direction, Space), Coverage>,
    /// The largest so far, by direction.
    largest_datagram: [u32; 2],
    /// The client's newest 1-RTT packet that is no probe of a path, and where it came from.
    newest: Option<(u64, SocketAddr)>,
}

impl Counter<'_> {
    /// What a packet says without being opened.
    fn header(&mut self, datagram: &Datagram, packet: &Protected<'_>) {
        let found = &mut self.found;
        let version = packet.version.map(|version| version.number());
        match datagram.direction {
            Direction::ToClient => found.version = version.or(found.version),
            Direction::ToServer => found.version = found.version.or(version),
        }
        if datagram.direction == Direction::ToServer && !packet.token.is_empty() {
            let retry = self.turns.iter().any(|turn| turn.token == Some(packet.token));
            let origin = if retry { TokenOrigin::Retry } else { TokenOrigin::NewToken };
            found.token = Some(AddressToken { origin, bytes: packet.token.len() as u32 });
        }
        if packet.kind == Kind::ZeroRtt && datagram.direction == Direction::ToServer {
            found.early_packets += 1;
            found.early_wire_bytes += packet.bytes.len() as u64;
        }
    }

    fn packet(&mut self, index: usize, datagram: &Datagram, kind: Kind, opened: &Opened) {
        let direction = datagram.direction;
        self.found.out_of_order += u32::from(opened.late);
        if kind == Kind::ZeroRtt {
            self.found.early.get_or_insert_default();
        }
        let (mut again, mut only_ping, mut probing) = (false, false, true);
        for frame in frames(&opened.frames) {
            probing &= frame.is_probing();
            only_ping |= frame == Frame::Ping;
            match frame {
                Frame::Crypto { offset, data } => {
                    let of = Of::Crypto(kind.space());
                    again |= self.range(index, datagram, kind, of, offset, data.len());
                }
                Frame::Stream { id, offset, data, .. } => {
                    again |= self.range(index, datagram, kind, Of::Stream(id), offset, data.len());
                    if direction == Direction::ToClient && is_request(id) {
                        let pieces = self.found.responses.entry(id).or_default();
                        pieces.add(offset, data, index, datagram.delivered);
                    }
                }
                Frame::Ack { largest } => {
                    let load = &mut self.found.loads[index];
                    load.acknowledges = true;
                    if kind == Kind::OneRtt {
                        load.acknowledged = load.acknowledged.max(Some(largest));
                    }
                }
                Frame::NewToken { token } => self.new_token(token),
                Frame::Close { code, by_application } => {
                    let closed = Closed { code, by_application, arrived: datagram.arrived };
                    self.found.closed[direction as usize].get_or_insert(closed);
                }
                _ => {}
            }
        }
        let load = &mut self.found.loads[index];
        load.again |= again;
        if kind == Kind::OneRtt {
            let number = load.one_rtt_number.unwrap_or(opened.number);
            load.one_rtt_number = Some(number.min(opened.number));
            if direction == Direction::ToServer && !probing {
                self.address(opened.number, datagram.client);
            }
        }
        self.found.retransmissions[direction as usize] += u32::from(again);
        // Path MTU discovery sends a PING in a datagram larger than any before (RFC 9000 section
        // 14.4).
        let tries_mtu = datagram.wire_len > self.largest_datagram[direction as usize];
        let rest = |frame: Frame<'_>| {
            let bare = matches!(frame, Frame::Ping | Frame::Padding(_) | Frame::Ack { .. });
            bare || frame == Frame::Other(IMMEDIATE_ACK)
        };
        if only_ping && frames(&opened.frames).all(rest) && !tries_mtu {
            self.found.probes += 1;
        }
    }

    /// Notes a stretch, and says whether some of it was there before.
    fn range(
        &mut self,
        index: usize,
        datagram: &Datagram,
        kind: Kind,
        of: Of,
        offset: u64,
        len: usize,
    ) -> bool {
        let Some(end) = offset.checked_add(len as u64).filter(|end| *end > offset) else {
            return false;
        };
        let space = Space { of, lost: self.lost(datagram, kind) };
        if kind == Kind::ZeroRtt
            && let Of::Stream(id) = of
        {
            let early = self.found.early.get_or_insert_default();
            early.entry(id).or_default().add(offset..end);
        }
        self.found.loads[index].ranges.push((space, offset..end));
        let coverage = self.coverage.entry((datagram.direction, space)).or_default();
        matches!(coverage.add(offset..end), SegmentOverlap::PartlyBefore | SegmentOverlap::Before)
    }

    /// Whether the server throws away what the client sends in this packet, as `Space` has it.
    fn lost(&self, datagram: &Datagram, kind: Kind) -> Option<usize> {
        let first = matches!(kind, Kind::Initial | Kind::ZeroRtt);
        if datagram.direction == Direction::ToClient || !first {
            return None;
        }
        let before = |turn: &&Turn<'_>| turn.delivered <= datagram.arrived;
        let turned = self.turns.iter().filter(before).count();
        let refused = self.refused && kind == Kind::ZeroRtt;
        (turned < self.turns.len() || refused).then_some(turned)
    }

    fn new_token(&mut self, token: &[u8]) {
        let tokens = &mut self.found.new_tokens;
        if tokens.len() < MAX_TOKENS && !tokens.iter().any(|known| known == token) {
            tokens.push(token.to_vec());
        }
    }

    /// RFC 9000 section 9.3: the newest packet that is no probe tells where the client is.
    fn address(&mut self, number: u64, client: SocketAddr) {
        match self.newest {
            Some((newest, _)) if number < newest => {}
            Some((_, before)) => {
                self.found.migrations += u32::from(before != client);
                self.newest = Some((number, client));
            }
            None => self.newest = Some((number, client)),
        }
    }
}

/// Whether a stream is one that the client opened both ways (RFC 9000 section 2.1).
fn is_request(id: u64) -> bool {
    id & 3 == 0
}
