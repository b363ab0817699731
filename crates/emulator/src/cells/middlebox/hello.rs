//! Middleboxes that parse ClientHellos (RFC 8446 section 4.1.2).

use super::first_flights::{Decision, FirstFlights, MAX_FLIGHT};
use super::segment::Segment;
use crate::cells::{Cell, CellDecision, PacketInCell};

/// Drops first flights depending on their ClientHello.
#[derive(Debug)]
pub(super) struct HelloFilter {
    flights: FirstFlights,
    decide: fn(&[u8]) -> Option<Decision>,
}

impl HelloFilter {
    /// Drops ClientHellos that do not fit into their first packet.
    pub(super) fn drop_large() -> Self {
        Self { flights: FirstFlights::default(), decide: drop_if_incomplete }
    }

    /// Drops ClientHellos with the early_data extension.
    pub(super) fn drop_early_data() -> Self {
        Self { flights: FirstFlights::default(), decide: drop_if_early_data }
    }
}

impl Cell for HelloFilter {
    fn pass(&mut self, packet: &mut PacketInCell<'_>) -> CellDecision {
        let Some(segment) = Segment::read(packet.frame) else {
            return CellDecision::Pass;
        };
        let Some((flight, offset)) = self.flights.locate(&segment) else {
            return CellDecision::Pass;
        };
        let decision = flight.decision.or_else(|| {
            flight.extend(offset, segment.payload);
            // No data in order yet.
            let known = !flight.bytes.is_empty();
            let decision = known.then(|| (self.decide)(&flight.bytes)).flatten();
            decision.map(|decision| flight.decide(decision))
        });
        match decision {
            Some(Decision::DropBefore(end)) if offset < end => CellDecision::Drop,
            _ => CellDecision::Pass,
        }
    }
}

/// Decides on the first packet: an incomplete ClientHello is dropped with all its segments.
fn drop_if_incomplete(bytes: &[u8]) -> Option<Decision> {
    Some(match ClientHello::read(bytes) {
        Some(hello) if !hello.is_complete() => Decision::DropBefore(hello.end_offset(bytes)),
        _ => Decision::Pass,
    })
}

/// Decides as soon as the extension is found or cannot follow.
fn drop_if_early_data(bytes: &[u8]) -> Option<Decision> {
    let Some(hello) = ClientHello::read(bytes) else {
        return Some(Decision::Pass);
    };
    if hello.has_extension(EARLY_DATA) {
        return Some(Decision::DropBefore(hello.end_offset(bytes)));
    }
    (hello.is_complete() || bytes.len() >= MAX_FLIGHT).then_some(Decision::Pass)
}

/// A ClientHello, as far as it was received.
struct ClientHello {
    /// The handshake message with its header, without record headers.
    message: Vec<u8>,
    /// Length of the message including its header, once the header was received.
    length: Option<usize>,
    /// Bytes of record headers between those of the message.
    overhead: usize,
}

impl ClientHello {
    /// Parses the start of a stream. Returns `None` if it cannot be a ClientHello.
    fn read(mut stream: &[u8]) -> Option<Self> {
        let mut hello = Self { message: Vec::new(), length: None, overhead: 0 };
        while !stream.is_empty() && !hello.is_complete() {
            let header = &stream[..stream.len().min(RECORD_HEADER)];
            let is_handshake =
                header[0] == HANDSHAKE && header.get(1).is_none_or(|major| *major == 3);
            if !is_handshake {
                // Another record type follows: the ClientHello is never completed.
                return None;
            }
            hello.overhead += RECORD_HEADER;
            let (Some(length), Some(body)) = (header.get(3..5), stream.get(RECORD_HEADER..)) else {
                break;
            };
            let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
            if length == 0 {
                // Empty handshake records are not allowed (RFC 8446 section 5.1).
                return None;
            }
            let (fragment, rest) = body.split_at(body.len().min(length));
            hello.message.extend_from_slice(fragment);
            stream = rest;
            match *hello.message.as_slice() {
                [kind, ..] if kind != CLIENT_HELLO => return None,
                [_, a, b, c, ..] => {
                    let body = u32::from_be_bytes([0, a, b, c]) as usize;
                    hello.length = Some(MESSAGE_HEADER + body);
                }
                _ => {}
            }
        }
        Some(hello)
    }

