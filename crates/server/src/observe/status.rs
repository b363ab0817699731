//! The state of a server, and the most recent replays.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use firstflight_telemetry::metrics::Transport;
use jiff::Timestamp;
use serde::Serialize;

/// The state of a server, for probes, the console and `systemctl status`.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Whether the server wants new connections. An unavailable store does not change this: early
    /// data is refused then, and everything else works.
    pub ready: bool,
    /// Why it is not ready.
    pub not_ready_because: Option<&'static str>,
    /// The number of the configuration in use: 1 at the start, one more after each reload.
    pub generation: u64,
    /// When the process started to serve.
    pub started_at: Timestamp,
    /// When the configuration in use was loaded.
    pub loaded_at: Timestamp,
    /// The last attempt to reload, if there was one.
    pub last_reload: Option<LastReload>,
    /// The number of open connections.
    pub connections: u32,
    /// The bound addresses.
    pub addresses: Vec<SocketAddr>,
}

/// The outcome of a reload.
#[derive(Clone, Debug, Serialize)]
pub struct LastReload {
    /// When it was attempted.
    pub at: Timestamp,
    /// Why the old configuration is still in use; `None` if the new one is.
    pub error: Option<String>,
}

/// Events in the life of a server.
pub(crate) struct History(Mutex<Events>);

#[derive(Clone)]
pub(crate) struct Events {
    pub(crate) started_at: Timestamp,
    pub(crate) loaded_at: Timestamp,
    pub(crate) last_reload: Option<LastReload>,
}

impl History {
    pub(crate) fn new() -> Self {
        let now = Timestamp::now();
        Self(Mutex::new(Events { started_at: now, loaded_at: now, last_reload: None }))
    }

    /// Records a reload. `error`: why it failed.
    pub(crate) fn note_reload(&self, error: Option<String>) {
        let at = Timestamp::now();
        let mut events = self.lock();
        if error.is_none() {
            events.loaded_at = at;
        }
        events.last_reload = Some(LastReload { at, error });
    }

    pub(crate) fn events(&self) -> Events {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Events> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A flight that was replayed. Its copies were not executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// When the first copy arrived.
    pub first_at: Timestamp,
    /// When the last copy arrived.
    pub last_at: Timestamp,
    /// The number of copies.
    pub copies: u64,
    /// The networks that they came from, at most a few: /24 for IPv4, /48 for IPv6.
    pub networks: Vec<String>,
    /// The transport of the last copy.
    pub transport: Transport,
}

/// The most recent replays, in bounded memory.
#[derive(Debug, Default)]
pub(crate) struct Replays(Mutex<VecDeque<ReplayRecord>>);

#[derive(Debug)]
struct ReplayRecord {
    /// The flight's client random, which is not shown to anybody.
    flight: [u8; 32],
    replay: Replay,
}

impl Replays {
    /// Records a copy of a flight.
    pub(crate) fn note(
        &self,
        flight: &[u8; 32],
        client: IpAddr,
        transport: Transport,
        at: Timestamp,
    ) {
        let mut entries = self.entries();
        let index = entries.iter().position(|entry| entry.flight == *flight);
        let known = index.and_then(|index| entries.remove(index));
        let mut entry = known.unwrap_or_else(|| ReplayRecord {
            flight: *flight,
            replay: Replay {
                first_at: at,
                last_at: at,
                copies: 0,
                networks: Vec::new(),
                transport,
            },
        });
        let (replay, network) = (&mut entry.replay, network(client));
        (replay.last_at, replay.transport) = (at, transport);
        replay.copies += 1;
        if replay.networks.len() < MAX_NETWORKS && !replay.networks.contains(&network) {
            replay.networks.push(network);
        }
        // The latest first.
        entries.push_front(entry);
        entries.truncate(MAX_FLIGHTS);
    }

    /// The recorded replays, the latest first.
    pub(crate) fn recent(&self) -> Vec<Replay> {
        self.entries().iter().map(|entry| entry.replay.clone()).collect()
    }

    fn entries(&self) -> MutexGuard<'_, VecDeque<ReplayRecord>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The network of an address: enough to locate an attack, without identifying a user.
fn network(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(address) => {
            let masked = Ipv4Addr::from_bits(address.to_bits() & (u32::MAX << 8));
            format!("{masked}/24")
        }
        IpAddr::V6(address) => {
            let masked = Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 80));
            format!("{masked}/48")
        }
    }
}

/// The number of flights that are remembered.
const MAX_FLIGHTS: usize = 50;

/// The number of networks that are remembered for each flight.
const MAX_NETWORKS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_a_flight_are_one_entry_and_the_latest_is_first() {
        let replays = Replays::default();
        let note = |flight: u8, client: &str, second| {
            let at = Timestamp::from_second(second).unwrap();
            replays.note(&[flight; 32], client.parse().unwrap(), Transport::Tcp, at);
        };
        note(1, "192.0.2.77", 10);
        note(2, "2001:db8:1:2:3::4", 11);
        note(1, "192.0.2.78", 12);
        note(1, "::ffff:198.51.100.1", 13);
        let recent = replays.recent();
        assert_eq!((recent.len(), recent[0].copies, recent[1].copies), (2, 3, 1));
        assert_eq!(recent[0].networks, ["192.0.2.0/24", "198.51.100.0/24"]);
        assert_eq!(recent[1].networks, ["2001:db8:1::/48"]);
        assert_eq!((recent[0].first_at.as_second(), recent[0].last_at.as_second()), (10, 13));
    }

    #[test]
    fn an_attacker_cannot_fill_the_memory() {
        let replays = Replays::default();
        for number in 0..10_000_u32 {
            let mut flight = [0; 32];
            flight[..4].copy_from_slice(&(number / 500).to_be_bytes());
            let client = IpAddr::V4(Ipv4Addr::from_bits(number << 8));
            replays.note(&flight, client, Transport::Quic, Timestamp::UNIX_EPOCH);
        }
        let recent = replays.recent();
        assert_eq!(recent.iter().map(|replay| replay.copies).sum::<u64>(), 10_000);
        assert!(recent.iter().all(|replay| replay.networks.len() == MAX_NETWORKS));
        for number in 0..100_u8 {
            let client = IpAddr::V4(Ipv4Addr::LOCALHOST);
            replays.note(&[number; 32], client, Transport::Tcp, Timestamp::UNIX_EPOCH);
        }
        assert_eq!(replays.recent().len(), MAX_FLIGHTS);
    }
}
