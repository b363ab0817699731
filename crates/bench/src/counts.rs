//! What a thread counts, and the latencies of many connections.

use std::collections::BTreeMap;
use std::time::Duration;

use firstflight_report::statistics::samples_needed;
use firstflight_tls::Version;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::{ErrorKind, LoadError, LoadHandshake};

/// The handshakes of completed connections by kind, as the TLS state reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handshakes {
    /// With the server's certificate, and no early data offered.
    pub full: u64,
    /// Resumed, and no early data offered.
    pub resumed: u64,
    /// Resumed, and early data accepted.
    pub early_accepted: u64,
    /// Early data refused, whether or not the session was resumed.
    pub early_refused: u64,
}

/// Numbers of UDP datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Datagrams<N> {
    /// From the client.
    pub sent: N,
    /// From the server.
    pub received: N,
}

/// A completed connection.
pub(crate) struct Finished {
    pub(crate) version: Option<Version>,
    pub(crate) group: &'static str,
    pub(crate) resumed: bool,
    /// `None` if early data was not offered.
    pub(crate) early_accepted: Option<bool>,
    /// Whether the server accepted data in the SYN.
    pub(crate) fast_open: bool,
    /// The HTTP status; `None` for ping-pong.
    pub(crate) status: Option<u16>,
    pub(crate) bytes: u64,
    pub(crate) setup: Duration,
    pub(crate) first_byte: Duration,
    pub(crate) total: Duration,
}

/// Everything that one thread counts.
#[derive(Clone)]
pub(crate) struct Counts {
    pub(crate) completed: u64,
    /// Completed before the end of the run.
    pub(crate) in_window: u64,
    pub(crate) as_requested: u64,
    pub(crate) refills: u64,
    /// Warm-up connections, which are not measured.
    pub(crate) warm_up: u64,
    pub(crate) without_ticket: u64,
    pub(crate) not_started: u64,
    pub(crate) started: u64,
    pub(crate) fast_open: u64,
    pub(crate) bytes: u64,
    /// Datagrams of all QUIC connections, including failed ones.
    pub(crate) datagrams: Datagrams<u64>,
    pub(crate) handshakes: Handshakes,
    pub(crate) negotiated: BTreeMap<(Option<Version>, &'static str), u64>,
    pub(crate) statuses: BTreeMap<u16, u64>,
    pub(crate) errors: BTreeMap<ErrorKind, (u64, String)>,
    pub(crate) setup: Histogram<u64>,
    pub(crate) first_byte: Histogram<u64>,
    pub(crate) total: Histogram<u64>,
    pub(crate) lateness: Histogram<u64>,
    /// When the last measured connection ended, since the start.
    pub(crate) last_end: Duration,
    pub(crate) cpu: Duration,
    /// Whether a closed loop ended early, because the server issued no more tickets. After a merge:
    /// whether all threads did.
    pub(crate) gave_up: bool,
}

impl Counts {
    pub(crate) fn new() -> Self {
        Self {
            completed: 0,
            in_window: 0,
            as_requested: 0,
            refills: 0,
            warm_up: 0,
            without_ticket: 0,
            not_started: 0,
            started: 0,
            fast_open: 0,
            bytes: 0,
            datagrams: Datagrams::default(),
            handshakes: Handshakes::default(),
            negotiated: BTreeMap::new(),
            statuses: BTreeMap::new(),
            errors: BTreeMap::new(),
            setup: histogram(),
            first_byte: histogram(),
            total: histogram(),
            lateness: histogram(),
            last_end: Duration::ZERO,
            cpu: Duration::ZERO,
            gave_up: false,
        }
    }

