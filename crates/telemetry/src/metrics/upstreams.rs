//! Upstream pools, as their room tells of them.

use super::label::LabelInfo;
use super::{Description, Family, HistogramValue, Series, Snapshot, Value};

/// An upstream pool.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UpstreamReading {
    /// Its name in the configuration.
    pub name: String,
    /// Its servers.
    pub servers: Vec<UpstreamServerReading>,
}

/// A server of a pool.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UpstreamServerReading {
    /// Its address in the configuration.
    pub address: String,
    /// Whether it is given requests.
    pub healthy: bool,
    /// Requests that it was sent.
    pub requests: u64,
    /// Those that it did not answer.
    pub failures: u64,
    /// Requests that were sent once more, to it or another, after it had failed.
    pub retries: u64,
    /// How long the heads of its answers took.
    pub seconds: Option<HistogramValue>,
}

pub(super) fn collect(upstreams: &[UpstreamReading], snapshot: &mut Snapshot) {
    let each = |description, value: fn(&UpstreamServerReading) -> Option<Value>| {
        let servers =
            upstreams.iter().flat_map(|pool| pool.servers.iter().map(move |server| (pool, server)));
        let series = servers.filter_map(|(pool, server)| {
            let labels = vec![
                (POOL.name, pool.name.clone().into()),
                (SERVER.name, server.address.clone().into()),
            ];
            Some(Series::new(labels, value(server)?))
        });
        Family { description, labels: vec![POOL, SERVER], series: series.collect() }
    };
    snapshot.push(each(&UP, |one| Some(Value::Number(f64::from(u8::from(one.healthy))))));
    snapshot.push(each(&REQUESTS, |one| Some(Value::Count(one.requests))));
    snapshot.push(each(&FAILURES, |one| Some(Value::Count(one.failures))));
    snapshot.push(each(&RETRIES, |one| Some(Value::Count(one.retries))));
    snapshot.push(each(&SECONDS, |one| one.seconds.clone().map(Value::Histogram)));
}

const POOL: LabelInfo = LabelInfo::configured("upstream", "the pool's name");
const SERVER: LabelInfo = LabelInfo::configured("server", "the server as the pool names it");

static UP: Description = Description::gauge(
    "firstflight_upstream_up",
    "1 if the upstream's server is given requests.",
    "At 0 its last requests or health checks failed. With all servers at 0 clients get 502 or 503.",
);
static REQUESTS: Description = Description::counter(
    "firstflight_upstream_requests_total",
    "Requests sent to an upstream's server.",
    "Uneven: connections that are kept, or servers that were away.",
);
static FAILURES: Description = Description::counter(
    "firstflight_upstream_failures_total",
    "Requests that an upstream's server did not answer.",
    "It refused the connection, broke it off, or took longer than it may.",
);
static RETRIES: Description = Description::counter(
    "firstflight_upstream_retries_total",
    "Requests that were sent once more because this server had failed.",
    "Only safe requests are. Growing: a server fails and recovers all the time.",
);
static SECONDS: Description = Description::histogram(
    "firstflight_upstream_seconds",
    "How long an upstream's server took for the head of its answer.",
    "Compare with firstflight_request_seconds: the difference is this server and the client's path.",
);
