//! `firstflight bench`: measures an external server, connection by connection or under load.

mod load;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use firstflight_bench::remote::{self, LabelSource, RemoteConfig};
use firstflight_client::{Resolver, Scheme, Target};
use firstflight_report::{Record, Witness};
use firstflight_samples::{HandshakeKind, HttpVersion, blank_record};
use firstflight_tls::{Trust, Version};
use firstflight_units::printable;

use crate::axes::{AxesArgs, command_line, default_http, seed_from_clock};
use crate::progress::ProgressDisplay;
use crate::results;
use crate::results::ConditionArgs;
use load::{LoadArgs, LoadOptions, LoadRuns};

/// Measure an external server: the cost of each kind of handshake, or how much load it takes.
///
/// Connects to the URL repeatedly with full, resumed and early-data handshakes in random order, and
/// writes a report with percentiles, intervals, an A/A control and every sample, over TCP or, with
/// --http 3, over QUIC. Each connection is labelled by its packets if this process may capture, else
/// by the kernel, QUIC and TLS. With --workload ping-pong it measures a ping-pong server. With --rate or
/// --connections it drives load instead.
#[derive(Args)]
pub(crate) struct BenchArgs {
    /// URL to request, such as https://example.org/.
    #[arg(value_name = "URL")]
    url: String,

    /// Samples per cell.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    samples: u32,

    /// Concurrent connections: one disturbs least, more are faster on long paths.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    at_a_time: u16,

    /// Orders the samples; the same seed gives the same order [default: from the clock]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Directory for the report (report.html), the record (bench.json), tables and CSV
    #[arg(short, long, value_name = "DIR", default_value = "bench-results")]
    output: PathBuf,

    /// Print the record as JSON instead of the tables
    #[arg(long)]
    json: bool,

    /// Source of each connection's label: packets (captured here; needs root or CAP_NET_RAW),
    /// kernel (and the TLS state), or auto: packets if they may be captured.
    #[arg(long, value_name = "WHO", value_enum, default_value_t = LabelSourceArg::Auto)]
    witness: LabelSourceArg,

    #[command(flatten)]
    axes: AxesArgs,

    #[command(flatten)]
    connection: ConnectionArgs,

    #[command(flatten)]
    load: LoadArgs,

    #[command(flatten, next_help_heading = "Conditions")]
    conditions: ConditionArgs,
}

/// The values of `--witness`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum LabelSourceArg {
    Auto,
    Packets,
    Kernel,
}

/// How to connect to the server; the flags are those of curl.
#[derive(Args)]
#[command(next_help_heading = "Connection")]
struct ConnectionArgs {
    /// Do not verify the server's certificate
    #[arg(short = 'k', long, conflicts_with = "cacert")]
    insecure: bool,

    /// Trust only the authorities in this PEM file.
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,

    /// Do not trust this user's development authority.
    #[arg(long, conflicts_with_all = ["cacert", "insecure"])]
    no_authority: bool,

    /// Use these addresses for a host: HOST:PORT:ADDRESS[,ADDRESS...]
    #[arg(long, value_name = "ENTRY")]
    resolve: Vec<String>,

    /// Time limit in seconds for one connection, from the connect call to the end of the response.
    #[arg(short, long, value_name = "SECONDS", default_value = "10", value_parser = load::seconds)]
    max_time: Duration,
}

impl ConnectionArgs {
    fn trust(&self) -> Trust {
        match &self.cacert {
            _ if self.insecure => Trust::Anyone,
            Some(file) => Trust::File(file.clone()),
            None => {
                let (trust, warning) = crate::authority::default_trust(self.no_authority);
                warning.iter().for_each(|warning| errln!("firstflight: {warning}"));
                trust
            }
        }
    }

    fn resolver(&self) -> anyhow::Result<Resolver> {
        let mut resolver = Resolver::default();
        self.resolve.iter().try_for_each(|entry| resolver.add_override(entry))?;
        Ok(resolver)
    }
}

pub(crate) fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    let target = Target::parse(&args.url)?;
    if target.scheme() != Scheme::Https {
        anyhow::bail!("{} is not an https:// URL; give one, as handshakes are measured", args.url);
    }
    args.conditions.refuse_old()?;
    results::prepare(&args.output)?;
    if args.load.is_requested() && args.witness == LabelSourceArg::Packets {
        anyhow::bail!("--witness packets does not work with load; leave it out");
    }
    let (record, interrupted) = match args.load.is_requested() {
        true => load(&args, &target)?,
        false => (samples(&args)?, false),
    };
    let code = results::finish(&record, NAME, &args.output, args.json, &args.conditions)?;
    print_left_out(&record.left_out);
    Ok(if interrupted { ExitCode::from(results::EXIT_CODE_SIGINT) } else { code })
}

const NAME: &str = "bench";

/// Prints to stderr what was not measured, because the tables do not show it.
fn print_left_out(left_out: &[String]) {
    for why in left_out.iter().take(MAX_LEFT_OUT) {
        errln!("left out: {}", printable(why));
    }
    if left_out.len() > MAX_LEFT_OUT {
        errln!("... and {} more, in the report", left_out.len() - MAX_LEFT_OUT);
    }
}

