//! aioquic from PyPI, in a script of ours that says what happened.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::running::{Running, run, text, until};

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
