use std::process::Command;

use firstflight_tls::Version;
use serde_json::json;

use super::{
    Capability, HOST, InstalledProgram, MissingCapability, NO_PING_PONG, Server, ServerSetup,
};
use crate::{HttpVersion, LabError};

/// Caddy as a file server on one processor. Its TLS library is Go's.
pub(super) struct Caddy;

impl Server for Caddy {
    fn find(&self) -> Option<InstalledProgram> {
        InstalledProgram::query("caddy", &["version"], |about| {
            let version = about.split_whitespace().next().unwrap_or("").trim_start_matches('v');
            format!("Caddy/{version} (Go)")
        })
    }

    fn install_hint(&self) -> &'static str {
        "apt-get install caddy"
    }

    fn missing(&self) -> Vec<MissingCapability> {
        let old = "Caddy supports TLS 1.2 and 1.3 only";
        vec![
            NO_PING_PONG,
            (Capability::Tls(Version::Tls10), old),
            (Capability::Tls(Version::Tls11), old),
            (Capability::EarlyData, "Go's TLS accepts no early data over TCP"),
            (Capability::QuicTicketAgeCheck, "quic-go does not check the ticket's age"),
            (Capability::FastOpen, "Caddy has no setting for TCP Fast Open"),
        ]
    }

    fn command(
        &self,
        found: &InstalledProgram,
        setup: &ServerSetup<'_>,
    ) -> Result<Command, LabError> {
        let config = setup.write("caddy.json", &config(setup).to_string())?;
        let mut command = setup.base_command(&found.program)?;
        command
            .args(["run", "--config"])
            .arg(config)
            // Keeps its state in the directory of this run.
            .env("HOME", &setup.directory)
            .env("XDG_DATA_HOME", &setup.directory)
            .env("XDG_CONFIG_HOME", &setup.directory)
            .env("GOMAXPROCS", "1");
        Ok(command)
    }
}

fn config(setup: &ServerSetup<'_>) -> serde_json::Value {
    // With a wildcard address it sends datagrams from the address that the kernel prefers, so it
    // must listen on each address.
    let listen: Vec<String> =
        setup.addresses.iter().map(|address| format!("{address}:{}", setup.port)).collect();
    json!({
        "admin": { "disabled": true, "config": { "persist": false } },
        "logging": { "logs": {
            "default": { "level": "WARN", "exclude": ["http.log.access"] },
            "requests": {
                "writer": { "output": "file", "filename": setup.log, "roll": false },
                "include": ["http.log.access"],
            },
        } },
        "apps": {
            "http": { "grace_period": "1s", "servers": { "lab": {
                "listen": listen,
                "protocols": match setup.options.http {
                    Some(HttpVersion::One) => &["h1"][..],
                    Some(HttpVersion::Two) => &["h1", "h2"],
                    _ => &["h1", "h2", "h3"],
                },
                "automatic_https": { "disable": true },
                "logs": { "default_logger_name": "lab" },
                "tls_connection_policies": [{
                    "protocol_min": "tls1.2",
                    "protocol_max": "tls1.3",
                    "default_sni": HOST,
                }],
                "routes": [{
                    "handle": [{ "handler": "file_server", "root": setup.site.root }],
                }],
            } } },
            "tls": { "certificates": { "load_files": [{
                "certificate": setup.identity.cert,
                "key": setup.identity.key,
            }] } },
        },
    })
}
