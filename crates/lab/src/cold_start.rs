//! Cold starts: how long a restarted server accepts no early data, with each ticket-key setting.
//! A client that had a session before the restart reconnects until its early data is accepted.
//! Connections are classified by their packets.

use std::collections::HashSet;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use firstflight_client::{ClientError, Target};
use firstflight_emulator::{Network, Process, Profile, monotonic_ns};
use firstflight_packets::{FlowFacts, HandshakeKind as Handshake, LabelKind};
use firstflight_report::{ColdStart, Figures};
use firstflight_samples::{
    ClientRecord, ConnectionOffer, Connectors, Exchange, Flows, RequestedConnection, Slot, Ticket,
    exchange,
};
use firstflight_tls::{KeyLogLines, Trust};

use crate::sampler::{LIMITS, SAMPLE_TIMEOUT};
use crate::servers::{HOST, Site, find, processor_time};
use crate::{CertificateKind, HandshakeKind, LabError, Transport};

/// The network of the restarts. Its delay is short, so that the server's start dominates the times.
pub(crate) fn profile() -> Profile {
    Profile { name: "cold start".to_owned(), ..Profile::plain(Duration::from_millis(2)) }
}

/// A ticket-key setting: its name, and its lines in `[tickets]`.
struct TicketKeys {
    name: &'static str,
    settings: &'static str,
    has_store: bool,
}

const TICKET_KEYS: [TicketKeys; 5] = [
    TicketKeys { name: "punctured", settings: "keys = \"punctured\"", has_store: false },
    TicketKeys { name: "process", settings: "keys = \"process\"", has_store: false },
    TicketKeys {
        name: "file",
        settings: "keys = \"file\"\nfile = \"ticket.keys\"",
        has_store: false,
    },
    TicketKeys {
        name: "store",
        settings: "keys = \"store\"\nkey_encryption_file = \"kek\"",
        has_store: true,
    },
    TicketKeys {
        name: "single-use",
        settings: "keys = \"store\"\nkey_encryption_file = \"kek\"\nsingle_use = true",
        has_store: true,
    },
];

/// The restarts of a run.
pub(crate) struct ColdStartRun<'a> {
    /// Restarts with each ticket-key setting.
    pub restarts: usize,
    pub network: &'a Network,
    pub site: &'a Site,
    /// The index of the path with [`profile`].
    pub path: usize,
}

/// The connections of a client to a restarted server, until its early data is accepted.
struct Reconnection {
    /// The first connection, in words.
    first: &'static str,
    connections: usize,
    /// From the start of the server's process to the first response.
    response_ms: f64,
    /// From the start of the server's process to the first response to accepted early data.
    early_ms: f64,
    server_cpu_ms: f64,
}

