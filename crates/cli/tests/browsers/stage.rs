//! A network of its own for an experiment, what runs in it, and what its packets say.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use firstflight_browser::{Browser, Installed, Settings};
use firstflight_certificates::authority::Authority;
use firstflight_emulator::{Direction as Way, Network, NetworkConfig, PathConfig, Process};
use firstflight_lab::InNamespace;
use firstflight_packets::{Direction, Observer, Packet};
use firstflight_tls::Identity;

use crate::seen::Seen;
use crate::witness::{Tls, Witness};

/// A round trip so long that what comes before and after it can be told apart on a busy machine.
const ROUND_TRIP: Duration = Duration::from_millis(40);

/// Host names and the path that each of them lies on. `other.test` is another site, as browsers
/// reckon sites; `beside.site.test` is of the same site as `www.site.test`, at its address.
pub(crate) const NAMES: [(&str, usize); 4] =
    [("www.site.test", 0), ("beside.site.test", 0), ("other.test", 1), ("third.test", 2)];

/// A network and all that an experiment starts in it.
pub(crate) struct Stage {
    // Dropped first, so that nothing writes into the directory any more.
    network: Network,
    authority: Authority,
    dir: tempfile::TempDir,
    secrets: String,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let paths = (0..3).map(|number| PathConfig::symmetric(number.to_string(), ROUND_TRIP));
        let network = Network::build(NetworkConfig::new(paths.collect())).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::open_or_make(&dir.path().join("authority"), now()).unwrap();
        Self { network, authority, dir, secrets: String::new() }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn authority(&self) -> &Path {
        self.authority.certificate()
    }

    /// The server's address on a path.
    pub(crate) fn address(&self, path: usize) -> IpAddr {
        self.network.path(path).unwrap().server.into()
    }

    /// A certificate for all names, and its key, as files.
    pub(crate) fn certificate(&self) -> (PathBuf, PathBuf) {
        let made = self.sign();
        let (certificate, key) = (self.dir().join("cert.pem"), self.dir().join("key.pem"));
        std::fs::write(&certificate, made.0).unwrap();
        std::fs::write(&key, made.1).unwrap();
        (certificate, key)
    }

    fn sign(&self) -> (String, String) {
        let names = NAMES.map(|(name, _)| name.to_owned());
        let made = self.authority.sign(&names, now()).unwrap();
        (made.certificate, made.key)
    }

    /// A witness on port 443 of a path.
    pub(crate) fn witness(&self, path: usize, tls: &Tls) -> Witness {
        let (certificate, key) = self.sign();
        let identity = Identity::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap();
        let address = SocketAddr::new(self.address(path), 443);
        Witness::start(self.network.server(), address, identity, tls, path * 1000)
    }

    /// Starts a program beside the witnesses.
    pub(crate) fn start_server(&self, command: Command) -> Process {
        self.network.server().spawn_child(command).unwrap()
    }

    /// Connects as a browser would.
    pub(crate) fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        self.network.client().run(|| TcpStream::connect(address)).map_err(io::Error::other)?
    }

    /// Settings with which a browser finds and trusts all servers here.
    pub(crate) fn settings(&self) -> Settings {
        Settings {
            early_data: true,
            trust: vec![self.authority().to_owned()],
            hosts: NAMES.map(|(name, path)| (name.to_owned(), self.address(path))).to_vec(),
            secrets: Some(self.key_log()),
            ..Settings::default()
        }
    }

    /// Where browsers and other servers write their secrets.
    pub(crate) fn key_log(&self) -> PathBuf {
        self.dir().join("secrets")
    }

    /// Opens a browser among the clients, with the profile of this name.
    pub(crate) fn open(
        &self,
        installed: &Installed,
        profile: &str,
        settings: &Settings,
    ) -> Browser {
        let profile = self.dir().join(profile);
        std::fs::create_dir_all(&profile).unwrap();
        let place = InNamespace(self.network.client());
        let opened = Browser::open(installed, &place, &profile, settings);
        opened.unwrap_or_else(|error| panic!("{} does not open: {error}", installed.make))
    }

    /// All connections since it was last asked, as the packets show them. They have to have ended.
    pub(crate) fn packets(&mut self, secrets: &str) -> Vec<Seen> {
        self.secrets += secrets;
        let mut observer = Observer::new();
        observer.add_secrets(&self.secrets);
        observer.add_secrets(&std::fs::read_to_string(self.key_log()).unwrap_or_default());
        for packet in self.network.tap().take().packets {
            observer.packet(&Packet {
                direction: match packet.direction {
                    Way::Up => Direction::ToServer,
                    Way::Down => Direction::ToClient,
                },
                arrived: packet.arrival_ns,
                delivered: packet.delivered(),
                frame: &packet.frame,
            });
        }
        observer.finish().into_iter().map(Seen::new).collect()
    }
}

fn now() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs()
}
