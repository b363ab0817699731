use quinn_proto::crypto::Session;
use quinn_proto::{ConnectionId, Side};
use rand::{Rng, RngExt};

/// The connection ids of a forged connection.
pub(crate) struct Ids {
    destination: [u8; LENGTH],
    source: [u8; LENGTH],
}

const LENGTH: usize = 8;

/// Datagrams with an Initial packet have at least so many bytes (RFC 9000 section 14.1).
const DATAGRAM: usize = 1200;

const TAG: usize = 16;
const NUMBER: usize = 4;
const VERSION: [u8; 4] = [0, 0, 0, 1];

impl Ids {
    pub(crate) fn random(random: &mut impl Rng) -> Self {
        Self { destination: random.random(), source: random.random() }
    }

    pub(crate) fn source(&self) -> &[u8] {
        &self.source
    }
}

/// A datagram with a client's Initial packet, protected as RFC 9001 section 5.2 has it, that
/// carries the CRYPTO bytes and is padded.
pub(crate) fn initial(keys: &dyn Session, ids: &Ids, token: &[u8], crypto: &[u8]) -> Vec<u8> {
    let mut packet = Vec::with_capacity(DATAGRAM);
    // Initial, with a packet number of four bytes (RFC 9000 section 17.2.2).
    begin(&mut packet, 0b1100_0011, ids);
    two_bytes(&mut packet, token.len());
    packet.extend_from_slice(token);
    let rest = DATAGRAM - packet.len() - 2;
    two_bytes(&mut packet, rest);
    let number_at = packet.len();
    packet.extend_from_slice(&[0; NUMBER]);
    let header = packet.len();
    // CRYPTO from offset 0 (RFC 9000 section 19.6).
    packet.extend_from_slice(&[0x06, 0]);
    two_bytes(&mut packet, crypto.len());
    packet.extend_from_slice(crypto);
    debug_assert!(packet.len() + TAG <= DATAGRAM, "a ClientHello that fits a datagram");
    packet.resize(DATAGRAM, 0);
    let keys = keys.initial_keys(&ConnectionId::new(&ids.destination), Side::Client);
    keys.packet.local.encrypt(0, &mut packet, header);
    keys.header.local.encrypt(number_at, &mut packet);
    packet
}

/// A datagram with a 0-RTT packet of that connection that nothing opens.
pub(crate) fn zero_rtt(ids: &Ids, random: &mut impl Rng) -> Vec<u8> {
    let mut packet = Vec::with_capacity(DATAGRAM);
    begin(&mut packet, 0b1101_0011, ids);
    let rest = DATAGRAM - packet.len() - 2;
    two_bytes(&mut packet, rest);
    let payload = packet.len();
    packet.resize(DATAGRAM, 0);
    random.fill_bytes(&mut packet[payload..]);
    packet
}

fn begin(packet: &mut Vec<u8>, first: u8, ids: &Ids) {
    packet.push(first);
    packet.extend_from_slice(&VERSION);
    for id in [&ids.destination, &ids.source] {
        packet.push(LENGTH as u8);
        packet.extend_from_slice(id);
    }
}

/// A variable-length integer of two bytes (RFC 9000 section 16).
fn two_bytes(packet: &mut Vec<u8>, value: usize) {
    packet.extend_from_slice(&(value as u16 | 0x4000).to_be_bytes());
}
