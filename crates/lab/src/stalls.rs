//! Fetches with early data behind obstacles: a middlebox that drops each ClientHello with early
//! data, and proxies that terminate TLS. `firstflight fetch` tries each, with and without its
//! second connection. Outcomes and times come from packets.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use firstflight_emulator::{CellSpec, Middlebox, Network, Process, Profile};
use firstflight_packets::{FirstResponse, FlowFacts, LabelKind};
use firstflight_report::{Figures, Stall};
use firstflight_samples::Flows;

use crate::servers::{HOST, Site, find};
use crate::{CertificateKind, LabError, ResponseSize};

/// How stalls are measured.
#[derive(Clone, Debug)]
pub struct StallConfig {
    /// The network, without an obstacle.
    pub profile: Profile,
    /// Fetches for each row of the table.
    pub attempts: usize,
    /// How long a fetch waits for its response.
    pub limit: Duration,
}

impl StallConfig {
    /// A path of 20 ms, on which a fetch waits for 5 s at most.
    pub fn new(attempts: usize) -> Self {
        let profile = Profile::plain(Duration::from_millis(20));
        Self { profile, attempts, limit: Duration::from_secs(5) }
    }

    /// The networks, in the order of [`Obstacle::ALL`].
    pub(crate) fn profiles(&self) -> Vec<Profile> {
        let with = |obstacle: &Obstacle| {
            let mut profile = self.profile.clone();
            profile.name = obstacle.name().to_owned();
            if *obstacle == Obstacle::DropsEarlyData {
                profile.up.push(CellSpec::Middlebox(Middlebox::DropEarlyData));
            }
            profile
        };
        Obstacle::ALL.iter().map(with).collect()
    }
}

/// An obstacle to early data on the way to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Obstacle {
    Nothing,
    /// A middlebox that drops each ClientHello with early data.
    DropsEarlyData,
    /// A proxy that terminates TLS, and connects to the server by TLS.
    Proxy,
    /// Such a proxy, which also accepts early data.
    EarlyProxy,
}

impl Obstacle {
    const ALL: [Self; 4] = [Self::Nothing, Self::DropsEarlyData, Self::Proxy, Self::EarlyProxy];

    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::DropsEarlyData => "drop-early-data",
            Self::Proxy => "TLS proxy",
            Self::EarlyProxy => "TLS proxy with early data",
        }
    }

    fn is_proxy(self) -> bool {
        matches!(self, Self::Proxy | Self::EarlyProxy)
    }
}

/// The measurement of stalls.
pub(crate) struct StallRun<'a> {
    pub config: &'a StallConfig,
    /// The index of the first of [`StallConfig::profiles`] among the network's paths.
    pub first_path: usize,
    pub network: &'a Network,
    pub site: &'a Site,
}

/// The outcome of a fetch, by its packets.
struct FetchOutcome {
    /// What its packets show of each connection, in the order in which they started.
    summary: String,
    /// From the first packet to the first byte of the response, in milliseconds.
    first_byte_ms: Option<f64>,
}

