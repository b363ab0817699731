//! Small runs of the lab's experiments at this project's server: labels, refusals, middleboxes,
//! control.
//!
//! Has no standard harness: an ordinary user must enter a user namespace before any thread starts.

mod certificates;
mod clients;
mod cold_starts;
mod quic;
mod remote;
mod remote_http3;
mod stalls;
mod unanswered;

use std::collections::HashMap;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Duration;

use firstflight_emulator::{CellSpec, Middlebox, Profile, enter_user_namespace};
use firstflight_lab::{
    Axes, BuiltInExperiment, Captures, ConnectionAxes, Experiment, HandshakeKind, HttpVersion,
    LabConfig, MiddleboxConfig, ResponseSize, ServerKind,
};
use firstflight_report::{Cell, Fault, Record, Sample};
use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    if let Err(error) = enter_user_namespace() {
        eprintln!("the lab's tests cannot run here: {error}");
        return ExitCode::FAILURE;
    }
    let mut arguments = Arguments::from_args();
    // The lab measures time, so concurrent runs would disturb each other.
    arguments.test_threads.get_or_insert(1);
    let tests: [(&str, fn()); 27] = [
        ("refused_early_data_is_labelled_and_has_its_own_cell", refused),
        ("rfc7413_4_2_a_post_quantum_hello_with_a_ticket_exceeds_the_syn", post_quantum),
        ("samples_where_fast_open_falls_back_are_left_out_of_the_figures", fast_open_fallback),
        ("rfc6928_a_page_of_ten_kib_arrives_in_the_round_trip_of_its_first_byte", page),
        ("rfc9000_8_1_a_page_over_quic_takes_another_round_trip_without_a_token", quic::page),
        (
            "rfc9001_4_6_early_data_over_quic_is_accepted_and_refused_as_its_cell_requests",
            quic::refused,
        ),
        ("third_party_clients_are_measured_by_their_packets", quic::third_party),
        ("each_cipher_and_certificate_is_what_its_cell_requests", certificates::axes),
        ("third_party_clients_over_tcp_are_measured_by_their_packets", clients::over_tcp),
        ("packets_lost_by_design_do_not_spoil_samples_over_quic", quic::loss),
        ("middleboxes_have_the_expected_outcomes", middleboxes),
        ("every_experiment_has_an_aa_control", control),
        ("cells_have_figures_costs_and_effects", figures),
        ("captures_are_written_next_to_the_record", captures),
        ("connections_to_a_remote_server_are_labelled_by_packets", remote::every_kind),
        ("connections_to_a_remote_server_are_labelled_without_a_capture", remote::by_the_kernel),
        ("connections_over_quic_to_a_remote_server_are_labelled_by_packets", remote::over_quic),
        (
            "rfc9000_8_1_a_page_over_quic_from_a_remote_server_has_the_labs_round_trips",
            remote::page_over_quic,
        ),
        (
            "connections_over_quic_to_a_remote_server_are_labelled_without_a_capture",
            remote::over_quic_by_the_kernel,
        ),
        (
            "bench_finds_over_http3_at_caddy_and_our_server_what_the_lab_finds",
            remote_http3::as_in_the_lab,
        ),
        ("a_remote_ping_pong_server_is_measured_over_tcp_and_quic", remote::ping_pong),
        (
            "handshakes_that_a_remote_server_does_not_support_are_left_out",
            remote::unsupported_handshakes,
        ),
        ("urls_that_cannot_be_measured_are_refused", remote::urls),
        (
            "rfc8446_an_early_first_flight_that_is_dropped_is_followed_by_one_without_early_data",
            unanswered::first_flight,
        ),
        ("fetch_behind_boxes_and_proxies_has_the_expected_outcomes", stalls::every_obstacle),
        (
            "restarts_cost_what_the_place_of_the_ticket_keys_implies",
            cold_starts::every_way_of_keeping_keys,
        ),
        ("the_same_seed_gives_the_same_order", seeds),
    ];
    let trial = |(name, test): (&str, fn())| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    libtest_mimic::run(&arguments, tests.map(trial).into()).exit_code()
}

