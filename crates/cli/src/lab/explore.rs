//! `firstflight lab --serve`: keeps the lab running, to be explored by hand.

use std::ffi::OsString;
use std::io::{ErrorKind, Write, stdout};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use firstflight_lab::{ExploreConfig, ExploreSession, ObservedConnection};

use super::lab_report::{LabReport, ReportFormat};
use super::{LabArgs, RunDirectory, backend, enter, select};
use crate::axes::seed_from_clock;
use crate::results;

/// Flags for exploring by hand.
#[derive(Args)]
#[command(next_help_heading = "Exploring")]
pub(super) struct ExploreArgs {
    /// Keep the network and the servers up, print how to enter and what to try, and label each
    /// new connection by its packets; until Ctrl-C
    ///
    /// Takes --server, --server-cmd, --profile and --rtt (by default one network of 112 ms),
    /// --backend, --keep-awake, --seed, --json (a line each) and --captures: all packets go to
    /// explored.pcapng in the directory of --output, with the TLS secrets, unless it is none.
    #[arg(long)]
    serve: bool,

    /// End after this many seconds
    #[arg(long = "for", value_name = "SECONDS", requires = "serve", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    seconds: Option<u64>,

    /// Enter a lab of `lab --serve`: the one with this process ID, or this user's only one. Runs
    /// COMMAND, or a shell
    ///
    /// With --browser, runs that browser with a fresh profile that trusts the lab's servers and has
    /// 0-RTT on. COMMAND is then its further arguments, such as a URL.
    #[arg(long, value_name = "PID", num_args = 0..=1)]
    enter: Option<Option<u32>>,

    /// Command to run inside the lab
    #[arg(last = true, value_name = "COMMAND", requires = "enter")]
    command: Vec<OsString>,
}

/// Runs --serve or --enter. Returns `None` if neither is given.
pub(super) fn run(args: &LabArgs) -> anyhow::Result<Option<ExitCode>> {
    let ExploreArgs { serve, enter, command, .. } = &args.explore;
    match (serve, enter) {
        (false, None) => Ok(None),
        (true, Some(_)) => {
            anyhow::bail!(
                "--serve starts a lab and --enter enters a running one; leave one of them out"
            )
        }
        (true, None) => {
            let browser = args.browsers.is_set().then_some("--browser, or give it to --enter");
            let flags: Vec<_> = measurement_flags(args).into_iter().chain(browser).collect();
            refuse_flags(&flags, "--serve measures nothing")?;
            explore(args).map(Some)
        }
        (false, Some(pid)) => {
            let flags = [measurement_flags(args), lab_flags(args)].concat();
            refuse_flags(&flags, "--enter enters a running lab")?;
            let browser = match args.browsers.names() {
                [] => None,
                [browser] => Some(&**browser),
                _ => anyhow::bail!("--enter starts one browser; name one"),
            };
            enter::run(*pid, browser, command).map(Some)
        }
    }
}

fn refuse_flags(flags: &[&'static str], why: &str) -> anyhow::Result<()> {
    match flags {
        [] => Ok(()),
        flags => anyhow::bail!("{why}; leave out {}", flags.join(", ")),
    }
}

/// The given flags that only apply to measurements.
fn measurement_flags(args: &LabArgs) -> Vec<&'static str> {
    let flags = [
        (args.experiment.is_some(), "--experiment"),
        (args.samples.is_some(), "--samples"),
        (args.axes.is_set(), "the axes"),
        (args.axes.workload.is_some(), "--workload"),
        (args.axes.transport.is_some(), "--transport"),
        (args.client.is_some(), "--client"),
        (args.cipher.is_some(), "--cipher"),
        (args.certificate.is_some(), "--certificate"),
        (args.certificate_compression.is_some(), "--certificate-compression"),
        (args.size.is_some(), "--size"),
        (args.flights != DEFAULT_FLIGHTS, "--flights"),
        (args.replays != DEFAULT_REPLAYS, "--replays"),
        (args.no_costs, "--no-costs"),
        (args.browsers.has_visit_flags(), "--page, --visits, --lanes and --no-films"),
        (args.conditions.is_set(), "--fail-if and --junit"),
    ];
    flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).collect()
}

