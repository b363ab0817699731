//! `bench URL`: a remote server, which in these tests is behind an emulated path.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use firstflight_bench::remote::{self, LabelSource, RemoteConfig};
use firstflight_emulator::{Network, NetworkConfig, PathConfig};
use firstflight_lab::{HandshakeKind, HttpVersion, Workload};
use firstflight_report::{Fault, Record, Witness};
use firstflight_tls::Trust;

const RTT: Duration = Duration::from_millis(10);

/// Measures this project's server, started with these flags, over a path of [`RTT`].
fn measure(flags: &[&str], configure: impl FnOnce(&mut RemoteConfig)) -> Record {
    measure_page(2_000, flags, configure)
}

/// Like [`measure`], with a page of this length.
fn measure_page(bytes: usize, flags: &[&str], configure: impl FnOnce(&mut RemoteConfig)) -> Record {
    measure_server(flags, Some(bytes), configure)
}

/// Like [`measure`]; without a page the server serves no files.
fn measure_server(
    flags: &[&str],
    page: Option<usize>,
    configure: impl FnOnce(&mut RemoteConfig),
) -> Record {
    let command = |site: &Path, _| {
        let mut command = Command::new(PathBuf::from(env!("CARGO_BIN_EXE_firstflight")));
        command.args(["serve", "--listen", "0.0.0.0:4433"]).args(flags);
        command.arg("--cert").arg(site.join("cert.pem")).arg("--key").arg(site.join("key.pem"));
        if page.is_some() {
            command.arg("--root").arg(site);
        }
        command
    };
    measure_command(RTT, page.unwrap_or(0), command, configure)
}

/// Measures the server of a command over a path. The command gets a directory with `cert.pem`,
/// `key.pem` and a `page` of this length, and the server's address; it listens on port 4433.
pub(super) fn measure_command(
    rtt: Duration,
    page_bytes: usize,
    command: impl FnOnce(&Path, Ipv4Addr) -> Command,
    configure: impl FnOnce(&mut RemoteConfig),
) -> Record {
    let site = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["lab.test".to_owned()]).unwrap();
    let (cert, key) = (site.path().join("cert.pem"), site.path().join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    std::fs::write(site.path().join("page"), vec![b'x'; page_bytes]).unwrap();
    let path = PathConfig::symmetric("remote", rtt);
    let network = Network::build(NetworkConfig::new(vec![path])).unwrap();
    let address = network.path(0).unwrap().server;
    let mut command = command(site.path(), address);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let _server = network.server().spawn_child(command).unwrap();
    let mut config = RemoteConfig {
        trust: Trust::File(cert),
        resolve: vec![format!("lab.test:4433:{address}")],
        samples: 8,
        output: Some(site.path().join("out")),
        seed: 3,
        ..RemoteConfig::new("https://lab.test:4433/page")
    };
    configure(&mut config);
    // The server may not listen yet.
    let started = Instant::now();
    loop {
        match network.client().run(|| remote::run(&config, &|_| {})).unwrap() {
            // Over QUIC, each combination reports a refused connection for itself.
            Ok(record) if !record.left_out.iter().any(|why| why.contains("refused (os")) => {
                return record;
            }
            Ok(_) | Err(_) if started.elapsed() < Duration::from_secs(30) => {
                std::thread::sleep(Duration::from_millis(50));
            }
            Ok(record) => panic!("{:?}", record.left_out),
            Err(error) => panic!("{error}"),
        }
    }
}

pub(super) fn every_kind() {
    let record = measure(&["--early-data", "on"], |config| {
        config.kinds = HandshakeKind::ALL.to_vec();
        config.tfo = vec![false, true];
        config.concurrency = 4;
    });
    assert_eq!(record.witness, Witness::Packets);
    assert_eq!(record.captures.len(), record.cells.len());
    assert!(record.left_out.is_empty(), "{:?}", record.left_out);
    assert_eq!(record.cells.len(), 4 * 2 + 1, "with the control's second arm");
    assert_eq!(record.samples.len(), 9 * 8);
    let rtt_ms = record.profiles[0].rtt_ms;
    assert!((9.9..13.0).contains(&rtt_ms), "{rtt_ms}");
    for sample in &record.samples {
        let cell = &record.cells[sample.cell];
        assert_eq!(sample.fault, None, "{sample:?} in {cell:?}");
        let label = sample.label.as_deref().unwrap();
        assert_eq!(label.contains("TFO used"), cell.tfo, "{label}");
        assert_eq!(label.contains("early data refused"), cell.kind == "refused", "{label}");
        assert_eq!(cell.response_bytes, 2_000);
        assert!(sample.wire_ms <= sample.time_ms, "{sample:?}");
    }
    assert_round_trips(&record);
    let saved = record.effects.iter().find(|effect| effect.what == "0-RTT instead of full");
    let saved = saved.expect("an effect of 0-RTT");
    assert!(saved.difference_ms.estimate < 0.0, "{saved:?}");
    assert_eq!(record.control.as_ref().unwrap().pairs.len(), 1);
}

