//! The plan of a run: its networks, its cells, and the order of their samples.

use firstflight_samples::{MIN_CONTROL_SAMPLES, RequestedConnection, Slot, blocks, why_impossible};

use crate::paths::{PathClass, PlannedPath};
use crate::third_party::unsupported_reason;
use crate::{ClientKind, Experiment, HandshakeKind, ServerKind};

/// A cell of the plan.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedCell {
    /// The index of the experiment.
    pub experiment: usize,
    /// The client implementation.
    pub client: ClientKind,
    /// The server under test.
    pub server: ServerKind,
    /// The index of the network.
    pub path: usize,
    /// The connection that its samples request.
    pub requested: RequestedConnection,
    /// The number of samples.
    pub samples: usize,
    /// For the second arm of an A/A control, the index of the first arm.
    pub control_of: Option<usize>,
}

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(crate) paths: Vec<PlannedPath>,
    /// The cells.
    pub cells: Vec<PlannedCell>,
    /// The seed for the order of the samples.
    pub seed: u64,
    /// Why combinations of the axes are left out, a sentence each.
    pub left_out: Vec<String>,
}

/// The networks of all experiments, the longest round-trip time first.
pub(crate) fn paths(experiments: &[Experiment]) -> Vec<PlannedPath> {
    let mut paths: Vec<PlannedPath> = Vec::new();
    for profile in experiments.iter().flat_map(|experiment| &experiment.profiles) {
        if !paths.iter().any(|path| path.name() == profile.name) {
            paths.push(PlannedPath::new(profile.clone()));
        }
    }
    paths.sort_by_key(|path| std::cmp::Reverse(path.rtt()));
    paths
}

impl Plan {
    /// Plans every possible combination of the experiments' axes. `limitation` says why a server
    /// cannot make a connection.
    pub(crate) fn new(
        experiments: &[Experiment],
        limitation: &dyn Fn(ServerKind, &RequestedConnection) -> Option<String>,
        seed: u64,
    ) -> Self {
        let mut plan =
            Self { paths: paths(experiments), cells: Vec::new(), seed, left_out: Vec::new() };
        for (index, experiment) in experiments.iter().enumerate() {
            plan.add(index, experiment, limitation);
        }
        for (index, experiment) in experiments.iter().enumerate() {
            if experiment.control && experiment.samples >= MIN_CONTROL_SAMPLES {
                plan.add_controls(index);
            }
        }
        plan
    }

    /// The order of the samples of a path, in randomised blocks. Each block holds every cell of the
    /// path once, so that drift and disturbances affect all cells alike. Cells with fewer samples
    /// than others are missing from the last blocks.
    pub fn order(&self, path: usize) -> Vec<Slot> {
        let cells: Vec<usize> =
            (0..self.cells.len()).filter(|cell| self.cells[*cell].path == path).collect();
        blocks(&cells, &|cell| self.cells[cell].samples, self.seed.wrapping_add(path as u64))
    }

    /// The number of samples of all cells.
    pub fn samples(&self) -> usize {
        self.cells.iter().map(|cell| cell.samples).sum()
    }

    fn add(
        &mut self,
        index: usize,
        experiment: &Experiment,
        limitation: &dyn Fn(ServerKind, &RequestedConnection) -> Option<String>,
    ) {
        let axes = &experiment.axes;
        let clients =
            axes.clients.iter().flat_map(|client| axes.servers.iter().map(move |s| (client, s)));
        for (&client, &server) in clients {
            for requested in axes.connections() {
                let why = why_impossible(&requested)
                    .map(str::to_owned)
                    .or_else(|| {
                        unsupported_reason(client, &requested).map(|why| format!("{client} {why}"))
                    })
                    .or_else(|| {
                        limitation(server, &requested).map(|why| format!("{server} {why}"))
                    });
                match why {
                    Some(why) if self.left_out.contains(&why) => {}
                    Some(why) => self.left_out.push(why),
                    None => self.add_on_each_path(index, experiment, (client, server), requested),
                }
            }
        }
    }