/// Runs the lab in a temporary directory.
fn lab(configure: impl FnOnce(&mut LabConfig)) -> Record {
    let scratch = tempfile::tempdir().unwrap();
    let program = PathBuf::from(env!("CARGO_BIN_EXE_firstflight"));
    let mut config = LabConfig::new(Vec::new(), 7, scratch.path().to_owned(), program);
    config.flights = 0;
    config.keep_awake = Some(false);
    configure(&mut config);
    firstflight_lab::run(&config, &|_| {}).unwrap()
}

fn output() -> &'static Path {
    static OUTPUT: OnceLock<tempfile::TempDir> = OnceLock::new();
    OUTPUT.get_or_init(|| tempfile::tempdir().unwrap()).path()
}

/// The run that most tests share.
fn record() -> &'static Record {
    static RECORD: OnceLock<Record> = OnceLock::new();
    RECORD.get_or_init(|| {
        lab(|config| {
            let ours = [ServerKind::Firstflight];
            let built_in = [(BuiltInExperiment::Refused, 30), (BuiltInExperiment::PostQuantum, 6)];
            for (experiment, samples) in built_in {
                let mut experiment = experiment.experiment(&ours, Some(samples)).unwrap();
                experiment.profiles = vec![Profile::plain(Duration::from_millis(9))];
                config.experiments.push(experiment);
            }
            config.experiments.push(behind_a_middlebox());
            config.experiments.push(a_page_over_http_2());
            config.middleboxes = Some(MiddleboxConfig {
                profile: Profile::parse("10").unwrap(),
                attempts: 3,
                response_timeout: Duration::from_secs(4),
                ..MiddleboxConfig::new(ours.to_vec())
            });
            config.output = Some(output().to_owned());
            config.captures = Captures::One;
        })
    })
}

/// TCP Fast Open through a middlebox that silently removes the data from SYNs.
fn behind_a_middlebox() -> Experiment {
    let mut profile = Profile::plain(Duration::from_millis(10));
    profile.name = "silent".to_owned();
    profile.up.push(CellSpec::Middlebox(Middlebox::StripSynData));
    Experiment {
        name: "behind".to_owned(),
        title: "behind a middlebox".to_owned(),
        profiles: vec![profile],
        axes: axes(ConnectionAxes {
            kinds: vec![HandshakeKind::ZeroRtt],
            tfo: vec![false, true],
            ..ConnectionAxes::baseline()
        }),
        samples: 10,
        control: false,
    }
}

/// A page that fits into the initial congestion window.
fn a_page_over_http_2() -> Experiment {
    Experiment {
        name: "page".to_owned(),
        title: "a page of 10 KiB over HTTP/2".to_owned(),
        profiles: vec![Profile::plain(Duration::from_millis(10))],
        axes: axes(ConnectionAxes {
            kinds: HandshakeKind::ALL
                .into_iter()
                .filter(|kind| *kind != HandshakeKind::Refused)
                .collect(),
            http: vec![HttpVersion::Two],
            sizes: vec![ResponseSize::TenKib],
            ..ConnectionAxes::baseline()
        }),
        samples: 10,
        control: false,
    }
}

/// These connections at this project's server.
fn axes(connections: ConnectionAxes) -> Axes {
    Axes { connections, ..Axes::baseline() }
}

fn samples<'a>(
    record: &'a Record,
    selected: impl Fn(&Cell) -> bool + 'a,
) -> impl Iterator<Item = (&'a Cell, &'a Sample)> {
    let with_cell = |sample: &'a Sample| (&record.cells[sample.cell], sample);
    record.samples.iter().map(with_cell).filter(move |(cell, _)| selected(cell))
}

