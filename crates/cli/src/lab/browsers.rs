//! `firstflight lab --browser`: real browsers in the emulated network.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use firstflight_browser::{BrowserKind, Installed};
use firstflight_emulator::Profile;
use firstflight_lab::{HttpVersion, ServerKind, VisitPage, VisitSet, VisitsConfig};

use super::select::{profiles, servers};
use super::{LabArgs, NAME, RunDirectory};
use crate::axes::{command_line, seed_from_clock};
use crate::progress::ProgressDisplay;
use crate::results;

/// Flags for visits by browsers.
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
        "experiment", "samples", "workload", "transport", "client", "cipher", "certificate",
        "certificate_compression", "size", "tls", "kind", "tfo", "token", "group", "flights", "replays",
        "captures", "no_costs", "backend",
    ])]
    browser: Option<Vec<String>>,

    /// Pages: small (1 KiB), resources (with 20 subresources), image (1 MiB) [default: small,image]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', requires = "browser")]
    page: Option<Vec<VisitPage>>,

    /// Return visits for each cell, with 0-RTT off and with 0-RTT on. With 12 or more, the browser
    /// is started at least six times for each; outside the walk-through's table each start makes at
    /// most two visits, on access networks one [default: 30]
    #[arg(long, value_name = "N", requires = "browser",
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    visits: Option<u32>,

    /// Browsers that run at the same time, each on its own networks.
    #[arg(long, value_name = "N", requires = "browser", default_value_t = DEFAULT_LANES,
        value_parser = clap::value_parser!(u32).range(1..=16))]
    lanes: u32,

    /// Do not record filmstrips.
    #[arg(long, requires = "browser")]
    no_films: bool,
}

/// Browsers at a time, by default.
const DEFAULT_LANES: u32 = 4;

impl BrowserArgs {
    /// The browsers by name or path.
    pub(super) fn names(&self) -> &[String] {
        self.browser.as_deref().unwrap_or_default()
    }

    /// Whether a flag other than --browser is set.
    pub(super) fn has_visit_flags(&self) -> bool {
        self.page.is_some() || self.visits.is_some() || self.no_films || self.lanes != DEFAULT_LANES
    }

    /// Whether --browser is given.
    pub(super) fn is_set(&self) -> bool {
        self.browser.is_some()
    }
}

/// Runs the visits.
///
/// # Errors
/// If a browser or server is missing, or the network cannot be set up.
pub(super) fn run(args: &LabArgs) -> anyhow::Result<ExitCode> {
    args.conditions.refuse_old()?;
    let names = args.browsers.names();
    let browsers = names.iter().map(|name| installed(name)).collect::<Result<Vec<_>, _>>()?;
    for (index, browser) in browsers.iter().enumerate() {
        if browsers[..index].iter().any(|other| other.program == browser.program) {
            let program = browser.program.display();
            anyhow::bail!("--browser names {program} twice; name it once");
        }
    }
    let sets = sets(args)?;
    results::prepare(&args.output)?;
    // The kernel requires a process with one thread.
    firstflight_emulator::enter_user_namespace()?;
    let run_directory = RunDirectory::create(|| false)?;
    let seed = args.seed.unwrap_or_else(seed_from_clock);
    let config = VisitsConfig {
        browsers,
        sets,
        workers: args.browsers.lanes as usize,
        seed,
        // Not by default: browsers need the processors themselves.
        keep_awake: args.keep_awake == "on",
        directory: run_directory.path(),
        program: std::env::current_exe().context("cannot find the path of this program")?,
        output: (!args.browsers.no_films).then(|| args.output.clone()),
        command: command_line(seed),
    };
    let display = ProgressDisplay::new();
    let record = firstflight_lab::run_visits(&config, &|progress| display.lab(progress));
    display.finish();
    results::finish(&record?, NAME, &args.output, args.json, &args.conditions)
}

/// Finds a browser by its name, or by the path of its program.
pub(super) fn installed(name: &str) -> anyhow::Result<Installed> {
    if name.contains('/') {
        return Ok(Installed::at(Path::new(name))?);
    }
    let kind: BrowserKind = name.parse().map_err(|error: String| anyhow::anyhow!(error))?;
    Ok(Installed::find(kind)?)
}

/// The sets of visits: every combination of the flags, or the defaults.
fn sets(args: &LabArgs) -> anyhow::Result<Vec<VisitSet>> {
    let servers = servers(&args.server, &args.server_cmd)?;
    let flags = &args.browsers;
    let visits = flags.visits.map(|visits| visits as usize);
    let has_networks = args.profile.is_some() || args.rtt.is_some();
    if has_networks || args.axes.http.is_some() || flags.page.is_some() {
        let (rounds, returns) = VisitSet::rounds(visits.unwrap_or(DEFAULT_VISITS));
        return Ok(vec![VisitSet {
            profiles: match has_networks {
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

/// The walk-through's table, and further combinations of HTTP versions and networks.
fn defaults(servers: Vec<ServerKind>, visits: Option<usize>) -> anyhow::Result<Vec<VisitSet>> {
    let walk_through = || Profile::parse(WALK_THROUGH).map(|profile| vec![profile]);
    let servers_for = |http: HttpVersion| -> Vec<ServerKind> {
        let supports = |server: &&ServerKind| server.visited_over(http).is_ok();
        let ours = servers.iter().find(|server| **server == ServerKind::Firstflight);
        ours.or_else(|| servers.iter().find(supports))
            .or(servers.first())
            .copied()
            .into_iter()
            .collect()
    };
    let (rounds, returns) = VisitSet::rounds(visits.unwrap_or(DEFAULT_VISITS));
    let set = |profiles, http, page, max_returns| VisitSet {
        profiles,
        servers: servers_for(http),
        http: vec![http],
        pages: vec![page],
        rounds,
        returns: returns.min(max_returns),
    };
    let access =
        ACCESS_NETWORKS.iter().map(|name| Profile::parse(name)).collect::<Result<Vec<_>, _>>()?;
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

/// In the order of the walk-through, by latency.
const ACCESS_NETWORKS: [&str; 8] =
    ["fibre", "fibre+wifi", "adsl", "adsl+wifi", "4g", "3g", "2g", "geo"];

/// Visits per cell by default.
const DEFAULT_VISITS: usize = 30;

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use crate::lab::tests::parse;

    #[test]
    fn flags_that_visits_do_not_use_are_refused() {
        for (flag, value) in [
            ("--client", "curl"),
            ("--cipher", "any"),
            ("--certificate", "ed25519"),
            ("--certificate-compression", "on"),
            ("--size", "1m"),
            ("--group", "P-256"),
        ] {
            assert!(parse(&[flag, value]).is_ok(), "{flag}");
            let refusal = parse(&["--browser", "firefox", flag, value]).err().unwrap();
            assert_eq!(refusal.kind(), ErrorKind::ArgumentConflict, "{flag}");
        }
    }
}