/// The given flags that describe the lab.
fn lab_flags(args: &LabArgs) -> Vec<&'static str> {
    let flags = [
        (args.server.is_some() || !args.server_cmd.is_empty(), "the servers"),
        (args.profile.is_some() || args.rtt.is_some(), "the networks"),
        (args.seed.is_some(), "--seed"),
        (args.json, "--json"),
        (args.output.as_os_str() != "lab-results", "--output"),
        (args.captures != "one", "--captures"),
        (args.backend != "rings", "--backend"),
        (args.keep_awake != "auto", "--keep-awake"),
    ];
    flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).collect()
}

// The defaults of --flights and --replays.
const DEFAULT_FLIGHTS: u32 = 10;
const DEFAULT_REPLAYS: u32 = 100;

fn explore(args: &LabArgs) -> anyhow::Result<ExitCode> {
    let servers = select::servers(&args.server, &args.server_cmd)?;
    let profiles = select::profiles(args, &[DEFAULT_RTT])?;
    let capture = (args.captures != "none").then(|| args.output.join(CAPTURE_FILE));
    if capture.is_some() {
        results::prepare(&args.output)?;
    }
    // The kernel requires a process with one thread.
    firstflight_emulator::enter_user_namespace()?;
    let stop = StopRequest::default();
    let run_directory = RunDirectory::create({
        let stop = stop.clone();
        move || stop.request()
    })?;
    let config = ExploreConfig {
        profiles,
        servers,
        seed: args.seed.unwrap_or_else(seed_from_clock),
        // Not by default: most of the time the lab is idle.
        keep_awake: args.keep_awake == "on",
        backend: backend(args),
        directory: run_directory.path(),
        program: std::env::current_exe().context("cannot find the path of this program")?,
        capture,
    };
    if !args.json {
        errln!("starting network and servers ...");
    }
    let lab = ExploreSession::start(&config)?;
    stop.lab_is_up();
    let report = LabReport::new(
        lab.description(),
        if args.json { ReportFormat::Json } else { ReportFormat::Text },
    );
    let until = args.explore.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let is_over = || stop.is_requested() || until.is_some_and(|time| Instant::now() >= time);
    match print_connections(lab, &report, is_over) {
        // The reader of stdout has closed it.
        Err(error) if is_broken_pipe(&error) => Ok(ExitCode::SUCCESS),
        result => result.map(|()| ExitCode::SUCCESS),
    }
}

/// Prints each connection until `is_over`.
fn print_connections(
    mut lab: ExploreSession,
    report: &LabReport,
    is_over: impl Fn() -> bool,
) -> anyhow::Result<()> {
    print(&report.start(lab.description()))?;
    let mut count = 0;
    let mut print_all = |connections: Vec<ObservedConnection>| {
        count += connections.len();
        connections.iter().try_for_each(|connection| print(&report.connection(connection)))
    };
    while !is_over() {
        print_all(lab.poll()?)?;
        thread::sleep(POLL_INTERVAL);
    }
    let capture = lab.description().capture.clone();
    print_all(lab.stop()?)?;
    print(&report.end(count, capture.as_deref()))
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<std::io::Error>();
    io.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// Whether SIGINT was received. Once the lab is up, the first SIGINT ends it gracefully, and a second
/// one immediately.
#[derive(Clone, Default)]
struct StopRequest {
    up: Arc<AtomicBool>,
    requested: Arc<AtomicBool>,
}

impl StopRequest {
    /// Records a signal. Returns whether the lab will end gracefully.
    fn request(&self) -> bool {
        !self.requested.swap(true, Ordering::SeqCst) && self.up.load(Ordering::SeqCst)
    }

    fn lab_is_up(&self) {
        self.up.store(true, Ordering::SeqCst);
    }

    fn is_requested(&self) -> bool {
        self.requested.load(Ordering::SeqCst)
    }
}

/// The round-trip time of the walk-through.
const DEFAULT_RTT: &str = "112";

/// The file with all packets, in the output directory.
const CAPTURE_FILE: &str = "explored.pcapng";

/// Short enough that connections appear to be printed at once.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
