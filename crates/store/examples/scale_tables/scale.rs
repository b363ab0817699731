//! The cost of a shared register at sizes that cannot be measured on one machine, calculated from
//! measurements on one machine: the tables behind `docs/evidence/scale.md`.

use std::error::Error;
use std::path::Path;

use serde::Deserialize;

use crate::costs::{Costs, Run};
use crate::page::{Table, markdown};
use crate::units::{bits, bytes, short};
use crate::{read, runs};

/// 0-RTT connections a second, in all regions together.
const RATES: [f64; 3] = [1e4, 1e6, 1e7];
/// Number of regions, with equal shares of the connections.
const REGIONS: [f64; 3] = [1.0, 10.0, 50.0];
/// 0-RTT connections a second of one node.
const RATE_PER_NODE: f64 = 1e4;
/// Connections of a node to each master.
const CONNECTIONS_PER_MASTER: f64 = 2.0;
/// Average load of a store process that leaves room for peaks and for a failed peer.
const MAX_LOAD: f64 = 0.5;
/// Round trip from a node to the store of its region, in seconds.
const STORE_RTT: f64 = 0.5e-3;
/// Round trip between regions, as in the profile `cross-region` of docs/measure/networks.md, in
/// seconds.
const CROSS_REGION_RTT: f64 = 70e-3;
const SECONDS_PER_MONTH: f64 = 30.0 * 86_400.0;

/// Returns the tables with their names in the page.
pub(crate) fn tables(directory: &Path) -> Result<Vec<Table>, Box<dyn Error>> {
    let claim_runs: Vec<Run> = runs(&directory.join("claims.jsonl"))?;
    let memory = read(&directory.join("memory.json"))?;
    let idle = read(&directory.join("idle.json"))?;
    let costs = Costs::of(&claim_runs, &memory, &idle).ok_or("too few runs named \"one lane\"")?;
    let mut tables = vec![
        ("claim", costs.table()),
        ("regions", regions(&costs)),
        ("world", world(&costs)),
        ("distance", distance()),
    ];
    let waits = directory.join("wait.jsonl");
    if waits.exists() {
        tables.push(("wait", replication(&runs(&waits)?)));
    }
    let single = directory.join("single.json");
    if single.exists() {
        tables.push(("single", read::<Single>(&single)?.table(&costs)));
    }
    Ok(tables)
}

/// The masters that the register of a region needs.
struct Sizing {
    masters: f64,
    /// Claims in a batch.
    batch: f64,
    /// How busy heartbeats keep each master.
    heartbeats: f64,
}

impl Sizing {
    /// Finds the smallest number of masters that can each handle their share of the claims, and the
    /// heartbeats of all nodes of the region. Returns `None` if the heartbeats leave no room for
    /// claims, or [`MAX_MASTERS`] are not enough.
    fn of(costs: &Costs, rate: f64, nodes: f64) -> Option<Self> {
        let heartbeats = nodes * costs.heartbeat_us / 1e6;
        let room = MAX_LOAD - heartbeats;
        let batch_if_enough = |masters: f64| {
            let batch = (rate / nodes / CONNECTIONS_PER_MASTER / masters * STORE_RTT).max(1.0);
            (rate / masters * costs.store_us(batch) / 1e6 <= room).then_some(batch)
        };
        (room > 0.0).then_some(())?;
        (1..=MAX_MASTERS).map(f64::from).find_map(|masters| {
            batch_if_enough(masters).map(|batch| Self { masters, batch, heartbeats })
        })
    }
}

const MAX_MASTERS: u32 = 16_384;

