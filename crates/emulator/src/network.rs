//! The emulated network: built, reconfigured at run time, and removed when dropped.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::chain::Chains;
use crate::forwarder::Forwarder;
use crate::interfaces::{
    self, CLIENT_MAC, CLIENT_SIDE, EndpointKind, Namespaces, RouteSettings, SERVER_MAC,
    SERVER_SIDE, WIRE,
};
use crate::path::{Counters, PathCounters};
use crate::path::{MAX_PATHS, Path, PathConfig, base_delay, client_address, server_address};
use crate::port::PacketRing;
use crate::port::{self, TunPort};
use crate::tap::{Lateness, Tap};
use crate::wake::KeepAwake;
use crate::{Attacker, CellSpec, LinkError, Namespace};

/// How packets are exchanged between the endpoints' kernels and the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Backend {
    /// Packet-socket rings on veth pairs: need no device, and arrivals have kernel timestamps.
    #[default]
    PacketRings,
    /// TUN devices: slightly more throughput, but arrivals are only timestamped when they are read.
    /// Requires /dev/net/tun.
    Tun,
}

/// What to build.
#[derive(Debug, Clone)]
pub struct NetworkConfig {
    /// One to [`MAX_PATHS`] paths.
    pub paths: Vec<PathConfig>,
    /// How packets get to the link.
    pub backend: Backend,
    /// TCP congestion control of all routes. The kernel's default may use pacing, which distorts
    /// short transfers.
    pub congestion_control: String,
    /// TCP initial window of every route, in segments (RFC 6928 has 10).
    pub initial_window: u32,
    /// How many bytes of each frame the tap keeps.
    pub snap_length: usize,
    /// The maximum size of the tap in bytes until it is taken.
    pub tap_limit_bytes: usize,
    /// The random seed of the cells: with the same seed, the same packets at the same times have
    /// the same outcome.
    pub seed: u64,
    /// Whether to keep all CPUs from sleeping, with threads of idle priority. On an idle machine
    /// the endpoints then wake several times faster; on a busy one they wake milliseconds later. It
    /// shows up as CPU time of this process.
    pub keep_awake: bool,
}

impl NetworkConfig {
    /// These paths with cubic, an initial window of 10, and a tap that keeps complete packets up to
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
            format!("{:?} is not the name of a congestion control", self.congestion_control)
        } else {
            return self.paths.iter().try_for_each(|path| check_cells(&path.up, &path.down));
        };
        Err(LinkError::Config(fault))
    }
}

/// A running network. When it is dropped, it stops forwarding and ends its child processes.
#[derive(Debug)]
pub struct Network {
    // Dropped in this order: forwarding first, then the namespaces with their children.
    forwarder: Forwarder,
    _awake: Option<KeepAwake>,
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
    /// Builds the network and starts forwarding.
    ///
    /// # Errors
    /// If the configuration is invalid, or the machine refuses a part; then nothing remains.
    pub fn build(config: NetworkConfig) -> Result<Self, LinkError> {
        config.check()?;
        let client = Namespace::new("client")?;
        let link = Namespace::new("link")?;
        let server = Namespace::new("server")?;
        let attacker = Namespace::new("attacker")?;
        let mut refused_settings = Vec::new();
        for namespace in [&client, &link, &server, &attacker] {
            refused_settings.append(&mut namespace.run(interfaces::apply_sysctls)??);
        }
        refused_settings.sort();
        refused_settings.dedup();
        let namespaces =
            Namespaces { client: &client, link: &link, server: &server, attacker: &attacker };
        let route_settings = RouteSettings {
            congestion_control: &config.congestion_control,
            initial_window: config.initial_window,
        };
        let tap = Tap::new(config.snap_length, config.tap_limit_bytes);
        let cells: Vec<_> = config.paths.iter().map(|path| (&*path.up, &*path.down)).collect();
        let chains = Chains::new(&cells, config.seed);
        let paths = config.paths.len();
        let forwarder = match config.backend {
            Backend::PacketRings => {
                interfaces::create_veth_pairs(&namespaces)?;
                interfaces::configure(&namespaces, paths, EndpointKind::Ethernet, route_settings)?;
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
                interfaces::configure(&namespaces, paths, EndpointKind::Tun, route_settings)?;
                Forwarder::start(&link, ports, chains, paths, tap.clone())?
            }
        };
        Ok(Self {
            forwarder,
            _awake: config.keep_awake.then(KeepAwake::start),
            client,
            server,
            attacker: Attacker::new(attacker),
            _link: link,
            tap,
            backend: config.backend,
            paths: Mutex::new(assign_addresses(config.paths)),
            refused_settings,
        })
    }

    /// The current state of path `index`.
    ///
    /// # Errors
    /// If there is no such path.
    pub fn path(&self, index: usize) -> Result<Path, LinkError> {
        let paths = self.lock_paths();
        paths.get(index).cloned().ok_or(LinkError::NoSuchPath { index, paths: paths.len() })
    }

    /// The current state of all paths, by index.
    pub fn paths(&self) -> Vec<Path> {
        self.lock_paths().clone()
    }

    /// Replaces the cells of a path, for packets that arrive from now on. Packets in transit keep
    /// their times and are not overtaken. Cells start again: queues are empty, middleboxes know no
    /// connection, and random numbers start from the network's seed.
    ///
    /// # Errors
    /// If there is no such path or a cell is invalid.
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

    /// The namespace of clients.
    pub fn client(&self) -> &Namespace {
        &self.client
    }

    /// The namespace of servers. One that listens on 0.0.0.0 is reachable over every path.
    pub fn server(&self) -> &Namespace {
        &self.server
    }

    /// The attacker, which resends captured first flights.
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

    /// Frames processed by the link since it was built.
    ///
    /// # Errors
    /// If the forwarding thread has ended.
    pub fn counters(&self) -> Result<Counters, LinkError> {
        let mut counters = self.forwarder.counters()?;
        if self.backend == Backend::Tun {
            for namespace in [&self.client, &self.server] {
                counters.ring_full += namespace.run(|| port::tun_dropped(WIRE))?;
            }
        }
        Ok(counters)
    }

    /// Packets of one path since the network was built, by cell.
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

    /// Settings that this machine refused, as `key=value` below /proc/sys: the network works
    /// without them, but reports should name them.
    pub fn refused_settings(&self) -> &[String] {
        &self.refused_settings
    }

    fn lock_paths(&self) -> MutexGuard<'_, Vec<Path>> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn assign_addresses(configs: Vec<PathConfig>) -> Vec<Path> {
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
    fn an_invalid_configuration_is_refused_before_anything_is_built() {
        let path = || vec![PathConfig::symmetric("x", Duration::from_millis(20))];
        let slow = PathConfig::symmetric("x", Duration::from_secs(121));
        let cases = [
            (NetworkConfig::new(vec![]), "1 to 199 paths"),
            (NetworkConfig::new(vec![path().remove(0); MAX_PATHS + 1]), "1 to 199 paths"),
            (NetworkConfig::new(vec![slow]), "60s"),
            (NetworkConfig { initial_window: 0, ..NetworkConfig::new(path()) }, "window"),
            (
                NetworkConfig { congestion_control: String::new(), ..NetworkConfig::new(path()) },
                "congestion control",
            ),
        ];
        for (config, reason) in cases {
            let sentence = Network::build(config).expect_err("out of bounds").to_string();
            assert!(sentence.contains(reason), "{sentence}");
        }
    }
}
