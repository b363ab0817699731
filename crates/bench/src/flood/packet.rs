//! Forged Initial and 0-RTT packets.

use quinn_proto::crypto::Session;
use quinn_proto::{ConnectionId, Side};
use rand::{Rng, RngExt};

/// The connection ids of a forged connection.
pub(crate) struct Ids {
    destination: [u8; ID_BYTES],
    source: [u8; ID_BYTES],
}

const ID_BYTES: usize = 8;

/// Minimum size of a datagram with an Initial packet (RFC 9000 section 14.1).
const DATAGRAM_BYTES: usize = 1200;

const TAG_BYTES: usize = 16;
const PACKET_NUMBER_BYTES: usize = 4;
const VERSION: [u8; 4] = [0, 0, 0, 1];

impl Ids {
    pub(crate) fn random(random: &mut impl Rng) -> Self {
        Self { destination: random.random(), source: random.random() }
    }

    pub(crate) fn source(&self) -> &[u8] {
        &self.source
    }
}

/// A padded datagram with a client's Initial packet that carries the CRYPTO bytes. It is protected
/// with the Initial keys (RFC 9001 section 5.2).
pub(crate) fn initial(keys: &dyn Session, ids: &Ids, token: &[u8], crypto: &[u8]) -> Vec<u8> {
    let mut packet = Vec::with_capacity(DATAGRAM_BYTES);
    // Initial, with a packet number of four bytes (RFC 9000 section 17.2.2).
    push_header(&mut packet, 0b1100_0011, ids);
    push_varint(&mut packet, token.len());
    packet.extend_from_slice(token);
    let length = DATAGRAM_BYTES - packet.len() - 2;
    push_varint(&mut packet, length);
    let packet_number_offset = packet.len();
    packet.extend_from_slice(&[0; PACKET_NUMBER_BYTES]);
    let header_length = packet.len();
    // CRYPTO from offset 0 (RFC 9000 section 19.6).
    packet.extend_from_slice(&[0x06, 0]);
    push_varint(&mut packet, crypto.len());
    packet.extend_from_slice(crypto);
    debug_assert!(packet.len() + TAG_BYTES <= DATAGRAM_BYTES, "a ClientHello that fits a datagram");
    packet.resize(DATAGRAM_BYTES, 0);
    let keys = keys.initial_keys(&ConnectionId::new(&ids.destination), Side::Client);
    keys.packet.local.encrypt(0, &mut packet, header_length);
    keys.header.local.encrypt(packet_number_offset, &mut packet);
    packet
}

/// A datagram with a 0-RTT packet of the same connection. Its payload is random: no key opens it.
pub(crate) fn zero_rtt(ids: &Ids, random: &mut impl Rng) -> Vec<u8> {
    let mut packet = Vec::with_capacity(DATAGRAM_BYTES);
    push_header(&mut packet, 0b1101_0011, ids);
    let length = DATAGRAM_BYTES - packet.len() - 2;
    push_varint(&mut packet, length);
    let payload = packet.len();
    packet.resize(DATAGRAM_BYTES, 0);
    random.fill_bytes(&mut packet[payload..]);
    packet
}

fn push_header(packet: &mut Vec<u8>, first: u8, ids: &Ids) {
    packet.push(first);
    packet.extend_from_slice(&VERSION);
    for id in [&ids.destination, &ids.source] {
        packet.push(ID_BYTES as u8);
        packet.extend_from_slice(id);
    }
}

/// A variable-length integer of two bytes (RFC 9000 section 16).
fn push_varint(packet: &mut Vec<u8>, value: usize) {
    packet.extend_from_slice(&(value as u16 | 0x4000).to_be_bytes());
}

/// A ClientHello for QUIC (RFC 9001 section 8) with a random X25519 share, whose private key
/// nobody knows. With `ticket` it offers a random ticket with a random binder, and early data.
pub(crate) fn client_hello(
    host: &str,
    source_id: &[u8],
    ticket: bool,
    random: &mut impl Rng,
) -> Vec<u8> {
    let mut body = vec![3, 3];
    push_random(&mut body, 32, random);
    // No session id, TLS_AES_128_GCM_SHA256, no compression.
    body.extend_from_slice(&[0, 0, 2, 0x13, 0x01, 1, 0]);
    let extensions = extensions(host, source_id, ticket, random);
    push_vector(&mut body, 2, &extensions);
    let mut hello = vec![1];
    push_vector(&mut hello, 3, &body);
    hello
}

