//! Initial packets, which anyone can open and create: their keys are derived from the connection id
//! (RFC 9001 section 5.2).

use rustls::Side;
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::quic::{DirectionalKeys, Version};

/// A frame of type PING.
pub(crate) const PING: [u8; 1] = [0x01];

/// CONNECTION_CLOSE without an error, of type 0x1c.
pub(crate) const CLOSE: [u8; 4] = [0x1c, 0, 0, 0];

/// The minimum size of a datagram that a server processes (RFC 9000 section 14.1).
pub(crate) const FULL: usize = 1200;

/// The Initial packets that one side of a connection sends.
pub(crate) struct Initials {
    keys: DirectionalKeys,
    pub(crate) destination: Vec<u8>,
    source: Vec<u8>,
}

impl Initials {
    /// Derives the keys from the two connection ids of the first packet.
    pub(crate) fn new(destination: &[u8], source: &[u8]) -> Self {
        let keys = keys(destination, Side::Client);
        Self { keys, destination: destination.to_vec(), source: source.to_vec() }
    }

    /// The Initial packets of a server, in response to a client's first packet with this header.
    pub(crate) fn server(client: &Header, source: &[u8]) -> Self {
        let keys = keys(&client.destination, Side::Server);
        Self { keys, destination: client.source.clone(), source: source.to_vec() }
    }

    /// A datagram of `size` bytes with one packet that contains these frames.
    pub(crate) fn packet(&self, number: u32, token: &[u8], frames: &[u8], size: usize) -> Vec<u8> {
        // Form and fixed bit, Initial, a packet number of four bytes.
        let mut packet = vec![0xc3, 0, 0, 0, 1];
        for id in [&self.destination, &self.source] {
            packet.push(id.len() as u8);
            packet.extend_from_slice(id);
        }
        varint(&mut packet, token.len() as u64);
        packet.extend_from_slice(token);
        let header = packet.len() + 2 + 4;
        let padded = frames.len().max(size.saturating_sub(header + TAG));
        packet.extend_from_slice(&(0x4000 | (4 + padded + TAG) as u16).to_be_bytes());
        packet.extend_from_slice(&number.to_be_bytes());
        let mut payload = frames.to_vec();
        payload.resize(padded, 0);
        let tag = self.keys.packet.encrypt_in_place(number.into(), &packet, &mut payload).unwrap();
        packet.extend_from_slice(&payload);
        packet.extend_from_slice(tag.as_ref());
        let (head, rest) = packet.split_at_mut(header);
        let (first, numbers) = head.split_at_mut(1);
        let numbers = &mut numbers[header - 5..];
        self.keys.header.encrypt_in_place(&rest[..SAMPLE], &mut first[0], numbers).unwrap();
        packet
    }
}

/// A CRYPTO frame.
pub(crate) fn crypto(offset: u64, data: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x06];
    varint(&mut frame, offset);
    varint(&mut frame, data.len() as u64);
    frame.extend_from_slice(data);
    frame
}

/// CONNECTION_CLOSE of type 0x1c.
pub(crate) fn close(code: u64, reason: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x1c];
    varint(&mut frame, code);
    // The type of the frame that caused it: unknown.
    varint(&mut frame, 0);
    varint(&mut frame, reason.len() as u64);
    frame.extend_from_slice(reason);
    frame
}

/// A long header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// 0: Initial, 1: 0-RTT, 2: Handshake, 3: Retry; `None`: version negotiation.
    pub(crate) kind: Option<u8>,
    pub(crate) destination: Vec<u8>,
    pub(crate) source: Vec<u8>,
    /// The token of an Initial packet, or the content of a Retry after the ids, without its tag.
    pub(crate) token: Vec<u8>,
    /// Where its packet number starts, and where the packet ends.
    pub(crate) number: usize,
    end: usize,
}

/// Parses the header of a packet, or returns `None` for a short header.
pub(crate) fn header(packet: &[u8]) -> Option<Header> {
    if packet[0] & 0x80 == 0 {
        return None;
    }
    let mut at = 5;
    let mut id = || {
        let length = usize::from(packet[at]);
        at += 1 + length;
        packet[at - length..at].to_vec()
    };
    let (destination, source) = (id(), id());
    let kind = (packet[1..5] != [0; 4]).then_some((packet[0] >> 4) & 3);
    let mut token = Vec::new();
    let mut end = packet.len();
    match kind {
        None => {}
        Some(RETRY) => token = packet[at..end - TAG].to_vec(),
        Some(kind) => {
            if kind == INITIAL {
                let length = read_varint(packet, &mut at) as usize;
                token = packet[at..at + length].to_vec();
                at += length;
            }
            let length = read_varint(packet, &mut at) as usize;
            end = at + length;
        }
    }
    Some(Header { kind, destination, source, token, number: at, end })
}

