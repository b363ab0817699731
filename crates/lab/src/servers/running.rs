//! Servers under test while they run: those for samples, and those that browsers visit.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use firstflight_emulator::{Network, Process};

use super::probe::Probe;
use super::program::{InstalledProgram, process_tree, processor_time};
use super::{Capabilities, Capability, HttpOptions, Page, ServerKind, ServerSetup, Site};
use crate::{CertificateKind, HttpVersion, LabError, ResponseSize, Workload};

/// What a run requires of each server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requirements<'a> {
    pub workloads: &'a [Workload],
    pub certificates: &'a [CertificateKind],
    pub sizes: &'a [ResponseSize],
}

/// A running server under test, with a process for each workload and certificate that it supports.
pub(crate) struct RunningServer {
    pub kind: ServerKind,
    /// Its version and its TLS library.
    pub version: String,
    /// Its capabilities, as probed.
    pub capabilities: Capabilities,
    processes: Vec<ServerProcess>,
}

/// A process of a server.
struct ServerProcess {
    workload: Workload,
    certificate: CertificateKind,
    process: Process,
    log: PathBuf,
    output: PathBuf,
}

impl RunningServer {
    /// Starts a server, waits until it listens, and probes its capabilities.
    ///
    /// # Errors
    /// [`LabError::NotInstalled`], [`LabError::Start`] with the last lines of its output, or an
    /// error of the system.
    pub(crate) fn start(
        kind: ServerKind,
        required: &Requirements<'_>,
        network: &Network,
        site: &Site,
    ) -> Result<Self, LabError> {
        let server = kind.server();
        let missing =
            LabError::NotInstalled { server: kind.name(), install_hint: server.install_hint() };
        let found = server.find().ok_or(missing)?;
        let known = kind.capabilities();
        let mut running = Self {
            kind,
            version: found.version.clone(),
            capabilities: known.clone(),
            processes: Vec::new(),
        };
        for &workload in required.workloads {
            if workload == Workload::PingPong && !known.supports(Capability::PingPong) {
                continue;
            }
            for &certificate in required.certificates {
                running.start_process(&found, (workload, certificate), required, network, site)?;
            }
        }
        running.wait_until_listening(network)?;
        running.probe(required, network, site)?;
        Ok(running)
    }

    /// How often a request with this mark in its target was executed, by the server's log. Returns
    /// `None` for servers without such a log. The log is complete only after
    /// [`RunningServer::stop`].
    ///
    /// # Errors
    /// If the log cannot be read.
    pub(crate) fn executions(&self, mark: &str) -> Result<Option<usize>, LabError> {
        if !self.capabilities.supports(Capability::RequestLog) {
            return Ok(None);
        }
        let mut count = 0;
        // A process without requests may not have created its log.
        for ServerProcess { log, .. } in
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

    /// The ids of all its processes, including those that they have started.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let pids: Vec<u32> = self.processes.iter().map(|listener| listener.process.id()).collect();
        process_tree(&pids)
    }

    /// The processor time of its processes so far.
    pub(crate) fn processor_time(&self) -> Duration {
        processor_time(&self.pids())
    }

    /// Checks that all its processes still run.
    ///
    /// # Errors
    /// [`LabError::Ended`] with the last lines of its output.
    pub(crate) fn ensure_running(&self) -> Result<(), LabError> {
        self.processes
            .iter()
            .try_for_each(|listener| ensure_running(self.kind, &listener.process, &listener.output))
    }

    /// Terminates its processes and waits for them, so that the log is complete. Kills those that
    /// do not end.
    pub(crate) fn stop(&self) {
        tracing::debug!(server = %self.kind, processor_time = ?self.processor_time(), "stopping");
        for ServerProcess { process, .. } in &self.processes {
            let _ = process.signal(nix::sys::signal::Signal::SIGTERM as i32);
        }
        for ServerProcess { process, .. } in &self.processes {
            if !matches!(process.wait_timeout(START_TIMEOUT), Ok(Some(_))) {
                let _ = process.kill();
            }
        }
    }

