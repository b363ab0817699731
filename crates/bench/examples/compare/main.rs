//! Compares servers by their CPU cost of a connection or request: each server in turn on one core,
//! the load on another. `make bench` runs it.
//!
//!     compare --output DIRECTORY --server-core N [--rounds 5] [--seconds 3] [--connections 64]
//!         [--firstflight NAME=PROGRAM]... [--nginx NAME=PROGRAM]... [--server-cmd NAME=COMMAND]...
//!         [--servers NAME,...] [--cells TEXT,...] [--idle NUMBER,...] [--client-closes] [--seed 1]
//!         [--list]
//!
//! Servers are those installed, the bare loops beside this program, and those that the flags name:
//! other builds of firstflight, other nginx programs, and any program by a command line that a
//! shell runs, with {port}, {cert}, {key}, {root} and {upstream} in it. `--servers` selects servers
//! by name, `--cells` cells by a part of their name, and `--idle` the numbers of idle connections,
//! by default 10, 1,000 and 50,000. If only one of `--cells` and `--idle` is given, the other part
//! is left out. With `--client-closes` requests of new connections over TCP lack
//! `Connection: close`. Run it pinned to the core of the load.
//!
//! Each round measures all cells with all servers, in a different order that depends on the seed. A
//! server that does not support a cell is left out of it, with the reason. Raw data:
//! DIRECTORY/servers.json; table: standard output and servers.txt; chart: servers.svg. The results
//! for idle connections are in idle.json and idle.txt.

mod arguments;
mod cells;
mod cpu;
mod idle;
mod interrupt;
mod measure;
mod origin;
mod servers;
mod summary;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use firstflight_report::ServerCosts;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use serde::Serialize;

use arguments::Arguments;
use cells::Cell;
use servers::{Running, Site};
use summary::{Row, Summary};

pub(crate) type Failed = Box<dyn std::error::Error>;

fn main() -> Result<(), Failed> {
    let arguments = Arguments::parse(std::env::args().skip(1))?;
    let cells: Vec<Cell> =
        Cell::all().into_iter().filter(|cell| arguments.wants_cell(&cell.name())).collect();
    let servers: Vec<_> = servers::all(&arguments)?
        .into_iter()
        .filter(|server| arguments.wants_server(&server.name))
        .collect();
    if arguments.list {
        servers.iter().for_each(|server| println!("{}: {}", server.name, server.version));
        cells.iter().for_each(|cell| println!("{}", cell.name()));
        return Ok(());
    }
    if servers.is_empty() || cells.is_empty() && arguments.idle.is_empty() {
        return Err("nothing is selected; see --list".into());
    }
    let work = tempfile::tempdir()?;
    interrupt::clean_up_on_signal(work.path())?;
    let site = Site::create(work.path(), origin::start()?)?;
    if !cells.is_empty() {
        compare(&arguments, &servers, &cells, &site)?;
    }
    if !arguments.idle.is_empty() {
        measure_idle(&arguments, &servers, &site)?;
    }
    Ok(())
}

/// Measures the CPU cost of connections and requests.
fn compare(
    arguments: &Arguments,
    servers: &[servers::Server],
    cells: &[Cell],
    site: &Site,
) -> Result<(), Failed> {
    let running = start_all(servers, site, arguments);
    if running.is_empty() {
        return Err("no server has started".into());
    }
    let mut rows = Vec::new();
    let mut left_out: BTreeMap<(String, String), String> = BTreeMap::new();
    let mut failures: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    let mut random = StdRng::seed_from_u64(arguments.seed);
    for round in 1..=arguments.rounds {
        for cell in &cells::shuffled(cells, &mut random) {
            // A different order each time, so that drift affects all servers.
            let mut order: Vec<&Running> = running.iter().collect();
            order.shuffle(&mut random);
            for server in order {
                let key = (cell.name(), server.name.clone());
                if left_out.contains_key(&key) {
                    continue;
                }
                let full = cell.full_handshake();
                let full = rows.iter().find(|row: &&Row| {
                    row.round == round && Some(&row.cell) == full.as_ref() && row.server == key.1
                });
                let full = full.map(|row| row.measured);
                let result = server.check_support(cell);
                match result.and_then(|()| cell.measure(server, full.as_ref(), arguments)) {
                    Ok(measured) => {
                        rows.push(Row { round, cell: key.0, server: key.1, measured });
                    }
                    // A failure in a later round costs only that round.
                    Err(reason) if round == 1 => {
                        left_out.insert(key, reason);
                    }
                    Err(reason) => {
                        eprintln!("{}, {}: {reason}", key.1, key.0);
                        failures.entry(key).or_default().push(reason);
                    }
                }
            }
        }
        eprintln!("round {round} of {}", arguments.rounds);
    }
    write_results(arguments, &running, cells, rows, &Reasons { left_out, failures })
}