    fn add_on_each_path(
        &mut self,
        index: usize,
        experiment: &Experiment,
        (client, server): (ClientKind, ServerKind),
        requested: RequestedConnection,
    ) {
        for profile in &experiment.profiles {
            let path = self.paths.iter().position(|path| path.name() == profile.name);
            self.cells.push(PlannedCell {
                experiment: index,
                client,
                server,
                path: path.expect("every profile of an experiment has its path"),
                requested,
                samples: experiment.samples,
                control_of: None,
            });
        }
    }

    /// Adds an A/A control for each class of paths that the experiment uses: the twin of a cell on
    /// the median path, preferably one with 0-RTT and without TCP Fast Open.
    fn add_controls(&mut self, experiment: usize) {
        for class in [PathClass::Long, PathClass::Short, PathClass::RateLimited] {
            let cells: Vec<usize> = (0..self.cells.len())
                .filter(|cell| {
                    let cell = &self.cells[*cell];
                    cell.experiment == experiment
                        && cell.control_of.is_none()
                        && self.paths[cell.path].class == class
                })
                .collect();
            let mut paths: Vec<usize> = cells.iter().map(|cell| self.cells[*cell].path).collect();
            paths.sort_unstable();
            paths.dedup();
            let Some(&path) = paths.get(paths.len() / 2) else { continue };
            let on_path = || cells.iter().copied().filter(|cell| self.cells[*cell].path == path);
            let plain = |cell: &usize| {
                let requested = &self.cells[*cell].requested;
                requested.kind == HandshakeKind::ZeroRtt && !requested.tfo && !requested.token
            };
            if let Some(cell) = on_path().find(plain).or_else(|| on_path().next()) {
                let twin = PlannedCell { control_of: Some(cell), ..self.cells[cell].clone() };
                self.cells.push(twin);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use firstflight_emulator::Profile;
    use firstflight_samples::ConnectionAxes;
    use firstflight_tls::Version;

    use super::*;
    use crate::{Axes, BuiltInExperiment, HttpVersion, ResponseSize, Workload};

    fn no_limitation(_: ServerKind, _: &RequestedConnection) -> Option<String> {
        None
    }

    fn matrix() -> Experiment {
        Experiment {
            name: "matrix".to_owned(),
            title: String::new(),
            profiles: ["2", "200"].map(|name| Profile::parse(name).unwrap()).to_vec(),
            axes: Axes {
                servers: vec![ServerKind::Firstflight, ServerKind::Nginx],
                connections: ConnectionAxes {
                    workloads: Workload::ALL.to_vec(),
                    versions: Version::ALL.to_vec(),
                    kinds: vec![
                        HandshakeKind::Full,
                        HandshakeKind::Resumed,
                        HandshakeKind::ZeroRtt,
                    ],
                    tfo: vec![false, true],
                    ..ConnectionAxes::baseline()
                },
                ..Axes::baseline()
            },
            samples: 5,
            control: false,
        }
    }

    fn no_ping_pong_at_nginx(
        server: ServerKind,
        requested: &RequestedConnection,
    ) -> Option<String> {
        (server == ServerKind::Nginx && requested.workload == Workload::PingPong)
            .then(|| "without ping-pong".to_owned())
    }

    #[test]
    fn the_matrix_has_every_possible_cell_and_lists_the_others() {
        let plan = Plan::new(&[matrix()], &no_ping_pong_at_nginx, 7);
        // (3 old versions x 2 kinds + 3 kinds) x TFO, at two paths; ping-pong at one server, GET
        // at two. Over QUIC only ping-pong, since HTTP/3 was not requested: 3 kinds, two paths.
        assert_eq!(plan.cells.len(), 9 * 2 * 2 * 3 + 3 * 2);
        assert_eq!(plan.paths[0].rtt_ms(), 200.0, "longest first");
        assert_eq!(plan.left_out.len(), 3, "{:?}", plan.left_out);
        assert!(plan.left_out.contains(&"nginx without ping-pong".to_owned()));
    }

    #[test]
    fn axes_of_a_get_do_not_multiply_ping_pong() {
        let mut experiment = matrix();
        experiment.axes.connections.http = HttpVersion::ALL.to_vec();
        experiment.axes.connections.sizes = ResponseSize::ALL.to_vec();
        experiment.axes.connections.versions = vec![Version::Tls13];
        let plan = Plan::new(&[experiment], &no_ping_pong_at_nginx, 7);
        let count = |workload| {
            let ours = |cell: &&PlannedCell| {
                cell.requested.workload == workload && cell.server == ServerKind::Firstflight
            };
            plan.cells.iter().filter(ours).count()
        };
        // TCP without and with TFO, and QUIC.
        assert_eq!(count(Workload::PingPong), 2 * 3 * (2 + 1));
        // HTTP/1.1 and 2 without and with TFO, and HTTP/3, in three sizes.
        assert_eq!(count(Workload::Get), 2 * 3 * (2 * 2 + 1) * 3);
    }

    #[test]
    fn blocks_hold_each_cell_once_and_the_seed_decides_their_order() {
        let plan = Plan::new(&[matrix()], &no_limitation, 7);
        let order = plan.order(1);
        let cells = plan.cells.iter().filter(|cell| cell.path == 1).count();
        assert_eq!(order.len(), cells * 5);
        for (block, slots) in order.chunks(cells).enumerate() {
            assert!(slots.iter().all(|slot| slot.block == block));
            let mut present: Vec<usize> = slots.iter().map(|slot| slot.cell).collect();
            present.sort_unstable();
            present.dedup();
            assert_eq!(present.len(), cells);
        }
        assert_eq!(order, plan.order(1));
        assert_ne!(order, Plan { seed: 8, ..plan }.order(1));
    }

    #[test]
    fn cells_with_fewer_samples_end_earlier() {
        let few = Experiment { samples: 2, name: "few".to_owned(), ..matrix() };
        let plan = Plan::new(&[matrix(), few], &no_limitation, 7);
        assert_eq!(plan.paths.len(), 2, "experiments share their paths");
        let order = plan.order(0);
        assert!(
            order.iter().filter(|slot| slot.block == 1).any(|s| plan.cells[s.cell].samples == 2)
        );
        assert!(
            order.iter().filter(|slot| slot.block >= 2).all(|s| plan.cells[s.cell].samples == 5)
        );
        assert_eq!(plan.samples(), plan.order(0).len() + plan.order(1).len());
    }

    #[test]
    fn a_control_repeats_a_cell_in_the_same_blocks() {
        let experiment =
            BuiltInExperiment::PingPong.experiment(&[ServerKind::Firstflight], Some(6)).unwrap();
        let plan = Plan::new(&[experiment], &no_limitation, 1);
        let twins: Vec<&PlannedCell> =
            plan.cells.iter().filter(|cell| cell.control_of.is_some()).collect();
        assert_eq!(twins.len(), 2, "one on a long path and one on a short one");
        for twin in twins {
            let cell = &plan.cells[twin.control_of.unwrap()];
            assert_eq!((cell.path, cell.requested, cell.samples), (twin.path, twin.requested, 6));
            assert_eq!((cell.requested.kind, cell.requested.tfo), (HandshakeKind::ZeroRtt, false));
        }
        assert_eq!(plan.cells.len(), 5 * (18 + 3) + 2);
        let few =
            BuiltInExperiment::PingPong.experiment(&[ServerKind::Firstflight], Some(5)).unwrap();
        let plan = Plan::new(&[few], &no_limitation, 1);
        assert_eq!(plan.cells.len(), 5 * (18 + 3), "too few for an interval");
    }
}
