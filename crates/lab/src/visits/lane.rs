//! A lane: one browser at a time on networks of its own, block after block.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use firstflight_browser::{Browser, BrowserError, Installed, Quic, Settings};
use firstflight_emulator::{Network, monotonic_ns};
use firstflight_report::{Fault, Visit};

use super::axes::Visiting;
use super::judge::{AskedVisit, fault, timings, warnings};
use super::packets::{Seen, Sorter, read};
use super::pages;
use super::place::InNamespace;
use super::plan::{Block, Plan, Stop};
use crate::servers::{HOST, Site, Visited};
use crate::{Http, LabError};

/// What all lanes share.
pub(crate) struct SharedState<'a> {
    pub plan: &'a Plan,
    pub browsers: &'a [Installed],
    pub network: &'a Network,
    pub servers: &'a [Visited],
    pub site: &'a Site,
    pub sorter: Sorter<'a>,
    /// When the visits started, in nanoseconds.
    pub origin: u64,
    /// Whether each of the browsers has been started once: then it can be, and a start that fails
    /// costs a visit and not the run.
    pub seen_alive: Vec<AtomicBool>,
}

/// A lane, by its number.
pub(crate) struct Lane<'a> {
    pub ground: &'a SharedState<'a>,
    pub number: usize,
}

/// A browser on its way through a block.
pub(crate) struct BlockRun<'a> {
    lane: &'a Lane<'a>,
    block: &'a Block,
    profile: PathBuf,
    /// How often it had to be started.
    starts: usize,
    browser: Option<Browser>,
    /// Which stops it has been at.
    known: Vec<bool>,
}

/// What came of going to a stop.
pub(crate) struct Arrival<T> {
    pub at_ns: u64,
    pub outcome: Result<T, BrowserError>,
    pub seen: Option<Seen>,
}

impl<'a> Lane<'a> {
    /// Makes all visits of a block; `step` is called after each.
    ///
    /// # Errors
    /// If the browser cannot be started, or a server has ended. A visit that fails is a visit
    /// with a fault.
    pub(crate) fn visit(
        &self,
        index: usize,
        block: &Block,
        step: &dyn Fn(),
    ) -> Result<Vec<Visit>, LabError> {
        let mut tour = BlockRun::new(self, &format!("b{index}"), block);
        let mut visits = Vec::new();
        let rounds = block.stops.iter().map(|stop| stop.returns).max().unwrap_or_default();
        for round in 0..=rounds {
            let visited = |(_, stop): &(usize, &Stop)| round <= stop.returns;
            for (place, _) in block.stops.iter().enumerate().filter(visited) {
                // A browser that was killed has forgotten where it was.
                if round > 0 && !tour.known[place] {
                    visits.push(tour.recorded(place, Visiting::First)?);
                }
                if round > 0 && !tour.known[place] {
                    step();
                    continue;
                }
                let visiting = match (round, block.early) {
                    (0, _) => Visiting::First,
                    (_, false) => Visiting::Off,
                    (_, true) => Visiting::On,
                };
                for _ in 0..TRIES {
                    let visit = tour.recorded(place, visiting)?;
                    let again = matches!(visit.fault, Some(Fault::Spoiled(_)));
                    visits.push(visit);
                    // A first visit cannot be made twice.
                    if !again || visiting == Visiting::First {
                        break;
                    }
                }
                step();
            }
        }
        tour.end();
        for (turn, visit) in visits.iter_mut().enumerate() {
            (visit.block, visit.turn) = (index, turn);
        }
        Ok(visits)
    }
}

impl<'a> BlockRun<'a> {
    pub(crate) fn new(lane: &'a Lane<'a>, name: &str, block: &'a Block) -> Self {
        Self {
            lane,
            block,
            // Short: Chromium's socket lies deep below it, and may have no more than 107 bytes.
            profile: lane.ground.site.directory.join(name),
            starts: 0,
            browser: None,
            known: vec![false; block.stops.len()],
        }
    }

    /// One visit as it goes into the record.
    fn recorded(&mut self, place: usize, visiting: Visiting) -> Result<Visit, LabError> {
        let stop = self.block.stops[place];
        let asked = AskedVisit {
            visiting,
            http: stop.http,
            page: stop.page,
            rtt_ms: self.lane.ground.plan.networks[stop.network].rtt_ms(),
        };
        let Arrival { at_ns, outcome, seen } =
            self.arrive(place, |browser, url, limit| browser.navigate(url, limit))?;
        let ground = self.lane.ground;
        let mut visit = Visit {
            cell: if visiting == Visiting::First { stop.first } else { stop.again },
            at_ms: at_ns.saturating_sub(ground.origin) as f64 / 1e6,
            ..Visit::default()
        };
        match outcome {
            Ok(navigation) => {
                let browser = timings(&navigation);
                if let Some(seen) = &seen {
                    visit.warnings = warnings(asked, &browser, &seen.packets);
                }
                visit.fault = fault(asked, navigation.status(), seen.as_ref());
                visit.browser = Some(browser);
            }
            Err(error) => visit.fault = Some(Fault::Failed(error.to_string())),
        }
        visit.wire = seen.map(|seen| seen.packets);
        Ok(visit)
    }

