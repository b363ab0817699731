//! The ClientHellos of connections that start, read from Initial packets beside quinn.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use quinn_proto::ConnectionId;

mod assembly;
mod packet;

use crate::header::HeaderKey;
use crate::initial::initial_secrets;
use crate::packet::PacketKey;
use assembly::{Assembly, NoClientHello};
use packet::{ClientKeys, Initial};

/// Collects the ClientHellos of connections that start, from datagrams as they come in and before
/// quinn sees them. Sans-IO: the time is given, nothing waits, memory is bounded.
///
/// It is a second reader beside quinn; what it says decides nothing by itself. Anybody can write
/// Initial packets, so the two may be brought to read different ClientHellos. The judge compares
/// the client random of the connection with the one that was rehearsed.
///
/// Beyond their limit the oldest flight goes. So a flight is pushed out only by as many newer ones,
/// each of them a datagram of 1,200 bytes: at 4,096 flights that are fetched within a millisecond,
/// a flood needs 39 Gbit/s. What is pushed out is refused its early data, and nothing else.
pub struct FirstFlights {
    limits: FirstFlightsLimits,
    flights: HashMap<Key, Flight>,
    /// The oldest first. Flights that were fetched or forgotten leave their entries here.
    order: VecDeque<(u64, Key)>,
    /// The last flight with a token from an address, by its id.
    with_token: HashMap<SocketAddr, ConnectionId>,
    begun: u64,
}

/// Bounds of [`FirstFlights`].
#[derive(Clone, Copy, Debug)]
pub struct FirstFlightsLimits {
    /// Connections at a time; beyond it the oldest are dropped.
    pub flights: usize,
    /// Bytes of a ClientHello.
    pub client_hello: usize,
    /// How long a flight is kept.
    pub life: Duration,
}

impl Default for FirstFlightsLimits {
    /// 4,096 flights of 8 KiB for a second: no more than 48 MB, and 10 where each has one
    /// packet.
    /// A ClientHello with a post-quantum share and a ticket has 2 KiB.
    fn default() -> Self {
        Self { flights: 4096, client_hello: 8192, life: Duration::from_secs(1) }
    }
}

/// What is known of a connection that starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FirstFlight {
    /// The ClientHello is whole: the message with its header, and the token of the Initial packet
    /// (empty: none).
    Whole {
        /// The message.
        client_hello: Vec<u8>,
        /// The token.
        token: Vec<u8>,
    },
    /// Some of it came.
    Partial,
    /// Nothing is known of it.
    Unknown,
}

/// Where a connection comes from, and the id that it started with.
type Key = (SocketAddr, ConnectionId);

struct Flight {
    number: u64,
    since: Duration,
    keys: ClientKeys,
    token: Vec<u8>,
    assembly: Assembly,
    /// The packet number after the largest that came.
    expected: u64,
}

impl FirstFlights {
    /// An empty collection.
    pub fn new(limits: FirstFlightsLimits) -> Self {
        Self {
            limits,
            flights: HashMap::new(),
            order: VecDeque::new(),
            with_token: HashMap::new(),
            begun: 0,
        }
    }

    /// Whether [`see`](Self::see) would look at a datagram more closely: its first packet is an
    /// Initial. Cheap.
    pub fn may_begin(datagram: &[u8]) -> bool {
        packet::may_begin(datagram)
    }

    /// Looks at a datagram from `remote`; anything but a client's Initial packets is left alone.
    /// Gives the connection's id if its ClientHello became whole.
    pub fn see(
        &mut self,
        remote: SocketAddr,
        datagram: &[u8],
        now: Duration,
    ) -> Option<ConnectionId> {
        if !packet::may_begin(datagram) {
            return None;
        }
        self.drop_aged(now);
        let mut whole = None;
        for initial in packet::initials(datagram) {
            if self.see_packet(remote, &initial, now) {
                whole = Some(ConnectionId::new(initial.destination));
            }
        }
        whole
    }

    /// Takes the flight of the connection that `remote` started with this destination connection
    /// id; one that is not whole yet stays.
    pub fn take(&mut self, remote: SocketAddr, orig_dst_cid: &ConnectionId) -> FirstFlight {
        let key = (remote, *orig_dst_cid);
        let Some(flight) = self.flights.get(&key) else { return FirstFlight::Unknown };
        let Some(client_hello) = flight.assembly.message() else { return FirstFlight::Partial };
        let client_hello = client_hello.to_vec();
        match self.remove(&key) {
            Some(flight) => FirstFlight::Whole { client_hello, token: flight.token },
            None => FirstFlight::Unknown,
        }
    }

