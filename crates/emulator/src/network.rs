//! The whole network: built, changed at run time, and gone when dropped.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::awake::Awake;
use crate::chain::Chains;
use crate::counters::{Counters, PathCounters};
use crate::forwarder::Forwarder;
use crate::path::{MAX_PATHS, Path, PathConfig, base_delay, client_address, server_address};
use crate::ring::PacketRing;
use crate::tap::{Lateness, Tap};
use crate::tun::{self, TunPort};
use crate::wiring::{
    self, CLIENT_MAC, CLIENT_SIDE, Ends, Rooms, SERVER_MAC, SERVER_SIDE, Transport, WIRE,
};
use crate::{Attacker, CellSpec, LinkError, Namespace, sysctl};

/// How packets get from the endpoints' kernels to the link and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Backend {
    /// Packet-socket rings on veth pairs: needs no device, and arrivals bear the kernel's stamps.
    #[default]
    PacketRings,
    /// TUN devices: a little more throughput, but arrivals are stamped only when they are read.
    /// Needs /dev/net/tun.
    Tun,
}

/// What to build.
#[derive(Debug, Clone)]
pub struct NetworkConfig {
    /// One to [`MAX_PATHS`] paths.
    pub paths: Vec<PathConfig>,
    /// How packets get to the link.
    pub backend: Backend,
    /// TCP congestion control of every route. The kernel's default may be one that paces, which
    /// bends short transfers.
    pub congestion_control: String,
    /// TCP initial window of every route, in segments (RFC 6928 has 10).
    pub initial_window: u32,
    /// How many bytes of each frame the tap keeps.
    pub snap_length: usize,
    /// How many bytes the tap holds at most before it is taken.
    pub tap_limit_bytes: usize,
    /// What all that is random in cells follows from: with the same seed, the same packets at the
    /// same times meet the same fate.
    pub seed: u64,
    /// Whether to keep all CPUs from sleeping, by threads of idle priority. On a machine that does
    /// nothing else the endpoints then wake several times faster; on one that is busy they wake
    /// milliseconds later. It shows up as CPU time of this process.
    pub keep_awake: bool,
}

impl NetworkConfig {
    /// These paths, with cubic, an initial window of 10, and a tap that keeps whole packets up to
    /// 512 MiB.
    pub fn new(paths: Vec<PathConfig>) -> Self {
        Self {
            paths,
            backend: Backend::default(),
            congestion_control: "cubic".to_owned(),
            initial_window: 10,
            snap_length: 65_535,
            tap_limit_bytes: 512 << 20,
            seed: 0,
            keep_awake: false,
        }
    }

    fn check(&self) -> Result<(), LinkError> {
        let fault = if self.paths.is_empty() || self.paths.len() > MAX_PATHS {
            format!("a network has 1 to {MAX_PATHS} paths, not {}", self.paths.len())
        } else if !(1..=1_000).contains(&self.initial_window) {
            format!("an initial window is 1 to 1000 segments, not {}", self.initial_window)
        } else if self.congestion_control.is_empty() || self.congestion_control.len() > 15 {
            format!("{:?} is no name of a congestion control", self.congestion_control)
        } else {
            return self.paths.iter().try_for_each(|path| check_cells(&path.up, &path.down));
        };
        Err(LinkError::Config(fault))
    }
}

/// A running network. Dropped, it stops forwarding, ends its child processes and is gone.
#[derive(Debug)]
pub struct Network {
    // Dropped in this order: forwarding first, then the namespaces with their children.
    forwarder: Forwarder,
    _awake: Option<Awake>,
    client: Namespace,
    server: Namespace,
    attacker: Attacker,
    _link: Namespace,
    tap: Tap,
    backend: Backend,
    paths: Mutex<Vec<Path>>,
    refused_settings: Vec<String>,
}

impl Network {
    /// Builds the network and starts to forward.
    ///
    /// # Errors
    /// If the configuration is out of bounds, or where the machine refuses a part: then nothing of
    /// it remains.
    pub fn build(config: NetworkConfig) -> Result<Self, LinkError> {
        config.check()?;
        let client = Namespace::new("client")?;
        let link = Namespace::new("link")?;
        let server = Namespace::new("server")?;
        let attacker = Namespace::new("attacker")?;
        let mut refused_settings = Vec::new();
        for room in [&client, &link, &server, &attacker] {
            refused_settings.append(&mut room.run(sysctl::apply)??);
        }
        refused_settings.sort();
        refused_settings.dedup();
        let rooms = Rooms { client: &client, link: &link, server: &server, attacker: &attacker };
        let transport = Transport {
            congestion_control: &config.congestion_control,
            initial_window: config.initial_window,
        };
        let tap = Tap::new(config.snap_length, config.tap_limit_bytes);
        let cells: Vec<_> = config.paths.iter().map(|path| (&*path.up, &*path.down)).collect();
        let chains = Chains::new(&cells, config.seed);
        let paths = config.paths.len();
        let forwarder = match config.backend {
            Backend::PacketRings => {
                wiring::pairs(&rooms)?;
                wiring::configure(&rooms, paths, Ends::Ethernet, transport)?;
                let ports = link.run(|| -> Result<_, LinkError> {
                    Ok([PacketRing::open(CLIENT_SIDE)?, PacketRing::open(SERVER_SIDE)?])
                })??;
                Forwarder::start(&link, ports, chains, paths, tap.clone())?
            }
            Backend::Tun => {
                let ports = [
                    client.run(|| TunPort::open(WIRE, CLIENT_MAC, SERVER_MAC))??,
                    server.run(|| TunPort::open(WIRE, SERVER_MAC, CLIENT_MAC))??,
                ];
                wiring::configure(&rooms, paths, Ends::Tun, transport)?;
                Forwarder::start(&link, ports, chains, paths, tap.clone())?
            }
        };
        Ok(Self {
            forwarder,
            _awake: config.keep_awake.then(Awake::start),
            client,
            server,
            attacker: Attacker::new(attacker),
            _link: link,
            tap,
            backend: config.backend,
            paths: Mutex::new(addressed(config.paths)),
            refused_settings,
        })
    }

