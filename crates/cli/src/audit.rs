//! `firstflight audit`: replays early data at a server that the user may test.

use std::fs::File;
use std::io::{self, BufWriter};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum};
use firstflight_audit::formats::{html, json, junit, sarif, text};
use firstflight_audit::{
    AuditError, CHECKS, Capture, Check, Node, QuicTarget, Report, Settings, Software,
    Target as AuditTarget, TcpTarget, Verdict, Witness, audit_captured,
};
use firstflight_client::{Resolver, Scheme, Target};
use firstflight_config::parse_duration;
use firstflight_first_flight::Link;

use crate::results::{check_writable, write};

/// Check whether a server executes early data at most once, by replaying it.
///
/// Sends first flights of TLS 1.3 to the URL, and copies of them, as an attacker on the path can: a
/// server that permits it executes each request several times. Audit only servers that you may test,
/// and a URL that does no harm. Exits with 0, with 1 if a check is as bad as --fail-on, or with 2 if
/// the server cannot be audited. Takes three to six minutes; --check selects less.
#[derive(Args)]
pub(crate) struct AuditArgs {
    /// The URL: https://HOST[:PORT]/PATH. Each request gets a unique query.
    #[arg(required_unless_present_any = ["explain", "checklist", "serve_witness"])]
    url: Option<String>,

    /// Confirm that you may test this server; needed for all but loopback.
    #[arg(long)]
    i_am_allowed: bool,

    /// Audit over QUIC and HTTP/3.
    #[arg(long, visible_alias = "http3-only")]
    http3: bool,

    /// The URL leads to a witness, which counts how often each request was executed.
    #[arg(long)]
    witness: bool,

    /// Serve a witness over HTTP at this address: let the server under test forward a path to it.
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with_all = ["url", "explain", "checklist"])]
    serve_witness: Option<SocketAddr>,

    /// Run only this check; may be repeated.
    #[arg(long, value_name = "CHECK", value_parser = check)]
    check: Vec<&'static Check>,

    /// Explain a check, or `all`, and exit.
    #[arg(long, value_name = "CHECK", conflicts_with = "url")]
    explain: Option<String>,

    /// Print a checklist of the trade-offs of 0-RTT, each verified by a check or yours to decide, and exit.
    #[arg(long, conflicts_with_all = ["url", "explain"])]
    checklist: bool,

    /// Exit with 1 for checks with this result or a worse one.
    #[arg(long, value_name = "RESULT", default_value = "fail")]
    fail_on: FailOn,

    /// Replay a flight after this time, in addition to at once; may be repeated. Default: 1s, 5s, 10s,
    /// 20s, 60s, 120s.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    delay: Vec<Duration>,

    /// Also run the check `key-life`: for this time, such as 24h, test 24 times whether old tickets
    /// are still accepted.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    watch: Option<Duration>,

    /// Server software, for the remedies: nginx, haproxy, envoy, caddy, h2o or firstflight.
    /// Default: detected from its responses.
    #[arg(long, value_name = "NAME", value_parser = software)]
    software: Option<Software>,

    /// Time limit of a connection, a handshake and a response.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    timeout: Duration,

    /// Use these addresses for the host: HOST:PORT:ADDRESS[,ADDRESS...]. Copies go to all of them.
    #[arg(long, value_name = "ENTRY")]
    resolve: Vec<String>,

    /// Print the report as JSON (docs/reference/audit.schema.json).
    #[arg(long)]
    json: bool,

    /// Write what is sent and received as pcapng, with the TLS secrets, so that Wireshark decrypts it.
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,

    /// Write the report as HTML.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write the report as SARIF 2.1.0.
    #[arg(long, value_name = "FILE")]
    sarif: Option<PathBuf>,

    /// Write the report as JUnit XML.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

/// The values of `--fail-on`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FailOn {
    Fail,
    Warn,
    Inconclusive,
    Never,
}

