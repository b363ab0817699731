//! What there is in a lab that stays up, and how it is reached.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use firstflight_emulator::{Path, Profile};
use serde::Serialize;

use crate::paths::PlannedPath;
use crate::servers::{Ability, HOST, Running};
use crate::{Certificate, Http, Workload};

/// What there is in a lab, and how it is reached.
#[derive(Clone, Debug, Serialize)]
pub struct LabDescription {
    /// The process by which the client's namespace is entered.
    pub pid: u32,
    /// Where the files of the lab lie; gone after it.
    pub directory: PathBuf,
    /// Whom to trust: the lab's own authority, PEM.
    pub trust: PathBuf,
    /// Where programs inside log their TLS secrets (`SSLKEYLOGFILE`).
    pub key_log: PathBuf,
    /// Where all packets are written.
    pub capture: Option<PathBuf>,
    /// The networks.
    pub networks: Vec<NetworkDescription>,
    /// The servers.
    pub servers: Vec<ServerDescription>,
    /// What they serve.
    pub pages: Vec<String>,
}

/// A network: all servers are reached over it, by its name.
#[derive(Clone, Debug, Serialize)]
pub struct NetworkDescription {
    /// Its profile's name.
    pub name: String,
    /// The name that leads the client over it; the servers' certificates carry it.
    pub host: String,
    /// The address that the name leads to.
    pub address: Ipv4Addr,
    /// Round-trip time of the profile, without what queues and jitter add.
    pub rtt_ms: f64,
    /// The bottleneck to the client, in Mbit/s.
    pub down_mbps: Option<f64>,
    /// The bottleneck to the server, in Mbit/s.
    pub up_mbps: Option<f64>,
}

#[cfg(test)]
impl Default for NetworkDescription {
    fn default() -> Self {
        Self {
            name: String::new(),
            host: String::new(),
            address: Ipv4Addr::LOCALHOST,
            rtt_ms: 0.0,
            down_mbps: None,
            up_mbps: None,
        }
    }
}

/// A server.
#[derive(Clone, Debug, Serialize)]
pub struct ServerDescription {
    /// Its name in flags.
    pub name: String,
    /// What it calls itself.
    pub version: String,
    /// Its port, over TCP and over QUIC.
    pub port: u16,
    /// The versions of HTTP that it speaks: `1.1`, `2`, `3`.
    pub http: Vec<&'static str>,
    /// Whether it took early data over TCP when it was tried.
    pub early_data: bool,
    /// Whether it took early data over QUIC when it was tried.
    pub early_data_quic: bool,
}

impl LabDescription {
    /// The URL of a page at a server, over a network.
    pub fn url(
        &self,
        network: &NetworkDescription,
        server: &ServerDescription,
        page: &str,
    ) -> String {
        format!("https://{}:{}{page}", network.host, server.port)
    }
}

/// The networks of these profiles, in the order of the paths.
pub(super) fn networks(profiles: &[Profile], paths: &[Path]) -> Vec<NetworkDescription> {
    let mut taken: Vec<String> = Vec::new();
    let pairs = profiles.iter().zip(paths);
    let sketched = pairs.map(|(profile, path)| {
        let label = free(label(&profile.name), &taken);
        taken.push(label.clone());
        let planned = PlannedPath::new(profile.clone());
        NetworkDescription {
            name: profile.name.clone(),
            host: format!("{label}.{HOST}"),
            address: path.server,
            rtt_ms: planned.rtt_ms(),
            down_mbps: planned.down_mbps(),
            up_mbps: planned.up_mbps(),
        }
    });
    sketched.collect()
}

/// What a server can do, as its trial has shown.
pub(super) fn server(running: &Running) -> ServerDescription {
    let can = |ability| running.abilities.can(ability);
    let speaks = |http: &Http| match http {
        Http::One => true,
        Http::Two => can(Ability::Http2),
        Http::Three => can(Ability::Http3),
    };
    ServerDescription {
        name: running.kind.name().to_owned(),
        version: running.version.clone(),
        port: running.kind.port(Workload::Get, Certificate::EcdsaP256),
        http: [Http::One, Http::Two, Http::Three]
            .into_iter()
            .filter(speaks)
            .map(Http::name)
            .collect(),
        early_data: can(Ability::EarlyData),
        early_data_quic: can(Ability::Http3) && can(Ability::EarlyDataQuic),
    }
}

/// A profile's name as one label of a host name (RFC 1123 section 2.1): `112 ms` is `112ms`,
/// `cable+wifi` is `cable-wifi`.
fn label(name: &str) -> String {
    let plain = name.replace(' ', "").to_ascii_lowercase();
    let kept = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let label: String = plain.chars().map(kept).take(MAX_NAME_LENGTH).collect();
    match label.trim_matches('-') {
        "" => "network".to_owned(),
        label => label.to_owned(),
    }
}

/// Two networks may get the same label: a number keeps them apart.
fn free(label: String, taken: &[String]) -> String {
    let numbered = (2..).map(|number| format!("{label}-{number}"));
    let mut names = std::iter::once(label.clone()).chain(numbered);
    names.find(|name| !taken.contains(name)).unwrap_or(label)
}

/// Less than the 63 bytes that a label may have, with room for a number.
const MAX_NAME_LENGTH: usize = 50;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use firstflight_emulator::PathConfig;

    use super::*;

    #[test]
    fn a_network_gets_a_name_that_a_certificate_can_carry() {
        for (name, expected) in [
            ("112 ms", "112ms"),
            ("0.2 ms", "0-2ms"),
            ("cable+wifi", "cable-wifi"),
            ("3g", "3g"),
            ("Über", "ber"),
            ("--", "network"),
            ("", "network"),
        ] {
            assert_eq!(label(name), expected, "{name}");
        }
        assert_eq!(label(&"x".repeat(100)).len(), MAX_NAME_LENGTH);
    }

    #[test]
    fn networks_of_one_name_are_kept_apart() {
        let taken = ["3g".to_owned(), "3g-2".to_owned()];
        assert_eq!(free("3g".to_owned(), &taken), "3g-3");
        assert_eq!(free("4g".to_owned(), &taken), "4g");
    }

    #[test]
    fn a_network_has_the_address_of_its_path() {
        let profile = Profile::plain(Duration::from_millis(112));
        let path = |config: PathConfig| Path {
            name: config.name,
            client: Ipv4Addr::new(10, 77, 1, 1),
            server: Ipv4Addr::new(10, 77, 1, 2),
            up: Duration::ZERO,
            down: Duration::ZERO,
            up_cells: Vec::new(),
            down_cells: Vec::new(),
        };
        let networks = networks(std::slice::from_ref(&profile), &[path((&profile).into())]);
        let NetworkDescription { host, address, rtt_ms, down_mbps, .. } = &networks[0];
        assert_eq!((&**host, *address), ("112ms.lab.test", Ipv4Addr::new(10, 77, 1, 2)));
        assert_eq!((*rtt_ms, *down_mbps), (112.0, None));
    }
}
