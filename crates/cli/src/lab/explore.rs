//! `firstflight lab --serve`: the lab stays up, to be looked around in.

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

use super::live::{Form, Live};
use super::{LabArgs, Scratch, backend, enter, select};
use crate::axes::seed_from_clock;
use crate::results;

/// Flags for exploring by hand.
#[derive(Args)]
#[command(next_help_heading = "Exploring")]
pub(super) struct ExploreArgs {
    /// Keep the network and the servers up, print how to enter and what to try, and name each
    /// connection as it comes, by its packets; until Ctrl-C
    ///
    /// Takes --server, --server-cmd, --profile and --rtt (by default one network of 112 ms),
    /// --backend, --keep-awake, --seed, --json (a line each) and --captures: all packets go to
    /// explored.pcapng in the directory of --output, with the TLS secrets, unless it is none.
    #[arg(long)]
    serve: bool,

    /// End by itself after so many seconds
    #[arg(long = "for", value_name = "SECONDS", requires = "serve", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    seconds: Option<u64>,

    /// Enter the lab that `lab --serve` keeps up: by the process that it names, or the only one of
    /// this user. Without a COMMAND, a shell
    ///
    /// With --browser, that browser instead: with a fresh profile that trusts the lab's servers
    /// and has 0-RTT on. COMMAND is then what to add to its own, such as a URL.
    #[arg(long, value_name = "PID", num_args = 0..=1)]
    enter: Option<Option<u32>>,

    /// What to run inside
    #[arg(last = true, value_name = "COMMAND", requires = "enter")]
    command: Vec<OsString>,
}

/// Does what is asked of exploring; `None`: nothing is.
pub(super) fn run(args: &LabArgs) -> anyhow::Result<Option<ExitCode>> {
    let ExploreArgs { serve, enter, command, .. } = &args.explore;
    match (serve, enter) {
        (false, None) => Ok(None),
        (true, Some(_)) => {
            anyhow::bail!("--serve starts a lab and --enter enters one that runs; leave one out")
        }
        (true, None) => {
            let browser = args.browsers.chosen().then_some("--browser, or give it to --enter");
            let misfits = misfits(args).into_iter().chain(browser).collect::<Vec<_>>();
            refuse(&misfits, "--serve keeps a lab up and measures nothing")?;
            explore(args).map(Some)
        }
        (false, Some(door)) => {
            refuse(&[misfits(args), fits(args)].concat(), "--enter enters a lab that runs")?;
            let browser = match args.browsers.named() {
                [] => None,
                [browser] => Some(&**browser),
                _ => anyhow::bail!("--enter starts one browser inside; name one"),
            };
            enter::run(*door, browser, command).map(Some)
        }
    }
}

fn refuse(given: &[&'static str], why: &str) -> anyhow::Result<()> {
    match given {
        [] => Ok(()),
        given => anyhow::bail!("{why}; leave out {}", given.join(", ")),
    }
}

/// The flags that bear on measuring alone, as far as they were given.
fn misfits(args: &LabArgs) -> Vec<&'static str> {
    let given = [
        (args.experiment.is_some(), "--experiment"),
        (args.samples.is_some(), "--samples"),
        (args.axes.chosen(), "the axes"),
        (args.workload.is_some(), "--workload"),
        (args.transport.is_some(), "--transport"),
        (args.client.is_some(), "--client"),
        (args.certificate.is_some(), "--certificate"),
        (args.size.is_some(), "--size"),
        (args.flights != FLIGHTS, "--flights"),
        (args.replays != REPLAYS, "--replays"),
        (args.no_costs, "--no-costs"),
        (args.browsers.measures(), "--page, --visits, --lanes and --no-films"),
        (args.judgement.chosen(), "--fail-if and --junit"),
    ];
    given.into_iter().filter(|(given, _)| *given).map(|(_, flag)| flag).collect()
}