/// Measures servers with idle connections.
fn measure_idle(
    arguments: &Arguments,
    servers: &[servers::Server],
    site: &Site,
) -> Result<(), Failed> {
    let idle = idle::raise_file_limit(&arguments.idle)?;
    let (mut rows, mut left_out) = (Vec::new(), String::new());
    for server in servers.iter().filter(|server| server.keeps_connections()) {
        let (measured, reason) = idle::measure(server, site, &idle, arguments);
        rows.extend(measured);
        if let Some(reason) = reason {
            left_out.push_str(&format!("{} left out: {reason}\n", server.name));
        }
        eprintln!("idle connections: {}", server.name);
    }
    let text = format!(
        "Resident memory of the server for each idle connection after one request, and after all have\n\
         closed; CPU and mean response time of requests on 1,000 active connections beside them; CPU\n\
         while nobody sends anything. Load average before: {}\n\n{}{left_out}",
        arguments.load_average,
        idle::table(&rows),
    );
    let directory = Path::new(&arguments.output);
    fs::create_dir_all(directory)?;
    fs::write(directory.join("idle.txt"), &text)?;
    let raw = RawIdle { schema: 1, date: date(), machine: Machine::this()?, rows: &rows };
    fs::write(directory.join("idle.json"), serde_json::to_string_pretty(&raw)?)?;
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

/// Starts all servers. One that does not start is left out with a line that says why.
fn start_all(servers: &[servers::Server], site: &Site, arguments: &Arguments) -> Vec<Running> {
    let start = |server: &servers::Server| match server.start(site, arguments.server_core) {
        Ok(running) => Some(running),
        Err(reason) => {
            eprintln!("{} is left out: {reason}", server.name);
            None
        }
    };
    servers.iter().filter_map(start).collect()
}

/// Why there are no figures, by cell and server.
struct Reasons {
    /// Cells and servers without any round.
    left_out: BTreeMap<(String, String), String>,
    /// Cells and servers with failed rounds.
    failures: BTreeMap<(String, String), Vec<String>>,
}

#[derive(Serialize)]
struct Raw<'a> {
    schema: u32,
    date: String,
    machine: Machine,
    load_average_before: f64,
    rounds: usize,
    seed: u64,
    seconds: f64,
    connections: usize,
    client_closes: bool,
    servers: BTreeMap<&'a str, &'a str>,
    left_out: Vec<(&'a str, &'a str, &'a str)>,
    failures: Vec<(&'a str, &'a str, &'a [String])>,
    runs: &'a [Row],
}

#[derive(Serialize)]
struct RawIdle<'a> {
    schema: u32,
    date: String,
    machine: Machine,
    rows: &'a [idle::IdleRow],
}

#[derive(Serialize)]
struct Machine {
    kernel: String,
    processor: String,
    processors: usize,
}

impl Machine {
    fn this() -> Result<Self, Failed> {
        Ok(Self {
            kernel: format!("Linux {}", output_of("uname", &["-r"])),
            processor: processor(),
            processors: std::thread::available_parallelism()?.get(),
        })
    }
}

fn date() -> String {
    output_of("date", &["-u", "+%FT%TZ"])
}

fn write_results(
    arguments: &Arguments,
    running: &[Running],
    cells: &[Cell],
    rows: Vec<Row>,
    Reasons { left_out, failures }: &Reasons,
) -> Result<(), Failed> {
    let names: Vec<&str> = running.iter().map(|server| server.name.as_str()).collect();
    let cells: Vec<String> = cells.iter().map(Cell::name).collect();
    let summary = Summary::new(&rows, &cells, &names);
    let mut text = format!(
        "Server CPU per connection or request, one core each for server and load, {} at a time\n\
         Medians of {} rounds of {} s with their range or 95 % interval\n\
         Ratio: what {} costs, over what the server costs in the same round\n\
         Load average before: {}\n",
        arguments.connections,
        arguments.rounds,
        arguments.seconds,
        names[0],
        arguments.load_average,
    );
    if arguments.client_closes {
        text.push_str("New connections over TCP are closed by the client\n");
    }
    text.push_str(&summary.table());
    text.push_str(&summary.datagrams());
    text.push('\n');
    text.push_str(&summary::incomplete(failures, arguments.rounds));
    for server in running {
        text.push_str(&format!("{}: {}\n", server.name, server.version));
    }
    // Each reason once per server, without the cells.
    let reasons: BTreeSet<String> = left_out
        .iter()
        .map(|((_, server), reason)| format!("{server} left out: {reason}"))
        .collect();
    reasons.iter().for_each(|line| text.push_str(&format!("{line}\n")));
    let directory = Path::new(&arguments.output);
    fs::create_dir_all(directory)?;
    fs::write(directory.join("servers.txt"), &text)?;
    let raw = Raw {
        schema: 1,
        date: date(),
        machine: Machine::this()?,
        load_average_before: arguments.load_average,
        client_closes: arguments.client_closes,
        rounds: arguments.rounds,
        seed: arguments.seed,
        seconds: arguments.seconds,
        connections: arguments.connections,
        servers: running
            .iter()
            .map(|server| (server.name.as_str(), server.version.as_str()))
            .collect(),
        left_out: left_out
            .iter()
            .map(|((cell, server), reason)| (cell.as_str(), server.as_str(), reason.as_str()))
            .collect(),
        failures: failures
            .iter()
            .map(|((cell, server), reasons)| (cell.as_str(), server.as_str(), reasons.as_slice()))
            .collect(),
        runs: &rows,
    };
    fs::write(directory.join("servers.json"), serde_json::to_string_pretty(&raw)?)?;
    let chart = ServerCosts {
        title: "Server CPU per connection",
        description: "Medians of interleaved rounds, server and load on one core each",
        unit: "µs",
        groups: summary.connections(),
    };
    fs::write(directory.join("servers.svg"), chart.svg())?;
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

fn output_of(program: &str, arguments: &[&str]) -> String {
    let output = std::process::Command::new(program).args(arguments).output();
    output.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).trim().into(),
    )
}

fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or_else(String::new, |(_, name)| name.to_owned())
}

pub(crate) fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}
