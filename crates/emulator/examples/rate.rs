//! Measures the goodput of one TCP connection through a rate of 10, 100 and 1,000 Mbit/s, and
//! compares it with the ideal: 1,448 bytes of payload in an IP packet of 1,500 (TCP with timestamps).
//!
//! `cargo run --release -p firstflight-emulator --example rate [-- [SECONDS] [tun] [--json]]`
//!
//! Exits with status 1 if a rate is wrong by more than a percent.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use firstflight_emulator::{
    Backend, CellSpec, Network, NetworkConfig, PathConfig, RateSpec, enter_user_namespace,
};
use serde_json::json;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<ExitCode, Failure> {
    enter_user_namespace()?;
    let (mut seconds, mut backend, mut as_json) = (5.0, Backend::PacketRings, false);
    for word in std::env::args().skip(1) {
        match word.as_str() {
            "tun" => backend = Backend::Tun,
            "--json" => as_json = true,
            number => {
                seconds = number
                    .parse()
                    .map_err(|_| format!("{number:?} is none of SECONDS, tun, --json"))?;
            }
        }
    }
    let paths = RATES.map(path).to_vec();
    let network = Network::build(NetworkConfig { backend, ..NetworkConfig::new(paths) })?;
    // At a gigabit the tap would be full in seconds.
    network.tap().set_recording(false);
    let listener = network.server().run(|| TcpListener::bind(("0.0.0.0", PORT)))??;
    let mut results = Vec::new();
    for (index, mbits) in RATES.into_iter().enumerate() {
        let server = SocketAddr::from((network.path(index)?.server, PORT));
        let transferred = transfer(&network, &listener, server, Duration::from_secs_f64(seconds))?;
        let dropped = network.path_counters(index)?.up.dropped();
        let measured = Measured { mbits, transferred, dropped };
        if !as_json {
            println!("{measured}");
        }
        results.push(measured);
    }
    let counters = network.counters()?;
    if as_json {
        let all: Vec<_> = results.iter().map(Measured::json).collect();
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        println!("{counters:?}\n{:?}", network.lateness());
    }
    let passed = results.iter().all(Measured::passed);
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn path(mbits: f64) -> PathConfig {
    // Short delays, so that a sender's buffer of usual size keeps the queue filled during stalls.
    let (up, down) = (Duration::from_millis(1), Duration::from_millis(1));
    let queue_bytes = RateSpec::default_queue_bytes(mbits, up + down);
    let mut path = PathConfig::delays(format!("{mbits} Mbit/s"), up, down);
    path.up.insert(0, CellSpec::Rate(RateSpec { mbits, queue_bytes, burst_bytes: 0 }));
    path
}

struct Measured {
    mbits: f64,
    /// The bytes received, and the time that they took.
    transferred: (u64, Duration),
    dropped: u64,
}

impl Measured {
    fn goodput(&self) -> f64 {
        self.transferred.0 as f64 * 8.0 / self.transferred.1.as_secs_f64() / 1e6
    }

    fn ideal(&self) -> f64 {
        self.mbits * 1_448.0 / 1_500.0
    }

    /// The relative error of the goodput.
    fn error(&self) -> f64 {
        self.goodput() / self.ideal() - 1.0
    }

    fn passed(&self) -> bool {
        self.error().abs() <= 0.01
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "rate_mbps": self.mbits,
            "goodput_mbps": self.goodput(),
            "ideal_mbps": self.ideal(),
            "bytes": self.transferred.0,
            "seconds": self.transferred.1.as_secs_f64(),
            "dropped_by_queue": self.dropped,
            "passed": self.passed(),
        })
    }
}

impl std::fmt::Display for Measured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:>5} Mbit/s: {:>8.3} of {:>8.3} Mbit/s, {:+.2} %, {} packets dropped by the queue: {}",
            self.mbits,
            self.goodput(),
            self.ideal(),
            self.error() * 100.0,
            self.dropped,
            if self.passed() { "pass" } else { "FAIL" }
        )
    }
}

/// Sends during a warm-up and `length`. Returns the bytes received after the warm-up, and the time
/// that they took.
fn transfer(
    network: &Network,
    listener: &TcpListener,
    server: SocketAddr,
    length: Duration,
) -> Result<(u64, Duration), Failure> {
    let client = network.client().run(|| TcpStream::connect(server))??;
    let accepted = listener.accept()?.0;
    let sender = network.client().spawn("sender", move || {
        let chunk = vec![7; 1 << 16];
        // Ends when the reader has closed.
        while (&client).write_all(&chunk).is_ok() {}
    })?;
    let transferred = read_steadily(accepted, length)?;
    sender.join().map_err(|_| "the sender panicked")?;
    Ok(transferred)
}

fn read_steadily(mut stream: TcpStream, length: Duration) -> io::Result<(u64, Duration)> {
    let mut buffer = vec![0; 1 << 16];
    let start = Instant::now();
    while start.elapsed() < WARM_UP {
        let _ = nonzero(stream.read(&mut buffer)?)?;
    }
    let (start, mut bytes) = (Instant::now(), 0);
    loop {
        let elapsed = start.elapsed();
        if elapsed >= length {
            return Ok((bytes, elapsed));
        }
        bytes += nonzero(stream.read(&mut buffer)?)?;
    }
}

fn nonzero(length: usize) -> io::Result<u64> {
    match length {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        length => Ok(length as u64),
    }
}

const RATES: [f64; 3] = [10.0, 100.0, 1_000.0];
/// Until slow start is over and the queue is full.
const WARM_UP: Duration = Duration::from_secs(1);
const PORT: u16 = 9;
