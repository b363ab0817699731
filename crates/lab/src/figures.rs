//! Cells with their figures, from the samples of a run (sans-IO).

use firstflight_report::statistics::{ascending, percentile};
use firstflight_report::{Cell, Cost, Residual, Sample, Summary, figures, usual};
use firstflight_samples::{Bytes, round_trips, version_number};

use crate::paths::PlannedPath;
use crate::plan::{Plan, PlannedCell};
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
        tls: version_number(asked.version).to_owned(),
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
            && row.tls == version_number(asked.version)
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
}
