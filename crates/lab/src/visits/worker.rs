//! A worker: runs one browser at a time on its own networks, block after block.

use std::fs;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{ChildStdin, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use firstflight_browser::{
    Browser, BrowserError, BrowserProcess, Environment, Installed, Quic, Settings,
};
use firstflight_emulator::{LinkError, Namespace, Network, Process, monotonic_ns};
use firstflight_report::{Fault, Visit};

use super::packets::{ObservedVisit, PacketSorter, observe};
use super::pages;
use super::plan::{Block, Plan, VisitKind, VisitTarget};
use super::validation::{RequestedVisit, fault, timings, warnings};
use crate::servers::{HOST, Site, VisitedServer};
use crate::{HttpVersion, LabError};

/// The state that all workers share.
pub(crate) struct SharedState<'a> {
    pub plan: &'a Plan,
    pub browsers: &'a [Installed],
    pub network: &'a Network,
    pub servers: &'a [VisitedServer],
    pub site: &'a Site,
    pub packets: PacketSorter<'a>,
    /// When the visits started, in nanoseconds.
    pub origin: u64,
    /// Whether each browser has been started before. If so, a failed start fails a visit and not
    /// the run.
    pub started_once: Vec<AtomicBool>,
}

/// A worker and its number.
pub(crate) struct Worker<'a> {
    pub shared: &'a SharedState<'a>,
    pub number: usize,
}

/// A run of a browser through a block.
pub(crate) struct BlockRun<'a> {
    worker: &'a Worker<'a>,
    block: &'a Block,
    profile: PathBuf,
    /// How often the browser was started.
    starts: usize,
    browser: Option<Browser>,
    /// Whether the browser has visited each target.
    visited: Vec<bool>,
}

/// The result of loading a page.
pub(crate) struct PageLoad<T> {
    pub at_ns: u64,
    pub outcome: Result<T, BrowserError>,
    pub observed: Option<ObservedVisit>,
}

impl<'a> Worker<'a> {
    /// Makes all visits of a block. Calls `step` after each.
    ///
    /// # Errors
    /// If the browser cannot be started, or a server has ended. A visit that fails has a fault.
    pub(crate) fn visit(
        &self,
        index: usize,
        block: &Block,
        step: &dyn Fn(),
    ) -> Result<Vec<Visit>, LabError> {
        let mut run = BlockRun::new(self, &format!("b{index}"), block);
        let mut visits = Vec::new();
        let rounds = block.targets.iter().map(|target| target.returns).max().unwrap_or_default();
        for round in 0..=rounds {
            let is_due = |(_, target): &(usize, &VisitTarget)| round <= target.returns;
            for (target, _) in block.targets.iter().enumerate().filter(is_due) {
                // A browser that was restarted has a fresh profile.
                if round > 0 && !run.visited[target] {
                    visits.push(run.visit(target, VisitKind::First)?);
                }
                if round > 0 && !run.visited[target] {
                    step();
                    continue;
                }
                let visit_kind = match (round, block.early) {
                    (0, _) => VisitKind::First,
                    (_, false) => VisitKind::ReturnEarlyDataOff,
                    (_, true) => VisitKind::ReturnEarlyDataOn,
                };
                for _ in 0..MAX_ATTEMPTS {
                    let visit = run.visit(target, visit_kind)?;
                    let spoiled = matches!(visit.fault, Some(Fault::Spoiled(_)));
                    visits.push(visit);
                    // A first visit cannot be repeated, and a browser that was restarted would make one.
                    if !spoiled || visit_kind == VisitKind::First || !run.visited[target] {
                        break;
                    }
                }
                step();
            }
        }
        run.close_browser();
        for (turn, visit) in visits.iter_mut().enumerate() {
            (visit.block, visit.turn) = (index, turn);
        }
        Ok(visits)
    }
}

impl<'a> BlockRun<'a> {
    pub(crate) fn new(worker: &'a Worker<'a>, name: &str, block: &'a Block) -> Self {
        Self {
            worker,
            block,
            // Short, since the path of Chromium's socket below it is limited to 107 bytes.
            profile: worker.shared.site.directory.join(name),
            starts: 0,
            browser: None,
            visited: vec![false; block.targets.len()],
        }
    }

