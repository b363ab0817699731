//! The description of a lab that stays up: its networks and servers, and how they are reached.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use firstflight_emulator::{Path, Profile};
use serde::Serialize;

use crate::paths::PlannedPath;
use crate::servers::{Capability, HOST, RunningServer};
use crate::{CertificateKind, HttpVersion, Workload};

/// The networks and servers of a lab, and how they are reached.
#[derive(Clone, Debug, Serialize)]
pub struct LabDescription {
    /// The process through which the client's namespace is entered.
    pub pid: u32,
    /// The directory of the lab's files, which is removed at the end.
    pub directory: PathBuf,
    /// The certificate of the lab's authority, PEM.
    pub trust: PathBuf,
    /// The file to which programs in the lab log their TLS secrets (`SSLKEYLOGFILE`).
    pub key_log: PathBuf,
    /// The capture of all packets.
    pub capture: Option<PathBuf>,
    /// The networks.
    pub networks: Vec<NetworkDescription>,
    /// The servers.
    pub servers: Vec<ServerDescription>,
    /// The paths that all servers serve.
    pub pages: Vec<String>,
}

/// A network. All servers are reached over it by its host name.
#[derive(Clone, Debug, Serialize)]
pub struct NetworkDescription {
    /// The name of its profile.
    pub name: String,
    /// The host name that resolves to the servers' address on this network.
    pub host: String,
    /// The servers' address on this network.
    pub address: Ipv4Addr,
    /// The median round-trip time of the profile, without queues.
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

/// A server of the lab.
#[derive(Clone, Debug, Serialize)]
pub struct ServerDescription {
    /// Its name in flags.
    pub name: String,
    /// Its version and its TLS library.
    pub version: String,
    /// Its port for TCP and QUIC.
    pub port: u16,
    /// The HTTP versions that it supports: `1.1`, `2`, `3`.
    pub http: Vec<&'static str>,
    /// Whether it accepts early data over TCP.
    pub early_data: bool,
    /// Whether it accepts early data over QUIC.
    pub early_data_quic: bool,
}

impl LabDescription {
    /// The URL of a page at a server over a network.
    pub fn url(
        &self,
        network: &NetworkDescription,
        server: &ServerDescription,
        page: &str,
    ) -> String {
        format!("https://{}:{}{page}", network.host, server.port)
    }
}

/// Describes the networks of these profiles, in the order of the paths.
pub(super) fn describe_networks(profiles: &[Profile], paths: &[Path]) -> Vec<NetworkDescription> {
    let mut used: Vec<String> = Vec::new();
    let pairs = profiles.iter().zip(paths);
    let descriptions = pairs.map(|(profile, path)| {
        let label = unique_label(host_label(&profile.name), &used);
        used.push(label.clone());
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
    descriptions.collect()
}

/// Describes a server with its probed capabilities.
pub(super) fn describe_server(running: &RunningServer) -> ServerDescription {
    let supports = |capability| running.capabilities.supports(capability);
    let supported = |http: &HttpVersion| match http {
        HttpVersion::One => true,
        HttpVersion::Two => supports(Capability::Http2),
        HttpVersion::Three => supports(Capability::Http3),
    };
    ServerDescription {
        name: running.kind.name().to_owned(),
        version: running.version.clone(),
        port: running.kind.port(Workload::Get, CertificateKind::EcdsaP256),
        http: [HttpVersion::One, HttpVersion::Two, HttpVersion::Three]
            .into_iter()
            .filter(supported)
            .map(HttpVersion::name)
            .collect(),
        early_data: supports(Capability::EarlyData),
        early_data_quic: supports(Capability::Http3) && supports(Capability::QuicEarlyData),
    }
}

/// Converts a profile's name to a label of a host name (RFC 1123 section 2.1): `112 ms` to `112ms`,
/// `cable+wifi` to `cable-wifi`.
fn host_label(name: &str) -> String {
    let plain = name.replace(' ', "").to_ascii_lowercase();
    let replace_special = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let label: String = plain.chars().map(replace_special).take(MAX_LABEL_BYTES).collect();
    match label.trim_matches('-') {
        "" => "network".to_owned(),
        label => label.to_owned(),
    }
}

/// Adds a number to a label that is already used.
fn unique_label(label: String, used: &[String]) -> String {
    let numbered = (2..).map(|number| format!("{label}-{number}"));
    let mut names = std::iter::once(label.clone()).chain(numbered);
    names.find(|name| !used.contains(name)).unwrap_or(label)
}

/// Less than the 63 bytes of a label, with space for a number.
const MAX_LABEL_BYTES: usize = 50;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use firstflight_emulator::PathConfig;

    use super::*;

    #[test]
    fn network_names_become_valid_host_labels() {
        for (name, expected) in [
            ("112 ms", "112ms"),
            ("0.2 ms", "0-2ms"),
            ("cable+wifi", "cable-wifi"),
            ("3g", "3g"),
            ("Über", "ber"),
            ("--", "network"),
            ("", "network"),
        ] {
            assert_eq!(host_label(name), expected, "{name}");
        }
        assert_eq!(host_label(&"x".repeat(100)).len(), MAX_LABEL_BYTES);
    }

    #[test]
    fn networks_with_the_same_name_get_different_labels() {
        let used = ["3g".to_owned(), "3g-2".to_owned()];
        assert_eq!(unique_label("3g".to_owned(), &used), "3g-3");
        assert_eq!(unique_label("4g".to_owned(), &used), "4g");
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
        let networks =
            describe_networks(std::slice::from_ref(&profile), &[path((&profile).into())]);
        let NetworkDescription { host, address, rtt_ms, down_mbps, .. } = &networks[0];
        assert_eq!((&**host, *address), ("112ms.lab.test", Ipv4Addr::new(10, 77, 1, 2)));
        assert_eq!((*rtt_ms, *down_mbps), (112.0, None));
    }
}
