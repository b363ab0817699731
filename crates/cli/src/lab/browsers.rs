//! `firstflight lab --browser`: real browsers in the emulated network.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use firstflight_browser::{BrowserKind, Installed};
use firstflight_emulator::Profile;
use firstflight_lab::{HttpVersion, ServerKind, VisitPage, VisitSet, VisitsConfig};

use super::select::{profiles, servers};
use super::{LabArgs, NAME, Scratch};
use crate::axes::{command_line, seed_from_clock};
use crate::progress::Show;
use crate::results;

/// Flags for visits of browsers.
#[derive(Args)]
#[command(next_help_heading = "Browsers")]
pub(crate) struct BrowserArgs {
    /// Measure real browsers instead: firefox, chromium, or a path; with --enter, the browser to
    /// start inside.
    ///
    /// They run headless in the client's namespace, with a fresh profile for each block of visits,
    /// and every visit is checked by its packets. Without further flags: the walk-through's table
    /// (112 ms, HTTP/1.1, small page and image), a page of 20 subresources, HTTP/3, and the access
    /// networks from fibre to satellite. Any of --profile, --rtt, --http and --page defines a
    /// matrix instead.
    #[arg(long, value_name = "NAME|PATH,...", value_delimiter = ',', conflicts_with_all = [
        "experiment", "samples", "workload", "transport", "client", "certificate", "size", "tls",
        "kind", "tfo", "token", "group", "flights", "replays", "captures", "no_costs", "backend",
    ])]
    browser: Option<Vec<String>>,

    /// Pages: small (1 KiB), resources (with 20 subresources), image (1 MiB) [default: small,image]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', requires = "browser")]
    page: Option<Vec<VisitPage>>,

    /// Returns a cell, with 0-RTT off and on each; for 12 and more the browser is started six
    /// times or more for either. Beside the walk-through's table at most two a start, on access
    /// networks one [default: 30]
    #[arg(long, value_name = "N", requires = "browser",
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    visits: Option<u32>,

    /// Browsers that run at the same time, each on its own networks.
    #[arg(long, value_name = "N", requires = "browser", default_value_t = LANES,
        value_parser = clap::value_parser!(u32).range(1..=16))]
    lanes: u32,

    /// Do not record filmstrips.
    #[arg(long, requires = "browser")]
    no_films: bool,
}

/// Browsers at a time, by default.
const LANES: u32 = 4;

impl BrowserArgs {
    /// The browsers by name or path.
    pub(super) fn named(&self) -> &[String] {
        self.browser.as_deref().unwrap_or_default()
    }

    /// Whether visits are described, beside who makes them.
    pub(super) fn measures(&self) -> bool {
        self.page.is_some() || self.visits.is_some() || self.no_films || self.lanes != LANES
    }

    /// Whether browsers shall visit.
    pub(super) fn chosen(&self) -> bool {
        self.browser.is_some()
    }
}

/// Runs the visits.
///
/// # Errors
/// A sentence with the fix where a browser or server is missing, or the network cannot be built.
pub(super) fn run(args: &LabArgs) -> anyhow::Result<ExitCode> {
    if args.judgement.needs_old() {
        anyhow::bail!("`old` belongs to `firstflight report --compare`; leave it out here");
    }
    let named = args.browsers.named();
    let browsers = named.iter().map(|name| installed(name)).collect::<Result<Vec<_>, _>>()?;
    for (index, browser) in browsers.iter().enumerate() {
        if browsers[..index].iter().any(|other| other.program == browser.program) {
            let program = browser.program.display();
            anyhow::bail!("--browser names {program} twice; once is enough");
        }
    }
    let sets = sets(args)?;
    results::prepare(&args.output)?;
    // Before any thread is started: the kernel demands it.
    firstflight_emulator::enter_user_namespace()?;
    let scratch = Scratch::make(|| false)?;
    let seed = args.seed.unwrap_or_else(seed_from_clock);
    let config = VisitsConfig {
        browsers,
        sets,
        workers: args.browsers.lanes as usize,
        seed,
        // Browsers want the processors themselves.
        keep_awake: args.keep_awake == "on",
        directory: scratch.path(),
        program: std::env::current_exe().context("cannot find this program itself")?,
        output: (!args.browsers.no_films).then(|| args.output.clone()),
        command: command_line(seed),
    };
    let show = Show::new();
    let record = firstflight_lab::run_visits(&config, &|progress| show.progress(progress));
    show.end();
    results::finish(&record?, NAME, &args.output, args.json, &args.judgement)
}

