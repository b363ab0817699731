//! A lab that stays up, for people to look around in: networks, servers, a door into the client's
//! namespace, and a witness who says of each connection what it was, from its packets.

mod capture;
mod secrets;
mod seen;
mod sketch;
mod witness;

use std::ffi::OsString;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use firstflight_emulator::{Backend, NamespaceHolder, Network, NetworkConfig, PathConfig, Profile};

use crate::servers::{HOST, Running, Site, Wanted, page};
use crate::{Certificate, LabError, ServerKind, Size, Workload};
use capture::CaptureFile;
pub use seen::{Handshake, Seen};
pub use sketch::{LabDescription, NetworkDescription, ServerDescription};
use witness::Witness;

/// What is to stay up.
#[derive(Clone, Debug)]
pub struct ExploreConfig {
    /// The networks; the client has a path for each.
    pub profiles: Vec<Profile>,
    /// The servers; each is reached over every path.
    pub servers: Vec<ServerKind>,
    /// Decides what the link drops.
    pub seed: u64,
    /// Whether to keep the processors from falling asleep, which takes them all.
    pub keep_awake: bool,
    /// What the link is made of.
    pub backend: Backend,
    /// An empty directory for what servers and visitors need; the caller removes it.
    pub directory: PathBuf,
    /// This program, which is started again as server.
    pub program: PathBuf,
    /// Where all packets are written, with the secrets that open them. `None`: nowhere.
    pub capture: Option<PathBuf>,
}

/// A lab that is up. Dropped, it is gone with everybody in it.
pub struct Exploration {
    // Dropped in this order: nobody new comes in, then everybody is ended.
    _door: NamespaceHolder,
    servers: Vec<Running>,
    network: Network,
    witness: Witness,
    sketch: LabDescription,
}

impl Exploration {
    /// Builds the network, starts the servers and opens the door. The calling process needs the
    /// privilege that `firstflight_emulator::enter_user_namespace` gives.
    ///
    /// # Errors
    /// [`LabError`] where a part of it cannot be made; nothing of it remains then.
    pub fn begin(config: &ExploreConfig) -> Result<Self, LabError> {
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
        let wanted = Wanted {
            workloads: &[Workload::Get],
            certificates: &[Certificate::EcdsaP256],
            sizes: &Size::ALL,
        };
        let start = |server: &ServerKind| Running::start(*server, &wanted, &network, &site);
        let servers = config.servers.iter().map(start).collect::<Result<Vec<_>, _>>()?;
        let networks = sketch::networks(&config.profiles, &network.paths());
        let hosts = config.directory.join("hosts");
        write(&hosts, &hosts_file(&networks))?;
        let door =
            network.client().open_door(&hosts, &environment(&config.directory, &site, &key_log))?;
        let sketch = LabDescription {
            pid: door.id(),
            directory: config.directory.clone(),
            trust: site.trust.clone(),
            key_log: key_log.clone(),
            capture: config.capture.clone(),
            networks,
            servers: servers.iter().map(sketch::server).collect(),
            pages: std::iter::once("/")
                .chain(Size::ALL.map(Size::path))
                .map(str::to_owned)
                .collect(),
        };
        let capture = config.capture.as_deref().map(CaptureFile::begin).transpose()?;
        let witness = Witness::new(&sketch, key_log, capture);
        Ok(Self { _door: door, servers, network, witness, sketch })
    }

    /// What there is, and how it is reached.
    pub fn sketch(&self) -> &LabDescription {
        &self.sketch
    }

    /// The connections that showed what they are since the last look, in the order in which they
    /// started. To be called a few times a second.
    ///
    /// # Errors
    /// If the capture cannot be written, or the log of secrets not be read.
    pub fn look(&mut self) -> Result<Vec<Seen>, LabError> {
        self.witness.look(self.network.tap().take())
    }

    /// Ends the servers, and says what connections are left, as far as they went.
    ///
    /// # Errors
    /// Those of [`Exploration::look`].
    pub fn end(mut self) -> Result<Vec<Seen>, LabError> {
        self.servers.iter().for_each(Running::stop);
        let mut seen = self.look()?;
        seen.extend(self.witness.end()?);
        Ok(seen)
    }
}

/// What is served: the pages of the lab's sizes, and one that leads to them.
fn pages() -> Vec<(String, Vec<u8>)> {
    let mut index =
        "<!doctype html>\n<title>firstflight lab</title>\n<h1>It flies.</h1>\n<ul>\n".to_owned();
    for size in Size::ALL {
        index += &format!("<li><a href=\"{}\">{size}</a>\n", size.path());
    }
    index += "</ul>\n";
    let sizes = Size::ALL.map(|size| (size.name().to_owned(), page(size)));
    sizes.into_iter().chain([("index.html".to_owned(), index.into_bytes())]).collect()
}

/// The only names inside: this machine's own, and one for each network. The lab's own name leads
/// to the first.
fn hosts_file(networks: &[NetworkDescription]) -> String {
    let first = networks.first().map_or(Ipv4Addr::LOCALHOST, |network| network.address);
    let mut text = format!("127.0.0.1 localhost\n::1 localhost\n{first} {HOST}\n");
    for NetworkDescription { address, host, .. } in networks {
        text += &format!("{address} {host}\n");
    }
    text
}

/// What programs inside find by themselves: whom to trust, and where to log their secrets.
fn environment(directory: &Path, site: &Site, key_log: &Path) -> Vec<(OsString, OsString)> {
    let values = [directory, &site.trust, &site.trust, key_log];
    let pairs = LAB_VARIABLES.iter().zip(values);
    pairs.map(|(name, path)| (name.into(), path.as_os_str().to_owned())).collect()
}

/// The variables that programs inside are given: where the lab's directory is, whom to trust (for
/// most programs, and for curl), and where to log secrets.
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
    fn names_inside_lead_to_the_paths() {
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
    fn the_first_page_leads_to_all_others() {
        let pages = pages();
        let index = String::from_utf8(pages.last().unwrap().1.clone()).unwrap();
        for (name, _) in &pages[..pages.len() - 1] {
            assert!(index.contains(&format!("href=\"/{name}\"")), "{index}");
        }
    }
}
