//! Measures the cost of claims in a store: throughput, latency, processor time of client and store,
//! bytes. `scripts/cluster` runs it, and `docs/evidence/scale.md` uses its figures.
//!
//!     store_load STORE prime                     wait until claims count
//!     store_load STORE closed CALLERS SECONDS    closed loop: each caller claims one after the other
//!     store_load STORE open RATE SECONDS         open loop: claims at a fixed rate
//!     store_load STORE memory ENTRIES            memory of the store per record
//!     store_load STORE idle NODES SECONDS        cost of nodes without claims
//!
//! STORE is `unix:///PATH` or `redis://HOST:PORT`. Prints a line, or a JSON object with --json. Uses
//! one thread, as a node with one worker does.

mod drive;
mod measure;
mod watch;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Parser, Subcommand};
use firstflight_store::{Address, Store, StoreConfig, Topology};

use crate::drive::Load;

#[derive(Parser)]
struct Arguments {
    /// `unix:///PATH` or `redis://HOST:PORT`
    store: String,
    /// How many replicas must have a claim (WAIT)
    #[arg(long, default_value_t = 0)]
    replicas: u32,
    /// Connections to the store
    #[arg(long, default_value_t = 2)]
    connections: usize,
    /// How long a claim may take, in milliseconds
    #[arg(long, default_value_t = 1000.0)]
    budget_ms: f64,
    /// Seconds of load before the measurement; if at least the lifetime of a record, as many
    /// records expire as are written
    #[arg(long, default_value_t = 1.0)]
    settle_s: f64,
    /// Process id of a replica whose processor time is counted too
    #[arg(long)]
    replica_pid: Option<u32>,
    /// `name` in the JSON object
    #[arg(long, default_value = "")]
    name: String,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Waits until claims count.
    Prime,
    /// Closed loop: callers that each claim one flight after the other.
    Closed {
        /// Number of callers.
        callers: usize,
        /// Duration of the measurement.
        seconds: f64,
    },
    /// Open loop: claims at a fixed rate.
    Open {
        /// Claims per second.
        rate: f64,
        /// Duration of the measurement.
        seconds: f64,
    },
    /// Memory of the store per record.
    Memory {
        /// Number of records to add.
        entries: u64,
    },
    /// Cost of the heartbeats of nodes without claims.
    Idle {
        /// Number of nodes.
        nodes: usize,
        /// Duration of each of two measurements.
        seconds: f64,
    },
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(&arguments))
}

async fn run(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let config = config(arguments)?;
    let window = config.shared.recording_window();
    let store = Store::open(config, unix_micros)?;
    drive::until_claims_count(&store, window + Duration::from_secs(5)).await?;
    let load = match arguments.command {
        Command::Prime => return Ok(()),
        Command::Memory { entries } => {
            let memory = measure::memory(&store, &arguments.store, entries).await?;
            return show(&memory, arguments);
        }
        Command::Idle { nodes, seconds } => {
            let open_others = || -> Result<Vec<Store>, Box<dyn std::error::Error>> {
                let open = |_| Ok(Store::open(self::config(arguments)?, unix_micros)?);
                (1..nodes).map(open).collect()
            };
            let idle = measure::idle(arguments, nodes, seconds, open_others).await?;
            return show(&idle, arguments);
        }
        Command::Closed { callers, seconds } => Load::Closed { callers, seconds },
        Command::Open { rate, seconds } => Load::Open { rate, seconds },
    };
    let claims = measure::claims(&store, arguments, load).await?;
    show(&claims, arguments)
}

fn show(
    figures: &(impl std::fmt::Display + serde::Serialize),
    arguments: &Arguments,
) -> Result<(), Box<dyn std::error::Error>> {
    match arguments.json {
        true => println!("{}", serde_json::to_string(figures)?),
        false => println!("{figures}"),
    }
    Ok(())
}

fn config(arguments: &Arguments) -> Result<StoreConfig, Box<dyn std::error::Error>> {
    let address = match arguments.store.strip_prefix("unix://") {
        Some(path) => Address::Unix(path.into()),
        None => {
            let address = arguments.store.strip_prefix("redis://");
            let (host, port) = address.and_then(|address| address.split_once(':')).ok_or(
                "the store is neither unix:///PATH nor redis://HOST:PORT; give one of the two",
            )?;
            Address::Tcp(host.to_owned(), port.parse()?)
        }
    };
    let mut config = StoreConfig::new(Topology::Single(address));
    config.replicas = arguments.replicas;
    config.connections = arguments.connections;
    config.budget = Duration::try_from_secs_f64(arguments.budget_ms / 1e3)?;
    Ok(config)
}

fn unix_micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
