//! What a connection costs in processor time, on both sides: measured apart from the samples, one
//! connection after the other, on the shortest path.

use std::net::IpAddr;
use std::time::Duration;

use firstflight_report::Cost;
use nix::sys::resource::{UsageWho, getrusage};

use firstflight_samples::counters::{Counted, Counters};
use firstflight_samples::{RequestedConnection, Slot, version_number};

use crate::plan::Plan;
use crate::sampler::{Job, SAMPLE_TIMEOUT, Sampler};
use crate::servers::Running;
use crate::{Client, Kind, LabError, ServerKind};

/// Connections that are counted together.
const CONNECTIONS: usize = 50;

/// How long a server may still work on a connection that its client has closed.
const SETTLE: Duration = Duration::from_millis(5);

/// A row for each server, workload, transport, version, kind, group and certificate of the plan.
pub(crate) async fn count(
    plan: &Plan,
    servers: &[Running],
    sampler: &Sampler<'_>,
    shortest: IpAddr,
) -> Result<Vec<Cost>, LabError> {
    let mut rows: Vec<(ServerKind, RequestedConnection)> = Vec::new();
    let counted = |cell: &&crate::PlannedCell| {
        cell.asked.kind != Kind::Refused && cell.client == Client::Firstflight
    };
    for cell in plan.cells.iter().filter(counted) {
        let asked = RequestedConnection { tfo: false, token: false, ..cell.asked };
        if !rows.iter().any(|(server, row)| *server == cell.server && same_row(row, &asked)) {
            rows.push((cell.server, asked));
        }
    }
    let mut costs = Vec::new();
    for (kind, asked) in rows {
        let server = servers.iter().find(|server| server.kind == kind);
        let server = server.expect("every server of the plan runs");
        costs.extend(row(server, &asked, sampler, shortest).await?);
    }
    Ok(costs)
}

/// Whether two cells share a row: what is left is the size of the response and the HTTP version.
fn same_row(a: &RequestedConnection, b: &RequestedConnection) -> bool {
    let key = |asked: &RequestedConnection| {
        let RequestedConnection { workload, transport, version, kind, group, certificate, .. } =
            *asked;
        (workload, transport, version, kind, group, certificate)
    };
    key(a) == key(b)
}

/// `None` if not one connection succeeded.
async fn row(
    server: &Running,
    asked: &RequestedConnection,
    sampler: &Sampler<'_>,
    address: IpAddr,
) -> Result<Option<Cost>, LabError> {
    // A ticket to start with; each connection brings the next one's.
    sampler.warm_up(server.kind, asked, address).await?;
    tokio::time::sleep(SETTLE).await;
    let job = Job {
        slot: Slot { cell: 0, block: 0 },
        client: Client::Firstflight,
        server: server.kind,
        asked: *asked,
        address,
        limit: SAMPLE_TIMEOUT,
    };
    let (mut ours, mut theirs) = (Counters::of_this_thread(), Counters::of(&server.pids()));
    let counted = |ours: &mut Option<Counters>| ours.as_mut().and_then(Counters::read);
    let before = (counted(&mut ours), counted(&mut theirs));
    let (client, busy) = (this_thread(), server.processor_time());
    let mut done = 0;
    for _ in 0..CONNECTIONS {
        done += usize::from(sampler.sample(&job).await.outcome.is_ok());
    }
    let client = this_thread().saturating_sub(client);
    tokio::time::sleep(SETTLE).await;
    let busy = server.processor_time().saturating_sub(busy);
    let after = (counted(&mut ours), counted(&mut theirs));
    let each = |time: Duration| time.as_secs_f64() * 1e6 / done.max(1) as f64;
    let grown = |after: Option<Counted>, before: Option<Counted>, of: fn(&Counted) -> f64| {
        Some((of(&after?) - of(&before?)) / done.max(1) as f64)
    };
    Ok((done > 0).then(|| Cost {
        server: server.kind.name().to_owned(),
        workload: asked.workload.name().to_owned(),
        transport: asked.transport.name().to_owned(),
        tls: version_number(asked.version).to_owned(),
        kind: asked.kind.name().to_owned(),
        group: asked.group.name().to_owned(),
        certificate: asked.certificate.name().to_owned(),
        connections: done,
        client_us: each(client),
        server_us: each(busy),
        client_cycles: grown(after.0, before.0, |c| c.cycles),
        client_instructions: grown(after.0, before.0, |c| c.instructions),
        server_cycles: grown(after.1, before.1, |c| c.cycles),
        server_instructions: grown(after.1, before.1, |c| c.instructions),
    }))
}

/// The processor time of the calling thread, the kernel's work for it included.
pub(crate) fn this_thread() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_THREAD) else { return Duration::ZERO };
    let (user, system) = (usage.user_time(), usage.system_time());
    let micros = |time: nix::sys::time::TimeVal| {
        Duration::new(time.tv_sec() as u64, time.tv_usec() as u32 * 1_000)
    };
    micros(user) + micros(system)
}
