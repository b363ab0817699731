//! What a shared register costs at sizes that nobody can measure on a desk, reckoned from what was
//! measured on one. Prints the tables of `docs/scale.md`.
//!
//!     scale DIRECTORY        (where scripts/cluster left its raw data)

use std::error::Error;
use std::fs;
use std::path::Path;

use firstflight_replay::SharedConfig;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// 0-RTT connections a second, in all regions together.
const RATES: [f64; 3] = [1e4, 1e6, 1e7];
/// Into how many regions they are spread evenly.
const REGIONS: [f64; 3] = [1.0, 10.0, 50.0];
/// 0-RTT connections a second that one node takes.
const NODE: f64 = 1e4;
/// Connections of a node to each master.
const LANES: f64 = 2.0;
/// How busy a store process may be on average, which leaves room for peaks and for a failed peer.
const BUSY: f64 = 0.5;
/// From a node to the store of its region and back, in seconds.
const STORE_RTT: f64 = 0.5e-3;
/// Ethernet, IPv4 and TCP with time stamps: bytes of a segment's headers.
const HEADERS: f64 = 66.0;
/// Segments of a batch: request, reply, and an acknowledgement of the reply.
const SEGMENTS: f64 = 3.0;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory] = arguments.as_slice() else {
        return Err("usage: scale DIRECTORY".into());
    };
    let directory = Path::new(directory);
    let runs = runs(&directory.join("claims.jsonl"))?;
    let memory: Memory = read(&directory.join("memory.json"))?;
    let idle: Idle = read(&directory.join("idle.json"))?;
    let costs = Costs::of(&runs, &memory, &idle).ok_or("too few runs named \"one lane\"")?;
    costs.print();
    costs.stores();
    costs.across_regions();
    gains();
    replication(&self::runs(&directory.join("wait.jsonl"))?);
    if let Ok(single) = read::<Single>(&directory.join("single.json")) {
        single.print(&costs);
    }
    Ok(())
}

fn runs(path: &Path) -> Result<Vec<Run>, Box<dyn Error>> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T, Box<dyn Error>> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(serde_json::from_str(&text)?)
}

#[derive(Deserialize)]
struct Run {
    name: String,
    replicas: u32,
    callers: Option<usize>,
    p50_us: f64,
    claims_a_batch: f64,
    client_cpu_us: Option<f64>,
    store_cpu_us: f64,
    replica_cpu_us: Option<f64>,
    bytes_in: f64,
    bytes_out: f64,
    bytes_to_replicas: f64,
}

#[derive(Deserialize)]
struct Memory {
    steps: Vec<(u64, u64)>,
}

#[derive(Deserialize)]
struct Idle {
    store_cpu_us_a_node_second: f64,
    bytes_in_a_node_second: f64,
    bytes_out_a_node_second: f64,
}

/// A figure that has a part for each claim and a part for each batch.
#[derive(Clone, Copy)]
struct Line {
    claim: f64,
    batch: f64,
}

impl Line {
    /// The least squares of `y = claim + batch x 1 / claims a batch`.
    fn through(points: &[(f64, f64)]) -> Option<Self> {
        let count = points.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let (x, y) = (mean(|(batch, _)| 1.0 / batch), mean(|(_, value)| *value));
        let (mut both, mut square) = (0.0, 0.0);
        for (batch, value) in points {
            both += (1.0 / batch - x) * (value - y);
            square += (1.0 / batch - x) * (1.0 / batch - x);
        }
        (points.len() > 1 && square > 0.0).then(|| {
            let batch = both / square;
            Self { claim: y - batch * x, batch }
        })
    }

    fn at(self, claims_a_batch: f64) -> f64 {
        self.claim + self.batch / claims_a_batch
    }
}

/// What one claim costs.
struct Costs {
    store_us: Line,
    client_us: Line,
    bytes: Line,
    record_bytes: f64,
    /// For each node, a second.
    heartbeat_us: f64,
    heartbeat_bytes: f64,
    life: f64,
}

