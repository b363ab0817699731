//! Metrics of upstream pools. Labels are names from the configuration, so there are few.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use super::instruments::HistogramCell;
use super::labels::LabelInfo;
use super::{Description, Family, Series, SeriesValue, Snapshot};
use crate::metrics::connections::DURATION_BOUNDS;

/// Response times of upstream servers.
#[derive(Debug, Default)]
pub struct Upstreams {
    /// By pool and server.
    times: RwLock<BTreeMap<String, BTreeMap<String, Arc<HistogramCell>>>>,
}

/// An upstream pool.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UpstreamReading {
    /// Its name in the configuration.
    pub name: String,
    /// Its servers.
    pub servers: Vec<UpstreamServerReading>,
    /// Requests that were sent again.
    pub retries: u64,
    /// Retries that the budget denied.
    pub retries_denied: u64,
    /// Requests that wait for a server.
    pub waiting: u64,
    /// Requests rejected with 503 after waiting too long.
    pub rejected: u64,
}

/// A server of a pool.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UpstreamServerReading {
    /// Its address in the configuration.
    pub address: String,
    /// Whether it gets requests.
    pub healthy: bool,
    /// Requests in progress.
    pub active: u64,
    /// Connections opened.
    pub connections: u64,
    /// Requests sent to it.
    pub requests: u64,
    /// Its responses by the first digit of their status, from 1 to 5.
    pub responses: [u64; 5],
    /// Failed requests, in the order of
    /// [`UpstreamServerReading::FAILURES`].
    pub failures: [u64; UpstreamServerReading::FAILURES.len()],
}

impl UpstreamServerReading {
    /// How a request may fail.
    pub const FAILURES: [&'static str; 7] = [
        "connect",
        "stale_connection",
        "broken",
        "refused",
        "timeout",
        "body_broken",
        "body_stalled",
    ];
}

impl Upstreams {
    /// Counts the response time of a server.
    pub fn observe_response(&self, pool: &str, server: &str, took: Duration) {
        let known = self.times.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(cell) = known.get(pool).and_then(|servers| servers.get(server)) {
            return cell.observe(DURATION_BOUNDS, took.as_secs_f64());
        }
        drop(known);
        let mut times = self.times.write().unwrap_or_else(PoisonError::into_inner);
        let servers = times.entry(pool.to_owned()).or_default();
        let cell = servers
            .entry(server.to_owned())
            .or_insert_with(|| Arc::new(HistogramCell::new(DURATION_BOUNDS)));
        cell.observe(DURATION_BOUNDS, took.as_secs_f64());
    }

    pub(super) fn collect(&self, pools: &[UpstreamReading], snapshot: &mut Snapshot) {
        let up = |server: &UpstreamServerReading| {
            SeriesValue::Number(f64::from(u8::from(server.healthy)))
        };
        snapshot.push(of_servers(&UP, pools, up));
        snapshot
            .push(of_servers(&ACTIVE, pools, |server| SeriesValue::Number(server.active as f64)));
        snapshot.push(of_servers(&REQUESTS, pools, |server| SeriesValue::Count(server.requests)));
        snapshot.push(of_servers_by(&RESPONSES, STATUS, pools, |server| &server.responses));
        snapshot.push(of_servers_by(&FAILURES, REASON, pools, |server| &server.failures));
        snapshot
            .push(of_servers(&CONNECTIONS, pools, |server| SeriesValue::Count(server.connections)));
        snapshot.push(self.times(pools));
        snapshot.push(of_pools(&RETRIES, pools, |pool| SeriesValue::Count(pool.retries)));
        snapshot.push(of_pools(&DENIED, pools, |pool| SeriesValue::Count(pool.retries_denied)));
        snapshot.push(of_pools(&WAITING, pools, |pool| SeriesValue::Number(pool.waiting as f64)));
        snapshot.push(of_pools(&REJECTED, pools, |pool| SeriesValue::Count(pool.rejected)));
    }

    /// The response times of servers that are still configured.
    fn times(&self, pools: &[UpstreamReading]) -> Family {
        let times = self.times.read().unwrap_or_else(PoisonError::into_inner);
        let series = servers(pools).filter_map(|(pool, server)| {
            let cell = times.get(&pool.name)?.get(&server.address)?;
            Some(Series::new(
                names(pool, server),
                SeriesValue::Histogram(cell.read(DURATION_BOUNDS)),
            ))
        });
        let series = series.collect();
        Family { description: &SECONDS, labels: vec![POOL, SERVER], series }
    }
}

fn servers(
    pools: &[UpstreamReading],
) -> impl Iterator<Item = (&UpstreamReading, &UpstreamServerReading)> {
    pools.iter().flat_map(|pool| pool.servers.iter().map(move |server| (pool, server)))
}

fn names(
    pool: &UpstreamReading,
    server: &UpstreamServerReading,
) -> Vec<(&'static str, std::borrow::Cow<'static, str>)> {
    vec![(POOL.name, pool.name.clone().into()), (SERVER.name, server.address.clone().into())]
}

fn of_pools(
    description: &'static Description,
    pools: &[UpstreamReading],
    value: fn(&UpstreamReading) -> SeriesValue,
) -> Family {
    let series = pools
        .iter()
        .map(|pool| Series::new(vec![(POOL.name, pool.name.clone().into())], value(pool)));
    Family { description, labels: vec![POOL], series: series.collect() }
}

