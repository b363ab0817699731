//! A client's Initial packets in a datagram (RFC 9000 section 17.2.2), and what is in them.

use bytes::BytesMut;
use firstflight_wire::Input;
use quinn_proto::crypto::{HeaderKey, PacketKey};

/// An Initial packet as it came.
pub(super) struct Initial<'a> {
    pub(super) destination: &'a [u8],
    pub(super) token: &'a [u8],
    /// From the first byte to the end that its length tells.
    packet: &'a [u8],
    /// Where the packet number starts.
    number_at: usize,
}

/// The Initial packets of a datagram for one connection: the one that its first packet names. All
/// others in it are ignored (RFC 9000 section 12.2).
pub(super) fn initials(datagram: &[u8]) -> impl Iterator<Item = Initial<'_>> {
    let mut rest = datagram;
    let mut connection = None;
    std::iter::from_fn(move || {
        loop {
            let (packet, after) = long_packet(rest)?;
            rest = after;
            let first = *connection.get_or_insert(packet.destination());
            match packet {
                Packet::Initial(initial) if initial.destination == first => return Some(initial),
                Packet::Initial(_) | Packet::Other(_) => {}
            }
        }
    })
}

/// Whether a datagram may start a connection: its first packet is an Initial of version 1, and it
/// is as long as it has to be (RFC 9000 section 14.1). Cheap.
pub(super) fn may_start_connection(datagram: &[u8]) -> bool {
    datagram.len() >= SMALLEST
        && datagram[0] & (LONG_HEADER | TYPE) == LONG_HEADER | INITIAL
        && datagram[1..5] == VERSION_1
}

enum Packet<'a> {
    Initial(Initial<'a>),
    /// A 0-RTT or Handshake packet, by its destination.
    Other(&'a [u8]),
}

impl<'a> Packet<'a> {
    fn destination(&self) -> &'a [u8] {
        match self {
            Self::Initial(initial) => initial.destination,
            Self::Other(destination) => destination,
        }
    }
}

/// The packet that `bytes` start with, and the bytes after it. `None`: there is none that has a
/// length, so nothing can follow.
fn long_packet(bytes: &[u8]) -> Option<(Packet<'_>, &[u8])> {
    let mut input = Input(bytes);
    let first = input.u8()?;
    // The fixed bit may be greased (RFC 9287).
    if first & LONG_HEADER == 0 || input.take(4)? != VERSION_1 || first & TYPE == RETRY {
        return None;
    }
    let destination = connection_id(&mut input)?;
    connection_id(&mut input)?;
    let token = match first & TYPE == INITIAL {
        true => Some(input.varint_vec()?),
        false => None,
    };
    let length = usize::try_from(input.varint()?).ok()?;
    let number_at = bytes.len() - input.0.len();
    input.take(length)?;
    let packet = &bytes[..number_at + length];
    let packet = match token {
        Some(token) => Packet::Initial(Initial { destination, token, packet, number_at }),
        None => Packet::Other(destination),
    };
    Some((packet, input.0))
}

/// The keys of a client's Initial packets.
pub(super) struct ClientKeys {
    pub(super) header: Box<dyn HeaderKey>,
    pub(super) packet: Box<dyn PacketKey>,
}

/// An Initial packet without its protection.
pub(super) struct Opened {
    pub(super) number: u64,
    pub(super) payload: BytesMut,
}

impl Initial<'_> {
    /// Removes the protection (RFC 9001 section 5). `expected`: the number after the largest so
    /// far. `None`: it was not made with these keys.
    pub(super) fn open(&self, keys: &ClientKeys, expected: u64) -> Option<Opened> {
        let sample_at = self.number_at + 4;
        if self.packet.len() < sample_at + keys.header.sample_size() {
            return None;
        }
        let mut packet = BytesMut::from(self.packet);
        keys.header.decrypt(self.number_at, &mut packet);
        // The reserved bits are zero.
        if packet[0] & RESERVED != 0 {
            return None;
        }
        let number_length = usize::from(packet[0] & NUMBER_LENGTH) + 1;
        let header = packet.split_to(self.number_at + number_length).freeze();
        let short = &header[self.number_at..];
        let short = short.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let number = whole_number(short, 8 * number_length, expected);
        keys.packet.decrypt(number, &header, &mut packet).ok()?;
        Some(Opened { number, payload: packet })
    }
}

