//! What a shared register costs at sizes that nobody can measure on a desk, calculated from
//! measurements on one: the tables behind `docs/evidence/scale.md`.

use std::error::Error;
use std::path::Path;

use serde::Deserialize;

use crate::costs::{Costs, Run};
use crate::page::{Table, markdown};
use crate::units::{bits, bytes, short};
use crate::{read, runs};

/// 0-RTT connections a second, in all regions together.
const RATES: [f64; 3] = [1e4, 1e6, 1e7];
/// Into how many regions they are spread evenly.
const REGIONS: [f64; 3] = [1.0, 10.0, 50.0];
/// 0-RTT connections a second that one node takes.
const NODE: f64 = 1e4;
/// Connections of a node to each master.
const CONNECTIONS_PER_MASTER: f64 = 2.0;
/// How busy a store process may be on average, which leaves room for peaks and for a failed peer.
const BUSY: f64 = 0.5;
/// From a node to the store of its region and back, in seconds.
const STORE_RTT: f64 = 0.5e-3;
/// The profile `cross-region` of docs/measure/networks.md, in seconds.
const CROSS_REGION_RTT: f64 = 70e-3;
const MONTH: f64 = 30.0 * 86_400.0;

/// The tables by their names in the page.
pub(crate) fn tables(directory: &Path) -> Result<Vec<Table>, Box<dyn Error>> {
    let of_claims: Vec<Run> = runs(&directory.join("claims.jsonl"))?;
    let memory = read(&directory.join("memory.json"))?;
    let idle = read(&directory.join("idle.json"))?;
    let costs = Costs::of(&of_claims, &memory, &idle).ok_or("too few runs named \"one lane\"")?;
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

/// What the register of a region needs.
struct Need {
    masters: f64,
    /// Claims in a batch.
    batch: f64,
    /// How busy heartbeats keep each master.
    heartbeats: f64,
}

impl Need {
    /// The least number of masters of which each can take its share of the claims, and the
    /// heartbeats of every node of the region. `None`: no number can, for there are too many nodes.
    fn of(costs: &Costs, rate: f64, nodes: f64) -> Option<Self> {
        let heartbeats = nodes * costs.heartbeat_us / 1e6;
        let room = BUSY - heartbeats;
        let needs = |masters: f64| {
            let batch = (rate / nodes / CONNECTIONS_PER_MASTER / masters * STORE_RTT).max(1.0);
            (rate / masters * costs.store_us(batch) / 1e6 <= room).then_some(batch)
        };
        (room > 0.0).then_some(())?;
        (1..=MAX_MASTERS)
            .map(f64::from)
            .find_map(|masters| needs(masters).map(|batch| Self { masters, batch, heartbeats }))
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
            let nodes = (claims / NODE).ceil();
            let Some(need) = Need::of(costs, claims, nodes) else {
                let none = || "-".to_owned();
                let [rate, nodes, claims] = [rate, nodes, claims].map(short);
                let rest = [none(), "none is enough".to_owned(), none(), none(), none(), none()];
                let [a, b, c, d, e, f] = rest;
                rows.push([rate, regions.to_string(), nodes, claims, a, b, c, d, e, f]);
                continue;
            };
            let records = claims * costs.life;
            let traffic =
                claims * costs.bytes.at(need.batch) + nodes * need.masters * costs.heartbeat_bytes;
            rows.push([
                short(rate),
                regions.to_string(),
                short(nodes),
                short(claims),
                format!("{:.1}", need.batch),
                need.masters.to_string(),
                format!("{:.1} %", need.heartbeats * 100.0),
                short(records),
                bytes(records * costs.record_bytes),
                bits(traffic),
            ]);
        }
    }
    markdown(head, &rows)
}

/// Claims a second for which a region of its own is worth a line.
const MIN_CLAIMS_PER_SECOND: f64 = 1e3;

/// One register for all: what the other regions send to it.
fn world(costs: &Costs) -> String {
    let mut rows = Vec::new();
    for rate in RATES {
        for regions in REGIONS.into_iter().filter(|regions| *regions > 1.0) {
            // What comes while a batch is far away is a large next one.
            let batch = (NODE / CONNECTIONS_PER_MASTER * CROSS_REGION_RTT).max(1.0);
            let sent = rate * (regions - 1.0) / regions * costs.bytes.at(batch);
            rows.push([short(rate), regions.to_string(), bits(sent), bytes(sent * MONTH)]);
        }
    }
    markdown(["0-RTT/s in all", "regions", "between regions", "a month"], &rows)
}

/// What is left of the round trip that 0-RTT saves: the claim comes before the response.
fn distance() -> String {
    let left = |client: f64| {
        let left = [0.5, 2.0, 5.0, 20.0, 70.0].map(|store| format!("{:+.1}", client - store));
        let [a, b, c, d, e] = left;
        [client.to_string(), a, b, c, d, e]
    };
    let head =
        ["client's RTT", "store 0.5 ms away", "2 ms", "5 ms", "20 ms", "70 ms (another region)"];
    markdown(head, &[5.0, 20.0, 50.0, 100.0].map(left))
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

/// Single-use tickets, as a server issued them.
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
