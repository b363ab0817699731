//! aioquic from PyPI, run by our script `aioquic_peer.py`, which reports what happened.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::setup::{EARLY, FULL, RESUMED, RETRY, Setup, TWICE};
use firstflight_testkit::skipped_without;

use crate::support::program::{PAGE, Running, fields, run, text, until};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/integration/quic/aioquic_peer.py");

fn python() -> Command {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cache")));
    let tools = cache.unwrap_or_default().join("firstflight/tools/aioquic-1.7.2");
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", tools).env("PYTHONDONTWRITEBYTECODE", "1").arg(SCRIPT);
    command
}

/// Runs the client and returns its report. Its ticket and its token stay in `dir`.
pub(crate) fn client(dir: &Path, cert: &Path, port: u16, flags: &[&str]) -> Value {
    let mut command = python();
    command.args(["client", "--ticket", "aioquic.ticket", "--token", "aioquic.token"]);
    command.args(["--keylog", "keys", "--port", &port.to_string()]).arg("--cacert").arg(cert);
    let ended = run(command.current_dir(dir).args(flags));
    let output = ended.out.lines().last().and_then(|line| serde_json::from_str(line).ok());
    output.unwrap_or_else(|| panic!("aioquic (`make deps-test`) reported nothing: {ended:?}"))
}

/// A running server.
pub(crate) struct Server {
    _running: Running,
    pub(crate) port: u16,
    output: PathBuf,
}

impl Server {
    /// Starts a server that responds with each request's method, target and length of body. Its
    /// certificate is cert.pem in `dir`, its key key.pem; sessions there outlive it.
    pub(crate) fn start(dir: &Path, flags: &[&str]) -> Self {
        let (output, stderr) = (dir.join("aioquic.stdout"), dir.join("aioquic.stderr"));
        let mut command = python();
        command.args(["server", "--cert", "cert.pem", "--key", "key.pem"]).args(flags);
        command.current_dir(dir).stdin(Stdio::null()).stdout(File::create(&output).unwrap());
        let running = Running::start(command.stderr(File::create(&stderr).unwrap()));
        let mut port = None;
        until(|| {
            port = entries(&output).first().and_then(|entry| entry["port"].as_u64());
            port.is_some()
        });
        let port = port.unwrap_or_else(|| {
            panic!("aioquic (`make deps-test`) does not serve: {}", text(&stderr))
        });
        Self { _running: running, port: port as u16, output }
    }

    /// Its reports of handshakes.
    pub(crate) fn handshakes(&self) -> Vec<Value> {
        entries(&self.output).into_iter().filter(|entry| entry["handshake"] == true).collect()
    }

    /// Its reports of ended connections, once there is one.
    pub(crate) fn ends(&self) -> Vec<Value> {
        let ends = || {
            let all = entries(&self.output).into_iter();
            all.filter(|entry| !entry["ended"].is_null()).collect::<Vec<_>>()
        };
        until(|| !ends().is_empty());
        ends()
    }

    /// Its reports of requests.
    pub(crate) fn requests(&self) -> Vec<Value> {
        let requests = entries(&self.output).into_iter().map(|mut entry| entry["request"].take());
        requests.filter(|request| !request.is_null()).collect()
    }
}