impl ColdStartRun<'_> {
    /// Returns a row for each ticket-key setting, and why others are left out. Must run in the
    /// client's namespace.
    ///
    /// # Errors
    /// If a server does not start, or does not accept early data within [`RECONNECT_TIMEOUT`].
    pub(crate) fn run(&self) -> Result<(Vec<ColdStart>, Vec<String>), LabError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|source| LabError::System { what: "start the client", source })?;
        let redis = find("redis-server");
        let (mut rows, mut left_out) = (Vec::new(), Vec::new());
        for keys in &TICKET_KEYS {
            match (keys.has_store, &redis) {
                (true, None) => left_out.push(format!(
                    "cold-start: keys in a store ({}): redis-server is not installed (apt-get \
                     install redis-server)",
                    keys.name
                )),
                (_, redis) => rows.push(runtime.block_on(self.row(keys, redis.as_deref()))?),
            }
        }
        Ok((rows, left_out))
    }

    async fn row(&self, keys: &TicketKeys, redis: Option<&Path>) -> Result<ColdStart, LabError> {
        let directory = self.site.directory.join(format!("cold-start-{}", keys.name));
        fs::create_dir_all(&directory).map_err(|source| LabError::File {
            verb: "make",
            path: directory.clone(),
            source,
        })?;
        let (config, socket) = (directory.join("serve.toml"), directory.join("redis.sock"));
        let mut text = format!("[tickets]\n{}\n", keys.settings);
        if keys.has_store {
            text.push_str(&format!("[store]\nurl = \"unix://{}\"\n", socket.display()));
        }
        fs::write(&config, text).map_err(|source| LabError::File {
            verb: "write",
            path: config.clone(),
            source,
        })?;
        self.make_keys(&["keys", "new", "ticket.keys"], &directory)?;
        self.make_keys(&["keys", "new-encryption", "kek"], &directory)?;
        let store = redis.filter(|_| keys.has_store);
        let _store = store.map(|program| self.start_store(program, &socket)).transpose()?;
        let key_log = Arc::new(KeyLogLines::default());
        let client = Client {
            connectors: Connectors::new(Trust::File(self.site.trust.clone()), &key_log),
            key_log,
            network: self.network,
            address: self.address()?,
        };
        let mut ticket = None;
        let mut reconnections = Vec::with_capacity(self.restarts);
        // The first start is not a restart.
        for start in 0..=self.restarts {
            let started = Instant::now();
            let server = self.network.server().spawn_child(self.serve(&config, &directory))?;
            let reconnection = client.reconnect(&mut ticket, &server, started).await?;
            reconnections.extend((start > 0).then_some(reconnection));
            let _ = server.signal(nix::sys::signal::Signal::SIGTERM as i32);
            if !matches!(server.wait_timeout(STOP_TIMEOUT), Ok(Some(_))) {
                let _ = server.kill();
            }
        }
        let figures =
            |value: fn(&Reconnection) -> f64| Figures::from_values(reconnections.iter().map(value));
        let mut first: Vec<(String, usize)> = Vec::new();
        for reconnection in &reconnections {
            match first.iter_mut().find(|(words, _)| words == reconnection.first) {
                Some((_, count)) => *count += 1,
                None => first.push((reconnection.first.to_owned(), 1)),
            }
        }
        Ok(ColdStart {
            keys: keys.name.to_owned(),
            restarts: reconnections.len(),
            first,
            connections: reconnections.iter().map(|r| r.connections).max().unwrap_or_default(),
            response: figures(|r| r.response_ms),
            early: figures(|r| r.early_ms),
            server_cpu: figures(|r| r.server_cpu_ms),
        })
    }

    fn serve(&self, config: &Path, directory: &Path) -> Command {
        let identity = self.site.identity(CertificateKind::EcdsaP256);
        let mut command = Command::new(&self.site.program);
        command.arg("serve").arg("--config").arg(config).current_dir(directory);
        command.args(["--listen", &format!("0.0.0.0:{PORT}"), "--no-http3", "--workers", "1"]);
        command.arg("--cert").arg(&identity.cert).arg("--key").arg(&identity.key);
        command.arg("--root").arg(&self.site.root).args(["--early-data", "on"]);
        quiet(command)
    }

    fn make_keys(&self, arguments: &[&str], directory: &Path) -> Result<(), LabError> {
        let mut command = Command::new(&self.site.program);
        command.args(arguments).current_dir(directory);
        let failed = |source| LabError::System { what: "make ticket keys", source };
        match quiet(command).status().map_err(failed)? {
            status if status.success() => Ok(()),
            status => Err(LabError::Start {
                server: "firstflight keys",
                reason: format!("it ended with {status}"),
            }),
        }
    }

    /// Starts Redis in the server's namespace, without persistence.
    fn start_store(&self, program: &Path, socket: &Path) -> Result<Process, LabError> {
        let mut command = Command::new(program);
        command.args(["--port", "0", "--save", "", "--appendonly", "no"]);
        command.arg("--unixsocket").arg(socket).current_dir(&self.site.directory);
        let process = self.network.server().spawn_child(quiet(command))?;
        let started = Instant::now();
        while !socket.exists() {
            let ended = process.try_wait().ok().flatten().is_some();
            if ended || started.elapsed() > RECONNECT_TIMEOUT {
                let reason = "it made no socket".to_owned();
                return Err(LabError::Start { server: "redis-server", reason });
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
        Ok(process)
    }

    fn address(&self) -> Result<SocketAddr, LabError> {
        Ok((self.network.path(self.path)?.server, PORT).into())
    }
}

/// The client that reconnects.
struct Client<'a> {
    connectors: Connectors,
    key_log: Arc<KeyLogLines>,
    network: &'a Network,
    address: SocketAddr,
}

