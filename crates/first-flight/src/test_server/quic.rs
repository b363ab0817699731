//! Connections over QUIC: packets (RFC 9000), and requests of HTTP/3.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use firstflight_wire::{
    Aead, Cipher, CoalescedPacket, Frame, PacketKeys, PacketKind, Protected, Sender, Version,
    coalesced_packets, frames, put_varint,
};

use super::fault::{Continuation, Piece, Responses};
use super::hello::SUITE;
use super::http::{Request, Response};
use super::requests::Requests;
use super::tls::Handshake;
use super::{Shared, StrayPackets};
use crate::ProtocolError;
use crate::quic::{
    Assembly, ID_LEN, MAX_DATAGRAM, QuicParts, Space, long_header, pack_frames, pad, seal_long,
    seal_short, stream_frames,
};

/// The connections of a server, and the datagrams that clients have not read.
#[derive(Default)]
pub(super) struct Endpoint {
    connections: Vec<QuicSession>,
    sent: HashMap<SocketAddr, VecDeque<Vec<u8>>>,
    /// Client addresses whose connections fail.
    faulty: HashSet<SocketAddr>,
}

impl Endpoint {
    /// Forgets the datagrams for an address, whose socket is new.
    pub(super) fn open(&mut self, address: SocketAddr, faulty: bool) {
        self.sent.remove(&address);
        match faulty {
            true => self.faulty.insert(address),
            false => self.faulty.remove(&address),
        };
    }

    /// When the next piece of a slow response to an address leaves.
    pub(super) fn next_piece_at(&self, address: SocketAddr) -> Option<Duration> {
        let connections = self.connections.iter();
        let open = connections
            .filter(|connection| connection.address == address && connection.closed.is_none());
        open.filter_map(|connection| connection.responses.next_at()).min()
    }

    pub(super) fn send_piece(&mut self, address: SocketAddr) {
        let connections = self.connections.iter_mut();
        let open = connections
            .filter(|connection| connection.address == address && connection.closed.is_none());
        let waiting = open.filter(|connection| connection.responses.next_at().is_some());
        if let Some(connection) = waiting.min_by_key(|connection| connection.responses.next_at()) {
            connection.send_piece();
            let datagrams = connection.write_packets();
            self.sent.entry(address).or_default().extend(datagrams);
        }
    }

    /// The next datagram for an address.
    pub(super) fn next_datagram(&mut self, address: SocketAddr) -> Option<Vec<u8>> {
        self.sent.get_mut(&address)?.pop_front()
    }

    /// Processes a datagram.
    pub(super) fn receive(&mut self, shared: &Rc<Shared>, from: SocketAddr, datagram: &[u8]) {
        let now = shared.clock.get();
        self.connections.retain(|connection| {
            connection.closed.is_none_or(|closed| now < closed + CLOSING_PERIOD)
        });
        let mut first = None;
        for packet in coalesced_packets(datagram) {
            let CoalescedPacket::Protected(packet) = packet else { continue };
            let Some(index) = self.connection_of(shared, from, first, &packet) else { continue };
            let index = match shared.behaviour.stray_packets {
                // Other packets of a datagram must have the id of the first one (section 12.2).
                StrayPackets::Ignored if first.is_some_and(|first| first != index) => continue,
                _ => index,
            };
            first.get_or_insert(index);
            let connection = &mut self.connections[index];
            if connection.closed.is_none() && connection.packet(&packet).is_err() {
                connection.closed = Some(now);
            }
            let sent = self.sent.entry(connection.address).or_default();
            sent.extend(connection.write_packets());
        }
    }