fn regions(costs: &Costs) -> String {
    let head = [
        "0-RTT/s in all",
        "regions",
        "nodes a region",
        "claims/s a region",
        "claims a batch",
        "masters a region",
        "heartbeats keep a master busy",
        "records a region",
        "memory a region",
        "traffic in a region",
    ];
    let mut rows = Vec::new();
    for rate in RATES {
        for regions in REGIONS.into_iter().filter(|regions| rate / regions >= MIN_CLAIMS_PER_SECOND)
        {
            let claims = rate / regions;
            let nodes = (claims / RATE_PER_NODE).ceil();
            let Some(sizing) = Sizing::of(costs, claims, nodes) else {
                let none = || "-".to_owned();
                let [rate, nodes, claims] = [rate, nodes, claims].map(short);
                let cells = [none(), "none is enough".to_owned(), none(), none(), none(), none()];
                let [a, b, c, d, e, f] = cells;
                rows.push([rate, regions.to_string(), nodes, claims, a, b, c, d, e, f]);
                continue;
            };
            let records = claims * costs.life;
            let traffic = claims * costs.bytes.at(sizing.batch)
                + nodes * sizing.masters * costs.heartbeat_bytes;
            rows.push([
                short(rate),
                regions.to_string(),
                short(nodes),
                short(claims),
                format!("{:.1}", sizing.batch),
                sizing.masters.to_string(),
                format!("{:.1} %", sizing.heartbeats * 100.0),
                short(records),
                bytes(records * costs.record_bytes),
                bits(traffic),
            ]);
        }
    }
    markdown(head, &rows)
}

/// Regions with fewer claims a second have no row.
const MIN_CLAIMS_PER_SECOND: f64 = 1e3;

/// One register for all regions: the traffic that the other regions send to it.
fn world(costs: &Costs) -> String {
    let mut rows = Vec::new();
    for rate in RATES {
        for regions in REGIONS.into_iter().filter(|regions| *regions > 1.0) {
            // Claims that arrive during the long round trip of a batch form the next batch.
            let batch = (RATE_PER_NODE / CONNECTIONS_PER_MASTER * CROSS_REGION_RTT).max(1.0);
            let sent = rate * (regions - 1.0) / regions * costs.bytes.at(batch);
            rows.push([
                short(rate),
                regions.to_string(),
                bits(sent),
                bytes(sent * SECONDS_PER_MONTH),
            ]);
        }
    }
    markdown(["0-RTT/s in all", "regions", "between regions", "a month"], &rows)
}

/// The round trip that 0-RTT saves, minus the round trip of the claim before the response.
fn distance() -> String {
    let row = |client: f64| {
        let gains = [0.5, 2.0, 5.0, 20.0, 70.0].map(|store| format!("{:+.1}", client - store));
        let [a, b, c, d, e] = gains;
        [client.to_string(), a, b, c, d, e]
    };
    let head =
        ["client's RTT", "store 0.5 ms away", "2 ms", "5 ms", "20 ms", "70 ms (another region)"];
    markdown(head, &[5.0, 20.0, 50.0, 100.0].map(row))
}

fn replication(runs: &[Run]) -> String {
    let row = |run: &Run| {
        [
            run.name.clone(),
            run.callers.unwrap_or_default().to_string(),
            run.replicas.to_string(),
            format!("{:.0}", run.p50_us),
            format!("{:.1}", run.store_cpu_us),
            format!("{:.1}", run.replica_cpu_us.unwrap_or_default()),
            format!("{:.0}", run.bytes_to_replicas),
        ]
    };
    let head = [
        "replica",
        "callers",
        "WAIT",
        "p50, us",
        "store's processor a claim, us",
        "replica's, us",
        "bytes to the replica",
    ];
    markdown(head, &runs.iter().map(row).collect::<Vec<_>>())
}

/// The memory of single-use tickets that a server issued.
#[derive(Deserialize)]
struct Single {
    tickets: u64,
    bytes_a_ticket: f64,
}

impl Single {
    fn table(&self, costs: &Costs) -> String {
        let row = |rate: f64| {
            let held = |seconds: f64| bytes(rate * seconds * self.bytes_a_ticket);
            [
                short(rate),
                held(600.0),
                held(3600.0),
                held(43_200.0),
                bytes(rate * costs.life * costs.record_bytes),
            ]
        };
        let head =
            ["a second", "tickets of 10 min", "of 1 h", "of 12 h", "records of claims instead"];
        format!(
            "A ticket takes {:.0} bytes of the store's memory ({} were issued to measure it).\n\n{}",
            self.bytes_a_ticket,
            self.tickets,
            markdown(head, &RATES.map(row))
        )
    }
}
