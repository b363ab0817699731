//! Forged Initial packets beside honest clients: what a server of ours has to bear, and whether it
//! still serves. Before, during and after the flood, as lines of text and, with `--json`, as JSON.
//!
//!     quic_flood ADDRESS SERVER_PID SECONDS [--rate FORGED] [--honest PER_SECOND]
//!         [--forge hello,ticket,half,token] [--json FILE]

use std::time::Duration;

use firstflight_load::{
    Exchange, FloodConfig, FloodPart, FloodTrial, Forgery, Kind, LoadConfig, Model, Transport,
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
        kinds: vec![Kind::Full, Kind::ZeroRtt],
        server_pid: pid.parse()?,
        part: Duration::from_secs_f64(seconds.parse()?),
    };
    let parts = trial.run()?;
    parts.iter().for_each(say);
    if let Some(file) = json {
        std::fs::write(file, serde_json::to_string_pretty(&parts)?)?;
    }
    Ok(())
}

fn forgery(name: &str) -> Result<Forgery, String> {
    Forgery::ALL
        .into_iter()
        .find(|forgery| forgery.name() == name)
        .ok_or_else(|| format!("{name:?} is no forgery"))
}

fn say(part: &FloodPart) {
    let (due, answered) = part.honest_connections();
    println!("{}: {answered} of {due} honest connections answered", part.name);
    for run in &part.honest {
        let Some(total) = &run.total else { continue };
        let p99 = total.p99_ms.map_or("-".to_owned(), |ms| format!("{ms:.2}"));
        println!(
            "  {:<6} p50 {:.2} ms, p99 {p99} ms, max {:.2} ms; refused early data {}, failed {}",
            run.kind.name(),
            total.p50_ms,
            total.max_ms,
            run.handshakes.early_refused,
            run.failed(),
        );
    }
    if let Some(flood) = &part.flood {
        println!(
            "  forged {:.0}/s, {} MB sent, {} MB read back; {} Retry, {} handshakes, {} other",
            flood.rate,
            flood.bytes_sent / 1_000_000,
            flood.bytes_received / 1_000_000,
            flood.retries,
            flood.handshakes,
            flood.others,
        );
    }
    println!(
        "  server's memory: {} KiB, at most {}, then {}",
        part.resident_begin_kib, part.resident_most_kib, part.resident_end_kib
    );
}