impl Costs {
    fn of(runs: &[Run], memory: &Memory, idle: &Idle) -> Option<Self> {
        let line = |value: fn(&Run) -> Option<f64>| {
            let runs = runs.iter().filter(|run| run.name == "one lane");
            let points: Vec<_> =
                runs.filter_map(|run| Some((run.claims_a_batch, value(run)?))).collect();
            Line::through(&points)
        };
        let payload = line(|run| Some(run.bytes_in + run.bytes_out))?;
        // A table has just doubled somewhere on the way: so much is to be provided.
        let half = memory.steps.last()?.0 / 2;
        let large = memory.steps.iter().filter(|(held, _)| *held >= half);
        let record_bytes = large.map(|(held, bytes)| *bytes as f64 / *held as f64);
        Some(Self {
            store_us: line(|run| Some(run.store_cpu_us))?,
            client_us: line(|run| run.client_cpu_us)?,
            bytes: Line { batch: payload.batch + SEGMENTS * HEADERS, ..payload },
            record_bytes: record_bytes.fold(0.0, f64::max),
            heartbeat_us: idle.store_cpu_us_a_node_second,
            heartbeat_bytes: idle.bytes_in_a_node_second + idle.bytes_out_a_node_second,
            life: SharedConfig::default().record_life().as_secs_f64(),
        })
    }

    fn print(&self) {
        println!("### What one claim costs\n");
        println!("| | a claim | a batch | a claim alone in its batch | 16 in a batch |");
        println!("|---|---|---|---|---|");
        for (what, line) in [
            ("store's processor, us", self.store_us),
            ("node's processor, us", self.client_us),
            ("bytes on the wire", self.bytes),
        ] {
            println!(
                "| {what} | {:.2} | {:.2} | {:.1} | {:.1} |",
                line.claim,
                line.batch,
                line.at(1.0),
                line.at(16.0)
            );
        }
        println!(
            "\nA record takes {:.0} bytes of the store's memory at most and lives {:.0} s. A node \
             without claims costs the store {:.0} us of processor and {:.0} bytes a second.\n",
            self.record_bytes, self.life, self.heartbeat_us, self.heartbeat_bytes
        );
    }

    /// Masters that a region's register needs. Each takes its share of the claims, and the
    /// heartbeats of every node of the region.
    fn masters(&self, rate: f64, nodes: f64) -> Option<Need> {
        let mut masters = 1.0;
        while masters < MOST_MASTERS {
            let a_lane = rate / nodes / LANES / masters;
            let batch = (a_lane * STORE_RTT).max(1.0);
            let claims = rate / masters * self.store_us.at(batch) / 1e6;
            let heartbeats = nodes * self.heartbeat_us / 1e6;
            if claims + heartbeats <= BUSY {
                return Some(Need { masters, batch, heartbeats });
            }
            masters += 1.0;
        }
        None
    }

    fn stores(&self) {
        println!("### A register for each region\n");
        println!(
            "| 0-RTT/s in all | regions | nodes a region | claims/s a region | claims a batch | \
             masters a region | heartbeats keep a master busy | records | memory a region | traffic \
             in a region | between regions |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|---|");
        for rate in RATES {
            for regions in REGIONS.into_iter().filter(|regions| rate / regions >= 1e3) {
                self.row(rate, regions);
            }
        }
        println!();
    }

    fn row(&self, rate: f64, regions: f64) {
        let claims = rate / regions;
        let nodes = (claims / NODE).ceil();
        let Some(Need { masters, batch, heartbeats }) = self.masters(claims, nodes) else {
            println!("| {} | {regions} | {} | - |", short(rate), short(nodes));
            return;
        };
        let records = claims * self.life;
        let traffic = claims * self.bytes.at(batch) + nodes * masters * self.heartbeat_bytes;
        println!(
            "| {} | {regions} | {} | {} | {batch:.1} | {masters} | {:.1} % | {} | {} | {} | 0 |",
            short(rate),
            short(nodes),
            short(claims),
            heartbeats * 100.0,
            short(records),
            bytes(records * self.record_bytes),
            bits(traffic),
        );
    }

