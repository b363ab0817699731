//! A lab that stays up for exploring by hand: networks, servers, a way to enter the client's
//! namespace, and a tracker that describes each connection by its packets.

mod connection;
mod description;
mod evidence;
mod tracker;

use std::ffi::OsString;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use firstflight_emulator::{Backend, NamespaceHolder, Network, NetworkConfig, PathConfig, Profile};

use crate::servers::{HOST, Requirements, RunningServer, Site, page};
use crate::{CertificateKind, LabError, ResponseSize, ServerKind, Workload};
pub use connection::{HandshakeOutcome, ObservedConnection};
pub use description::{LabDescription, NetworkDescription, ServerDescription};
use evidence::LimitedCapture;
use tracker::ConnectionTracker;

/// The configuration of a lab that stays up.
#[derive(Clone, Debug)]
pub struct ExploreConfig {
    /// The networks; the client has a path for each.
    pub profiles: Vec<Profile>,
    /// The servers; each is reached over every path.
    pub servers: Vec<ServerKind>,
    /// The seed for the packets that the link drops.
    pub seed: u64,
    /// Whether to keep idle processors from sleeping, which occupies all of them.
    pub keep_awake: bool,
    /// How the link forwards packets.
    pub backend: Backend,
    /// An empty directory for the files of servers and of programs in the lab. The caller removes
    /// it.
    pub directory: PathBuf,
    /// The `firstflight` program, which is started as one of the servers.
    pub program: PathBuf,
    /// The file for a capture of all packets, with the secrets that decrypt them.
    pub capture: Option<PathBuf>,
}

/// A lab that is up. Dropping it ends all servers and all programs that have entered it.
///
/// Its network namespaces have no names below `/run/netns`, unlike those of `ip netns`. Creating
/// such names needs root, and they outlive their process, so a killed lab would leave its networks
/// behind. Instead an idle process runs in the client's namespace, and `firstflight lab --enter`
/// joins its namespaces through its files in `/proc`. The program that enters also joins the lab's
/// process-id namespace, whose first process ends with the lab. So no program stays in a network
/// without a link.
pub struct ExploreSession {
    // Drop order: no program can enter any more, then all programs are ended.
    _holder: NamespaceHolder,
    servers: Vec<RunningServer>,
    network: Network,
    tracker: ConnectionTracker,
    description: LabDescription,
}

impl ExploreSession {
    /// Builds the network, starts the servers and makes the lab accessible. The calling process
    /// needs the privileges that `firstflight_emulator::enter_user_namespace` provides.
    ///
    /// # Errors
    /// [`LabError`] if a part cannot be started. Nothing is left running then.
    pub fn start(config: &ExploreConfig) -> Result<Self, LabError> {
        if config.profiles.is_empty() || config.servers.is_empty() {
            let why = "nothing to serve: name a server and a network";
            return Err(LabError::EmptyPlan(why.to_owned()));
        }
        let mut site = Site::for_browsers(&config.directory, &config.program, &pages())?;
        let key_log = config.directory.join("secrets");
        write(&key_log, "")?;
        site.key_log = Some(key_log.clone());
        let paths = config.profiles.iter().map(PathConfig::from).collect();
        let network = Network::build(NetworkConfig {
            keep_awake: config.keep_awake,
            seed: config.seed,
            backend: config.backend,
            ..NetworkConfig::new(paths)
        })?;
        let required = Requirements {
            workloads: &[Workload::Get],
            certificates: &[CertificateKind::EcdsaP256],
            sizes: &ResponseSize::ALL,
        };
        let start = |server: &ServerKind| RunningServer::start(*server, &required, &network, &site);
        let servers = config.servers.iter().map(start).collect::<Result<Vec<_>, _>>()?;
        let networks = description::describe_networks(&config.profiles, &network.paths());
        let hosts = config.directory.join("hosts");
        write(&hosts, &hosts_file(&networks))?;
        let holder = network
            .client()
            .start_holder(&hosts, &environment(&config.directory, &site, &key_log))?;
        let description = LabDescription {
            pid: holder.id(),
            directory: config.directory.clone(),
            trust: site.trust.clone(),
            key_log: key_log.clone(),
            capture: config.capture.clone(),
            networks,
            servers: servers.iter().map(description::describe_server).collect(),
            pages: std::iter::once("/")
                .chain(ResponseSize::ALL.map(ResponseSize::path))
                .map(str::to_owned)
                .collect(),
        };
        let capture = config.capture.as_deref().map(LimitedCapture::create).transpose()?;
        let tracker = ConnectionTracker::new(&description, key_log, capture);
        Ok(Self { _holder: holder, servers, network, tracker, description })
    }

