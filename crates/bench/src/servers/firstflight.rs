use std::fs::File;
use std::process::{Command, Stdio};

use firstflight_link::Network;

use super::{Running, ServerKind, Site};
use crate::{BenchError, Workload};

/// Our own server: one process for files, one for ping-pong, both with ticket keys of their own.
pub(super) fn start(
    workloads: &[Workload],
    network: &Network,
    site: &Site,
) -> Result<Running, BenchError> {
    let log = site.directory.join("firstflight.log");
    let mut processes = Vec::new();
    for workload in workloads {
        let said = site.directory.join("firstflight.stderr");
        let stderr = File::options()
            .append(true)
            .create(true)
            .open(&said)
            .map_err(|source| BenchError::File { verb: "write", path: said.clone(), source })?;
        let mut command = Command::new(&site.program);
        command
            .arg("serve")
            .args(["--listen", &format!("0.0.0.0:{}", ServerKind::Firstflight.port(*workload))])
            .arg("--cert")
            .arg(&site.cert)
            .arg("--key")
            .arg(&site.key)
            .args(["--tls-min", "1.0", "--early-data", "on"])
            // As many as nginx gets here.
            .args(["--workers", "1"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr);
        match workload {
            Workload::Get => command
                .arg("--root")
                .arg(&site.root)
                .arg("--access-log")
                .arg(&log)
                .args(["--log-format", "json"]),
            Workload::PingPong => command.arg("--ping-pong"),
        };
        let process = network.server().spawn_child(command)?;
        processes.push(process);
    }
    let version = concat!("firstflight ", env!("CARGO_PKG_VERSION")).to_owned();
    Ok(Running { kind: ServerKind::Firstflight, version, processes, log })
}

/// Whether a line of the JSON access log says that its request reached the application.
pub(super) fn executed(line: &str) -> bool {
    serde_json::from_str::<serde_json::Value>(line)
        .is_ok_and(|entry| entry["executed"] == serde_json::Value::Bool(true))
}
