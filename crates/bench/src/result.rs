use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::latency::{self, Latency, ms};
use crate::tally::Tally;
use crate::{
    Arrivals, ErrorCount, ErrorKind, Handshakes, Kind, Limit, LoadConfig, Model, Transport,
};

/// What a load run came to: plain data for a report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadResult {
    /// `open` (connections start at intended times, latency counts from them) or `closed` (a new
    /// one starts when another has ended; waiting in line does not show in its latency).
    pub model: String,
    /// What carried TLS.
    pub transport: Transport,
    /// What was requested.
    pub kind: Kind,
    /// `get` or `ping-pong`.
    pub exchange: String,
    /// The TLS version that was offered, such as `TLSv1.3`.
    pub version: String,
    /// Threads of the client.
    pub threads: usize,
    /// Connections open at a time: as many as that all the time (closed), or at most (open).
    pub connections: usize,
    /// Connections a second that were requested; open only.
    pub rate_wanted: Option<f64>,
    /// How the intended times were spread; open only.
    pub arrivals: Option<Arrivals>,
    /// What ordered them; open only.
    pub seed: Option<u64>,
    /// The run's length in seconds: the time that was requested, or until the last connection
    /// ended where a number was requested or the run was stopped.
    pub seconds: f64,
    /// Connections a second that were completed within these seconds.
    pub rate: f64,
    /// Connections that were started to be measured.
    pub begun: u64,
    /// Of these, completed: the response was whole, and its status (HTTP) below 400.
    pub completed: u64,
    /// Of the completed, those whose handshake was what was requested. The latencies are theirs.
    pub as_asked: u64,
    /// What the handshakes of the completed ones were.
    pub handshakes: Handshakes,
    /// Versions and key-share groups of the completed ones, and how many had each.
    pub negotiated: Vec<(String, u64)>,
    /// What failed.
    pub errors: Vec<ErrorCount>,
    /// Arrivals that were due and never started, because too many waited already or the run was
    /// over; open only.
    pub not_begun: u64,
    /// How often no ticket was left for a connection that was due. A full handshake took its place
    /// to fetch some; it is not measured.
    pub without_ticket: u64,
    /// Such full handshakes that were completed.
    pub refills: u64,
    /// Connections before the run, for tickets and for the TFO cookie.
    pub warm_up: u64,
    /// Completed connections with data in the SYN that the server took; `None` if Fast Open was
    /// not asked for.
    pub fast_open: Option<u64>,
    /// Bytes of the responses, heads included, without TLS.
    pub answer_bytes: u64,
    /// From the intended start to the server's Finished, verified. With early data the request is
    /// under way before that.
    pub setup: Option<Latency>,
    /// From the intended start to the response's first byte.
    pub first_byte: Option<Latency>,
    /// From the intended start to the response's last byte.
    pub total: Option<Latency>,
    /// From the intended start to the connect call: how late the client itself was; open only.
    pub lateness: Option<Latency>,
    /// The percentiles 0 to 100 of `total`, in steps of one, in milliseconds.
    pub total_percentiles_ms: Vec<f64>,
    /// CPU time of the client's threads in microseconds a connection, kernel included; failed
    /// connections and refills count as connections. `None` if there were none.
    pub client_us: Option<f64>,
    /// Connections a second that one client core could drive at this cost.
    pub client_capacity: Option<f64>,
    /// CPU time of the server's processes in microseconds a connection, where they were named.
    pub server_us: Option<f64>,
    /// Whether the run was stopped before its end.
    pub stopped: bool,
    /// What a reader of the figures has to know, a sentence each.
    pub warnings: Vec<String>,
}

