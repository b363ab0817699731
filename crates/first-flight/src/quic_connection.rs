//! A connection over QUIC, without its socket.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use firstflight_wire::{
    CoalescedPacket, Frame, PacketKeys, PacketKind, Protected, Sender, Version, coalesced_packets,
    frames, put_varint,
};

use crate::connection::{Alert, Connection, Event};
use crate::handshake::{Handshake, LastFlight, Step};
use crate::parts::FlightParts;
use crate::quic::{
    Assembly, FIRST_UNIDIRECTIONAL, ID_LEN, MAX_DATAGRAM, MAX_STREAM_BYTES, QuicParts, long_header,
    pack_frames, pad, seal_long, seal_short,
};
use crate::quic::{Space, stream_frames};
use crate::{ProtocolError, Suite};

/// One copy of a first flight over QUIC.
pub(crate) struct QuicConnection {
    flight: Arc<FlightParts>,
    parts: QuicParts,
    /// Whether to send nothing in response, like an attacker without keys.
    silent: bool,
    handshake: Handshake,
    /// Initial, Handshake, application data.
    spaces: [Space; 3],
    early: Option<PacketKeys>,
    suite: Option<Suite>,
    /// The client's last flight until it is sent, and the keys for later packets.
    last_flight: Option<(LastFlight, PacketKeys)>,
    streams: BTreeMap<u64, Assembly>,
    /// Bytes of all streams, those of repeated frames included.
    stream_bytes: u64,
    /// Streams that have ended.
    ended: HashSet<u64>,
    /// The next bidirectional stream that we open.
    next_stream: u64,
    /// Whether the first unidirectional stream was opened.
    opened_first: bool,
    events: VecDeque<Event>,
    output: Vec<Vec<u8>>,
    unacknowledged: Vec<Unacknowledged>,
    retried: bool,
    responded: bool,
    server_finished: bool,
    finished: bool,
}

/// A datagram, and those of its packets that were not acknowledged: space and number of each.
type Unacknowledged = (Vec<u8>, Vec<(usize, u64)>);

impl QuicConnection {
    /// A client's connection.
    pub(crate) fn original(flight: Arc<FlightParts>) -> Self {
        Self::new(flight, false)
    }

    /// An attacker's connection.
    pub(crate) fn copy(flight: Arc<FlightParts>) -> Self {
        Self::new(flight, true)
    }

    fn new(flight: Arc<FlightParts>, silent: bool) -> Self {
        let parts = flight.quic.clone().expect("a flight over QUIC");
        let early = flight.early_packet_keys();
        let mut connection = Self {
            handshake: Handshake::new(flight.clone(), false),
            silent,
            spaces: Default::default(),
            suite: None,
            last_flight: None,
            streams: BTreeMap::new(),
            stream_bytes: 0,
            ended: HashSet::new(),
            next_stream: if early.is_some() { 4 } else { 0 },
            opened_first: early.is_some(),
            events: VecDeque::new(),
            output: flight.pieces(),
            unacknowledged: Vec::new(),
            retried: false,
            responded: false,
            server_finished: false,
            finished: false,
            early,
            parts,
            flight,
        };
        connection.start();
        connection
    }

    /// Sets keys and packet numbers after the flight was sent, or sent again with a token.
    fn start(&mut self) {
        let id = &self.parts.destination;
        let [initial, _, application] = &mut self.spaces;
        initial.read = PacketKeys::initial(Version::One, id, Sender::Server);
        initial.write = PacketKeys::initial(Version::One, id, Sender::Client);
        initial.next = self.parts.next_initial;
        initial.crypto_sent = self.flight.hello.len() as u64;
        application.next = self.parts.next_application;
        // Any response acknowledges the flight's datagrams. A copy is sent only once.
        self.unacknowledged = match self.silent {
            true => Vec::new(),
            false => self.output.iter().map(|datagram| (datagram.clone(), vec![(0, 0)])).collect(),
        };
    }

