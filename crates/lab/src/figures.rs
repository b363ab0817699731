//! Cells with their figures, from the samples of a run (sans-IO).

use firstflight_report::statistics::{
    ascending, mean, median_interval, percentile, percentile_interval, reported_percentile,
};
use firstflight_report::{Cell, Cost, Figures, Residual, Sample, Summary};

use crate::judge::Bytes;
use crate::paths::PlannedPath;
use crate::plan::{Plan, PlannedCell, round_trips};
use crate::{Client, Experiment, Workload};

/// A sample and what its packets weigh.
pub(crate) struct Weighed {
    pub sample: Sample,
    pub bytes: Bytes,
}

/// The cells of the record, in the plan's order.
pub(crate) fn cells(
    plan: &Plan,
    experiments: &[Experiment],
    samples: &[Weighed],
    costs: &[Cost],
) -> Vec<Cell> {
    let mut good: Vec<Vec<&Weighed>> = vec![Vec::new(); plan.cells.len()];
    for weighed in samples.iter().filter(|weighed| weighed.sample.fault.is_none()) {
        good[weighed.sample.cell].push(weighed);
    }
    let cell = |(planned, good): (&PlannedCell, &Vec<&Weighed>)| {
        let path = &plan.paths[planned.path];
        let mut cell = named(planned, path, &experiments[planned.experiment].name);
        cell.summary = summary(good);
        if let Some(summary) = &mut cell.summary {
            summary.residual = residual(summary, good, path, cost(planned, costs));
        }
        cell
    };
    plan.cells.iter().zip(&good).map(cell).collect()
}

fn named(planned: &PlannedCell, path: &PlannedPath, experiment: &str) -> Cell {
    let asked = &planned.asked;
    let get = asked.workload == Workload::Get;
    Cell {
        experiment: experiment.to_owned(),
        client: planned.client.name().to_owned(),
        server: planned.server.name().to_owned(),
        workload: asked.workload.name().to_owned(),
        profile: path.name().to_owned(),
        rtt_ms: path.rtt_ms(),
        transport: asked.transport.name().to_owned(),
        tls: version(asked.version).to_owned(),
        kind: asked.kind.name().to_owned(),
        tfo: asked.tfo,
        token: asked.token,
        http: if get { asked.http.name().to_owned() } else { String::new() },
        // Other makes' clients offer what they like.
        group: match planned.client {
            Client::Firstflight => asked.group.name().to_owned(),
            _ => String::new(),
        },
        certificate: asked.certificate.name().to_owned(),
        response_bytes: if get { asked.size.bytes() as u64 } else { PONG },
        control: planned.twin_of.is_some(),
        expected_round_trips: Some(round_trips(asked)),
        summary: None,
    }
}

/// Length of PONG.
const PONG: u64 = 4;

/// A TLS version as tables have it: `1.0` to `1.3`.
pub(crate) fn version(version: firstflight_tls::Version) -> &'static str {
    version.name().trim_start_matches("TLSv")
}

/// The figures of a distribution of milliseconds; `None` if there is nothing in it.
pub(crate) fn figures(values: impl IntoIterator<Item = f64>) -> Option<Figures> {
    let values = ascending(values);
    let interval = |p, reported: Option<f64>| reported.and(percentile_interval(&values, p));
    let high = |p| {
        let reported = reported_percentile(&values, p);
        (reported, interval(p, reported))
    };
    let ((p95_ms, p95_interval_ms), (p99_ms, p99_interval_ms)) = (high(0.95), high(0.99));
    Some(Figures {
        min_ms: *values.first()?,
        p50_ms: percentile(&values, 0.5)?,
        p50_interval_ms: median_interval(&values)?,
        p95_ms,
        p95_interval_ms,
        p99_ms,
        p99_interval_ms,
        p999_ms: reported_percentile(&values, 0.999),
        max_ms: *values.last()?,
        mean_ms: mean(&values)?,
    })
}

fn summary(good: &[&Weighed]) -> Option<Summary> {
    let of = |value: fn(&Sample) -> Option<f64>| {
        good.iter().filter_map(move |weighed| value(&weighed.sample))
    };
    Some(Summary {
        samples: good.len(),
        setup: figures(of(|sample| sample.setup_ms)),
        first_byte: figures(of(|sample| sample.time_ms))?,
        total: figures(of(|sample| sample.total_ms)),
        wire_p50_ms: percentile(&ascending(of(|sample| sample.wire_ms)), 0.5),
        wire_total_p50_ms: percentile(&ascending(of(|sample| sample.wire_total_ms)), 0.5),
        round_trips: usual(good.iter().map(|weighed| weighed.sample.round_trips)),
        total_round_trips: usual(good.iter().map(|weighed| weighed.sample.total_round_trips)),
        residual: None,
    })
}

/// What all but one in twenty samples took, if they agree so far. A packet that a busy machine
/// sends late can take a round trip more without being wrong; [`Sample::round_trips`] has each.
pub(crate) fn usual(counts: impl ExactSizeIterator<Item = Option<u32>>) -> Option<u32> {
    let all = counts.len();
    let mut counts: Vec<u32> = counts.flatten().collect();
    counts.sort_unstable();
    let median = *counts.get(counts.len() / 2)?;
    let agree = counts.iter().filter(|count| **count == median).count();
    (agree * 20 >= all * 19).then_some(median)
}

