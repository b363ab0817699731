//! aioquic from PyPI, in a script of ours that says what happened.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::test_server::{EARLY, FULL, RESUMED, RETRY, Stage};
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

/// Runs the client; what it saw. Its ticket and its token stay in `dir`.
pub(crate) fn client(dir: &Path, cert: &Path, port: u16, flags: &[&str]) -> Value {
    let mut command = python();
    command.args(["client", "--ticket", "aioquic.ticket", "--token", "aioquic.token"]);
    command.args(["--keylog", "keys", "--port", &port.to_string()]).arg("--cacert").arg(cert);
    let ended = run(command.current_dir(dir).args(flags));
    let said = ended.out.lines().last().and_then(|line| serde_json::from_str(line).ok());
    said.unwrap_or_else(|| panic!("aioquic (`make deps-test`) said nothing: {ended:?}"))
}

/// A running server.
pub(crate) struct Server {
    _running: Running,
    pub(crate) port: u16,
    said: PathBuf,
}

impl Server {
    /// Answers each request by its method, its target and the length of its body. Its certificate
    /// is cert.pem in `dir`, its key key.pem; sessions outlive it there.
    pub(crate) fn start(dir: &Path, flags: &[&str]) -> Self {
        let (said, complains) = (dir.join("aioquic.said"), dir.join("aioquic.err"));
        let mut command = python();
        command.args(["server", "--cert", "cert.pem", "--key", "key.pem"]).args(flags);
        command.current_dir(dir).stdin(Stdio::null()).stdout(File::create(&said).unwrap());
        let running = Running::start(command.stderr(File::create(&complains).unwrap()));
        let mut port = None;
        until(|| {
            port = entries(&said).first().and_then(|entry| entry["port"].as_u64());
            port.is_some()
        });
        let port = port.unwrap_or_else(|| {
            panic!("aioquic (`make deps-test`) does not serve: {}", text(&complains))
        });
        Self { _running: running, port: port as u16, said }
    }

    /// What it said of handshakes.
    pub(crate) fn handshakes(&self) -> Vec<Value> {
        entries(&self.said).into_iter().filter(|entry| entry["handshake"] == true).collect()
    }

    /// What it said of connections that ended, once there is one.
    pub(crate) fn ends(&self) -> Vec<Value> {
        let ends = || {
            let all = entries(&self.said).into_iter();
            all.filter(|entry| !entry["ended"].is_null()).collect::<Vec<_>>()
        };
        until(|| !ends().is_empty());
        ends()
    }

    /// What it said of requests.
    pub(crate) fn requests(&self) -> Vec<Value> {
        let requests = entries(&self.said).into_iter().map(|mut entry| entry["request"].take());
        requests.filter(|request| !request.is_null()).collect()
    }
}

/// What was said so far, without a line that is only half there.
fn entries(said: &Path) -> Vec<Value> {
    let said = text(said);
    let lines = said.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// aioquic, for this target.
fn aio(stage: &Stage, flags: &[&str]) -> Value {
    let flags = [flags, &["/index.html"]].concat();
    client(stage.dir(), &stage.cert, stage.port(), &flags)
}

/// resumed, early, key phases, version; and how many answers with the page.
fn outcome(said: &Value) -> (String, usize) {
    let responses = said["answers"].as_array().unwrap();
    let pages = responses.iter().filter(|a| a["status"] == 200 && a["body"] == PAGE).count();
    (fields(said, "resumed early key_phase version"), pages)
}

#[test]
fn aioquic_full_resumed_and_early() {
    let stage = Stage::new(&[]);
    assert_eq!(outcome(&aio(&stage, &[])), ("false false [0,0] 1".into(), 1));
    assert_eq!(outcome(&aio(&stage, &[])), ("true true [0,0] 1".into(), 1));
    stage.answer_first(2);
    let said = aio(&stage, &["--early"]);
    assert_eq!(outcome(&said), ("true true [0,0] 1".into(), 1), "{said}");
    // The second one offered early data and had none.
    assert_eq!(stage.seen(3), [FULL, RESUMED, EARLY]);
}

#[test]
fn aioquic_refused_by_a_server_without_its_keys() {
    let mut stage = Stage::new(&[]);
    aio(&stage, &[]);
    stage.restart("", &[]);
    assert_eq!(outcome(&aio(&stage, &["--early"])), ("false false [0,0] 1".into(), 1));
    assert_eq!(stage.seen(2), [FULL, FULL]);
}

#[test]
fn rfc9001_6_aioquic_updates_keys() {
    let stage = Stage::new(&[]);
    let said = aio(&stage, &["--key-update"]);
    assert_eq!(outcome(&said), ("false false [1,1] 1".into(), 2));
    assert_eq!(stage.seen(2), [FULL, FULL]);
}

#[test]
fn rfc9000_9_aioquic_changes_its_address() {
    let stage = Stage::new(&[]);
    let said = aio(&stage, &["--migrate"]);
    assert_eq!(outcome(&said), ("false false [0,0] 1".into(), 2));
    assert_ne!(said["ports"][0], said["ports"][1]);
    assert_eq!(stage.seen(2), [FULL, FULL]);
}

#[test]
fn rfc9000_3_5_aioquic_stops_a_response_and_is_sent_its_own_code() {
    let stage = Stage::new(&[]);
    fs::write(stage.dir().join("root/long"), vec![b'x'; 100_000]).unwrap();
    let said = client(stage.dir(), &stage.cert, stage.port(), &["--stop", "268", "/long"]);
    assert_eq!(said["resets"], serde_json::json!([268]), "{said}");
}

#[test]
fn aioquic_with_chacha20() {
    let stage = Stage::new(&[]);
    assert_eq!(outcome(&aio(&stage, &["--chacha"])), ("false false [0,0] 1".into(), 1));
    assert_eq!(stage.server.lines(1)[0]["cipher"], "TLS_CHACHA20_POLY1305_SHA256");
}

#[test]
fn aioquic_with_a_client_hello_of_two_packets() {
    let stage = Stage::new(&[]);
    for early in [false, true] {
        if early {
            stage.answer_first(1);
        }
        let said = aio(&stage, &["--early", "--quantum"]);
        assert_eq!(outcome(&said).1, 1, "{said}");
    }
    assert_eq!(stage.seen(2), [FULL, EARLY]);
}

#[test]
fn rfc9000_6_aioquic_negotiates_the_version() {
    let stage = Stage::new(&[]);
    let said = aio(&stage, &["--begin-with", "6b3343cf"]);
    assert_eq!(outcome(&said), ("false false [0,0] 1".into(), 1));
    assert_eq!(stage.seen(1), [FULL]);
}

#[test]
fn rfc9000_8_1_aioquic_shows_its_address_or_a_token() {
    let stage = Stage::configured(RETRY, &[]);
    let full = aio(&stage, &[]);
    assert_eq!((outcome(&full).1, &full["retried"]), (1, &true.into()), "{full}");
    stage.answer_first(1);
    let early = aio(&stage, &["--early"]);
    assert_eq!((outcome(&early).1, &early["retried"]), (1, &false.into()), "{early}");
    assert_eq!((stage.relay.retries(), stage.seen(2)), (1, vec![FULL.into(), EARLY.into()]));
}
