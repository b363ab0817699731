use std::path::PathBuf;
use std::process::Command;

use super::{HttpOptions, InstalledProgram, MissingCapability, Server, ServerSetup};
use crate::{HttpVersion, LabError, Workload};

/// This project's server. Each process has its own ticket keys.
pub(super) struct Firstflight;

impl Server for Firstflight {
    fn find(&self) -> Option<InstalledProgram> {
        Some(InstalledProgram {
            // The site has the path of the program.
            program: PathBuf::new(),
            version: concat!("firstflight ", env!("CARGO_PKG_VERSION")).to_owned(),
            about: String::new(),
        })
    }

    fn install_hint(&self) -> &'static str {
        "cargo build --release"
    }

    fn missing(&self) -> Vec<MissingCapability> {
        Vec::new()
    }

    fn command(&self, _: &InstalledProgram, setup: &ServerSetup<'_>) -> Result<Command, LabError> {
        let mut command = setup.base_command(&setup.site.program)?;
        // Only clients of cells with compression offer it.
        let config = setup.write("serve.toml", "[tls]\ncompress_certificates = true\n")?;
        command
            .arg("serve")
            .arg("--config")
            .arg(config)
            .args(["--listen", &format!("0.0.0.0:{}", setup.port)])
            .arg("--cert")
            .arg(&setup.identity.cert)
            .arg("--key")
            .arg(&setup.identity.key)
            .args(["--tls-min", "1.0", "--early-data", "on"])
            // One worker, like the other servers.
            .args(["--workers", "1"]);
        let HttpOptions { http, keep_alive } = setup.options;
        if http == Some(HttpVersion::One) {
            command.args(["--http2", "off"]);
        }
        if matches!(http, Some(HttpVersion::One | HttpVersion::Two)) {
            command.arg("--no-http3");
        }
        if !keep_alive {
            command.args(["--keep-alive", "off"]);
        }
        match setup.workload {
            Workload::Get => command
                .arg("--root")
                .arg(&setup.site.root)
                .arg("--access-log")
                .arg(&setup.log)
                .args(["--log-format", "json"]),
            Workload::PingPong => command.arg("--ping-pong"),
        };
        Ok(command)
    }

    /// Its JSON log says whether a request was executed.
    fn executed(&self, line: &str) -> bool {
        serde_json::from_str::<serde_json::Value>(line)
            .is_ok_and(|entry| entry["executed"] == serde_json::Value::Bool(true))
    }
}