/// What the model leaves open whatever the path: clocks, schedulers, the kernel's own work that
/// no process is charged with.
const OPEN_MS: f64 = 0.5;
/// And for each round trip, in which both ends and the link are woken from sleep.
const OPEN_PER_ROUND_TRIP_MS: f64 = 0.15;
/// And of the whole, where delays vary by design.
const OPEN_SHARE_IF_VARYING: f64 = 0.15;

/// The median of the first byte against round trips x RTT, what the rates take for the bytes on
/// the way, and the processor time of both sides.
fn residual(
    summary: &Summary,
    good: &[&Weighed],
    path: &PlannedPath,
    cost_ms: Option<f64>,
) -> Option<Residual> {
    let trips = f64::from(summary.round_trips?);
    let network_ms = trips * path.rtt_ms() + serialisation_ms(good, path);
    let model_ms = network_ms + cost_ms?;
    let residual_ms = summary.first_byte.p50_ms - model_ms;
    let mut open = OPEN_MS + OPEN_PER_ROUND_TRIP_MS * trips;
    if path.varies() {
        open += OPEN_SHARE_IF_VARYING * model_ms;
    }
    // Processor time need not lie on the way to the first byte, so less than the model by as much
    // is no wonder; less than the network alone is.
    let too_fast = summary.first_byte.p50_ms < network_ms - open;
    Some(Residual { model_ms, residual_ms, flagged: residual_ms > open || too_fast })
}

fn serialisation_ms(good: &[&Weighed], path: &PlannedPath) -> f64 {
    let at = |mbps: Option<f64>, bytes: fn(&Bytes) -> u64| {
        let median = percentile(&ascending(good.iter().map(|w| bytes(&w.bytes) as f64)), 0.5);
        mbps.zip(median).map_or(0.0, |(mbps, bytes)| bytes * 8.0 / mbps / 1e3)
    };
    at(path.up_mbps(), |bytes| bytes.up) + at(path.down_mbps(), |bytes| bytes.down)
}

/// What a connection of this cell costs both sides, from the row that is most like it.
fn cost(planned: &PlannedCell, costs: &[Cost]) -> Option<f64> {
    let asked = &planned.asked;
    if planned.client != Client::Firstflight {
        return None;
    }
    // Refused early data costs what a resumed handshake does, and a little.
    let kind = match asked.kind {
        crate::Kind::Refused => crate::Kind::Resumed,
        kind => kind,
    };
    let row = costs.iter().find(|row| {
        row.server == planned.server.name()
            && row.workload == asked.workload.name()
            && row.transport == asked.transport.name()
            && row.tls == version(asked.version)
            && row.kind == kind.name()
            && row.group == asked.group.name()
            && row.certificate == asked.certificate.name()
    })?;
    Some((row.client_us + row.server_us) / 1e3)
}

#[cfg(test)]
mod tests {
    use firstflight_emulator::Profile;

    use super::*;

    fn weighed(time_ms: f64, round_trips: u32) -> Weighed {
        let sample = Sample {
            time_ms: Some(time_ms),
            setup_ms: Some(time_ms / 2.0),
            total_ms: Some(time_ms + 1.0),
            round_trips: Some(round_trips),
            total_round_trips: Some(round_trips + 1),
            ..Sample::default()
        };
        Weighed { sample, bytes: Bytes { up: 700, down: 1_500 } }
    }

    fn path(name: &str) -> PlannedPath {
        PlannedPath::new(Profile::parse(name).unwrap())
    }

    #[test]
    fn figures_have_what_the_samples_bear() {
        let few = figures((1..=58).map(f64::from)).unwrap();
        assert_eq!((few.min_ms, few.p50_ms, few.max_ms, few.mean_ms), (1.0, 29.0, 58.0, 29.5));
        assert_eq!((few.p95_ms, few.p95_interval_ms), (None, None));
        let many = figures((1..=3_000).map(f64::from)).unwrap();
        assert_eq!((many.p95_ms, many.p99_ms), (Some(2_850.0), Some(2_970.0)));
        assert_eq!(many.p999_ms, Some(2_997.0));
        let (low, high) = many.p99_interval_ms.unwrap();
        assert!(low < 2_970.0 && 2_970.0 < high);
        assert!(figures([]).is_none());
    }

    #[test]
    fn a_residual_beyond_what_the_model_leaves_open_is_flagged() {
        let judged = |ms: f64, path: &PlannedPath| {
            let samples = [weighed(ms, 3)];
            let good: Vec<&Weighed> = samples.iter().collect();
            residual(&summary(&good).unwrap(), &good, path, Some(0.4)).unwrap()
        };
        let plain = judged(60.9, &path("20"));
        assert!((plain.model_ms - 60.4).abs() < 1e-9 && (plain.residual_ms - 0.5).abs() < 1e-9);
        assert!(!plain.flagged);
        assert!(judged(62.0, &path("20")).flagged, "slow");
        assert!(judged(58.0, &path("20")).flagged, "faster than the network");
        // 700 bytes up at 1 Mbit/s take 5.6 ms, 1,500 down at 5 take 2.4.
        let cable = judged(100.0, &path("cable"));
        assert!((cable.model_ms - (3.0 * 28.0 + 5.6 + 2.4 + 0.4)).abs() < 1e-9, "{cable:?}");
    }

    #[test]
    fn round_trips_are_what_nearly_all_agree_on() {
        let counts = |odd: usize| {
            let mut counts = vec![Some(3); 20 - odd];
            counts.resize(20, Some(4));
            usual(counts.into_iter())
        };
        assert_eq!(counts(1), Some(3));
        assert_eq!(counts(2), None);
        assert_eq!(usual([].into_iter()), None);
    }
}
