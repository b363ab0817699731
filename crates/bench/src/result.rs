use std::collections::BTreeSet;
use std::num::NonZero;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::counts::{Counts, ms, percentiles};
use crate::{
    Arrivals, Datagrams, ErrorCount, ErrorKind, Handshakes, Latency, Limit, LoadConfig,
    LoadHandshake, Model, Transport,
};

/// The result of a load run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadResult {
    /// `open` (connections start at scheduled times, from which latency counts) or `closed` (a
    /// connection starts when another has ended; the wait does not show in its latency).
    pub model: String,
    /// The transport.
    pub transport: Transport,
    /// The kind of handshake that was requested.
    pub kind: LoadHandshake,
    /// `get` or `ping-pong`.
    pub exchange: String,
    /// The TLS version that was offered, such as `TLSv1.3`.
    pub version: String,
    /// Number of client threads.
    pub threads: usize,
    /// Connections open at a time: always (closed loop), or at most (open loop).
    pub connections: usize,
    /// Requested connections per second; open loop only.
    pub rate_wanted: Option<f64>,
    /// Distribution of the scheduled times; open loop only.
    pub arrivals: Option<Arrivals>,
    /// Seed of the scheduled times; open loop only.
    pub seed: Option<u64>,
    /// Length of the run in seconds: the requested time, or the time until the last connection ended
    /// if a number of connections was requested, the run was stopped, or no tickets were left.
    pub seconds: f64,
    /// Connections completed per second within this time.
    pub rate: f64,
    /// Measured connections that were started.
    #[serde(rename = "begun")]
    pub started: u64,
    /// Completed connections: the response was complete, and its HTTP status below 400.
    pub completed: u64,
    /// Completed connections whose handshake was of the requested kind. Only these are in the
    /// latencies.
    #[serde(rename = "as_asked")]
    pub as_requested: u64,
    /// Handshakes of the completed connections.
    pub handshakes: Handshakes,
    /// TLS versions and key-share groups of the completed connections, with their counts.
    pub negotiated: Vec<(String, u64)>,
    /// HTTP statuses of the completed connections, with their counts.
    #[serde(default)]
    pub statuses: Vec<(u16, u64)>,
    /// Failed connections by kind.
    pub errors: Vec<ErrorCount>,
    /// Connections that were due and never started, because the backlog was full or the run had
    /// ended; open loop only.
    #[serde(rename = "not_begun")]
    pub not_started: u64,
    /// Connections that were due when no ticket was left. A full handshake that is not measured took
    /// their place, to fetch tickets.
    pub without_ticket: u64,
    /// Full handshakes that completed in place of such connections.
    pub refills: u64,
    /// Connections before the run, for tickets and for the TFO cookie.
    pub warm_up: u64,
    /// Completed connections with data in the SYN that the server accepted; `None` without TCP Fast
    /// Open.
    pub fast_open: Option<u64>,
    /// Bytes of the responses, heads included, without TLS.
    #[serde(rename = "answer_bytes")]
    pub response_bytes: u64,
    /// UDP datagrams per connection, including the client's close and later ones; `None` over TCP.
    pub datagrams: Option<Datagrams<f64>>,
    /// From the scheduled start to the verified Finished of the server. Early data is sent before.
    pub setup: Option<Latency>,
    /// From the scheduled start to the first byte of the response.
    pub first_byte: Option<Latency>,
    /// From the scheduled start to the last byte of the response.
    pub total: Option<Latency>,
    /// From the scheduled start to the connect call: the delay of the client itself; open loop only.
    pub lateness: Option<Latency>,
    /// The percentiles 0 to 100 of `total`, in steps of one, in milliseconds.
    pub total_percentiles_ms: Vec<f64>,
    /// CPU time of the client's threads per connection, in microseconds, kernel included. Failed
    /// connections and refills count. `None` if there were no connections.
    pub client_us: Option<f64>,
    /// CPU use of the client: 1 if its threads kept all processors that they may use busy. Near 1,
    /// the client limits the rate, and not the server.
    #[serde(default)]
    pub client_busy: f64,
    /// Connections per second that one client core could drive at this cost.
    pub client_capacity: Option<f64>,
    /// CPU time of the server's processes per connection, in microseconds; `None` if no process was
    /// given.
    pub server_us: Option<f64>,
    /// Whether the run was stopped before its end.
    pub stopped: bool,
    /// What a reader of the figures has to know, one sentence each.
    pub warnings: Vec<String>,
}