    /// The networks and servers, and how they are reached.
    pub fn description(&self) -> &LabDescription {
        &self.description
    }

    /// Returns the connections that were classified since the last call, in the order of their
    /// start. Call it a few times a second.
    ///
    /// # Errors
    /// If the capture cannot be written or the key log cannot be read.
    pub fn poll(&mut self) -> Result<Vec<ObservedConnection>, LabError> {
        self.tracker.poll(self.network.tap().take())
    }

    /// Stops the servers, and returns all remaining connections as far as they went.
    ///
    /// # Errors
    /// Those of [`ExploreSession::poll`].
    pub fn stop(mut self) -> Result<Vec<ObservedConnection>, LabError> {
        self.servers.iter().for_each(RunningServer::stop);
        let mut connections = self.poll()?;
        connections.extend(self.tracker.finish()?);
        Ok(connections)
    }
}

/// The served pages: one of each size, and an index with links to them.
fn pages() -> Vec<(String, Vec<u8>)> {
    let mut index =
        "<!doctype html>\n<title>firstflight lab</title>\n<h1>It flies.</h1>\n<ul>\n".to_owned();
    for size in ResponseSize::ALL {
        index += &format!("<li><a href=\"{}\">{size}</a>\n", size.path());
    }
    index += "</ul>\n";
    let sizes = ResponseSize::ALL.map(|size| (size.name().to_owned(), page(size)));
    sizes.into_iter().chain([("index.html".to_owned(), index.into_bytes())]).collect()
}

/// The hosts file of the lab: localhost, the name of each network, and the lab's name for the first
/// network.
fn hosts_file(networks: &[NetworkDescription]) -> String {
    let first = networks.first().map_or(Ipv4Addr::LOCALHOST, |network| network.address);
    let mut text = format!("127.0.0.1 localhost\n::1 localhost\n{first} {HOST}\n");
    for NetworkDescription { address, host, .. } in networks {
        text += &format!("{address} {host}\n");
    }
    text
}

/// The environment of programs in the lab.
fn environment(directory: &Path, site: &Site, key_log: &Path) -> Vec<(OsString, OsString)> {
    let values = [directory, &site.trust, &site.trust, key_log];
    let pairs = LAB_VARIABLES.iter().zip(values);
    pairs.map(|(name, path)| (name.into(), path.as_os_str().to_owned())).collect()
}

/// The environment variables of programs in the lab: its directory, the trusted certificates (for
/// most programs, and for curl), and the key log.
pub const LAB_VARIABLES: [&str; 4] =
    ["FIRSTFLIGHT_LAB", "SSL_CERT_FILE", "CURL_CA_BUNDLE", "SSLKEYLOGFILE"];

fn write(path: &Path, text: &str) -> Result<(), LabError> {
    fs::write(path, text).map_err(|source| LabError::File {
        verb: "write",
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_resolve_to_the_paths() {
        let network = |host: &str, last| NetworkDescription {
            host: host.to_owned(),
            address: Ipv4Addr::new(10, 77, last, 2),
            ..NetworkDescription::default()
        };
        let networks = [network("112ms.lab.test", 1), network("3g.lab.test", 2)];
        let expected = "127.0.0.1 localhost\n::1 localhost\n10.77.1.2 lab.test\n\
                        10.77.1.2 112ms.lab.test\n10.77.2.2 3g.lab.test\n";
        assert_eq!(hosts_file(&networks), expected);
    }

    #[test]
    fn the_index_links_to_all_pages() {
        let pages = pages();
        let index = String::from_utf8(pages.last().unwrap().1.clone()).unwrap();
        for (name, _) in &pages[..pages.len() - 1] {
            assert!(index.contains(&format!("href=\"/{name}\"")), "{index}");
        }
    }
}