    fn is_complete(&self) -> bool {
        self.length.is_some_and(|length| self.message.len() >= length)
    }

    /// The offset in the stream at which the ClientHello ends, by its length and the record headers
    /// received so far; while its length is unknown, the end of the received bytes.
    fn end_offset(&self, stream: &[u8]) -> u32 {
        let end = self.length.map_or(stream.len(), |length| length + self.overhead);
        end.max(stream.len().min(1)).try_into().unwrap_or(u32::MAX)
    }

    /// Whether an extension was received.
    fn has_extension(&self, number: u16) -> bool {
        let received = &self.message[..self.length.unwrap_or(0).min(self.message.len())];
        extensions(received).is_some_and(|extensions| contains(extensions, number))
    }
}

/// The extensions of a possibly incomplete ClientHello. Returns `None` if it ends before them.
fn extensions(message: &[u8]) -> Option<&[u8]> {
    let session_id = message.get(MESSAGE_HEADER + VERSION_AND_RANDOM..)?;
    let ciphers = session_id.get(1 + usize::from(*session_id.first()?)..)?;
    let length = usize::from(u16::from_be_bytes(*ciphers.first_chunk()?));
    let compression = ciphers.get(2 + length..)?;
    let extensions = compression.get(1 + usize::from(*compression.first()?)..)?;
    extensions.get(2..)
}

fn contains(mut extensions: &[u8], number: u16) -> bool {
    while let Some((head, rest)) = extensions.split_first_chunk::<4>() {
        if u16::from_be_bytes([head[0], head[1]]) == number {
            return true;
        }
        let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
        extensions = rest.get(length..).unwrap_or_default();
    }
    false
}

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const RECORD_HEADER: usize = 5;
const MESSAGE_HEADER: usize = 4;
const VERSION_AND_RANDOM: usize = 34;
/// RFC 8446 section 4.2.
const EARLY_DATA: u16 = 42;

#[cfg(test)]
mod tests {
    use super::super::frames::Tcp;
    use super::*;

    /// A ClientHello in one record, with extensions by number and length in this order.
    fn hello(extensions: &[(u16, usize)]) -> Vec<u8> {
        let mut list = Vec::new();
        for (number, length) in extensions {
            list.extend(number.to_be_bytes());
            list.extend((*length as u16).to_be_bytes());
            list.resize(list.len() + length, 0x2a);
        }
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([2, 9, 9]);
        body.extend([0, 4, 0x13, 1, 0x13, 2]);
        body.extend([1, 0]);
        body.extend((list.len() as u16).to_be_bytes());
        body.extend(list);
        let mut message = vec![CLIENT_HELLO, 0];
        message.extend((body.len() as u16).to_be_bytes());
        message.extend(body);
        records(&message, usize::MAX)
    }

    fn records(message: &[u8], size: usize) -> Vec<u8> {
        let record = |part: &[u8]| {
            let mut record = vec![HANDSHAKE, 3, 1];
            record.extend((part.len() as u16).to_be_bytes());
            record.extend(part);
            record
        };
        message.chunks(size).flat_map(record).collect()
    }

