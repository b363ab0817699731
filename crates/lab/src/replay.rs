//! The replay attack: captures first flights, resends them byte for byte, and counts in the
//! servers' logs how often each was executed.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use firstflight_emulator::{Attempt, ConnectionEnd, Network, Resend, ResendDatagrams};
use firstflight_packets::{EarlyData, FirstFlight, FlowFacts};
use firstflight_report::Replay;
use firstflight_samples::{Flows, RequestedConnection};
use firstflight_tls::KeyLogLines;

use crate::Workload;
use crate::config::{LabConfig, Progress};
use crate::error::FailedStages;
use crate::sampler::Sampler;
use crate::servers::{Capability, RunningServer};
use crate::{HandshakeKind, LabError, ServerKind, Transport};

/// The attacked connection: the smallest GET, sent as early data.
fn attacked_connection(transport: Transport) -> RequestedConnection {
    RequestedConnection {
        kind: HandshakeKind::ZeroRtt,
        ..RequestedConnection::smallest_get(transport)
    }
}

/// Says why a server cannot be attacked, or why its replays cannot be counted.
fn skip_reason(server: &RunningServer, transport: Transport) -> Option<&'static str> {
    let unsupported = server.capabilities.unsupported_reason(&attacked_connection(transport));
    unsupported.or_else(|| server.capabilities.missing_reason(Capability::RequestLog))
}

/// Says on which servers the attack is left out, a sentence each. Servers without HTTP/3 are not
/// listed for it.
pub(crate) fn skipped_attacks(servers: &[RunningServer], flights: usize) -> Vec<String> {
    let mut sentences = Vec::new();
    for server in servers.iter().filter(|_| flights > 0) {
        let reason = |transport| skip_reason(server, transport);
        let name = |transport| attack_name(server.kind, transport);
        sentences
            .extend(reason(Transport::Tcp).map(|why| format!("{}: {why}", name(Transport::Tcp))));
        let quic =
            reason(Transport::Quic).filter(|_| server.capabilities.supports(Capability::Http3));
        sentences.extend(quic.map(|why| format!("{}: {why}", name(Transport::Quic))));
    }
    sentences
}

pub(crate) fn attack_name(server: ServerKind, transport: Transport) -> String {
    match transport {
        Transport::Tcp => format!("the attack on {server}"),
        Transport::Quic => format!("the attack on {server} over QUIC"),
    }
}

/// A captured first flight, and the mark that identifies its request in the server's log.
pub(crate) struct CapturedFlight {
    server: ServerKind,
    transport: Transport,
    mark: String,
    bytes_received: u64,
    attempts: usize,
    /// Further attempts that did not reach the server.
    failed: usize,
}

impl CapturedFlight {
    fn new(server: ServerKind, transport: Transport, mark: String) -> Self {
        Self { server, transport, mark, bytes_received: 0, attempts: 0, failed: 0 }
    }

    /// Whether it was captured at this server over this transport.
    fn is_from(&self, server: ServerKind, transport: Transport) -> bool {
        (self.server, self.transport) == (server, transport)
    }

    fn add(&mut self, attempts: &[Attempt]) {
        let has_failed = |attempt: &&Attempt| matches!(attempt.end, ConnectionEnd::Failed(_));
        let failed = attempts.iter().filter(has_failed).count();
        self.failed += failed;
        self.attempts += attempts.len() - failed;
        self.bytes_received += attempts.iter().map(|attempt| attempt.bytes_received).sum::<u64>();
    }
}

