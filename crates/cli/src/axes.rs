//! The axes that `lab` and `bench` have in common.

use std::time::{Duration, SystemTime};

use clap::Args;
use firstflight_lab::{Group, HandshakeKind, HttpVersion};
use firstflight_tls::Version;

/// Flags of the axes: a list each, and every combination that exists is a cell.
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

    /// HTTP versions: 1.1, 2, 3 (over QUIC; `bench` drives it under load alone)
    #[arg(long, value_name = "VERSION,...", value_delimiter = ',')]
    pub(crate) http: Option<Vec<HttpVersion>>,

    /// Key-share groups: X25519, P-256, X25519MLKEM768 (which does not fit into a SYN)
    #[arg(long, value_name = "GROUP,...", value_delimiter = ',')]
    pub(crate) group: Option<Vec<Group>>,
}

impl AxesArgs {
    /// Whether any axis was chosen.
    pub(crate) fn chosen(&self) -> bool {
        self.tls.is_some()
            || self.kind.is_some()
            || self.tfo.is_some()
            || self.token.is_some()
            || self.http.is_some()
            || self.group.is_some()
    }
}

/// The seed where none is given.
pub(crate) fn seed_from_clock() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

/// The arguments that make a run again: as it was called, with the seed named.
pub(crate) fn command_line(seed: u64) -> Vec<String> {
    let mut command: Vec<String> = std::env::args().skip(1).collect();
    let seeded = |word: &String| word == "--seed" || word.starts_with("--seed=");
    if !command.iter().any(seeded) {
        command.extend(["--seed".to_owned(), seed.to_string()]);
    }
    command
}

/// A round-trip time on the command line.
pub(crate) fn milliseconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(ms) if (0.01..=10_000.0).contains(&ms) => Ok(Duration::from_secs_f64(ms / 1e3)),
        _ => Err("a round-trip time is 0.01 to 10000 milliseconds".to_owned()),
    }
}

fn on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("allowed are off and on".to_owned()),
    }
}