    /// The connection of a packet: by its id, or a new one for an Initial packet.
    fn connection_of(
        &mut self,
        shared: &Rc<Shared>,
        from: SocketAddr,
        first: Option<usize>,
        packet: &Protected<'_>,
    ) -> Option<usize> {
        let id = match packet.kind {
            PacketKind::OneRtt => packet.bytes.get(1..1 + ID_LEN)?,
            _ => packet.destination,
        };
        let known = self
            .connections
            .iter()
            .position(|connection| connection.original == id || connection.own == *id);
        match (packet.kind, known, shared.behaviour.stray_packets) {
            (_, Some(index), _) => Some(index),
            (PacketKind::Initial, None, _)
                if shared.behaviour.validates_addresses && packet.token.is_empty() =>
            {
                self.sent.entry(from).or_default().push_back(retry(shared, packet));
                None
            }
            (PacketKind::Initial, None, _) => {
                let faulty = self.faulty.contains(&from);
                self.connections.push(QuicSession::open(shared, from, packet, faulty)?);
                Some(self.connections.len() - 1)
            }
            (PacketKind::ZeroRtt, None, StrayPackets::OfDatagram) => first,
            (PacketKind::ZeroRtt, None, StrayPackets::OfAddress) => {
                self.connections.iter().rposition(|connection| connection.address == from)
            }
            _ => None,
        }
    }
}

/// A connection.
struct QuicSession {
    shared: Rc<Shared>,
    address: SocketAddr,
    /// The destination id of the client's first packet.
    original: Vec<u8>,
    own: [u8; ID_LEN],
    peer: Vec<u8>,
    /// Initial, Handshake, application data.
    spaces: [Space; 3],
    early: Option<PacketKeys>,
    next_read: Option<PacketKeys>,
    handshake: Handshake,
    /// Whether early data was refused but is executed.
    runs_refused: bool,
    finished: bool,
    /// Streams of requests: order, and data so far.
    streams: BTreeMap<u64, (Assembly, Vec<u8>)>,
    requests: Requests,
    responses: Responses,
    /// Bytes of responses that were sent on each stream.
    responded: BTreeMap<u64, u64>,
    closed: Option<Duration>,
}

impl QuicSession {
    /// Opens a connection, if the Initial packet can be decrypted.
    fn open(
        shared: &Rc<Shared>,
        from: SocketAddr,
        packet: &Protected<'_>,
        faulty: bool,
    ) -> Option<Self> {
        let id = packet.destination;
        let read = PacketKeys::initial(Version::One, id, Sender::Client)?;
        read.open(packet.bytes, packet.number_at, None)?;
        let mut spaces: [Space; 3] = Default::default();
        spaces[INITIAL].read = Some(read);
        spaces[INITIAL].write = PacketKeys::initial(Version::One, id, Sender::Server);
        let mut own = [0; ID_LEN];
        own.copy_from_slice(&shared.unique()[..ID_LEN]);
        Some(Self {
            shared: shared.clone(),
            address: from,
            original: id.to_vec(),
            own,
            peer: packet.source.to_vec(),
            spaces,
            early: None,
            next_read: None,
            handshake: Handshake::new(shared.clone(), Some((id.to_vec(), from))),
            runs_refused: false,
            finished: false,
            streams: BTreeMap::new(),
            requests: Requests::new(shared.clone()),
            responses: Responses::new(shared.response_fault(faulty), true),
            responded: BTreeMap::new(),
            closed: None,
        })
    }

    fn packet(&mut self, packet: &Protected<'_>) -> Result<(), ProtocolError> {
        let space = packet.kind.space();
        let state = &self.spaces[space];
        let (keys, number_at) = match packet.kind {
            PacketKind::ZeroRtt => (&self.early, packet.number_at),
            PacketKind::OneRtt => (&state.read, 1 + ID_LEN),
            _ => (&state.read, packet.number_at),
        };
        let Some(keys) = keys else { return Ok(()) };
        let Some(opened) = keys.open(packet.bytes, number_at, state.largest) else {
            return Ok(());
        };
        if state.has(opened.number) {
            return Ok(());
        }
        let mut elicits_ack = false;
        for frame in frames(&opened.frames) {
            elicits_ack |=
                !matches!(frame, Frame::Padding(_) | Frame::Ack { .. } | Frame::Close { .. });
            match frame {
                Frame::Crypto { offset, data } => self.crypto(space, offset, data)?,
                Frame::Stream { id, offset, data, fin } if id % 4 == 0 => {
                    let early = packet.kind == PacketKind::ZeroRtt;
                    self.stream(id, offset, data, fin, early)?;
                }
                Frame::Close { .. } => self.closed = Some(self.shared.clock.get()),
                _ => {}
            }
        }
        self.spaces[space].receive(opened.number, elicits_ack);
        Ok(())
    }