    /// Path `index` as it is now.
    ///
    /// # Errors
    /// If there is no such path.
    pub fn path(&self, index: usize) -> Result<Path, LinkError> {
        let paths = self.lock_paths();
        paths.get(index).cloned().ok_or(LinkError::NoSuchPath { index, paths: paths.len() })
    }

    /// All paths as they are now, by index.
    pub fn paths(&self) -> Vec<Path> {
        self.lock_paths().clone()
    }

    /// Replaces the cells of a path, for packets that arrive from now on. Packets under way keep
    /// their times and are not overtaken. Cells start again: a queue is empty, a middlebox knows no
    /// connection, random numbers start from the network's seed.
    ///
    /// # Errors
    /// If there is no such path or something in a cell is out of bounds.
    pub fn set_cells(
        &self,
        index: usize,
        up: Vec<CellSpec>,
        down: Vec<CellSpec>,
    ) -> Result<(), LinkError> {
        check_cells(&up, &down)?;
        let mut paths = self.lock_paths();
        let count = paths.len();
        let path = paths.get_mut(index).ok_or(LinkError::NoSuchPath { index, paths: count })?;
        self.forwarder.replace(index, up.clone(), down.clone())?;
        (path.up, path.down) = (base_delay(&up), base_delay(&down));
        (path.up_cells, path.down_cells) = (up, down);
        Ok(())
    }

    /// Where clients run.
    pub fn client(&self) -> &Namespace {
        &self.client
    }

    /// Where servers run; one that listens on 0.0.0.0 is reached over every path.
    pub fn server(&self) -> &Namespace {
        &self.server
    }

    /// Who resends what the tap has seen.
    pub fn attacker(&self) -> &Attacker {
        &self.attacker
    }

    /// The tap; it may be cloned and read from any thread.
    pub fn tap(&self) -> &Tap {
        &self.tap
    }

    /// How late the link delivered since it was built or [`Tap::reset_lateness`] was called.
    pub fn lateness(&self) -> Lateness {
        self.tap.lateness()
    }

    /// What the link did with the frames that it met since it was built.
    ///
    /// # Errors
    /// If the forwarding thread has ended.
    pub fn counters(&self) -> Result<Counters, LinkError> {
        let mut counters = self.forwarder.counters()?;
        if self.backend == Backend::Tun {
            for room in [&self.client, &self.server] {
                counters.ring_full += room.run(|| tun::dropped(WIRE))?;
            }
        }
        Ok(counters)
    }

    /// What became of the packets of one path since the network was built, and by which cell.
    ///
    /// # Errors
    /// If there is no such path or the forwarding thread has ended.
    pub fn path_counters(&self, index: usize) -> Result<PathCounters, LinkError> {
        let paths = self.lock_paths().len();
        if index >= paths {
            return Err(LinkError::NoSuchPath { index, paths });
        }
        self.forwarder.path_counters(index)
    }

    /// How packets get to the link.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Settings that this machine did not take, as `key=value` below /proc/sys: the network works
    /// without them, but a report should name them.
    pub fn refused_settings(&self) -> &[String] {
        &self.refused_settings
    }

    fn lock_paths(&self) -> MutexGuard<'_, Vec<Path>> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn addressed(configs: Vec<PathConfig>) -> Vec<Path> {
    let path = |(index, PathConfig { name, up, down })| Path {
        name,
        client: client_address(index),
        server: server_address(index),
        up: base_delay(&up),
        down: base_delay(&down),
        up_cells: up,
        down_cells: down,
    };
    configs.into_iter().enumerate().map(path).collect()
}

fn check_cells(up: &[CellSpec], down: &[CellSpec]) -> Result<(), LinkError> {
    up.iter().chain(down).try_for_each(CellSpec::check)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_configuration_out_of_bounds_is_refused_before_anything_is_built() {
        let one = || vec![PathConfig::symmetric("x", Duration::from_millis(20))];
        let endless = PathConfig::symmetric("x", Duration::from_secs(121));
        let cases = [
            (NetworkConfig::new(vec![]), "1 to 199 paths"),
            (NetworkConfig::new(vec![one().remove(0); MAX_PATHS + 1]), "1 to 199 paths"),
            (NetworkConfig::new(vec![endless]), "60s"),
            (NetworkConfig { initial_window: 0, ..NetworkConfig::new(one()) }, "window"),
            (
                NetworkConfig { congestion_control: String::new(), ..NetworkConfig::new(one()) },
                "congestion control",
            ),
        ];
        for (config, reason) in cases {
            let sentence = Network::build(config).expect_err("out of bounds").to_string();
            assert!(sentence.contains(reason), "{sentence}");
        }
    }
}
