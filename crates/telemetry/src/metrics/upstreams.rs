//! Upstream pools. Pools and servers have their names from the configuration, so they are few.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use super::instruments::HistogramCell;
use super::labels::LabelInfo;
use super::{Description, Family, Series, SeriesValue, Snapshot};
use crate::metrics::connections::DURATION_BOUNDS;

/// How long upstreams' servers take.
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
    /// Requests that were not, because too many were.
    pub retries_denied: u64,
    /// Requests that wait for a server with room.
    pub waiting: u64,
    /// Requests that waited for too long.
    pub rejected: u64,
}

/// A server of a pool.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UpstreamServerReading {
    /// Its address in the configuration.
    pub address: String,
    /// Whether it is given requests.
    pub healthy: bool,
    /// Requests that it has now.
    pub active: u64,
    /// Connections that were opened.
    pub connections: u64,
    /// Requests that it was sent.
    pub requests: u64,
    /// Its responses by the first digit of their status, from 1 to 5.
    pub responses: [u64; 5],
    /// Requests that it did not answer, or not to the end, in the order of
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
    /// A server of a pool has answered.
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
        let up =
            |one: &UpstreamServerReading| SeriesValue::Number(f64::from(u8::from(one.healthy)));
        snapshot.push(of_servers(&UP, pools, up));
        snapshot.push(of_servers(&ACTIVE, pools, |one| SeriesValue::Number(one.active as f64)));
        snapshot.push(of_servers(&REQUESTS, pools, |one| SeriesValue::Count(one.requests)));
        snapshot.push(split(&RESPONSES, STATUS, pools, |one| &one.responses));
        snapshot.push(split(&FAILURES, REASON, pools, |one| &one.failures));
        snapshot.push(of_servers(&CONNECTIONS, pools, |one| SeriesValue::Count(one.connections)));
        snapshot.push(self.times(pools));
        snapshot.push(of_pools(&RETRIES, pools, |pool| SeriesValue::Count(pool.retries)));
        snapshot.push(of_pools(&DENIED, pools, |pool| SeriesValue::Count(pool.retries_denied)));
        snapshot.push(of_pools(&WAITING, pools, |pool| SeriesValue::Number(pool.waiting as f64)));
        snapshot.push(of_pools(&REJECTED, pools, |pool| SeriesValue::Count(pool.rejected)));
    }

    /// Of servers that are still configured.
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

/// A counter of servers that is split by one label more.
fn split(
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
const SERVER: LabelInfo = LabelInfo::configured("server", "the server as the pool names it");
const STATUS: LabelInfo = LabelInfo {
    name: "status",
    values: &[
        ("1xx", "It became another protocol's connection."),
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
        (UpstreamServerReading::FAILURES[1], "A kept connection had ended meanwhile."),
        (UpstreamServerReading::FAILURES[2], "No answer, or none that can be understood."),
        (UpstreamServerReading::FAILURES[3], "Refused before it did anything (HTTP/2)."),
        (UpstreamServerReading::FAILURES[4], "No answer in time."),
        (UpstreamServerReading::FAILURES[5], "It broke its answer off."),
        (UpstreamServerReading::FAILURES[6], "Its answer stood still."),
    ],
    meaning: "",
};

static UP: Description = Description::gauge(
    "firstflight_upstream_up",
    "1 if the upstream's server is given requests.",
    "At 0 its last requests or health checks failed. With all servers at 0 clients get 502 or 503.",
);
static ACTIVE: Description = Description::gauge(
    "firstflight_upstream_requests_active",
    "Requests that an upstream's server has now, bodies of answers included.",
    "Growing at one server alone: it is slow, or the others are gone.",
);
static REQUESTS: Description = Description::counter(
    "firstflight_upstream_requests_total",
    "Requests sent to an upstream's server.",
    "Uneven: connections that are kept, or servers that were away.",
);
static RESPONSES: Description = Description::counter(
    "firstflight_upstream_responses_total",
    "Answers of an upstream's server.",
    "5xx of one server: look there.",
);
static FAILURES: Description = Description::counter(
    "firstflight_upstream_failures_total",
    "Requests that an upstream's server did not answer, or not to the end.",
    "stale_connection is harmless: the server closes kept connections sooner than the pool does.",
);
static CONNECTIONS: Description = Description::counter(
    "firstflight_upstream_connections_total",
    "Connections that were opened to an upstream's server.",
    "Nearly as many as requests: it does not keep them.",
);
static SECONDS: Description = Description::histogram(
    "firstflight_upstream_seconds",
    "How long an upstream's server took for the head of its answer, connecting included.",
    "Compare with firstflight_request_seconds: the difference is this server and the client's path.",
);
static RETRIES: Description = Description::counter(
    "firstflight_upstream_retries_total",
    "Requests that were sent to an upstream once more.",
    "Growing: a server fails and recovers all the time.",
);
static DENIED: Description = Description::counter(
    "firstflight_upstream_retries_denied_total",
    "Requests that were not sent once more, because too many were already.",
    "So many failures that retries would make them worse: the upstream is down or overloaded.",
);
static WAITING: Description = Description::gauge(
    "firstflight_upstream_requests_waiting",
    "Requests that wait because every server has as many as it may.",
    "Above 0 for long: more servers, or a higher limit.",
);
static REJECTED: Description = Description::counter(
    "firstflight_upstream_requests_rejected_total",
    "Requests that waited for a server with room for too long, and were answered 503.",
    "More servers, or a higher limit.",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_servers_that_are_still_there() {
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
