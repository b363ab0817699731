//! The metrics page and the reference.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};

use firstflight_telemetry::metrics::{
    self, CertificateOrigin, CertificateReading, ClaimTimes, Early, Format, HandshakeKind, Kind,
    Method, Metrics, Protocol, Readings, RefusedReason, Snapshot, Status, StoreReading, TlsVersion,
    Transport, UpstreamReading, UpstreamServerReading,
};
use firstflight_testkit::{assert_committed, skipped_without};

/// A snapshot with series of every kind.
fn full() -> Snapshot {
    let metrics = Metrics::default();
    let labels = (TlsVersion::Tls13, HandshakeKind::Early, Transport::Quic);
    metrics.handshakes.seconds.observe(labels, 0.03);
    metrics.handshakes.first_response.observe((HandshakeKind::Full, Transport::Tcp), 40.0);
    let labels = (Protocol::Http3, Method::Get, Status::Success, Early::Ran);
    metrics.requests.ended.count(labels);
    metrics.requests.seconds.observe((Protocol::Http3, Early::Ran), 0.001);
    metrics.tickets.age_skew.observe((), -3.0);
    metrics.early_data.hold_seconds.observe(metrics::HoldEnd::Handshake, 0.02);
    metrics.upstreams.observe_response("app", "unix:/a", std::time::Duration::from_millis(2));
    let claim_times = ClaimTimes { bounds: vec![0.001, 0.01], buckets: vec![5, 1, 0], sum: 0.007 };
    let unknown = vec![(RefusedReason::StoreDown, 2), (RefusedReason::StoreTimeout, 0)];
    let server = UpstreamServerReading { address: "unix:/a".to_owned(), ..Default::default() };
    let readings = Readings {
        store: Some(StoreReading { won: 6, unknown, claim_times, ..StoreReading::default() }),
        quic: Some(metrics::QuicReading { handshakes: 1 }),
        upstreams: vec![UpstreamReading {
            name: "app".to_owned(),
            servers: vec![server],
            ..Default::default()
        }],
        certificates: vec![CertificateReading {
            site: "example.test".to_owned(),
            source: CertificateOrigin::Acme,
            expires: 1,
        }],
        ..Readings::default()
    };
    metrics.snapshot(&readings)
}

#[test]
fn names_follow_prometheus_conventions() {
    let mut names = BTreeSet::new();
    for family in &full().families {
        let description = family.description;
        let name = description.name;
        assert!(description.kind != Kind::Histogram || description.unit().is_some(), "{name}");
        assert!(names.insert(name), "{name} is listed twice");
        assert!(name.starts_with("firstflight_") || name.starts_with("process_"), "{name}");
        assert_eq!(name.ends_with("_total"), description.kind == Kind::Counter, "{name}");
        for text in [description.help, description.advice] {
            assert!(text.ends_with('.') && !text.contains("  "), "{name}: {text}");
        }
        for series in &family.series {
            let labels = series.labels.iter().map(|(name, _)| *name).collect::<Vec<_>>();
            let described = family.labels.iter().map(|label| label.name).collect::<Vec<_>>();
            assert_eq!(labels, described, "{name}");
        }
    }
}

#[test]
fn promtool_accepts_the_page() {
    if skipped_without(&["promtool"]) {
        return;
    }
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is not installed; run `make deps-test`");
    let page = full().encode(Format::Prometheus);
    promtool.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let ended = promtool.wait_with_output().unwrap();
    let output =
        [ended.stdout, ended.stderr].map(|output| String::from_utf8(output).unwrap()).concat();
    assert!(ended.status.success() && output.is_empty(), "{output}\n{page}");
}

#[test]
fn sums_are_over_the_requested_labels() {
    let snapshot = full();
    assert_eq!(snapshot.sum("firstflight_claims_total", &[]), 8.0);
    assert_eq!(snapshot.sum("firstflight_claims_total", &[("result", "won")]), 6.0);
    let labels = [("register", "store"), ("result", "unknown")];
    assert_eq!(snapshot.sum("firstflight_claims_total", &labels), 2.0);
    assert_eq!(snapshot.sum("firstflight_handshake_seconds", &[("kind", "early")]), 1.0);
    assert_eq!(snapshot.sum("no_such_thing", &[]), 0.0);
}

#[test]
fn the_reference_is_made_from_the_metrics() {
    assert_committed("docs/reference/metrics.md", &metrics::reference());
}
