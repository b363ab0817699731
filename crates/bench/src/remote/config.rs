//! Settings and errors of a remote run.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use firstflight_emulator::LinkError;
use firstflight_samples::{
    ConnectionAxes, Group, HandshakeKind, HttpVersion, RequestedConnection, Transport, Workload,
    combinations, why_impossible,
};
use firstflight_tls::{Trust, Version};

/// The source of labels and round trips.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LabelSource {
    /// Packets if this process may capture them, else the kernel and TLS.
    #[default]
    Auto,
    /// Packets. If they cannot be captured, the run fails with a message that says how to allow it.
    Packets,
    /// The kernel's `TCP_INFO`, QUIC's statistics and the TLS state.
    Kernel,
}

/// The settings of a remote run.
#[derive(Clone, Debug)]
pub struct RemoteConfig {
    /// The URL to request; `https` only.
    pub url: String,
    /// How to verify the server's certificate.
    pub trust: Trust,
    /// Addresses for names in the format of curl's `--resolve`: `HOST:PORT:ADDRESS`.
    pub resolve: Vec<String>,
    /// What to request: a GET, or PING and PONG of a ping-pong server (`serve --ping-pong`).
    pub workloads: Vec<Workload>,
    /// What TLS runs over. A GET's transport follows from its HTTP version.
    pub transports: Vec<Transport>,
    /// TLS versions to measure.
    pub versions: Vec<Version>,
    /// Kinds of handshakes. For [`HandshakeKind::Refused`] the client overstates the age of its ticket, so
    /// that the server refuses early data.
    pub kinds: Vec<HandshakeKind>,
    /// Whether to measure without and with TCP Fast Open.
    pub tfo: Vec<bool>,
    /// Whether to measure without and with an address token; HTTP/3 only.
    pub tokens: Vec<bool>,
    /// HTTP versions.
    pub http: Vec<HttpVersion>,
    /// Key-share groups.
    pub groups: Vec<Group>,
    /// Samples per cell.
    pub samples: usize,
    /// Connections at a time. More than one is faster on a long path, but connections may disturb
    /// each other.
    pub concurrency: usize,
    /// Limits the time of one connection.
    pub timeout: Duration,
    /// Whether to measure one cell twice, as A/A control.
    pub control: bool,
    /// Seed of the order of the samples and of the bootstrap.
    pub seed: u64,
    /// The source of labels and round trips.
    pub label_source: LabelSource,
    /// Directory of the record, where captures are written too. `None` for no captures.
    pub output: Option<PathBuf>,
    /// The command that repeats this run, for the record.
    pub command: Vec<String>,
}

impl RemoteConfig {
    /// 100 samples each of full, resumed and 0-RTT handshakes, one at a time, by TLS 1.3 with X25519
    /// and HTTP/1.1.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            trust: Trust::System,
            resolve: Vec::new(),
            workloads: vec![Workload::Get],
            transports: Transport::ALL.to_vec(),
            versions: vec![Version::Tls13],
            kinds: vec![HandshakeKind::Full, HandshakeKind::Resumed, HandshakeKind::ZeroRtt],
            tfo: vec![false],
            tokens: vec![false],
            http: vec![HttpVersion::One],
            groups: vec![Group::X25519],
            samples: 100,
            concurrency: 1,
            timeout: Duration::from_secs(15),
            control: true,
            seed: 0,
            label_source: LabelSource::Auto,
            output: None,
            command: Vec::new(),
        }
    }

    /// The transports of the combinations that the protocols allow.
    pub(super) fn used_transports(&self) -> Vec<Transport> {
        let requested = self.requested();
        let used = |transport: &Transport| {
            let mut possible = requested.iter().filter(|request| why_impossible(request).is_none());
            possible.any(|request| request.transport == *transport)
        };
        Transport::ALL.into_iter().filter(used).collect()
    }

    pub(super) fn requested(&self) -> Vec<RequestedConnection> {
        combinations(&ConnectionAxes {
            workloads: self.workloads.clone(),
            transports: self.transports.clone(),
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

/// Why a remote server could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// Packets cannot be captured.
    #[error(transparent)]
    Capture(#[from] LinkError),
    /// The URL is invalid, or its server cannot be reached.
    #[error("cannot measure {url}: {reason}")]
    Url {
        /// The URL.
        url: String,
        /// The cause.
        reason: String,
    },
    /// No cell is left to measure.
    #[error("{0}")]
    EmptyPlan(String),
    /// A capture file could not be written.
    #[error("cannot write {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    System {
        /// The operation.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
}
