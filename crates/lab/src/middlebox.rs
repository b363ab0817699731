//! What middleboxes do to connections: each in a path of its own, beside one without. What comes
//! of it is a result by itself and enters no cell.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use firstflight_emulator::{Batch, CellSpec, Middlebox, Network, Profile};
use firstflight_report::{MiddleboxOutcome, figures};
use firstflight_samples::{ClientRecord, Flows, RequestedConnection, Slot, client_port, described};
use firstflight_tls::{KeyLogLines, Version};

use crate::sampler::{Job, Pace, Sampler};
use crate::servers::Running;
use crate::{
    Certificate, Client, Group, Http, Kind, LabError, ServerKind, Size, Transport, Workload,
};

/// Which middleboxes are tried, and how.
#[derive(Clone, Debug)]
pub struct MiddleboxConfig {
    /// The servers behind them.
    pub servers: Vec<ServerKind>,
    /// The network that they stand in.
    pub profile: Profile,
    /// Connections of each kind through each of them.
    pub tries: usize,
    /// How long the client waits for a response.
    pub patience: Duration,
}

impl MiddleboxConfig {
    /// All middleboxes, in a path of 20 ms, ten connections of each kind, 8 s each at most.
    pub fn new(servers: Vec<ServerKind>) -> Self {
        Self {
            servers,
            profile: Profile::plain(Duration::from_millis(20)),
            tries: 10,
            patience: Duration::from_secs(8),
        }
    }

    /// The paths: that without a middlebox, then one for each.
    pub(crate) fn profiles(&self) -> Vec<Profile> {
        let with = |middlebox: &Middlebox| {
            let mut profile = self.profile.clone();
            profile.name = middlebox.name().to_owned();
            profile.up.push(CellSpec::Middlebox(*middlebox));
            if middlebox.works_on_answers() {
                profile.down.insert(0, CellSpec::Middlebox(*middlebox));
            }
            profile
        };
        let plain = Profile { name: "no middlebox".to_owned(), ..self.profile.clone() };
        std::iter::once(plain).chain(Middlebox::ALL.iter().map(with)).collect()
    }
}

/// A kind of connection that middleboxes are known to harm.
const TRIED: [(Kind, bool, Group); 6] = [
    (Kind::ZeroRtt, true, Group::X25519),
    (Kind::ZeroRtt, false, Group::X25519),
    (Kind::Resumed, true, Group::X25519),
    (Kind::Full, false, Group::X25519MlKem768),
    // With a ticket the ClientHello takes more than one packet.
    (Kind::Resumed, false, Group::X25519MlKem768),
    (Kind::Full, false, Group::X25519),
];

fn asked((kind, tfo, group): (Kind, bool, Group)) -> RequestedConnection {
    RequestedConnection {
        workload: Workload::Get,
        transport: Transport::Tcp,
        version: Version::Tls13,
        kind,
        tfo,
        token: false,
        http: Http::One,
        size: Size::OneKib,
        group,
        certificate: Certificate::EcdsaP256,
    }
}

/// A trial in progress: its place among the outcomes is its cell.
pub(crate) struct Trials<'a> {
    pub config: &'a MiddleboxConfig,
    /// The place of the first of [`MiddleboxConfig::profiles`] among the network's paths.
    pub first_path: usize,
    pub network: &'a Network,
    pub servers: &'a [Running],
    pub sampler: &'a Sampler<'a>,
    pub key_log: &'a KeyLogLines,
}

/// How often a connection starts.
const EVERY: Duration = Duration::from_micros(4500);

