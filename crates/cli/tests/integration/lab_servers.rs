//! `firstflight lab` with each supported server, started as an ordinary user.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::lab::{LAB, has_measured};
use crate::support::program::{Ended, PROGRAM, run};

/// A home directory with the program in it.
struct Home(TempDir);

impl Home {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        fs::copy(PROGRAM, dir.path().join("firstflight")).unwrap();
        Self(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Two samples a cell at 2 ms, GET with TLS 1.2 and 1.3, and one flight resent 20 times.
    fn lab(&self, more: &[&str]) -> Ended {
        self.lab_as(nix::unistd::geteuid().is_root(), more)
    }

    fn lab_as(&self, nobody: bool, more: &[&str]) -> Ended {
        let _one_at_a_time = LAB.lock().unwrap_or_else(|error| error.into_inner());
        let program = self.path().join("firstflight");
        let mut command = match nobody {
            true => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
                command.arg(program);
                command
            }
            false => Command::new(program),
        };
        let search = std::env::var("PATH").unwrap_or_default();
        run(command
            .current_dir(self.path())
            .env("PATH", format!("{search}:/usr/sbin:/sbin"))
            .args(["lab", "--rtt", "2", "--samples", "2", "--workload", "get"])
            .args(["--tls", "1.2,1.3", "--flights", "1", "--replays", "20", "-o", "results"])
            .args(more))
    }

    fn record(&self) -> Value {
        serde_json::from_slice(&fs::read(self.path().join("results/lab.json")).unwrap()).unwrap()
    }
}

