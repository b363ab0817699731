use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use std::time::Duration;

use firstflight_tls::Version;

use crate::{Ability, Asked, Certificate, Group, Http, Kind, ServerKind, Size, Workload};

/// One cell of the matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedCell {
    /// The server under test.
    pub server: ServerKind,
    /// What is asked of it.
    pub workload: Workload,
    /// The path, by its place among the round-trip times of the plan.
    pub path: usize,
    /// TLS version.
    pub version: Version,
    /// Full, resumed or 0-RTT.
    pub kind: Kind,
    /// With TCP Fast Open.
    pub tfo: bool,
}

impl PlannedCell {
    /// What it asks of its server.
    pub(crate) fn asked(&self) -> Asked {
        Asked {
            workload: self.workload,
            version: self.version,
            kind: self.kind,
            tfo: self.tfo,
            http: Http::One,
            size: Size::OneKib,
            group: Group::X25519,
            certificate: Certificate::EcdsaP256,
        }
    }

    /// Round trips until the first byte of the answer that the protocols need (RFC 8446 section 2,
    /// RFC 5246 section 7.3, RFC 7413 section 2).
    pub fn round_trips(&self) -> u32 {
        let handshake = match (self.version, self.kind) {
            (Version::Tls13, Kind::ZeroRtt) => 0,
            (Version::Tls13, _) | (_, Kind::Resumed) => 1,
            (_, _) => 2,
        };
        1 + u32::from(!self.tfo) + handshake
    }
}

/// Which cells, and how often each.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Round-trip times of the paths, longest first.
    pub rtts: Vec<Duration>,
    /// The cells.
    pub cells: Vec<PlannedCell>,
    /// Samples a cell.
    pub samples: usize,
    /// Orders the samples.
    pub seed: u64,
}

/// What the axes of a plan may hold.
#[derive(Clone, Debug)]
pub(crate) struct Axes<'a> {
    pub servers: &'a [ServerKind],
    pub workloads: &'a [Workload],
    pub versions: &'a [Version],
    pub kinds: &'a [Kind],
    pub tfo: &'a [bool],
}

impl Plan {
    /// Every combination of the axes that exists: early data is TLS 1.3's, ping-pong is ours.
    pub(crate) fn new(rtts: &[Duration], axes: &Axes<'_>, samples: usize, seed: u64) -> Self {
        let mut rtts = rtts.to_vec();
        rtts.sort_by(|a, b| b.cmp(a));
        rtts.dedup();
        let mut cells = Vec::new();
        for &server in axes.servers {
            for &workload in axes.workloads {
                if workload == Workload::PingPong && !server.abilities().can(Ability::PingPong) {
                    continue;
                }
                for path in 0..rtts.len() {
                    for &version in axes.versions {
                        for &kind in axes.kinds {
                            if kind.is_early() && version != Version::Tls13 {
                                continue;
                            }
                            cells.extend(axes.tfo.iter().map(|&tfo| PlannedCell {
                                server,
                                workload,
                                path,
                                version,
                                kind,
                                tfo,
                            }));
                        }
                    }
                }
            }
        }
        Self { rtts, cells, samples, seed }
    }

    /// The order of the samples of one path: blocks in which each of its cells comes once, each
    /// block in an order of its own, so that drift and disturbance hit all cells alike.
    pub fn order(&self, path: usize) -> Vec<usize> {
        let mut rng = StdRng::seed_from_u64(self.seed.wrapping_add(path as u64));
        let mut block: Vec<usize> =
            (0..self.cells.len()).filter(|cell| self.cells[*cell].path == path).collect();
        let mut order = Vec::with_capacity(block.len() * self.samples);
        for _ in 0..self.samples {
            block.shuffle(&mut rng);
            order.extend_from_slice(&block);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        let rtts = [2, 200].map(Duration::from_millis);
        let axes = Axes {
            servers: &[ServerKind::Firstflight, ServerKind::Nginx],
            workloads: &Workload::ALL,
            versions: &Version::ALL,
            kinds: &[Kind::Full, Kind::Resumed, Kind::ZeroRtt],
            tfo: &[false, true],
        };
        Plan::new(&rtts, &axes, 5, 7)
    }

    #[test]
    fn the_matrix_has_every_cell_that_exists() {
        let plan = plan();
        // (3 old versions x 2 kinds + 3 kinds) x TFO, at two paths; ping-pong at one server, GET
        // at two.
        assert_eq!(plan.cells.len(), 9 * 2 * 2 * 3);
        assert_eq!(plan.rtts[0], Duration::from_millis(200), "longest first");
    }

    #[test]
    fn round_trips_as_the_protocols_have_them() {
        let expected = |version, kind, tfo| {
            let cell = PlannedCell {
                server: ServerKind::Firstflight,
                workload: Workload::Get,
                path: 0,
                version,
                kind,
                tfo,
            };
            cell.round_trips()
        };
        for old in [Version::Tls10, Version::Tls11, Version::Tls12] {
            assert_eq!(expected(old, Kind::Full, false), 4);
            assert_eq!(expected(old, Kind::Resumed, false), 3);
            assert_eq!(expected(old, Kind::Full, true), 3);
            assert_eq!(expected(old, Kind::Resumed, true), 2);
        }
        assert_eq!(expected(Version::Tls13, Kind::Full, false), 3);
        assert_eq!(expected(Version::Tls13, Kind::Resumed, true), 2);
        assert_eq!(expected(Version::Tls13, Kind::ZeroRtt, false), 2);
        assert_eq!(expected(Version::Tls13, Kind::ZeroRtt, true), 1);
    }

    #[test]
    fn blocks_hold_each_cell_once_and_the_seed_decides_their_order() {
        let plan = plan();
        let order = plan.order(1);
        let cells = plan.cells.iter().filter(|cell| cell.path == 1).count();
        assert_eq!(order.len(), cells * 5);
        for block in order.chunks(cells) {
            let mut block = block.to_vec();
            block.sort_unstable();
            block.dedup();
            assert_eq!(block.len(), cells);
        }
        assert_eq!(order, plan.order(1));
        assert_ne!(order, Plan { seed: 8, ..plan }.order(1));
    }
}