    /// Counts a completed connection. Its latency counts only if its handshake was as requested.
    pub(crate) fn complete(&mut self, kind: LoadHandshake, finished: &Finished, in_window: bool) {
        self.completed += 1;
        self.in_window += u64::from(in_window);
        self.fast_open += u64::from(finished.fast_open);
        self.bytes += finished.bytes;
        if let Some(status) = finished.status {
            *self.statuses.entry(status).or_default() += 1;
        }
        let (count, actual) = match (finished.early_accepted, finished.resumed) {
            (Some(true), _) => (&mut self.handshakes.early_accepted, LoadHandshake::ZeroRtt),
            (Some(false), _) => {
                self.handshakes.early_refused += 1;
                self.count_negotiated(finished);
                return;
            }
            (None, true) => (&mut self.handshakes.resumed, LoadHandshake::Resumed),
            (None, false) => (&mut self.handshakes.full, LoadHandshake::Full),
        };
        *count += 1;
        self.count_negotiated(finished);
        if actual == kind {
            self.as_requested += 1;
            self.setup.saturating_record(nanos(finished.setup));
            self.first_byte.saturating_record(nanos(finished.first_byte));
            self.total.saturating_record(nanos(finished.total));
        }
    }

    /// Counts a failed connection.
    pub(crate) fn fail(&mut self, kind: ErrorKind, example: impl FnOnce() -> String) {
        self.errors.entry(kind).or_insert_with(|| (0, example())).0 += 1;
    }

    pub(crate) fn failed(&self) -> u64 {
        self.errors.values().map(|(count, _)| count).sum()
    }

    /// Datagrams per connection.
    pub(crate) fn datagrams_per_connection(&self) -> Option<Datagrams<f64>> {
        let connections = self.completed + self.failed() + self.refills + self.warm_up;
        let each = |count: u64| count as f64 / connections as f64;
        let Datagrams { sent, received } = self.datagrams;
        (connections > 0).then(|| Datagrams { sent: each(sent), received: each(received) })
    }

    /// Adds the counts of another thread.
    ///
    /// # Errors
    /// [`LoadError::Resources`] if the histograms have different bounds, which cannot happen.
    pub(crate) fn merge(&mut self, other: &Self) -> Result<(), LoadError> {
        let incompatible = |_| std::io::Error::other("histograms differ");
        self.setup.add(&other.setup).map_err(incompatible)?;
        self.first_byte.add(&other.first_byte).map_err(incompatible)?;
        self.total.add(&other.total).map_err(incompatible)?;
        self.lateness.add(&other.lateness).map_err(incompatible)?;
        for (sum, more) in [
            (&mut self.completed, other.completed),
            (&mut self.in_window, other.in_window),
            (&mut self.as_requested, other.as_requested),
            (&mut self.refills, other.refills),
            (&mut self.warm_up, other.warm_up),
            (&mut self.without_ticket, other.without_ticket),
            (&mut self.not_started, other.not_started),
            (&mut self.started, other.started),
            (&mut self.fast_open, other.fast_open),
            (&mut self.bytes, other.bytes),
            (&mut self.datagrams.sent, other.datagrams.sent),
            (&mut self.datagrams.received, other.datagrams.received),
            (&mut self.handshakes.full, other.handshakes.full),
            (&mut self.handshakes.resumed, other.handshakes.resumed),
            (&mut self.handshakes.early_accepted, other.handshakes.early_accepted),
            (&mut self.handshakes.early_refused, other.handshakes.early_refused),
        ] {
            *sum += more;
        }
        for (key, count) in &other.negotiated {
            *self.negotiated.entry(*key).or_default() += count;
        }
        for (status, count) in &other.statuses {
            *self.statuses.entry(*status).or_default() += count;
        }
        for (kind, (count, example)) in &other.errors {
            self.errors.entry(*kind).or_insert_with(|| (0, example.clone())).0 += count;
        }
        self.last_end = self.last_end.max(other.last_end);
        self.cpu += other.cpu;
        self.gave_up &= other.gave_up;
        Ok(())
    }

