use std::process::Command;

use firstflight_tls::Version;
use serde_json::json;

use super::{Ability, Found, HOST, MissingAbility, NO_PING_PONG, Post, Server};
use crate::{Http, LabError};

/// Caddy with its files, one processor. Its TLS is Go's.
pub(super) struct Caddy;

impl Server for Caddy {
    fn find(&self) -> Option<Found> {
        Found::ask("caddy", &["version"], |about| {
            let version = about.split_whitespace().next().unwrap_or("").trim_start_matches('v');
            format!("Caddy/{version} (Go)")
        })
    }

    fn mend(&self) -> &'static str {
        "apt-get install caddy"
    }

    fn lacks(&self) -> Vec<MissingAbility> {
        let old = "Caddy can be set to TLS 1.2 and 1.3 only";
        vec![
            NO_PING_PONG,
            (Ability::Speaks(Version::Tls10), old),
            (Ability::Speaks(Version::Tls11), old),
            (Ability::EarlyData, "Go's TLS takes no early data over TCP"),
            (Ability::FreshnessQuic, "quic-go takes early data whatever the ticket's age says"),
            (Ability::FastOpen, "Caddy has no setting for TCP Fast Open"),
        ]
    }

    fn command(&self, found: &Found, post: &Post<'_>) -> Result<Command, LabError> {
        let config = post.write("caddy.json", &config(post).to_string())?;
        let mut command = post.start(&found.program)?;
        command
            .args(["run", "--config"])
            .arg(config)
            // What it keeps between runs belongs to this run.
            .env("HOME", &post.directory)
            .env("XDG_DATA_HOME", &post.directory)
            .env("XDG_CONFIG_HOME", &post.directory)
            .env("GOMAXPROCS", "1");
        Ok(command)
    }
}

fn config(post: &Post<'_>) -> serde_json::Value {
    // Over UDP it answers from the address that the kernel thinks best, so it needs each by name.
    let listen: Vec<String> =
        post.addresses.iter().map(|address| format!("{address}:{}", post.port)).collect();
    json!({
        "admin": { "disabled": true, "config": { "persist": false } },
        "logging": { "logs": {
            "default": { "level": "WARN", "exclude": ["http.log.access"] },
            "requests": {
                "writer": { "output": "file", "filename": post.log, "roll": false },
                "include": ["http.log.access"],
            },
        } },
        "apps": {
            "http": { "grace_period": "1s", "servers": { "lab": {
                "listen": listen,
                "protocols": match post.manner.http {
                    Some(Http::One) => &["h1"][..],
                    Some(Http::Two) => &["h1", "h2"],
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
                    "handle": [{ "handler": "file_server", "root": post.site.root }],
                }],
            } } },
            "tls": { "certificates": { "load_files": [{
                "certificate": post.identity.cert,
                "key": post.identity.key,
            }] } },
        },
    })
}
