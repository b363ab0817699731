//! A server under test from its start to its end.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use firstflight_emulator::{Network, Process};

use super::process_tree::{processor_time, tree};
use super::program::Found;
use super::trial::Trial;
use super::{Abilities, Ability, Manner, Page, Post, ServerKind, Site};
use crate::{Certificate, LabError, Size, Workload};

/// What a run wants of each server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub workloads: &'a [Workload],
    pub certificates: &'a [Certificate],
    pub sizes: &'a [Size],
}

/// A running server under test: a process for each workload and each kind of certificate, as far
/// as it knows them.
pub(crate) struct Running {
    pub kind: ServerKind,
    /// What it calls itself, with its version and its TLS library.
    pub version: String,
    /// What it can do, as a trial has shown.
    pub abilities: Abilities,
    processes: Vec<RunningServer>,
}

/// A process at its post.
struct RunningServer {
    workload: Workload,
    certificate: Certificate,
    process: Process,
    log: PathBuf,
    said: PathBuf,
}

impl Running {
    /// Starts a server, waits until it listens, and finds by a trial what it can do.
    ///
    /// # Errors
    /// [`LabError::NotInstalled`], [`LabError::Start`] with its last words, or what the
    /// machine refused.
    pub(crate) fn start(
        kind: ServerKind,
        wanted: &Wanted<'_>,
        network: &Network,
        site: &Site,
    ) -> Result<Self, LabError> {
        let server = kind.server();
        let missing = LabError::NotInstalled { server: kind.name(), mend: server.mend() };
        let found = server.find().ok_or(missing)?;
        let known = kind.abilities();
        let mut running = Self {
            kind,
            version: found.version.clone(),
            abilities: known.clone(),
            processes: Vec::new(),
        };
        for &workload in wanted.workloads {
            if workload == Workload::PingPong && !known.can(Ability::PingPong) {
                continue;
            }
            for &certificate in wanted.certificates {
                running.man(&found, (workload, certificate), wanted, network, site)?;
            }
        }
        running.gather(network)?;
        running.try_out(wanted, network, site)?;
        Ok(running)
    }

    /// How often the log says that a request with this mark in its target was executed; `None` for
    /// servers whose log does not tell. Whole only after [`Running::stop`].
    ///
    /// # Errors
    /// If the log cannot be read.
    pub(crate) fn executions(&self, mark: &str) -> Result<Option<usize>, LabError> {
        if !self.abilities.can(Ability::Counts) {
            return Ok(None);
        }
        let mut count = 0;
        // Nothing is logged where nothing was asked.
        for RunningServer { log, .. } in
            self.processes.iter().filter(|process| process.log.exists())
        {
            let bytes = fs::read(log).map_err(|source| LabError::File {
                verb: "read",
                path: log.clone(),
                source,
            })?;
            let text = String::from_utf8_lossy(&bytes);
            let marked = text.lines().filter(|line| line.contains(mark));
            count += marked.filter(|line| self.kind.server().executed(line)).count();
        }
        Ok(Some(count))
    }

    /// The ids of all its processes, as seen from this one: those started here and all that they
    /// have started.
    pub(crate) fn pids(&self) -> Vec<u32> {
        tree(&self.processes.iter().map(|one| one.process.id()).collect::<Vec<u32>>())
    }

    /// The processor time that its processes have taken so far.
    pub(crate) fn processor_time(&self) -> Duration {
        processor_time(&self.pids())
    }

    /// Asks it to end and waits until its log is whole; kills what does not end.
    pub(crate) fn stop(&self) {
        tracing::debug!(server = %self.kind, processor_time = ?self.processor_time(), "stopping");
        for RunningServer { process, .. } in &self.processes {
            let _ = process.signal(nix::sys::signal::Signal::SIGTERM as i32);
        }
        for RunningServer { process, .. } in &self.processes {
            if !matches!(process.wait_timeout(START_TIMEOUT), Ok(Some(_))) {
                let _ = process.kill();
            }
        }
    }

    /// Starts the process of a post.
    fn man(
        &mut self,
        found: &Found,
        (workload, certificate): (Workload, Certificate),
        wanted: &Wanted<'_>,
        network: &Network,
        site: &Site,
    ) -> Result<(), LabError> {
        let directory = site.directory.join(format!("{}-{workload}-{certificate}", self.kind));
        fs::create_dir_all(&directory).map_err(|source| LabError::File {
            verb: "make",
            path: directory.clone(),
            source,
        })?;
        let post = Post {
            site,
            workload,
            identity: site.identity(certificate),
            port: self.kind.port(workload, certificate),
            addresses: network.paths().iter().map(|path| path.server).collect(),
            pages: wanted.sizes.iter().map(|size| Page::of_size(*size, site)).collect(),
            log: directory.join("requests"),
            directory,
            manner: Manner::USUAL,
        };
        let command = self.kind.server().command(found, &post)?;
        let process = network.server().spawn_child(command)?;
        let (said, log) = (post.said(), post.log);
        self.processes.push(RunningServer { workload, certificate, process, log, said });
        Ok(())
    }

