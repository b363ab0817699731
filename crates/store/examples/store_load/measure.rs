//! Figures of a run.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::time::Duration;

use firstflight_report::statistics::samples_needed;
use firstflight_store::Store;
use serde::Serialize;

use crate::Arguments;
use crate::drive::{Keys, Load, Outcomes, drive};
use crate::watch::{Info, Watch, processor_seconds};

/// The figures of a run with claims. Times are in microseconds.
#[derive(Serialize)]
pub(crate) struct Claims {
    name: String,
    store: String,
    connections: usize,
    replicas: u32,
    load: String,
    /// Requested claims per second; `None` in a closed loop.
    rate: Option<f64>,
    callers: Option<usize>,
    seconds: f64,
    claims: u64,
    won: u64,
    /// Claims that were not won, by reply.
    others: BTreeMap<String, u64>,
    claims_per_second: f64,
    p50_us: f64,
    p99_us: Option<f64>,
    p999_us: Option<f64>,
    max_us: f64,
    /// Claims per batch, measured by reads of the epoch: each batch reads it once.
    claims_a_batch: f64,
    /// Processor time of this process per claim; `None` at a fixed rate, where it waits busily.
    client_cpu_us: Option<f64>,
    /// Processor time of the store per claim.
    store_cpu_us: f64,
    replica_cpu_us: Option<f64>,
    /// Share of a processor that the store's process used.
    store_busy: f64,
    /// Bytes per claim by the store's count, without TCP and IP headers.
    bytes_in: f64,
    bytes_out: f64,
    /// Bytes per claim that the store sent to its replicas.
    bytes_to_replicas: f64,
    /// Records that expired during the run, per claim: 1 in a steady state.
    expired_a_claim: f64,
}

pub(crate) async fn claims(
    store: &Store,
    arguments: &Arguments,
    load: Load,
) -> Result<Claims, Box<dyn Error>> {
    let keys = Keys::new();
    let mut watch = Watch::open(&arguments.store)?;
    drive(store, &keys, load.with_seconds(arguments.settle_s)).await;
    let before = Moment::now(&mut watch, arguments.replica_pid)?;
    let outcomes = drive(store, &keys, load).await;
    let after = Moment::now(&mut watch, arguments.replica_pid)?;
    Ok(figures(arguments, load, &outcomes, &before, &after))
}

/// Counters of the store, and processor time in seconds, at one moment.
struct Moment {
    info: Info,
    client: f64,
    store: f64,
    replica: f64,
}

impl Moment {
    fn now(watch: &mut Watch, replica: Option<u32>) -> Result<Self, Box<dyn Error>> {
        let info = watch.info()?;
        let store = processor_seconds(info.text("process_id").parse()?);
        let client = processor_seconds(std::process::id());
        Ok(Self { info, client, store, replica: replica.map_or(0.0, processor_seconds) })
    }
}

fn figures(
    arguments: &Arguments,
    load: Load,
    outcomes: &Outcomes,
    before: &Moment,
    after: &Moment,
) -> Claims {
    let claims = outcomes.latency.len();
    let each = |total: f64| total / claims as f64;
    let grown = |field| each(after.info.number(field) - before.info.number(field));
    let calls = |command| after.info.calls(command) - before.info.calls(command);
    let micros = |from: f64, to: f64| each((to - from) * 1e6);
    let at = |p| outcomes.latency.value_at_quantile(p) as f64 / 1e3;
    let reported = |p| (claims >= samples_needed(p) as u64).then(|| at(p));
    let (callers, rate) = match load {
        Load::Closed { callers, .. } => (Some(callers), None),
        Load::Open { rate, .. } => (None, Some(rate)),
    };
    Claims {
        name: arguments.name.clone(),
        store: program(&after.info, &arguments.store),
        connections: arguments.connections,
        replicas: arguments.replicas,
        load: if rate.is_some() { "open" } else { "closed" }.to_owned(),
        rate,
        callers,
        seconds: outcomes.seconds,
        claims,
        won: outcomes.won,
        others: outcomes.others.clone(),
        claims_per_second: claims as f64 / outcomes.seconds,
        p50_us: at(0.5),
        p99_us: reported(0.99),
        p999_us: reported(0.999),
        max_us: outcomes.latency.max() as f64 / 1e3,
        claims_a_batch: calls("set") / calls("get"),
        client_cpu_us: callers.map(|_| micros(before.client, after.client)),
        store_cpu_us: micros(before.store, after.store),
        replica_cpu_us: arguments.replica_pid.map(|_| micros(before.replica, after.replica)),
        store_busy: (after.store - before.store) / outcomes.seconds,
        bytes_in: grown("total_net_input_bytes"),
        bytes_out: grown("total_net_output_bytes") - grown("total_net_repl_output_bytes"),
        bytes_to_replicas: grown("total_net_repl_output_bytes"),
        expired_a_claim: grown("expired_keys"),
    }
}

/// The store's program, and the transport to it.
fn program(info: &Info, url: &str) -> String {
    let transport = if url.starts_with("unix:") { "unix socket" } else { "TCP" };
    match info.text("valkey_version") {
        version if version.is_empty() => {
            format!("Redis {}, {transport}", info.text("redis_version"))
        }
        version => format!("Valkey {version}, {transport}"),
    }
}