/// The packets of a datagram with their headers, up to the first short header.
pub(crate) fn packets(datagram: &[u8]) -> Vec<(Header, &[u8])> {
    let mut found = Vec::new();
    let mut rest = datagram;
    while let Some(header) = rest.first().and_then(|_| header(rest)) {
        let (packet, behind) = rest.split_at(header.end);
        found.push((header, packet));
        rest = behind;
    }
    found
}

/// Decrypts an Initial packet from this side, and returns its frames. `destination`: the first
/// destination connection id of the client.
pub(crate) fn open(packet: &[u8], destination: &[u8], from: Side) -> Option<Vec<u8>> {
    let header = header(packet).filter(|header| header.kind == Some(INITIAL))?;
    let keys = keys(destination, from);
    let mut packet = packet[..header.end].to_vec();
    let (head, rest) = packet.split_at_mut(header.number);
    let (numbers, sample) = rest.split_at_mut(4);
    keys.header.decrypt_in_place(&sample[..SAMPLE], &mut head[0], numbers).ok()?;
    let length = usize::from(packet[0] & 3) + 1;
    let (head, payload) = packet.split_at_mut(header.number + length);
    let number = head[header.number..].iter().fold(0, |all, byte| all << 8 | u64::from(*byte));
    Some(keys.packet.decrypt_in_place(number, head, payload).ok()?.to_vec())
}

/// The ClientHello of a first flight, assembled from its CRYPTO frames.
pub(crate) fn client_hello(flight: &[Vec<u8>]) -> Vec<u8> {
    hello(flight, flight, Side::Client)
}

/// The ServerHello in the response to a first flight.
pub(crate) fn server_hello(flight: &[Vec<u8>], response: &[Vec<u8>]) -> Vec<u8> {
    hello(flight, response, Side::Server)
}

fn hello(flight: &[Vec<u8>], datagrams: &[Vec<u8>], from: Side) -> Vec<u8> {
    let mut message = Vec::new();
    let first = header(&flight[0]).unwrap().destination;
    for datagram in datagrams {
        for (_, packet) in packets(datagram) {
            for (offset, data) in crypto_frames(&open(packet, &first, from).unwrap_or_default()) {
                message.resize(message.len().max(offset + data.len()), 0);
                message[offset..offset + data.len()].copy_from_slice(&data);
            }
        }
    }
    message
}

/// Offset and data of the CRYPTO frames; the others may be PADDING, PING and ACK.
fn crypto_frames(frames: &[u8]) -> Vec<(usize, Vec<u8>)> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < frames.len() {
        at += 1;
        if frames[at - 1] == 0x06 {
            let offset = read_varint(frames, &mut at) as usize;
            let length = read_varint(frames, &mut at) as usize;
            found.push((offset, frames[at..at + length].to_vec()));
            at += length;
        } else if frames[at - 1] == 0x02 {
            // Largest, delay, count, first range, and two numbers for each further range.
            let numbers = [(); 4].map(|()| read_varint(frames, &mut at));
            for _ in 0..2 * numbers[2] {
                read_varint(frames, &mut at);
            }
        } else if frames[at - 1] > 0x01 {
            break;
        }
    }
    found
}

fn keys(destination: &[u8], from: Side) -> DirectionalKeys {
    let suite = TLS13_AES_128_GCM_SHA256.tls13().and_then(|suite| suite.quic_suite()).unwrap();
    suite.keys(destination, from, Version::V1).local
}

fn varint(out: &mut Vec<u8>, value: u64) {
    match value {
        0..64 => out.push(value as u8),
        64..16_384 => out.extend_from_slice(&(0x4000 | value as u16).to_be_bytes()),
        16_384..1_073_741_824 => out.extend_from_slice(&(0x8000_0000 | value as u32).to_be_bytes()),
        _ => out.extend_from_slice(&(0xc000_0000_0000_0000 | value).to_be_bytes()),
    }
}

fn read_varint(bytes: &[u8], at: &mut usize) -> u64 {
    let length = 1 << (bytes[*at] >> 6);
    let value = bytes[*at..*at + length].iter().skip(1);
    let value = value.fold(u64::from(bytes[*at] & 0x3f), |all, byte| all << 8 | u64::from(*byte));
    *at += length;
    value
}

/// Packet types of long headers.
pub(crate) const INITIAL: u8 = 0;
pub(crate) const ZERO_RTT: u8 = 1;
pub(crate) const RETRY: u8 = 3;

/// Lengths of the tag and of the sample for header protection.
const TAG: usize = 16;
const SAMPLE: usize = 16;