fn extensions(host: &str, source_id: &[u8], ticket: bool, random: &mut impl Rng) -> Vec<u8> {
    let mut all = Vec::new();
    let mut extension = |kind: u16, data: &[u8]| {
        all.extend_from_slice(&kind.to_be_bytes());
        push_vector(&mut all, 2, data);
    };
    extension(SERVER_NAME, &server_name(host));
    extension(SUPPORTED_GROUPS, &[0, 2, 0x00, 0x1d]);
    extension(SIGNATURE_ALGORITHMS, &[0, 8, 4, 3, 8, 4, 5, 3, 8, 7]);
    extension(ALPN, &[0, 3, 2, b'h', b'3']);
    extension(SUPPORTED_VERSIONS, &[2, 3, 4]);
    let mut share = vec![0, 36, 0x00, 0x1d, 0, 32];
    push_random(&mut share, 32, random);
    extension(KEY_SHARE, &share);
    extension(QUIC_TRANSPORT_PARAMETERS, &transport_parameters(source_id));
    if ticket {
        extension(PSK_KEY_EXCHANGE_MODES, &[1, 1]);
        extension(EARLY_DATA, &[]);
        // Must be last (RFC 8446 section 4.2.11).
        extension(PRE_SHARED_KEY, &random_ticket(random));
    }
    all
}

const SERVER_NAME: u16 = 0;
const SUPPORTED_GROUPS: u16 = 10;
const SIGNATURE_ALGORITHMS: u16 = 13;
const ALPN: u16 = 16;
const PRE_SHARED_KEY: u16 = 41;
const EARLY_DATA: u16 = 42;
const SUPPORTED_VERSIONS: u16 = 43;
const PSK_KEY_EXCHANGE_MODES: u16 = 45;
const KEY_SHARE: u16 = 51;
const QUIC_TRANSPORT_PARAMETERS: u16 = 57;
const INITIAL_SOURCE_CONNECTION_ID: u8 = 0x0f;

/// Transport parameters of a usual client (RFC 9000 section 18.2). Servers refuse clients that allow
/// no data or streams.
fn transport_parameters(source_id: &[u8]) -> Vec<u8> {
    let mut parameters = vec![INITIAL_SOURCE_CONNECTION_ID, source_id.len() as u8];
    parameters.extend_from_slice(source_id);
    // initial_max_data to initial_max_streams_uni: a mebibyte each, or 100 streams.
    for window in 0x04..=0x07 {
        parameters.extend_from_slice(&[window, 4, 0x80, 0x10, 0, 0]);
    }
    for streams in [0x08, 0x09] {
        parameters.extend_from_slice(&[streams, 2, 0x40, 100]);
    }
    parameters
}

/// About the length of a real ticket.
const TICKET_BYTES: usize = 192;

fn server_name(host: &str) -> Vec<u8> {
    let mut entry = vec![0];
    push_vector(&mut entry, 2, host.as_bytes());
    let mut list = Vec::new();
    push_vector(&mut list, 2, &entry);
    list
}

fn random_ticket(random: &mut impl Rng) -> Vec<u8> {
    let mut ticket = Vec::new();
    push_random(&mut ticket, TICKET_BYTES, random);
    let mut identity = Vec::new();
    push_vector(&mut identity, 2, &ticket);
    // The obfuscated ticket age.
    push_random(&mut identity, 4, random);
    let mut binder = vec![32];
    push_random(&mut binder, 32, random);
    let mut offered = Vec::new();
    push_vector(&mut offered, 2, &identity);
    push_vector(&mut offered, 2, &binder);
    offered
}

/// Appends a vector with a length prefix of `length` bytes (RFC 8446 section 3.4).
fn push_vector(to: &mut Vec<u8>, length: usize, data: &[u8]) {
    to.extend_from_slice(&(data.len() as u32).to_be_bytes()[4 - length..]);
    to.extend_from_slice(data);
}

fn push_random(to: &mut Vec<u8>, count: usize, random: &mut impl Rng) {
    let from = to.len();
    to.resize(from + count, 0);
    random.fill(&mut to[from..]);
}