impl LoadResult {
    /// Makes the result from the counts of all threads.
    pub(crate) fn new(
        config: &LoadConfig,
        counts: &Counts,
        server_cpu: Option<Duration>,
        stopped: bool,
    ) -> Self {
        let seconds = match config.limit {
            Limit::Time(time) if !stopped && !counts.gave_up => time,
            _ => counts.last_end,
        }
        .as_secs_f64();
        // Connections of the run may end after it.
        let elapsed = seconds.max(counts.last_end.as_secs_f64());
        let connections = counts.completed + counts.failed() + counts.refills;
        let us_per_connection = |time: Duration| {
            (connections > 0).then(|| time.as_secs_f64() * 1e6 / connections as f64)
        };
        let client_us = us_per_connection(counts.cpu);
        let (rate_wanted, arrivals, seed) = match config.model {
            Model::Open { rate, arrivals, seed, .. } => (Some(rate), Some(arrivals), Some(seed)),
            Model::Closed { .. } => (None, None, None),
        };
        let mut result = Self {
            model: config.model.name().to_owned(),
            transport: config.transport,
            kind: config.kind,
            exchange: config.exchange.name().to_owned(),
            version: config.version.name().to_owned(),
            threads: config.threads,
            connections: config.model.max_open(),
            rate_wanted,
            arrivals,
            seed,
            seconds,
            rate: if seconds > 0.0 { counts.in_window as f64 / seconds } else { 0.0 },
            started: counts.started,
            completed: counts.completed,
            as_requested: counts.as_requested,
            handshakes: counts.handshakes,
            negotiated: negotiated(counts),
            statuses: counts.statuses.iter().map(|(status, count)| (*status, *count)).collect(),
            errors: errors(counts),
            not_started: counts.not_started,
            without_ticket: counts.without_ticket,
            refills: counts.refills,
            warm_up: counts.warm_up,
            fast_open: config.fast_open.then_some(counts.fast_open),
            response_bytes: counts.bytes,
            datagrams: (config.transport == Transport::Quic)
                .then(|| counts.datagrams_per_connection())
                .flatten(),
            setup: Latency::from_histogram(&counts.setup),
            first_byte: Latency::from_histogram(&counts.first_byte),
            total: Latency::from_histogram(&counts.total),
            lateness: rate_wanted.and_then(|_| Latency::from_histogram(&counts.lateness)),
            total_percentiles_ms: percentiles(&counts.total),
            client_us,
            client_busy: match elapsed > 0.0 {
                true => counts.cpu.as_secs_f64() / elapsed / client_processors(config) as f64,
                false => 0.0,
            },
            client_capacity: client_us.filter(|us| *us > 0.0).map(|us| 1e6 / us),
            server_us: server_cpu.and_then(us_per_connection),
            stopped,
            warnings: Vec::new(),
        };
        result.warnings = result.warnings(counts);
        result
    }

    /// How many connections failed.
    pub fn failed(&self) -> u64 {
        self.errors.iter().map(|error| error.count).sum()
    }

    fn warnings(&self, counts: &Counts) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.stopped {
            warnings.push(format!("the run was stopped after {:.1} s", self.seconds));
        }
        if counts.gave_up {
            warnings.push(format!(
                "the run ended after {:.1} s, because the server issued no more tickets",
                self.seconds
            ));
        }
        let other = self.completed - self.as_requested;
        if other > 0 {
            warnings.push(format!(
                "{other} of {} connections were not {}; they are not in the latencies",
                self.completed,
                self.kind.name()
            ));
        }
        if self.without_ticket > 0 {
            let advice = match self.failed() {
                0 => "let the server issue more tickets per connection",
                _ => "connections that failed used theirs up",
            };
            warnings.push(format!(
                "no ticket was left for {} connections; a full handshake that is not measured took the \
                 place of each; {advice}",
                self.without_ticket
            ));
        }
        if self.not_started > 0 {
            warnings.push(format!(
                "{} connections were never started: server or client cannot sustain this rate",
                self.not_started
            ));
        }
        let timeouts = self.errors.iter().find(|error| error.kind == ErrorKind::Timeout);
        if let Some(timeouts) = timeouts {
            warnings.push(format!(
                "{} connections timed out; the percentiles do not include these slowest ones",
                timeouts.count
            ));
        }
        let lateness_ms = ms(counts.lateness.value_at_quantile(0.99));
        if self.rate_wanted.is_some() && lateness_ms > MAX_LATENESS_MS {
            warnings.push(format!(
                "1 % of the connections started {lateness_ms:.1} ms late or more, which their latency \
                 includes; use more threads or a lower rate if the server is not the cause"
            ));
        }
        if self.fast_open.is_some_and(|used| used < self.completed) {
            warnings.push(format!(
                "TCP Fast Open carried data on only {} of {} connections",
                self.fast_open.unwrap_or_default(),
                self.completed
            ));
        }
        if self.client_busy >= MAX_CLIENT_BUSY {
            warnings.push(format!(
                "the client's threads were busy for {:.0} % of the time, so rate and latency can be \
                 the client's and not the server's; use more threads or another machine",
                100.0 * self.client_busy
            ));
        }
        warnings
    }
}

/// A higher 99th percentile of the lateness gets a warning.
const MAX_LATENESS_MS: f64 = 1.0;

/// A client that is busy for this share of a run, or more, can be what limits the rate.
pub const MAX_CLIENT_BUSY: f64 = 0.95;