/// Whether a sample was left out because the machine stalled.
fn spoiled(sample: &Sample) -> bool {
    matches!(sample.fault, Some(Fault::Spoiled(_)))
}

/// The minimum of round trips of each cell. A stall longer than the path's round-trip time counts
/// as a round trip, so a sample may have more than the protocols need, but never fewer.
#[derive(Default)]
struct RoundTrips<T>(HashMap<usize, (T, T)>);

impl<T: Copy + PartialOrd + Debug> RoundTrips<T> {
    /// Adds a sample, also a spoiled one: its packets may be late, but they are complete.
    fn note(&mut self, counted: T, expected: T, (cell, sample): (&Cell, &Sample)) {
        assert!(counted >= expected, "{counted:?} of {expected:?}: {sample:?} in {cell:?}");
        let (minimum, _) = self.0.entry(sample.cell).or_insert((counted, expected));
        if counted < *minimum {
            *minimum = counted;
        }
    }

    fn check(self, record: &Record) {
        assert!(!self.0.is_empty(), "no samples");
        for (cell, (minimum, expected)) in self.0 {
            assert_eq!(minimum, expected, "{:?}", record.cells[cell]);
        }
    }
}

fn refused() {
    let mut trips = RoundTrips::default();
    for (cell, sample) in samples(record(), |cell| cell.experiment == "refused") {
        assert!(sample.fault.is_none() || spoiled(sample), "{sample:?} in {cell:?}");
        let label = sample.label.as_deref().unwrap_or_default();
        let refused = label.contains("early data refused");
        assert_eq!(refused, cell.kind == "refused", "{label} in {cell:?}");
        assert_eq!(label.contains("early data accepted"), cell.kind == "0-RTT", "{label}");
        trips.note(sample.round_trips, cell.expected_round_trips, (cell, sample));
    }
    trips.check(record());
}

fn post_quantum() {
    let mut trips = RoundTrips::default();
    for (cell, sample) in samples(record(), |cell| cell.experiment == "post-quantum") {
        assert!(sample.fault.is_none() || spoiled(sample), "{sample:?} in {cell:?}");
        trips.note(sample.round_trips, cell.expected_round_trips, (cell, sample));
    }
    trips.check(record());
}

fn page() {
    let mut trips = RoundTrips::default();
    for (cell, sample) in samples(record(), |cell| cell.experiment == "page") {
        assert!(sample.fault.is_none() || spoiled(sample), "{sample:?} in {cell:?}");
        assert!(sample.round_trips.is_some(), "{sample:?} in {cell:?}");
        trips.note(sample.total_round_trips, sample.round_trips, (cell, sample));
    }
    trips.check(record());
}

fn fast_open_fallback() {
    for (cell, sample) in samples(record(), |cell| cell.experiment == "behind") {
        let fallen_back = sample.label.as_deref().unwrap_or_default().contains("TFO fallen back");
        assert_eq!(fallen_back, cell.tfo, "{sample:?} in {cell:?}");
        match &sample.fault {
            Some(Fault::Mislabelled(what)) => assert!(cell.tfo && what.contains("TFO fallen back")),
            Some(Fault::Spoiled(_)) => {}
            fault => assert!(!cell.tfo && fault.is_none(), "{fault:?} in {cell:?}"),
        }
    }
    let with_tfo = record().cells.iter().find(|cell| cell.experiment == "behind" && cell.tfo);
    assert!(with_tfo.unwrap().summary.is_none(), "nothing may enter the figures of this cell");
}

