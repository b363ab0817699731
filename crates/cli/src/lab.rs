//! `firstflight lab`: the matrix in an emulated network, and the attack.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use clap::Args;
use firstflight_bench::{
    Axes, BenchError, Experiment, Kind, LabConfig, Progress, ServerKind, Workload,
};
use firstflight_link::Profile;
use firstflight_report::Record;
use firstflight_tls::Version;
use indicatif::{ProgressBar, ProgressStyle};

/// Measures what each kind of TLS handshake costs, on a network that it emulates on this machine,
/// and attacks the servers by resending captured first flights.
///
/// Connects over paths of chosen round-trip times to this program's own server and to others,
/// labels every connection and counts its round trips from its packets, and prints a table for
/// each server and workload: p50, p95 and round trips from the connect call to the first byte of
/// the answer. Needs no root where the machine lets users make user namespaces. Exits with 1 if a
/// connection was something else than its cell asked for, or if our server executed a replay.
#[derive(Args)]
pub(crate) struct LabArgs {
    /// Round-trip times in milliseconds
    #[arg(long, value_name = "MS,...", value_delimiter = ',', default_value = "200,20,2,0.2", value_parser = milliseconds)]
    rtt: Vec<Duration>,

    /// Servers to measure side by side: firstflight, nginx, haproxy, h2o, envoy, caddy, openssl, or
    /// all (of them, those that are installed)
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "firstflight,nginx"
    )]
    server: Vec<ServerChoice>,

    /// One more server, by the shell command that starts it in the foreground; may be given several
    /// times
    ///
    /// Replaced in it: {port} (to listen on with TLS), {cert} and {key} (PEM files), {root} (a
    /// directory with the files 1k, 10k and 1m to serve), {log} (a file to log a line with the
    /// path and query of each request to, so that replays can be counted). What the server can do
    /// is tried before the measuring.
    #[arg(long, value_name = "[NAME=]COMMAND")]
    server_cmd: Vec<String>,

    /// What to ask them: ping-pong (our server only), get
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "ping-pong,get")]
    workload: Vec<Workload>,

    /// TLS versions
    #[arg(
        long,
        value_name = "VERSION,...",
        value_delimiter = ',',
        default_value = "1.0,1.1,1.2,1.3"
    )]
    tls: Vec<Version>,

    /// Handshakes: full, resumed, 0-RTT
    #[arg(
        long,
        value_name = "KIND,...",
        value_delimiter = ',',
        default_value = "full,resumed,0-RTT"
    )]
    kind: Vec<Kind>,

    /// TCP Fast Open: off, on
    #[arg(long, value_name = "off,on", value_delimiter = ',', default_value = "off,on", value_parser = on_off)]
    tfo: Vec<bool>,

    /// Samples a cell
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    samples: u32,

    /// First flights to capture at each server and resend; 0 leaves the attack out
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(..=1000))]
    flights: u32,

    /// How often each captured flight is resent
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    replays: u32,

    /// Orders the samples; the same seed gives the same order [default: from the clock]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Keep processors from falling asleep while they wait, which takes them all: on, off, or auto
    /// (if the machine has nothing else to do)
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = ["auto", "on", "off"])]
    keep_awake: String,

    /// Directory for the record with every sample (lab.json) and the tables (lab.txt)
    #[arg(short, long, value_name = "DIR", default_value = "lab-results")]
    output: PathBuf,

    /// Print the record as JSON instead of the tables
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: LabArgs) -> anyhow::Result<ExitCode> {
    std::fs::create_dir_all(&args.output).map_err(|reason| {
        let path = args.output.display();
        anyhow::anyhow!("cannot make the directory {path}: {reason}; choose one with --output")
    })?;
    let servers = servers(&args)?;
    // Before any thread is started: the kernel demands it.
    firstflight_link::enter_user_namespace()?;
    let scratch = Scratch::make()?;
    let config = LabConfig {
        flights: args.flights as usize,
        replays: args.replays as usize,
        keep_awake: match args.keep_awake.as_str() {
            "on" => Some(true),
            "off" => Some(false),
            _ => None,
        },
        output: Some(args.output.clone()),
        command: std::env::args().skip(1).collect(),
        ..LabConfig::new(
            vec![experiment(&args, servers)],
            args.seed.unwrap_or_else(seed_from_clock),
            scratch.path(),
            std::env::current_exe().context("cannot find this program itself")?,
        )
    };
    let show = Show::new();
    let record = firstflight_bench::run(&config, &|progress| show.progress(progress));
    show.end();
    let record = record?;
    let tables = firstflight_report::summary(&record);
    keep(&record, &tables, &args.output)?;
    match args.json {
        true => println!("{}", serde_json::to_string(&record)?),
        false => print!("{tables}"),
    }
    let place = std::fs::canonicalize(&args.output).unwrap_or(args.output);
    eprintln!(
        "\nThe run took {:.0} s. Every sample: {}; the tables: {}",
        record.seconds,
        place.join(RECORD).display(),
        place.join(TABLES).display()
    );
    Ok(if passed(&record) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What `--server` may say.
#[derive(Clone, Copy)]
enum ServerChoice {
    AllInstalled,
    One(ServerKind),
}

impl FromStr for ServerChoice {
    type Err = BenchError;

    fn from_str(text: &str) -> Result<Self, BenchError> {
        match text {
            "all" => Ok(Self::AllInstalled),
            name => name.parse().map(Self::One),
        }
    }
}

/// All servers that were asked for, each once.
fn servers(args: &LabArgs) -> Result<Vec<ServerKind>, BenchError> {
    let commands = ServerKind::commands(&args.server_cmd)?;
    let mut servers = Vec::new();
    let named = args.server.iter().flat_map(|choice| match choice {
        ServerChoice::AllInstalled => ServerKind::all_installed(),
        ServerChoice::One(server) => vec![*server],
    });
    for server in named.chain(commands) {
        if !servers.contains(&server) {
            servers.push(server);
        }
    }
    Ok(servers)
}

/// The matrix of all axes on the command line.
fn experiment(args: &LabArgs, servers: Vec<ServerKind>) -> Experiment {
    Experiment {
        name: "matrix".to_owned(),
        title: "axes chosen by hand".to_owned(),
        profiles: args.rtt.iter().map(|rtt| Profile::plain(*rtt)).collect(),
        axes: Axes {
            servers,
            workloads: args.workload.clone(),
            versions: args.tls.clone(),
            kinds: args.kind.clone(),
            tfo: args.tfo.clone(),
            ..Axes::one()
        },
        samples: args.samples as usize,
        control: true,
    }
}

/// The directory of a run, gone after it, also when the run is interrupted.
struct Scratch(tempfile::TempDir);

impl Scratch {
    fn make() -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix("firstflight-lab-")
            .tempdir()
            .context("cannot make a temporary directory")?;
        let path = directory.path().to_owned();
        // Namespaces, links and servers end with this process by themselves.
        ctrlc::set_handler(move || {
            let _ = std::fs::remove_dir_all(&path);
            std::process::exit(INTERRUPTED);
        })
        .context("cannot listen for an interruption")?;
        Ok(Self(directory))
    }

    fn path(&self) -> PathBuf {
        self.0.path().to_owned()
    }
}

/// What shells report for a program that SIGINT ended.
const INTERRUPTED: i32 = 130;

/// Whether every connection was what its cell asked for, and no replay was executed by us.
fn passed(record: &Record) -> bool {
    let ours = ServerKind::Firstflight.name();
    record.failures().next().is_none()
        && record.replays.iter().all(|replay| replay.server != ours || replay.executed == 0)
}

fn keep(record: &Record, tables: &str, directory: &Path) -> anyhow::Result<()> {
    firstflight_report::write(record, &directory.join(RECORD))?;
    let path = directory.join(TABLES);
    std::fs::write(&path, tables).with_context(|| format!("cannot write {}", path.display()))
}

const RECORD: &str = "lab.json";
const TABLES: &str = "lab.txt";

fn seed_from_clock() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(ms) if (0.05..=10_000.0).contains(&ms) => Ok(Duration::from_secs_f64(ms / 1e3)),
        _ => Err("a round-trip time is 0.05 to 10000 milliseconds".to_owned()),
    }
}

