//! A cluster of three nodes, with a recorder in front of each and an application behind them.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::clients::ClusterClients;
use crate::clock;
use crate::kind::{Kind, Settings};
use crate::run::Run;
use firstflight_testkit::{Running, Serving, free_port, text, until};

/// Number of nodes.
pub(crate) const NODES: usize = 3;

/// All nodes.
pub(crate) const ALL: [usize; NODES] = [0, 1, 2];

/// The processes of a cluster. They are killed when this is dropped.
pub(crate) struct Cluster {
    /// The cluster as clients and attackers see it.
    pub(crate) clients: Arc<ClusterClients>,
    kind: Kind,
    nodes: Vec<Node>,
    dir: TempDir,
}

struct Node {
    dir: PathBuf,
    settings: Settings,
    /// The offset of its clock, in the format of faketime.
    clock: Option<&'static str>,
    process: Option<Running>,
    /// Whether it was killed, so that its log may lack its last lines.
    killed: bool,
}

impl Cluster {
    /// Starts all nodes. The settings depend on the number of the node.
    pub(crate) fn start(
        kind: Kind,
        clocks: [Option<&'static str>; NODES],
        settings: impl Fn(usize) -> Settings,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        kind.prepare(dir.path());
        let node = |number| {
            let dir = dir.path().join(format!("node-{number}"));
            fs::create_dir(&dir).unwrap();
            let (settings, clock) = (settings(number), clocks[number]);
            Node { dir, settings, clock, process: None, killed: false }
        };
        let nodes = ALL.map(node).into();
        let clients = Arc::new(ClusterClients::new(kind, &dir.path().join("cert.pem")));
        let mut cluster = Self { clients, kind, nodes, dir };
        for number in ALL {
            cluster.start_node(number);
        }
        cluster
    }

    /// Starts a node that does not run, and sends clients there.
    pub(crate) fn start_node(&mut self, number: usize) {
        // Try again with another port, because a free port may be taken meanwhile.
        let address = (0..5).find_map(|_| self.try_start(number));
        let stderr = text(&self.nodes[number].dir.join("stderr"));
        let address = address.unwrap_or_else(|| panic!("node {number} does not serve: {stderr}"));
        self.clients.put(number, Some(address));
    }

    fn try_start(&mut self, number: usize) -> Option<SocketAddr> {
        let node = &mut self.nodes[number];
        let port = free_port();
        let upstream = self.clients.application.addresses[number];
        let mut command =
            self.kind.command(self.dir.path(), &node.dir, port, upstream, &node.settings);
        if let Some(off) = node.clock {
            clock::set(&node.dir, off);
            clock::follow(&mut command, &node.dir);
        }
        let stderr = node.dir.join("stderr");
        let serving = match self.kind.is_ours() {
            true => Serving::Announced(&stderr),
            false => Serving::Tcp(port),
        };
        let (process, address) = Running::serve(&mut command, serving)?;
        node.process = Some(process);
        Some(address)
    }

    /// Kills a node with SIGKILL, after clients were redirected to other nodes.
    pub(crate) fn kill(&mut self, number: usize) {
        self.clients.put(number, None);
        assert!(until(|| self.clients.is_idle(number)), "clients leave the node");
        self.nodes[number].killed = true;
        self.nodes[number].process = None;
    }

    /// Sets the clock of a node that was started with an offset.
    pub(crate) fn set_clock(&self, number: usize, off: &str) {
        assert!(self.nodes[number].clock.is_some(), "the node has the machine's clock");
        clock::set(&self.nodes[number].dir, off);
    }

    /// Puts a new ticket key into use on all nodes.
    pub(crate) fn rotate(&mut self) {
        self.kind.rotate(self.dir.path());
        for number in ALL {
            if self.kind.restarts_to_rotate() {
                self.kill(number);
                self.start_node(number);
            }
        }
    }

    /// Stops all nodes. Returns their access logs, and whether these are complete.
    pub(crate) fn stop(mut self) -> (Vec<Value>, bool) {
        let mut complete_logs = self.kind.is_ours();
        let mut log = Vec::new();
        for node in &mut self.nodes {
            let ended = node.process.take().is_some_and(Running::terminate);
            let stderr = text(&node.dir.join("stderr"));
            assert!(!stderr.contains("panicked"), "{stderr}");
            complete_logs &= ended && !node.killed && !stderr.contains("lines lost");
            let text = text(&node.dir.join("log"));
            log.extend(text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()));
        }
        (log, complete_logs)
    }

    /// Whether one of these reasons is in the access logs.
    pub(crate) fn has_logged(&self, reasons: &[&str]) -> bool {
        let logs: Vec<_> = self.nodes.iter().map(|node| text(&node.dir.join("log"))).collect();
        reasons.iter().any(|reason| logs.iter().any(|log| log.contains(reason)))
    }

    /// The standard error of the nodes and the last lines of their logs, for a failed test.
    pub(crate) fn stderr(&self) -> String {
        let mut all = String::new();
        for (number, node) in self.nodes.iter().enumerate() {
            let stderr = text(&node.dir.join("stderr"));
            let log = text(&node.dir.join("log"));
            let last = log.lines().last().unwrap_or_default();
            all += &format!("\nstderr of node {number}:\n{stderr}last line of its log:\n{last}\n");
        }
        all
    }

    /// Waits until these nodes accept early data.
    ///
    /// # Panics
    /// If they do not, with their standard error.
    pub(crate) fn warm_up(&self, timeout: Duration, nodes: &[usize]) {
        let warm = Run::new(&self.clients, "warm", 0);
        for node in nodes {
            if let Err(error) = warm.flights_within(timeout, 1, &[*node]) {
                panic!("{error}{}", self.stderr());
            }
        }
    }
}
