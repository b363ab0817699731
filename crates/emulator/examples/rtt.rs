//! Measures the link's own error by UDP echoes over paths of 0.2, 2, 20 and 200 ms, and holds it
//! against the bounds that the project promises for an idle machine.
//!
//! `cargo run --release -p firstflight-emulator --example rtt [-- [SAMPLES] [loaded] [awake] [tun]
//! [--json]]`
//!
//! - `SAMPLES` of each path (300; the longest path has as many as fit into a minute)
//! - `loaded`: a thread computes on one core meanwhile
//! - `awake`: the processors are kept from sleeping
//! - `tun`: TUN devices instead of packet rings
//! - `--json`: all errors in nanoseconds, in the order in which they were measured
//!
//! The error contains the waking of the sender and the echo server, which request from the scheduler what
//! the link needs. An echo of which the link delivered a packet more than a millisecond late is
//! counted as spoiled and left out, as the lab does with its samples; percentiles over all of them
//! stand beside. Ends with 1 if a bound is missed.

use std::hint::black_box;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use firstflight_emulator::{
    Backend, CapturedPacket, Network, NetworkConfig, PathConfig, Privilege, Tap,
    enter_user_namespace, wake_promptly,
};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde_json::json;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<ExitCode, Failure> {
    let privilege = enter_user_namespace()?;
    let options = Options::read(std::env::args().skip(1))?;
    let load = options.loaded.then(Load::start).transpose()?;
    let paths = BOUNDS.map(|bound| PathConfig::symmetric(format!("{:?}", bound.rtt), bound.rtt));
    let network = Network::build(NetworkConfig {
        keep_awake: options.awake,
        backend: options.backend,
        ..NetworkConfig::new(paths.to_vec())
    })?;
    let socket = network.server().run(|| UdpSocket::bind(("0.0.0.0", PORT)))??;
    network.server().spawn("echo", move || echo(&socket))?;
    let mut results = Vec::new();
    for (bound, path) in BOUNDS.iter().zip(network.paths()) {
        let count = options.samples.min((MAX_DURATION.as_nanos() / bound.rtt.as_nanos()) as usize);
        let address = SocketAddr::from((path.server, PORT));
        let tap = network.tap();
        let echoes = network.client().run(|| probe(address, bound.rtt, count, tap))??;
        results.push(Measured::new(bound, echoes));
    }
    drop(load);
    let passed = results.iter().all(|measured| measured.faults().is_empty());
    match options.json {
        true => print_json(&options, privilege, &network, &results, passed)?,
        false => print_table(&options, privilege, &network, &results)?,
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Options {
    samples: usize,
    loaded: bool,
    awake: bool,
    backend: Backend,
    json: bool,
}

impl Options {
    fn read(words: impl Iterator<Item = String>) -> Result<Self, Failure> {
        let (loaded, awake, json) = (false, false, false);
        let backend = Backend::PacketRings;
        let mut options = Self { samples: 300, loaded, awake, backend, json };
        for word in words {
            match word.as_str() {
                "loaded" => options.loaded = true,
                "awake" => options.awake = true,
                "tun" => options.backend = Backend::Tun,
                "--json" => options.json = true,
                number => {
                    options.samples = number.parse().map_err(|_| {
                        format!("{number:?} is none of SAMPLES, loaded, awake, tun, --json")
                    })?;
                }
            }
        }
        Ok(options)
    }
}

/// What a path's errors may be, in microseconds.
struct Bound {
    rtt: Duration,
    p50_us: Option<f64>,
    p99_us: f64,
}

const BOUNDS: [Bound; 4] = [
    Bound { rtt: Duration::from_micros(200), p50_us: Some(60.0), p99_us: 150.0 },
    Bound { rtt: Duration::from_millis(2), p50_us: Some(60.0), p99_us: 150.0 },
    Bound { rtt: Duration::from_millis(20), p50_us: Some(120.0), p99_us: 300.0 },
    Bound { rtt: Duration::from_millis(200), p50_us: None, p99_us: 600.0 },
];
/// No round trip may be shorter than the path's by more than this.
const EARLIEST_US: f64 = -20.0;

/// One echo.
struct Echo {
    error_ns: i64,
    /// How late the link delivered the later of its two packets.
    lateness_ns: u64,
}

/// Later than this, a delivery is the machine's doing.
const SPOILED_NS: u64 = 1_000_000;

struct Measured<'a> {
    bound: &'a Bound,
    /// In the order in which they were measured.
    echoes: Vec<Echo>,
    /// The errors of those that are not spoiled.
    sorted_us: Vec<f64>,
    /// Of all.
    all_us: Vec<f64>,
}

impl<'a> Measured<'a> {
    fn new(bound: &'a Bound, echoes: Vec<Echo>) -> Self {
        let sorted = |keep: &dyn Fn(&Echo) -> bool| {
            let kept = echoes.iter().filter(|echo| keep(echo));
            let mut errors: Vec<f64> = kept.map(|echo| echo.error_ns as f64 / 1e3).collect();
            errors.sort_by(f64::total_cmp);
            errors
        };
        let sorted_us = sorted(&|echo| echo.lateness_ns <= SPOILED_NS);
        let all_us = sorted(&|_| true);
        Self { bound, echoes, sorted_us, all_us }
    }

    fn spoiled(&self) -> usize {
        self.all_us.len() - self.sorted_us.len()
    }

    fn at(&self, quantile: f64) -> f64 {
        nearest_rank(&self.sorted_us, quantile)
    }

    fn faults(&self) -> Vec<&'static str> {
        let Bound { p50_us, p99_us, .. } = self.bound;
        let checks = [
            ("early", self.at(0.0) < EARLIEST_US),
            ("p50", p50_us.is_some_and(|bound| self.at(0.5) > bound)),
            ("p99", self.at(0.99) > *p99_us),
        ];
        checks.into_iter().filter_map(|(name, missed)| missed.then_some(name)).collect()
    }
}

