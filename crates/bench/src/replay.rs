//! The link as attacker: resends captured first flights byte for byte and counts, in the servers'
//! own logs, how often each was executed.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use firstflight_link::{Network, Resend};
use firstflight_report::Replay;
use firstflight_tls::{KeyLogLines, Version};
use firstflight_wire::{EarlyData, FlowFacts};

use crate::Workload;
use crate::judge::Judge;
use crate::lab::{LabConfig, Progress};
use crate::sampler::Sampler;
use crate::servers::{Ability, Asked, Running};
use crate::{BenchError, Certificate, Group, Http, Kind, ServerKind, Size};

/// What the attack is tried on: the smallest GET by early data.
const ASKED: Asked = Asked {
    workload: Workload::Get,
    version: Version::Tls13,
    kind: Kind::ZeroRtt,
    tfo: false,
    http: Http::One,
    size: Size::OneKib,
    group: Group::X25519,
    certificate: Certificate::EcdsaP256,
};

/// What keeps a server from being attacked, or the attack from being counted.
fn why_not(server: &Running) -> Option<&'static str> {
    let lack = server.abilities.cannot(&ASKED);
    lack.or_else(|| server.abilities.why_not(Ability::Counts))
}

/// The servers on which the attack is left out, a sentence each.
pub(crate) fn uncountable(servers: &[Running], flights: usize) -> Vec<String> {
    let servers = servers.iter().filter(|_| flights > 0);
    let sentence =
        |server: &Running| Some(format!("the attack on {}: {}", server.kind, why_not(server)?));
    servers.filter_map(sentence).collect()
}

/// A captured flight, and the mark by which the logs know its request.
pub(crate) struct Quarry {
    server: ServerKind,
    mark: String,
    bytes_received: u64,
    tries: usize,
}

impl Quarry {
    /// Whether it was captured at this server.
    pub(crate) fn is_of(&self, server: ServerKind) -> bool {
        self.server == server
    }
}

/// Captures flights at a server and resends each; the logs are read later, when they are whole.
pub(crate) async fn attack(
    server: &Running,
    sampler: &Sampler,
    network: &Network,
    key_log: &KeyLogLines,
    config: &LabConfig,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Vec<Quarry>, BenchError> {
    let mut quarries = Vec::new();
    if why_not(server).is_some() {
        return Ok(quarries);
    }
    for flight in 0..config.flights {
        let mark = format!("flight={}-{flight}-", server.kind);
        let facts = capture(server, sampler, network, key_log, &mark).await?;
        let address = SocketAddr::from((
            facts.server.ip(),
            server.kind.port(Workload::Get, ASKED.certificate),
        ));
        let attempts = network.attacker().resend(&Resend {
            server: address,
            flight: facts.first_flight.stream().unwrap_or_default(),
            tries: config.replays,
            concurrent: AT_ONCE,
            quiet: QUIET,
        })?;
        quarries.push(Quarry {
            server: server.kind,
            mark,
            bytes_received: attempts.iter().map(|attempt| attempt.bytes_received).sum(),
            tries: attempts.len(),
        });
        progress(Progress::Replaying {
            done: flight + 1,
            total: config.flights,
            server: server.kind,
        });
    }
    Ok(quarries)
}

/// The replays at each server that was attacked. Call it when the servers have ended, so that their
/// logs are whole.
pub(crate) fn count_all(
    servers: &[Running],
    quarries: &[Quarry],
) -> Result<Vec<Replay>, BenchError> {
    let attacked =
        servers.iter().filter(|server| quarries.iter().any(|quarry| quarry.is_of(server.kind)));
    attacked.map(|server| count(server, quarries)).collect()
}

fn count(server: &Running, quarries: &[Quarry]) -> Result<Replay, BenchError> {
    let mut replay = Replay {
        server: server.kind.name().to_owned(),
        flights: 0,
        tries: 0,
        executed: 0,
        bytes_per_try: 0.0,
        originals: 0,
    };
    let mut bytes = 0;
    for quarry in quarries.iter().filter(|quarry| quarry.is_of(server.kind)) {
        let executions = server.executions(&quarry.mark)?.unwrap_or_default();
        // Without the original in the log, a 0 would mean nothing.
        let Some(again) = executions.checked_sub(1) else {
            return Err(BenchError::Uncountable {
                server: server.kind.name().to_owned(),
                flight: quarry.mark.clone(),
                count: executions,
            });
        };
        replay.flights += 1;
        replay.originals += 1;
        replay.tries += quarry.tries;
        replay.executed += again;
        bytes += quarry.bytes_received;
    }
    replay.bytes_per_try = bytes as f64 / replay.tries.max(1) as f64;
    Ok(replay)
}

/// How many tries race each other.
const AT_ONCE: usize = 50;

/// How long a server may be silent before a try gives up on it.
const QUIET: Duration = Duration::from_millis(100);

/// One request by early data, and its first flight from the packets.
async fn capture(
    server: &Running,
    sampler: &Sampler,
    network: &Network,
    key_log: &KeyLogLines,
    mark: &str,
) -> Result<FlowFacts, BenchError> {
    let failed =
        |reason: String| BenchError::NoFlight { server: server.kind.name().to_owned(), reason };
    network.tap().take();
    let taken =
        sampler.early_get(server.kind, &ASKED, &format!("{}?{mark}", ASKED.size.path())).await?;
    let judge = Judge::new(&network.tap().take(), &key_log.take(), &HashSet::new());
    let flow = judge.flow(&taken).ok_or_else(|| failed("no packets".to_owned()))?;
    let facts = flow.facts.clone();
    let verdict = facts.tls.as_ref().map(|tls| tls.early.verdict);
    match verdict {
        Some(EarlyData::Accepted) if !facts.first_flight.is_empty() => Ok(facts),
        verdict => Err(failed(format!("its packets say {verdict:?}"))),
    }
}
