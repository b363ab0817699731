//! Tables of claims that were sent to a store without servers.

use std::collections::BTreeMap;

use serde::Deserialize;

/// A run with claims, as written by the example `store_load`.
#[derive(Deserialize)]
pub(crate) struct Run {
    name: String,
    store: String,
    replicas: u32,
    rate: Option<f64>,
    callers: Option<usize>,
    claims: u64,
    others: BTreeMap<String, u64>,
    claims_per_second: f64,
    p50_us: f64,
    p99_us: Option<f64>,
    p999_us: Option<f64>,
    claims_a_batch: f64,
    client_cpu_us: Option<f64>,
    store_cpu_us: f64,
    replica_cpu_us: Option<f64>,
    bytes_in: f64,
    bytes_out: f64,
    bytes_to_replicas: f64,
}

pub(crate) fn claims(title: &str, runs: &[Run]) {
    let store = runs.first().map_or("", |run| run.store.as_str());
    println!("{title} at {store}, one client thread (CPU and bytes for each claim)\n");
    println!(
        "{:<16} {:>9} {:>4} {:>8} {:>7} {:>7} {:>7} {:>6} {:>7} {:>7} {:>7}  bytes in, out, to replicas",
        "",
        "load",
        "WAIT",
        "claims/s",
        "p50 us",
        "p99 us",
        "p99.9",
        "batch",
        "client",
        "store",
        "replica"
    );
    for run in runs {
        println!(
            "{:<16} {:>9} {:>4} {:>8.0} {:>7.0} {:>7} {:>7} {:>6.1} {:>7} {:>7.2} {:>7}  {:.0}, {:.0}, {:.0}{}",
            run.name,
            load(run),
            run.replicas,
            run.claims_per_second,
            run.p50_us,
            optional(run.p99_us, 0),
            optional(run.p999_us, 0),
            run.claims_a_batch,
            optional(run.client_cpu_us, 2),
            run.store_cpu_us,
            optional(run.replica_cpu_us, 2),
            run.bytes_in,
            run.bytes_out,
            run.bytes_to_replicas,
            not_won(run),
        );
    }
    println!();
}

fn load(run: &Run) -> String {
    match (run.callers, run.rate) {
        (Some(callers), _) => format!("{callers} calls"),
        (None, Some(rate)) => format!("{rate:.0}/s"),
        (None, None) => String::new(),
    }
}

fn not_won(run: &Run) -> String {
    let others: u64 = run.others.values().sum();
    match others {
        0 => String::new(),
        _ => format!("; {others} of {} not won: {:?}", run.claims, run.others),
    }
}

fn optional(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
}

/// The memory of records, as written by the example `store_load`.
#[derive(Deserialize)]
pub(crate) struct Memory {
    steps: Vec<(u64, u64)>,
}

pub(crate) fn memory(memory: &Memory) {
    println!("Memory of the store, bytes a record (its tables double at powers of two):\n");
    for (held, bytes) in &memory.steps {
        println!("{held:>9} records  {:>6.1}", *bytes as f64 / *held as f64);
    }
    println!();
}
