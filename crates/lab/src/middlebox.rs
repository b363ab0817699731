//! Connections through middleboxes, each on its own path, and on one path without any. The outcomes
//! are a separate part of the record and enter no cell.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use firstflight_emulator::{Batch, CellSpec, Middlebox, Network, Profile};
use firstflight_report::{Figures, MiddleboxOutcome};
use firstflight_samples::{
    ClientRecord, Flows, RequestedConnection, Slot, client_port, sample_from_flow,
};
use firstflight_tls::KeyLogLines;

use crate::sampler::{Pace, SampleJob, Sampler};
use crate::servers::RunningServer;
use crate::{ClientKind, Group, HandshakeKind, LabError, ServerKind, Transport};

/// How connections through middleboxes are measured.
#[derive(Clone, Debug)]
pub struct MiddleboxConfig {
    /// The servers behind the middleboxes.
    pub servers: Vec<ServerKind>,
    /// The network that contains the middlebox.
    pub profile: Profile,
    /// Connections of each kind through each middlebox.
    pub attempts: usize,
    /// How long the client waits for a response.
    pub response_timeout: Duration,
}

impl MiddleboxConfig {
    /// Ten connections of each kind through each middlebox, on a path of 20 ms, with a timeout of 8
    /// s.
    pub fn new(servers: Vec<ServerKind>) -> Self {
        Self {
            servers,
            profile: Profile::plain(Duration::from_millis(20)),
            attempts: 10,
            response_timeout: Duration::from_secs(8),
        }
    }

    /// The networks: one without a middlebox, then one for each middlebox.
    pub(crate) fn profiles(&self) -> Vec<Profile> {
        let with = |middlebox: &Middlebox| {
            let mut profile = self.profile.clone();
            profile.name = middlebox.name().to_owned();
            profile.up.push(CellSpec::Middlebox(*middlebox));
            if middlebox.alters_responses() {
                profile.down.insert(0, CellSpec::Middlebox(*middlebox));
            }
            profile
        };
        let plain = Profile { name: "no middlebox".to_owned(), ..self.profile.clone() };
        std::iter::once(plain).chain(Middlebox::ALL.iter().map(with)).collect()
    }
}

/// The connections that middleboxes are known to harm.
const TCP_CONNECTIONS: [(HandshakeKind, bool, Group); 6] = [
    (HandshakeKind::ZeroRtt, true, Group::X25519),
    (HandshakeKind::ZeroRtt, false, Group::X25519),
    (HandshakeKind::Resumed, true, Group::X25519),
    (HandshakeKind::Full, false, Group::X25519MlKem768),
    // With a ticket the ClientHello needs more than one packet.
    (HandshakeKind::Resumed, false, Group::X25519MlKem768),
    (HandshakeKind::Full, false, Group::X25519),
];

/// All connections: those over TCP, and over QUIC a return visit and a first visit.
fn connections() -> Vec<RequestedConnection> {
    let quic = [HandshakeKind::ZeroRtt, HandshakeKind::Full];
    let quic = quic.map(|kind| RequestedConnection {
        kind,
        ..RequestedConnection::smallest_get(Transport::Quic)
    });
    TCP_CONNECTIONS.map(requested_connection).into_iter().chain(quic).collect()
}

fn requested_connection((kind, tfo, group): (HandshakeKind, bool, Group)) -> RequestedConnection {
    RequestedConnection { kind, tfo, group, ..RequestedConnection::smallest_get(Transport::Tcp) }
}

/// The measurement of connections through middleboxes. The cell of a sample is the index of its
/// row.
pub(crate) struct MiddleboxRun<'a> {
    pub config: &'a MiddleboxConfig,
    /// The index of the first of [`MiddleboxConfig::profiles`] among the network's paths.
    pub first_path: usize,
    pub network: &'a Network,
    pub servers: &'a [RunningServer],
    pub sampler: &'a Sampler<'a>,
    pub key_log: &'a KeyLogLines,
}

/// How often a connection starts.
const START_INTERVAL: Duration = Duration::from_micros(4500);