    /// Starts the process for a workload and a certificate.
    fn start_process(
        &mut self,
        found: &InstalledProgram,
        (workload, certificate): (Workload, CertificateKind),
        required: &Requirements<'_>,
        network: &Network,
        site: &Site,
    ) -> Result<(), LabError> {
        let directory = site.directory.join(format!("{}-{workload}-{certificate}", self.kind));
        fs::create_dir_all(&directory).map_err(|source| LabError::File {
            verb: "make",
            path: directory.clone(),
            source,
        })?;
        let setup = ServerSetup {
            site,
            workload,
            identity: site.identity(certificate),
            port: self.kind.port(workload, certificate),
            addresses: network.paths().iter().map(|path| path.server).collect(),
            pages: required.sizes.iter().map(|size| Page::of_size(*size, site)).collect(),
            log: directory.join("requests"),
            directory,
            options: HttpOptions::DEFAULT,
        };
        let command = self.kind.server().command(found, &setup)?;
        let process = network.server().spawn_child(command)?;
        let (output, log) = (setup.output(), setup.log);
        self.processes.push(ServerProcess { workload, certificate, process, log, output });
        Ok(())
    }

    /// Waits until all processes listen. If a process ends whose certificate is not the first, the
    /// server does not support that certificate, and the process is left out.
    fn wait_until_listening(&mut self, network: &Network) -> Result<(), LabError> {
        let first_certificate = self.processes.first().map(|process| process.certificate);
        let mut listening = Vec::new();
        for process in std::mem::take(&mut self.processes) {
            match self.wait_for(&process, network) {
                Ok(()) => listening.push(process),
                Err(LabError::Start { reason, .. })
                    if Some(process.certificate) != first_certificate =>
                {
                    tracing::info!(server = %self.kind, certificate = %process.certificate, reason);
                    let missing = Capability::Certificate(process.certificate);
                    self.capabilities.set_probed(missing, false, &self.kind.capabilities());
                }
                Err(error) => return Err(error),
            }
        }
        self.processes = listening;
        Ok(())
    }

    fn wait_for(&self, process: &ServerProcess, network: &Network) -> Result<(), LabError> {
        let address = self.address(process, network)?;
        wait_until_process_listens(self.kind, &process.process, &process.output, address, network)
    }

    /// Probes the capabilities by GETs. Ping-pong needs no probe, since only this project's server
    /// supports it.
    fn probe(
        &mut self,
        required: &Requirements<'_>,
        network: &Network,
        site: &Site,
    ) -> Result<(), LabError> {
        let known = self.kind.capabilities();
        let mut results: Vec<(Capability, bool)> = Vec::new();
        let listeners = self.processes.iter().filter(|process| process.workload == Workload::Get);
        for (index, process) in listeners.enumerate() {
            let probe = Probe::new(self.address(process, network)?, &site.trust);
            let namespace = network.attacker().namespace();
            let responds = namespace.run(|| probe.responds())??;
            results.push((Capability::Certificate(process.certificate), responds.is_ok()));
            match responds {
                // The rest does not depend on the certificate.
                Ok(()) if index == 0 => {
                    results.extend(namespace.run(|| probe.all(required.sizes))??);
                }
                Err(why) if index == 0 => return Err(self.failed(process, &why)),
                _ => {}
            }
        }
        for (capability, supports) in results {
            self.capabilities.set_probed(capability, supports, &known);
        }
        tracing::debug!(server = %self.kind, missing = ?self.capabilities.missing(), "probed");
        Ok(())
    }

    fn address(&self, process: &ServerProcess, network: &Network) -> Result<SocketAddr, LabError> {
        let port = self.kind.port(process.workload, process.certificate);
        Ok(SocketAddr::from((network.path(0)?.server, port)))
    }

    fn failed(&self, process: &ServerProcess, what: &str) -> LabError {
        start_error(self.kind, &process.output, what)
    }
}

/// The error of a server that did not start, with the last lines of its output.
fn start_error(kind: ServerKind, output: &Path, what: &str) -> LabError {
    LabError::Start { server: kind.name(), reason: format!("{what}: {}", last_lines(output)) }
}

fn ensure_running(kind: ServerKind, process: &Process, output: &Path) -> Result<(), LabError> {
    match process.try_wait() {
        Ok(Some(status)) => Err(LabError::Ended {
            server: kind.name(),
            reason: format!("{status}: {}", last_lines(output)),
        }),
        _ => Ok(()),
    }
}

