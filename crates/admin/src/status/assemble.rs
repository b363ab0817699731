//! Makes a status from metrics, history and state.

use std::time::Duration;

use firstflight_telemetry::metrics::{HandshakeKind, HistogramValue, Series, Snapshot, Transport};

use super::{
    Gauges, Kind, Moment, Percentiles, PuncturedTickets, Reason, Register, Replays, SCHEMA, State,
    Status, Steps, Store, Upstream, Window,
};
use crate::answers;
use crate::history::{Counts, FIVE_MINUTES, HOUR, History};
use crate::reasons::REPLAYS;

impl Status {
    /// Makes the status at `at` on the wall clock, which is `now` on the clock of the history.
    pub(crate) fn assemble(
        snapshot: &Snapshot,
        state: State,
        history: &History,
        now: Duration,
        at: Moment,
    ) -> Self {
        let counts = Counts::from_snapshot(snapshot);
        let windows = [MINUTE, FIVE_MINUTES, HOUR].map(|length| {
            let (covered, counts) = history.window(length, now, &counts);
            (window(length, covered, &counts), counts)
        });
        let claims = windows[1].1.claims.clone();
        let windows = windows.map(|(window, _)| window).to_vec();
        let replays = Replays { since_start: counts.replays(), recent: state.replays };
        let store = store(snapshot, claims.as_ref());
        let answers = answers::answer(&windows, &state.early_data, &replays, at);
        Self {
            schema: SCHEMA,
            at,
            answers,
            server: state.server,
            early_data: state.early_data,
            now: gauges(snapshot),
            windows,
            replays,
            keys: state.keys,
            punctured: punctured(snapshot),
            register: register(snapshot, store.is_some()),
            store,
            upstreams: upstreams(snapshot),
            certificates: state.certificates,
            steps: steps(history),
        }
    }
}

fn gauges(snapshot: &Snapshot) -> Gauges {
    let count = |name, labels: &[(&str, &str)]| snapshot.sum(name, labels) as u64;
    let connections = |transport: Transport| {
        count("firstflight_connections_active", &[("transport", transport.name())])
    };
    Gauges {
        tcp_connections: connections(Transport::Tcp),
        quic_connections: connections(Transport::Quic),
        requests: count("firstflight_requests_active", &[]),
        held: count("firstflight_early_requests_waiting", &[]),
    }
}

fn window(length: Duration, covered: Duration, counts: &Counts) -> Window {
    let seconds = covered.as_secs_f64();
    let mut refused: Vec<Reason> = counts
        .refused()
        .map(|(reason, count)| Reason { reason: reason.name().to_owned(), count })
        .collect();
    refused.sort_by_key(|reason| std::cmp::Reverse(reason.count));
    let held = counts.held.iter().filter(|(_, count)| **count > 0);
    Window {
        seconds: length.as_secs(),
        covered_seconds: (seconds * 10.0).round() / 10.0,
        requests_per_second: if seconds > 0.0 {
            counts.totals.requests as f64 / seconds
        } else {
            0.0
        },
        totals: counts.totals.clone(),
        held: held
            .map(|(reason, count)| Reason { reason: reason.clone().into_owned(), count: *count })
            .collect(),
        connections: counts.connections(),
        offered: counts.offered(),
        accepted: counts.accepted(),
        refused,
        kinds: kinds(counts),
    }
}

fn kinds(counts: &Counts) -> Vec<Kind> {
    let mut kinds = Vec::new();
    for kind in HandshakeKind::ALL {
        for transport in Transport::ALL {
            let key = (*kind as usize, *transport as usize);
            let handshakes = counts.handshakes.get(&key);
            kinds.push(Kind {
                kind: kind.name().to_owned(),
                transport: transport.name().to_owned(),
                connections: counts.connections_of(*kind, *transport),
                handshake: handshakes.and_then(spread),
                first_response: counts.first_responses.get(&key).and_then(spread),
            });
        }
    }
    kinds
}

