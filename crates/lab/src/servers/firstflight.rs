use std::path::PathBuf;
use std::process::Command;

use super::{Found, Manner, MissingAbility, Post, Server};
use crate::{Http, LabError, Workload};

/// Our own server, with ticket keys of its own in each process.
pub(super) struct Firstflight;

impl Server for Firstflight {
    fn find(&self) -> Option<Found> {
        Some(Found {
            // This program, which the site knows.
            program: PathBuf::new(),
            version: concat!("firstflight ", env!("CARGO_PKG_VERSION")).to_owned(),
            about: String::new(),
        })
    }

    fn mend(&self) -> &'static str {
        "build it"
    }

    fn lacks(&self) -> Vec<MissingAbility> {
        Vec::new()
    }

    fn command(&self, _: &Found, post: &Post<'_>) -> Result<Command, LabError> {
        let mut command = post.start(&post.site.program)?;
        command
            .arg("serve")
            .args(["--listen", &format!("0.0.0.0:{}", post.port)])
            .arg("--cert")
            .arg(&post.identity.cert)
            .arg("--key")
            .arg(&post.identity.key)
            .args(["--tls-min", "1.0", "--early-data", "on"])
            // As many as the others get here.
            .args(["--workers", "1"]);
        let Manner { http, keep_alive } = post.manner;
        if http == Some(Http::One) {
            command.args(["--http2", "off"]);
        }
        if matches!(http, Some(Http::One | Http::Two)) {
            command.arg("--no-http3");
        }
        if !keep_alive {
            command.args(["--keep-alive", "off"]);
        }
        match post.workload {
            Workload::Get => command
                .arg("--root")
                .arg(&post.site.root)
                .arg("--access-log")
                .arg(&post.log)
                .args(["--log-format", "json"]),
            Workload::PingPong => command.arg("--ping-pong"),
        };
        Ok(command)
    }

    /// Its JSON log says whether the request reached the application.
    fn executed(&self, line: &str) -> bool {
        serde_json::from_str::<serde_json::Value>(line)
            .is_ok_and(|entry| entry["executed"] == serde_json::Value::Bool(true))
    }
}
