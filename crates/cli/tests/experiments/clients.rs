//! Third-party clients over TCP.

use firstflight_emulator::Profile;
use firstflight_lab::{BuiltInExperiment, ClientKind, HttpVersion};
use firstflight_report::Record;

use crate::{RoundTrips, lab, samples, spoiled};

/// The experiment with clients over TCP.
fn measure() -> Record {
    lab(|config| {
        config.costs = false;
        let mut experiment = BuiltInExperiment::Clients.experiment(&[], Some(3)).unwrap();
        // Long, so that processes that compute do not blur the round trips.
        experiment.profiles = vec![Profile::parse("60").unwrap()];
        experiment.axes.connections.http = vec![HttpVersion::One];
        config.experiments.push(experiment);
    })
}

pub(crate) fn over_tcp() {
    let record = measure();
    let has = |client: ClientKind, kind: &str| {
        record.cells.iter().any(|cell| cell.client == client.name() && cell.kind == kind)
    };
    for client in [ClientKind::Curl, ClientKind::OpenSsl, ClientKind::GnuTls] {
        assert!(has(client, "full") && has(client, "resumed"), "{client}: {:?}", record.left_out);
        assert_eq!(has(client, "0-RTT"), client != ClientKind::Curl, "{client}");
    }
    assert!(record.left_out.iter().any(|why| why.starts_with("curl without 0-RTT")));
    assert!(record.left_out.iter().any(|why| why.starts_with("ngtcp2 without")));
    let mut counts = RoundTrips::default();
    for (cell, sample) in samples(&record, |_| true) {
        assert!(sample.fault.is_none() || spoiled(sample), "{sample:?} in {cell:?}");
        counts.note(sample.round_trips, cell.expected_round_trips, (cell, sample));
        if cell.client != ClientKind::Firstflight.name() && sample.fault.is_none() {
            assert!(sample.wire_ms.is_some() && sample.time_ms == sample.wire_ms, "{sample:?}");
        }
    }
    counts.check(&record);
}
