//! The link as attacker: resends captured first flights byte for byte and counts, in the servers'
//! own logs, how often each was executed.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use firstflight_emulator::{Attempt, Network, Resend, ResendDatagrams};
use firstflight_packets::{EarlyData, FirstFlight, FlowFacts};
use firstflight_report::Replay;
use firstflight_samples::{Flows, RequestedConnection};
use firstflight_tls::{KeyLogLines, Version};

use crate::Workload;
use crate::config::LabConfig;
use crate::progress::Progress;
use crate::sampler::Sampler;
use crate::servers::{Ability, Running};
use crate::{Certificate, Group, Http, Kind, LabError, ServerKind, Size, Transport};

/// What the attack is tried on: the smallest GET by early data.
fn asked(transport: Transport) -> RequestedConnection {
    RequestedConnection {
        workload: Workload::Get,
        transport,
        version: Version::Tls13,
        kind: Kind::ZeroRtt,
        tfo: false,
        token: false,
        http: match transport {
            Transport::Tcp => Http::One,
            Transport::Quic => Http::Three,
        },
        size: Size::OneKib,
        group: Group::X25519,
        certificate: Certificate::EcdsaP256,
    }
}

/// What keeps a server from being attacked, or the attack from being counted.
fn why_not(server: &Running, transport: Transport) -> Option<&'static str> {
    let lack = server.abilities.cannot(&asked(transport));
    lack.or_else(|| server.abilities.why_not(Ability::Counts))
}

/// The servers on which the attack is left out, a sentence each. That one speaks no HTTP/3 goes
/// without saying here.
pub(crate) fn uncountable(servers: &[Running], flights: usize) -> Vec<String> {
    let mut sentences = Vec::new();
    for server in servers.iter().filter(|_| flights > 0) {
        let over = |transport| why_not(server, transport);
        sentences.extend(
            over(Transport::Tcp).map(|why| format!("the attack on {}: {why}", server.kind)),
        );
        let quic = over(Transport::Quic).filter(|_| server.abilities.can(Ability::Http3));
        sentences.extend(quic.map(|why| format!("the attack on {} over QUIC: {why}", server.kind)));
    }
    sentences
}

/// A captured flight, and the mark by which the logs know its request.
pub(crate) struct CapturedFlight {
    server: ServerKind,
    transport: Transport,
    mark: String,
    bytes_received: u64,
    tries: usize,
}

impl CapturedFlight {
    /// Whether it was captured at this server, over this.
    fn is_of(&self, server: ServerKind, transport: Transport) -> bool {
        (self.server, self.transport) == (server, transport)
    }

    fn add(&mut self, attempts: &[Attempt]) {
        self.tries += attempts.len();
        self.bytes_received += attempts.iter().map(|attempt| attempt.bytes_received).sum::<u64>();
    }
}

