//! `firstflight lab`: measures in an emulated network, and replays captured first flights.

mod browsers;
mod enter;
mod explore;
mod lab_report;
mod select;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use firstflight_emulator::Backend;
use firstflight_lab::{
    Captures, CertificateKind, CipherSuite, ClientKind, LabConfig, ResponseSize,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::axes::{AxesArgs, command_line, milliseconds, on_off, seed_from_clock};
use crate::progress::ProgressDisplay;
use crate::results;
use crate::results::ConditionArgs;
use browsers::BrowserArgs;
use select::{Selection, select};

/// Measure what each kind of TLS handshake costs on networks emulated on this machine, and attack
/// the servers by replaying captured first flights.
///
/// Connects over TCP and QUIC to this program's own server and to others, labels every connection
/// and counts its round trips from its packets, and writes a report, captures with their TLS
/// secrets and every sample. Without flags it runs the experiments ping-pong, get, curl, blueprint, access, image and
/// clients. Any flag for axes, networks or pages defines a matrix instead. Needs no root if users may
/// create user namespaces: see `firstflight doctor`.
///
/// With --serve it measures nothing: the network and the servers stay up, to be entered with a
/// shell or a browser, and each connection is shown with its label.
///
/// Exits with 1 if a connection was not what its cell requested, if our server executed a replay,
/// if the A/A control differs beyond chance, or if a --fail-if condition is true.
#[derive(Args)]
pub(crate) struct LabArgs {
    /// Experiments: ping-pong, get, curl, blueprint, access, image, clients, refused, post-quantum,
    /// certificates, loss, third-party, s-client, middlebox, stall, cold-start
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    experiment: Option<Vec<String>>,

    /// Samples per cell [default: 100; blueprint and s-client: 1000, loss: 400, third-party: 50,
    /// certificates: 30, cold-start: 10, access: 8, clients: 6, image: 3, stall: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    samples: Option<u32>,

    /// Orders the samples and decides what the link drops; the same seed gives the same order
    /// [default: from the clock]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Directory for the report (report.html), the record with every sample (lab.json), tables,
    /// CSV and captures
    #[arg(short, long, value_name = "DIR", default_value = "lab-results")]
    output: PathBuf,

    /// Print the record as JSON instead of the tables
    #[arg(long)]
    json: bool,

    /// Servers: firstflight, nginx, haproxy, h2o, envoy, caddy, openssl, the name of a
    /// --server-cmd, or all that are installed [default: firstflight, and nginx where there is no
    /// --server-cmd]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', help_heading = SERVERS)]
    server: Option<Vec<String>>,

    /// Another server, given as the shell command that starts it in the foreground; may be
    /// repeated.
    ///
    /// Placeholders: {port} (to listen on with TLS), {cert} and {key} (PEM files), {root} (a
    /// directory with the files 1k, 10k and 1m to serve), {log} (a file for a line with path and
    /// query of each request, so that replays can be counted). What the server supports is tested
    /// before the measurement.
    #[arg(long, value_name = "[NAME=]COMMAND", help_heading = SERVERS)]
    server_cmd: Vec<String>,

    /// Networks: lan, datacenter, fibre, cable, adsl, 4g, 3g, leo, geo and so on, a round-trip time
    /// such as 20 or 20ms, an addition such as cable+wifi, a profile file (.toml), all
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', help_heading = NETWORKS)]
    profile: Option<Vec<String>>,

    /// Round-trip times in milliseconds, of networks without anything else
    #[arg(long, value_name = "MS,...", value_delimiter = ',', value_parser = milliseconds, help_heading = NETWORKS)]
    rtt: Option<Vec<Duration>>,

    /// How packets are forwarded: rings (packet sockets; no privilege needed) or tun (TUN devices).
    #[arg(long, value_name = "NAME", default_value = "rings", value_parser = ["rings", "tun"], help_heading = NETWORKS)]
    backend: String,

    /// Keep processors from sleeping while they wait, which occupies all of them: on, off, or auto
    /// (if the machine is idle).
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = ["auto", "on", "off"], help_heading = NETWORKS)]
    keep_awake: String,

    #[command(flatten)]
    browsers: BrowserArgs,

    #[command(flatten)]
    axes: AxesArgs,

    /// Clients: firstflight, curl, openssl (its s_client), gnutls-cli (these over HTTP/1.1), ngtcp2
    /// (its gtlsclient), aioquic (these over HTTP/3); other clients are timed by their packets
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', help_heading = AXES)]
    client: Option<Vec<ClientKind>>,

    /// Cipher suites of TLS 1.3: AES-128-GCM, AES-256-GCM, ChaCha20-Poly1305, any
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', help_heading = AXES)]
    cipher: Option<Vec<CipherSuite>>,

    /// Certificates: ecdsa-p256, rsa-2048, ed25519, rsa-4096-chain (with two intermediates)
    #[arg(long, value_name = "TYPE,...", value_delimiter = ',', help_heading = AXES)]
    certificate: Option<Vec<CertificateKind>>,

    /// Certificate compression by Brotli in full handshakes of TLS 1.3 (at our server): off, on
    #[arg(long, value_name = "off,on", value_delimiter = ',', value_parser = on_off, help_heading = AXES)]
    certificate_compression: Option<Vec<bool>>,

    /// Sizes of the page: 1k, 10k, 1m
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', help_heading = AXES)]
    size: Option<Vec<ResponseSize>>,

    /// First flights to capture at each server and replay; 0 disables the attack.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(..=1000), help_heading = ATTACK)]
    flights: u32,

    /// How often each captured flight is resent
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000), help_heading = ATTACK)]
    replays: u32,

    /// Captures (pcapng with the TLS secrets in them): one good sample of each cell, all, or none
    #[arg(long, value_name = "WHICH", default_value = "one", value_parser = ["one", "all", "none"], help_heading = EVIDENCE)]
    captures: String,

    /// Do not measure processor time, nor compare times with the model
    #[arg(long, help_heading = EVIDENCE)]
    no_costs: bool,

    #[command(flatten, next_help_heading = "Conditions")]
    conditions: ConditionArgs,

    #[command(flatten)]
    explore: explore::ExploreArgs,
}