/// The expected results of a server.
struct Expected {
    name: &'static str,
    /// Over TCP.
    early_data: bool,
    fast_open: bool,
    /// HTTP/3, with resumption and early data.
    quic: bool,
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

/// Checks that there is a cell for everything that the server supports, that each sample has the
/// requested handshake, and that notes explain the rest.
fn check(expected: &Expected, record: &Value) {
    let cells = record["cells"].as_array().unwrap();
    let samples = record["samples"].as_array().unwrap();
    // Full and resumed in both versions, 0-RTT in one; each without and with TFO. Over QUIC three
    // kinds.
    let kinds = 2 * 2 + usize::from(expected.early_data);
    let count = kinds * (1 + usize::from(expected.fast_open)) + 3 * usize::from(expected.quic);
    assert_eq!((cells.len(), samples.len()), (count, 2 * count), "{}", expected.name);
    for sample in samples {
        let cell = &cells[sample["cell"].as_u64().unwrap() as usize];
        let fault = sample["fault"]["kind"].as_str();
        // A busy machine may stall, but the packets must still show the requested handshake.
        assert!(matches!(fault, None | Some("spoiled")), "{}: {sample} in {cell}", expected.name);
    }
    let server = &record["servers"][0];
    assert_eq!(server["name"], expected.name);
    assert!(text(&server["version"]).contains(|c: char| c.is_ascii_digit()), "{server}");
    let notes: Vec<&str> = server["notes"].as_array().unwrap().iter().map(text).collect();
    let notes = notes.join("\n");
    assert_eq!(notes.contains("without early data: "), !expected.early_data, "{notes}");
    assert_eq!(notes.contains("without TCP Fast Open: "), !expected.fast_open, "{notes}");
    assert_eq!(notes.contains("without HTTP/3: "), !expected.quic, "{notes}");
}

/// How many of the 20 replays were executed over TCP and over QUIC. `None` if there was no attack.
fn executed(record: &Value) -> [Option<u64>; 2] {
    ["tcp", "quic"].map(|transport| {
        let mut replays = record["replays"].as_array().unwrap().iter();
        let replay = replays.find(|replay| replay["transport"] == transport)?;
        assert_eq!((&replay["tries"], &replay["originals"]), (&20.into(), &1.into()), "{replay}");
        replay["executed"].as_u64()
    })
}

fn measure(expected: &Expected) -> [Option<u64>; 2] {
    let home = Home::new();
    finish(expected, &home, &home.lab(&["--server", expected.name]))
}

fn finish(expected: &Expected, home: &Home, ended: &Ended) -> [Option<u64>; 2] {
    let fix = "run `make deps-test`";
    assert!(!ended.err.contains("is not installed"), "{fix}: {}", ended.err);
    assert!(has_measured(ended), "{ended:?}");
    let record = home.record();
    check(expected, &record);
    executed(&record)
}

const OVER_TCP: Expected = Expected { name: "", early_data: true, fast_open: true, quic: false };

#[test]
fn nginx_executes_replays() {
    let replayed = measure(&Expected { name: "nginx", ..OVER_TCP });
    assert_eq!(replayed, [Some(20), None]);
}

/// HAProxy 2.6 waits for the client's Finished; later versions may not.
#[test]
fn haproxy_accepts_early_data() {
    let replayed = measure(&Expected { name: "haproxy", ..OVER_TCP });
    assert!(replayed[0].is_some());
}

#[test]
fn h2o_accepts_no_early_data() {
    let replayed = measure(&Expected { name: "h2o", early_data: false, ..OVER_TCP });
    assert_eq!(replayed, [None, None]);
}

/// Over QUIC, Caddy executes a replay once the original connection has ended.
#[test]
fn caddy_executes_replays_over_quic_and_has_no_fast_open() {
    let expected = Expected { name: "caddy", early_data: false, fast_open: false, quic: true };
    let replayed = measure(&expected);
    assert_eq!(replayed[0], None);
    assert!(replayed[1].is_some_and(|copies| copies > 0), "{replayed:?}");
}

#[test]
fn envoy_accepts_early_data_over_quic_only() {
    let expected = Expected { name: "envoy", early_data: false, fast_open: true, quic: true };
    let home = Home::new();
    // Envoy is in the home directory of the user who ran `make deps-test`, which `nobody` cannot
    // read.
    let ended = home.lab_as(false, &["--server", "envoy"]);
    assert_eq!(finish(&expected, &home, &ended), [None, Some(0)]);
}

#[test]
fn openssl_s_server_serves_one_connection_at_a_time() {
    let home = Home::new();
    let ended = home.lab(&["--server", "openssl", "--tfo", "off"]);
    assert!(has_measured(&ended), "{ended:?}");
    let record = home.record();
    assert_eq!(record["cells"].as_array().unwrap().len(), 4);
    let notes = record["servers"][0]["notes"].to_string();
    assert!(notes.contains("-early_data together with -WWW"), "{notes}");
    assert_eq!(executed(&record), [None, None]);
}

/// `firstflight serve` as a --server-cmd, whose log is counted.
#[test]
fn a_server_command_is_measured_and_attacked() {
    let home = Home::new();
    let command = format!(
        "mine={} serve --listen 0.0.0.0:{{port}} --cert {{cert}} --key {{key}} --root {{root}} \
         --access-log {{log}} --early-data on --workers 1",
        home.path().join("firstflight").display()
    );
    let ended = home.lab(&["--server", "firstflight", "--server-cmd", &command]);
    assert!(has_measured(&ended), "{ended:?}");
    let record = home.record();
    let names: Vec<&str> =
        record["servers"].as_array().unwrap().iter().map(|server| text(&server["name"])).collect();
    assert_eq!(names, ["firstflight", "mine"]);
    let cells = record["cells"].as_array().unwrap();
    let count = |name: &str| cells.iter().filter(|cell| cell["server"] == name).count();
    assert_eq!((count("firstflight"), count("mine")), (13, 13), "both can do the same");
    for (index, transport) in [(2, "tcp"), (3, "quic")] {
        let mine = &record["replays"][index];
        let facts = (text(&mine["server"]), text(&mine["transport"]), &mine["originals"]);
        assert_eq!(facts, ("mine", transport, &1.into()), "{mine}");
    }
}

#[test]
fn the_error_quotes_a_server_command_that_exits_at_once() {
    let home = Home::new();
    let ended =
        home.lab(&["--server", "firstflight", "--server-cmd", "echo no {port} >&2; exit 3"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(
        ended.err.contains("cmd did not start: it ended with exit status: 3: no 4"),
        "{ended:?}"
    );
}

#[test]
fn a_server_command_without_a_port_is_refused() {
    let home = Home::new();
    let ended = home.lab(&["--server-cmd", "serve"]);
    assert!(ended.err.contains("it lacks {port}"), "{ended:?}");
    assert_ne!(ended.code, Some(0));
}
