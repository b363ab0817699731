//! The servers under test: how each is started, and what its log says it executed.

mod firstflight;
mod nginx;

use std::fmt;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use firstflight_link::{Network, Process};

use crate::{BenchError, Workload};

/// A server that the lab knows to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServerKind {
    /// This program's own.
    Firstflight,
    /// nginx, as installed on this machine.
    Nginx,
}

/// All of them.
pub const SERVERS: [ServerKind; 2] = [ServerKind::Firstflight, ServerKind::Nginx];

impl ServerKind {
    /// The name in tables and flags.
    pub fn name(self) -> &'static str {
        match self {
            Self::Firstflight => "firstflight",
            Self::Nginx => "nginx",
        }
    }

    /// Whether it can be asked for this. PING and PONG are no protocol that others speak.
    pub fn answers(self, workload: Workload) -> bool {
        self == Self::Firstflight || workload == Workload::Get
    }

    /// Its port for a workload, in the server's namespace.
    pub(crate) fn port(self, workload: Workload) -> u16 {
        match (self, workload) {
            (Self::Firstflight, Workload::Get) => 4430,
            (Self::Firstflight, Workload::PingPong) => 4431,
            (Self::Nginx, _) => 4432,
        }
    }
}

impl fmt::Display for ServerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ServerKind {
    type Err = BenchError;

    fn from_str(text: &str) -> Result<Self, BenchError> {
        SERVERS
            .into_iter()
            .find(|server| server.name() == text)
            .ok_or_else(|| BenchError::UnknownServer(text.to_owned()))
    }
}

/// What servers share: where they run, what they serve, with which certificate.
pub(crate) struct Site {
    /// A directory of this run, gone after it.
    pub directory: PathBuf,
    /// What is served.
    pub root: PathBuf,
    /// Certificate and key, PEM.
    pub cert: PathBuf,
    /// The key.
    pub key: PathBuf,
    /// This program.
    pub program: PathBuf,
}

impl Site {
    /// Makes the page and a self-signed certificate (ECDSA P-256) for [`HOST`].
    pub(crate) fn make(directory: &Path, program: &Path) -> Result<Self, BenchError> {
        let site = Self {
            directory: directory.to_owned(),
            root: directory.join("root"),
            cert: directory.join("cert.pem"),
            key: directory.join("key.pem"),
            program: program.to_owned(),
        };
        let made = rcgen::generate_simple_self_signed(vec![HOST.to_owned()])
            .expect("a certificate for a constant name");
        let written = fs::create_dir_all(&site.root)
            .and_then(|()| fs::write(site.root.join("index.html"), [b'x'; 1024]))
            .and_then(|()| fs::write(&site.cert, made.cert.pem()))
            .and_then(|()| fs::write(&site.key, made.signing_key.serialize_pem()));
        match written {
            Ok(()) => Ok(site),
            Err(source) => Err(BenchError::File { verb: "write", path: directory.into(), source }),
        }
    }
}

/// The name on the servers' certificate.
pub(crate) const HOST: &str = "lab.test";

/// A running server under test.
pub(crate) struct Running {
    pub kind: ServerKind,
    /// What it calls itself, with its version.
    pub version: String,
    processes: Vec<Process>,
    log: PathBuf,
}

impl Running {
    /// Starts a server for these workloads and waits until it answers.
    pub(crate) fn start(
        kind: ServerKind,
        workloads: &[Workload],
        network: &Network,
        site: &Site,
    ) -> Result<Self, BenchError> {
        let running = match kind {
            ServerKind::Firstflight => firstflight::start(workloads, network, site),
            ServerKind::Nginx => nginx::start(network, site),
        }?;
        let answering = workloads.iter().filter(|workload| kind.answers(**workload));
        let address = network.path(0)?.server;
        for workload in answering {
            running.wait_for(network, address, kind.port(*workload))?;
        }
        Ok(running)
    }

    /// How often the log says that the request of a flight was executed.
    pub(crate) fn executions(&self, flight: &str) -> Result<usize, BenchError> {
        let log = fs::read_to_string(&self.log).map_err(|source| BenchError::File {
            verb: "read",
            path: self.log.clone(),
            source,
        })?;
        let lines = log.lines().filter(|line| line.contains(flight));
        Ok(match self.kind {
            ServerKind::Firstflight => lines.filter(|line| firstflight::executed(line)).count(),
            ServerKind::Nginx => lines.count(),
        })
    }

    /// Asks it to end and waits until its log is whole.
    pub(crate) fn stop(&self) {
        for process in &self.processes {
            let _ = process.signal(nix::sys::signal::Signal::SIGTERM as i32);
        }
        for process in &self.processes {
            let _ = process.wait_timeout(PATIENCE);
        }
    }

    fn wait_for(&self, network: &Network, server: Ipv4Addr, port: u16) -> Result<(), BenchError> {
        let address = SocketAddr::from((server, port));
        let began = Instant::now();
        let failed = |reason: String| BenchError::Start { server: self.kind.name(), reason };
        loop {
            let connected = network
                .attacker()
                .namespace()
                .run(|| TcpStream::connect_timeout(&address, Duration::from_millis(200)))?;
            if connected.is_ok() {
                return Ok(());
            }
            for process in &self.processes {
                if let Ok(Some(status)) = process.try_wait() {
                    return Err(failed(format!("it ended with {status}: {}", self.last_words())));
                }
            }
            if began.elapsed() > PATIENCE {
                return Err(failed(format!("it does not listen on {address}")));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn last_words(&self) -> String {
        let said = self.log.with_extension("stderr");
        let said = fs::read_to_string(said).unwrap_or_default();
        said.lines().last().unwrap_or("it said nothing").to_owned()
    }
}

/// How long a server may take to start or to end.
const PATIENCE: Duration = Duration::from_secs(10);