    /// Makes a visit, for the record.
    fn visit(&mut self, index: usize, visit_kind: VisitKind) -> Result<Visit, LabError> {
        let target = self.block.targets[index];
        let requested = RequestedVisit {
            visit_kind,
            http: target.http,
            page: target.page,
            rtt_ms: self.worker.shared.plan.networks[target.network].rtt_ms(),
        };
        let PageLoad { at_ns, outcome, observed } =
            self.load(index, |browser, url, limit| browser.navigate(url, limit))?;
        let shared = self.worker.shared;
        let mut visit = Visit {
            cell: if visit_kind == VisitKind::First {
                target.first_cell
            } else {
                target.return_cell
            },
            at_ms: at_ns.saturating_sub(shared.origin) as f64 / 1e6,
            ..Visit::default()
        };
        match outcome {
            Ok(navigation) => {
                let browser = timings(&navigation);
                if let Some(observed) = &observed {
                    visit.warnings = warnings(requested, &browser, &observed.packets);
                }
                visit.fault = fault(requested, navigation.status(), observed.as_ref());
                visit.browser = Some(browser);
            }
            Err(error) => visit.fault = Some(Fault::Failed(error.to_string())),
        }
        visit.wire = observed.map(|observed| observed.packets);
        Ok(visit)
    }

    /// Loads the page of a target by `navigate`, waits for the remaining packets, and closes its
    /// connections.
    ///
    /// # Errors
    /// If the browser cannot be started, or the server has ended.
    pub(crate) fn load<T>(
        &mut self,
        index: usize,
        navigate: impl FnOnce(&mut Browser, &str, Duration) -> Result<T, BrowserError>,
    ) -> Result<PageLoad<T>, LabError> {
        let target = self.block.targets[index];
        let shared = self.worker.shared;
        let path = self.path(&target);
        let network = &shared.plan.networks[target.network];
        let server = self.server(&target);
        server.ensure_running()?;
        let address = server.socket_address(shared.network.path(path)?.server);
        let unique = monotonic_ns();
        // A unique query makes each visit request a different page.
        let url = format!(
            "https://{}:{}/{}?{unique}",
            host(index),
            server.port,
            pages::name(target.page)
        );
        let limit = network.sample_timeout(pages::total_bytes(target.page), PAGE_TIMEOUT);
        let started_once = &shared.started_once[self.block.browser];
        let browser = match self.start() {
            Ok(browser) => browser,
            Err(LabError::Browser(error)) if started_once.load(Ordering::Relaxed) => {
                tracing::debug!(%error, "a browser did not start");
                return Ok(PageLoad { at_ns: monotonic_ns(), outcome: Err(error), observed: None });
            }
            Err(error) => return Err(error),
        };
        started_once.store(true, Ordering::Relaxed);
        // Drops remaining packets of the previous visit.
        let (_, missed_before) = shared.packets.take(path);
        let at_ns = monotonic_ns();
        let outcome = navigate(browser, &url, limit);
        match &outcome {
            Ok(_) => self.visited[index] = true,
            Err(error) => {
                tracing::debug!(%error, "a visit failed");
                if is_fatal(error) {
                    self.close_browser();
                    self.visited.fill(false);
                }
            }
        }
        // Waits for the client's Finished and the tickets that follow it.
        thread::sleep(network.rtt() + SETTLE_TIME);
        let secrets = fs::read_to_string(self.secrets()).unwrap_or_default();
        let (packets, missed) = shared.packets.take(path);
        let observed = observe(&packets, &secrets, address);
        let observed =
            observed.map(|observed| ObservedVisit { missed: missed - missed_before, ..observed });
        self.close_connections();
        Ok(PageLoad { at_ns, outcome, observed })
    }

    /// Makes the browser close its connections, so that the next visit opens a new one.
    fn close_connections(&mut self) {
        let Some(browser) = &mut self.browser else { return };
        if let Err(error) = browser.close_connections() {
            tracing::debug!(%error, "the browser is restarted");
            self.close_browser();
            self.visited.fill(false);
        }
    }

    /// The path of a target for this worker.
    fn path(&self, target: &VisitTarget) -> usize {
        self.worker.number * self.worker.shared.plan.networks.len() + target.network
    }

