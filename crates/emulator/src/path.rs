//! Paths: which pair of addresses a packet travels between, its cells, and its counters.

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::{CellSpec, DelaySpec, Profile};

/// The configuration of a path.
#[derive(Debug, Clone, PartialEq)]
pub struct PathConfig {
    /// The caller's name for it, for reports.
    pub name: String,
    /// The cells for packets from client to server, in order.
    pub up: Vec<CellSpec>,
    /// The cells for packets from server to client, in order.
    pub down: Vec<CellSpec>,
}

impl PathConfig {
    /// A path with this round-trip time, half of it each way, and no other cells.
    pub fn symmetric(name: impl Into<String>, rtt: Duration) -> Self {
        Self::delays(name, rtt / 2, rtt - rtt / 2)
    }

    /// A path with a delay each way, and no other cells.
    pub fn delays(name: impl Into<String>, up: Duration, down: Duration) -> Self {
        let cell = |delay| vec![CellSpec::Delay(DelaySpec { delay })];
        Self { name: name.into(), up: cell(up), down: cell(down) }
    }
}

impl From<&Profile> for PathConfig {
    fn from(profile: &Profile) -> Self {
        let Profile { name, up, down, .. } = profile.clone();
        Self { name, up, down }
    }
}

/// The current state of a path. The client chooses it by the server address that it connects to.
#[derive(Debug, Clone, PartialEq)]
pub struct Path {
    /// The caller's name for it.
    pub name: String,
    /// The client's address on this path, which is the source address of the route to `server`.
    pub client: Ipv4Addr,
    /// The server's address on this path.
    pub server: Ipv4Addr,
    /// Delay from client to server, without jitter, queues and reordering.
    pub up: Duration,
    /// Delay from server to client, without jitter, queues and reordering.
    pub down: Duration,
    /// The cells for packets from client to server, in order.
    pub up_cells: Vec<CellSpec>,
    /// The cells for packets from server to client, in order.
    pub down_cells: Vec<CellSpec>,
}

impl Path {
    /// The round-trip time, without jitter, queues and reordering.
    pub fn rtt(&self) -> Duration {
        self.up + self.down
    }
}

/// The total delay of cells, without jitter, queues and reordering.
pub(crate) fn base_delay(cells: &[CellSpec]) -> Duration {
    cells.iter().map(CellSpec::base_delay).sum()
}

/// The direction of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// From client to server.
    Up,
    /// From server to client.
    Down,
}

/// The client's address on path `index`.
pub(crate) fn client_address(index: usize) -> Ipv4Addr {
    Ipv4Addr::new(NETWORK[0], NETWORK[1], third_octet(index), CLIENT_HOST)
}

/// The server's address on path `index`.
pub(crate) fn server_address(index: usize) -> Ipv4Addr {
    Ipv4Addr::new(NETWORK[0], NETWORK[1], third_octet(index), SERVER_HOST)
}

/// The attacker's address.
pub(crate) const ATTACKER_ADDRESS: Ipv4Addr =
    Ipv4Addr::new(NETWORK[0], NETWORK[1], 200, CLIENT_HOST);
/// The server's address on its interface to the attacker.
pub(crate) const SERVER_ADDRESS_FOR_ATTACKER: Ipv4Addr =
    Ipv4Addr::new(NETWORK[0], NETWORK[1], 200, SERVER_HOST);

/// The maximum number of paths of a network: one value of the third octet each, below the
/// attacker's.
pub const MAX_PATHS: usize = 199;

/// The index of a channel: one direction of one path.
pub(crate) fn channel_index(path: usize, direction: Direction) -> usize {
    path * 2 + usize::from(direction == Direction::Down)
}

/// The path and direction of a channel.
pub(crate) fn path_and_direction(channel: usize) -> (usize, Direction) {
    (channel / 2, if channel.is_multiple_of(2) { Direction::Up } else { Direction::Down })
}

/// The path of an Ethernet frame that entered in `direction`, if it is IPv4 between the two
/// addresses of one of `paths` paths.
pub(crate) fn classify(frame: &[u8], direction: Direction, paths: usize) -> Option<usize> {
    let ethertype = frame.get(12..14)?;
    let source: &[u8; 4] = frame.get(26..30)?.try_into().ok()?;
    let destination: &[u8; 4] = frame.get(30..34)?.try_into().ok()?;
    let (client, server) = match direction {
        Direction::Up => (source, destination),
        Direction::Down => (destination, source),
    };
    let path = usize::from(server[2]).checked_sub(1)?;
    let expected = ethertype == IPV4
        && path < paths
        && *client == client_address(path).octets()
        && *server == server_address(path).octets();
    expected.then_some(path)
}

