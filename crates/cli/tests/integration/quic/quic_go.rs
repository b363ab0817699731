//! quic-go from the Go module proxy, in a program of ours that says what happened
//! (`scripts/quic-go`).

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use firstflight_testkit::program_path;
use serde_json::Value;

use crate::running::{Running, run, text, until};

fn program() -> Command {
    Command::new(program_path("quic-go"))
}

/// Runs the client; what it said of each connection. Its session stays in `dir`.
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
    said: PathBuf,
}

impl Server {
    /// Answers each request by its method, its target and the length of its body. Its certificate
    /// is cert.pem in `dir`, its key key.pem.
    pub(crate) fn start(dir: &Path, flags: &[&str]) -> Self {
        let (said, complains) = (dir.join("quic-go.said"), dir.join("quic-go.err"));
        let mut command = program();
        command.args(["server", "-cert", "cert.pem", "-key", "key.pem"]).args(flags);
        command.current_dir(dir).stdin(Stdio::null()).stdout(File::create(&said).unwrap());
        let running = Running::start(command.stderr(File::create(&complains).unwrap()));
        let mut port = None;
        until(|| {
            port = entries(&said).first().and_then(|entry| entry["port"].as_u64());
            port.is_some()
        });
        let port = port.unwrap_or_else(|| panic!("quic-go does not serve: {}", text(&complains)));
        Self { _running: running, port: port as u16, said }
    }

    /// What it said of requests.
    pub(crate) fn requests(&self) -> Vec<Value> {
        let requests = entries(&self.said).into_iter().map(|mut entry| entry["request"].take());
        requests.filter(|request| !request.is_null()).collect()
    }

    /// How often it said that it has new keys, by its own wish.
    pub(crate) fn key_updates(&self) -> usize {
        let entries = entries(&self.said);
        entries.iter().filter(|entry| entry["key_update"] == "local_update").count()
    }
}

/// What was said so far, without a line that is only half there.
fn entries(said: &Path) -> Vec<Value> {
    let said = text(said);
    let lines = said.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}