/// Every kind of connection over QUIC, without and with an address token.
pub(super) fn over_quic() {
    let record = measure(&["--early-data", "on"], |config| {
        config.kinds = HandshakeKind::ALL.to_vec();
        config.http = vec![HttpVersion::Three];
        config.tokens = vec![false, true];
    });
    assert_eq!(record.witness, Witness::Packets);
    assert!(record.left_out.is_empty(), "{:?}", record.left_out);
    // A full handshake has no token. The control's second arm is one more.
    assert_eq!(record.cells.len(), 1 + 3 * 2 + 1);
    assert_eq!(record.captures.len(), record.cells.len());
    let rtt_ms = record.profiles[0].rtt_ms;
    assert!((9.9..14.0).contains(&rtt_ms), "{rtt_ms}");
    for sample in &record.samples {
        let cell = &record.cells[sample.cell];
        assert_eq!(sample.fault, None, "{sample:?} in {cell:?}");
        let label = sample.label.as_deref().unwrap();
        assert!(label.contains("QUIC"), "{label}");
        assert_eq!(label.contains("early data accepted"), cell.kind == "0-RTT", "{label}");
        assert_eq!((cell.http.as_str(), cell.response_bytes), ("3", 2_000));
    }
    assert_round_trips(&record);
    let control = record.control.as_ref().unwrap();
    assert_eq!(control.pairs.len(), 1);
}

/// A page that takes a second round trip without an address token (RFC 9000 section 8.1): the same
/// round trips as in the lab.
pub(super) fn page_over_quic() {
    let record = measure_page(10 << 10, &["--early-data", "on"], |config| {
        config.kinds = vec![HandshakeKind::ZeroRtt];
        config.http = vec![HttpVersion::Three];
        config.tokens = vec![false, true];
        config.control = false;
    });
    let trips = |token: bool| {
        let index = record.cells.iter().position(|cell| cell.token == token).unwrap();
        let of_cell = || record.samples.iter().filter(|sample| sample.cell == index);
        let min_round_trips = of_cell().map(|sample| sample.round_trips).min().unwrap();
        (min_round_trips, of_cell().map(|sample| sample.total_round_trips).min().unwrap())
    };
    // A server that pauses within a flight, as on a busy machine, adds round trips to some samples.
    assert_eq!(trips(false), (Some(1), Some(2)));
    assert_eq!(trips(true), (Some(1), Some(1)));
}

pub(super) fn over_quic_by_the_kernel() {
    let record = measure(&["--early-data", "on"], |config| {
        config.label_source = LabelSource::Kernel;
        config.http = vec![HttpVersion::Three];
    });
    assert_eq!((record.witness, record.captures.len()), (Witness::Kernel, 0));
    assert_eq!(record.cells.len(), 3 + 1, "{:?}", record.left_out);
    for sample in &record.samples {
        let cell = &record.cells[sample.cell];
        assert_eq!(sample.fault, None, "{sample:?} in {cell:?}");
        assert!(sample.round_trips >= cell.expected_round_trips, "{sample:?} in {cell:?}");
    }
}

/// A ping-pong server, over TCP and over QUIC.
pub(super) fn ping_pong() {
    let record = measure_server(&["--early-data", "on", "--ping-pong"], None, |config| {
        config.workloads = vec![Workload::PingPong];
    });
    assert!(record.left_out.is_empty(), "{:?}", record.left_out);
    assert_eq!(record.cells.len(), 2 * 3 + 1);
    for sample in &record.samples {
        let cell = &record.cells[sample.cell];
        assert_eq!(sample.fault, None, "{sample:?} in {cell:?}");
        assert_eq!((cell.workload.as_str(), cell.response_bytes), ("ping-pong", 4));
    }
    assert_round_trips(&record);
}

/// A server that pauses within a flight, as on a busy machine, adds round trips to some samples.
fn assert_round_trips(record: &Record) {
    for (index, cell) in record.cells.iter().enumerate() {
        let of_cell = record.samples.iter().filter(|sample| sample.cell == index);
        let min_round_trips = of_cell.map(|sample| sample.round_trips).min().expect("a sample");
        assert_eq!(min_round_trips, cell.expected_round_trips, "{cell:?}");
    }
}

pub(super) fn by_the_kernel() {
    let record =
        measure(&["--early-data", "on"], |config| config.label_source = LabelSource::Kernel);
    assert_eq!((record.witness, record.captures.len()), (Witness::Kernel, 0));
    // The kernel measures some round trips in whole milliseconds.
    let rtt_ms = record.profiles[0].rtt_ms;
    assert!((8.9..13.0).contains(&rtt_ms), "{rtt_ms}");
    for sample in &record.samples {
        let cell = &record.cells[sample.cell];
        assert_eq!(sample.fault, None, "{sample:?} in {cell:?}");
        // An upper bound, since it includes the server's processing time.
        assert!(sample.round_trips >= cell.expected_round_trips, "{sample:?} in {cell:?}");
    }
}

pub(super) fn unsupported_handshakes() {
    let record = measure(&["--early-data", "off"], |config| config.samples = 2);
    assert_eq!(record.cells.len(), 2, "full and resumed, no control: {:?}", record.left_out);
    let [why] = &record.left_out[..] else { panic!("{:?}", record.left_out) };
    assert!(why.contains("0-RTT") && why.contains("allow no early data"), "{why}");
    assert!(!record.samples.iter().any(|s| matches!(s.fault, Some(Fault::Mislabelled(_)))));
}

pub(super) fn urls() {
    let refused =
        |url: &str| remote::run(&RemoteConfig::new(url), &|_| {}).unwrap_err().to_string();
    assert!(refused("http://lab.test/").contains("must start with https://"));
    assert!(refused("https://[").contains("cannot measure https://["));
}
