//! The witnesses under `examples/witness`: each counts what our own counts, behind a server under
//! audit.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

use firstflight_testkit::{find_program, free_port, skipped_without, text};
use serde_json::{Value, json};

use super::{adapted, example};
use crate::support::peer::Peer;
use crate::support::program::{Running, Serve, TEST_TIMEOUT, firstflight, run, site, until};

/// A running witness.
struct Witness {
    _running: Running,
    address: SocketAddr,
}

impl Witness {
    /// Starts a command, to which the port is added.
    fn start(dir: &Path, command: impl Fn(u16) -> Command) -> Self {
        let stderr = dir.join("witness.stderr");
        for _ in 0..5 {
            let port = free_port();
            let address = (Ipv4Addr::LOCALHOST, port).into();
            let mut command = command(port);
            command.env("HOME", dir).stdin(Stdio::null()).stdout(Stdio::null());
            let mut running = Running::start(command.stderr(File::create(&stderr).unwrap()));
            let mut ended = false;
            let listens = until(|| {
                ended = running.has_ended();
                ended || TcpStream::connect(address).is_ok()
            });
            if listens && !ended {
                return Self { _running: running, address };
            }
        }
        panic!("the witness does not start: {}", text(&stderr));
    }

    /// The JSON of a response.
    fn request(&self, head: &str) -> Value {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let request = format!("{head}Host: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let body = response.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let object = body.find('{').zip(body.rfind('}')).map(|(start, end)| &body[start..=end]);
        serde_json::from_str(object.unwrap_or_default())
            .unwrap_or_else(|error| panic!("{error}: {response}"))
    }

    /// Checks that it counts requests of any method by their query, and returns their Early-Data
    /// field.
    fn assert_counts(&self) {
        let plain = self.request("GET /witness?firstflight=a HTTP/1.1\r\n");
        assert_eq!(plain, json!({ "executions": 1, "early_data": null }));
        let early = self.request("GET /witness?firstflight=a HTTP/1.1\r\nEarly-Data: 1\r\n");
        assert_eq!(early, json!({ "executions": 2, "early_data": "1" }));
        let post = "POST /witness?firstflight=b HTTP/1.1\r\nContent-Length: 0\r\n";
        assert_eq!(self.request(post)["executions"], 1);
    }
}

/// Audits with these checks. Returns the verdicts in the same order.
fn verdicts(home: &Path, port: u16, checks: &[&str]) -> Vec<String> {
    let url = format!("https://localhost:{port}/witness");
    let mut command = firstflight(home);
    command.args(["audit", &url, "--witness", "--json", "--fail-on", "never"]);
    let ended = run(command.args(checks.iter().flat_map(|check| ["--check", check])));
    let report: Value =
        serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {ended:?}"));
    let findings = report["findings"].as_array().unwrap();
    let verdict = |check: &&str| {
        let finding = findings.iter().find(|finding| finding["check"] == *check).unwrap();
        finding["verdict"].as_str().unwrap().to_owned()
    };
    checks.iter().map(verdict).collect()
}

/// Checks the witness as upstream of our server, which passes the checks that need a witness.
fn assert_works_as_upstream(dir: &Path, command: impl Fn(u16) -> Command) {
    let witness = Witness::start(dir, command);
    witness.assert_counts();
    let server = Serve::start(dir, &["--upstream", &format!("http://{}", witness.address)]);
    let checks = ["early-data-header", "replay-at-once", "unsafe-method"];
    assert_eq!(verdicts(dir, server.address.port(), &checks), ["pass"; 3]);
}

#[test]
fn the_witness_in_python_counts() {
    if skipped_without(&["python3"]) {
        return;
    }
    assert_works_as_upstream(site().path(), |port| {
        let mut command = Command::new("python3");
        command.arg(example("witness/witness.py")).arg(port.to_string());
        command
    });
}

#[test]
fn the_witness_for_node_counts() {
    // Not a requirement of the tests, because nothing else needs Node.
    if find_program("node").is_none() {
        eprintln!("node is not installed");
        return;
    }
    assert_works_as_upstream(site().path(), |port| {
        let mut command = Command::new("node");
        command.arg(example("witness/witness.js")).arg(port.to_string());
        command
    });
}

#[test]
fn the_witness_in_go_counts() {
    if skipped_without(&["go"]) {
        return;
    }
    let site = site();
    let program = site.path().join("witness");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(example("witness/witness.go"));
    build.env("GO111MODULE", "off").env("GOFLAGS", "").current_dir(site.path());
    let built = run(&mut build);
    assert_eq!(built.code, Some(0), "{built:?}");
    assert_works_as_upstream(site.path(), |port| {
        let mut command = Command::new(&program);
        command.arg(port.to_string());
        command
    });
}

/// nginx as edge marks early requests, and the witness counts each copy.
#[test]
fn nginx_forwards_to_a_witness() {
    if skipped_without(&["nginx"]) {
        return;
    }
    let site = site();
    let witness = Witness::start(site.path(), |port| {
        let mut command = firstflight(site.path());
        command.args(["audit", "--serve-witness", &format!("127.0.0.1:{port}")]);
        command
    });
    witness.assert_counts();
    let places = [("http://127.0.0.1:9099;", format!("http://{};", witness.address))];
    let location = adapted("witness/witness.conf", &places);
    std::fs::write(site.path().join("witness.conf"), location).unwrap();
    let nginx = Peer::start(site.path(), "nginx", &["-e", "stderr", "-p", "."], |port| {
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {name};\n"))
            .concat();
        format!(
            "daemon off;\nmaster_process off;\npid nginx.pid;\nevents {{ }}\nhttp {{\naccess_log \
             off;\n{temporary}server {{\nlisten 127.0.0.1:{port} ssl;\nssl_certificate cert.pem;\n\
             ssl_certificate_key key.pem;\nssl_protocols TLSv1.3;\nssl_early_data on;\n\
             include witness.conf;\n}}\n}}\n"
        )
    });
    let found = verdicts(site.path(), nginx.port, &["early-data-header", "replay-at-once"]);
    assert_eq!(found, ["pass", "fail"]);
}