fn of_servers(
    description: &'static Description,
    pools: &[UpstreamReading],
    value: fn(&UpstreamServerReading) -> SeriesValue,
) -> Family {
    let series = servers(pools)
        .map(|(pool, server)| Series::new(names(pool, server), value(server)))
        .collect();
    Family { description, labels: vec![POOL, SERVER], series }
}

/// A counter of servers, split by `label`.
fn of_servers_by(
    description: &'static Description,
    label: LabelInfo,
    pools: &[UpstreamReading],
    counts: fn(&UpstreamServerReading) -> &[u64],
) -> Family {
    let series = servers(pools).flat_map(|(pool, server)| {
        label.values.iter().zip(counts(server)).map(move |((value, _), count)| {
            let mut labels = names(pool, server);
            labels.push((label.name, (*value).into()));
            Series::new(labels, SeriesValue::Count(*count))
        })
    });
    let series = series.collect();
    Family { description, labels: vec![POOL, SERVER, label], series }
}

const POOL: LabelInfo = LabelInfo::configured("upstream", "the pool's name");
const SERVER: LabelInfo =
    LabelInfo::configured("server", "the address of the server in the configuration");
const STATUS: LabelInfo = LabelInfo {
    name: "status",
    values: &[
        ("1xx", "The connection switched to another protocol."),
        ("2xx", "Success."),
        ("3xx", "Redirection."),
        ("4xx", "The client's fault, 425 among them."),
        ("5xx", "The server's fault."),
    ],
    meaning: "",
};
const REASON: LabelInfo = LabelInfo {
    name: "reason",
    values: &[
        (UpstreamServerReading::FAILURES[0], "No connection."),
        (UpstreamServerReading::FAILURES[1], "A reused connection had been closed."),
        (UpstreamServerReading::FAILURES[2], "No response, or an invalid one."),
        (UpstreamServerReading::FAILURES[3], "Refused without processing (HTTP/2)."),
        (UpstreamServerReading::FAILURES[4], "No response before the timeout."),
        (UpstreamServerReading::FAILURES[5], "The response ended early."),
        (UpstreamServerReading::FAILURES[6], "The response body stalled."),
    ],
    meaning: "",
};

static UP: Description = Description::gauge(
    "firstflight_upstream_up",
    "1 if the upstream server gets requests.",
    "At 0 its last requests or health checks failed. With all at 0, clients get 502 or 503.",
);
static ACTIVE: Description = Description::gauge(
    "firstflight_upstream_requests_active",
    "Requests in progress on a server, until the end of the response.",
    "Growing on one server only: it is slow, or the others are down.",
);
static REQUESTS: Description = Description::counter(
    "firstflight_upstream_requests_total",
    "Requests sent to a server.",
    "Uneven: some servers are slower or were down.",
);
static RESPONSES: Description = Description::counter(
    "firstflight_upstream_responses_total",
    "Responses of a server.",
    "`5xx` of one server: check it.",
);
static FAILURES: Description = Description::counter(
    "firstflight_upstream_failures_total",
    "Requests without a complete response from a server.",
    "`stale_connection` is harmless: the server closes idle connections sooner than the pool.",
);
static CONNECTIONS: Description = Description::counter(
    "firstflight_upstream_connections_total",
    "Connections opened to a server.",
    "Nearly as many as requests: it does not keep connections open.",
);
static SECONDS: Description = Description::histogram(
    "firstflight_upstream_seconds",
    "Time until a server's response head, connecting included.",
    "The difference to `firstflight_request_seconds` is firstflight and the network to clients.",
);
static RETRIES: Description = Description::counter(
    "firstflight_upstream_retries_total",
    "Requests sent to an upstream again.",
    "Growing: a server keeps failing and recovering.",
);
static DENIED: Description = Description::counter(
    "firstflight_upstream_retries_denied_total",
    "Retries denied because of too many earlier retries.",
    "Growing: the upstream is down or overloaded; retries would make it worse.",
);
static WAITING: Description = Description::gauge(
    "firstflight_upstream_requests_waiting",
    "Requests that wait because all servers have their maximum number of requests.",
    "Above 0 for long: add servers, or raise `requests`.",
);
static REJECTED: Description = Description::counter(
    "firstflight_upstream_requests_rejected_total",
    "Requests that waited too long for a server and got a 503.",
    "Add servers, or raise `requests`.",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_removed_servers_are_left_out() {
        let upstreams = Upstreams::default();
        upstreams.observe_response("app", "one", Duration::from_millis(3));
        upstreams.observe_response("app", "one", Duration::from_millis(3));
        upstreams.observe_response("app", "two", Duration::from_millis(3));
        let server = |address: &str| UpstreamServerReading {
            address: address.to_owned(),
            ..UpstreamServerReading::default()
        };
        let servers = vec![server("one"), server("three")];
        let pool =
            UpstreamReading { name: "app".to_owned(), servers, ..UpstreamReading::default() };
        let family = upstreams.times(&[pool]);
        let found = family.series.iter().map(|series| (&series.labels[1].1, series.value.number()));
        assert_eq!(found.collect::<Vec<_>>(), [(&"one".into(), 2.0)]);
    }
}