const SERVERS: &str = "Servers";
const NETWORKS: &str = "Networks";
const AXES: &str = "Axes";
const ATTACK: &str = "Attack";
const EVIDENCE: &str = "Evidence";

impl LabArgs {
    /// Whether flags define a matrix.
    fn has_matrix_flags(&self) -> bool {
        self.axes.is_set()
            || self.profile.is_some()
            || self.rtt.is_some()
            || self.client.is_some()
            || self.cipher.is_some()
            || self.certificate.is_some()
            || self.certificate_compression.is_some()
            || self.size.is_some()
    }
}

pub(crate) fn run(args: LabArgs) -> anyhow::Result<ExitCode> {
    if let Some(code) = explore::run(&args)? {
        return Ok(code);
    }
    if args.browsers.is_set() {
        return browsers::run(&args);
    }
    let Selection { experiments, middleboxes, stalls, restarts } = select(&args)?;
    args.conditions.refuse_old()?;
    results::prepare(&args.output)?;
    // The kernel requires a process with one thread.
    firstflight_emulator::enter_user_namespace()?;
    let run_directory = RunDirectory::create(|| false)?;
    let seed = args.seed.unwrap_or_else(seed_from_clock);
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let config = LabConfig {
        middleboxes,
        stalls,
        restarts,
        flights: args.flights as usize,
        replays: args.replays as usize,
        costs: !args.no_costs,
        keep_awake: match args.keep_awake.as_str() {
            "on" => Some(true),
            "off" => Some(false),
            _ => None,
        },
        backend: backend(&args),
        output: Some(args.output.clone()),
        captures: match args.captures.as_str() {
            "all" => Captures::All,
            "none" => Captures::None,
            _ => Captures::One,
        },
        command: command_line(seed),
        ..LabConfig::new(experiments, seed, run_directory.path(), program)
    };
    let display = ProgressDisplay::new();
    let record = firstflight_lab::run(&config, &|progress| display.lab(progress));
    display.finish();
    let record = record?;
    results::finish(&record, NAME, &args.output, args.json, &args.conditions)
}

fn backend(args: &LabArgs) -> Backend {
    match args.backend.as_str() {
        "tun" => Backend::Tun,
        _ => Backend::PacketRings,
    }
}

const NAME: &str = "lab";

/// The temporary directory of a run. Removed at the end, also if the run is interrupted.
struct RunDirectory(tempfile::TempDir);

impl RunDirectory {
    /// Creates the directory. SIGINT removes it and exits, unless `handled_elsewhere` returns true.
    fn create(handled_elsewhere: impl Fn() -> bool + Send + 'static) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix("firstflight-lab-")
            .tempdir()
            .context("cannot create a temporary directory")?;
        let path = directory.path().to_owned();
        // Namespaces, links and servers end with this process.
        ctrlc::set_handler(move || {
            if handled_elsewhere() {
                return;
            }
            for _ in 0..MAX_REMOVE_ATTEMPTS {
                // A running browser would recreate its files.
                kill_descendants();
                if std::fs::remove_dir_all(&path).is_ok() || !path.exists() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            std::process::exit(i32::from(results::EXIT_CODE_SIGINT));
        })
        .context("cannot catch SIGINT")?;
        Ok(Self(directory))
    }

    fn path(&self) -> PathBuf {
        self.0.path().to_owned()
    }
}

const MAX_REMOVE_ATTEMPTS: usize = 1000;

/// Kills all descendants of this process.
fn kill_descendants() {
    let all: Vec<_> = procfs::process::all_processes()
        .into_iter()
        .flatten()
        .filter_map(|process| process.ok()?.stat().ok())
        .map(|stat| (stat.pid, stat.ppid))
        .collect();
    let mut killed = vec![Pid::this().as_raw()];
    let mut index = 0;
    while let Some(&parent) = killed.get(index) {
        index += 1;
        for (child, _) in all.iter().filter(|(_, ppid)| *ppid == parent) {
            killed.push(*child);
        }
    }
    for child in &killed[1..] {
        let _ = kill(Pid::from_raw(*child), Signal::SIGKILL);
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        lab: LabArgs,
    }

    /// The flags of `firstflight lab`.
    pub(super) fn parse(flags: &[&str]) -> Result<LabArgs, clap::Error> {
        let flags = Flags::try_parse_from([&["lab"], flags].concat())?;
        Ok(flags.lab)
    }
}
