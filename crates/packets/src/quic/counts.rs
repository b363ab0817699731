//! Counts what the decrypted packets carry, in the order of arrival.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::ops::Range;

use firstflight_wire::{CoalescedPacket, Frame, IMMEDIATE_ACK, PacketKind, Protected, frames};

use super::decryption::{CapturedPacket, DecryptedPackets, Opened};
use super::flow::{Datagram, QuicFlow};
use crate::Direction;
use crate::facts::{AddressToken, Closed, TokenOrigin};
use crate::reassembly::{Coverage, Overlap, StreamBytes};

/// A space of stream offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct StreamSpace {
    pub(crate) stream: DataStream,
    /// For data that the server discarded: how often the client had restarted when it sent it. Such
    /// data is not a retransmission when it is sent again.
    pub(crate) discarded_attempt: Option<usize>,
}

/// The CRYPTO bytes of an encryption level, or the bytes of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum DataStream {
    Crypto(usize),
    Stream(u64),
}

/// What a datagram carries.
#[derive(Debug, Default)]
pub(crate) struct DatagramContent {
    pub(crate) ranges: Vec<(StreamSpace, Range<u64>)>,
    /// Whether some of it had been sent before.
    pub(crate) retransmission: bool,
    /// Whether it makes the client restart.
    pub(crate) restarts_client: bool,
    /// Whether it has an ACK frame of any level.
    pub(crate) acknowledges: bool,
    /// The largest 1-RTT packet that it acknowledges.
    pub(crate) acknowledged: Option<u64>,
    /// The lowest number of its 1-RTT packets.
    pub(crate) one_rtt_number: Option<u64>,
}

/// The counts over all packets.
#[derive(Debug, Default)]
pub(crate) struct PacketCounts {
    /// The content of each datagram.
    pub(crate) contents: Vec<DatagramContent>,
    /// What the server sent on bidirectional streams that the client opened, by stream ID.
    pub(crate) responses: BTreeMap<u64, StreamBytes>,
    pub(crate) retries: u32,
    /// The server's version, else the client's.
    pub(crate) version: Option<u32>,
    pub(crate) token: Option<AddressToken>,
    /// The tokens of distinct NEW_TOKEN frames, in order.
    pub(crate) new_tokens: Vec<Vec<u8>>,
    pub(crate) early_packets: u32,
    pub(crate) early_wire_bytes: u64,
    /// The early data of each stream; `None` if no 0-RTT packet was decrypted.
    pub(crate) early: Option<HashMap<u64, Coverage>>,
    pub(crate) retransmissions: [u32; 2],
    pub(crate) premature_retransmissions: u32,
    pub(crate) probes: u32,
    pub(crate) out_of_order: u32,
    pub(crate) duplicates: u32,
    pub(crate) unopened: u32,
    pub(crate) migrations: u32,
    pub(crate) closed: [Option<Closed>; 2],
}

/// Distinct NEW_TOKEN frames that are counted, at most.
const MAX_TOKENS: usize = 64;

