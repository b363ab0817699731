//! The plan of a run: its networks, its cells, and the order of their samples.

use firstflight_samples::{
    MIN_FOR_CONTROL, RequestedConnection, Slot, blocks, combinations, impossible,
};

use crate::paths::{Family, PlannedPath};
use crate::third_party::cannot;
use crate::{Client, Experiment, Kind, ServerKind};

/// One cell of the plan.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedCell {
    /// The experiment, by its place in the plan.
    pub experiment: usize,
    /// Who connects.
    pub client: Client,
    /// The server under test.
    pub server: ServerKind,
    /// The network, by its place in the plan.
    pub path: usize,
    /// What a connection asks of the server.
    pub asked: RequestedConnection,
    /// How often.
    pub samples: usize,
    /// For the second arm of an A/A control, the cell that it is equal to.
    pub twin_of: Option<usize>,
}

/// Which cells, on which paths, in which order.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(crate) paths: Vec<PlannedPath>,
    /// The cells.
    pub cells: Vec<PlannedCell>,
    /// Orders the samples.
    pub seed: u64,
    /// Combinations that cannot be, and why, a sentence each.
    pub left_out: Vec<String>,
}

/// The networks of all experiments, longest first.
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
    /// Every combination of the experiments' axes that can be; `server_cannot` says why a server
    /// cannot do what a cell asks.
    pub(crate) fn new(
        experiments: &[Experiment],
        server_cannot: &dyn Fn(ServerKind, &RequestedConnection) -> Option<String>,
        seed: u64,
    ) -> Self {
        let mut plan =
            Self { paths: paths(experiments), cells: Vec::new(), seed, left_out: Vec::new() };
        for (index, experiment) in experiments.iter().enumerate() {
            plan.add(index, experiment, server_cannot);
        }
        for (index, experiment) in experiments.iter().enumerate() {
            if experiment.control && experiment.samples >= MIN_FOR_CONTROL {
                plan.add_controls(index);
            }
        }
        plan
    }

    /// The order of the samples of one path: blocks in which each of its cells comes once, each
    /// block in an order of its own, so that drift and disturbance hit all cells alike. A cell with
    /// fewer samples than others is missing in the last blocks.
    pub fn order(&self, path: usize) -> Vec<Slot> {
        let cells: Vec<usize> =
            (0..self.cells.len()).filter(|cell| self.cells[*cell].path == path).collect();
        blocks(&cells, &|cell| self.cells[cell].samples, self.seed.wrapping_add(path as u64))
    }

    /// Samples in all.
    pub fn samples(&self) -> usize {
        self.cells.iter().map(|cell| cell.samples).sum()
    }

    fn add(
        &mut self,
        index: usize,
        experiment: &Experiment,
        server_cannot: &dyn Fn(ServerKind, &RequestedConnection) -> Option<String>,
    ) {
        let axes = &experiment.axes;
        let clients =
            axes.clients.iter().flat_map(|client| axes.servers.iter().map(move |s| (client, s)));
        for (&client, &server) in clients {
            for asked in combinations(&axes.connections()) {
                let why = impossible(&asked)
                    .map(str::to_owned)
                    .or_else(|| cannot(client, &asked).map(|why| format!("{client} {why}")))
                    .or_else(|| server_cannot(server, &asked).map(|why| format!("{server} {why}")));
                match why {
                    Some(why) if self.left_out.contains(&why) => {}
                    Some(why) => self.left_out.push(why),
                    None => self.add_on_each_path(index, experiment, (client, server), asked),
                }
            }
        }
    }

    fn add_on_each_path(
        &mut self,
        index: usize,
        experiment: &Experiment,
        (client, server): (Client, ServerKind),
        asked: RequestedConnection,
    ) {
        for profile in &experiment.profiles {
            let path = self.paths.iter().position(|path| path.name() == profile.name);
            self.cells.push(PlannedCell {
                experiment: index,
                client,
                server,
                path: path.expect("every profile of an experiment has its path"),
                asked,
                samples: experiment.samples,
                twin_of: None,
            });
        }
    }

    /// Doubles one cell for each family of paths that the experiment uses: that of 0-RTT without
    /// TCP Fast Open if there is one, on the path in the middle.
    fn add_controls(&mut self, experiment: usize) {
        for family in [Family::Long, Family::Short, Family::Rated] {
            let mine: Vec<usize> = (0..self.cells.len())
                .filter(|cell| {
                    let cell = &self.cells[*cell];
                    cell.experiment == experiment
                        && cell.twin_of.is_none()
                        && self.paths[cell.path].family == family
                })
                .collect();
            let mut paths: Vec<usize> = mine.iter().map(|cell| self.cells[*cell].path).collect();
            paths.sort_unstable();
            paths.dedup();
            let Some(&path) = paths.get(paths.len() / 2) else { continue };
            let there = || mine.iter().copied().filter(|cell| self.cells[*cell].path == path);
            let plain = |cell: &usize| {
                let asked = &self.cells[*cell].asked;
                asked.kind == Kind::ZeroRtt && !asked.tfo && !asked.token
            };
            if let Some(cell) = there().find(plain).or_else(|| there().next()) {
                let twin = PlannedCell { twin_of: Some(cell), ..self.cells[cell].clone() };
                self.cells.push(twin);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use firstflight_emulator::Profile;
    use firstflight_samples::round_trips;
    use firstflight_tls::Version;

    use super::*;
    use crate::{Axes, BuiltIn, Certificate, Group, Http, Size, Transport, Workload};

    fn can(_: ServerKind, _: &RequestedConnection) -> Option<String> {
        None
    }

    fn matrix() -> Experiment {
        Experiment {
            name: "matrix".to_owned(),
            title: String::new(),
            profiles: ["2", "200"].map(|name| Profile::parse(name).unwrap()).to_vec(),
            axes: Axes {
                servers: vec![ServerKind::Firstflight, ServerKind::Nginx],
                workloads: Workload::ALL.to_vec(),
                versions: Version::ALL.to_vec(),
                kinds: vec![Kind::Full, Kind::Resumed, Kind::ZeroRtt],
                tfo: vec![false, true],
                ..Axes::one()
            },
            samples: 5,
            control: false,
        }
    }

    fn no_ping_pong_at_nginx(server: ServerKind, asked: &RequestedConnection) -> Option<String> {
        (server == ServerKind::Nginx && asked.workload == Workload::PingPong)
            .then(|| "without ping-pong".to_owned())
    }

    #[test]
    fn the_matrix_has_every_cell_that_exists_and_says_what_it_leaves_out() {
        let plan = Plan::new(&[matrix()], &no_ping_pong_at_nginx, 7);
        // (3 old versions x 2 kinds + 3 kinds) x TFO, at two paths; ping-pong at one server, GET
        // at two. Over QUIC ping-pong alone, since HTTP/3 was not asked for: 3 kinds, two paths.
        assert_eq!(plan.cells.len(), 9 * 2 * 2 * 3 + 3 * 2);
        assert_eq!(plan.paths[0].rtt_ms(), 200.0, "longest first");
        assert_eq!(plan.left_out.len(), 3, "{:?}", plan.left_out);
        assert!(plan.left_out.contains(&"nginx without ping-pong".to_owned()));
    }

    #[test]
    fn what_bears_on_a_get_alone_does_not_multiply_ping_pong() {
        let mut experiment = matrix();
        experiment.axes.http = Http::ALL.to_vec();
        experiment.axes.sizes = Size::ALL.to_vec();
        experiment.axes.versions = vec![Version::Tls13];
        let plan = Plan::new(&[experiment], &no_ping_pong_at_nginx, 7);
        let count = |workload| {
            let ours = |cell: &&PlannedCell| {
                cell.asked.workload == workload && cell.server == ServerKind::Firstflight
            };
            plan.cells.iter().filter(ours).count()
        };
        // TCP without and with TFO, and QUIC.
        assert_eq!(count(Workload::PingPong), 2 * 3 * (2 + 1));
        // HTTP/1.1 and 2 without and with TFO, and HTTP/3, in three sizes.
        assert_eq!(count(Workload::Get), 2 * 3 * (2 * 2 + 1) * 3);
    }

    #[test]
    fn round_trips_as_the_protocols_have_them() {
        let expected = |version, kind, tfo| {
            round_trips(&RequestedConnection {
                workload: Workload::Get,
                transport: Transport::Tcp,
                version,
                kind,
                tfo,
                token: false,
                http: Http::One,
                size: Size::OneKib,
                group: Group::X25519,
                certificate: Certificate::EcdsaP256,
            })
        };
        let over_quic = |kind| {
            let experiment = Axes { kinds: vec![kind], http: vec![Http::Three], ..Axes::one() };
            round_trips(&combinations(&experiment.connections())[0])
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
        assert_eq!(expected(Version::Tls13, Kind::Refused, false), 3);
        assert_eq!(Kind::ALL.map(over_quic), [2, 2, 1, 2]);
    }

    #[test]
    fn blocks_hold_each_cell_once_and_the_seed_decides_their_order() {
        let plan = Plan::new(&[matrix()], &can, 7);
        let order = plan.order(1);
        let cells = plan.cells.iter().filter(|cell| cell.path == 1).count();
        assert_eq!(order.len(), cells * 5);
        for (block, slots) in order.chunks(cells).enumerate() {
            assert!(slots.iter().all(|slot| slot.block == block));
            let mut there: Vec<usize> = slots.iter().map(|slot| slot.cell).collect();
            there.sort_unstable();
            there.dedup();
            assert_eq!(there.len(), cells);
        }
        assert_eq!(order, plan.order(1));
        assert_ne!(order, Plan { seed: 8, ..plan }.order(1));
    }

    #[test]
    fn cells_with_fewer_samples_end_earlier() {
        let few = Experiment { samples: 2, name: "few".to_owned(), ..matrix() };
        let plan = Plan::new(&[matrix(), few], &can, 7);
        assert_eq!(plan.paths.len(), 2, "a path is shared by experiments");
        let last = plan.order(0);
        assert!(
            last.iter().filter(|slot| slot.block == 1).any(|s| plan.cells[s.cell].samples == 2)
        );
        assert!(
            last.iter().filter(|slot| slot.block >= 2).all(|s| plan.cells[s.cell].samples == 5)
        );
        assert_eq!(plan.samples(), plan.order(0).len() + plan.order(1).len());
    }

    #[test]
    fn a_control_is_a_cell_once_more_in_the_same_blocks() {
        let experiment = BuiltIn::PingPong.experiment(&[ServerKind::Firstflight], Some(6)).unwrap();
        let plan = Plan::new(&[experiment], &can, 1);
        let twins: Vec<&PlannedCell> =
            plan.cells.iter().filter(|cell| cell.twin_of.is_some()).collect();
        assert_eq!(twins.len(), 2, "one on a long path and one on a short one");
        for twin in twins {
            let cell = &plan.cells[twin.twin_of.unwrap()];
            assert_eq!((cell.path, cell.asked, cell.samples), (twin.path, twin.asked, 6));
            assert_eq!((cell.asked.kind, cell.asked.tfo), (Kind::ZeroRtt, false));
        }
        assert_eq!(plan.cells.len(), 5 * (18 + 3) + 2);
        let few = BuiltIn::PingPong.experiment(&[ServerKind::Firstflight], Some(5)).unwrap();
        let plan = Plan::new(&[few], &can, 1);
        assert_eq!(plan.cells.len(), 5 * (18 + 3), "too few for an interval");
    }
}