impl StallRun<'_> {
    /// Starts the server and, where nginx is installed, the proxies, and makes all fetches. Also
    /// returns what was left out, and why.
    ///
    /// # Errors
    /// If a server does not start.
    pub(crate) fn run(&self) -> Result<(Vec<Stall>, Vec<String>), LabError> {
        let directory = self.site.directory.join("stalls");
        fs::create_dir_all(&directory).map_err(|source| LabError::File {
            verb: "make",
            path: directory.clone(),
            source,
        })?;
        let server = self.start_server(&directory)?;
        let (proxy, left_out) = match find("nginx") {
            Some(nginx) => (Some(self.start_proxies(&nginx, &directory)?), Vec::new()),
            None => {
                let why = "stall: TLS proxies: nginx is not installed (apt-get install nginx)";
                (None, vec![why.to_owned()])
            }
        };
        let mut stalls = Vec::new();
        for obstacle in Obstacle::ALL {
            if obstacle.is_proxy() && proxy.is_none() {
                continue;
            }
            // A client that was on another network before has the server's tickets. A client that
            // has always been behind the proxy has the proxy's.
            let issuers: &[Obstacle] = match obstacle.is_proxy() {
                true => &[Obstacle::Nothing, obstacle],
                false => &[Obstacle::Nothing],
            };
            for issuer in issuers {
                for second_connection in [false, true] {
                    stalls.push(self.row(&directory, obstacle, *issuer, second_connection)?);
                }
            }
        }
        for process in [Some(server), proxy].into_iter().flatten() {
            let _ = process.kill();
        }
        Ok((stalls, left_out))
    }

    fn row(
        &self,
        directory: &Path,
        obstacle: Obstacle,
        issuer: Obstacle,
        second_connection: bool,
    ) -> Result<Stall, LabError> {
        let mut outcomes: BTreeMap<String, usize> = BTreeMap::new();
        let mut times = Vec::new();
        for attempt in 0..self.config.attempts {
            let name = format!(
                "{}-{}-{second_connection}-{attempt}",
                self.path(obstacle),
                self.path(issuer)
            );
            let state = directory.join(name);
            fs::create_dir_all(&state).map_err(|source| LabError::File {
                verb: "make",
                path: state.clone(),
                source,
            })?;
            self.fetch(&state, issuer, true)?;
            let outcome = self.fetch(&state, obstacle, second_connection)?;
            *outcomes.entry(outcome.summary).or_default() += 1;
            times.extend(outcome.first_byte_ms);
        }
        Ok(Stall {
            on_the_way: obstacle.name().to_owned(),
            tickets_of: if issuer.is_proxy() { "proxy" } else { "server" }.to_owned(),
            second_connection,
            rtt_ms: self.config.profile.rtt().as_secs_f64() * 1e3,
            limit_ms: self.config.limit.as_secs_f64() * 1e3,
            tries: self.config.attempts,
            failed: self.config.attempts - times.len(),
            happened: outcomes.into_iter().collect(),
            first_byte: Figures::from_values(times),
        })
    }

    /// Runs `firstflight fetch` through an obstacle, with the sessions in `state`.
    fn fetch(
        &self,
        state: &Path,
        obstacle: Obstacle,
        second_connection: bool,
    ) -> Result<FetchOutcome, LabError> {
        let keys = state.join("keys");
        let _ = fs::remove_file(&keys);
        let mut command = Command::new(&self.site.program);
        command.arg("fetch");
        command.arg(format!("https://{HOST}:{PORT}{}", ResponseSize::OneKib.path()));
        command.args(["--resolve", &format!("{HOST}:{PORT}:{}", self.address(obstacle)?)]);
        command.arg("--cacert").arg(&self.site.trust).arg("--ssl-sessions").arg(state.join("jar"));
        command.arg("--ssl-sessions-key").arg(state.join("jar-key"));
        command.args([
            "--http1.1",
            "--tls-earlydata",
            "--silent",
            "--output",
            "/dev/null",
            "--max-time",
        ]);
        command.arg(self.config.limit.as_secs_f64().to_string());
        command.args((!second_connection).then_some("--no-second-connection"));
        command.env("SSLKEYLOGFILE", &keys).env("HOME", state);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.network.tap().take();
        let process = self.network.client().spawn_child(command)?;
        let limit = self.config.limit + Duration::from_secs(30);
        if !matches!(process.wait_timeout(limit), Ok(Some(_))) {
            let _ = process.kill();
        }
        let secrets = fs::read_to_string(&keys).unwrap_or_default();
        let flows = Flows::new(&self.network.tap().take(), &secrets, &HashSet::new());
        let mut facts: Vec<&FlowFacts> = flows.flows().map(|flow| &flow.facts).collect();
        facts.sort_by_key(|facts| facts.started);
        Ok(fetch_outcome(&facts))
    }

    /// Starts the server, for the paths without a proxy.
    fn start_server(&self, directory: &Path) -> Result<Process, LabError> {
        let identity = self.site.identity(CertificateKind::EcdsaP256);
        let mut command = Command::new(&self.site.program);
        command.arg("serve");
        for obstacle in [Obstacle::Nothing, Obstacle::DropsEarlyData] {
            command.args(["--listen", &format!("{}:{PORT}", self.address(obstacle)?)]);
        }
        command.arg("--cert").arg(&identity.cert).arg("--key").arg(&identity.key);
        command.arg("--root").arg(&self.site.root);
        command.args(["--no-http3", "--early-data", "on", "--workers", "1"]);
        self.start("firstflight", command, &directory.join("server"), Obstacle::Nothing)
    }

    /// Starts nginx as both proxies.
    fn start_proxies(&self, nginx: &Path, directory: &Path) -> Result<Process, LabError> {
        let path = directory.join("nginx.conf");
        let config = self.proxy_config(directory)?;
        fs::write(&path, config).map_err(|source| LabError::File {
            verb: "write",
            path: path.clone(),
            source,
        })?;
        let mut command = Command::new(nginx);
        command.arg("-p").arg(directory).arg("-c").arg(path).args(["-e", "stderr"]);
        self.start("nginx", command, &directory.join("proxy"), Obstacle::EarlyProxy)
    }

    fn proxy_config(&self, directory: &Path) -> Result<String, LabError> {
        let identity = self.site.identity(CertificateKind::EcdsaP256);
        let server = |obstacle, early_data: &str| {
            Ok::<String, LabError>(format!(
                "server {{\nlisten {address}:{PORT} ssl;\nssl_early_data {early_data};\n\
                 location / {{ proxy_pass https://{server}:{PORT}; }}\n}}\n",
                address = self.address(obstacle)?,
                server = self.address(Obstacle::Nothing)?,
            ))
        };
        Ok(format!(
            "daemon off;\nmaster_process off;\nuser root root;\n\
             error_log stderr warn;\npid {dir}/nginx.pid;\nevents {{ }}\n\
             http {{\naccess_log off;\n\
             client_body_temp_path {dir}/body;\nproxy_temp_path {dir}/temp;\n\
             fastcgi_temp_path {dir}/fastcgi;\nuwsgi_temp_path {dir}/uwsgi;\n\
             scgi_temp_path {dir}/scgi;\n\
             ssl_certificate {cert};\nssl_certificate_key {key};\nssl_protocols TLSv1.3;\n\
             proxy_ssl_name {HOST};\nproxy_ssl_server_name on;\nproxy_ssl_protocols TLSv1.3;\n\
             proxy_ssl_verify on;\nproxy_ssl_trusted_certificate {trust};\n\
             proxy_set_header Host {HOST};\nproxy_set_header Early-Data $ssl_early_data;\n\
             {without}{with}}}\n",
            dir = directory.display(),
            cert = identity.cert.display(),
            key = identity.key.display(),
            trust = self.site.trust.display(),
            without = server(Obstacle::Proxy, "off")?,
            with = server(Obstacle::EarlyProxy, "on")?,
        ))
    }

    /// Starts a process in the server's namespace, and waits until it listens on the path of
    /// `obstacle`.
    fn start(
        &self,
        server: &'static str,
        mut command: Command,
        output: &Path,
        obstacle: Obstacle,
    ) -> Result<Process, LabError> {
        let cannot_write = |source| LabError::File { verb: "write", path: output.into(), source };
        let file = File::create(output).map_err(cannot_write)?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let process = self.network.server().spawn_child(command)?;
        let address = SocketAddr::from((self.address(obstacle)?, PORT));
        let namespace = self.network.attacker().namespace();
        let started = Instant::now();
        loop {
            let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(200));
            if namespace.run(connect)?.is_ok() {
                return Ok(process);
            }
            let ended = process.try_wait().ok().flatten().is_some();
            if ended || started.elapsed() > START_TIMEOUT {
                let output = fs::read_to_string(output).unwrap_or_default();
                let last = output.lines().last().unwrap_or("it printed nothing").to_owned();
                return Err(LabError::Start { server, reason: last });
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn path(&self, obstacle: Obstacle) -> usize {
        self.first_path
            + Obstacle::ALL.iter().position(|other| *other == obstacle).unwrap_or_default()
    }

    fn address(&self, obstacle: Obstacle) -> Result<Ipv4Addr, LabError> {
        Ok(self.network.path(self.path(obstacle))?.server)
    }
}

/// Summarizes the connections of a fetch.
fn fetch_outcome(connections: &[&FlowFacts]) -> FetchOutcome {
    let delivered = |facts: &&FlowFacts| match facts.first_response {
        FirstResponse::Seen { delivered, .. } => delivered,
        _ => None,
    };
    let started = connections.first().map(|facts| facts.started);
    let first = connections.iter().filter_map(delivered).min();
    let words: Vec<&str> = connections.iter().map(|facts| describe(facts)).collect();
    FetchOutcome {
        summary: if words.is_empty() { "no packets".to_owned() } else { words.join(", then ") },
        first_byte_ms: started.zip(first).map(|(from, to)| to.saturating_sub(from) as f64 / 1e6),
    }
}

/// Describes the handshake of a connection, as its packets show it.
fn describe(facts: &FlowFacts) -> &'static str {
    match facts.label() {
        Ok(label) => match label.kind {
            LabelKind::Full => "full",
            LabelKind::Resumed => "resumed",
            LabelKind::EarlyAccepted => "early data accepted",
            LabelKind::EarlyRefused => "early data refused",
        },
        Err(_) if facts.transport.dropped() > 0 => "early data dropped",
        Err(_) => "no handshake",
    }
}

/// The port of the server and of the proxies, so that a client takes them for the same server.
/// Below the ports of the servers under test.
const PORT: u16 = 4428;

/// How long a server may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(30);
