//! The record of a remote run (sans-IO).

use std::time::Duration;

use firstflight_report::axes::ELSEWHERE;
use firstflight_report::{
    Cell as RecordCell, Experiment, ProfileFacts, Record, SCHEMA, Sample, ServerFacts, Summary,
    Witness, control, effects, figures, usual,
};

use firstflight_samples::{ClientKind, machine_facts, round_trips, version_number};

use super::config::RemoteConfig;
use super::connection::{Caller, Outcome};
use super::packets::Packets;
use super::shot::Cell;

/// What a run has seen.
pub(super) struct RunState {
    pub samples: Vec<Sample>,
    /// The kernel's least RTT.
    pub least_rtt: Option<Duration>,
    pub packets: Option<Packets>,
    /// Why no packets were captured, where they were wanted.
    pub why_none: Option<String>,
}

/// Puts together what a run has found.
pub(super) fn record(
    config: &RemoteConfig,
    caller: &Caller,
    cells: &[Cell],
    seen: RunState,
    left_out: Vec<String>,
    first: &Outcome,
) -> Record {
    let RunState { mut samples, least_rtt, packets, why_none } = seen;
    let (witness, least_rtt, source) = match &packets {
        Some(packets) => {
            let source = "the least time from a SYN to its SYN-ACK among the run's connections";
            (Witness::Packets, packets.least_rtt(), source)
        }
        None => {
            let source = "the least RTT that the kernel measured on the run's connections";
            (Witness::Kernel, least_rtt, source)
        }
    };
    // Finer than a microsecond nobody knows it.
    let rtt_ms = least_rtt.map_or(0.0, |rtt| (rtt.as_secs_f64() * 1e6).round() / 1e3);
    if witness == Witness::Kernel {
        for sample in &mut samples {
            sample.round_trips = trips(sample.time_ms, rtt_ms);
            sample.total_round_trips = trips(sample.total_ms, rtt_ms);
        }
    }
    let mut notes = vec![format!("at {}, for all samples", caller.address)];
    match &packets {
        Some(packets) => notes.extend(packets.notes()),
        None => notes.push(match why_none {
            None => NOT_CAPTURED.to_owned(),
            Some(why) => format!("{NOT_CAPTURED}; {why}"),
        }),
    }
    let host = caller.target.host().to_owned();
    let cell = |(index, cell): (usize, &Cell)| RecordCell {
        experiment: ELSEWHERE.to_owned(),
        client: ClientKind::Firstflight.name().to_owned(),
        server: host.clone(),
        workload: cell.asked.workload.name().to_owned(),
        profile: PATH.to_owned(),
        rtt_ms,
        transport: cell.asked.transport.name().to_owned(),
        tls: version_number(cell.asked.version).to_owned(),
        kind: cell.asked.kind.name().to_owned(),
        tfo: cell.asked.tfo,
        token: cell.asked.token,
        http: cell.asked.http.name().to_owned(),
        group: cell.asked.group.name().to_owned(),
        certificate: String::new(),
        response_bytes: first.bytes as u64,
        control: cell.twin_of.is_some(),
        expected_round_trips: Some(round_trips(&cell.asked)),
        summary: summary(samples.iter().filter(|sample| sample.cell == index)),
    };
    let cells_with_figures: Vec<RecordCell> = cells.iter().enumerate().map(cell).collect();
    let twins = cells.iter().enumerate().filter_map(|(twin, cell)| Some((cell.twin_of?, twin)));
    Record {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        command: config.command.clone(),
        seed: config.seed,
        witness,
        machine: machine_facts(),
        servers: vec![ServerFacts {
            name: host.clone(),
            version: match first.server.as_str() {
                "" => format!("{host}, which does not name its software"),
                server => server.to_owned(),
            },
            notes,
        }],
        profiles: vec![ProfileFacts {
            name: PATH.to_owned(),
            rtt_ms,
            source: source.to_owned(),
            ..ProfileFacts::default()
        }],
        experiments: vec![Experiment {
            name: ELSEWHERE.to_owned(),
            title: format!("a GET of {}", config.url),
        }],
        effects: effects(&cells_with_figures, &samples, config.seed),
        control: control(twins, cells.len(), &samples, config.seed),
        cells: cells_with_figures,
        samples,
        captures: packets.map(Packets::captures).unwrap_or_default(),
        left_out,
        ..Record::default()
    }
}

fn summary<'a>(samples: impl Iterator<Item = &'a Sample>) -> Option<Summary> {
    let good: Vec<&Sample> = samples.filter(|sample| sample.fault.is_none()).collect();
    let of = |value: fn(&Sample) -> Option<f64>| good.iter().filter_map(move |s| value(s));
    Some(Summary {
        samples: good.len(),
        setup: figures(of(|sample| sample.setup_ms)),
        first_byte: figures(of(|sample| sample.time_ms))?,
        total: figures(of(|sample| sample.total_ms)),
        wire_p50_ms: figures(of(|sample| sample.wire_ms)).map(|wire| wire.p50_ms),
        wire_total_p50_ms: figures(of(|sample| sample.wire_total_ms)).map(|wire| wire.p50_ms),
        round_trips: usual(good.iter().map(|sample| sample.round_trips)),
        total_round_trips: usual(good.iter().map(|sample| sample.total_round_trips)),
        residual: None,
    })
}

/// How many whole round trips fit into a time: what it cost, or more if the server took long.
fn trips(time_ms: Option<f64>, rtt_ms: f64) -> Option<u32> {
    let trips = time_ms? / rtt_ms;
    (rtt_ms > 0.0 && trips < MAX_SAMPLES_SHOWN).then_some(trips as u32)
}

const NOT_CAPTURED: &str = "no packets were captured: labels are the kernel's word and TLS's";
const PATH: &str = "the network in between";
/// Beyond this it is the server's own time that is divided.
const MAX_SAMPLES_SHOWN: f64 = 1e6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_are_whole_ones_and_need_an_rtt() {
        assert_eq!(trips(Some(61.2), 20.0), Some(3));
        assert_eq!(trips(Some(61.2), 0.0), None);
        assert_eq!(trips(None, 20.0), None);
    }
}