fn middleboxes() {
    let outcomes = &record().middleboxes;
    let labels = |middlebox: &str, kind: &str, tfo: bool, group: &str| {
        let row = outcomes.iter().find(|row| {
            (&*row.middlebox, &*row.kind, row.tfo, &*row.group) == (middlebox, kind, tfo, group)
                && row.transport == "tcp"
        });
        let row = row.unwrap_or_else(|| panic!("{middlebox} {kind}: {outcomes:#?}"));
        assert_eq!(row.labels.iter().map(|(_, count)| count).sum::<usize>(), row.tries);
        let words: Vec<&str> = row.labels.iter().map(|(label, _)| label.as_str()).collect();
        (words.join("; "), row)
    };
    let plain = labels("no middlebox", "0-RTT", true, "X25519");
    assert_eq!(plain.0, "TLS 1.3 early data accepted, TFO used");
    assert_eq!(plain.1.packets_hit, 0.0);
    let expected = [
        ("strip-tfo", "0-RTT", true, "X25519", "TLS 1.3 early data accepted, TFO off"),
        ("strip-syn-data", "0-RTT", true, "X25519", "TLS 1.3 early data accepted, TFO fallen back"),
        ("drop-syn-data", "resumed", true, "X25519", "TLS 1.3 resumed, TFO fallen back"),
        ("drop-large-hello", "resumed", false, "X25519MLKEM768", "no response"),
        ("drop-large-hello", "full", false, "X25519MLKEM768", "TLS 1.3 full, TFO off"),
        ("drop-large-hello", "full", false, "X25519", "TLS 1.3 full, TFO off"),
        ("drop-early-data", "0-RTT", false, "X25519", "no response"),
        ("drop-early-data", "full", false, "X25519", "TLS 1.3 full, TFO off"),
    ];
    for (middlebox, kind, tfo, group, label) in expected {
        let (words, row) = labels(middlebox, kind, tfo, group);
        assert_eq!(words, label, "{row:#?}");
        assert_eq!(row.failed, if label == "no response" { row.tries } else { 0 }, "{row:#?}");
    }
    let over_quic = |middlebox: &str| {
        let rows = outcomes.iter().filter(|row| row.transport == "quic");
        let rows: Vec<_> = rows.filter(|row| row.middlebox == middlebox).collect();
        assert_eq!(rows.len(), 2, "{rows:#?}");
        rows.iter().map(|row| (row.failed, row.tries)).collect::<Vec<_>>()
    };
    assert!(over_quic("drop-early-data").iter().all(|(failed, _)| *failed == 0), "only over TCP");
    assert!(over_quic("block-udp").iter().all(|(failed, tries)| failed == tries));
    assert!(over_quic("throttle-udp").iter().all(|(failed, _)| *failed == 0), "late, not lost");
    // A handshake that never ended.
    let large = labels("drop-large-hello", "resumed", false, "X25519MLKEM768").1;
    assert!(large.packets_hit >= 1.0, "{large:#?}");
    // A lost SYN costs the kernel's first retransmission timeout, a second.
    let lost = labels("drop-syn-data", "0-RTT", true, "X25519").1;
    // If the machine stalls there may be no figure. On a busy machine the other connections are
    // slow, too.
    if let (Some(first), Some(undisturbed)) = (&lost.first_byte, lost.undisturbed_p50_ms) {
        assert!(first.min_ms > 1000.0 && undisturbed < first.min_ms, "{lost:#?}");
    }
    assert!(lost.packets_hit >= 1.0, "{lost:#?}");
}

fn control() {
    let record = record();
    let twins: Vec<usize> =
        (0..record.cells.len()).filter(|cell| record.cells[*cell].control).collect();
    assert_eq!(twins.len(), 2, "one for each experiment with a control");
    let control = record.control.clone().unwrap_or_default();
    for pair in &control.pairs {
        let (cell, twin) = (&record.cells[pair.cell], &record.cells[pair.twin]);
        assert!(!cell.control && twin.control);
        assert_eq!((&cell.kind, cell.tfo, &cell.profile), (&twin.kind, twin.tfo, &twin.profile));
    }
    // A confidence interval needs six blocks in which neither arm was spoiled.
    let good = |cell: usize, block| {
        let is_good = |s: &Sample| s.cell == cell && s.block == block && s.fault.is_none();
        record.samples.iter().any(is_good)
    };
    for &twin in &twins {
        let key = |cell: &Cell| (cell.experiment.clone(), cell.kind.clone(), cell.tfo);
        let is_cell = |cell: &Cell| !cell.control && key(cell) == key(&record.cells[twin]);
        let cell = record.cells.iter().position(is_cell).unwrap();
        let whole = (0..30).filter(|block| good(cell, *block) && good(twin, *block)).count();
        let paired = control.pairs.iter().any(|pair| pair.twin == twin);
        assert_eq!(paired, whole >= 6, "{whole} whole blocks of cell {twin}");
    }
    assert_eq!(control.differing, control.pairs.iter().filter(|pair| pair.differs).count());
}

