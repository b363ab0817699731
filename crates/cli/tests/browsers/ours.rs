//! This program as a server, for what the witness does not speak: HTTP/2 and HTTP/3.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use firstflight_emulator::Process;
use serde::Deserialize;

use crate::stage::Stage;
use crate::within;

/// The program on port 443 of the first path.
pub(crate) struct Ours {
    process: Process,
    log: PathBuf,
    /// Lines of the log that were taken.
    taken: usize,
}

/// A line of the access log.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Line {
    pub(crate) client: SocketAddr,
    pub(crate) target: String,
    pub(crate) protocol: String,
    pub(crate) status: Option<u16>,
    #[serde(default)]
    pub(crate) early: bool,
    #[serde(default)]
    pub(crate) held: Option<String>,
}

impl Ours {
    pub(crate) fn start(stage: &Stage, pages: &[(&str, String)], config_text: &str) -> Self {
        let root = stage.dir().join("root");
        fs::create_dir_all(&root).unwrap();
        for (name, body) in pages {
            fs::write(root.join(name), body).unwrap();
        }
        let (certificate, key) = stage.certificate();
        let config = stage.dir().join("config.toml");
        fs::write(&config, config_text).unwrap();
        let log = stage.dir().join("log");
        let address = SocketAddr::new(stage.address(0), 443);
        let mut command = Command::new(env!("CARGO_BIN_EXE_firstflight"));
        command.args(["serve", "--listen", &address.to_string(), "--log-format", "json"]);
        command.arg("--config").arg(&config).arg("--access-log").arg(&log);
        command.arg("--cert").arg(certificate).arg("--key").arg(key).arg(&root);
        command.env("HOME", stage.dir()).env("SSLKEYLOGFILE", stage.key_log());
        command.env_remove("RUST_LOG").stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(fs::File::create(stage.dir().join("said")).unwrap());
        let process = stage.start_server(command);
        let listens = within(|| stage.connect(address).is_ok());
        let said = fs::read_to_string(stage.dir().join("said")).unwrap_or_default();
        assert!(listens, "the server does not listen: {said}");
        Self { process, log, taken: 0 }
    }

    /// Lines of the log since it was last asked.
    pub(crate) fn take(&mut self) -> Vec<Line> {
        let lines = self.lines();
        self.taken += lines.len();
        lines
    }

    /// The same, to be given again.
    pub(crate) fn lines(&self) -> Vec<Line> {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let lines = whole.lines().skip(self.taken);
        lines.map(|line| serde_json::from_str(line).expect(line)).collect()
    }

    /// Whether it still runs.
    pub(crate) fn is_alive(&self) -> bool {
        self.process.try_wait().is_ok_and(|status| status.is_none())
    }
}
