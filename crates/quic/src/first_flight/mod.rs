//! Reads the ClientHellos of new connections from Initial packets, before quinn does.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use firstflight_wire::{PacketKeys, Protected, Sender, Version};
use quinn_proto::ConnectionId;

mod assembly;
mod packet;

use assembly::{Assembly, NoClientHello};

/// Collects the ClientHellos of new connections from datagrams, before quinn processes them.
/// Sans-IO: time is an argument, nothing blocks, memory is bounded.
///
/// Anybody can create Initial packets, so an attacker can make this reader and quinn see different
/// ClientHellos. A preview therefore decides nothing by itself: the connection accepts early data only
/// if its ClientHello is the one that was previewed.
///
/// Beyond the limit the oldest flight is dropped, and its early data is refused. With 4,096 flights
/// that are taken within a millisecond, dropping one takes a flood of 39 Gbit/s, since each new
/// flight is a datagram of 1,200 bytes.
pub struct FirstFlights {
    limits: FirstFlightsLimits,
    flights: HashMap<Key, Flight>,
    /// Oldest first. May contain entries of flights that were taken or removed.
    order: VecDeque<(u64, Key)>,
    /// The connection ids of the flights with a token, by address.
    with_token: HashMap<SocketAddr, Vec<ConnectionId>>,
    next_number: u64,
}

/// Bounds of [`FirstFlights`].
#[derive(Clone, Copy, Debug)]
pub struct FirstFlightsLimits {
    /// Maximum number of flights. Beyond it the oldest are dropped.
    pub flights: usize,
    /// Maximum length of a ClientHello, in bytes.
    pub client_hello: usize,
    /// How long a flight is stored.
    pub lifetime: Duration,
}

impl Default for FirstFlightsLimits {
    /// 4,096 flights of 8 KiB for a second: at most 48 MB, and 10 MB if each has one packet. A
    /// ClientHello with a post-quantum key share and a ticket has 2 KiB.
    fn default() -> Self {
        Self { flights: 4096, client_hello: 8192, lifetime: Duration::from_secs(1) }
    }
}

/// The state of a new connection's ClientHello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FirstFlight {
    /// The ClientHello is complete.
    Whole {
        /// The message with its header.
        client_hello: Vec<u8>,
        /// The token of the Initial packet, or empty.
        token: Vec<u8>,
    },
    /// A part was received.
    Partial,
    /// Nothing was received.
    Unknown,
}

/// The client's address, and the destination connection id of its first packet.
type Key = (SocketAddr, ConnectionId);

struct Flight {
    number: u64,
    received_at: Duration,
    keys: PacketKeys,
    token: Vec<u8>,
    assembly: Assembly,
    /// The largest packet number received.
    largest: Option<u64>,
}

impl FirstFlights {
    /// An empty collection.
    pub fn new(limits: FirstFlightsLimits) -> Self {
        Self {
            limits,
            flights: HashMap::new(),
            order: VecDeque::new(),
            with_token: HashMap::new(),
            next_number: 0,
        }
    }

    /// Whether [`process_datagram`](Self::process_datagram) would look at a datagram more closely:
    /// its first packet is an Initial. Cheap.
    pub fn may_start_connection(datagram: &[u8]) -> bool {
        packet::may_start_connection(datagram)
    }

    /// Processes a datagram from `remote`. Ignores everything but a client's Initial packets. Returns
    /// the connection id if its ClientHello became complete.
    pub fn process_datagram(
        &mut self,
        remote: SocketAddr,
        datagram: &[u8],
        now: Duration,
    ) -> Option<ConnectionId> {
        if !packet::may_start_connection(datagram) {
            return None;
        }
        self.drop_expired(now);
        let mut whole = None;
        for initial in packet::initials(datagram) {
            if self.process_packet(remote, &initial, now) {
                whole = Some(ConnectionId::new(initial.destination));
            }
        }
        whole
    }

