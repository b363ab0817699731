//! `firstflight bench`: a server elsewhere, connection by connection or under load.

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

use crate::axes::{AxesArgs, command_line, seed_from_clock};
use crate::progress::Show;
use crate::results;
use crate::results::JudgementArgs;
use load::{LoadArgs, LoadOptions};

/// Measure an external server: the cost of each kind of handshake, or how much load it takes.
///
/// Connects to the URL repeatedly with full, resumed and early-data handshakes in random order, and
/// writes a report with percentiles, intervals, an A/A control and every sample. Each connection is
/// labelled by its packets if this process may capture, else by the kernel and TLS. With --rate or
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
    #[arg(long, value_name = "WHO", value_enum, default_value_t = Witnesses::Auto)]
    witness: Witnesses,

    #[command(flatten)]
    axes: AxesArgs,

    #[command(flatten)]
    connection: ConnectionArgs,

    #[command(flatten)]
    load: LoadArgs,

    #[command(flatten, next_help_heading = "Judgement")]
    judgement: JudgementArgs,
}

/// The words of `--witness`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Witnesses {
    Auto,
    Packets,
    Kernel,
}

/// How the server is reached, as curl has it.
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
                warning.iter().for_each(|warning| eprintln!("firstflight: {warning}"));
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
        anyhow::bail!(
            "{} is not encrypted, so there is no handshake; give an https:// URL",
            args.url
        );
    }
    if args.judgement.needs_old() {
        anyhow::bail!("`old` belongs to `firstflight report --compare`; leave it out here");
    }
    results::prepare(&args.output)?;
    if args.load.wanted() && args.witness == Witnesses::Packets {
        anyhow::bail!("under load no packets are looked at; leave --witness out");
    }
    let record = match args.load.wanted() {
        true => load(&args, &target)?,
        false => samples(&args)?,
    };
    results::finish(&record, NAME, &args.output, args.json, &args.judgement)
}

const NAME: &str = "bench";

/// Connection by connection.
fn samples(args: &BenchArgs) -> anyhow::Result<Record> {
    let seed = args.seed.unwrap_or_else(seed_from_clock);
    let asked_for = RemoteConfig::new(&args.url);
    let axes = &args.axes;
    let config = RemoteConfig {
        trust: args.connection.trust(),
        resolve: args.connection.resolve.clone(),
        versions: axes.tls.clone().unwrap_or(asked_for.versions),
        kinds: axes.kind.clone().unwrap_or(asked_for.kinds),
        tfo: axes.tfo.clone().unwrap_or(asked_for.tfo),
        tokens: axes.token.clone().unwrap_or(asked_for.tokens),
        http: axes.http.clone().unwrap_or(asked_for.http),
        groups: axes.group.clone().unwrap_or(asked_for.groups),
        samples: args.samples as usize,
        concurrency: usize::from(args.at_a_time),
        timeout: args.connection.max_time,
        seed,
        label_source: match args.witness {
            Witnesses::Auto => LabelSource::Auto,
            Witnesses::Packets => LabelSource::Packets,
            Witnesses::Kernel => LabelSource::Kernel,
        },
        output: Some(args.output.clone()),
        command: command_line(seed),
        ..RemoteConfig::new(&args.url)
    };
    let show = Show::new();
    let record = remote::run(&config, &|progress| show.remote(progress));
    show.end();
    Ok(record?)
}

/// Under load.
fn load(args: &BenchArgs, target: &Target) -> anyhow::Result<Record> {
    let began = Instant::now();
    let seed = args.seed.unwrap_or_else(seed_from_clock);
    let axes = &args.axes;
    let kinds: Vec<firstflight_bench::LoadHandshake> =
        axes.kind.as_deref().unwrap_or(&DRIVEN).iter().map(driven).collect::<Result<_, _>>()?;
    let addresses = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the resolver")?
        .block_on(args.connection.resolver()?.resolve(target.host(), target.port()))?;
    let aim = LoadOptions {
        target,
        addresses: addresses.into_iter().take(1).collect(),
        trust: args.connection.trust(),
        version: one("--tls", axes.tls.as_deref())?.unwrap_or(Version::Tls13),
        groups: one("--group", axes.group.as_deref())?.map(|group| group.name().to_owned()),
        tfo: one("--tfo", axes.tfo.as_deref())?.unwrap_or(false),
        transport: transport(one("--http", axes.http.as_deref())?)?,
        seed,
        timeout: args.connection.max_time,
    };
    let record = blank_record(command_line(seed), seed);
    Ok(Record {
        witness: Witness::Kernel,
        loads: args.load.run(&aim, &kinds)?,
        seconds: began.elapsed().as_secs_f64(),
        ..record
    })
}

/// What is driven where nothing is requested.
const DRIVEN: [HandshakeKind; 3] =
    [HandshakeKind::Full, HandshakeKind::Resumed, HandshakeKind::ZeroRtt];

fn driven(kind: &HandshakeKind) -> anyhow::Result<firstflight_bench::LoadHandshake> {
    Ok(match kind {
        HandshakeKind::Full => firstflight_bench::LoadHandshake::Full,
        HandshakeKind::Resumed => firstflight_bench::LoadHandshake::Resumed,
        HandshakeKind::ZeroRtt => firstflight_bench::LoadHandshake::ZeroRtt,
        HandshakeKind::Refused => {
            anyhow::bail!("load knows full, resumed and 0-RTT; leave refused out")
        }
    })
}

/// What carries the HTTP that was requested.
fn transport(http: Option<HttpVersion>) -> anyhow::Result<firstflight_bench::Transport> {
    match http {
        None | Some(HttpVersion::One) => Ok(firstflight_bench::Transport::Tcp),
        Some(HttpVersion::Three) => Ok(firstflight_bench::Transport::Quic),
        Some(http) => anyhow::bail!("load speaks HTTP/1.1 or HTTP/3, not {http}; give one of them"),
    }
}

/// The one value of an axis that load cannot vary.
fn one<T: Copy>(flag: &str, values: Option<&[T]>) -> anyhow::Result<Option<T>> {
    match values {
        None => Ok(None),
        Some([value]) => Ok(Some(*value)),
        Some(_) => anyhow::bail!("load drives one value of {flag} at a time; name one"),
    }
}