impl MiddleboxRun<'_> {
    /// Makes all connections and returns the outcome of each kind at each middlebox.
    pub(crate) async fn run(&self) -> Result<Vec<MiddleboxOutcome>, LabError> {
        let rows = self.rows();
        self.fetch_cookies().await?;
        self.network.tap().take();
        self.key_log.take();
        let mut jobs: Vec<SampleJob> = Vec::new();
        for block in 0..self.config.attempts {
            for (cell, row) in rows.iter().enumerate() {
                jobs.push(SampleJob {
                    slot: Slot { cell, block },
                    client: ClientKind::Firstflight,
                    server: row.server,
                    requested: row.requested,
                    address: self.address(row.path)?,
                    limit: self.config.response_timeout,
                });
            }
        }
        // Many connections hang for seconds, so they overlap.
        let records = self.sampler.take_samples(jobs, Pace::Every(START_INTERVAL), &|| {}).await;
        let batch = self.network.tap().take();
        let flows = Flows::new(&batch, &self.key_log.take(), &HashSet::new());
        Ok(outcomes(self.config, &rows, &records, &flows, &batch))
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        let names: Vec<String> = self.config.profiles().into_iter().map(|p| p.name).collect();
        for running in self.servers.iter().filter(|s| self.config.servers.contains(&s.kind)) {
            for (index, name) in names.iter().enumerate() {
                for requested in connections() {
                    if running.capabilities.unsupported_reason(&requested).is_none() {
                        let (server, name) = (running.kind, name.clone());
                        rows.push(Row { server, path: self.first_path + index, name, requested });
                    }
                }
            }
        }
        rows
    }

    /// Makes one connection on each path, which fetches the TCP Fast Open cookie unless the
    /// middlebox prevents it.
    async fn fetch_cookies(&self) -> Result<(), LabError> {
        for running in self.servers.iter().filter(|s| self.config.servers.contains(&s.kind)) {
            for index in 0..self.config.profiles().len() {
                let address = self.address(self.first_path + index)?;
                self.sampler
                    .warm_up(running.kind, &requested_connection(TCP_CONNECTIONS[0]), address)
                    .await?;
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
    requested: RequestedConnection,
}

fn outcomes(
    config: &MiddleboxConfig,
    rows: &[Row],
    records: &[ClientRecord],
    flows: &Flows,
    batch: &Batch,
) -> Vec<MiddleboxOutcome> {
    let mut outcomes: Vec<MiddleboxOutcome> = Vec::new();
    for (cell, row) in rows.iter().enumerate() {
        let row_records: Vec<&ClientRecord> =
            records.iter().filter(|record| record.slot.cell == cell).collect();
        let mut labels: BTreeMap<String, usize> = BTreeMap::new();
        let (mut times, mut failures, mut affected) = (Vec::new(), Vec::new(), 0);
        for record in &row_records {
            let flow = flows.flow(record);
            let sample = sample_from_flow(record, flow, 0);
            let late = sample.lateness_us > 1e3;
            let label = match (&record.outcome, sample.label, flow) {
                (Ok(_), Some(label), _) => label,
                (Err(_), _, _) => "no response".to_owned(),
                (Ok(_), None, Some(flow)) => {
                    flow.facts.label().map_or_else(|why| why.to_string(), |label| label.to_string())
                }
                (Ok(_), None, None) => "no packets".to_owned(),
            };
            *labels.entry(label).or_default() += 1;
            times.extend(sample.time_ms.filter(|_| !late));
            failures.extend(record.outcome.as_ref().err().cloned());
            let client = record.local.or(flow.map(|flow| flow.facts.client));
            affected += client.map_or(0, |client| affected_packets(client, batch, row.path));
        }
        let plain = outcomes.iter().find(|plain| {
            (&*plain.server, &*plain.transport, &*plain.kind, plain.tfo, &*plain.group)
                == (
                    row.server.name(),
                    row.requested.transport.name(),
                    row.requested.kind.name(),
                    row.requested.tfo,
                    row.requested.group.name(),
                )
        });
        outcomes.push(MiddleboxOutcome {
            middlebox: row.name.clone(),
            server: row.server.name().to_owned(),
            transport: row.requested.transport.name().to_owned(),
            kind: row.requested.kind.name().to_owned(),
            tfo: row.requested.tfo,
            group: row.requested.group.name().to_owned(),
            rtt_ms: config.profile.rtt().as_secs_f64() * 1e3,
            tries: row_records.len(),
            labels: labels.into_iter().collect(),
            undisturbed_p50_ms: plain.and_then(|plain| Some(plain.first_byte.as_ref()?.p50_ms)),
            first_byte: Figures::from_values(times),
            failed: failures.len(),
            failure: failures.into_iter().next(),
            packets_hit: affected as f64 / row_records.len().max(1) as f64,
        });
    }
    outcomes
}

/// The number of packets of a client's connection that its path dropped or altered.
fn affected_packets(client: SocketAddr, batch: &Batch, path: usize) -> usize {
    let is_of_connection = |packet: &&firstflight_emulator::CapturedPacket| {
        packet.path == path && client_port(&packet.frame, packet.direction) == Some(client.port())
    };
    let is_affected = |packet: &&firstflight_emulator::CapturedPacket| {
        packet.dropped_by.is_some() || packet.altered.is_some()
    };
    batch.packets.iter().filter(is_affected).filter(is_of_connection).count()
}