fn third_octet(index: usize) -> u8 {
    debug_assert!(index < MAX_PATHS);
    index as u8 + 1
}

const NETWORK: [u8; 2] = [10, 77];
const CLIENT_HOST: u8 = 1;
const SERVER_HOST: u8 = 2;
const IPV4: &[u8] = &[0x08, 0x00];

/// Frames processed by the link, over all paths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Delivered to the other side.
    pub delivered: u64,
    /// Dropped by cells; see [`PathCounters`] for each cell.
    pub dropped: u64,
    /// Not IPv4 between the two addresses of a path, and therefore not forwarded.
    pub unexpected: u64,
    /// Lost because the forwarding thread was too slow and a ring, or the queue of a TUN device,
    /// was full.
    pub ring_full: u64,
    /// Lost because too many bytes were in transit in the link itself. The queue of a rate cell
    /// counts towards `dropped`.
    pub queue_full: u64,
    /// Refused by the receiving interface.
    pub refused: u64,
    /// How long the forwarding thread has waited for a processor, in nanoseconds, by
    /// `/proc/thread-self/schedstat`; `None` if the kernel does not provide it.
    pub waited_ns: Option<u64>,
}

/// Packets of one path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PathCounters {
    /// From client to server.
    pub up: ChannelCounters,
    /// From server to client.
    pub down: ChannelCounters,
}

/// Packets of one direction of a path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChannelCounters {
    /// Packets that arrived.
    pub arrived: u64,
    /// Bytes that arrived, including Ethernet headers.
    pub arrived_bytes: u64,
    /// Packets delivered to the receiver.
    pub delivered: u64,
    /// Bytes delivered, including Ethernet headers.
    pub delivered_bytes: u64,
    /// Packets lost by the link itself: too many in transit, or refused by the receiver.
    pub lost: u64,
    /// Packets dropped by cells that have been replaced since.
    pub dropped_before: u64,
    /// The current cells, in order.
    pub cells: Vec<CellCounters>,
}

impl ChannelCounters {
    /// Packets dropped by cells, including replaced ones.
    pub fn dropped(&self) -> u64 {
        self.dropped_before + self.cells.iter().map(|cell| cell.dropped).sum::<u64>()
    }

    /// Continues the counts of the replaced cells.
    pub(crate) fn continue_from(&mut self, old: &Self) {
        let cells = std::mem::take(&mut self.cells);
        *self = Self { dropped_before: old.dropped(), cells, ..old.clone() };
    }
}

/// The counters of one cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CellCounters {
    /// The cell's name, see [`crate::CellSpec::name`].
    pub name: &'static str,
    /// Packets passed on, altered or not.
    pub passed: u64,
    /// Packets altered before they were passed on.
    pub altered: u64,
    /// Packets dropped.
    pub dropped: u64,
}

impl CellCounters {
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, passed: 0, altered: 0, dropped: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(source: Ipv4Addr, destination: Ipv4Addr) -> Vec<u8> {
        let mut frame = vec![0; 34];
        frame[12..14].copy_from_slice(IPV4);
        frame[26..30].copy_from_slice(&source.octets());
        frame[30..34].copy_from_slice(&destination.octets());
        frame
    }

    #[test]
    fn a_packet_belongs_to_the_path_of_its_address_pair() {
        for path in [0, 1, MAX_PATHS - 1] {
            let up = frame(client_address(path), server_address(path));
            let down = frame(server_address(path), client_address(path));
            assert_eq!(classify(&up, Direction::Up, MAX_PATHS), Some(path));
            assert_eq!(classify(&down, Direction::Down, MAX_PATHS), Some(path));
            assert_eq!(classify(&up, Direction::Down, MAX_PATHS), None);
            assert_eq!(classify(&up, Direction::Up, path), None, "no such path");
        }
        let crossed = frame(client_address(0), server_address(1));
        assert_eq!(classify(&crossed, Direction::Up, MAX_PATHS), None);
        assert_eq!(
            classify(
                &frame(ATTACKER_ADDRESS, SERVER_ADDRESS_FOR_ATTACKER),
                Direction::Up,
                MAX_PATHS
            ),
            None
        );
    }

    #[test]
    fn channels_and_paths_are_converted_to_each_other() {
        for path in 0..MAX_PATHS {
            for direction in [Direction::Up, Direction::Down] {
                assert_eq!(path_and_direction(channel_index(path, direction)), (path, direction));
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_classified_without_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..64),
            paths in 0..=MAX_PATHS,
        ) {
            if let Some(path) = classify(&bytes, Direction::Up, paths) {
                prop_assert!(path < paths);
            }
        }
    }
}