impl Trials<'_> {
    /// Makes all connections and says what became of each kind at each middlebox.
    pub(crate) async fn run(&self) -> Result<Vec<MiddleboxOutcome>, LabError> {
        let rows = self.rows();
        self.fetch_cookies().await?;
        self.network.tap().take();
        self.key_log.take();
        let mut jobs: Vec<Job> = Vec::new();
        for block in 0..self.config.tries {
            for (cell, row) in rows.iter().enumerate() {
                jobs.push(Job {
                    slot: Slot { cell, block },
                    client: Client::Firstflight,
                    server: row.server,
                    asked: row.asked,
                    address: self.address(row.path)?,
                    limit: self.config.patience,
                });
            }
        }
        // Many hang for seconds, so none waits for another.
        let taken = self.sampler.take(jobs, Pace::Every(EVERY), &|| {}).await;
        let batch = self.network.tap().take();
        let flows = Flows::new(&batch, &self.key_log.take(), &HashSet::new());
        Ok(outcomes(self.config, &rows, &taken, &flows, &batch))
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        let names: Vec<String> = self.config.profiles().into_iter().map(|p| p.name).collect();
        for running in self.servers.iter().filter(|s| self.config.servers.contains(&s.kind)) {
            for (place, name) in names.iter().enumerate() {
                for asked in TRIED.map(asked) {
                    if running.abilities.cannot(&asked).is_none() {
                        let (server, name) = (running.kind, name.clone());
                        rows.push(Row { server, path: self.first_path + place, name, asked });
                    }
                }
            }
        }
        rows
    }

    /// One connection on each path, which brings the cookie where the middlebox lets it through.
    async fn fetch_cookies(&self) -> Result<(), LabError> {
        for running in self.servers.iter().filter(|s| self.config.servers.contains(&s.kind)) {
            for place in 0..self.config.profiles().len() {
                let address = self.address(self.first_path + place)?;
                self.sampler.warm_up(running.kind, &asked(TRIED[0]), address).await?;
            }
        }
        Ok(())
    }

    fn address(&self, path: usize) -> Result<IpAddr, LabError> {
        Ok(self.network.path(path)?.server.into())
    }
}

/// One kind of connection through one middlebox.
struct Row {
    server: ServerKind,
    path: usize,
    name: String,
    asked: RequestedConnection,
}

fn outcomes(
    config: &MiddleboxConfig,
    rows: &[Row],
    taken: &[ClientRecord],
    flows: &Flows,
    batch: &Batch,
) -> Vec<MiddleboxOutcome> {
    let mut outcomes: Vec<MiddleboxOutcome> = Vec::new();
    for (cell, row) in rows.iter().enumerate() {
        let mine: Vec<&ClientRecord> =
            taken.iter().filter(|taken| taken.slot.cell == cell).collect();
        let mut labels: BTreeMap<String, usize> = BTreeMap::new();
        let (mut times, mut failures, mut hit) = (Vec::new(), Vec::new(), 0);
        for taken in &mine {
            let flow = flows.flow(taken);
            let sample = described(taken, flow, 0);
            let late = sample.lateness_us > 1e3;
            let label = match (&taken.outcome, sample.label, flow) {
                (Ok(_), Some(label), _) => label,
                (Err(_), _, _) => "no answer".to_owned(),
                (Ok(_), None, Some(flow)) => {
                    flow.facts.label().map_or_else(|why| why.to_string(), |label| label.to_string())
                }
                (Ok(_), None, None) => "no packets".to_owned(),
            };
            *labels.entry(label).or_default() += 1;
            times.extend(sample.time_ms.filter(|_| !late));
            failures.extend(taken.outcome.as_ref().err().cloned());
            hit += hits(taken, batch, row.path);
        }
        let plain = outcomes.iter().find(|plain| {
            (&*plain.server, &*plain.kind, plain.tfo, &*plain.group)
                == (row.server.name(), row.asked.kind.name(), row.asked.tfo, row.asked.group.name())
        });
        outcomes.push(MiddleboxOutcome {
            middlebox: row.name.clone(),
            server: row.server.name().to_owned(),
            kind: row.asked.kind.name().to_owned(),
            tfo: row.asked.tfo,
            group: row.asked.group.name().to_owned(),
            rtt_ms: config.profile.rtt().as_secs_f64() * 1e3,
            tries: mine.len(),
            labels: labels.into_iter().collect(),
            undisturbed_p50_ms: plain.and_then(|plain| Some(plain.first_byte.as_ref()?.p50_ms)),
            first_byte: figures(times),
            failed: failures.len(),
            failure: failures.into_iter().next(),
            packets_hit: hit as f64 / mine.len().max(1) as f64,
        });
    }
    outcomes
}

/// Packets of a connection that a cell of its path dropped or altered.
fn hits(taken: &ClientRecord, batch: &Batch, path: usize) -> usize {
    let Some(local) = taken.local else { return 0 };
    let of_it = |packet: &&firstflight_emulator::CapturedPacket| {
        packet.path == path && client_port(&packet.frame, packet.direction) == Some(local.port())
    };
    let hit = |packet: &&firstflight_emulator::CapturedPacket| {
        packet.dropped_by.is_some() || packet.altered.is_some()
    };
    batch.packets.iter().filter(hit).filter(of_it).count()
}