fn spread(times: &HistogramValue) -> Option<Percentiles> {
    let at = |share| times.quantile(share).map(|time| (time * 1e6).round() / 1e6);
    Some(Percentiles { p50: at(0.5)?, p90: at(0.9)?, p99: at(0.99)? })
}

fn punctured(snapshot: &Snapshot) -> Option<PuncturedTickets> {
    let outstanding = snapshot.series("firstflight_punctured_tickets_outstanding").next()?;
    let unused = |cause| {
        snapshot.sum("firstflight_punctured_tickets_unused_total", &[("cause", cause)]) as u64
    };
    Some(PuncturedTickets {
        outstanding: outstanding.value.number() as u64,
        used: snapshot.sum("firstflight_punctured_tickets_used_total", &[]) as u64,
        expired: unused("expired"),
        given_up: unused("memory"),
        key_bytes: snapshot.sum("firstflight_punctured_keys_bytes", &[]) as u64,
    })
}

fn register(snapshot: &Snapshot, is_filter: bool) -> Register {
    let register = ("register", if is_filter { "filter" } else { "local" });
    Register {
        records: snapshot.sum("firstflight_register_records", &[register]) as u64,
        capacity: snapshot.sum("firstflight_register_capacity", &[register]) as u64,
    }
}

fn store(snapshot: &Snapshot, claims: Option<&HistogramValue>) -> Option<Store> {
    let up = snapshot.series("firstflight_store_up").next()?.value.number() > 0.0;
    let mut unused_reason = snapshot.series("firstflight_store_unavailable");
    let unused_reason = unused_reason.find(|series| series.value.number() > 0.0);
    let claimed = |result| {
        let labels = [("register", "store"), ("result", result)];
        snapshot.sum("firstflight_claims_total", &labels) as u64
    };
    Some(Store {
        up,
        resting_because: unused_reason.and_then(|series| label(series, "reason")),
        won: claimed("won"),
        lost: claimed("lost"),
        unknown: claimed("unknown"),
        connections: snapshot.sum("firstflight_store_connections_total", &[]) as u64,
        claim: claims.and_then(spread),
    })
}

fn upstreams(snapshot: &Snapshot) -> Vec<Upstream> {
    let servers = snapshot.series("firstflight_upstream_up").filter_map(|series| {
        let (pool, server) = (label(series, "upstream")?, label(series, "server")?);
        let count = |name| {
            let labels = [("upstream", pool.as_str()), ("server", server.as_str())];
            snapshot.sum(name, &labels) as u64
        };
        Some(Upstream {
            up: series.value.number() > 0.0,
            requests: count("firstflight_upstream_requests_total"),
            failures: count("firstflight_upstream_failures_total"),
            pool,
            server,
        })
    });
    servers.collect()
}

fn label(series: &Series, name: &str) -> Option<String> {
    let found = series.labels.iter().find(|(label, _)| *label == name);
    found.map(|(_, value)| value.clone().into_owned())
}

fn steps(history: &History) -> Steps {
    let series = |count: fn(&Counts) -> u64| history.steps(STEP, STEPS, count);
    Steps {
        seconds: STEP.as_secs(),
        early: series(Counts::accepted),
        refused: series(refused_without_replays),
        without: series(|counts| {
            let (full, resumed) = (HandshakeKind::Full, HandshakeKind::Resumed);
            let others = counts.of_kind(full) + counts.of_kind(resumed);
            others.saturating_sub(refused_without_replays(counts))
        }),
        requests: series(|counts| counts.totals.requests),
        replays: series(Counts::replays),
    }
}

/// Refused connections without replays, which never complete their handshakes.
fn refused_without_replays(counts: &Counts) -> u64 {
    let reasons = counts.refused().filter(|(reason, _)| !REPLAYS.contains(reason));
    reasons.map(|(_, count)| count).sum()
}

const MINUTE: Duration = Duration::from_secs(60);

/// Sixty steps are five minutes.
const STEP: Duration = Duration::from_secs(5);
const STEPS: usize = 60;
