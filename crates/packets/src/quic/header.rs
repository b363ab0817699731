//! Packet headers, as far as they are not protected, and the packets of a datagram.

use super::version::{LongType, Version};

/// Reads what QUIC is made of; `None` where the bytes end too soon.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*taken))
    }

    /// A variable-length integer (RFC 9000 section 16).
    pub(crate) fn varint(&mut self) -> Option<u64> {
        let first = *self.0.first()?;
        let bytes = self.take(1 << (first >> 6))?;
        let value = bytes.iter().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
        Some(value & (u64::MAX >> (64 - (8 * bytes.len() as u32 - 2))))
    }

    /// Bytes behind their length.
    pub(crate) fn varint_vec(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.varint()?).ok()?;
        self.take(len)
    }

    fn connection_id(&mut self) -> Option<&'a [u8]> {
        let len = usize::from(self.u8()?);
        self.take(len)
    }
}

/// What holds for the long headers of all versions (RFC 8999 section 5.1).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Long<'a> {
    pub(crate) first: u8,
    pub(crate) version: u32,
    pub(crate) destination: &'a [u8],
    pub(crate) source: &'a [u8],
    /// What comes behind.
    rest: &'a [u8],
}

impl<'a> Long<'a> {
    /// Reads a long header; `None` for a short one, and for what is none.
    pub(crate) fn read(bytes: &'a [u8]) -> Option<Self> {
        let mut input = Input(bytes);
        let first = input.u8().filter(|first| is_long(*first))?;
        let version = input.u32()?;
        let destination = input.connection_id()?;
        let source = input.connection_id()?;
        Some(Self { first, version, destination, source, rest: input.0 })
    }

    /// What kind of packet it is, if the version is one that is read.
    pub(crate) fn long_type(&self) -> Option<LongType> {
        Some(Version::from_wire(self.version)?.long_type(self.first))
    }
}

pub(crate) fn is_long(first: u8) -> bool {
    first & 0x80 != 0
}

/// A kind of packet that is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    Initial,
    ZeroRtt,
    Handshake,
    OneRtt,
}

impl Kind {
    /// Which packets count their numbers together (RFC 9000 section 12.3).
    pub(crate) fn space(self) -> usize {
        match self {
            Self::Initial => 0,
            Self::Handshake => 1,
            Self::ZeroRtt | Self::OneRtt => 2,
        }
    }
}

/// A packet in a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part<'a> {
    VersionNegotiation,
    Retry {
        version: Version,
        token: &'a [u8],
        bytes: &'a [u8],
    },
    Protected(Protected<'a>),
    /// Of a version that is not read, or malformed.
    Other {
        len: usize,
    },
}

/// A packet before its protection is taken off.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Protected<'a> {
    pub(crate) kind: Kind,
    /// Of a long header.
    pub(crate) version: Option<Version>,
    pub(crate) destination: &'a [u8],
    pub(crate) token: &'a [u8],
    /// From its first byte to its last.
    pub(crate) bytes: &'a [u8],
    /// Where its packet number starts; 0 in a short header, which does not say it.
    pub(crate) number_at: usize,
}

/// The packets in a datagram, one behind the other (RFC 9000 section 12.2).
pub(crate) fn parts(datagram: &[u8]) -> impl Iterator<Item = Part<'_>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let first = *rest.first()?;
        let taken = std::mem::take(&mut rest);
        if is_long(first) {
            let len = taken.len();
            let (part, behind) = long(taken).unwrap_or((Part::Other { len }, &[]));
            rest = behind;
            return Some(part);
        }
        // Some senders pad a datagram behind its packets.
        if taken.iter().all(|byte| *byte == 0) {
            return None;
        }
        Some(Part::Protected(Protected {
            kind: Kind::OneRtt,
            version: None,
            destination: &[],
            token: &[],
            bytes: taken,
            number_at: 0,
        }))
    })
}

fn long(bytes: &[u8]) -> Option<(Part<'_>, &[u8])> {
    let header = Long::read(bytes)?;
    if header.version == 0 {
        return Some((Part::VersionNegotiation, &[]));
    }
    let version = Version::from_wire(header.version)?;
    let mut input = Input(header.rest);
    let kind = match version.long_type(header.first) {
        LongType::Initial => Kind::Initial,
        LongType::ZeroRtt => Kind::ZeroRtt,
        LongType::Handshake => Kind::Handshake,
        LongType::Retry => {
            let token = header.rest.split_last_chunk::<16>()?.0;
            return Some((Part::Retry { version, token, bytes }, &[]));
        }
    };
    let token = if kind == Kind::Initial { input.varint_vec()? } else { &[] };
    let len = usize::try_from(input.varint()?).ok()?;
    let number_at = bytes.len() - input.0.len();
    let (packet, behind) = bytes.split_at_checked(number_at.checked_add(len)?)?;
    let part = Protected {
        kind,
        version: Some(version),
        destination: header.destination,
        token,
        bytes: packet,
        number_at,
    };
    Some((Part::Protected(part), behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc9000_a_1_variable_length_integers() {
        let samples: [(&[u8], u64); 5] = [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
            (&[0x40, 0x25], 37),
        ];
        for (bytes, value) in samples {
            assert_eq!(Input(bytes).varint(), Some(value));
            assert_eq!(Input(&bytes[..bytes.len() - 1]).varint(), None);
        }
    }

    #[test]
    fn rfc9000_12_2_packets_share_a_datagram() {
        // An Initial with a token of one byte, a Handshake packet, a short header, and padding.
        let mut datagram = vec![0xc0, 0, 0, 0, 1, 1, 7, 2, 8, 9, 1, 0xaa, 3, 1, 2, 3];
        let handshake = [0xe0, 0, 0, 0, 1, 1, 7, 0, 2, 4, 5];
        datagram.extend(handshake);
        datagram.extend([0x40, 7, 1, 2, 3]);
        let found: Vec<_> = parts(&datagram)
            .map(|part| match part {
                Part::Protected(packet) => {
                    (packet.kind, packet.token.len(), packet.bytes.len(), packet.number_at)
                }
                other => panic!("{other:?}"),
            })
            .collect();
        let expected =
            [(Kind::Initial, 1, 16, 13), (Kind::Handshake, 0, 11, 9), (Kind::OneRtt, 0, 5, 0)];
        assert_eq!(found, expected);
        let mut padded = handshake.to_vec();
        padded.extend([0; 20]);
        assert_eq!(parts(&padded).count(), 1);
        assert!(matches!(parts(&datagram[..12]).next(), Some(Part::Other { len: 12 })));
    }
}
