//! Reassembles the first data of each connection, within bounds.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use super::segment::{FourTuple, Segment};

/// The first data of connections whose SYN was captured.
#[derive(Debug, Default)]
pub(super) struct FirstFlights {
    flights: HashMap<FourTuple, Flight>,
    /// Oldest first; the oldest is removed when there are too many.
    order: VecDeque<FourTuple>,
}

/// The first data of one connection in one direction.
#[derive(Debug)]
pub(super) struct Flight {
    /// Sequence number of the first byte of data.
    first: u32,
    /// The bytes received in order.
    pub(super) bytes: Vec<u8>,
    /// The decision about this flight, once it is made.
    pub(super) decision: Option<Decision>,
}

/// What happens to a connection's first flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// All passes.
    Pass,
    /// Segments that start before this offset are dropped, the rest passes.
    DropBefore(u32),
}

impl FirstFlights {
    /// The flight that a segment with data belongs to, and the offset of the data in it.
    pub(super) fn locate<'a>(&'a mut self, segment: &Segment<'_>) -> Option<(&'a mut Flight, u32)> {
        if segment.is_client_syn() {
            self.start_flight(segment);
        }
        let flight = self.flights.get_mut(&segment.four_tuple)?;
        let data_at = segment.sequence.wrapping_add(u32::from(segment.syn));
        let offset = data_at.wrapping_sub(flight.first);
        // Later data does not belong to the first flight.
        let is_near = offset <= MAX_FLIGHT as u32;
        (is_near && !segment.payload.is_empty()).then_some((flight, offset))
    }

    fn start_flight(&mut self, segment: &Segment<'_>) {
        let first = segment.sequence.wrapping_add(1);
        let new = Flight { first, bytes: Vec::new(), decision: None };
        match self.flights.entry(segment.four_tuple) {
            // A retransmitted SYN, or a new connection with the same addresses and ports.
            Entry::Occupied(mut known) if known.get().first != first => drop(known.insert(new)),
            Entry::Occupied(_) => {}
            Entry::Vacant(free) => {
                free.insert(new);
                self.order.push_back(segment.four_tuple);
            }
        }
        if self.order.len() > MAX_FLIGHTS
            && let Some(oldest) = self.order.pop_front()
        {
            self.flights.remove(&oldest);
        }
    }
}

impl Flight {
    /// Adds data if it is next in order. Ignores bytes received before.
    pub(super) fn extend(&mut self, offset: u32, data: &[u8]) {
        let known = self.bytes.len();
        let offset = offset as usize;
        if offset <= known && known < offset + data.len() {
            let room = MAX_FLIGHT - known;
            let new = &data[known - offset..];
            self.bytes.extend_from_slice(&new[..new.len().min(room)]);
        }
    }

    /// Records the decision. The bytes are no longer needed.
    pub(super) fn decide(&mut self, decision: Decision) -> Decision {
        self.bytes = Vec::new();
        *self.decision.insert(decision)
    }
}

/// Five times the size of a ClientHello with post-quantum keys and a full ticket.
pub(super) const MAX_FLIGHT: usize = 16 << 10;
const MAX_FLIGHTS: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::super::frames::Tcp;
    use super::*;

    #[test]
    fn data_is_reassembled_in_order_and_once() {
        let mut flights = FirstFlights::default();
        let mut push = |tcp: Tcp<'_>| {
            let frame = tcp.frame();
            let segment = Segment::read(&frame).expect("a segment");
            flights.locate(&segment).map(|(flight, offset)| {
                flight.extend(offset, segment.payload);
                flight.bytes.clone()
            })
        };
        let first = u32::MAX - 2;
        assert_eq!(push(Tcp { syn: true, sequence: first, ..Tcp::default() }), None);
        let data = |after: u32, payload: &'static [u8]| Tcp {
            ack: true,
            sequence: first.wrapping_add(1 + after),
            payload,
            ..Tcp::default()
        };
        assert_eq!(push(data(3, b"def")), Some(vec![]), "not in order");
        assert_eq!(push(data(0, b"abc")), Some(b"abc".to_vec()));
        assert_eq!(push(data(0, b"abc")), Some(b"abc".to_vec()), "again");
        assert_eq!(push(data(2, b"cde")), Some(b"abcde".to_vec()), "overlapping, numbers wrapped");
        assert_eq!(push(data(1 << 20, b"x")), None, "far beyond the start");
    }

    #[test]
    fn memory_is_bounded() {
        let mut flights = FirstFlights::default();
        for port in 0..=u16::MAX {
            let frame = Tcp { syn: true, port, payload: &[7; 64], ..Tcp::default() }.frame();
            let segment = Segment::read(&frame).expect("a segment");
            let (flight, offset) = flights.locate(&segment).expect("just started");
            flight.extend(offset, segment.payload);
        }
        assert_eq!(flights.flights.len(), MAX_FLIGHTS);
        assert_eq!(flights.order.len(), MAX_FLIGHTS);
        let mut flight = Flight { first: 0, bytes: Vec::new(), decision: None };
        for n in 0..40 {
            flight.extend(n * 1_000, &[1; 1_000]);
        }
        assert_eq!(flight.bytes.len(), MAX_FLIGHT);
    }
}