impl FailOn {
    fn verdict(self) -> Option<Verdict> {
        match self {
            Self::Fail => Some(Verdict::Fail),
            Self::Warn => Some(Verdict::Warn),
            Self::Inconclusive => Some(Verdict::Inconclusive),
            Self::Never => None,
        }
    }
}

fn check(name: &str) -> Result<&'static Check, String> {
    Check::find(name).ok_or_else(|| {
        let names: Vec<&str> = CHECKS.iter().map(|check| check.name).collect();
        format!("unknown check; use one of {}", names.join(", "))
    })
}

fn software(name: &str) -> Result<Software, String> {
    Software::find(name).ok_or_else(|| {
        let names: Vec<&str> = Software::names().collect();
        format!("unknown software; use one of {}", names.join(", "))
    })
}

/// Audits, explains, or serves a witness.
///
/// # Errors
/// If the server cannot be audited, or a file cannot be written.
pub(crate) fn run(args: AuditArgs) -> anyhow::Result<ExitCode> {
    if let Some(name) = &args.explain {
        return explain(name);
    }
    if args.checklist {
        out!("{}", text::checklist());
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(address) = args.serve_witness {
        return serve_witness(address);
    }
    let url = args.url.as_deref().unwrap_or_default();
    let target = Target::parse(url)?;
    ensure!(
        target.scheme() == Scheme::Https,
        "{url} is not an https:// URL; give one, as first flights of TLS are replayed"
    );
    // Checked before the host is resolved: without permission there is not even a DNS query.
    let mut resolver = Resolver::default();
    args.resolve.iter().try_for_each(|entry| resolver.add_override(entry))?;
    let overridden = resolver.has_override(target.host(), target.port());
    ensure!(
        args.i_am_allowed || overridden || is_loopback(target.host()),
        "an audit executes requests at {} several times; if you may test this server, add \
         --i-am-allowed",
        target.host()
    );
    let addresses = resolve(&resolver, &target)?;
    if let Some(address) = addresses.iter().find(|address| !address.ip().is_loopback()) {
        ensure!(
            args.i_am_allowed,
            "an audit executes requests at {} several times; if you may test this server, add \
             --i-am-allowed",
            address.ip()
        );
    }
    // Checked now, because an audit takes minutes and executes requests.
    for path in [&args.html, &args.sarif, &args.junit].into_iter().flatten() {
        check_writable(path)?;
    }
    let report = report(&args, &target, &addresses)?;
    match args.json {
        true => out!("{}", json::render(&report)),
        false => out!("{}", text::render(&report)),
    }
    for (path, content) in [
        (&args.html, html::render(&report)),
        (&args.sarif, sarif::render(&report)),
        (&args.junit, junit::render(&report, args.fail_on.verdict().unwrap_or(Verdict::Fail))),
    ] {
        if let Some(path) = path {
            write(path, &content)?;
        }
    }
    let fails =
        args.fail_on.verdict().zip(report.worst()).is_some_and(|(limit, worst)| worst <= limit);
    Ok(if fails { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn report(args: &AuditArgs, target: &Target, addresses: &[SocketAddr]) -> anyhow::Result<Report> {
    let defaults = Settings::new(target.host(), &target.authority(), &target.path_and_query());
    let settings = Settings {
        witness: args.witness,
        http3: args.http3,
        limit: args.timeout,
        delays: if args.delay.is_empty() { defaults.delays } else { args.delay.clone() },
        software: args.software,
        watch: args.watch,
        only: args.check.iter().map(|check| check.name.to_owned()).collect(),
        ..defaults
    };
    let start = jiff::Timestamp::now();
    let date = start.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let since_1970 = Duration::try_from(start.duration_since(jiff::Timestamp::UNIX_EPOCH));
    let mut capture = match &args.capture {
        None => None,
        Some(path) => {
            // The file contains TLS secrets.
            let mut options = File::options();
            options.write(true).create(true).truncate(true).mode(0o600);
            let capture = options.open(path).and_then(|file| {
                let out = Box::new(BufWriter::new(file));
                Capture::new(out, since_1970.unwrap_or_default(), args.http3)
            });
            Some(capture.with_context(|| format!("cannot write {}", path.display()))?)
        }
    };
    let progress = |check: &Check| tracing::info!("{}: {}", check.name, check.title);
    let servers: Vec<(String, Box<dyn AuditTarget>)> = addresses
        .iter()
        .map(|address| {
            let server: Box<dyn AuditTarget> = match args.http3 {
                true => Box::new(LoggedWaits(QuicTarget::new(*address))),
                false => Box::new(LoggedWaits(TcpTarget::new(*address, args.timeout))),
            };
            (address.to_string(), server)
        })
        .collect();
    let nodes: Vec<Node<'_>> = servers
        .iter()
        .map(|(address, server)| Node { address: address.clone(), target: &**server })
        .collect();
    let first = audit_captured(&nodes, &settings, &date, capture.as_mut(), progress);
    let (audited, report) = match first {
        // `localhost` has two addresses, and a server may listen on one of them only.
        Err(AuditError::Down(_)) if nodes.len() > 1 && addresses[0].ip().is_loopback() => {
            let capture = capture.as_mut();
            let second = audit_captured(&nodes[1..], &settings, &date, capture, progress);
            (addresses[1], second)
        }
        other => (addresses[0], other),
    };
    report.with_context(|| format!("cannot audit {} at {audited}", target.as_str()))
}

/// A target that logs long waits.
struct LoggedWaits<T>(T);

impl<T: AuditTarget> AuditTarget for LoggedWaits<T> {
    fn connect(&self) -> io::Result<Box<dyn Link>> {
        self.0.connect()
    }

    fn connect_with_fast_open(&self) -> io::Result<Box<dyn Link>> {
        self.0.connect_with_fast_open()
    }

    fn connect_from(&self, local: SocketAddr) -> io::Result<Box<dyn Link>> {
        self.0.connect_from(local)
    }

    fn now(&self) -> Duration {
        self.0.now()
    }

    fn wait(&self, time: Duration) {
        if time >= MIN_LOGGED_WAIT {
            tracing::info!("waiting for {:.0} s", time.as_secs_f64());
        }
        self.0.wait(time);
    }
}

/// Shorter waits are not logged.
const MIN_LOGGED_WAIT: Duration = Duration::from_secs(2);

/// Whether a host is `localhost` or a loopback address. Does not resolve it.
fn is_loopback(host: &str) -> bool {
    let literal = host.trim_matches(['[', ']']).parse::<IpAddr>();
    literal.map_or(host.eq_ignore_ascii_case("localhost"), |address| address.is_loopback())
}

fn resolve(resolver: &Resolver, target: &Target) -> anyhow::Result<Vec<SocketAddr>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start a worker thread")?;
    let addresses = runtime.block_on(resolver.resolve(target.host(), target.port()))?;
    ensure!(!addresses.is_empty(), "the host has no address");
    Ok(addresses)
}

fn explain(name: &str) -> anyhow::Result<ExitCode> {
    let checks = match name {
        "all" => CHECKS.to_vec(),
        name => vec![check(name).map_err(|error| anyhow::anyhow!("{name}: {error}"))?],
    };
    let texts: Vec<String> = checks.into_iter().map(text::explain).collect();
    out!("{}", texts.join("\n"));
    Ok(ExitCode::SUCCESS)
}

fn serve_witness(address: SocketAddr) -> anyhow::Result<ExitCode> {
    let listener = match TcpListener::bind(address) {
        Ok(listener) => listener,
        Err(error) => bail!("cannot listen on {address}: {error}; choose another address"),
    };
    let address = listener.local_addr().context("the listener has no address")?;
    errln!("witness on http://{address}; forward a path to it, and audit that with --witness");
    Witness::default().serve(&listener).context("the witness has failed")?;
    Ok(ExitCode::SUCCESS)
}