    fn packet(&mut self, packet: &Protected<'_>, now: Duration) -> Result<(), ProtocolError> {
        let space = packet.kind.space();
        let number_at = match packet.kind {
            PacketKind::ZeroRtt => return Ok(()),
            PacketKind::OneRtt => 1 + ID_LEN,
            _ => packet.number_at,
        };
        let state = &self.spaces[space];
        let Some(keys) = &state.read else { return Ok(()) };
        // A packet that does not open was not sent by the server, or arrived before its keys.
        let Some(opened) = keys.open(packet.bytes, number_at, state.largest) else {
            return Ok(());
        };
        if state.has(opened.number) {
            return Ok(());
        }
        if packet.kind == PacketKind::Initial {
            self.parts.destination = packet.source.to_vec();
        }
        if !self.responded {
            self.responded = true;
            self.unacknowledged.clear();
        }
        let mut elicits_ack = false;
        for frame in frames(&opened.frames) {
            elicits_ack |=
                !matches!(frame, Frame::Padding(_) | Frame::Ack { .. } | Frame::Close { .. });
            self.frame(space, &frame, now)?;
        }
        self.spaces[space].receive(opened.number, elicits_ack);
        Ok(())
    }

    fn frame(
        &mut self,
        space: usize,
        frame: &Frame<'_>,
        now: Duration,
    ) -> Result<(), ProtocolError> {
        match *frame {
            Frame::Crypto { offset, data } => {
                let state = &mut self.spaces[space];
                state.crypto.add(offset, data, false)?;
                let bytes = state.crypto.take();
                state.messages.push(&bytes)?;
                while let Some(message) = self.spaces[space].messages.next() {
                    self.message(&message, now)?;
                }
            }
            Frame::Ack { largest } => {
                for (_, packets) in &mut self.unacknowledged {
                    packets.retain(|(packet_space, number)| {
                        *packet_space != space || *number > largest
                    });
                }
                self.unacknowledged.retain(|(_, packets)| !packets.is_empty());
            }
            Frame::Stream { id, offset, data, fin } if space == APPLICATION => {
                self.stream(id, offset, data, fin)?;
            }
            Frame::ResetStream { id, code } if space == APPLICATION => {
                self.events.push_back(Event::StreamReset { stream: id, code });
            }
            Frame::Close { code, by_application } => {
                if let (0x100..=0x1ff, false) = (code, by_application) {
                    self.events.push_back(Event::Alert(Alert(code as u8)));
                }
                return Err(ProtocolError::Closed { code, by_application });
            }
            _ => {}
        }
        Ok(())
    }

    fn stream(
        &mut self,
        id: u64,
        offset: u64,
        data: &[u8],
        fin: bool,
    ) -> Result<(), ProtocolError> {
        if self.ended.contains(&id) {
            return Ok(());
        }
        self.stream_bytes += data.len() as u64;
        let streams = self.streams.len() + self.ended.len();
        if streams >= MAX_STREAMS && !self.streams.contains_key(&id)
            || self.stream_bytes > 2 * MAX_STREAM_BYTES
        {
            return Err(ProtocolError::TooLong);
        }
        let stream = self.streams.entry(id).or_default();
        stream.add(offset, data, fin)?;
        let (data, end) = (stream.take(), stream.is_at_end());
        if end {
            self.streams.remove(&id);
            self.ended.insert(id);
        }
        if end || !data.is_empty() {
            let before_finished = !self.finished;
            self.events.push_back(Event::ApplicationData {
                stream: id,
                data,
                end,
                before_finished,
            });
        }
        Ok(())
    }

