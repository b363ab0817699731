//! quic-go from the Go module proxy, run by our program `scripts/quic-go`, which reports what
//! happened.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use firstflight_testkit::{program_path, skipped_without};
use serde_json::Value;

use super::fetch;
use super::fetch::{EARLY_DATA, certified_site, facts, request};
use super::relay::Relay;
use super::setup::{EARLY, FULL, RESUMED, RETRY, Setup};
use crate::support::program::{PAGE, Running, fields, run, text, until};

fn program() -> Command {
    Command::new(program_path("quic-go"))
}

/// Runs the client and returns its report of each connection. Its session stays in `dir`.
pub(crate) fn client(dir: &Path, cert: &Path, port: u16, flags: &[&str], path: &str) -> Vec<Value> {
    let mut command = program();
    command.args(["client", "-session", "quic-go.session", "-port", &port.to_string()]);
    command.arg("-cacert").arg(cert).args(flags).arg(path).current_dir(dir);
    let ended = run(&mut command);
    assert_eq!(ended.code, Some(0), "quic-go (`make deps-test`): {ended:?}");
    ended.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A running server.
pub(crate) struct Server {
    _running: Running,
    pub(crate) port: u16,
    output: PathBuf,
}

impl Server {
    /// Starts a server that responds with each request's method, target and length of body. Its
    /// certificate is cert.pem in `dir`, its key key.pem.
    pub(crate) fn start(dir: &Path, flags: &[&str]) -> Self {
        let (output, stderr) = (dir.join("quic-go.stdout"), dir.join("quic-go.stderr"));
        let mut command = program();
        command.args(["server", "-cert", "cert.pem", "-key", "key.pem"]).args(flags);
        command.current_dir(dir).stdin(Stdio::null()).stdout(File::create(&output).unwrap());
        let running = Running::start(command.stderr(File::create(&stderr).unwrap()));
        let mut port = None;
        until(|| {
            port = entries(&output).first().and_then(|entry| entry["port"].as_u64());
            port.is_some()
        });
        let port = port.unwrap_or_else(|| panic!("quic-go does not serve: {}", text(&stderr)));
        Self { _running: running, port: port as u16, output }
    }

    /// Its reports of requests.
    pub(crate) fn requests(&self) -> Vec<Value> {
        let requests = entries(&self.output).into_iter().map(|mut entry| entry["request"].take());
        requests.filter(|request| !request.is_null()).collect()
    }

    /// How often it reported a key update that it had initiated.
    pub(crate) fn key_updates(&self) -> usize {
        let entries = entries(&self.output);
        entries.iter().filter(|entry| entry["key_update"] == "local_update").count()
    }
}

/// The reports so far, without an incomplete last line.
fn entries(output: &Path) -> Vec<Value> {
    let output = text(output);
    let lines = output.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

const FACTS: &str = "status resumed early retries";

/// Runs the client for this target and returns the report of its one connection.
fn connect_once(setup: &Setup, flags: &[&str], path: &str) -> Value {
    let mut output = client(setup.dir(), &setup.cert, setup.port(), flags, path);
    assert_eq!(output.len(), 1, "{output:?}");
    output.remove(0)
}

fn fetch_page(setup: &Setup, flags: &[&str]) -> String {
    let output = connect_once(setup, flags, "/index.html");
    assert_eq!(output["body"], PAGE, "{output}");
    fields(&output, FACTS)
}

#[test]
fn quic_go_full_resumed_and_early() {
    if skipped_without(&["quic-go"]) {
        return;
    }
    let setup = Setup::new(&[]);
    assert_eq!(fetch_page(&setup, &[]), "200 false false 0");
    assert_eq!(fetch_page(&setup, &[]), "200 true true 0");
    setup.delay_finished(2);
    assert_eq!(fetch_page(&setup, &["-early"]), "200 true true 0");
    // The second connection offered early data, which the server did not log as early.
    assert_eq!(setup.logged(3), [FULL, RESUMED, EARLY]);
}

#[test]
fn quic_go_refused_by_a_server_without_its_keys() {
    if skipped_without(&["quic-go"]) {
        return;
    }
    let mut setup = Setup::new(&[]);
    fetch_page(&setup, &[]);
    setup.restart("", &[]);
    let output = client(setup.dir(), &setup.cert, setup.port(), &["-early"], "/index.html");
    assert_eq!((&output[0]["refused"], output.len()), (&true.into(), 2), "{output:?}");
    // The client had received the new server's ticket.
    assert_eq!(fields(&output[1], FACTS), "200 true true 0");
    assert_eq!(setup.logged(2), [FULL, RESUMED]);
}

#[test]
fn rfc9000_8_1_quic_go_validates_its_address_by_retry_or_token() {
    if skipped_without(&["quic-go"]) {
        return;
    }
    let setup = Setup::configured(RETRY, &[]);
    let output = client(setup.dir(), &setup.cert, setup.port(), &["-times", "2"], "/index.html");
    let output: Vec<_> =
        output.iter().map(|output| fields(output, "status resumed retries")).collect();
    assert_eq!(output, ["200 false 1", "200 true 0"]);
    assert_eq!(setup.logged(2), [FULL, RESUMED]);
}

#[test]
fn rfc9001_6_quic_go_updates_keys() {
    if skipped_without(&["quic-go"]) {
        return;
    }
    let setup = Setup::new(&[]);
    // quic-go updates its keys after a hundred packets.
    fs::write(setup.dir().join("root/long"), vec![b'x'; 600_000]).unwrap();
    let output = connect_once(&setup, &[], "/long");
    assert_eq!(output["body"].as_str().unwrap().len(), 600_000);
    assert!(output["key_updates"].as_i64().unwrap() > 0, "{}", output["key_updates"]);
    assert_eq!(setup.logged(1), [FULL]);
}

#[test]
fn quic_go_server_full_resumed_early_and_refused() {
    if skipped_without(&["quic-go"]) {
        return;
    }
    let site = certified_site();
    let dir = site.path();
    let server = Server::start(dir, &[]);
    let relay = Relay::start(([127, 0, 0, 1], server.port).into());
    assert_eq!(facts(dir, relay.port, "/1", &[]), fetch::FULL);
    assert_eq!(facts(dir, relay.port, "/2", &[]), fetch::RESUMED);
    assert_eq!(facts(dir, relay.port, "/3", &EARLY_DATA), fetch::EARLY);
    let logged: Vec<_> = server.requests().iter().map(|r| fields(r, "path early")).collect();
    assert_eq!(logged, ["/1 false", "/2 false", "/3 true"]);
    drop(server);
    // A server that resumes but refuses early data, and a server with other keys.
    for (flag, expected) in
        [(&["-no-early"][..], fetch::REFUSED), (&["-ticket-key", "1"], fetch::KEYS_LOST)]
    {
        let server = Server::start(dir, flag);
        relay.forward_to(([127, 0, 0, 1], server.port).into());
        assert_eq!(facts(dir, relay.port, "/4", &EARLY_DATA), expected);
        let logged: Vec<_> = server.requests().iter().map(|r| fields(r, "path early")).collect();
        assert_eq!(logged, ["/4 false"]);
        // The next server needs a session under the first server's key that allows early data.
        drop(server);
        let server = Server::start(dir, &[]);
        relay.forward_to(([127, 0, 0, 1], server.port).into());
        facts(dir, relay.port, "/5", &[]);
    }
}

#[test]
fn rfc9000_8_1_fetch_validates_its_address_at_quic_go_by_retry_or_token() {
    if skipped_without(&["quic-go"]) {
        return;
    }
    let site = certified_site();
    let dir = site.path();
    let server = Server::start(dir, &["-retry"]);
    assert_eq!(facts(dir, server.port, "/1", &[]), fetch::FULL);
    // The second connection has a token and gets no Retry.
    assert_eq!(facts(dir, server.port, "/2", &EARLY_DATA), fetch::EARLY);
    let retries: Vec<_> = server.requests().iter().map(|r| r["retries"].clone()).collect();
    assert_eq!(retries[0], retries[1], "{retries:?}");
    assert!(retries[0].as_i64().unwrap() > 0);
}

#[test]
fn rfc9001_6_fetch_follows_quic_go_to_new_keys() {
    if skipped_without(&["quic-go"]) {
        return;
    }
    let site = certified_site();
    let dir = site.path();
    let server = Server::start(dir, &[]);
    let (facts, ended) = request(dir, server.port, "/long/600000", &[]);
    assert_eq!((&*facts, ended.out.len()), (fetch::FULL, 600_000));
    assert!(server.key_updates() > 0);
}