impl fmt::Display for Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let optional = |value: Option<f64>| value.map_or("-".to_owned(), |us| format!("{us:.0}"));
        write!(
            f,
            "{} loop, {} connections, {} replicas: {:.0} claims/s, {} won of {}, {:?}; \
             us: p50 {:.0}, p99 {}, p99.9 {}, max {:.0}; {:.1} a batch; CPU us a claim: \
             client {}, store {:.2}, replica {}; store busy {:.0} %; bytes a claim: {:.0} in, {:.0} \
             out, {:.0} to replicas; {:.2} expired a claim",
            self.load,
            self.connections,
            self.replicas,
            self.claims_per_second,
            self.won,
            self.claims,
            self.others,
            self.p50_us,
            optional(self.p99_us),
            optional(self.p999_us),
            self.max_us,
            self.claims_a_batch,
            self.client_cpu_us.map_or("-".to_owned(), |us| format!("{us:.2}")),
            self.store_cpu_us,
            self.replica_cpu_us.map_or("-".to_owned(), |us| format!("{us:.2}")),
            self.store_busy * 100.0,
            self.bytes_in,
            self.bytes_out,
            self.bytes_to_replicas,
            self.expired_a_claim,
        )
    }
}

/// The memory that records take in the store.
#[derive(Serialize)]
pub(crate) struct Memory {
    store: String,
    /// The number of added records, and the bytes of all of them (`used_memory`), which jump
    /// whenever a table doubles.
    steps: Vec<(u64, u64)>,
    bytes_an_entry: f64,
}

/// Claims flights until the store has `entries` more records. Fails if records expire before that.
pub(crate) async fn memory(
    store: &Store,
    url: &str,
    entries: u64,
) -> Result<Memory, Box<dyn Error>> {
    let mut watch = Watch::open(url)?;
    let keys = Keys::new();
    let before = (watch.entries()?, watch.info()?.number("used_memory"));
    let mut steps: Vec<(u64, u64)> = Vec::new();
    for step in 1..=STEPS {
        let target = entries * step / STEPS;
        while watch.entries()?.saturating_sub(before.0) < target {
            drive(store, &keys, Load::Closed { callers: CALLERS, seconds: 0.05 }).await;
        }
        let held = watch.entries()?.saturating_sub(before.0);
        let bytes = watch.info()?.number("used_memory") - before.1;
        if steps.last().is_some_and(|(last, _)| held < *last) {
            return Err("records expire before all are there; use fewer".into());
        }
        steps.push((held, bytes as u64));
    }
    let (held, bytes) = steps[steps.len() - 1];
    let store = program(&watch.info()?, url);
    Ok(Memory { store, steps, bytes_an_entry: bytes as f64 / held as f64 })
}

const STEPS: u64 = 20;
const CALLERS: usize = 256;

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (held, bytes) in &self.steps {
            writeln!(f, "{held} records: {:.1} bytes each", *bytes as f64 / *held as f64)?;
        }
        write!(f, "{}: {:.1} bytes a record", self.store, self.bytes_an_entry)
    }
}

/// The cost of nodes without claims: each sends a heartbeat every quarter of a second.
#[derive(Serialize)]
pub(crate) struct Idle {
    store: String,
    nodes: usize,
    seconds: f64,
    commands_a_node_second: f64,
    /// Microseconds of the store's processor per node and second.
    store_cpu_us_a_node_second: f64,
    bytes_in_a_node_second: f64,
    bytes_out_a_node_second: f64,
}

/// Measures the difference between the one node that is open already and `nodes`, because the store
/// has work without nodes too. `open_others` opens the others.
pub(crate) async fn idle<T>(
    arguments: &Arguments,
    nodes: usize,
    seconds: f64,
    open_others: impl FnOnce() -> Result<T, Box<dyn Error>>,
) -> Result<Idle, Box<dyn Error>> {
    let mut watch = Watch::open(&arguments.store)?;
    let one_node = growth(&mut watch, seconds).await?;
    let _others = open_others()?;
    // Wait until all are connected.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let all_nodes = growth(&mut watch, seconds).await?;
    let others = nodes.saturating_sub(1).max(1) as f64;
    let [commands, cpu, bytes_in, bytes_out] =
        std::array::from_fn(|figure| (all_nodes[figure] - one_node[figure]) / seconds / others);
    Ok(Idle {
        store: program(&watch.info()?, &arguments.store),
        nodes,
        seconds,
        commands_a_node_second: commands,
        store_cpu_us_a_node_second: cpu,
        bytes_in_a_node_second: bytes_in,
        bytes_out_a_node_second: bytes_out,
    })
}

/// Returns commands, microseconds of the store's processor, bytes in and bytes out of an interval.
async fn growth(watch: &mut Watch, seconds: f64) -> Result<[f64; 4], Box<dyn Error>> {
    let before = Moment::now(watch, None)?;
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    let after = Moment::now(watch, None)?;
    let grown = |field| after.info.number(field) - before.info.number(field);
    Ok([
        grown("total_commands_processed"),
        (after.store - before.store) * 1e6,
        grown("total_net_input_bytes"),
        grown("total_net_output_bytes"),
    ])
}

impl fmt::Display for Idle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} nodes without claims, each a second: {:.1} commands, {:.1} us of the store's \
             processor, {:.0} bytes in, {:.0} bytes out",
            self.nodes,
            self.commands_a_node_second,
            self.store_cpu_us_a_node_second,
            self.bytes_in_a_node_second,
            self.bytes_out_a_node_second,
        )
    }
}