    /// One register for all: what the other regions send to it.
    fn across_regions(&self) {
        println!("### One register for all regions\n");
        println!("| 0-RTT/s in all | regions | between regions | a month |");
        println!("|---|---|---|---|");
        for rate in RATES {
            for regions in REGIONS.into_iter().filter(|regions| *regions > 1.0) {
                // Far away, many claims share a batch.
                let away = rate * (regions - 1.0) / regions;
                let batch = (NODE / LANES * CROSS_REGION_RTT).max(1.0);
                let sent = away * self.bytes.at(batch);
                println!(
                    "| {} | {regions} | {} | {} |",
                    short(rate),
                    bits(sent),
                    bytes(sent * 86_400.0 * 30.0)
                );
            }
        }
        println!();
    }
}

/// The profile `cross-region` of docs/networks.md, in seconds.
const CROSS_REGION_RTT: f64 = 70e-3;
const MOST_MASTERS: f64 = 10_000.0;

struct Need {
    masters: f64,
    batch: f64,
    heartbeats: f64,
}

/// What is left of the round trip that 0-RTT saves: the claim comes before the answer.
fn gains() {
    println!("### What a far register leaves of the round trip\n");
    let stores = [0.5, 2.0, 5.0, 20.0, 70.0];
    print!("| client's RTT, ms |");
    stores.iter().for_each(|store| print!(" store {store} ms |"));
    println!("\n|---|{}", "---|".repeat(stores.len()));
    for client in [5.0, 20.0, 50.0, 100.0] {
        print!("| {client} |");
        for store in stores {
            print!(" {:+.1} |", client - store);
        }
        println!();
    }
    println!();
}

fn replication(runs: &[Run]) {
    println!("### What WAIT costs\n");
    println!(
        "| replica | callers | WAIT | p50 us | store us a claim | replica us a claim | bytes to \
         the replica |"
    );
    println!("|---|---|---|---|---|---|---|");
    for run in runs {
        println!(
            "| {} | {} | {} | {:.0} | {:.1} | {:.1} | {:.0} |",
            run.name,
            run.callers.unwrap_or_default(),
            run.replicas,
            run.p50_us,
            run.store_cpu_us,
            run.replica_cpu_us.unwrap_or_default(),
            run.bytes_to_replicas
        );
    }
    println!();
}

/// Single-use tickets, as issued by a server.
#[derive(Deserialize)]
struct Single {
    tickets: u64,
    bytes_a_ticket: f64,
}

impl Single {
    fn print(&self, costs: &Costs) {
        println!("### Single-use tickets\n");
        println!(
            "A ticket takes {:.0} bytes of the store's memory ({} measured).\n",
            self.bytes_a_ticket, self.tickets
        );
        println!("| tickets issued a second | 10 min | 1 h | 12 h | claims' records instead |");
        println!("|---|---|---|---|---|");
        for rate in RATES {
            let held = |seconds: f64| bytes(rate * seconds * self.bytes_a_ticket);
            println!(
                "| {} | {} | {} | {} | {} |",
                short(rate),
                held(600.0),
                held(3600.0),
                held(43_200.0),
                bytes(rate * costs.life * costs.record_bytes),
            );
        }
        println!();
    }
}

/// Bytes, by decimal prefixes.
fn bytes(value: f64) -> String {
    unit(value, "B")
}

/// Bytes a second as bits a second.
fn bits(value: f64) -> String {
    unit(value * 8.0, "bit/s")
}

/// Three figures, a prefix, and a unit: 1.23 GB.
fn unit(value: f64, unit: &str) -> String {
    let short = short(value);
    match short.contains(' ') {
        true => short + unit,
        false => format!("{short} {unit}"),
    }
}

/// Three figures and a prefix: 1.23 G.
fn short(value: f64) -> String {
    let (scaled, prefix) = match value.abs() {
        1e15.. => (value / 1e15, "P"),
        1e12.. => (value / 1e12, "T"),
        1e9.. => (value / 1e9, "G"),
        1e6.. => (value / 1e6, "M"),
        1e3.. => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match scaled.abs() {
        100.0.. => 0,
        10.0.. if scaled.fract() == 0.0 => 0,
        10.0.. => 1,
        _ if scaled.fract() == 0.0 => 0,
        _ => 2,
    };
    format!("{scaled:.digits$} {prefix}").trim_end().to_owned()
}
