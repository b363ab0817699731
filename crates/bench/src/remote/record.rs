//! Makes the record of a remote run.

use std::time::Duration;

use firstflight_report::axes::REMOTE_EXPERIMENT;
use firstflight_report::{
    Cell as RecordCell, Experiment, ProfileFacts, Record, SCHEMA, Sample, ServerFacts, Summary,
    Witness, control, effects,
};
use firstflight_samples::{ClientKind, Workload, machine_facts, round_trips, version_number};

use super::config::RemoteConfig;
use super::connection::{Cell, Outcome, RemoteServer};
use super::packets::Packets;

/// What a run has measured.
pub(super) struct RunState {
    pub samples: Vec<Sample>,
    /// The kernel's minimum RTT.
    pub min_rtt: Option<Duration>,
    pub packets: Option<Packets>,
    /// Why packets could not be captured.
    pub capture_error: Option<String>,
}

/// Makes the record of a run.
pub(super) fn record(
    config: &RemoteConfig,
    server: &RemoteServer,
    cells: &[Cell],
    state: RunState,
    left_out: Vec<String>,
    first: &Outcome,
) -> Record {
    let RunState { mut samples, min_rtt, packets, capture_error } = state;
    let (witness, min_rtt, source) = match &packets {
        Some(packets) => {
            let source = "the minimum time from a connection's first packet to the server's first";
            (Witness::Packets, packets.min_rtt(), source)
        }
        None => {
            let source =
                "the minimum RTT that the kernel or QUIC measured on the run's connections";
            (Witness::Kernel, min_rtt, source)
        }
    };
    // The kernel measures microseconds.
    let rtt_ms = min_rtt.map_or(0.0, |rtt| (rtt.as_secs_f64() * 1e6).round() / 1e3);
    if witness == Witness::Kernel {
        for sample in &mut samples {
            sample.round_trips = whole_round_trips(sample.time_ms, rtt_ms);
            sample.total_round_trips = whole_round_trips(sample.total_ms, rtt_ms);
        }
    }
    let mut notes = vec![format!("at {}, for all samples", server.address)];
    match &packets {
        Some(packets) => notes.extend(packets.notes()),
        None => notes.push(match capture_error {
            None => NOT_CAPTURED.to_owned(),
            Some(why) => format!("{NOT_CAPTURED}; {why}"),
        }),
    }
    let host = server.target.host().to_owned();
    // The size identifies cells in comparisons. All cells request the same page, whose length may
    // vary from response to response, so they have that of its first check.
    let response_bytes = |workload: Workload| {
        let first = cells.iter().find(|cell| cell.requested.workload == workload);
        first.map_or(0, |cell| cell.response_bytes as u64)
    };
    let cell = |(index, cell): (usize, &Cell)| RecordCell {
        experiment: REMOTE_EXPERIMENT.to_owned(),
        client: ClientKind::Firstflight.name().to_owned(),
        server: host.clone(),
        workload: cell.requested.workload.name().to_owned(),
        profile: PROFILE_NAME.to_owned(),
        rtt_ms,
        transport: cell.requested.transport.name().to_owned(),
        tls: version_number(cell.requested.version).to_owned(),
        kind: cell.requested.kind.name().to_owned(),
        tfo: cell.requested.tfo,
        token: cell.requested.token,
        http: match cell.requested.workload {
            Workload::Get => cell.requested.http.name().to_owned(),
            Workload::PingPong => String::new(),
        },
        group: cell.requested.group.name().to_owned(),
        cipher: String::new(),
        certificate: String::new(),
        response_bytes: response_bytes(cell.requested.workload),
        control: cell.control_of.is_some(),
        expected_round_trips: Some(round_trips(&cell.requested)),
        summary: Summary::of_samples(
            samples.iter().filter(|sample| sample.cell == index && sample.fault.is_none()),
        ),
    };
    let cells_with_figures: Vec<RecordCell> = cells.iter().enumerate().map(cell).collect();
    let controls =
        cells.iter().enumerate().filter_map(|(index, cell)| Some((cell.control_of?, index)));
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
            name: PROFILE_NAME.to_owned(),
            rtt_ms,
            source: source.to_owned(),
            ..ProfileFacts::default()
        }],
        experiments: vec![Experiment {
            name: REMOTE_EXPERIMENT.to_owned(),
            title: match config.workloads.as_slice() {
                [Workload::PingPong] => format!("PING and PONG at {}", config.url),
                _ => format!("a GET of {}", config.url),
            },
        }],
        effects: effects(&cells_with_figures, &samples, config.seed),
        control: control(controls, cells.len(), &samples, config.seed),
        cells: cells_with_figures,
        samples,
        captures: packets.map(Packets::captures).unwrap_or_default(),
        left_out,
        ..Record::default()
    }
}

/// The number of whole round trips that fit into a time. An upper bound, because it includes the time
/// that the server took.
fn whole_round_trips(time_ms: Option<f64>, rtt_ms: f64) -> Option<u32> {
    let round_trips = time_ms? / rtt_ms;
    (rtt_ms > 0.0 && round_trips < MAX_ROUND_TRIPS).then_some(round_trips as u32)
}

const NOT_CAPTURED: &str =
    "no packets were captured: labels come from the kernel, from QUIC and from TLS";
const PROFILE_NAME: &str = "the network in between";
/// A higher number is not a plausible number of round trips.
const MAX_ROUND_TRIPS: f64 = 1e6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_are_whole_numbers_and_need_an_rtt() {
        assert_eq!(whole_round_trips(Some(61.2), 20.0), Some(3));
        assert_eq!(whole_round_trips(Some(61.2), 0.0), None);
        assert_eq!(whole_round_trips(None, 20.0), None);
    }
}
