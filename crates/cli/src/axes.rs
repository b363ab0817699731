//! Flags that `lab` and `bench` share: the axes of the matrix.

use std::time::{Duration, SystemTime};

use clap::Args;
use firstflight_lab::{Group, HandshakeKind, HttpVersion, Transport, Workload};
use firstflight_tls::Version;

/// The axes: each flag is a list of values, and every valid combination is a cell.
#[derive(Args)]
#[command(next_help_heading = "Axes")]
pub(crate) struct AxesArgs {
    /// TLS versions: 1.0, 1.1, 1.2, 1.3
    #[arg(long, value_name = "VERSION,...", value_delimiter = ',')]
    pub(crate) tls: Option<Vec<Version>>,

    /// Handshakes: full, resumed, 0-RTT, and refused (early data with a ticket that claims to be
    /// older than it is, so that the server refuses it)
    #[arg(long, value_name = "KIND,...", value_delimiter = ',')]
    pub(crate) kind: Option<Vec<HandshakeKind>>,

    /// TCP Fast Open: off, on
    #[arg(long, value_name = "off,on", value_delimiter = ',', value_parser = on_off)]
    pub(crate) tfo: Option<Vec<bool>>,

    /// Address tokens from earlier connections (QUIC; not on a first visit): off, on
    #[arg(long, value_name = "off,on", value_delimiter = ',', value_parser = on_off)]
    pub(crate) token: Option<Vec<bool>>,

    /// HTTP versions: 1.1, 2, 3 (over QUIC)
    #[arg(long, value_name = "VERSION,...", value_delimiter = ',')]
    pub(crate) http: Option<Vec<HttpVersion>>,

    /// Key-share groups: X25519, P-256, X25519MLKEM768 (which does not fit into a SYN)
    #[arg(long, value_name = "GROUP,...", value_delimiter = ',')]
    pub(crate) group: Option<Vec<Group>>,

    /// Workloads: get, ping-pong (a server of `serve --ping-pong`; in the lab our server only)
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub(crate) workload: Option<Vec<Workload>>,

    /// Transports: tcp, quic [default: those that --http and --tls allow]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub(crate) transport: Option<Vec<Transport>>,
}

impl AxesArgs {
    /// Whether any axis is given.
    pub(crate) fn is_set(&self) -> bool {
        self.tls.is_some()
            || self.kind.is_some()
            || self.tfo.is_some()
            || self.token.is_some()
            || self.http.is_some()
            || self.group.is_some()
            || self.workload.is_some()
            || self.transport.is_some()
    }
}

/// The HTTP versions if `--http` is not given: one for each transport.
pub(crate) fn default_http(transports: &[Transport]) -> Vec<HttpVersion> {
    let version = |transport: &Transport| match transport {
        Transport::Tcp => HttpVersion::One,
        Transport::Quic => HttpVersion::Three,
    };
    transports.iter().map(version).collect()
}

/// The seed if `--seed` is not given.
pub(crate) fn seed_from_clock() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

/// The arguments of this run, with the seed, so that the run can be repeated.
pub(crate) fn command_line(seed: u64) -> Vec<String> {
    let mut command: Vec<String> = std::env::args().skip(1).collect();
    let is_seed_flag = |word: &String| word == "--seed" || word.starts_with("--seed=");
    if !command.iter().any(is_seed_flag) {
        command.extend(["--seed".to_owned(), seed.to_string()]);
    }
    command
}

/// Parses a round-trip time in milliseconds.
pub(crate) fn milliseconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(ms) if (0.01..=10_000.0).contains(&ms) => Ok(Duration::from_secs_f64(ms / 1e3)),
        _ => Err("give a round-trip time from 0.01 to 10000 milliseconds".to_owned()),
    }
}

/// Parses a value of an axis that is on or off.
pub(crate) fn on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("give on or off".to_owned()),
    }
}