    fn crypto(&mut self, space: usize, offset: u64, data: &[u8]) -> Result<(), ProtocolError> {
        let state = &mut self.spaces[space];
        state.crypto.add(offset, data, false)?;
        let bytes = state.crypto.take();
        state.messages.push(&bytes)?;
        while let Some(message) = self.spaces[space].messages.next() {
            match space {
                INITIAL => self.client_hello(&message)?,
                _ => self.client_finished(&message)?,
            }
        }
        Ok(())
    }

    fn client_hello(&mut self, message: &[u8]) -> Result<(), ProtocolError> {
        let reply = match self.handshake.client_hello(message) {
            Ok(reply) => reply,
            Err(error) if self.shared.behaviour.hangs_on_errors => return Err(error),
            Err(error) => {
                // CONNECTION_CLOSE with an alert (RFC 9001 section 4.8).
                let alert = match error {
                    ProtocolError::Decrypt => 51,
                    ProtocolError::Version => 70,
                    ProtocolError::NotOffered => 120,
                    _ => 47,
                };
                self.spaces[INITIAL].frames.push(vec![0x1c, 0x41, alert, 0, 0]);
                return Err(error);
            }
        };
        let keys = |secret: &[u8]| PacketKeys::new(Version::One, SUITE, secret);
        self.spaces[INITIAL].send_crypto(&reply.hello);
        self.runs_refused |= reply.refused.is_some();
        if let Some(secret) = reply.early.or(reply.refused) {
            self.early = keys(&secret);
        }
        self.requests.overtaken = self.handshake.overtaken;
        if let Some(flight) = reply.flight {
            let [_, handshake, application] = &mut self.spaces;
            handshake.read = keys(&flight.client);
            handshake.write = keys(&flight.server);
            handshake.send_crypto(&flight.messages);
            application.write = keys(&flight.server_application);
            self.next_read = keys(&flight.client_application);
        }
        Ok(())
    }

    fn client_finished(&mut self, message: &[u8]) -> Result<(), ProtocolError> {
        let tickets = self.handshake.finished(message)?;
        let application = &mut self.spaces[APPLICATION];
        application.read = self.next_read.take();
        application.send_crypto(&tickets.concat());
        // Later early data is of no use, and streams of refused early data start again.
        self.early = None;
        if std::mem::take(&mut self.runs_refused) {
            self.streams.clear();
        }
        self.finished = true;
        for (stream, response) in self.requests.complete() {
            self.respond(stream, response);
        }
        Ok(())
    }

    fn stream(
        &mut self,
        id: u64,
        offset: u64,
        data: &[u8],
        fin: bool,
        early: bool,
    ) -> Result<(), ProtocolError> {
        let (order, collected) = self.streams.entry(id).or_default();
        order.add(offset, data, fin)?;
        collected.extend(order.take());
        if !order.is_at_end() {
            return Ok(());
        }
        let request = Request::from_stream(&std::mem::take(collected));
        let request = request.ok_or(ProtocolError::Malformed)?;
        match early && self.runs_refused {
            true => drop(request.execute(&self.shared, true)),
            false => {
                if let Some(response) = self.requests.serve(id, request, early) {
                    self.respond(id, response);
                }
            }
        }
        Ok(())
    }