fn nearest_rank(ascending: &[f64], quantile: f64) -> f64 {
    let rank = (ascending.len() as f64 * quantile).ceil() as usize;
    ascending.get(rank.clamp(1, ascending.len().max(1)) - 1).copied().unwrap_or(f64::NAN)
}

fn print_table(
    options: &Options,
    privilege: Privilege,
    network: &Network,
    results: &[Measured<'_>],
) -> Result<(), Failure> {
    println!(
        "RTT error in microseconds, {} by {:?}, privilege {privilege:?}; settings refused: {:?}",
        if options.loaded { "one core loaded," } else { "no load of ours," },
        network.backend(),
        network.refused_settings()
    );
    println!(
        "{:>6} {:>6} {:>7} {:>7} {:>7} {:>8} {:>10}  {:>7} {:>8} {:>8}  verdict",
        "RTT", "echoes", "least", "p50", "p99", "max", "bound", "spoiled", "p99 all", "max all"
    );
    for measured in results {
        let Bound { rtt, p50_us, p99_us } = measured.bound;
        let bound = format!("{} / {p99_us}", p50_us.map_or("-".to_owned(), |us| us.to_string()));
        let faults = measured.faults().join(", ");
        println!(
            "{:>6} {:>6} {:>7.1} {:>7.1} {:>7.1} {:>8.1} {bound:>10}  {:>7} {:>8.1} {:>8.1}  {}",
            format!("{rtt:?}"),
            measured.echoes.len(),
            measured.at(0.0),
            measured.at(0.5),
            measured.at(0.99),
            measured.at(1.0),
            measured.spoiled(),
            nearest_rank(&measured.all_us, 0.99),
            nearest_rank(&measured.all_us, 1.0),
            if faults.is_empty() { "pass".to_owned() } else { format!("FAIL: {faults}") }
        );
    }
    println!("lateness of the link alone: {:?}", network.lateness());
    println!("{:?}", network.counters()?);
    Ok(())
}

fn print_json(
    options: &Options,
    privilege: Privilege,
    network: &Network,
    results: &[Measured<'_>],
    passed: bool,
) -> Result<(), Failure> {
    let paths: Vec<_> = results
        .iter()
        .map(|measured| {
            json!({
                "rtt_ms": measured.bound.rtt.as_secs_f64() * 1e3,
                "p50_us": measured.at(0.5),
                "p99_us": measured.at(0.99),
                "bound_p50_us": measured.bound.p50_us,
                "bound_p99_us": measured.bound.p99_us,
                "missed": measured.faults(),
                "spoiled": measured.spoiled(),
                "p50_all_us": nearest_rank(&measured.all_us, 0.5),
                "p99_all_us": nearest_rank(&measured.all_us, 0.99),
                "errors_ns": measured.echoes.iter().map(|echo| echo.error_ns).collect::<Vec<_>>(),
                "link_lateness_ns":
                    measured.echoes.iter().map(|echo| echo.lateness_ns).collect::<Vec<_>>(),
            })
        })
        .collect();
    let lateness = network.lateness();
    let all = json!({
        "passed": passed,
        "loaded": options.loaded,
        "keep_awake": options.awake,
        "backend": format!("{:?}", network.backend()),
        "privilege": format!("{privilege:?}"),
        "refused_settings": network.refused_settings(),
        "bound_early_us": EARLIEST_US,
        "link_lateness_ns": {
            "p50": lateness.p50_ns, "p99": lateness.p99_ns, "max": lateness.max_ns,
        },
        "paths": paths,
    });
    println!("{}", serde_json::to_string_pretty(&all)?);
    Ok(())
}

/// A thread that computes on one core until it is dropped.
struct Load {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Load {
    fn start() -> Result<Self, Failure> {
        let allowed = sched_getaffinity(Pid::from_raw(0))?;
        let core = (0..CpuSet::count()).rfind(|cpu| allowed.is_set(*cpu).unwrap_or(false));
        let mut only = CpuSet::new();
        only.set(core.ok_or("no core to load")?)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new().name("load".to_owned()).spawn(move || {
            // Unpinned it is a load as well, if not always on the same core.
            let _ = sched_setaffinity(Pid::from_raw(0), &only);
            let mut number = 0u64;
            while !stopped.load(Ordering::Relaxed) {
                number = black_box(number.wrapping_mul(3).wrapping_add(1));
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It cannot panic.
            let _ = thread.join();
        }
    }
}

fn echo(socket: &UdpSocket) {
    let _ = wake_promptly();
    let mut buffer = [0; 2_048];
    while let Ok((length, from)) = socket.recv_from(&mut buffer) {
        // A lost echo shows up as the prober's timeout.
        let _ = socket.send_to(&buffer[..length], from);
    }
}

fn probe(server: SocketAddr, rtt: Duration, count: usize, tap: &Tap) -> io::Result<Vec<Echo>> {
    let _ = wake_promptly();
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(Duration::from_secs(2)))?;
    tap.take();
    let mut echoes = Vec::with_capacity(count);
    for number in 0..count as u64 {
        let sent = Instant::now();
        socket.send(&number.to_be_bytes())?;
        socket.recv(&mut [0; 64])?;
        let error_ns = sent.elapsed().as_nanos() as i64 - rtt.as_nanos() as i64;
        let packets = tap.take().packets;
        let lateness_ns = packets.iter().map(CapturedPacket::lateness_ns).max().unwrap_or(0);
        echoes.push(Echo { error_ns, lateness_ns });
        // Not in step with the echo before.
        thread::sleep(Duration::from_micros(300 + number % 7 * 100));
    }
    Ok(echoes)
}

/// For all samples of a path.
const MAX_DURATION: Duration = Duration::from_secs(60);
const PORT: u16 = 7;