    /// Goes to a stop by `go`, waits until what belongs to it has come, and ends its connections.
    ///
    /// # Errors
    /// If the browser cannot be started, or the server has ended.
    pub(crate) fn arrive<T>(
        &mut self,
        place: usize,
        go: impl FnOnce(&mut Browser, &str, Duration) -> Result<T, BrowserError>,
    ) -> Result<Arrival<T>, LabError> {
        let stop = self.block.stops[place];
        let ground = self.lane.ground;
        let path = self.path(&stop);
        let network = &ground.plan.networks[stop.network];
        let server = self.server(&stop);
        server.look()?;
        let address = server.at(ground.network.path(path)?.server);
        let turn = monotonic_ns();
        // A query of its own makes each visit the visit of another page.
        let url =
            format!("https://{}:{}/{}?{turn}", host(place), server.port, pages::name(stop.page));
        let limit = network.limit(pages::weight(stop.page), PAGE_TIMEOUT);
        let alive = &ground.seen_alive[self.block.browser];
        let browser = match self.start() {
            Ok(browser) => browser,
            Err(LabError::Browser(error)) if alive.load(Ordering::Relaxed) => {
                tracing::debug!(%error, "a browser did not start");
                return Ok(Arrival { at_ns: monotonic_ns(), outcome: Err(error), seen: None });
            }
            Err(error) => return Err(error),
        };
        alive.store(true, Ordering::Relaxed);
        // What is left of the visit before.
        let (_, missed_before) = ground.sorter.take(path);
        let at_ns = monotonic_ns();
        let outcome = go(browser, &url, limit);
        match &outcome {
            Ok(_) => self.known[place] = true,
            Err(error) => {
                tracing::debug!(%error, "a visit failed");
                if is_fatal(error) {
                    self.end();
                    self.known.fill(false);
                }
            }
        }
        // The client's Finished, then the tickets that follow it.
        thread::sleep(network.rtt() + SETTLE);
        let secrets = fs::read_to_string(self.secrets()).unwrap_or_default();
        let (packets, missed) = ground.sorter.take(path);
        let seen = read(&packets, &secrets, address);
        let seen = seen.map(|seen| Seen { missed: missed - missed_before, ..seen });
        self.forget();
        Ok(Arrival { at_ns, outcome, seen })
    }

    /// Has the browser end its connections, so that the next visit is a return, and no longer visit
    /// of the same connection.
    fn forget(&mut self) {
        let Some(browser) = &mut self.browser else { return };
        if let Err(error) = browser.forget_connections() {
            tracing::debug!(%error, "starting anew");
            self.end();
            self.known.fill(false);
        }
    }

    /// The path of a stop in this lane.
    fn path(&self, stop: &Stop) -> usize {
        self.lane.number * self.lane.ground.plan.networks.len() + stop.network
    }

    fn server(&self, stop: &Stop) -> &'a Visited {
        let mut running = self.lane.ground.servers.iter();
        let found = running.find(|one| one.kind == stop.server && one.http == stop.http);
        found.expect("every server of the plan runs")
    }

    fn secrets(&self) -> PathBuf {
        self.profile.with_extension("secrets")
    }

    /// Starts the browser if it does not run, with a profile that nobody has used.
    fn start(&mut self) -> Result<&mut Browser, LabError> {
        let browser = match self.browser.take() {
            Some(browser) => browser,
            // A machine that is busy may be too slow once.
            None => self.open().or_else(|error| {
                tracing::debug!(%error, "starting again");
                self.open()
            })?,
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
        let ground = self.lane.ground;
        let place = InNamespace(ground.network.client());
        let installed = &ground.browsers[self.block.browser];
        Ok(Browser::open(installed, &place, &profile, &self.settings()?)?)
    }

    fn settings(&self) -> Result<Settings, LabError> {
        let ground = self.lane.ground;
        let mut hosts = Vec::new();
        let mut origins = Vec::new();
        for (place, stop) in self.block.stops.iter().enumerate() {
            let address = ground.network.path(self.path(stop))?.server;
            hosts.push((host(place), address.into()));
            if stop.http == Http::Three {
                origins.push(format!("{}:{}", host(place), self.server(stop).port));
            }
        }
        Ok(Settings {
            early_data: self.block.early,
            quic: if origins.is_empty() { Quic::Off } else { Quic::Known(origins) },
            trust: vec![ground.site.trust.clone()],
            hosts,
            secrets: Some(self.secrets()),
            ..Settings::default()
        })
    }

    /// Ends the browser, and removes what it left.
    pub(crate) fn end(&mut self) {
        // It has shown all that it was to show, and is killed if it does not end by itself.
        drop(self.browser.take());
        let _ = fs::remove_dir_all(&self.profile);
    }
}

impl Drop for BlockRun<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// Whether the browser is gone with it.
fn is_fatal(error: &BrowserError) -> bool {
    !matches!(
        error,
        BrowserError::NotOpened { .. } | BrowserError::Refused { .. } | BrowserError::Script { .. }
    )
}

/// The host name of a stop: sessions are kept by name, and the certificate is for all of them.
fn host(place: usize) -> String {
    format!("v{place}.{HOST}")
}

/// How long a visit may take beside what its network needs.
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// How often a return is made that the machine has spoiled.
const TRIES: usize = 3;

/// What a machine takes for what is yet to come of a connection.
const SETTLE: Duration = Duration::from_millis(100);