impl Client<'_> {
    /// Connects until early data is accepted, each time with the newest ticket.
    async fn reconnect(
        &self,
        ticket: &mut Option<Ticket>,
        server: &Process,
        started: Instant,
    ) -> Result<Reconnection, LabError> {
        let (mut first, mut response_ms, mut connections) = (None, None, 0);
        loop {
            let (facts, responded) = match self.connect(ticket).await {
                Ok(connected) => connected,
                // The server does not listen yet.
                Err(_) if started.elapsed() < RECONNECT_TIMEOUT => {
                    tokio::time::sleep(RETRY_INTERVAL).await;
                    continue;
                }
                Err(source) => {
                    return Err(LabError::WarmUp {
                        server: "a restarted server".to_owned(),
                        source,
                    });
                }
            };
            connections += 1;
            let took = milliseconds(responded - started);
            let response_ms = *response_ms.get_or_insert(took);
            let first = *first.get_or_insert_with(|| describe(facts.as_ref()));
            let label = facts.as_ref().and_then(|facts| facts.label().ok());
            if label.is_some_and(|label| label.kind == LabelKind::EarlyAccepted) {
                return Ok(Reconnection {
                    first,
                    connections,
                    response_ms,
                    early_ms: took,
                    server_cpu_ms: milliseconds(processor_time(&[server.id()])),
                });
            }
            if started.elapsed() > RECONNECT_TIMEOUT {
                let reason = "it accepted no early data".to_owned();
                return Err(LabError::Start { server: "a restarted firstflight", reason });
            }
        }
    }

    /// Makes a connection, and keeps its ticket. Returns what its packets show, and when the response
    /// started.
    async fn connect(
        &self,
        ticket: &mut Option<Ticket>,
    ) -> Result<(Option<FlowFacts>, Instant), ClientError> {
        let requested = RequestedConnection {
            kind: HandshakeKind::ZeroRtt,
            ..RequestedConnection::smallest_get(Transport::Tcp)
        };
        let target = Target::parse(&format!("https://{HOST}{}", requested.size.path()))?;
        let offer = ConnectionOffer {
            early_data: ticket.is_some(),
            ticket: ticket.clone(),
            ..ConnectionOffer::default()
        };
        self.network.tap().take();
        self.key_log.take();
        let (started, started_ns, mut local) = (Instant::now(), monotonic_ns(), None);
        let what = (&requested, &target);
        let exchanging = exchange(&self.connectors, offer, self.address, what, &LIMITS, &mut local);
        let timeout = ClientError::Timeout { phase: "a connection", after: SAMPLE_TIMEOUT };
        let completed: Exchange =
            tokio::time::timeout(SAMPLE_TIMEOUT, exchanging).await.unwrap_or(Err(timeout))?;
        *ticket = completed.tickets.last().cloned();
        let record = ClientRecord {
            slot: Slot { cell: 0, block: 0 },
            started_ns,
            local,
            client_random: None,
            server: self.address,
            outcome: Ok(completed.times),
        };
        let flows = Flows::new(&self.network.tap().take(), &self.key_log.take(), &HashSet::new());
        let facts = flows.flow(&record).map(|flow| flow.facts.clone());
        Ok((facts, started + completed.times.first_byte))
    }
}

/// Describes the handshake of a connection, as its packets show it.
fn describe(facts: Option<&FlowFacts>) -> &'static str {
    let label = facts.and_then(|facts| facts.label().ok());
    let handshake = facts.and_then(|facts| facts.tls.as_ref()?.kind);
    match (label.map(|label| label.kind), handshake) {
        (Some(LabelKind::EarlyAccepted), _) => "early data accepted",
        (Some(LabelKind::EarlyRefused), Some(Handshake::Resumed)) => "resumed, early data refused",
        (Some(LabelKind::EarlyRefused), _) => "full, early data refused",
        (Some(LabelKind::Resumed), _) => "resumed",
        (Some(LabelKind::Full), _) => "full",
        (None, _) => "unknown",
    }
}

fn quiet(mut command: Command) -> Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Below the ports of the servers under test.
const PORT: u16 = 4429;

/// With an empty store, early data is accepted after a recording window (47 s by default), which
/// restarts when a server loses its store. Other starts take a few milliseconds.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(180);
/// Shorter than a server's start.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