fn figures() {
    let record = record();
    assert_eq!(record.schema, firstflight_report::SCHEMA);
    let link = record.link.as_ref().unwrap();
    assert_eq!(link.calibrations.len(), record.profiles.len() * 2);
    assert_eq!(link.waited_ms.is_some(), Path::new("/proc/self/schedstat").exists());
    assert!(link.stolen_ms >= Some(0.0), "{link:?}");
    assert!(record.samples.iter().all(|sample| sample.stalled_us <= sample.lateness_us));
    for calibration in &link.calibrations {
        assert!(calibration.min_us > -200.0, "an echo was early: {calibration:?}");
    }
    for cell in record.cells.iter().filter(|cell| cell.summary.is_some()) {
        let summary = cell.summary.as_ref().unwrap();
        let (setup, total) = (summary.setup.as_ref().unwrap(), summary.total.as_ref().unwrap());
        assert!(summary.first_byte.p50_ms <= total.p50_ms, "{cell:?}");
        assert!(setup.min_ms >= cell.rtt_ms * 0.99, "{cell:?}");
        // With the costs known there is a model to compare the median with.
        assert_eq!(summary.residual.is_some(), summary.round_trips.is_some(), "{cell:?}");
    }
    for cost in &record.costs {
        assert!(cost.client_us > 0.0 && cost.server_us > 0.0, "{cost:?}");
    }
    for effect in &record.effects {
        let difference = effect.difference_ms;
        assert!(difference.low <= difference.estimate && difference.estimate <= difference.high);
    }
    assert!(record.machine.no_counters.is_none() || record.costs[0].client_cycles.is_none());
}

fn captures() {
    let record = record();
    assert!(!record.captures.is_empty() && !record.waterfalls.is_empty());
    for capture in &record.captures {
        let bytes = std::fs::read(output().join(&capture.file)).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains("_TRAFFIC_SECRET"), "the secrets are in {}", capture.file);
        assert_eq!(capture.connections, 1);
    }
    for waterfall in &record.waterfalls {
        let capture = waterfall.capture.as_ref().unwrap();
        assert!(record.captures.iter().any(|known| known.file == *capture), "{capture}");
        let first_packet = match record.cells[waterfall.cell].over_quic() {
            true => "Initial packet 0",
            false => "SYN",
        };
        assert!(waterfall.packets[0].up && waterfall.packets[0].what[0].starts_with(first_packet));
        assert!(waterfall.first_byte_ms <= waterfall.last_byte_ms);
    }
}

fn seeds() {
    let order = |seed: u64| -> Vec<(usize, usize)> {
        let record = lab(|config| {
            config.seed = seed;
            config.costs = false;
            let mut experiment =
                BuiltInExperiment::Get.experiment(&[ServerKind::Firstflight], Some(2)).unwrap();
            experiment.profiles = vec![Profile::parse("0.2").unwrap()];
            config.experiments = vec![experiment];
        });
        assert!(record.costs.is_empty() && record.captures.is_empty());
        record.samples.iter().map(|sample| (sample.cell, sample.block)).collect()
    };
    let first = order(5);
    assert_eq!(first, order(5));
    assert_ne!(first, order(6));
}