/// The last lines of a server's output.
fn last_lines(output: &Path) -> String {
    let output = fs::read_to_string(output).unwrap_or_default();
    let lines: Vec<&str> = output.lines().filter(|line| !line.trim().is_empty()).collect();
    match lines.len() {
        0 => "it printed nothing".to_owned(),
        count => lines[count.saturating_sub(OUTPUT_LINES)..].join(" / "),
    }
}

/// Waits until a process accepts connections from the attacker's namespace.
fn wait_until_process_listens(
    kind: ServerKind,
    process: &Process,
    output: &Path,
    address: SocketAddr,
    network: &Network,
) -> Result<(), LabError> {
    let started = Instant::now();
    loop {
        let connected = network
            .attacker()
            .namespace()
            .run(|| TcpStream::connect_timeout(&address, Duration::from_millis(200)))?;
        if connected.is_ok() {
            return Ok(());
        }
        if let Ok(Some(status)) = process.try_wait() {
            return Err(start_error(kind, output, &format!("it ended with {status}")));
        }
        if started.elapsed() > START_TIMEOUT {
            return Err(start_error(kind, output, &format!("it does not listen on {address}")));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// How many lines of a server's output are shown.
const OUTPUT_LINES: usize = 3;

/// How long a server may take to start, and to stop.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// A server that browsers visit over one HTTP version.
pub(crate) struct VisitedServer {
    pub kind: ServerKind,
    pub http: HttpVersion,
    /// Its version and its TLS library.
    pub version: String,
    /// Its port in the server's namespace.
    pub port: u16,
    process: Process,
    output: PathBuf,
}

/// A file that browsers request.
pub(crate) struct VisitedFile {
    /// The file's name below the site's root.
    pub name: String,
    pub content_type: &'static str,
    pub bytes: usize,
}

impl VisitedServer {
    /// Starts a server and waits until it listens.
    ///
    /// # Errors
    /// [`LabError::NotInstalled`], [`LabError::Start`] with the last lines of its output, or an
    /// error of the system.
    pub(crate) fn start(
        kind: ServerKind,
        options: HttpOptions,
        http: HttpVersion,
        site: &Site,
        pages: &[VisitedFile],
        network: &Network,
    ) -> Result<Self, LabError> {
        let server = kind.server();
        let missing =
            LabError::NotInstalled { server: kind.name(), install_hint: server.install_hint() };
        let found = server.find().ok_or(missing)?;
        let directory = site.directory.join(format!("{kind}-visited-{}", http.name()));
        fs::create_dir_all(&directory).map_err(|source| LabError::File {
            verb: "make",
            path: directory.clone(),
            source,
        })?;
        let port = kind.visited_port(http);
        let setup = ServerSetup {
            site,
            workload: Workload::Get,
            identity: site.identity(CertificateKind::EcdsaP256),
            port,
            addresses: network.paths().iter().map(|path| path.server).collect(),
            pages: pages.iter().map(|page| page.page(site)).collect(),
            log: directory.join("requests"),
            directory,
            options: HttpOptions { http: Some(http), ..options },
        };
        let command = server.command(&found, &setup)?;
        let process = network.server().spawn_child(command)?;
        let output = setup.output();
        let address = SocketAddr::from((network.path(0)?.server, port));
        wait_until_process_listens(kind, &process, &output, address, network)?;
        Ok(Self { kind, http, version: found.version, port, process, output })
    }

    /// Its socket address on a path.
    pub(crate) fn socket_address(&self, address: Ipv4Addr) -> SocketAddr {
        SocketAddr::from((address, self.port))
    }

    /// Checks that it still runs.
    ///
    /// # Errors
    /// [`LabError::Ended`] with the last lines of its output.
    pub(crate) fn ensure_running(&self) -> Result<(), LabError> {
        ensure_running(self.kind, &self.process, &self.output)
    }
}

impl VisitedFile {
    fn page(&self, site: &Site) -> Page {
        Page {
            path: format!("/{}", self.name),
            file: site.root.join(&self.name),
            content_type: self.content_type,
            bytes: self.bytes,
        }
    }
}