/// How many processors the client's threads can use at a time.
fn client_processors(config: &LoadConfig) -> usize {
    let pinned: BTreeSet<usize> = config.cores.iter().take(config.threads).copied().collect();
    let available = match pinned.len() {
        0 => thread::available_parallelism().map_or(config.threads, NonZero::get),
        cores => cores,
    };
    config.threads.min(available)
}

fn negotiated(counts: &Counts) -> Vec<(String, u64)> {
    let name = |(version, group): &(Option<firstflight_tls::Version>, &str)| {
        format!("{} {group}", version.map_or("unknown", firstflight_tls::Version::name))
    };
    counts.negotiated.iter().map(|(key, count)| (name(key), *count)).collect()
}

fn errors(counts: &Counts) -> Vec<ErrorCount> {
    let errors = counts.errors.iter();
    errors
        .map(|(kind, (count, example))| ErrorCount {
            kind: *kind,
            count: *count,
            example: example.clone(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counts::Finished;

    fn finished(resumed: bool, early_accepted: Option<bool>) -> Finished {
        Finished {
            version: Some(firstflight_tls::Version::Tls13),
            group: "X25519",
            resumed,
            early_accepted,
            fast_open: false,
            status: Some(200),
            bytes: 4,
            setup: Duration::from_millis(1),
            first_byte: Duration::from_millis(2),
            total: Duration::from_millis(3),
        }
    }

    #[test]
    fn connections_of_another_kind_are_counted_but_not_in_the_latencies() {
        let config = LoadConfig {
            kind: LoadHandshake::ZeroRtt,
            limit: Limit::Time(Duration::from_secs(2)),
            ..LoadConfig::new(Vec::new(), "h")
        };
        let mut counts = Counts::new();
        for (resumed, early) in [
            (true, Some(true)),
            (true, Some(false)),
            (false, Some(false)),
            (true, None),
            (false, None),
        ] {
            counts.complete(config.kind, &finished(resumed, early), true);
        }
        counts.fail(ErrorKind::Timeout, || "late".to_owned());
        counts.cpu = Duration::from_micros(600);
        let result = LoadResult::new(&config, &counts, Some(Duration::from_micros(300)), false);
        let handshakes = Handshakes { full: 1, resumed: 1, early_accepted: 1, early_refused: 2 };
        assert_eq!(result.handshakes, handshakes);
        assert_eq!((result.completed, result.as_requested, result.failed()), (5, 1, 1));
        assert_eq!(result.total.as_ref().unwrap().count, 1);
        assert_eq!(
            (result.rate, result.client_us, result.server_us),
            (2.5, Some(100.0), Some(50.0))
        );
        assert_eq!(result.client_capacity, Some(10_000.0));
        assert_eq!(result.warnings.len(), 2, "{:?}", result.warnings);
        assert_eq!(result.negotiated, [("TLSv1.3 X25519".to_owned(), 5)]);
        assert_eq!(result.statuses, [(200, 5)]);
    }

    #[test]
    fn a_client_that_limits_the_rate_is_reported() {
        let warned = |cpu_ms, cores: &[usize]| {
            let config = LoadConfig {
                limit: Limit::Time(Duration::from_secs(1)),
                threads: 2,
                cores: cores.to_vec(),
                ..LoadConfig::new(Vec::new(), "h")
            };
            let mut counts = Counts::new();
            counts.complete(config.kind, &finished(false, None), true);
            counts.cpu = Duration::from_millis(cpu_ms);
            let result = LoadResult::new(&config, &counts, None, false);
            result.warnings.iter().any(|warning| warning.contains("busy"))
        };
        assert!(warned(1910, &[0, 1]) && !warned(1890, &[0, 1]));
        assert!(warned(960, &[0, 0]), "both threads share a processor");
    }

    #[test]
    fn a_run_that_ends_for_lack_of_tickets_reports_its_actual_duration() {
        let config = LoadConfig {
            kind: LoadHandshake::Resumed,
            limit: Limit::Time(Duration::from_secs(10)),
            ..LoadConfig::new(Vec::new(), "h")
        };
        let mut counts = Counts::new();
        counts.complete(config.kind, &finished(true, None), true);
        (counts.last_end, counts.gave_up) = (Duration::from_secs(2), true);
        let result = LoadResult::new(&config, &counts, None, false);
        assert_eq!((result.seconds, result.rate), (2.0, 0.5));
        assert!(result.warnings[0].contains("ended after 2.0 s"), "{:?}", result.warnings);
    }

    #[test]
    fn a_run_without_connections_has_no_figures() {
        let config = LoadConfig::new(Vec::new(), "h");
        let result = LoadResult::new(&config, &Counts::new(), None, true);
        assert_eq!((result.rate, result.client_us, result.total.clone()), (0.0, None, None));
        let text = serde_json::to_string(&result).unwrap();
        assert_eq!(serde_json::from_str::<LoadResult>(&text).unwrap(), result);
    }
}
