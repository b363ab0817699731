//! `fetch` behind a middlebox that drops every ClientHello with early data: how long it stalls, by
//! the packets.

use std::collections::HashSet;
use std::fs::File;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use firstflight_emulator::{CellSpec, Middlebox, Network, NetworkConfig, PathConfig};
use firstflight_packets::FirstResponse;
use firstflight_samples::Flows;

const RTT: Duration = Duration::from_millis(20);

/// A server behind the middlebox, and a folder with what its clients need.
struct Stage {
    network: Network,
    folder: tempfile::TempDir,
}

/// What a client printed, and what its packets show.
struct Fetched {
    code: Option<i32>,
    printed: String,
    /// Each connection: packets dropped, label, and from its first packet to the delivery of the
    /// response.
    connections: Vec<(u32, Option<String>, Option<Duration>)>,
}

impl Stage {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn address(&self) -> Ipv4Addr {
        self.network.path(0).unwrap().server
    }

    fn fetch(&self, flags: &[&str]) -> Fetched {
        self.network.tap().take();
        let keys = self.path("keys");
        let _ = std::fs::remove_file(&keys);
        let printed = self.path("printed");
        let mut command = Command::new(env!("CARGO_BIN_EXE_firstflight"));
        command.arg("fetch").arg("https://lab.test:4433/page").args(flags);
        command.args(["--resolve", &format!("lab.test:4433:{}", self.address())]);
        command.arg("--cacert").arg(self.path("cert.pem")).arg("--ssl-sessions");
        command.arg(self.path("jar")).arg("--ssl-sessions-key").arg(self.path("jar-key"));
        command.args(["--tls-earlydata", "-s", "-o", "/dev/null"]);
        command.args(["-w", "%{http_code} early=%{early_data} retries=%{retries}"]);
        command.env("SSLKEYLOGFILE", &keys).env("HOME", self.folder.path());
        command.stdin(Stdio::null()).stdout(File::create(&printed).unwrap()).stderr(Stdio::null());
        let process = self.network.client().spawn_child(command).unwrap();
        let started = Instant::now();
        let code = loop {
            if let Some(status) = process.try_wait().unwrap() {
                break status.code();
            }
            assert!(started.elapsed() < Duration::from_secs(60), "fetch hangs");
            std::thread::sleep(Duration::from_millis(5));
        };
        let secrets = std::fs::read_to_string(&keys).unwrap_or_default();
        let flows = Flows::new(&self.network.tap().take(), &secrets, &HashSet::new());
        let mut facts: Vec<_> = flows.flows().map(|flow| &flow.facts).collect();
        facts.sort_by_key(|facts| facts.started);
        let connections = facts.iter().map(|facts| {
            let response = match facts.first_response {
                FirstResponse::Seen { delivered: Some(delivered), .. } => {
                    Some(Duration::from_nanos(delivered - facts.started))
                }
                _ => None,
            };
            let label = facts.label().ok().map(|label| label.to_string());
            (facts.transport.dropped(), label, response)
        });
        Fetched {
            code,
            printed: std::fs::read_to_string(&printed).unwrap(),
            connections: connections.collect(),
        }
    }
}

fn write_identity(folder: &Path) {
    let made = rcgen::generate_simple_self_signed(vec!["lab.test".to_owned()]).unwrap();
    std::fs::write(folder.join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(folder.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    std::fs::create_dir(folder.join("root")).unwrap();
    std::fs::write(folder.join("root/page"), [b'x'; 1_000]).unwrap();
}

pub(super) fn first_flight() {
    let folder = tempfile::tempdir().unwrap();
    write_identity(folder.path());
    let mut path = PathConfig::symmetric("drops early data", RTT);
    path.up.insert(0, CellSpec::Middlebox(Middlebox::DropEarlyData));
    let network = Network::build(NetworkConfig::new(vec![path])).unwrap();
    let stage = Stage { network, folder };
    let mut command = Command::new(env!("CARGO_BIN_EXE_firstflight"));
    command.args(["serve", "--listen", "0.0.0.0:4433", "--no-http3", "--early-data", "on"]);
    command.arg("--cert").arg(stage.path("cert.pem")).arg("--key").arg(stage.path("key.pem"));
    command.arg("--root").arg(stage.path("root"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let _server = stage.network.server().spawn_child(command).unwrap();
    // The server may not listen yet.
    let started = Instant::now();
    while stage.fetch(&[]).code != Some(0) {
        assert!(started.elapsed() < Duration::from_secs(30), "the server does not start");
    }
    let fetched = stage.fetch(&[]);
    let connections = &fetched.connections;
    assert_eq!(fetched.code, Some(0), "{connections:?}");
    assert_eq!(fetched.printed, "200 early=none retries=1");
    let [dropped, second] = connections.as_slice() else { panic!("{connections:?}") };
    assert!(dropped.0 > 0 && dropped.2.is_none(), "{dropped:?}");
    assert_eq!(second.1.as_deref(), Some("TLS 1.3 full, TFO off"));
    assert!(second.2.is_some_and(|response| response >= 3 * RTT), "{second:?}");
    // Without a second connection, which an unsafe method does not get, nothing ever arrives.
    let flags = ["-X", "POST", "--early-data-any-method", "--max-time", "3"];
    let stalled = stage.fetch(&flags);
    assert_eq!(stalled.code, Some(28), "{}", stalled.printed);
    let [only] = stalled.connections.as_slice() else { panic!("{:?}", stalled.connections) };
    assert!(only.0 > 1 && only.2.is_none(), "dropped with each retransmission: {only:?}");
}