impl PacketCounts {
    /// `refused` states that the server refused early data.
    pub(crate) fn new(flow: &QuicFlow, packets: &DecryptedPackets<'_>, refused: bool) -> Self {
        let restarts = restarts(flow, &packets.captured);
        let mut found = Self::default();
        found.contents.resize_with(flow.datagrams.len(), DatagramContent::default);
        for restart in &restarts {
            found.contents[restart.datagram].restarts_client = true;
            found.retries += u32::from(restart.token.is_some());
        }
        let mut counter = PacketCounter {
            found,
            refused,
            restarts,
            coverage: HashMap::new(),
            first_copies: HashMap::new(),
            shortest_ns: shortest_delays(flow),
            largest_datagram: [0; 2],
            newest: None,
        };
        for captured in &packets.captured {
            let datagram = &flow.datagrams[captured.datagram];
            match (&captured.packet, &captured.opened) {
                (CoalescedPacket::Protected(_), Some(opened)) if opened.duplicate => {
                    counter.found.duplicates += 1;
                }
                (CoalescedPacket::Protected(packet), opened) => {
                    counter.header(datagram, packet);
                    match opened {
                        Some(opened) => {
                            counter.packet(captured.datagram, datagram, packet.kind, opened);
                        }
                        None => counter.found.unopened += 1,
                    }
                }
                (CoalescedPacket::Other { .. }, _) => counter.found.unopened += 1,
                (CoalescedPacket::Retry { .. } | CoalescedPacket::VersionNegotiation, _) => {}
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

struct PacketCounter<'a> {
    found: PacketCounts,
    refused: bool,
    restarts: Vec<Restart<'a>>,
    coverage: HashMap<(Direction, StreamSpace), Coverage>,
    /// When the first copies were delivered, by the offset at which they start.
    first_copies: HashMap<(Direction, StreamSpace), BTreeMap<u64, Option<u64>>>,
    /// The shortest time from the tap to the receiver, by direction.
    shortest_ns: [u64; 2],
    /// The largest datagram so far, by direction.
    largest_datagram: [u32; 2],
    /// The client's newest 1-RTT packet that is not a path probe, and its source address.
    newest: Option<(u64, SocketAddr)>,
}

impl PacketCounter<'_> {
    /// Counts what the header of a packet shows.
    fn header(&mut self, datagram: &Datagram, packet: &Protected<'_>) {
        let found = &mut self.found;
        let version = packet.version.map(|version| version.number());
        match datagram.direction {
            Direction::ToClient => found.version = version.or(found.version),
            Direction::ToServer => found.version = found.version.or(version),
        }
        if datagram.direction == Direction::ToServer && !packet.token.is_empty() {
            let retry = self.restarts.iter().any(|restart| restart.token == Some(packet.token));
            let origin = if retry { TokenOrigin::Retry } else { TokenOrigin::NewToken };
            found.token = Some(AddressToken { origin, bytes: packet.token.len() as u32 });
        }
        if packet.kind == PacketKind::ZeroRtt && datagram.direction == Direction::ToServer {
            found.early_packets += 1;
            found.early_wire_bytes += packet.bytes.len() as u64;
        }
    }

    fn packet(&mut self, index: usize, datagram: &Datagram, kind: PacketKind, opened: &Opened) {
        let direction = datagram.direction;
        self.found.out_of_order += u32::from(opened.late);
        if kind == PacketKind::ZeroRtt {
            self.found.early.get_or_insert_default();
        }
        let (mut retransmission, mut has_ping, mut probing) = (false, false, true);
        let mut premature = true;
        let mut add = |counter: &mut Self, stream, offset, len| {
            if let Some(repeated) = counter.add_range(index, datagram, kind, stream, offset, len) {
                retransmission = true;
                premature &= repeated.premature;
            }
        };
        for frame in frames(&opened.frames) {
            probing &= frame.is_probing();
            has_ping |= frame == Frame::Ping;
            match frame {
                Frame::Crypto { offset, data } => {
                    add(self, DataStream::Crypto(kind.space()), offset, data.len());
                }
                Frame::Stream { id, offset, data, .. } => {
                    add(self, DataStream::Stream(id), offset, data.len());
                    if direction == Direction::ToClient && is_request(id) {
                        let stream_bytes = self.found.responses.entry(id).or_default();
                        stream_bytes.add(offset, data, index, datagram.delivered);
                    }
                }
                Frame::Ack { largest } => {
                    let content = &mut self.found.contents[index];
                    content.acknowledges = true;
                    if kind == PacketKind::OneRtt {
                        content.acknowledged = content.acknowledged.max(Some(largest));
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
        let content = &mut self.found.contents[index];
        content.retransmission |= retransmission;
        if kind == PacketKind::OneRtt {
            let number = content.one_rtt_number.unwrap_or(opened.number);
            content.one_rtt_number = Some(number.min(opened.number));
            if direction == Direction::ToServer && !probing {
                self.update_address(opened.number, datagram.client);
            }
        }
        self.found.retransmissions[direction as usize] += u32::from(retransmission);
        self.found.premature_retransmissions += u32::from(retransmission && premature);
        // Path MTU discovery sends a PING in a datagram larger than any before (RFC 9000 section
        // 14.4).
        let probes_mtu = datagram.wire_len > self.largest_datagram[direction as usize];
        let is_probe_frame = |frame: Frame<'_>| {
            let bare = matches!(frame, Frame::Ping | Frame::Padding(_) | Frame::Ack { .. });
            bare || frame == Frame::Other(IMMEDIATE_ACK)
        };
        if has_ping && frames(&opened.frames).all(is_probe_frame) && !probes_mtu {
            self.found.probes += 1;
        }
    }

    /// Adds a range of a stream. Returns `Some` if part of it had been sent before.
    fn add_range(
        &mut self,
        index: usize,
        datagram: &Datagram,
        kind: PacketKind,
        stream: DataStream,
        offset: u64,
        len: usize,
    ) -> Option<Repeated> {
        let end = offset.checked_add(len as u64).filter(|end| *end > offset)?;
        let space =
            StreamSpace { stream, discarded_attempt: self.discarded_attempt(datagram, kind) };
        if kind == PacketKind::ZeroRtt
            && let DataStream::Stream(id) = stream
        {
            let early = self.found.early.get_or_insert_default();
            early.entry(id).or_default().add(offset..end);
        }
        self.found.contents[index].ranges.push((space, offset..end));
        let coverage = self.coverage.entry((datagram.direction, space)).or_default();
        let overlap = coverage.add(offset..end);
        let copies = self.first_copies.entry((datagram.direction, space)).or_default();
        if matches!(overlap, Overlap::New | Overlap::OutOfOrder) {
            copies.insert(offset, datagram.delivered);
            return None;
        }
        let first = copies.range(..=offset).next_back().and_then(|(_, delivered)| *delivered);
        let return_ns = self.shortest_ns[1 - datagram.direction as usize];
        let response = first.map(|delivered| delivered.saturating_add(return_ns));
        Some(Repeated { premature: response.is_some_and(|response| datagram.arrived < response) })
    }

    /// The value of [`StreamSpace::discarded_attempt`] for data in this packet.
    fn discarded_attempt(&self, datagram: &Datagram, kind: PacketKind) -> Option<usize> {
        let first = matches!(kind, PacketKind::Initial | PacketKind::ZeroRtt);
        if datagram.direction == Direction::ToClient || !first {
            return None;
        }
        let before = |restart: &&Restart<'_>| restart.delivered <= datagram.arrived;
        let restarts_before = self.restarts.iter().filter(before).count();
        let refused = self.refused && kind == PacketKind::ZeroRtt;
        (restarts_before < self.restarts.len() || refused).then_some(restarts_before)
    }

    fn new_token(&mut self, token: &[u8]) {
        let tokens = &mut self.found.new_tokens;
        if tokens.len() < MAX_TOKENS && !tokens.iter().any(|known| known == token) {
            tokens.push(token.to_vec());
        }
    }

    /// RFC 9000 section 9.3: the newest packet that is not a probe determines the client's address.
    fn update_address(&mut self, number: u64, client: SocketAddr) {
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

/// Data that is sent again.
struct Repeated {
    /// Whether no response to its first copy could have come yet.
    premature: bool,
}

/// The shortest time from the tap to the receiver, by direction; 0 if no datagram was delivered.
fn shortest_delays(flow: &QuicFlow) -> [u64; 2] {
    let mut shortest = [None; 2];
    for datagram in &flow.datagrams {
        let delay = datagram.delivered.map(|delivered| delivered.saturating_sub(datagram.arrived));
        let known = &mut shortest[datagram.direction as usize];
        *known = (*known).into_iter().chain(delay).min();
    }
    shortest.map(Option::unwrap_or_default)
}

/// Whether a stream is bidirectional and opened by the client (RFC 9000 section 2.1).
fn is_request(id: u64) -> bool {
    id & 3 == 0
}

/// A Retry or Version Negotiation that reached the client and made it restart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Restart<'a> {
    pub(crate) datagram: usize,
    pub(crate) delivered: u64,
    /// The token of a Retry; `None` for a Version Negotiation.
    pub(crate) token: Option<&'a [u8]>,
}

/// All restarts in the order of arrival, without packets that do not reach the client or that it
/// ignores: a Retry with an invalid tag or after another Retry (RFC 9000 section 17.2.5.2), and
/// anything after other packets of the server (section 6.2).
pub(crate) fn restarts<'a>(flow: &QuicFlow, captured: &[CapturedPacket<'a>]) -> Vec<Restart<'a>> {
    let mut original = None;
    let mut found: Vec<Restart<'a>> = Vec::new();
    for captured in captured {
        let datagram = &flow.datagrams[captured.datagram];
        let delivered = match (datagram.direction, datagram.delivered) {
            (Direction::ToClient, None) => continue,
            (_, delivered) => delivered.unwrap_or(u64::MAX),
        };
        let mut add = |token| {
            found.push(Restart { datagram: captured.datagram, delivered, token });
        };
        match (datagram.direction, captured.packet) {
            (Direction::ToServer, CoalescedPacket::Protected(packet))
                if packet.version.is_some() =>
            {
                original.get_or_insert(packet.destination);
            }
            (Direction::ToClient, CoalescedPacket::Protected(_)) => break,
            (Direction::ToClient, CoalescedPacket::Retry { version, bytes, token, .. })
                if original.is_some_and(|id| version.retry_is_good(id, bytes)) =>
            {
                add(Some(token));
                break;
            }
            (Direction::ToClient, CoalescedPacket::VersionNegotiation) => {
                original = None;
                add(None);
            }
            _ => {}
        }
    }
    found
}