/// A packet number of which the last bits are known (RFC 9000 appendix A.3).
fn whole_number(short: u64, bits: usize, expected: u64) -> u64 {
    let window = 1 << bits;
    let candidate = (expected & !(window - 1)) | short;
    if candidate + window / 2 <= expected {
        candidate + window
    } else if candidate > expected + window / 2 && candidate >= window {
        candidate - window
    } else {
        candidate
    }
}

/// The CRYPTO frames of an Initial packet's payload, each with its offset. `None`: there is a
/// frame that an Initial packet must not have (RFC 9000 section 12.4), or half a frame.
pub(super) fn crypto_frames(payload: &[u8]) -> Option<Vec<(u64, &[u8])>> {
    let mut input = Input(payload);
    let mut frames = Vec::new();
    while let Some(kind) = input.u8() {
        match kind {
            PADDING | PING => {}
            ACK | ACK_ECN => skip_ack(&mut input, kind == ACK_ECN)?,
            CRYPTO => frames.push((input.varint()?, input.varint_vec()?)),
            // Or CONNECTION_CLOSE: there will be no connection, so the rest does not matter.
            _ => return None,
        }
    }
    Some(frames)
}

/// The rest of an ACK frame (RFC 9000 section 19.3).
fn skip_ack(input: &mut Input<'_>, ecn: bool) -> Option<()> {
    input.varint()?;
    input.varint()?;
    let ranges = input.varint()?;
    input.varint()?;
    // Each takes two bytes at least, so there can't be many.
    for _ in 0..ranges {
        input.varint()?;
        input.varint()?;
    }
    for _ in 0..if ecn { 3 } else { 0 } {
        input.varint()?;
    }
    Some(())
}

/// A connection id of version 1 and the length before it (RFC 9000 section 17.2).
fn connection_id<'a>(input: &mut Input<'a>) -> Option<&'a [u8]> {
    let length = input.u8().filter(|length| *length <= MAX_ID)?;
    input.take(length.into())
}

const LONG_HEADER: u8 = 0x80;
const TYPE: u8 = 0x30;
const INITIAL: u8 = 0x00;
const RETRY: u8 = 0x30;
const RESERVED: u8 = 0x0c;
const NUMBER_LENGTH: u8 = 0x03;
const VERSION_1: [u8; 4] = [0, 0, 0, 1];
const SMALLEST: usize = 1200;
const MAX_ID: u8 = 20;

const PADDING: u8 = 0x00;
const PING: u8 = 0x01;
const ACK: u8 = 0x02;
const ACK_ECN: u8 = 0x03;
const CRYPTO: u8 = 0x06;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc9000_a_3_packet_numbers() {
        assert_eq!(whole_number(0x9b32, 16, 0xa82f_30eb), 0xa82f_9b32);
        assert_eq!(whole_number(2, 32, 0), 2);
        assert_eq!(whole_number(0, 8, 255), 256);
        assert_eq!(whole_number(254, 8, 256), 254);
        assert_eq!(whole_number(200, 8, 0), 200, "there is no number below 0");
    }

    #[test]
    fn rfc9000_12_4_frames_of_an_initial_packet() {
        let ack = [ACK, 5, 0, 1, 2, 0, 1];
        let ack_ecn = [ACK_ECN, 5, 0, 0, 2, 1, 2, 3];
        let crypto = [CRYPTO, 7, 2, b'a', b'b'];
        let payload = [&[PADDING, PING][..], &ack, &ack_ecn, &crypto, &[PADDING]].concat();
        assert_eq!(crypto_frames(&payload), Some(vec![(7, &b"ab"[..])]));
        for end in 1..crypto.len() {
            assert_eq!(crypto_frames(&crypto[..end]), None, "half a frame");
        }
        // STREAM, HANDSHAKE_DONE, CONNECTION_CLOSE
        for kind in [0x08, 0x1e, 0x1c] {
            assert_eq!(crypto_frames(&[&crypto[..], &[kind, 0, 0, 0]].concat()), None);
        }
        assert_eq!(crypto_frames(&[ACK, 0, 0, 0xff]), None);
    }
}
