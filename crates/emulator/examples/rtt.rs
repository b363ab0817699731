//! Measures the link's own error by UDP echoes over paths of 0.2, 2, 20 and 200 ms, and compares it
//! with the bounds that the project promises for an idle machine.
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
//! The link's error is the time that both packets of an echo take from the sender's kernel to the
//! receiver's kernel, by the kernels' timestamps, minus the path's round-trip time. The link's own
//! error excludes the time in which the machine did not run the link. The echo's error is that of the
//! round trip as measured by the sender: it includes the wake-ups of the sender and the echo server.
//!
//! Like a sample of the lab, an echo is spoiled if the link delivered one of its packets more than a
//! millisecond late. Here, spoiled echoes are counted but not left out. Exits with status 1 if the own
//! error exceeds a bound.

use std::hint::black_box;
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
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
use nix::sys::socket::sockopt::ReceiveTimestampns;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, setsockopt};
use nix::time::{ClockId, clock_gettime};
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
    setsockopt(&socket, ReceiveTimestampns, &true)?;
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
    fn read(arguments: impl Iterator<Item = String>) -> Result<Self, Failure> {
        let (loaded, awake, json) = (false, false, false);
        let backend = Backend::PacketRings;
        let mut options = Self { samples: 300, loaded, awake, backend, json };
        for word in arguments {
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

/// The limits of the link's own error on a path.
struct Bound {
    rtt: Duration,
    p50_us: Option<f64>,
    p99_us: f64,
}

const BOUNDS: [Bound; 4] = [
    Bound { rtt: Duration::from_micros(200), p50_us: Some(60.0), p99_us: 150.0 },
    Bound { rtt: Duration::from_millis(2), p50_us: Some(60.0), p99_us: 150.0 },
    Bound { rtt: Duration::from_millis(20), p50_us: Some(80.0), p99_us: 300.0 },
    Bound { rtt: Duration::from_millis(200), p50_us: None, p99_us: 600.0 },
];
/// No round trip may be shorter than the path's by more than this.
const EARLIEST_US: f64 = -20.0;

/// One echo.
struct Echo {
    /// The round trip's error as the sender sees it.
    error_ns: i64,
    /// The link's error, by the kernel's timestamps.
    link_error_ns: i64,
    /// The part of the link's error during which the machine did not run the link.
    stalled_ns: i64,
    /// How late the link delivered the later of its two packets.
    lateness_ns: u64,
}

/// The machine, not the link, causes later deliveries.
const SPOILED_NS: u64 = 1_000_000;

struct Measured<'a> {
    bound: &'a Bound,
    /// The echoes in the order in which they were measured.
    echoes: Vec<Echo>,
    own_us: Vec<f64>,
    link_us: Vec<f64>,
    echo_us: Vec<f64>,
}

impl<'a> Measured<'a> {
    fn new(bound: &'a Bound, echoes: Vec<Echo>) -> Self {
        let sorted = |error: fn(&Echo) -> i64| {
            let mut errors: Vec<f64> = echoes.iter().map(|echo| error(echo) as f64 / 1e3).collect();
            errors.sort_by(f64::total_cmp);
            errors
        };
        let own_us = sorted(|echo| echo.link_error_ns - echo.stalled_ns);
        let link_us = sorted(|echo| echo.link_error_ns);
        let echo_us = sorted(|echo| echo.error_ns);
        Self { bound, echoes, own_us, link_us, echo_us }
    }

    fn spoiled(&self) -> usize {
        self.echoes.iter().filter(|echo| echo.lateness_ns > SPOILED_NS).count()
    }

    fn at(&self, quantile: f64) -> f64 {
        nearest_rank(&self.own_us, quantile)
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
        "Errors in microseconds, {} by {:?}, privilege {privilege:?}; settings refused: {:?}",
        if options.loaded { "one core loaded," } else { "no load of ours," },
        network.backend(),
        network.refused_settings()
    );
    println!(
        "{:>6} {:>6} {:>8} {:>8} {:>8} {:>10} {:>8} {:>8} {:>8} {:>8} {:>7}  verdict",
        "RTT",
        "echoes",
        "own min",
        "own p50",
        "own p99",
        "bounds",
        "link p50",
        "link p99",
        "echo p50",
        "echo p99",
        "spoiled",
    );
    for measured in results {
        let Bound { rtt, p50_us, p99_us } = measured.bound;
        let bound = format!("{} / {p99_us}", p50_us.map_or("-".to_owned(), |us| us.to_string()));
        let faults = measured.faults().join(", ");
        println!(
            "{:>6} {:>6} {:>8.1} {:>8.1} {:>8.1} {bound:>10} {:>8.1} {:>8.1} {:>8.1} {:>8.1} {:>7}  {}",
            format!("{rtt:?}"),
            measured.echoes.len(),
            measured.at(0.0),
            measured.at(0.5),
            measured.at(0.99),
            nearest_rank(&measured.link_us, 0.5),
            nearest_rank(&measured.link_us, 0.99),
            nearest_rank(&measured.echo_us, 0.5),
            nearest_rank(&measured.echo_us, 0.99),
            measured.spoiled(),
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
                "own_p50_us": measured.at(0.5),
                "own_p99_us": measured.at(0.99),
                "bound_p50_us": measured.bound.p50_us,
                "bound_p99_us": measured.bound.p99_us,
                "missed": measured.faults(),
                "spoiled": measured.spoiled(),
                "link_p50_us": nearest_rank(&measured.link_us, 0.5),
                "link_p99_us": nearest_rank(&measured.link_us, 0.99),
                "echo_p50_us": nearest_rank(&measured.echo_us, 0.5),
                "echo_p99_us": nearest_rank(&measured.echo_us, 0.99),
                "stalled_ns":
                    measured.echoes.iter().map(|echo| echo.stalled_ns).collect::<Vec<_>>(),
                "link_errors_ns":
                    measured.echoes.iter().map(|echo| echo.link_error_ns).collect::<Vec<_>>(),
                "echo_errors_ns":
                    measured.echoes.iter().map(|echo| echo.error_ns).collect::<Vec<_>>(),
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
        let mut cpus = CpuSet::new();
        cpus.set(core.ok_or("no core to load")?)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new().name("load".to_owned()).spawn(move || {
            // Without pinning, the load may move between cores.
            let _ = sched_setaffinity(Pid::from_raw(0), &cpus);
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

/// Responds to each packet with the time at which the kernel received it.
fn echo(socket: &UdpSocket) {
    let _ = wake_promptly();
    while let Ok((received_ns, _, Some(from))) = receive(socket) {
        // A lost echo shows up as the prober's timeout.
        let _ = socket.send_to(&received_ns.to_be_bytes(), SocketAddr::from(from));
    }
}

fn probe(server: SocketAddr, rtt: Duration, count: usize, tap: &Tap) -> io::Result<Vec<Echo>> {
    let _ = wake_promptly();
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(Duration::from_secs(2)))?;
    setsockopt(&socket, ReceiveTimestampns, &true)?;
    tap.take();
    let mut echoes = Vec::with_capacity(count);
    for number in 0..count as u64 {
        let sent = Instant::now();
        socket.send(&number.to_be_bytes())?;
        let (received_ns, received_there_ns, _) = receive(&socket)?;
        let error_ns = sent.elapsed().as_nanos() as i64 - rtt.as_nanos() as i64;
        let packets = tap.take().packets;
        if packets.len() != 2 {
            return Err(io::Error::other("an echo is not two packets"));
        }
        let lateness_ns = packets.iter().map(CapturedPacket::lateness_ns).max().unwrap_or(0);
        // The link uses the monotonic clock; the kernel's timestamps are of the real-time clock.
        let offset_ns = now_ns(ClockId::CLOCK_REALTIME)? - now_ns(ClockId::CLOCK_MONOTONIC)?;
        let sent_ns: i64 = packets.iter().map(|packet| packet.arrival_ns as i64 + offset_ns).sum();
        let link_error_ns = received_ns + received_there_ns - sent_ns - rtt.as_nanos() as i64;
        let stalled_ns = packets.iter().map(|packet| packet.stalled_ns as i64).sum();
        echoes.push(Echo { error_ns, link_error_ns, stalled_ns, lateness_ns });
        // A varying pause, so that echoes are not in step.
        thread::sleep(Duration::from_micros(300 + number % 7 * 100));
    }
    Ok(echoes)
}

/// Receives a packet of eight bytes. Returns the kernel's timestamp, the content and the sender.
fn receive(socket: &UdpSocket) -> io::Result<(i64, i64, Option<std::net::SocketAddrV4>)> {
    let mut content = [0; 8];
    let mut buffers = [IoSliceMut::new(&mut content)];
    let mut control = nix::cmsg_space!(nix::sys::time::TimeSpec);
    let (descriptor, flags) = (socket.as_raw_fd(), MsgFlags::empty());
    let received = recvmsg::<SockaddrIn>(descriptor, &mut buffers, Some(&mut control), flags)?;
    let from = received.address.map(Into::into);
    let stamp = received.cmsgs()?.find_map(|message| match message {
        ControlMessageOwned::ScmTimestampns(stamp) => Some(nanoseconds(stamp)),
        _ => None,
    });
    let stamp = stamp.ok_or_else(|| io::Error::other("the kernel gave no timestamp"))?;
    Ok((stamp, i64::from_be_bytes(content), from))
}

fn now_ns(clock: ClockId) -> io::Result<i64> {
    Ok(nanoseconds(clock_gettime(clock)?))
}

fn nanoseconds(time: nix::sys::time::TimeSpec) -> i64 {
    time.tv_sec() * 1_000_000_000 + time.tv_nsec()
}

/// Limits the time for all samples of a path.
const MAX_DURATION: Duration = Duration::from_secs(60);
const PORT: u16 = 7;