    fn server(&self, target: &VisitTarget) -> &'a VisitedServer {
        let mut running = self.worker.shared.servers.iter();
        let found =
            running.find(|server| server.kind == target.server && server.http == target.http);
        found.expect("every server of the plan runs")
    }

    fn secrets(&self) -> PathBuf {
        self.profile.with_extension("secrets")
    }

    /// Starts the browser with a fresh profile, unless it already runs.
    fn start(&mut self) -> Result<&mut Browser, LabError> {
        let browser = match self.browser.take() {
            Some(browser) => browser,
            None => self.open()?,
        };
        Ok(self.browser.insert(browser))
    }

    fn open(&mut self) -> Result<Browser, LabError> {
        self.starts += 1;
        let profile = self.profile.join(self.starts.to_string());
        fs::create_dir_all(&profile).map_err(|source| LabError::File {
            verb: "make",
            path: profile.clone(),
            source,
        })?;
        let shared = self.worker.shared;
        let namespace = InNamespace(shared.network.client());
        let installed = &shared.browsers[self.block.browser];
        Ok(Browser::open(installed, &namespace, &profile, &self.settings()?)?)
    }

    fn settings(&self) -> Result<Settings, LabError> {
        let shared = self.worker.shared;
        let mut hosts = Vec::new();
        let mut origins = Vec::new();
        for (index, target) in self.block.targets.iter().enumerate() {
            let address = shared.network.path(self.path(target))?.server;
            hosts.push((host(index), address.into()));
            if target.http == HttpVersion::Three {
                origins.push(format!("{}:{}", host(index), self.server(target).port));
            }
        }
        Ok(Settings {
            early_data: self.block.early,
            quic: if origins.is_empty() { Quic::Off } else { Quic::Known(origins) },
            trust: vec![shared.site.trust.clone()],
            hosts,
            key_log: Some(self.secrets()),
            ..Settings::default()
        })
    }

    /// Closes the browser, and removes its profile.
    pub(crate) fn close_browser(&mut self) {
        // Dropping the browser kills it if it does not end by itself.
        drop(self.browser.take());
        let _ = fs::remove_dir_all(&self.profile);
    }
}

impl Drop for BlockRun<'_> {
    fn drop(&mut self) {
        self.close_browser();
    }
}

/// Whether the browser must be restarted after an error.
fn is_fatal(error: &BrowserError) -> bool {
    !matches!(
        error,
        BrowserError::NavigationFailed { .. }
            | BrowserError::Refused { .. }
            | BrowserError::Script { .. }
    )
}

/// The host name of a target. Browsers store sessions by host name; the certificate covers all
/// names.
fn host(index: usize) -> String {
    format!("v{index}.{HOST}")
}

/// How long a visit may take in addition to the time that its network needs.
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// How often a return visit is attempted if it is spoiled.
const MAX_ATTEMPTS: usize = 3;

/// How long the remaining packets of a connection may take, in addition to a round trip.
const SETTLE_TIME: Duration = Duration::from_millis(100);

/// A namespace of a [`firstflight_emulator::Network`] in which browsers run. They end with the
/// network.
pub struct InNamespace<'a>(pub &'a Namespace);

impl Environment for InNamespace<'_> {
    fn start(&self, command: Command) -> io::Result<Box<dyn BrowserProcess>> {
        Ok(Box::new(SpawnedBrowser(self.0.spawn_child(command).map_err(system)?)))
    }

    fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        self.0.run(|| TcpStream::connect(address)).map_err(system)?
    }
}

fn system(error: LinkError) -> io::Error {
    io::Error::other(error)
}

struct SpawnedBrowser(Process);

impl BrowserProcess for SpawnedBrowser {
    fn stdin(&mut self) -> Option<ChildStdin> {
        self.0.stdin.take()
    }

    fn stdout(&mut self) -> Option<Box<dyn Read + Send>> {
        self.0.stdout.take().map(|pipe| Box::new(pipe) as Box<_>)
    }

    fn id(&self) -> u32 {
        self.0.id()
    }

    fn has_ended(&mut self) -> io::Result<bool> {
        self.0.has_ended()
    }

    fn kill(&mut self) -> io::Result<()> {
        self.0.kill()
    }
}