fn on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("allowed are off and on".to_owned()),
    }
}

/// Progress: a moving line on a terminal, a line for each stage elsewhere.
struct Show {
    bar: ProgressBar,
    terminal: bool,
}

impl Show {
    fn new() -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = if terminal { ProgressBar::new(0) } else { ProgressBar::hidden() };
        let style =
            ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {elapsed}/{duration}");
        if let Ok(style) = style {
            bar.set_style(style);
        }
        Self { bar, terminal }
    }

    fn progress(&self, progress: Progress) {
        match progress {
            Progress::Starting => self.stage("starting network and servers"),
            Progress::Calibrating => self.stage("holding the link against its configuration"),
            Progress::Costing => self.stage("counting processor time"),
            Progress::Middleboxes => self.stage("trying middleboxes"),
            Progress::Judging => self.stage("judging packets"),
            Progress::Measuring { done, total } => self.step("measuring", "", done, total),
            Progress::Replaying { done, total, server } => {
                self.step("replaying at ", server.name(), done, total);
            }
        }
    }

    fn stage(&self, what: &'static str) {
        if self.terminal {
            self.bar.set_message(what);
        } else {
            eprintln!("{what} ...");
        }
    }

    fn step(&self, what: &str, whom: &str, done: usize, total: usize) {
        if self.terminal {
            self.bar.set_message(format!("{what}{whom}"));
            self.bar.set_length(total as u64);
            self.bar.set_position(done as u64);
        } else if done == total || done.is_multiple_of((total / 10).max(1)) {
            eprintln!("{what}{whom}: {done} of {total}");
        }
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}
