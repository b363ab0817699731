//! The nodes of a server, with a witness behind them.

use std::collections::HashMap;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use firstflight_audit::{
    Finding, QuicTarget, Settings as AuditSettings, Target, TcpTarget, Verdict, Witness, audit,
};
use firstflight_testkit::{
    Running, Serving, StoreListen, StoreProcess, TEST_TIMEOUT, free_port, text, until, within,
};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::kind::{Settings, eighty_bytes};
use crate::peer::{Peer, Server};
use crate::row::Row;
use crate::{clock, configs, quinn_server, rustls_server};

/// The nodes of a cell. Their processes end when this is dropped.
pub(crate) struct Nodes {
    peer: Peer,
    nodes: Vec<Node>,
    witness: SocketAddr,
    dir: TempDir,
}

struct Node {
    dir: PathBuf,
    settings: Settings,
    has_clock: bool,
    running: Option<Process>,
    address: SocketAddr,
}

enum Process {
    Child(Running),
    Rustls(rustls_server::Server),
    Quinn(quinn_server::Server),
}

impl Nodes {
    /// Starts as many nodes as the row needs.
    pub(crate) fn start(peer: Peer, row: Row) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        fs::write(dir.path().join("cert.pem"), &cert).unwrap();
        fs::write(dir.path().join("key.pem"), &key).unwrap();
        fs::write(dir.path().join("both.pem"), cert + &key).unwrap();
        fs::write(dir.path().join("ticket.key"), eighty_bytes()).unwrap();
        if let Some(kind) = peer.kind() {
            kind.prepare(dir.path());
        }
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let witness = listener.local_addr().unwrap();
        thread::spawn(move || Witness::default().serve(&listener));
        let prefix = dir.path().file_name().unwrap().to_string_lossy().replace('.', "");
        let store = match peer.server {
            Server::Store => format!("url = {:?}\nprefix = {prefix:?}\n", store_url()),
            _ => String::new(),
        };
        let settings = Settings {
            freshness: Duration::from_secs(10),
            clock_margin: Duration::from_secs(6),
            // The machine may be busy.
            budget: Duration::from_millis(300),
            store,
            tickets: "",
            early_data: true,
        };
        let count = match (peer.server, row.needs_other_nodes()) {
            (Server::Store, _) => 3,
            (_, true) => 2,
            (_, false) => 1,
        };
        let node = |number: usize| {
            let dir = dir.path().join(format!("node-{number}"));
            fs::create_dir(&dir).unwrap();
            if let Some(clocks) = row.clocks() {
                clock::set(&dir, clocks[number]);
            }
            let address = (Ipv4Addr::LOCALHOST, 0).into();
            let settings = settings.clone();
            Node { dir, settings, has_clock: row.clocks().is_some(), running: None, address }
        };
        let nodes = (0..count).map(node).collect();
        let mut all = Self { peer, nodes, witness, dir };
        (0..count).for_each(|number| all.start_node(number));
        all
    }

    pub(crate) fn count(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn address(&self, number: usize) -> SocketAddr {
        self.nodes[number].address
    }

    /// Kills the first node and starts it again, with the ticket keys that it had if they are kept.
    pub(crate) fn restart(&mut self) {
        self.nodes[0].running = None;
        self.start_node(0);
    }

    /// Switches early data on or off, and waits until that has an effect.
    pub(crate) fn set_early_data(&mut self, on: bool) {
        let (cert, key) = (self.file("cert.pem"), self.file("key.pem"));
        let node = &mut self.nodes[0];
        node.settings.early_data = on;
        match (&node.running, self.peer.kind()) {
            (Some(Process::Child(running)), Some(kind)) if kind.is_ours() => {
                // Writes the configuration.
                kind.command(self.dir.path(), &node.dir, 0, self.witness, &node.settings);
                running.signal(Signal::SIGHUP);
            }
            (Some(Process::Rustls(server)), _) => server.set_early_data(&cert, &key, on),
            (Some(Process::Quinn(server)), _) => server.set_early_data(&cert, &key, on),
            _ => self.restart(),
        }
        assert!(until(|| self.offers_early_data() == on), "early data is {on}: {}", self.stderr());
    }

    /// Sets the first node's clock right, if it was set.
    pub(crate) fn reset_clock(&self) {
        if self.nodes[0].has_clock {
            clock::set(&self.nodes[0].dir, "+0s");
        }
    }

    /// Steps the first node's clock. Step 1: an hour ahead, which its clients see, and back. Step 2:
    /// 20 s back, after 20 s.
    pub(crate) fn step_clock(&mut self, step: usize) {
        let dir = self.nodes[0].dir.clone();
        if step == 1 {
            clock::set(&dir, "+3600s");
            self.offers_early_data();
            clock::set(&dir, "+0s");
        } else {
            thread::sleep(Duration::from_secs(20));
            clock::set(&dir, "-20s");
        }
    }

    /// Waits until our nodes execute early requests. For a while after the start of a store they
    /// hold all of them, so a copy would prove nothing.
    pub(crate) fn wait_until_ready(&self) {
        for number in 0..self.count() {
            let passes = |finding: Finding| finding.verdict == Verdict::Pass;
            let ready = || self.check(number, "early-data-header").is_some_and(passes);
            let ready = !self.peer.is_ours()
                || within(Duration::from_secs(180), Duration::from_millis(500), ready);
            assert!(ready, "node {number} executes no early request: {}", self.stderr());
        }
    }

    /// Whether the first node's tickets allow early data.
    fn offers_early_data(&self) -> bool {
        self.check(0, "offers").is_some_and(|finding| {
            finding.summary.contains("early data") && !finding.summary.contains("no early data")
        })
    }

    /// A check of a node; `None` if it cannot be audited.
    fn check(&self, number: usize, name: &str) -> Option<Finding> {
        let settings = AuditSettings {
            only: vec![name.to_owned()],
            limit: TEST_TIMEOUT,
            witness: name != "offers",
            http3: self.peer.quic,
            ..AuditSettings::new("localhost", "localhost", "/proxied/witness")
        };
        let address = self.address(number);
        let target: Box<dyn Target> = match self.peer.quic {
            true => Box::new(QuicTarget::new(address)),
            false => Box::new(TcpTarget::new(address, TEST_TIMEOUT)),
        };
        let node = firstflight_audit::Node { address: String::new(), target: target.as_ref() };
        let report = audit(&[node], &settings, "", |_| {}).ok();
        report.and_then(|report| report.findings.into_iter().next())
    }

    /// What the nodes have printed.
    pub(crate) fn stderr(&self) -> String {
        self.nodes.iter().map(|node| text(&node.dir.join("stderr"))).collect()
    }

    /// The highest number of executions of one request in the servers' logs: each request has its
    /// own query. `None` without requests.
    pub(crate) fn most_executions(&self) -> Option<u64> {
        let mut counts = HashMap::new();
        for line in self.stderr().lines() {
            if let Some((_, target)) = line.split_once("[:path: ") {
                *counts.entry(target.to_owned()).or_default() += 1;
            }
        }
        counts.into_values().max()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn start_node(&mut self, number: usize) {
        // Try again with another port, because a free port may be taken meanwhile.
        let started = (0..5).any(|_| self.try_start(number));
        assert!(started, "{} does not serve: {}", self.peer.name, self.stderr());
    }

    fn try_start(&mut self, number: usize) -> bool {
        let (shared, port) = (self.dir.path(), free_port());
        let node = &mut self.nodes[number];
        let (cert, key) = (shared.join("cert.pem"), shared.join("key.pem"));
        let (process, address) = if self.peer.server == Server::Rustls {
            match self.peer.quic {
                true => {
                    let server = quinn_server::Server::start(&cert, &key);
                    let address = server.address;
                    (Process::Quinn(server), address)
                }
                false => {
                    let server = rustls_server::Server::start(&cert, &key);
                    let address = server.address;
                    (Process::Rustls(server), address)
                }
            }
        } else {
            let mut command = match self.peer.kind() {
                Some(kind) => kind.command(shared, &node.dir, port, self.witness, &node.settings),
                None => {
                    other_command(self.peer, shared, &node.dir, port, self.witness, &node.settings)
                }
            };
            if node.has_clock {
                clock::follow(&mut command, &node.dir);
            }
            let stderr = node.dir.join("stderr");
            let serving = match self.peer.quic {
                _ if self.peer.is_ours() => Serving::Announced(&stderr),
                true => Serving::Udp(port),
                false => Serving::Tcp(port),
            };
            let Some((running, address)) = Running::serve(&mut command, serving) else {
                return false;
            };
            (Process::Child(running), address)
        };
        node.address = address;
        node.running = Some(process);
        true
    }
}

/// The command of a server that the chaos suite does not know.
fn other_command(
    peer: Peer,
    shared: &Path,
    own: &Path,
    port: u16,
    upstream: SocketAddr,
    settings: &Settings,
) -> Command {
    let mut command = configs::command(peer, shared, own, port, upstream, settings);
    let stderr = File::options().create(true).append(true).open(own.join("stderr")).unwrap();
    command.env("HOME", own).env_remove("XDG_DATA_HOME").env_remove("XDG_CONFIG_HOME");
    // OpenSSL's server ends with its input.
    command.current_dir(own).stdin(Stdio::piped()).stdout(stderr.try_clone().unwrap());
    command.stderr(stderr);
    command
}

/// The store of all cells, in which each has a prefix of its own.
static STORE: Mutex<Option<StoreProcess>> = Mutex::new(None);

fn store_url() -> String {
    let mut store = STORE.lock().unwrap_or_else(PoisonError::into_inner);
    store.get_or_insert_with(|| StoreProcess::redis(StoreListen::Tcp)).url()
}

/// Ends the store.
pub(crate) fn end_store() {
    drop(STORE.lock().unwrap_or_else(PoisonError::into_inner).take());
}