    fn message(&mut self, message: &[u8], now: Duration) -> Result<(), ProtocolError> {
        let keys = |suite, secret: &[u8]| PacketKeys::new(Version::One, suite, secret);
        match self.handshake.message(message, now)? {
            Step::Continue => {}
            Step::Retry { hello } => {
                self.spaces[0].send_crypto(&hello);
                self.early = None;
                self.events.push_back(Event::HelloRetryRequest);
            }
            Step::Handshake { suite, resumed, client, server } => {
                self.suite = Some(suite);
                self.spaces[HANDSHAKE].read = keys(suite, &server);
                self.spaces[HANDSHAKE].write = keys(suite, &client);
                self.events.push_back(Event::ServerHello { suite, resumed });
            }
            Step::Extensions { early_data, alpn } => {
                if !early_data {
                    // Streams start again (RFC 9001 section 4.6.2).
                    self.early = None;
                    self.next_stream = 0;
                    self.opened_first = false;
                }
                self.events.push_back(Event::EncryptedExtensions { early_data, alpn });
            }
            Step::Finished { client, server, last_flight } => {
                let suite = self.suite.ok_or(ProtocolError::Malformed)?;
                self.spaces[APPLICATION].read = keys(suite, &server);
                self.last_flight = keys(suite, &client).map(|keys| (last_flight, keys));
                self.server_finished = true;
                self.events.push_back(Event::Finished);
            }
            Step::Certificate(content) => self.events.push_back(Event::Certificate(content)),
            Step::Ticket(ticket) => self.events.push_back(Event::Ticket(ticket)),
            // RFC 9001 section 6.
            Step::KeyUpdate => return Err(ProtocolError::Malformed),
        }
        Ok(())
    }

    /// Processes a Retry packet (RFC 9000 section 17.2.5).
    fn retry(&mut self, version: Version, source: &[u8], token: &[u8], bytes: &[u8]) {
        let valid = version.retry_is_good(&self.parts.destination, bytes);
        if self.retried || self.responded || !valid || token.is_empty() {
            return;
        }
        self.retried = true;
        self.events.push_back(Event::AddressValidation);
        if !self.silent {
            self.parts.destination = source.to_vec();
            self.parts.token = token.to_vec();
            let mut parts = self.parts.clone();
            self.output = self.flight.datagrams(&mut parts);
            self.parts = parts;
            self.start();
        }
    }

    /// Returns frames that send this data on the next stream.
    fn frames_on_next_stream(&mut self, data: &[u8]) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        if !std::mem::replace(&mut self.opened_first, true) {
            let first = &self.parts.first_stream;
            frames.extend(stream_frames(FIRST_UNIDIRECTIONAL, 0, first, false));
        }
        frames.extend(stream_frames(self.next_stream, 0, data, true));
        self.next_stream += 4;
        frames
    }

    /// Writes packets of all spaces with their pending frames.
    fn write_packets(&mut self) {
        let mut packets: Vec<(usize, u64, Vec<u8>, bool)> = Vec::new();
        for space in [INITIAL, HANDSHAKE, APPLICATION] {
            let state = &mut self.spaces[space];
            if state.write.is_none() {
                continue;
            }
            let mut frames = std::mem::take(&mut state.frames);
            let elicits_ack = !frames.is_empty();
            if !self.silent || self.finished {
                frames.splice(0..0, state.take_ack());
            }
            let Some(keys) = &state.write else { continue };
            for payload in pack_frames(frames) {
                let number = state.next;
                state.next += 1;
                let payload = pad(payload, 4);
                let packet = match space {
                    APPLICATION => seal_short(keys, &self.parts.destination, number, &payload),
                    _ => {
                        let kind = match space {
                            INITIAL => PacketKind::Initial,
                            _ => PacketKind::Handshake,
                        };
                        let header = long_header(kind, &self.parts);
                        let len = header.len() + payload.len() + 22;
                        let missing = match kind {
                            PacketKind::Initial => MAX_DATAGRAM.saturating_sub(len),
                            _ => 0,
                        };
                        seal_long(keys, header, number, pad(payload, missing))
                    }
                };
                packets.push((space, number, packet, elicits_ack));
            }
        }
        let mut datagram = (Vec::new(), Vec::new());
        for (space, number, packet, elicits_ack) in packets {
            if datagram.0.len() + packet.len() > MAX_DATAGRAM {
                self.put_datagram(std::mem::take(&mut datagram));
            }
            datagram.0.extend(packet);
            datagram.1.extend(elicits_ack.then_some((space, number)));
        }
        self.put_datagram(datagram);
    }

    fn put_datagram(&mut self, (datagram, packets): Unacknowledged) {
        if datagram.is_empty() {
            return;
        }
        if !packets.is_empty() && self.unacknowledged.len() < MAX_UNACKNOWLEDGED {
            self.unacknowledged.push((datagram.clone(), packets));
        }
        self.output.push(datagram);
    }
}