/// A browser by its make, or by the path of its program.
pub(super) fn installed(name: &str) -> anyhow::Result<Installed> {
    if name.contains('/') {
        return Ok(Installed::at(Path::new(name))?);
    }
    let make: BrowserKind = name.parse().map_err(|why: String| anyhow::anyhow!(why))?;
    Ok(Installed::find(make)?)
}

/// What is visited: every combination of the flags, or the defaults.
fn sets(args: &LabArgs) -> anyhow::Result<Vec<VisitSet>> {
    let servers = servers(&args.server, &args.server_cmd)?;
    let flags = &args.browsers;
    let visits = flags.visits.map(|visits| visits as usize);
    let chosen_networks = args.profile.is_some() || args.rtt.is_some();
    if chosen_networks || args.axes.http.is_some() || flags.page.is_some() {
        let (rounds, returns) = VisitSet::rounds(visits.unwrap_or(VISITS));
        return Ok(vec![VisitSet {
            profiles: match chosen_networks {
                true => profiles(args, &[])?,
                false => vec![Profile::parse(WALK_THROUGH)?],
            },
            servers,
            http: args.axes.http.clone().unwrap_or_else(|| vec![HttpVersion::One]),
            pages: flags.page.clone().unwrap_or_else(|| vec![VisitPage::Small, VisitPage::Image]),
            rounds,
            returns,
        }]);
    }
    defaults(servers, visits)
}

/// The walk-through's table, and beside it what it could not measure by hand.
fn defaults(servers: Vec<ServerKind>, visits: Option<usize>) -> anyhow::Result<Vec<VisitSet>> {
    let walk_through = || Profile::parse(WALK_THROUGH).map(|one| vec![one]);
    let over = |http: HttpVersion| -> Vec<ServerKind> {
        let can = |server: &&ServerKind| server.visited_over(http).is_ok();
        let ours = servers.iter().find(|server| **server == ServerKind::Firstflight);
        ours.or_else(|| servers.iter().find(can)).or(servers.first()).copied().into_iter().collect()
    };
    let (rounds, returns) = VisitSet::rounds(visits.unwrap_or(VISITS));
    let set = |profiles, http, page, most| VisitSet {
        profiles,
        servers: over(http),
        http: vec![http],
        pages: vec![page],
        rounds,
        returns: returns.min(most),
    };
    let access = ACCESS.iter().map(|name| Profile::parse(name)).collect::<Result<Vec<_>, _>>()?;
    Ok(vec![
        VisitSet {
            profiles: walk_through()?,
            servers: servers.clone(),
            http: vec![HttpVersion::One],
            pages: vec![VisitPage::Small, VisitPage::Image],
            rounds,
            returns,
        },
        set(walk_through()?, HttpVersion::Two, VisitPage::Resources, 2),
        set(walk_through()?, HttpVersion::Three, VisitPage::Small, 2),
        set(access, HttpVersion::Two, VisitPage::Small, 1),
    ])
}

const WALK_THROUGH: &str = "walkthrough";

/// As the walk-through ranks them by latency.
const ACCESS: [&str; 8] = ["fibre", "fibre+wifi", "adsl", "adsl+wifi", "4g", "3g", "2g", "geo"];

/// As many as its table is to rest on.
const VISITS: usize = 30;
