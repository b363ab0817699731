//! The emulated network of an experiment, the servers in it, and the connections that its packets
//! show.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};
use std::{fs, io};

use firstflight_browser::{Browser, Installed, Settings};
use firstflight_certificates::authority::Authority;
use firstflight_emulator::{Network, NetworkConfig, PathConfig, Process};
use firstflight_lab::InNamespace;
use firstflight_packets::Observer;
use firstflight_samples::wire_packet;
use firstflight_tls::Identity;
use serde::Deserialize;

use crate::connection::Connection;
use crate::poll;
use crate::server::{RecordingServer, Tls};

/// Long enough to separate packets of different round trips on a busy machine.
const ROUND_TRIP: Duration = Duration::from_millis(40);

/// Host names and their paths. To browsers `other.test` is another site, while `beside.site.test`
/// is the same site as `www.site.test`, at the same address.
pub(crate) const NAMES: [(&str, usize); 4] =
    [("www.site.test", 0), ("beside.site.test", 0), ("other.test", 1), ("third.test", 2)];

/// The network of an experiment.
pub(crate) struct TestNetwork {
    // Dropped first, so that no program writes into the directory any more.
    network: Network,
    authority: Authority,
    dir: tempfile::TempDir,
    secrets: String,
}

impl TestNetwork {
    pub(crate) fn new() -> Self {
        let paths = (0..3).map(|number| PathConfig::symmetric(number.to_string(), ROUND_TRIP));
        let network = Network::build(NetworkConfig::new(paths.collect())).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::open_or_create(&dir.path().join("authority"), now()).unwrap();
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
        let (certificate_pem, key_pem) = self.sign();
        let (certificate, key) = (self.dir().join("cert.pem"), self.dir().join("key.pem"));
        std::fs::write(&certificate, certificate_pem).unwrap();
        std::fs::write(&key, key_pem).unwrap();
        (certificate, key)
    }

    fn sign(&self) -> (String, String) {
        let names = NAMES.map(|(name, _)| name.to_owned());
        let made = self.authority.sign(&names, now()).unwrap();
        (made.certificate, made.key)
    }

    /// Starts a recording server on port 443 of a path.
    pub(crate) fn server(&self, path: usize, tls: &Tls) -> RecordingServer {
        let (certificate, key) = self.sign();
        let identity = Identity::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap();
        let address = SocketAddr::new(self.address(path), 443);
        RecordingServer::start(self.network.server(), address, identity, tls, path * 1000)
    }

    /// Starts a program in the servers' namespace.
    pub(crate) fn start_server(&self, command: Command) -> Process {
        self.network.server().spawn_child(command).unwrap()
    }

    /// Connects from the client's namespace.
    pub(crate) fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        self.network.client().run(|| TcpStream::connect(address)).map_err(io::Error::other)?
    }

    /// Settings for a browser that resolves and trusts all servers.
    pub(crate) fn settings(&self) -> Settings {
        Settings {
            early_data: true,
            trust: vec![self.authority().to_owned()],
            hosts: NAMES.map(|(name, path)| (name.to_owned(), self.address(path))).to_vec(),
            key_log: Some(self.key_log()),
            ..Settings::default()
        }
    }

    /// The file to which browsers and other servers log their TLS secrets.
    pub(crate) fn key_log(&self) -> PathBuf {
        self.dir().join("secrets")
    }

    /// Opens a browser in the client's namespace, with the profile of this name.
    pub(crate) fn open(
        &self,
        installed: &Installed,
        profile: &str,
        settings: &Settings,
    ) -> Browser {
        let profile = self.dir().join(profile);
        std::fs::create_dir_all(&profile).unwrap();
        let namespace = InNamespace(self.network.client());
        let opened = Browser::open(installed, &namespace, &profile, settings);
        opened.unwrap_or_else(|error| panic!("{} does not open: {error}", installed.kind))
    }

    /// Takes the connections since the last call, as their packets show them. They must have ended.
    pub(crate) fn packets(&mut self, secrets: &str) -> Vec<Connection> {
        self.secrets += secrets;
        let mut observer = Observer::new();
        observer.add_secrets(&self.secrets);
        observer.add_secrets(&std::fs::read_to_string(self.key_log()).unwrap_or_default());
        for packet in self.network.tap().take().packets {
            observer.packet(&wire_packet(&packet));
        }
        observer.finish().into_iter().map(Connection::new).collect()
    }
}

/// This project's server on port 443 of the first path, for HTTP/2 and HTTP/3.
pub(crate) struct FirstflightServer {
    process: Process,
    log: PathBuf,
    /// The number of log lines that were taken.
    taken: usize,
}

/// A line of the access log.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct LogLine {
    pub(crate) client: SocketAddr,
    pub(crate) target: String,
    pub(crate) protocol: String,
    pub(crate) status: Option<u16>,
    #[serde(default, rename = "early")]
    pub(crate) early_data: bool,
    #[serde(default)]
    pub(crate) held: Option<String>,
}

impl FirstflightServer {
    pub(crate) fn start(
        network: &TestNetwork,
        pages: &[(&str, String)],
        config_text: &str,
    ) -> Self {
        let root = network.dir().join("root");
        fs::create_dir_all(&root).unwrap();
        for (name, body) in pages {
            fs::write(root.join(name), body).unwrap();
        }
        let (certificate, key) = network.certificate();
        let config = network.dir().join("config.toml");
        fs::write(&config, config_text).unwrap();
        let log = network.dir().join("log");
        let address = SocketAddr::new(network.address(0), 443);
        let mut command = Command::new(env!("CARGO_BIN_EXE_firstflight"));
        command.args(["serve", "--listen", &address.to_string(), "--log-format", "json"]);
        command.arg("--config").arg(&config).arg("--access-log").arg(&log);
        command.arg("--cert").arg(certificate).arg("--key").arg(key).arg(&root);
        command.env("HOME", network.dir()).env("SSLKEYLOGFILE", network.key_log());
        command.env_remove("RUST_LOG").stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(fs::File::create(network.dir().join("output")).unwrap());
        let process = network.start_server(command);
        let listens = poll(|| network.connect(address).is_ok());
        let output = fs::read_to_string(network.dir().join("output")).unwrap_or_default();
        assert!(listens, "the server does not listen: {output}");
        Self { process, log, taken: 0 }
    }

    /// Takes the lines of the log since the last call.
    pub(crate) fn take(&mut self) -> Vec<LogLine> {
        let lines = self.lines();
        self.taken += lines.len();
        lines
    }

    /// The lines since the last [`Self::take`].
    pub(crate) fn lines(&self) -> Vec<LogLine> {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let complete = text.rfind('\n').map_or("", |end| &text[..end]);
        let lines = complete.lines().skip(self.taken);
        lines.map(|line| serde_json::from_str(line).expect(line)).collect()
    }

    /// Whether it still runs.
    pub(crate) fn is_alive(&self) -> bool {
        self.process.try_wait().is_ok_and(|status| status.is_none())
    }
}

fn now() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs()
}
