//! The processor time that a connection costs both sides. It is measured separately from the
//! samples, one connection after the other, on the shortest path.

use std::net::IpAddr;
use std::time::Duration;

use firstflight_report::Cost;
use nix::sys::resource::{UsageWho, getrusage};

use firstflight_samples::{Counters, Counts, RequestedConnection, Slot, version_number};

use crate::plan::Plan;
use crate::results::cipher_name;
use crate::sampler::{SAMPLE_TIMEOUT, SampleJob, Sampler};
use crate::servers::RunningServer;
use crate::{ClientKind, HandshakeKind, LabError, ServerKind};

/// Connections of each measurement.
const CONNECTIONS: usize = 50;

/// How long a server may still work on a connection that its client has closed.
const SETTLE_TIME: Duration = Duration::from_millis(5);

/// Measures a row for each server, workload, transport, version, kind, group, cipher and certificate
/// of the plan.
pub(crate) async fn measure_costs(
    plan: &Plan,
    servers: &[RunningServer],
    sampler: &Sampler<'_>,
    shortest: IpAddr,
) -> Result<Vec<Cost>, LabError> {
    let mut rows: Vec<(ServerKind, RequestedConnection)> = Vec::new();
    let has_cost = |cell: &&crate::PlannedCell| {
        cell.requested.kind != HandshakeKind::Refused && cell.client == ClientKind::Firstflight
    };
    for cell in plan.cells.iter().filter(has_cost) {
        let requested = RequestedConnection { tfo: false, token: false, ..cell.requested };
        if !rows.iter().any(|(server, row)| *server == cell.server && same_row(row, &requested)) {
            rows.push((cell.server, requested));
        }
    }
    let mut costs = Vec::new();
    for (kind, requested) in rows {
        let server = servers.iter().find(|server| server.kind == kind);
        let server = server.expect("every server of the plan runs");
        costs.extend(measure_row(server, &requested, sampler, shortest).await?);
    }
    Ok(costs)
}

/// Whether two connections share a row: they differ at most in response size and HTTP version.
fn same_row(a: &RequestedConnection, b: &RequestedConnection) -> bool {
    let key = |requested: &RequestedConnection| {
        let RequestedConnection { workload, transport, version, kind, group, .. } = *requested;
        let RequestedConnection { cipher, certificate, compression, .. } = *requested;
        (workload, transport, version, kind, group, cipher, certificate, compression)
    };
    key(a) == key(b)
}

/// Measures a row. Returns `None` if no connection succeeded.
async fn measure_row(
    server: &RunningServer,
    requested: &RequestedConnection,
    sampler: &Sampler<'_>,
    address: IpAddr,
) -> Result<Option<Cost>, LabError> {
    // Fetches the first ticket. Each connection then fetches the ticket of the next one.
    sampler.warm_up(server.kind, requested, address).await?;
    tokio::time::sleep(SETTLE_TIME).await;
    let job = SampleJob {
        slot: Slot { cell: 0, block: 0 },
        client: ClientKind::Firstflight,
        server: server.kind,
        requested: *requested,
        address,
        limit: SAMPLE_TIMEOUT,
    };
    let mut client_counters = Counters::for_current_thread();
    let mut server_counters = Counters::for_processes(&server.pids());
    let read = |counters: &mut Option<Counters>| counters.as_mut().and_then(Counters::read);
    let before = (read(&mut client_counters), read(&mut server_counters));
    let (client_start, server_start) = (thread_processor_time(), server.processor_time());
    let mut succeeded = 0;
    for _ in 0..CONNECTIONS {
        succeeded += usize::from(sampler.sample(&job).await.outcome.is_ok());
    }
    let client_time = thread_processor_time().saturating_sub(client_start);
    tokio::time::sleep(SETTLE_TIME).await;
    let server_time = server.processor_time().saturating_sub(server_start);
    let after = (read(&mut client_counters), read(&mut server_counters));
    let each = |time: Duration| time.as_secs_f64() * 1e6 / succeeded.max(1) as f64;
    let per_connection = |after: Option<Counts>, before: Option<Counts>, of: fn(&Counts) -> f64| {
        Some((of(&after?) - of(&before?)) / succeeded.max(1) as f64)
    };
    Ok((succeeded > 0).then(|| Cost {
        server: server.kind.name().to_owned(),
        workload: requested.workload.name().to_owned(),
        transport: requested.transport.name().to_owned(),
        tls: version_number(requested.version).to_owned(),
        kind: requested.kind.name().to_owned(),
        group: requested.group.name().to_owned(),
        cipher: cipher_name(requested.cipher),
        certificate: requested.certificate_name(),
        connections: succeeded,
        client_us: each(client_time),
        server_us: each(server_time),
        client_cycles: per_connection(after.0, before.0, |c| c.cycles),
        client_instructions: per_connection(after.0, before.0, |c| c.instructions),
        server_cycles: per_connection(after.1, before.1, |c| c.cycles),
        server_instructions: per_connection(after.1, before.1, |c| c.instructions),
    }))
}

/// The processor time of the calling thread, including the kernel's work for it.
fn thread_processor_time() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_THREAD) else { return Duration::ZERO };
    let (user, system) = (usage.user_time(), usage.system_time());
    let duration = |time: nix::sys::time::TimeVal| {
        Duration::new(time.tv_sec() as u64, time.tv_usec() as u32 * 1_000)
    };
    duration(user) + duration(system)
}