/// The reports so far, without an incomplete last line.
fn entries(output: &Path) -> Vec<Value> {
    let output = text(output);
    let lines = output.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Runs aioquic for this target.
fn fetch_page(setup: &Setup, flags: &[&str]) -> Value {
    let flags = [flags, &["/index.html"]].concat();
    client(setup.dir(), &setup.cert, setup.port(), &flags)
}

/// The fields resumed, early, key_phase and version; and the number of responses with the page.
fn outcome(output: &Value) -> (String, usize) {
    let responses = output["responses"].as_array().unwrap();
    let pages = responses.iter().filter(|a| a["status"] == 200 && a["body"] == PAGE).count();
    (fields(output, "resumed early key_phase version"), pages)
}

#[test]
fn aioquic_full_resumed_and_early() {
    if skipped_without(&["aioquic"]) {
        return;
    }
    let setup = Setup::new(&[]);
    assert_eq!(outcome(&fetch_page(&setup, &[])), ("false false [0,0] 1".into(), 1));
    assert_eq!(outcome(&fetch_page(&setup, &[])), ("true true [0,0] 1".into(), 1));
    setup.delay_finished(2);
    let output = fetch_page(&setup, &["--early"]);
    assert_eq!(outcome(&output), ("true true [0,0] 1".into(), 1), "{output}");
    // The second connection offered early data, which the server did not log as early.
    assert_eq!(setup.logged(3), [FULL, RESUMED, EARLY]);
}

#[test]
fn aioquic_refused_by_a_server_without_its_keys() {
    if skipped_without(&["aioquic"]) {
        return;
    }
    let mut setup = Setup::new(&[]);
    fetch_page(&setup, &[]);
    setup.restart("", &[]);
    assert_eq!(outcome(&fetch_page(&setup, &["--early"])), ("false false [0,0] 1".into(), 1));
    assert_eq!(setup.logged(2), [FULL, FULL]);
}

#[test]
fn rfc8446_c_4_aioquic_with_a_used_ticket_makes_a_full_handshake() {
    if skipped_without(&["aioquic"]) {
        return;
    }
    let setup = Setup::new(&[]);
    fetch_page(&setup, &[]);
    assert!(!setup.has_resumed());
    let ticket = fs::read(setup.dir().join("aioquic.ticket")).unwrap();
    assert_eq!(outcome(&fetch_page(&setup, &["--early"])), ("true true [0,0] 1".into(), 1));
    assert!(setup.has_resumed());
    fs::write(setup.dir().join("aioquic.ticket"), ticket).unwrap();
    assert_eq!(outcome(&fetch_page(&setup, &["--early"])), ("false false [0,0] 1".into(), 1));
    assert!(!setup.has_resumed());
    let lines = setup.server.lines(3);
    let logged: Vec<_> =
        lines[1..].iter().map(|line| fields(line, "resumed early_data status")).collect();
    assert_eq!(logged, TWICE);
}

#[test]
fn rfc9001_6_aioquic_updates_keys() {
    if skipped_without(&["aioquic"]) {
        return;
    }
    let setup = Setup::new(&[]);
    let output = fetch_page(&setup, &["--key-update"]);
    assert_eq!(outcome(&output), ("false false [1,1] 1".into(), 2));
    assert_eq!(setup.logged(2), [FULL, FULL]);
}

#[test]
fn rfc9000_9_aioquic_changes_its_address() {
    if skipped_without(&["aioquic"]) {
        return;
    }
    let setup = Setup::new(&[]);
    let output = fetch_page(&setup, &["--migrate"]);
    assert_eq!(outcome(&output), ("false false [0,0] 1".into(), 2));
    assert_ne!(output["ports"][0], output["ports"][1]);
    assert_eq!(setup.logged(2), [FULL, FULL]);
}

#[test]
fn rfc9000_3_5_stop_sending_is_followed_by_a_reset_with_its_error_code() {
    if skipped_without(&["aioquic"]) {
        return;
    }
    let setup = Setup::new(&[]);
    fs::write(setup.dir().join("root/long"), vec![b'x'; 100_000]).unwrap();
    let output = client(setup.dir(), &setup.cert, setup.port(), &["--stop", "268", "/long"]);
    assert_eq!(output["resets"], serde_json::json!([268]), "{output}");
}

#[test]
fn aioquic_with_chacha20() {
    if skipped_without(&["aioquic"]) {
        return;
    }
    let setup = Setup::new(&[]);
    assert_eq!(outcome(&fetch_page(&setup, &["--chacha"])), ("false false [0,0] 1".into(), 1));
    assert_eq!(setup.server.lines(1)[0]["cipher"], "TLS_CHACHA20_POLY1305_SHA256");
}

#[test]
fn aioquic_with_a_client_hello_of_two_packets() {
    if skipped_without(&["aioquic"]) {
        return;
    }
    let setup = Setup::new(&[]);
    for early in [false, true] {
        if early {
            setup.delay_finished(1);
        }
        let output = fetch_page(&setup, &["--early", "--quantum"]);
        assert_eq!(outcome(&output).1, 1, "{output}");
    }
    assert_eq!(setup.logged(2), [FULL, EARLY]);
}

#[test]
fn rfc9000_6_aioquic_negotiates_the_version() {
    if skipped_without(&["aioquic"]) {
        return;
    }
    let setup = Setup::new(&[]);
    let output = fetch_page(&setup, &["--begin-with", "6b3343cf"]);
    assert_eq!(outcome(&output), ("false false [0,0] 1".into(), 1));
    assert_eq!(setup.logged(1), [FULL]);
}

#[test]
fn rfc9000_8_1_aioquic_validates_its_address_by_retry_or_token() {
    if skipped_without(&["aioquic"]) {
        return;
    }
    let setup = Setup::configured(RETRY, &[]);
    let full = fetch_page(&setup, &[]);
    assert_eq!((outcome(&full).1, &full["retried"]), (1, &true.into()), "{full}");
    setup.delay_finished(1);
    let early = fetch_page(&setup, &["--early"]);
    assert_eq!((outcome(&early).1, &early["retried"]), (1, &false.into()), "{early}");
    assert_eq!((setup.relay.retries(), setup.logged(2)), (1, vec![FULL.into(), EARLY.into()]));
}