/// Captures flights at a server and resends each; the logs are read later, when they are whole.
pub(crate) async fn attack(
    (server, transport): (&Running, Transport),
    sampler: &Sampler<'_>,
    network: &Network,
    key_log: &KeyLogLines,
    config: &LabConfig,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Vec<CapturedFlight>, LabError> {
    let mut captured = Vec::new();
    if why_not(server, transport).is_some() {
        return Ok(captured);
    }
    let mut later = Vec::new();
    for flight in 0..config.flights {
        let mark = format!("flight={}-{transport}-{flight}-", server.kind);
        let asked = asked(transport);
        let facts = capture((server, &asked), sampler, network, key_log, &mark).await?;
        let port = server.kind.port(Workload::Get, asked.certificate);
        let address = SocketAddr::from((facts.server.ip(), port));
        let (now, then) = match transport {
            Transport::Tcp => (config.replays, 0),
            Transport::Quic => (config.replays / 2, config.replays - config.replays / 2),
        };
        let mut one =
            CapturedFlight { server: server.kind, transport, mark, bytes_received: 0, tries: 0 };
        one.add(&resend(network, address, &facts, now)?);
        captured.push(one);
        later.extend((then > 0).then_some((flight, address, facts, then)));
        progress(Progress::Replaying {
            done: flight + 1,
            total: config.flights,
            server: server.kind,
        });
    }
    if !later.is_empty() {
        tokio::time::sleep(FORGOTTEN).await;
    }
    for (flight, address, facts, tries) in later {
        captured[flight].add(&resend(network, address, &facts, tries)?);
    }
    Ok(captured)
}

/// Sends a first flight again, as often as requested.
fn resend(
    network: &Network,
    server: SocketAddr,
    facts: &FlowFacts,
    tries: usize,
) -> Result<Vec<Attempt>, LabError> {
    let (concurrent, quiet) = (AT_ONCE, QUIET);
    let attacker = network.attacker();
    Ok(match &facts.first_flight {
        FirstFlight::Stream(flight) => {
            attacker.resend(&Resend { server, flight, tries, concurrent, quiet })?
        }
        FirstFlight::Datagrams(flight) => attacker.resend_datagrams(&ResendDatagrams {
            server,
            flight,
            tries,
            concurrent,
            quiet,
        })?,
    })
}

/// The replays at each server that was attacked, over TCP and over QUIC. Call it when the servers
/// have ended, so that their logs are whole.
pub(crate) fn count_all(
    servers: &[Running],
    captured: &[CapturedFlight],
) -> Result<Vec<Replay>, LabError> {
    let all = servers.iter().flat_map(|server| Transport::ALL.map(|over| (server, over)));
    let attacked =
        all.filter(|(server, over)| captured.iter().any(|flight| flight.is_of(server.kind, *over)));
    attacked.map(|(server, over)| count(server, over, captured)).collect()
}

fn count(
    server: &Running,
    transport: Transport,
    captured: &[CapturedFlight],
) -> Result<Replay, LabError> {
    let mut replay = Replay {
        server: server.kind.name().to_owned(),
        transport: transport.name().to_owned(),
        flights: 0,
        tries: 0,
        executed: 0,
        bytes_per_try: 0.0,
        originals: 0,
    };
    let mut bytes = 0;
    for flight in captured.iter().filter(|flight| flight.is_of(server.kind, transport)) {
        let executions = server.executions(&flight.mark)?.unwrap_or_default();
        // Without the original in the log, a 0 would mean nothing.
        let Some(again) = executions.checked_sub(1) else {
            return Err(LabError::Uncountable {
                server: server.kind.name().to_owned(),
                flight: flight.mark.clone(),
                count: executions,
            });
        };
        replay.flights += 1;
        replay.originals += 1;
        replay.tries += flight.tries;
        replay.executed += again;
        bytes += flight.bytes_received;
    }
    replay.bytes_per_try = bytes as f64 / replay.tries.max(1) as f64;
    Ok(replay)
}

/// How many tries race each other.
const AT_ONCE: usize = 50;

/// How long servers may remember a QUIC connection that has ended. Until then they take a copy of
/// its first flight for packets of its own, by the connection ID, and look no further; quic-go does
/// so for 5 s.
const FORGOTTEN: Duration = Duration::from_secs(6);

/// How long a server may be silent before a try gives up on it.
const QUIET: Duration = Duration::from_millis(100);

/// One request by early data, and its first flight from the packets.
async fn capture(
    (server, asked): (&Running, &RequestedConnection),
    sampler: &Sampler<'_>,
    network: &Network,
    key_log: &KeyLogLines,
    mark: &str,
) -> Result<FlowFacts, LabError> {
    let failed =
        |reason: String| LabError::NoFlight { server: server.kind.name().to_owned(), reason };
    network.tap().take();
    let taken =
        sampler.early_get(server.kind, asked, &format!("{}?{mark}", asked.size.path())).await?;
    let flows = Flows::new(&network.tap().take(), &key_log.take(), &HashSet::new());
    let flow = flows.flow(&taken).ok_or_else(|| failed("no packets".to_owned()))?;
    let facts = flow.facts.clone();
    let verdict = facts.tls.as_ref().map(|tls| tls.early.verdict);
    match verdict {
        Some(EarlyData::Accepted) if !facts.first_flight.is_empty() => Ok(facts),
        verdict => Err(failed(format!("its packets say {verdict:?}"))),
    }
}