    /// Sends a stream in packets and returns which of them passed. With `syn_data`, the SYN carries
    /// the first part.
    fn send(cell: &mut HelloFilter, stream: &[u8], segment: usize, syn_data: bool) -> Vec<bool> {
        let (port, sequence) = (40_000, 500);
        let mut passes = |tcp: Tcp<'_>| {
            let frame = tcp.frame();
            cell.pass(&mut PacketInCell { at_ns: 0, frame: &frame }) == CellDecision::Pass
        };
        if !syn_data {
            assert!(passes(Tcp { syn: true, sequence, port, ..Tcp::default() }));
        }
        let parts = stream.chunks(segment).enumerate();
        parts
            .map(|(index, payload)| {
                let syn = syn_data && index == 0;
                let at = sequence + 1 + (index * segment) as u32 - u32::from(syn);
                passes(Tcp { syn, ack: !syn, sequence: at, port, payload, ..Tcp::default() })
            })
            .collect()
    }

    #[test]
    fn a_hello_of_one_packet_passes_and_a_larger_one_does_not() {
        let (small, large) = (hello(&[(0, 20)]), hello(&[(51, 1_300)]));
        for syn_data in [false, true] {
            let filter = &mut HelloFilter::drop_large();
            assert_eq!(send(filter, &small, 1_448, syn_data), [true]);
            let filter = &mut HelloFilter::drop_large();
            assert_eq!(send(filter, &large, 1_000, syn_data), [false, false]);
            assert_eq!(send(filter, &large, 1_000, syn_data), [false, false], "again");
        }
    }

    #[test]
    fn data_after_a_large_hello_passes() {
        let mut stream = hello(&[(51, 1_300)]);
        let whole = stream.len();
        stream.extend([23, 3, 3, 0, 100]);
        stream.extend([1; 3_000]);
        let passed = send(&mut HelloFilter::drop_large(), &stream, 500, false);
        for (index, passed) in passed.iter().enumerate() {
            assert_eq!(*passed, index * 500 >= whole, "segment {index}");
        }
    }

    #[test]
    fn a_hello_in_several_records_of_one_packet_is_whole() {
        let single_record = hello(&[(0, 200)]);
        let several_records = records(&single_record[RECORD_HEADER..], 30);
        assert_eq!(send(&mut HelloFilter::drop_large(), &several_records, 1_448, false), [true]);
    }

    #[test]
    fn rfc8446_4_2_10_early_data_is_found_in_any_position() {
        for (extensions, early) in [
            (&[(42, 0)][..], true),
            (&[(0, 20), (42, 0), (41, 200)], true),
            (&[(0, 20), (41, 200)], false),
            (&[(0, 42)], false),
        ] {
            let stream = hello(extensions);
            for segment in [1_448, 60, 7] {
                let filter = &mut HelloFilter::drop_early_data();
                let passed = send(filter, &stream, segment, false);
                assert_eq!(passed.iter().any(|passed| !passed), early, "{extensions:?}");
                if early {
                    let again = send(filter, &stream, segment, false);
                    assert!(again.iter().all(|passed| !passed), "nor when sent again: {again:?}");
                }
            }
        }
    }

    /// Written by BoringSSL: X25519MLKEM768 and X25519 keys; one has a ticket and early data.
    #[test]
    fn hellos_of_a_real_client_are_distinguished() {
        let full = include_bytes!("testdata/full_hello.bin");
        let early = include_bytes!("testdata/early_hello.bin");
        for segment in [4_096, 1_448, 100] {
            let whole = full.len() <= segment;
            let passed = send(&mut HelloFilter::drop_early_data(), full, segment, false);
            assert!(passed.iter().all(|passed| *passed), "no early data");
            let passed = send(&mut HelloFilter::drop_early_data(), early, segment, true);
            assert!(passed.iter().any(|passed| !passed), "early data");
            let passed = send(&mut HelloFilter::drop_large(), full, segment, false);
            assert!(passed.iter().all(|passed| *passed == whole), "{segment}: {passed:?}");
        }
    }

    #[test]
    fn other_first_flights_pass() {
        for stream in
            [&b"GET / HTTP/1.1\r\n\r\n"[..], &[22, 3, 1, 0, 0], &[22, 3, 1, 0, 4, 2, 0, 0, 0]]
        {
            assert_eq!(send(&mut HelloFilter::drop_large(), stream, 1_448, false), [true]);
            assert_eq!(send(&mut HelloFilter::drop_early_data(), stream, 1_448, false), [true]);
        }
    }

    #[test]
    fn connections_without_a_captured_syn_pass() {
        let frame = Tcp { ack: true, payload: &hello(&[(42, 0)])[..20], ..Tcp::default() }.frame();
        let mut packet = PacketInCell { at_ns: 0, frame: &frame };
        assert_eq!(HelloFilter::drop_large().pass(&mut packet), CellDecision::Pass);
    }
}