impl Connection for QuicConnection {
    fn take_output(&mut self) -> Vec<Vec<u8>> {
        self.write_packets();
        std::mem::take(&mut self.output)
    }

    fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn take_key_log(&mut self) -> Vec<String> {
        self.handshake.take_key_log()
    }

    fn is_ready(&self) -> bool {
        self.server_finished
    }

    fn receive(&mut self, bytes: &[u8], now: Duration) -> Result<(), ProtocolError> {
        for packet in coalesced_packets(bytes) {
            match packet {
                CoalescedPacket::Protected(packet) => self.packet(&packet, now)?,
                CoalescedPacket::Retry { version, source, token, bytes } => {
                    self.retry(version, source, token, bytes);
                }
                CoalescedPacket::VersionNegotiation if !self.responded => {
                    return Err(ProtocolError::Version);
                }
                CoalescedPacket::VersionNegotiation | CoalescedPacket::Other { .. } => {}
            }
        }
        Ok(())
    }

    fn send_early_data(&mut self, data: &[u8]) -> bool {
        if self.early.is_none() || self.finished {
            return false;
        }
        for payload in pack_frames(self.frames_on_next_stream(data)) {
            let state = &mut self.spaces[APPLICATION];
            let (number, header) = (state.next, long_header(PacketKind::ZeroRtt, &self.parts));
            state.next += 1;
            if let Some(keys) = &self.early {
                self.output.push(seal_long(keys, header, number, pad(payload, 4)));
            }
        }
        true
    }

    fn finish(&mut self) -> bool {
        let Some((last, keys)) = self.last_flight.take() else { return self.finished };
        self.spaces[HANDSHAKE].send_crypto(&last.messages);
        self.spaces[APPLICATION].write = Some(keys);
        self.early = None;
        self.finished = true;
        true
    }

    fn send(&mut self, data: &[u8]) -> bool {
        if !self.finished {
            return false;
        }
        let frames = self.frames_on_next_stream(data);
        self.spaces[APPLICATION].frames.extend(frames);
        true
    }

    fn close(&mut self) {
        if self.finished {
            // CONNECTION_CLOSE of the application, without a reason.
            let mut frame = vec![0x1d];
            put_varint(&mut frame, NO_ERROR);
            frame.push(0);
            self.spaces[APPLICATION].frames.push(frame);
            self.write_last_packets();
        }
    }

    fn retransmit(&mut self) -> bool {
        let lost = self.unacknowledged.iter().map(|(datagram, _)| datagram.clone());
        self.output.extend(lost);
        !self.output.is_empty()
    }
}

impl QuicConnection {
    /// Writes the last packets, after which nothing is retransmitted.
    fn write_last_packets(&mut self) {
        self.write_packets();
        self.unacknowledged.clear();
    }
}

const INITIAL: usize = 0;
const HANDSHAKE: usize = 1;
const APPLICATION: usize = 2;

/// H3_NO_ERROR (RFC 9114 section 8.1).
const NO_ERROR: u64 = 0x100;
/// Maximum number of streams of a connection.
const MAX_STREAMS: usize = 256;
/// Maximum number of datagrams kept for retransmission.
const MAX_UNACKNOWLEDGED: usize = 32;