    /// Waits until all listen. A server that ends over a certificate besides the first of the run
    /// cannot present it, and does without.
    fn gather(&mut self, network: &Network) -> Result<(), LabError> {
        let first = self.processes.first().map(|manned| manned.certificate);
        let mut gathered = Vec::new();
        for manned in std::mem::take(&mut self.processes) {
            match self.wait_for(&manned, network) {
                Ok(()) => gathered.push(manned),
                Err(LabError::Start { reason, .. }) if Some(manned.certificate) != first => {
                    tracing::info!(server = %self.kind, certificate = %manned.certificate, reason);
                    let lack = Ability::Presents(manned.certificate);
                    self.abilities.settle(lack, false, &self.kind.abilities());
                }
                Err(error) => return Err(error),
            }
        }
        self.processes = gathered;
        Ok(())
    }

    fn wait_for(&self, manned: &RunningServer, network: &Network) -> Result<(), LabError> {
        let address = self.address(manned, network)?;
        listens(self.kind, &manned.process, &manned.said, address, network)
    }

    /// Tries what can be tried by GETs; what ping-pong needs besides, our own server has.
    fn try_out(
        &mut self,
        wanted: &Wanted<'_>,
        network: &Network,
        site: &Site,
    ) -> Result<(), LabError> {
        let known = self.kind.abilities();
        let mut settled: Vec<(Ability, bool)> = Vec::new();
        let listeners = self.processes.iter().filter(|one| one.workload == Workload::Get);
        for (index, manned) in listeners.enumerate() {
            let trial = Trial::new(self.address(manned, network)?, &site.trust);
            let namespace = network.attacker().namespace();
            let presents = namespace.run(|| trial.presents())??;
            settled.push((Ability::Presents(manned.certificate), presents.is_ok()));
            match presents {
                // The rest does not depend on the certificate.
                Ok(()) if index == 0 => {
                    settled.extend(namespace.run(|| trial.all(wanted.sizes))??);
                }
                Err(why) if index == 0 => return Err(self.failed(manned, &why)),
                _ => {}
            }
        }
        for (ability, can) in settled {
            self.abilities.settle(ability, can, &known);
        }
        tracing::debug!(server = %self.kind, lacks = ?self.abilities.lacks(), "tried");
        Ok(())
    }

    fn address(&self, manned: &RunningServer, network: &Network) -> Result<SocketAddr, LabError> {
        let port = self.kind.port(manned.workload, manned.certificate);
        Ok(SocketAddr::from((network.path(0)?.server, port)))
    }

    fn failed(&self, manned: &RunningServer, what: &str) -> LabError {
        failed(self.kind, &manned.said, what)
    }
}

/// What became of a server that did not start, with its last words from the file `said`.
pub(super) fn failed(kind: ServerKind, said: &Path, what: &str) -> LabError {
    let said = fs::read_to_string(said).unwrap_or_default();
    let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = match lines.len() {
        0 => "it said nothing".to_owned(),
        count => lines[count.saturating_sub(LAST_WORDS)..].join(" / "),
    };
    LabError::Start { server: kind.name(), reason: format!("{what}: {last}") }
}

/// Waits until a process listens, as seen from the attacker's side.
pub(super) fn listens(
    kind: ServerKind,
    process: &Process,
    said: &Path,
    address: SocketAddr,
    network: &Network,
) -> Result<(), LabError> {
    let began = Instant::now();
    loop {
        let connected = network
            .attacker()
            .namespace()
            .run(|| TcpStream::connect_timeout(&address, Duration::from_millis(200)))?;
        if connected.is_ok() {
            return Ok(());
        }
        if let Ok(Some(status)) = process.try_wait() {
            return Err(failed(kind, said, &format!("it ended with {status}")));
        }
        if began.elapsed() > START_TIMEOUT {
            return Err(failed(kind, said, &format!("it does not listen on {address}")));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// How many lines of a server's last words help.
const LAST_WORDS: usize = 3;

/// How long a server may take to start or to end.
const START_TIMEOUT: Duration = Duration::from_secs(10);