/// Captures flights at a server and resends each. The server's log is read after the server has
/// stopped, when it is complete.
pub(crate) async fn attack(
    (server, transport): (&RunningServer, Transport),
    sampler: &Sampler<'_>,
    network: &Network,
    key_log: &KeyLogLines,
    config: &LabConfig,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Vec<CapturedFlight>, LabError> {
    let mut captured = Vec::new();
    if skip_reason(server, transport).is_some() {
        return Ok(captured);
    }
    let mut later = Vec::new();
    for flight in 0..config.flights {
        let mark = format!("flight={}-{transport}-{flight}-", server.kind);
        let requested = attacked_connection(transport);
        let facts = capture((server, &requested), sampler, network, key_log, &mark).await?;
        let port = server.kind.port(Workload::Get, requested.certificate);
        let address = SocketAddr::from((facts.server.ip(), port));
        let (immediate, delayed) = match transport {
            Transport::Tcp => (config.replays, 0),
            Transport::Quic => (config.replays / 2, config.replays - config.replays / 2),
        };
        let mut sent = CapturedFlight::new(server.kind, transport, mark);
        sent.add(&resend(network, address, &facts, immediate)?);
        captured.push(sent);
        later.extend((delayed > 0).then_some((flight, address, facts, delayed)));
        progress(Progress::Replaying {
            done: flight + 1,
            total: config.flights,
            server: server.kind,
        });
    }
    if !later.is_empty() {
        tokio::time::sleep(CONNECTION_STATE_TIMEOUT).await;
    }
    for (flight, address, facts, attempts) in later {
        captured[flight].add(&resend(network, address, &facts, attempts)?);
    }
    Ok(captured)
}

/// Resends a first flight `attempts` times.
fn resend(
    network: &Network,
    server: SocketAddr,
    facts: &FlowFacts,
    attempts: usize,
) -> Result<Vec<Attempt>, LabError> {
    let (concurrent, idle_timeout) = (CONCURRENT_ATTEMPTS, SILENCE_TIMEOUT);
    let attacker = network.attacker();
    Ok(match &facts.first_flight {
        FirstFlight::Stream(flight) => {
            attacker.resend(&Resend { server, flight, attempts, concurrent, idle_timeout })?
        }
        FirstFlight::Datagrams(flight) => attacker.resend_datagrams(&ResendDatagrams {
            server,
            flight,
            attempts,
            concurrent,
            idle_timeout,
        })?,
    })
}

/// Removes the flights of servers that have ended. Copies are not executed there, which says
/// nothing about the server's replay protection.
pub(crate) fn drop_ended(
    servers: &[RunningServer],
    captured: &mut Vec<CapturedFlight>,
    failed: &mut FailedStages,
) {
    for server in servers {
        let attacked = captured.iter().any(|flight| flight.server == server.kind);
        if let Err(error) = server.ensure_running()
            && attacked
        {
            failed.add(&format!("the attack on {}", server.kind), &error);
            captured.retain(|flight| flight.server != server.kind);
        }
    }
}

/// Counts the replays at each attacked server, over TCP and over QUIC. Must be called after the
/// servers have stopped, so that their logs are complete.
pub(crate) fn count_replays(
    servers: &[RunningServer],
    captured: &[CapturedFlight],
    failed: &mut FailedStages,
) -> Vec<Replay> {
    let all = servers.iter().flat_map(|server| Transport::ALL.map(|transport| (server, transport)));
    let attacked = all.filter(|(server, transport)| {
        captured.iter().any(|flight| flight.is_from(server.kind, *transport))
    });
    let counted = |(server, transport): (&RunningServer, Transport)| {
        let replay = count(server, transport, captured).map(Some);
        failed.attempt(&attack_name(server.kind, transport), replay)
    };
    attacked.filter_map(counted).collect()
}

fn count(
    server: &RunningServer,
    transport: Transport,
    captured: &[CapturedFlight],
) -> Result<Replay, LabError> {
    let mut replay = Replay {
        server: server.kind.name().to_owned(),
        transport: transport.name().to_owned(),
        flights: 0,
        tries: 0,
        failed: 0,
        executed: 0,
        bytes_per_try: 0.0,
        originals: 0,
    };
    let mut bytes = 0;
    for flight in captured.iter().filter(|flight| flight.is_from(server.kind, transport)) {
        let executions = server.executions(&flight.mark)?.unwrap_or_default();
        // A count of 0 is meaningful only if the log shows the original.
        let Some(replayed) = executions.checked_sub(1) else {
            return Err(LabError::Uncountable {
                server: server.kind.name().to_owned(),
                flight: flight.mark.clone(),
                count: executions,
            });
        };
        replay.flights += 1;
        replay.originals += 1;
        replay.tries += flight.attempts;
        replay.failed += flight.failed;
        replay.executed += replayed;
        bytes += flight.bytes_received;
    }
    replay.bytes_per_try = bytes as f64 / replay.tries.max(1) as f64;
    Ok(replay)
}

/// Copies that are sent at the same time, to race each other.
const CONCURRENT_ATTEMPTS: usize = 50;

/// How long servers may keep the state of a closed QUIC connection. Until then they attribute a
/// copy of its first flight to that connection by its connection ID, and drop it. quic-go does so
/// for 5 s.
const CONNECTION_STATE_TIMEOUT: Duration = Duration::from_secs(6);

/// How long a server may be silent before an attempt ends.
const SILENCE_TIMEOUT: Duration = Duration::from_millis(100);

/// Makes a request as early data, and takes its first flight from the packets.
async fn capture(
    (server, requested): (&RunningServer, &RequestedConnection),
    sampler: &Sampler<'_>,
    network: &Network,
    key_log: &KeyLogLines,
    mark: &str,
) -> Result<FlowFacts, LabError> {
    let failed =
        |reason: String| LabError::NoFlight { server: server.kind.name().to_owned(), reason };
    network.tap().take();
    let record = sampler
        .early_get(server.kind, requested, &format!("{}?{mark}", requested.size.path()))
        .await?;
    let flows = Flows::new(&network.tap().take(), &key_log.take(), &HashSet::new());
    let flow = flows.flow(&record).ok_or_else(|| failed("no packets".to_owned()))?;
    let facts = flow.facts.clone();
    let verdict = facts.tls.as_ref().map(|tls| tls.early.outcome);
    match verdict {
        Some(EarlyData::Accepted) if !facts.first_flight.is_empty() => Ok(facts),
        Some(EarlyData::Refused) => Err(failed("the server refused the early data".to_owned())),
        verdict => Err(failed(format!("its packets do not show early data ({verdict:?})"))),
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn attempts_that_did_not_reach_the_server_are_counted_separately() {
        let ended = |end| Attempt { bytes_received: 8, end };
        let mut flight =
            CapturedFlight::new(ServerKind::Nginx, Transport::Tcp, "flight".to_owned());
        flight.add(&[
            ended(ConnectionEnd::Closed),
            ended(ConnectionEnd::Reset),
            ended(ConnectionEnd::Failed(ErrorKind::ConnectionRefused)),
        ]);
        assert_eq!((flight.attempts, flight.failed), (2, 1));
    }
}