    /// The id of the last flight from `remote` that came with a token. After a Retry the id is the
    /// one of the Retry packet (RFC 9000 section 17.2.5.2), which quinn does not tell.
    pub fn with_token(&self, remote: SocketAddr) -> Option<ConnectionId> {
        self.with_token.get(&remote).copied()
    }

    /// Forgets it.
    pub fn forget(&mut self, remote: SocketAddr, orig_dst_cid: &ConnectionId) {
        self.remove(&(remote, *orig_dst_cid));
    }

    /// How many flights are kept.
    pub fn len(&self) -> usize {
        self.flights.len()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.flights.is_empty()
    }

    /// Whether the packet makes its flight's ClientHello whole.
    fn see_packet(&mut self, remote: SocketAddr, initial: &Initial<'_>, now: Duration) -> bool {
        let key = (remote, ConnectionId::new(initial.destination));
        let limit = self.limits.client_hello;
        if let Some(flight) = self.flights.get_mut(&key) {
            return match flight.see(initial, limit) {
                Ok(became_whole) => became_whole,
                Err(NoClientHello) => {
                    self.remove(&key);
                    false
                }
            };
        }
        let mut flight = Flight::new(initial, self.begun, now);
        // Only what decrypts and brings some of a ClientHello starts a flight.
        let Ok(became_whole) = flight.see(initial, limit) else { return false };
        if flight.assembly.is_empty() {
            return false;
        }
        self.begun += 1;
        self.make_room();
        self.order.push_back((flight.number, key));
        if !flight.token.is_empty() {
            self.with_token.insert(remote, key.1);
        }
        self.flights.insert(key, flight);
        became_whole
    }

    fn drop_aged(&mut self, now: Duration) {
        while let Some((number, key)) = self.order.front().copied() {
            match self.current(number, &key) {
                Some(flight) if now.saturating_sub(flight.since) < self.limits.life => return,
                _ => self.drop_oldest(),
            }
        }
    }

    fn make_room(&mut self) {
        while self.flights.len() >= self.limits.flights.max(1) {
            self.drop_oldest();
        }
        // Fetched flights leave gaps in the order, which are dropped from the front alone.
        if self.order.len() >= 2 * self.limits.flights.max(1) {
            let flights = &self.flights;
            self.order.retain(|(number, key)| {
                flights.get(key).is_some_and(|flight| flight.number == *number)
            });
        }
    }

    fn drop_oldest(&mut self) {
        if let Some((number, key)) = self.order.pop_front()
            && self.current(number, &key).is_some()
        {
            self.remove(&key);
        }
    }

    /// The flight, if it is still the one with this number.
    fn current(&self, number: u64, key: &Key) -> Option<&Flight> {
        self.flights.get(key).filter(|flight| flight.number == number)
    }

    fn remove(&mut self, key: &Key) -> Option<Flight> {
        if self.with_token.get(&key.0) == Some(&key.1) {
            self.with_token.remove(&key.0);
        }
        self.flights.remove(key)
    }
}

impl Flight {
    fn new(initial: &Initial<'_>, number: u64, now: Duration) -> Self {
        let (secret, _) = initial_secrets(initial.destination);
        let keys = ClientKeys {
            header: Box::new(HeaderKey::new(&secret)),
            packet: Box::new(PacketKey::new(&secret)),
        };
        // No token of ours is that long.
        let token = if initial.token.len() > MAX_TOKEN { &[] } else { initial.token };
        let (token, assembly) = (token.to_vec(), Assembly::default());
        Self { number, since: now, keys, token, assembly, expected: 0 }
    }

    /// Takes up a packet. Whether it makes the ClientHello whole; one that is no packet of this
    /// flight is left alone.
    fn see(&mut self, initial: &Initial<'_>, limit: usize) -> Result<bool, NoClientHello> {
        if self.assembly.message().is_some() {
            return Ok(false);
        }
        let Some(opened) = initial.open(&self.keys, self.expected) else { return Ok(false) };
        let Some(frames) = packet::crypto_frames(&opened.payload) else { return Ok(false) };
        self.expected = self.expected.max(opened.number + 1);
        let mut whole = false;
        for (offset, piece) in frames {
            whole = self.assembly.add(offset, piece, limit)?;
        }
        Ok(whole)
    }
}

const MAX_TOKEN: usize = 256;

#[cfg(test)]
mod tests;