    fn count_negotiated(&mut self, finished: &Finished) {
        *self.negotiated.entry((finished.version, finished.group)).or_default() += 1;
    }
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Latency of many connections, in milliseconds. A high percentile needs as many samples as it takes
/// for the largest to lie above it with 95 % confidence; it is `None` with fewer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Number of samples.
    pub count: u64,
    /// Minimum.
    pub min_ms: f64,
    /// Median.
    pub p50_ms: f64,
    /// 90th percentile.
    pub p90_ms: f64,
    /// 95th percentile; from 59 samples on.
    pub p95_ms: Option<f64>,
    /// 99th percentile; from 299 samples on.
    pub p99_ms: Option<f64>,
    /// 99.9th percentile; from 2,995 samples on.
    pub p999_ms: Option<f64>,
    /// Maximum.
    pub max_ms: f64,
}

impl Latency {
    /// Summarizes a histogram of nanoseconds. Returns `None` if it is empty.
    pub(crate) fn from_histogram(histogram: &Histogram<u64>) -> Option<Self> {
        let count = histogram.len();
        let at = |p| ms(histogram.value_at_quantile(p));
        (count > 0).then(|| Self {
            count,
            min_ms: ms(histogram.min()),
            p50_ms: at(0.5),
            p90_ms: at(0.9),
            p95_ms: reported_percentile(histogram, 0.95),
            p99_ms: reported_percentile(histogram, 0.99),
            p999_ms: reported_percentile(histogram, 0.999),
            max_ms: ms(histogram.max()),
        })
    }
}

/// A percentile in milliseconds. Returns `None` with too few samples.
pub(crate) fn reported_percentile(histogram: &Histogram<u64>, p: f64) -> Option<f64> {
    let enough = histogram.len() >= samples_needed(p) as u64;
    enough.then(|| ms(histogram.value_at_quantile(p)))
}

/// An empty histogram of nanoseconds up to an hour, with a resolution of 0.1 %.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1_000, 3_600_000_000_000, 3).expect("valid bounds")
}

/// The percentiles 0 to 100 in steps of one, in milliseconds: enough to draw the distribution.
pub(crate) fn percentiles(histogram: &Histogram<u64>) -> Vec<f64> {
    if histogram.is_empty() {
        return Vec::new();
    }
    let at = |p: u32| match p {
        0 => ms(histogram.min()),
        100 => ms(histogram.max()),
        p => ms(histogram.value_at_quantile(f64::from(p) / 100.0)),
    };
    (0..=100).map(at).collect()
}

/// Nanoseconds as milliseconds.
pub(crate) fn ms(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latency_of(count: u64) -> Latency {
        let mut histogram = histogram();
        (1..=count).for_each(|i| histogram.saturating_record(i * 1_000_000));
        Latency::from_histogram(&histogram).unwrap()
    }

    #[test]
    fn threads_have_given_up_if_all_did() {
        let thread = |gave_up| Counts { gave_up, ..Counts::new() };
        for (first, second) in [(true, true), (true, false), (false, true)] {
            let mut all = thread(first);
            all.merge(&thread(second)).unwrap();
            assert_eq!(all.gave_up, first && second);
        }
    }

    #[test]
    fn a_percentile_needs_enough_samples() {
        let reported = |count| {
            let latency = latency_of(count);
            [latency.p95_ms, latency.p99_ms, latency.p999_ms].map(|p| p.is_some())
        };
        assert_eq!(reported(58), [false, false, false]);
        assert_eq!(reported(59), [true, false, false]);
        assert_eq!(reported(298), [true, false, false]);
        assert_eq!(reported(299), [true, true, false]);
        assert_eq!(reported(2994), [true, true, false]);
        assert_eq!(reported(2995), [true, true, true]);
    }

    #[test]
    fn values_are_within_a_thousandth() {
        let latency = latency_of(1000);
        for (value, expected) in
            [(latency.min_ms, 1.0), (latency.p50_ms, 500.0), (latency.max_ms, 1000.0)]
        {
            assert!((value / expected - 1.0).abs() < 0.002, "{latency:?}");
        }
        assert_eq!(Latency::from_histogram(&histogram()), None);
    }

    #[test]
    fn an_hour_and_more_is_recorded_as_an_hour() {
        let mut histogram = histogram();
        histogram.saturating_record(u64::MAX);
        assert!(ms(histogram.max()) >= 3.6e6);
        assert_eq!(percentiles(&histogram).len(), 101);
    }
}
