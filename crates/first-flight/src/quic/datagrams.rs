//! Writes packets and datagrams.

use firstflight_wire::{PacketKeys, PacketKind, Sender, Version, put_varint};

use super::assembly::MAX_STREAM_BYTES;
use super::space::{MAX_FRAME_DATA, crypto_frame, stream_frames};

/// Connection ids and packet numbers of a first flight.
#[derive(Clone)]
pub(crate) struct QuicParts {
    /// The destination connection id of the client's first packet, from which the Initial keys
    /// follow.
    pub(crate) destination: Vec<u8>,
    /// The client's own id, which the ClientHello contains too.
    pub(crate) source: [u8; ID_LEN],
    /// The token of a Retry packet.
    pub(crate) token: Vec<u8>,
    /// What the client's first unidirectional stream starts with.
    pub(crate) first_stream: Vec<u8>,
    /// The number of the next Initial packet.
    pub(crate) next_initial: u64,
    /// The number of the next packet with application data.
    pub(crate) next_application: u64,
}

/// Writes a flight with the next packet numbers, and advances them.
pub(crate) fn first_flight(
    parts: &mut QuicParts,
    hello: &[u8],
    early: Option<(&PacketKeys, &[u8])>,
) -> Vec<Vec<u8>> {
    let mut early_packets = Vec::new();
    if let Some((keys, data)) = early {
        let control = stream_frames(FIRST_UNIDIRECTIONAL, 0, &parts.first_stream, false);
        for payload in pack_frames([control, stream_frames(0, 0, data, true)].concat()) {
            let header = long_header(PacketKind::ZeroRtt, parts);
            early_packets.push(seal_long(keys, header, parts.next_application, payload));
            parts.next_application += 1;
        }
    }
    let Some(keys) = PacketKeys::initial(Version::One, &parts.destination, Sender::Client) else {
        return Vec::new();
    };
    let pieces: Vec<&[u8]> = hello.chunks(MAX_FRAME_DATA).collect();
    let (mut datagrams, mut offset, count) = (Vec::new(), 0, pieces.len());
    for (number, piece) in pieces.into_iter().enumerate() {
        let payload = crypto_frame(offset, piece);
        offset += piece.len() as u64;
        let header = long_header(PacketKind::Initial, parts);
        let len = header.len() + 2 + NUMBER_LEN + payload.len() + TAG_LEN;
        // The first 0-RTT packet follows in the same datagram, if it fits (section 12.2).
        let zero_rtt = match early_packets.first() {
            Some(packet) if number + 1 == count && len + packet.len() <= MAX_DATAGRAM => {
                early_packets.remove(0)
            }
            _ => Vec::new(),
        };
        let padded = pad(payload, MAX_DATAGRAM.saturating_sub(len + zero_rtt.len()));
        let packet = seal_long(&keys, header, parts.next_initial, padded);
        parts.next_initial += 1;
        datagrams.push([packet, zero_rtt].concat());
    }
    datagrams.extend(early_packets);
    datagrams
}

/// Appends PADDING frames.
pub(crate) fn pad(mut payload: Vec<u8>, more: usize) -> Vec<u8> {
    payload.resize(payload.len() + more, 0);
    payload
}

/// Packs frames into payloads of packets.
pub(crate) fn pack_frames(frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let mut payloads: Vec<Vec<u8>> = Vec::new();
    for frame in frames {
        match payloads.last_mut() {
            Some(last) if last.len() + frame.len() <= MAX_PAYLOAD => last.extend(frame),
            _ => payloads.push(frame),
        }
    }
    payloads
}

/// A long header (section 17.2) without the length and the number.
pub(crate) fn long_header(kind: PacketKind, parts: &QuicParts) -> Vec<u8> {
    let first = match kind {
        PacketKind::Initial | PacketKind::OneRtt => 0xc3,
        PacketKind::ZeroRtt => 0xd3,
        PacketKind::Handshake => 0xe3,
    };
    let mut header = vec![first];
    header.extend_from_slice(&Version::One.number().to_be_bytes());
    for id in [&parts.destination[..], &parts.source] {
        header.push(id.len() as u8);
        header.extend_from_slice(id);
    }
    if kind == PacketKind::Initial {
        put_varint(&mut header, parts.token.len() as u64);
        header.extend_from_slice(&parts.token);
    }
    header
}

/// Adds length and number to a long header, and protects the packet. Packet numbers take four bytes,
/// so that no payload is too short for header protection (RFC 9001 section 5.4.2).
pub(crate) fn seal_long(
    keys: &PacketKeys,
    mut header: Vec<u8>,
    number: u64,
    payload: Vec<u8>,
) -> Vec<u8> {
    let len = (NUMBER_LEN + payload.len() + TAG_LEN) as u16;
    header.extend_from_slice(&(len | 1 << 14).to_be_bytes());
    header.extend_from_slice(&(number as u32).to_be_bytes());
    keys.seal(number, &header, &payload)
}

/// A packet with a short header (section 17.3).
pub(crate) fn seal_short(
    keys: &PacketKeys,
    destination: &[u8],
    number: u64,
    payload: &[u8],
) -> Vec<u8> {
    let header = [&[0x43][..], destination, &(number as u32).to_be_bytes()].concat();
    keys.seal(number, &header, payload)
}

/// The client's transport parameters (section 18).
pub(crate) fn transport_parameters(source: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut put = |id: u64, value: &[u8]| {
        put_varint(&mut out, id);
        put_varint(&mut out, value.len() as u64);
        out.extend_from_slice(value);
    };
    let number = |value| {
        let mut encoded = Vec::new();
        put_varint(&mut encoded, value);
        encoded
    };
    put(0x01, &number(MAX_IDLE_MS));
    for limit_of_bytes in [0x04, 0x05, 0x06, 0x07] {
        put(limit_of_bytes, &number(MAX_STREAM_BYTES));
    }
    put(0x09, &number(MAX_UNIDIRECTIONAL));
    put(0x0f, source);
    out
}

/// Size of a datagram with an Initial packet (section 14.1), in bytes; no datagram is larger.
pub(crate) const MAX_DATAGRAM: usize = 1200;
/// Maximum number of bytes of frames in a packet.
const MAX_PAYLOAD: usize = 1100;
/// Length of our connection ids, in bytes.
pub(crate) const ID_LEN: usize = 8;
pub(crate) const NUMBER_LEN: usize = 4;
pub(crate) const TAG_LEN: usize = 16;
/// The client's first unidirectional stream (section 2.1).
pub(crate) const FIRST_UNIDIRECTIONAL: u64 = 2;
const MAX_IDLE_MS: u64 = 120_000;
/// HTTP/3 needs three (RFC 9114 section 6.2).
const MAX_UNIDIRECTIONAL: u64 = 16;