impl LoadResult {
    /// Draws up the result from all threads' counts.
    pub(crate) fn new(
        config: &LoadConfig,
        tally: &Tally,
        server: Option<Duration>,
        stopped: bool,
    ) -> Self {
        let seconds = match config.limit {
            Limit::Time(time) if !stopped => time,
            _ => tally.last_end,
        }
        .as_secs_f64();
        let driven = tally.completed + tally.failed() + tally.refills;
        let each = |time: Duration| (driven > 0).then(|| time.as_secs_f64() * 1e6 / driven as f64);
        let client_us = each(tally.cpu);
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
            connections: config.model.most_open(),
            rate_wanted,
            arrivals,
            seed,
            seconds,
            rate: if seconds > 0.0 { tally.in_window as f64 / seconds } else { 0.0 },
            begun: tally.begun,
            completed: tally.completed,
            as_asked: tally.as_asked,
            handshakes: tally.handshakes,
            negotiated: negotiated(tally),
            errors: errors(tally),
            not_begun: tally.not_begun,
            without_ticket: tally.without_ticket,
            refills: tally.refills,
            warm_up: tally.warm_up,
            fast_open: config.fast_open.then_some(tally.fast_open),
            answer_bytes: tally.bytes,
            setup: Latency::of(&tally.setup),
            first_byte: Latency::of(&tally.first_byte),
            total: Latency::of(&tally.total),
            lateness: rate_wanted.and_then(|_| Latency::of(&tally.lateness)),
            total_percentiles_ms: latency::percentiles(&tally.total),
            client_us,
            client_capacity: client_us.filter(|us| *us > 0.0).map(|us| 1e6 / us),
            server_us: server.and_then(each),
            stopped,
            warnings: Vec::new(),
        };
        result.warnings = result.doubts(tally);
        result
    }

    /// How many connections failed.
    pub fn failed(&self) -> u64 {
        self.errors.iter().map(|error| error.count).sum()
    }

    fn doubts(&self, tally: &Tally) -> Vec<String> {
        let mut doubts = Vec::new();
        let other = self.completed - self.as_asked;
        if other > 0 {
            doubts.push(format!(
                "{other} of {} connections were not {}; the latencies leave them out",
                self.completed,
                self.kind.name()
            ));
        }
        if self.without_ticket > 0 {
            doubts.push(format!(
                "tickets ran short {} times, and a full handshake that is not measured took the \
                 connection's place; have the server issue more tickets a connection",
                self.without_ticket
            ));
        }
        if self.not_begun > 0 {
            doubts.push(format!(
                "{} arrivals were never begun: the rate is more than server or client can take",
                self.not_begun
            ));
        }
        let timeouts = self.errors.iter().find(|error| error.kind == ErrorKind::Timeout);
        if let Some(timeouts) = timeouts {
            doubts.push(format!(
                "{} connections ran into the timeout; the percentiles leave these slowest ones out",
                timeouts.count
            ));
        }
        let late = ms(tally.lateness.value_at_quantile(0.99));
        if self.rate_wanted.is_some() && late > LATE_MS {
            doubts.push(format!(
                "1 % of the connections began {late:.1} ms late or more, which their latency \
                 contains; use more threads or a lower rate if the server is not the cause"
            ));
        }
        if self.fast_open.is_some_and(|used| used < self.completed) {
            doubts.push(format!(
                "TCP Fast Open carried data on {} of {} connections only",
                self.fast_open.unwrap_or_default(),
                self.completed
            ));
        }
        doubts
    }
}

/// A client that is this late at its 99th percentile is worth a word.
const LATE_MS: f64 = 1.0;

fn negotiated(tally: &Tally) -> Vec<(String, u64)> {
    let name = |(version, group): &(Option<firstflight_tls::Version>, &str)| {
        format!("{} {group}", version.map_or("unknown", firstflight_tls::Version::name))
    };
    tally.negotiated.iter().map(|(what, count)| (name(what), *count)).collect()
}

fn errors(tally: &Tally) -> Vec<ErrorCount> {
    let errors = tally.errors.iter();
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
    use crate::tally::Finished;

    fn finished(resumed: bool, early_accepted: Option<bool>) -> Finished {
        Finished {
            version: Some(firstflight_tls::Version::Tls13),
            group: "X25519",
            resumed,
            early_accepted,
            fast_open: false,
            bytes: 4,
            setup: Duration::from_millis(1),
            first_byte: Duration::from_millis(2),
            total: Duration::from_millis(3),
        }
    }

    #[test]
    fn what_was_not_asked_for_is_counted_and_left_out_of_the_latencies() {
        let config = LoadConfig {
            kind: Kind::ZeroRtt,
            limit: Limit::Time(Duration::from_secs(2)),
            ..LoadConfig::new(Vec::new(), "h")
        };
        let mut tally = Tally::new();
        for (resumed, early) in [
            (true, Some(true)),
            (true, Some(false)),
            (false, Some(false)),
            (true, None),
            (false, None),
        ] {
            tally.complete(config.kind, &finished(resumed, early), true);
        }
        tally.fail(ErrorKind::Timeout, || "late".to_owned());
        tally.cpu = Duration::from_micros(600);
        let result = LoadResult::new(&config, &tally, Some(Duration::from_micros(300)), false);
        let handshakes = Handshakes { full: 1, resumed: 1, early_accepted: 1, early_refused: 2 };
        assert_eq!(result.handshakes, handshakes);
        assert_eq!((result.completed, result.as_asked, result.failed()), (5, 1, 1));
        assert_eq!(result.total.as_ref().unwrap().count, 1);
        assert_eq!(
            (result.rate, result.client_us, result.server_us),
            (2.5, Some(100.0), Some(50.0))
        );
        assert_eq!(result.client_capacity, Some(10_000.0));
        assert_eq!(result.warnings.len(), 2, "{:?}", result.warnings);
        assert_eq!(result.negotiated, [("TLSv1.3 X25519".to_owned(), 5)]);
    }

    #[test]
    fn nothing_is_no_figure() {
        let config = LoadConfig::new(Vec::new(), "h");
        let result = LoadResult::new(&config, &Tally::new(), None, true);
        assert_eq!((result.rate, result.client_us, result.total.clone()), (0.0, None, None));
        let text = serde_json::to_string(&result).unwrap();
        assert_eq!(serde_json::from_str::<LoadResult>(&text).unwrap(), result);
    }
}
