//! The lab's experiments over QUIC.

use std::time::Duration;

use firstflight_emulator::{CellSpec, LossSpec, Profile};
use firstflight_lab::{
    Axes, BuiltInExperiment, ClientKind, ConnectionAxes, Experiment, HandshakeKind, HttpVersion,
    ResponseSize, ServerKind, Transport,
};
use firstflight_report::{Cell, Fault, Record};

use crate::{RoundTrips, lab, samples, spoiled};

/// A page of 10 KiB over HTTP/3, with and without an address token.
fn a_page(client: ClientKind, samples: usize) -> Experiment {
    Experiment {
        name: "page".to_owned(),
        title: "a page of 10 KiB over HTTP/3".to_owned(),
        profiles: vec![Profile::plain(rtt(client))],
        axes: Axes {
            clients: vec![client],
            connections: ConnectionAxes {
                kinds: vec![HandshakeKind::Full, HandshakeKind::ZeroRtt],
                tokens: vec![false, true],
                http: vec![HttpVersion::Three],
                sizes: vec![ResponseSize::TenKib],
                ..ConnectionAxes::baseline()
            },
            ..Axes::baseline()
        },
        samples,
        control: false,
    }
}

/// A short path for this project's client, so that its samples are taken one by one: debug builds
/// take longer than the interval between paced starts. Third-party clients run one by one anyway,
/// and a long path separates their round trips clearly.
fn rtt(client: ClientKind) -> Duration {
    Duration::from_millis(if client == ClientKind::Firstflight { 9 } else { 60 })
}

/// Round trips to the first and to the last byte of the response. Without a token the server may
/// send only three times the bytes that it has received (RFC 9000 section 8.1), less than the page.
fn trips(cell: &Cell) -> (Option<u32>, Option<u32>) {
    match (&*cell.kind, cell.token) {
        ("full", _) => (Some(2), Some(2)),
        (_, false) => (Some(1), Some(2)),
        (_, true) => (Some(1), Some(1)),
    }
}

fn check(record: &Record) {
    let mut counts = RoundTrips::default();
    for (cell, sample) in samples(record, |_| true) {
        assert!(sample.fault.is_none() || spoiled(sample), "{sample:?} in {cell:?}");
        let counted = (sample.round_trips, sample.total_round_trips);
        counts.note(counted, trips(cell), (cell, sample));
    }
    counts.check(record);
}

pub(crate) fn page() {
    let record = lab(|config| {
        config.costs = false;
        config.experiments.push(a_page(ClientKind::Firstflight, 8));
    });
    assert_eq!(record.cells.len(), 3);
    check(&record);
}

pub(crate) fn third_party() {
    for client in [ClientKind::Ngtcp2, ClientKind::Aioquic] {
        let record = lab(|config| {
            config.costs = false;
            config.experiments.push(a_page(client, 3));
        });
        let tokens = record.cells.iter().filter(|cell| cell.token).count();
        assert_eq!(tokens, usize::from(client == ClientKind::Aioquic), "{:?}", record.left_out);
        assert!(record.cells.iter().all(|cell| cell.client == client.name()));
        check(&record);
        for sample in record.samples.iter().filter(|sample| sample.fault.is_none()) {
            assert_eq!((sample.time_ms, sample.total_ms), (sample.wire_ms, sample.wire_total_ms));
        }
    }
}

pub(crate) fn refused() {
    let record = lab(|config| {
        config.costs = false;
        let ours = [ServerKind::Firstflight];
        let mut experiment = BuiltInExperiment::Refused.experiment(&ours, Some(20)).unwrap();
        experiment.profiles = vec![Profile::plain(rtt(ClientKind::Firstflight))];
        experiment.axes.connections.transports = vec![Transport::Quic];
        config.experiments.push(experiment);
    });
    let mut counts = RoundTrips::default();
    for (cell, sample) in samples(&record, |_| true) {
        let label = sample.label.as_deref().unwrap_or_default();
        let expected = match cell.kind.as_str() {
            "full" => "TLS 1.3 full, QUIC",
            "0-RTT" => "TLS 1.3 early data accepted, QUIC",
            _ => "TLS 1.3 early data refused, QUIC",
        };
        assert_eq!(label, expected, "{sample:?} in {cell:?}");
        counts.note(sample.round_trips, cell.expected_round_trips, (cell, sample));
    }
    counts.check(&record);
}

pub(crate) fn loss() {
    let record = lab(|config| {
        config.costs = false;
        let mut experiment = BuiltInExperiment::Loss.experiment(&[], Some(25)).unwrap();
        experiment.axes.connections.kinds = vec![HandshakeKind::ZeroRtt];
        experiment.axes.connections.transports = vec![Transport::Quic];
        let mut profile = Profile::plain(rtt(ClientKind::Firstflight));
        profile.name = "lossy".to_owned();
        for cells in [&mut profile.up, &mut profile.down] {
            cells.push(CellSpec::Loss(LossSpec { probability: 0.04 }));
        }
        experiment.profiles = vec![profile];
        config.experiments.push(experiment);
    });
    let (mut dropped, mut valid_with_loss) = (0, 0);
    for (cell, sample) in samples(&record, Cell::over_quic) {
        let faulty = matches!(sample.fault, Some(Fault::Mislabelled(_) | Fault::Failed(_)));
        assert!(!faulty, "{sample:?} in {cell:?}");
        dropped += sample.dropped;
        let valid = sample.fault.is_none() || spoiled(sample);
        valid_with_loss += usize::from(sample.dropped > 0 && valid);
    }
    assert!(dropped > 0, "the network dropped nothing");
    assert!(valid_with_loss > 0, "every sample with a lost packet was left out");
}
