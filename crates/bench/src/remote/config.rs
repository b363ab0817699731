//! What is measured at a server elsewhere, and how.

use std::path::PathBuf;
use std::time::Duration;

use firstflight_samples::{
    ConnectionAxes, Group, HandshakeKind, HttpVersion, RequestedConnection, Workload, combinations,
};
use firstflight_tls::{Trust, Version};

/// Who is to say what each connection was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LabelSource {
    /// The packets where this process may capture them, else the kernel and TLS.
    #[default]
    Auto,
    /// The packets; where they may not be captured, the run fails and says how to fix it.
    Packets,
    /// The kernel's `TCP_INFO` and the TLS state.
    Kernel,
}

/// What to measure at a server elsewhere.
#[derive(Clone, Debug)]
pub struct RemoteConfig {
    /// What is asked for; `https` only.
    pub url: String,
    /// Whom to trust.
    pub trust: Trust,
    /// Addresses for names, as curl's `--resolve` has them: `HOST:PORT:ADDRESS`.
    pub resolve: Vec<String>,
    /// TLS versions.
    pub versions: Vec<Version>,
    /// Handshake kinds; [`HandshakeKind::Refused`] makes the server refuse by a ticket that claims to be
    /// older.
    pub kinds: Vec<HandshakeKind>,
    /// Without and with TCP Fast Open.
    pub tfo: Vec<bool>,
    /// Without and with an address token; HTTP/3 only.
    pub tokens: Vec<bool>,
    /// HTTP versions.
    pub http: Vec<HttpVersion>,
    /// Key-share groups.
    pub groups: Vec<Group>,
    /// Samples a cell.
    pub samples: usize,
    /// Connections at a time. One disturbs least; more are quicker where the way is long.
    pub at_a_time: usize,
    /// When a connection has hung.
    pub limit: Duration,
    /// Whether one cell is measured twice, as A/A control.
    pub control: bool,
    /// Orders the samples, and draws the bootstrap's resamples.
    pub seed: u64,
    /// Who says what each connection was.
    pub witness: LabelSource,
    /// Where the record will lie, for captures beside it; `None`: no captures.
    pub output: Option<PathBuf>,
    /// The command that makes this run again, for the record.
    pub command: Vec<String>,
}

impl RemoteConfig {
    /// TLS 1.3 over HTTP/1.1 with X25519, full, resumed and 0-RTT, 100 samples each, one at a time.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            trust: Trust::System,
            resolve: Vec::new(),
            versions: vec![Version::Tls13],
            kinds: vec![HandshakeKind::Full, HandshakeKind::Resumed, HandshakeKind::ZeroRtt],
            tfo: vec![false],
            tokens: vec![false],
            http: vec![HttpVersion::One],
            groups: vec![Group::X25519],
            samples: 100,
            at_a_time: 1,
            limit: Duration::from_secs(15),
            control: true,
            seed: 0,
            witness: LabelSource::Auto,
            output: None,
            command: Vec::new(),
        }
    }

    pub(super) fn asked(&self) -> Vec<RequestedConnection> {
        combinations(&ConnectionAxes {
            workloads: vec![Workload::Get],
            versions: self.versions.clone(),
            kinds: self.kinds.clone(),
            tfo: self.tfo.clone(),
            tokens: self.tokens.clone(),
            http: self.http.clone(),
            groups: self.groups.clone(),
            ..ConnectionAxes::baseline()
        })
    }
}