    /// Takes the flight of the connection that `remote` started with this destination connection id.
    /// An incomplete flight stays.
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

    /// The connection id of the flight from `remote` with a token, if there is only one. After a
    /// Retry this is the id from the Retry packet (RFC 9000 section 17.2.5.2), which quinn does not
    /// expose. A client may have several connections on one socket: nobody knows which flight is
    /// whose.
    pub fn connection_id_after_retry(&self, remote: SocketAddr) -> Option<ConnectionId> {
        match self.with_token.get(&remote)?[..] {
            [id] => Some(id),
            _ => None,
        }
    }

    /// Removes a flight.
    pub fn forget(&mut self, remote: SocketAddr, orig_dst_cid: &ConnectionId) {
        self.remove(&(remote, *orig_dst_cid));
    }

    /// The number of flights.
    pub fn len(&self) -> usize {
        self.flights.len()
    }

    /// Whether there are no flights.
    pub fn is_empty(&self) -> bool {
        self.flights.is_empty()
    }

    /// Returns whether the packet completes its flight's ClientHello.
    fn process_packet(
        &mut self,
        remote: SocketAddr,
        initial: &Protected<'_>,
        now: Duration,
    ) -> bool {
        let key = (remote, ConnectionId::new(initial.destination));
        let limit = self.limits.client_hello;
        if let Some(flight) = self.flights.get_mut(&key) {
            return match flight.process_packet(initial, limit) {
                Ok(became_whole) => became_whole,
                Err(NoClientHello) => {
                    self.remove(&key);
                    false
                }
            };
        }
        let Some(mut flight) = Flight::new(initial, self.next_number, now) else { return false };
        // Only a packet that decrypts and contains a part of a ClientHello starts a flight.
        let Ok(became_whole) = flight.process_packet(initial, limit) else { return false };
        if flight.assembly.is_empty() {
            return false;
        }
        self.next_number += 1;
        self.make_room();
        self.order.push_back((flight.number, key));
        if !flight.token.is_empty() {
            self.with_token.entry(remote).or_default().push(key.1);
        }
        self.flights.insert(key, flight);
        became_whole
    }

    fn drop_expired(&mut self, now: Duration) {
        while let Some((number, key)) = self.order.front().copied() {
            match self.current(number, &key) {
                Some(flight) if now.saturating_sub(flight.received_at) < self.limits.lifetime => {
                    return;
                }
                _ => self.drop_oldest(),
            }
        }
    }

    fn make_room(&mut self) {
        while self.flights.len() >= self.limits.flights.max(1) {
            self.drop_oldest();
        }
        // Entries of flights that were taken are otherwise only dropped from the front.
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
        if let Some(ids) = self.with_token.get_mut(&key.0) {
            ids.retain(|id| *id != key.1);
            if ids.is_empty() {
                self.with_token.remove(&key.0);
            }
        }
        self.flights.remove(key)
    }
}

impl Flight {
    fn new(initial: &Protected<'_>, number: u64, now: Duration) -> Option<Self> {
        let keys = PacketKeys::initial(Version::One, initial.destination, Sender::Client)?;
        // A longer token is not one of ours.
        let token = if initial.token.len() > MAX_TOKEN { &[] } else { initial.token };
        let (token, assembly) = (token.to_vec(), Assembly::default());
        Some(Self { number, received_at: now, keys, token, assembly, largest: None })
    }

    /// Processes a packet. Returns whether it completes the ClientHello. Ignores packets that do not
    /// decrypt.
    fn process_packet(
        &mut self,
        initial: &Protected<'_>,
        limit: usize,
    ) -> Result<bool, NoClientHello> {
        if self.assembly.message().is_some() {
            return Ok(false);
        }
        let opened = self.keys.open(initial.bytes, initial.number_at, self.largest);
        let Some(opened) = opened else { return Ok(false) };
        let Some(frames) = packet::crypto_frames(&opened.frames) else { return Ok(false) };
        self.largest = self.largest.max(Some(opened.number));
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
