use std::collections::BTreeMap;
use std::time::Duration;

use firstflight_tls::Version;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::latency;
use crate::{Kind, LoadError};

/// How a connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// Nothing listens there.
    ConnectRefused,
    /// No way leads there, or the machine did not answer the connect call in time.
    Unreachable,
    /// All local ports towards the server are taken.
    NoLocalPort,
    /// This process may open no more files.
    NoFile,
    /// The peer reset the connection.
    Reset,
    /// It took longer than the limit.
    Timeout,
    /// The server sent a TLS alert.
    TlsAlert,
    /// The server's certificate was not accepted.
    Certificate,
    /// TLS failed in another way.
    Tls,
    /// QUIC failed, by what this side found.
    Quic,
    /// The peer closed before the response was whole.
    Truncated,
    /// The response is none.
    BadAnswer,
    /// The response is whole and its status is 400 or above.
    HttpStatus,
    /// Another error of the socket.
    Socket,
}

impl ErrorKind {
    /// The kind as tables print it.
    pub fn name(self) -> &'static str {
        match self {
            Self::ConnectRefused => "connect refused",
            Self::Unreachable => "unreachable",
            Self::NoLocalPort => "no local port left",
            Self::NoFile => "too many open files",
            Self::Reset => "reset",
            Self::Timeout => "timeout",
            Self::TlsAlert => "TLS alert",
            Self::Certificate => "certificate",
            Self::Tls => "TLS",
            Self::Quic => "QUIC",
            Self::Truncated => "truncated",
            Self::BadAnswer => "bad answer",
            Self::HttpStatus => "HTTP status",
            Self::Socket => "socket",
        }
    }
}

/// Failures of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorCount {
    /// The kind.
    pub kind: ErrorKind,
    /// How often.
    pub count: u64,
    /// What the first of them said.
    pub example: String,
}

/// What the handshakes of completed connections were, by the TLS state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handshakes {
    /// With the server's certificate, and no early data offered.
    pub full: u64,
    /// Resumed, and no early data offered.
    pub resumed: u64,
    /// Resumed, and early data accepted.
    pub early_accepted: u64,
    /// Early data refused, whether or not the session was then resumed.
    pub early_refused: u64,
}

/// What a completed connection was.
pub(crate) struct Finished {
    pub(crate) version: Option<Version>,
    pub(crate) group: &'static str,
    pub(crate) resumed: bool,
    /// `None`: not offered.
    pub(crate) early_accepted: Option<bool>,
    /// Whether the server took data in the SYN.
    pub(crate) fast_open: bool,
    pub(crate) bytes: u64,
    pub(crate) setup: Duration,
    pub(crate) first_byte: Duration,
    pub(crate) total: Duration,
}

/// All that is counted while a thread works.
#[derive(Clone)]
pub(crate) struct Tally {
    pub(crate) completed: u64,
    /// Completed before the run's time was over.
    pub(crate) in_window: u64,
    pub(crate) as_asked: u64,
    pub(crate) refills: u64,
    /// Connections that warmed up: not measured at all.
    pub(crate) warm_up: u64,
    pub(crate) without_ticket: u64,
    pub(crate) not_begun: u64,
    pub(crate) begun: u64,
    pub(crate) fast_open: u64,
    pub(crate) bytes: u64,
    pub(crate) handshakes: Handshakes,
    pub(crate) negotiated: BTreeMap<(Option<Version>, &'static str), u64>,
    pub(crate) errors: BTreeMap<ErrorKind, (u64, String)>,
    pub(crate) setup: Histogram<u64>,
    pub(crate) first_byte: Histogram<u64>,
    pub(crate) total: Histogram<u64>,
    pub(crate) lateness: Histogram<u64>,
    /// When the last measured connection ended, since the start.
    pub(crate) last_end: Duration,
    pub(crate) cpu: Duration,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self {
            completed: 0,
            in_window: 0,
            as_asked: 0,
            refills: 0,
            warm_up: 0,
            without_ticket: 0,
            not_begun: 0,
            begun: 0,
            fast_open: 0,
            bytes: 0,
            handshakes: Handshakes::default(),
            negotiated: BTreeMap::new(),
            errors: BTreeMap::new(),
            setup: latency::histogram(),
            first_byte: latency::histogram(),
            total: latency::histogram(),
            lateness: latency::histogram(),
            last_end: Duration::ZERO,
            cpu: Duration::ZERO,
        }
    }

    /// A measured connection was completed. Its latency counts only if it was what was requested.
    pub(crate) fn complete(&mut self, kind: Kind, done: &Finished, in_window: bool) {
        self.completed += 1;
        self.in_window += u64::from(in_window);
        self.fast_open += u64::from(done.fast_open);
        self.bytes += done.bytes;
        let (count, asked) = match (done.early_accepted, done.resumed) {
            (Some(true), _) => (&mut self.handshakes.early_accepted, Kind::ZeroRtt),
            (Some(false), _) => {
                self.handshakes.early_refused += 1;
                self.note(done);
                return;
            }
            (None, true) => (&mut self.handshakes.resumed, Kind::Resumed),
            (None, false) => (&mut self.handshakes.full, Kind::Full),
        };
        *count += 1;
        self.note(done);
        if asked == kind {
            self.as_asked += 1;
            self.setup.saturating_record(nanos(done.setup));
            self.first_byte.saturating_record(nanos(done.first_byte));
            self.total.saturating_record(nanos(done.total));
        }
    }

    /// A measured connection failed.
    pub(crate) fn fail(&mut self, kind: ErrorKind, example: impl FnOnce() -> String) {
        self.errors.entry(kind).or_insert_with(|| (0, example())).0 += 1;
    }

    pub(crate) fn failed(&self) -> u64 {
        self.errors.values().map(|(count, _)| count).sum()
    }

    /// Takes another thread's counts in.
    ///
    /// # Errors
    /// [`LoadError::Resources`] if histograms of the same making do not fit each other.
    pub(crate) fn merge(&mut self, other: &Self) -> Result<(), LoadError> {
        let misfit = |_| std::io::Error::other("histograms differ");
        self.setup.add(&other.setup).map_err(misfit)?;
        self.first_byte.add(&other.first_byte).map_err(misfit)?;
        self.total.add(&other.total).map_err(misfit)?;
        self.lateness.add(&other.lateness).map_err(misfit)?;
        for (sum, more) in [
            (&mut self.completed, other.completed),
            (&mut self.in_window, other.in_window),
            (&mut self.as_asked, other.as_asked),
            (&mut self.refills, other.refills),
            (&mut self.warm_up, other.warm_up),
            (&mut self.without_ticket, other.without_ticket),
            (&mut self.not_begun, other.not_begun),
            (&mut self.begun, other.begun),
            (&mut self.fast_open, other.fast_open),
            (&mut self.bytes, other.bytes),
            (&mut self.handshakes.full, other.handshakes.full),
            (&mut self.handshakes.resumed, other.handshakes.resumed),
            (&mut self.handshakes.early_accepted, other.handshakes.early_accepted),
            (&mut self.handshakes.early_refused, other.handshakes.early_refused),
        ] {
            *sum += more;
        }
        for (what, count) in &other.negotiated {
            *self.negotiated.entry(*what).or_default() += count;
        }
        for (kind, (count, example)) in &other.errors {
            self.errors.entry(*kind).or_insert_with(|| (0, example.clone())).0 += count;
        }
        self.last_end = self.last_end.max(other.last_end);
        self.cpu += other.cpu;
        Ok(())
    }

    fn note(&mut self, done: &Finished) {
        *self.negotiated.entry((done.version, done.group)).or_default() += 1;
    }
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
