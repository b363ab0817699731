//! Floods a server with forged Initial packets, and measures honest clients before, during and after
//! the flood. Prints a table and, with `--json`, writes JSON. `scripts/flood` runs it on several
//! servers.
//!
//!     quic_flood ADDRESS SERVER_PID SECONDS [--rate FORGED] [--honest PER_SECOND]
//!         [--forge hello,ticket,half,token] [--json FILE]

use std::time::Duration;

use firstflight_bench::{
    Exchange, FloodConfig, FloodPhase, FloodResult, FloodTrial, Forgery, LoadConfig, LoadHandshake,
    Model, Transport,
};
use firstflight_tls::{CipherPolicy, Trust};

type Failed = Box<dyn std::error::Error>;

fn main() -> Result<(), Failed> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().ok_or("usage: quic_flood ADDRESS PID SECONDS [...]");
    let (address, pid, seconds) = (next()?, next()?, next()?);
    let (mut rate, mut honest, mut json) = (None, 100.0, None);
    let mut forgeries = Forgery::ALL.to_vec();
    while let Ok(flag) = next() {
        let value = next()?;
        match flag.as_str() {
            "--rate" => rate = Some(value.parse()?),
            "--honest" => honest = value.parse()?,
            "--forge" => forgeries = value.split(',').map(forgery).collect::<Result<_, _>>()?,
            "--json" => json = Some(value),
            other => return Err(format!("unknown flag {other}").into()),
        }
    }
    let target = address.parse()?;
    let trial = FloodTrial {
        flood: FloodConfig { target, host: "localhost".to_owned(), forgeries, rate, seed: 1 },
        honest: LoadConfig {
            transport: Transport::Quic,
            exchange: Exchange::get(&address, "/"),
            trust: Trust::Anyone,
            ciphers: CipherPolicy { groups: Some("X25519".into()), ..CipherPolicy::default() },
            model: Model::open(honest),
            ..LoadConfig::new(vec![target], "localhost")
        },
        kinds: vec![LoadHandshake::Full, LoadHandshake::ZeroRtt],
        server_pid: pid.parse()?,
        phase: Duration::from_secs_f64(seconds.parse()?),
    };
    let phases = trial.run()?;
    println!(
        "{:<7} {:>7} {:<7}  {:>15}  {:>15}  {:>7}  {:>21}  {:>8}  {:>24}  {:>6}",
        "part",
        "served",
        "of",
        "full: p50, p99",
        "0-RTT: p50, p99",
        "refused",
        "MiB: begin, most, end",
        "forged/s",
        "Retry, handshakes, other",
        "back"
    );
    phases.iter().for_each(print_phase);
    if let Some(file) = json {
        std::fs::write(file, serde_json::to_string_pretty(&phases)?)?;
    }
    Ok(())
}

fn forgery(name: &str) -> Result<Forgery, String> {
    Forgery::ALL
        .into_iter()
        .find(|forgery| forgery.name() == name)
        .ok_or_else(|| format!("{name:?} is no forgery"))
}

fn print_phase(phase: &FloodPhase) {
    let (due, completed) = phase.honest_connections();
    let mut times = String::new();
    for run in &phase.honest {
        let ms = |ms: Option<f64>| ms.map_or("-".to_owned(), |ms| format!("{ms:.1}"));
        let total = run.total.as_ref();
        times += &format!(
            "  {:>7}{:>8}",
            ms(total.map(|total| total.p50_ms)),
            ms(total.and_then(|total| total.p99_ms))
        );
    }
    let refused: u64 = phase.honest.iter().map(|run| run.handshakes.early_refused).sum();
    let mib = |kib: u64| format!("{:.1}", kib as f64 / 1024.0);
    println!(
        "{:<7} {:>7}/{:<7}{times}  {refused:>7}  {:>7}{:>7}{:>7}  {}",
        phase.name,
        completed,
        due,
        mib(phase.resident_start_kib),
        mib(phase.resident_max_kib),
        mib(phase.resident_end_kib),
        phase.flood.as_ref().map_or(String::new(), flood_columns),
    );
    phase.starved.iter().for_each(|why| println!("  {why}"));
}

/// Forged connections per second, and what the server sent back.
fn flood_columns(flood: &FloodResult) -> String {
    format!(
        "{:>8.0}  {:>8}{:>8}{:>8}  {:>6.2}",
        flood.rate,
        flood.retries,
        flood.handshakes,
        flood.others,
        flood.bytes_received as f64 / flood.bytes_sent as f64,
    )
}