    fn respond(&mut self, stream: u64, response: Response) {
        if let Some(piece) = self.responses.respond(stream, response, self.shared.clock.get()) {
            self.send(&piece);
        }
    }

    fn send_piece(&mut self) {
        if let Some(piece) = self.responses.take() {
            self.send(&piece);
        }
    }

    fn send(&mut self, piece: &Piece) {
        let Piece { stream, data, continuation } = piece;
        let sent = self.responded.entry(*stream).or_default();
        let frames = match continuation {
            Continuation::Reset => {
                let mut frame = vec![RESET_STREAM];
                for field in [*stream, H3_INTERNAL_ERROR, *sent] {
                    put_varint(&mut frame, field);
                }
                vec![frame]
            }
            continuation => {
                stream_frames(*stream, *sent, data, *continuation != Continuation::More)
            }
        };
        *sent += data.len() as u64;
        self.spaces[APPLICATION].frames.extend(frames);
    }

    /// Takes the pending output, one packet per datagram.
    fn write_packets(&mut self) -> Vec<Vec<u8>> {
        let parts = QuicParts {
            destination: self.peer.clone(),
            source: self.own,
            token: Vec::new(),
            first_stream: Vec::new(),
            next_initial: 0,
            next_application: 0,
        };
        let mut datagrams = Vec::new();
        for (space, state) in self.spaces.iter_mut().enumerate() {
            if state.write.is_none() {
                continue;
            }
            let mut frames = std::mem::take(&mut state.frames);
            frames.splice(0..0, state.take_ack());
            let Some(keys) = &state.write else { continue };
            for payload in pack_frames(frames) {
                let (number, payload) = (state.next, pad(payload, 4));
                state.next += 1;
                datagrams.push(match space {
                    APPLICATION => seal_short(keys, &self.peer, number, &payload),
                    HANDSHAKE => {
                        seal_long(keys, long_header(PacketKind::Handshake, &parts), number, payload)
                    }
                    _ => {
                        let header = long_header(PacketKind::Initial, &parts);
                        let len = header.len() + payload.len() + 22;
                        let padded = pad(payload, MAX_DATAGRAM.saturating_sub(len));
                        seal_long(keys, header, number, padded)
                    }
                });
            }
        }
        datagrams
    }
}

/// A Retry packet (RFC 9000 section 17.2.5) with its tag (RFC 9001 section 5.8).
fn retry(shared: &Shared, initial: &Protected<'_>) -> Vec<u8> {
    const KEY: u128 = 0xbe0c_690b_9f66_575a_1d76_6b54_e368_c84e;
    const NONCE: [u8; 12] =
        [0x46, 0x15, 0x99, 0xd3, 0x5d, 0x63, 0x2b, 0xf2, 0x23, 0x98, 0x25, 0xbb];
    let mut packet = vec![0xf0];
    packet.extend_from_slice(&Version::One.number().to_be_bytes());
    for id in [initial.source, &shared.unique()[..ID_LEN]] {
        packet.push(id.len() as u8);
        packet.extend_from_slice(id);
    }
    packet.extend_from_slice(b"token");
    let mut covered = vec![initial.destination.len() as u8];
    covered.extend_from_slice(initial.destination);
    covered.extend_from_slice(&packet);
    let aead = Aead::new(Cipher::Aes128Gcm, &KEY.to_be_bytes()).expect("a key of 16 bytes");
    let mut tag = Vec::new();
    aead.seal(&NONCE, &covered, &mut tag);
    [packet, tag].concat()
}

/// A frame's type (RFC 9000 section 19.4).
const RESET_STREAM: u8 = 0x04;

/// RFC 9114 section 8.1.
const H3_INTERNAL_ERROR: u64 = 0x102;

const INITIAL: usize = 0;
const HANDSHAKE: usize = 1;
const APPLICATION: usize = 2;

/// How long packets of a closed connection are ignored: three PTOs (section 10.2).
const CLOSING_PERIOD: Duration = Duration::from_millis(300);
