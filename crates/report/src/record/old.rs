//! Schema 1, as the first lab wrote it, in today's form.

use std::collections::HashMap;

use serde::Deserialize;

use super::{
    Cell, Experiment, Figures, LinkFacts, MachineFacts, ProfileFacts, Record, Replay, SCHEMA,
    Sample, ServerFacts, Summary,
};

/// A record of schema 1. What it shares with today's is read as today's.
#[derive(Deserialize)]
pub(super) struct Old {
    version: String,
    date: String,
    seconds: f64,
    seed: u64,
    machine: OldMachine,
    servers: Vec<(String, String)>,
    link: OldLink,
    cells: Vec<OldCell>,
    samples: Vec<Sample>,
    replays: Vec<Replay>,
}

#[derive(Deserialize)]
struct OldMachine {
    kernel: String,
    processor: String,
    processors: usize,
}

#[derive(Deserialize)]
struct OldLink {
    congestion_control: String,
    initial_window: u32,
    packets: u64,
    lateness_p50_us: f64,
    lateness_p99_us: f64,
    lateness_max_us: f64,
    refused_settings: Vec<String>,
    keep_awake: bool,
}

#[derive(Deserialize)]
struct OldCell {
    server: String,
    workload: String,
    rtt_ms: f64,
    tls: String,
    kind: String,
    tfo: bool,
    summary: Option<OldSummary>,
}

#[derive(Deserialize)]
struct OldSummary {
    samples: usize,
    min_ms: f64,
    p50_ms: f64,
    p50_interval_ms: (f64, f64),
    p95_ms: Option<f64>,
    max_ms: f64,
    wire_p50_ms: Option<f64>,
    round_trips: Option<u32>,
}

/// The same in today's form. What schema 1 did not keep and cannot be made again stays empty; the
/// mean is taken from the samples.
pub(super) fn convert(old: Old) -> Record {
    let sums = sums(&old);
    let cells: Vec<Cell> = old
        .cells
        .into_iter()
        .zip(sums)
        .map(|(cell, (sum, n))| convert_cell(cell, sum, n))
        .collect();
    let mut profiles: Vec<ProfileFacts> = Vec::new();
    for cell in &cells {
        if !profiles.iter().any(|profile| profile.name == cell.profile) {
            profiles.push(ProfileFacts {
                name: cell.profile.clone(),
                rtt_ms: cell.rtt_ms,
                ..ProfileFacts::default()
            });
        }
    }
    let named = |name: &str, title: &str| Experiment { name: name.into(), title: title.into() };
    let experiments =
        [named("ping-pong", "The ping-pong matrix"), named("get", "HTTP GET of 1 KiB")]
            .into_iter()
            .filter(|experiment| cells.iter().any(|cell| cell.experiment == experiment.name));
    Record {
        schema: SCHEMA,
        version: old.version,
        date: old.date,
        seconds: old.seconds,
        seed: old.seed,
        machine: MachineFacts {
            kernel: old.machine.kernel,
            processor: old.machine.processor,
            processors: old.machine.processors,
            no_counters: Some("the version that measured did not count them".to_owned()),
        },
        servers: old
            .servers
            .into_iter()
            .map(|(name, version)| ServerFacts { name, version, notes: Vec::new() })
            .collect(),
        link: Some(convert_link(old.link)),
        profiles,
        experiments: experiments.collect(),
        cells,
        samples: in_blocks(old.samples),
        replays: old.replays,
        ..Record::default()
    }
}

/// Sum and number of each cell's good times.
fn sums(old: &Old) -> Vec<(f64, usize)> {
    let mut sums = vec![(0.0, 0); old.cells.len()];
    for sample in old.samples.iter().filter(|sample| sample.fault.is_none()) {
        if let (Some((sum, n)), Some(time)) = (sums.get_mut(sample.cell), sample.time_ms) {
            *sum += time;
            *n += 1;
        }
    }
    sums
}

fn convert_cell(cell: OldCell, sum: f64, samples: usize) -> Cell {
    let get = cell.workload == "get";
    Cell {
        experiment: cell.workload.clone(),
        client: super::cell::ours(),
        server: cell.server,
        workload: cell.workload,
        profile: format!("{} ms", cell.rtt_ms),
        rtt_ms: cell.rtt_ms,
        transport: super::cell::tcp(),
        tls: cell.tls,
        kind: cell.kind,
        tfo: cell.tfo,
        token: false,
        http: if get { "1.1".to_owned() } else { String::new() },
        group: "X25519".to_owned(),
        certificate: "ecdsa-p256".to_owned(),
        response_bytes: if get { 1024 } else { 4 },
        control: false,
        expected_round_trips: None,
        summary: cell.summary.map(|summary| Summary {
            samples: summary.samples,
            first_byte: Figures {
                min_ms: summary.min_ms,
                p50_ms: summary.p50_ms,
                p50_interval_ms: summary.p50_interval_ms,
                p95_ms: summary.p95_ms,
                max_ms: summary.max_ms,
                mean_ms: if samples == 0 { summary.p50_ms } else { sum / samples as f64 },
                ..Figures::default()
            },
            wire_p50_ms: summary.wire_p50_ms,
            round_trips: summary.round_trips,
            ..Summary::default()
        }),
    }
}

/// Schema 1 did not say the block: in each, every cell of a path came once.
fn in_blocks(mut samples: Vec<Sample>) -> Vec<Sample> {
    let mut seen: HashMap<usize, usize> = HashMap::new();
    for sample in &mut samples {
        let block = seen.entry(sample.cell).or_default();
        sample.block = *block;
        *block += 1;
    }
    samples
}

fn convert_link(link: OldLink) -> LinkFacts {
    LinkFacts {
        backend: "packet rings".to_owned(),
        congestion_control: link.congestion_control,
        initial_window: link.initial_window,
        packets: link.packets,
        lateness_p50_us: link.lateness_p50_us,
        lateness_p99_us: link.lateness_p99_us,
        lateness_max_us: link.lateness_max_us,
        refused_settings: link.refused_settings,
        keep_awake: link.keep_awake,
        calibrations: Vec::new(),
    }
}