/// The flags that say what stays up, as far as they were given.
fn fits(args: &LabArgs) -> Vec<&'static str> {
    let given = [
        (args.server.is_some() || !args.server_cmd.is_empty(), "the servers"),
        (args.profile.is_some() || args.rtt.is_some(), "the networks"),
        (args.seed.is_some(), "--seed"),
        (args.json, "--json"),
        (args.output.as_os_str() != "lab-results", "--output"),
        (args.captures != "one", "--captures"),
        (args.backend != "rings", "--backend"),
        (args.keep_awake != "auto", "--keep-awake"),
    ];
    given.into_iter().filter(|(given, _)| *given).map(|(_, flag)| flag).collect()
}

/// The defaults of the attack's flags.
const FLIGHTS: u32 = 10;
const REPLAYS: u32 = 100;

fn explore(args: &LabArgs) -> anyhow::Result<ExitCode> {
    let servers = select::servers(&args.server, &args.server_cmd)?;
    let profiles = select::profiles(args, &[DEFAULT_RTT])?;
    let capture = (args.captures != "none").then(|| args.output.join(CAPTURE));
    if capture.is_some() {
        results::prepare(&args.output)?;
    }
    // Before any thread is started: the kernel demands it.
    firstflight_emulator::enter_user_namespace()?;
    let end = StopRequest::default();
    let scratch = Scratch::make({
        let end = end.clone();
        move || end.ask()
    })?;
    let config = ExploreConfig {
        profiles,
        servers,
        seed: args.seed.unwrap_or_else(seed_from_clock),
        // It waits for a person, most of the time.
        keep_awake: args.keep_awake == "on",
        backend: backend(args),
        directory: scratch.path(),
        program: std::env::current_exe().context("cannot find this program itself")?,
        capture,
    };
    if !args.json {
        eprintln!("starting network and servers ...");
    }
    let lab = ExploreSession::start(&config)?;
    end.is_up();
    let live = Live::new(lab.description(), if args.json { Form::Json } else { Form::Text });
    let until = args.explore.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let result = watch(lab, &live, || end.is_asked() || until.is_some_and(|t| Instant::now() >= t));
    match result {
        // Who listened has gone: there is nobody left to tell.
        Err(error) if is_broken_pipe(&error) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(error),
        Ok(()) => Ok(ExitCode::SUCCESS),
    }
}

/// Says what comes until it is time to end.
fn watch(mut lab: ExploreSession, live: &Live, ends: impl Fn() -> bool) -> anyhow::Result<()> {
    say(&live.opening(lab.description()))?;
    let mut count = 0;
    let mut tell = |seen: Vec<ObservedConnection>| {
        count += seen.len();
        seen.iter().try_for_each(|one| say(&live.line(one)))
    };
    while !ends() {
        tell(lab.poll()?)?;
        thread::sleep(STEP);
    }
    let capture = lab.description().capture.clone();
    tell(lab.stop()?)?;
    say(&live.closing(count, capture.as_deref()))
}

fn say(text: &str) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<std::io::Error>();
    io.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// How the end is requested. Once the lab is up, the first interruption lets it end in order, and a
/// second one ends it on the spot.
#[derive(Clone, Default)]
struct StopRequest {
    up: Arc<AtomicBool>,
    asked: Arc<AtomicBool>,
}

impl StopRequest {
    /// By a signal; whether it is seen to.
    fn ask(&self) -> bool {
        !self.asked.swap(true, Ordering::SeqCst) && self.up.load(Ordering::SeqCst)
    }

    fn is_up(&self) {
        self.up.store(true, Ordering::SeqCst);
    }

    fn is_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }
}

/// The walk-through's distance.
const DEFAULT_RTT: &str = "112";

/// All packets, in the directory of the output.
const CAPTURE: &str = "explored.pcapng";

/// How often the tap is looked at: what is said of a connection seems to come at once.
const STEP: Duration = Duration::from_millis(100);
