//! Paths: which pair of addresses a packet travels between, and with what delay (sans-IO).

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::{CellSpec, DelaySpec, Profile};

/// One path as it is requested.
#[derive(Debug, Clone, PartialEq)]
pub struct PathConfig {
    /// The caller's own name for it, as in reports.
    pub name: String,
    /// What packets from client to server go through, in this order.
    pub up: Vec<CellSpec>,
    /// What packets from server to client go through, in this order.
    pub down: Vec<CellSpec>,
}

impl PathConfig {
    /// A path of this round-trip time, half of it each way, and nothing else.
    pub fn symmetric(name: impl Into<String>, rtt: Duration) -> Self {
        Self::delays(name, rtt / 2, rtt - rtt / 2)
    }

    /// A path with a delay each way, and nothing else.
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

/// One path as it is now: the client chooses it by the server address that it connects to.
#[derive(Debug, Clone, PartialEq)]
pub struct Path {
    /// The caller's own name for it.
    pub name: String,
    /// The client's address on this path; the route to `server` uses it by itself.
    pub client: Ipv4Addr,
    /// The server's address on this path.
    pub server: Ipv4Addr,
    /// Delay from client to server, without what jitter, queues and reordering add.
    pub up: Duration,
    /// Delay from server to client, without what jitter, queues and reordering add.
    pub down: Duration,
    /// What packets from client to server go through, in this order.
    pub up_cells: Vec<CellSpec>,
    /// What packets from server to client go through, in this order.
    pub down_cells: Vec<CellSpec>,
}

impl Path {
    /// What a packet and its response spend on this path together, without what jitter, queues and
    /// reordering add.
    pub fn rtt(&self) -> Duration {
        self.up + self.down
    }
}

/// The delay of cells together, without what jitter, queues and reordering add.
pub(crate) fn base_delay(cells: &[CellSpec]) -> Duration {
    cells.iter().map(CellSpec::base_delay).sum()
}

/// Which way a packet travels.
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

/// The attacker's address, and the server's address towards it alone.
pub(crate) const ATTACKER: Ipv4Addr = Ipv4Addr::new(NETWORK[0], NETWORK[1], 200, CLIENT_HOST);
pub(crate) const TOWARDS_ATTACKER: Ipv4Addr =
    Ipv4Addr::new(NETWORK[0], NETWORK[1], 200, SERVER_HOST);

/// How many paths one network can carry: one value of the third octet each, below the attacker's.
pub const MAX_PATHS: usize = 199;

/// The lane that delay is kept for: one path in one direction.
pub(crate) fn lane(path: usize, direction: Direction) -> usize {
    path * 2 + usize::from(direction == Direction::Down)
}

/// The path and direction of a lane.
pub(crate) fn of_lane(lane: usize) -> (usize, Direction) {
    (lane / 2, if lane.is_multiple_of(2) { Direction::Up } else { Direction::Down })
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
            assert_eq!(classify(&up, Direction::Up, path), None, "a path that is not there");
        }
        let crossed = frame(client_address(0), server_address(1));
        assert_eq!(classify(&crossed, Direction::Up, MAX_PATHS), None);
        assert_eq!(classify(&frame(ATTACKER, TOWARDS_ATTACKER), Direction::Up, MAX_PATHS), None);
    }

    #[test]
    fn lanes_and_paths_lead_to_each_other() {
        for path in 0..MAX_PATHS {
            for direction in [Direction::Up, Direction::Down] {
                assert_eq!(of_lane(lane(path, direction)), (path, direction));
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