const MAX_LEFT_OUT: usize = 10;

/// Measures connection by connection.
fn samples(args: &BenchArgs) -> anyhow::Result<Record> {
    let seed = args.seed.unwrap_or_else(seed_from_clock);
    let defaults = RemoteConfig::new(&args.url);
    let axes = &args.axes;
    let config = RemoteConfig {
        trust: args.connection.trust(),
        resolve: args.connection.resolve.clone(),
        workloads: axes.workload.clone().unwrap_or(defaults.workloads),
        transports: axes.transport.clone().unwrap_or(defaults.transports),
        versions: axes.tls.clone().unwrap_or(defaults.versions),
        kinds: axes.kind.clone().unwrap_or(defaults.kinds),
        tfo: axes.tfo.clone().unwrap_or(defaults.tfo),
        tokens: axes.token.clone().unwrap_or(defaults.tokens),
        http: (axes.http.clone())
            .or_else(|| axes.transport.as_deref().map(default_http))
            .unwrap_or(defaults.http),
        groups: axes.group.clone().unwrap_or(defaults.groups),
        samples: args.samples as usize,
        concurrency: usize::from(args.at_a_time),
        timeout: args.connection.max_time,
        seed,
        label_source: match args.witness {
            LabelSourceArg::Auto => LabelSource::Auto,
            LabelSourceArg::Packets => LabelSource::Packets,
            LabelSourceArg::Kernel => LabelSource::Kernel,
        },
        output: Some(args.output.clone()),
        command: command_line(seed),
        ..RemoteConfig::new(&args.url)
    };
    let display = ProgressDisplay::new();
    let record = remote::run(&config, &|progress| display.bench(progress));
    display.finish();
    Ok(record?)
}

/// Measures under load. Also returns whether the run was interrupted.
fn load(args: &BenchArgs, target: &Target) -> anyhow::Result<(Record, bool)> {
    let started = Instant::now();
    let seed = args.seed.unwrap_or_else(seed_from_clock);
    let axes = &args.axes;
    anyhow::ensure!(
        axes.workload.is_none() && axes.transport.is_none(),
        "load uses GET, and --http selects the transport; leave out --workload and --transport"
    );
    let kinds: Vec<firstflight_bench::LoadHandshake> = axes
        .kind
        .as_deref()
        .unwrap_or(&DEFAULT_LOAD_KINDS)
        .iter()
        .map(load_kind)
        .collect::<Result<_, _>>()?;
    let addresses = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the resolver")?
        .block_on(args.connection.resolver()?.resolve(target.host(), target.port()))?;
    let options = LoadOptions {
        target,
        addresses: addresses.into_iter().take(1).collect(),
        trust: args.connection.trust(),
        version: single_value("--tls", axes.tls.as_deref())?.unwrap_or(Version::Tls13),
        groups: single_value("--group", axes.group.as_deref())?
            .map(|group| group.name().to_owned()),
        tfo: single_value("--tfo", axes.tfo.as_deref())?.unwrap_or(false),
        transport: transport(single_value("--http", axes.http.as_deref())?)?,
        seed,
        timeout: args.connection.max_time,
    };
    let record = blank_record(command_line(seed), seed);
    let LoadRuns { loads, left_out, failed, interrupted } = args.load.run(&options, &kinds)?;
    let record = Record {
        witness: Witness::Kernel,
        loads,
        left_out,
        failed_stages: failed,
        seconds: started.elapsed().as_secs_f64(),
        ..record
    };
    Ok((record, interrupted))
}

/// The kinds of handshake if `--kind` is not given.
const DEFAULT_LOAD_KINDS: [HandshakeKind; 3] =
    [HandshakeKind::Full, HandshakeKind::Resumed, HandshakeKind::ZeroRtt];

fn load_kind(kind: &HandshakeKind) -> anyhow::Result<firstflight_bench::LoadHandshake> {
    Ok(match kind {
        HandshakeKind::Full => firstflight_bench::LoadHandshake::Full,
        HandshakeKind::Resumed => firstflight_bench::LoadHandshake::Resumed,
        HandshakeKind::ZeroRtt => firstflight_bench::LoadHandshake::ZeroRtt,
        HandshakeKind::Refused => {
            anyhow::bail!("load supports the kinds full, resumed and 0-RTT; leave refused out")
        }
    })
}

/// The transport of an HTTP version.
fn transport(http: Option<HttpVersion>) -> anyhow::Result<firstflight_bench::Transport> {
    match http {
        None | Some(HttpVersion::One) => Ok(firstflight_bench::Transport::Tcp),
        Some(HttpVersion::Three) => Ok(firstflight_bench::Transport::Quic),
        Some(http) => {
            anyhow::bail!("load supports HTTP/1.1 and HTTP/3, not {http}; give one of them")
        }
    }
}

/// The only value of an axis; load cannot vary it.
fn single_value<T: Copy>(flag: &str, values: Option<&[T]>) -> anyhow::Result<Option<T>> {
    match values {
        None => Ok(None),
        Some([value]) => Ok(Some(*value)),
        Some(_) => anyhow::bail!("load supports one value of {flag} at a time; give one"),
    }
}
