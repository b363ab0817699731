//! Compares the link with its configuration by UDP echoes over each path, before and after the
//! samples, and describes it for the record.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use firstflight_emulator::{Backend, Network, NetworkConfig, wake_promptly};
use firstflight_report::statistics::{ascending, percentile, samples_needed};
use firstflight_report::{Calibration, LinkFacts};
use procfs::{CurrentSI as _, KernelStats};

use crate::LabError;
use crate::paths::{PathClass, PlannedPath};

/// A UDP echo server in the server's namespace. It runs until it is dropped.
pub(crate) struct EchoServer {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl EchoServer {
    pub(crate) fn start(network: &Network) -> Result<Self, LabError> {
        let failed = |source| LabError::System { what: "start the echo server", source };
        let socket = network.server().run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)))?;
        let socket = socket.map_err(failed)?;
        socket.set_read_timeout(Some(STOP_CHECK_INTERVAL)).map_err(failed)?;
        let ended = Arc::new(AtomicBool::new(false));
        let stop = ended.clone();
        let thread = network.server().spawn("echo", move || serve_echoes(&socket, &stop))?;
        Ok(Self { ended, thread: Some(thread) })
    }
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // An error means that the thread panicked, so there is nothing left to stop.
            let _ = thread.join();
        }
    }
}

fn serve_echoes(socket: &UdpSocket, stop: &AtomicBool) {
    // Both ends of an echo must wake at least as promptly as the link, whose error is measured.
    let _ = wake_promptly();
    let mut buffer = [0; 64];
    while !stop.load(Ordering::Relaxed) {
        if let Ok((length, from)) = socket.recv_from(&mut buffer) {
            // A lost echo only means one probe fewer.
            let _ = socket.send_to(&buffer[..length], from);
        }
    }
}

/// Sends echoes over every path whose delay does not vary by design, and returns by how much they
/// missed the path's round-trip time. Must run in the client's namespace.
pub(crate) fn calibrate(
    paths: &[(PlannedPath, Ipv4Addr)],
    before: bool,
) -> Result<Vec<Calibration>, LabError> {
    let failed = |source| LabError::System { what: "send echoes", source };
    let expected = paths
        .iter()
        .filter_map(|(path, server)| path.echo_rtt(ECHO_BYTES).map(|rtt| (path, rtt, *server)));
    let (short, long): (Vec<_>, Vec<_>) =
        expected.partition(|(path, ..)| path.class == PathClass::Short);
    // Long paths consist mostly of waiting, so they do not disturb each other.
    let long_errors = thread::scope(|scope| {
        let probe = |(_, rtt, server): &(_, Duration, Ipv4Addr)| {
            let (rtt, server) = (*rtt, *server);
            scope.spawn(move || probe(server, rtt, LONG_PATH_PROBES))
        };
        let probes: Vec<_> = long.iter().map(probe).collect();
        let joined = probes.into_iter().map(|thread| thread.join().expect("a probe never panics"));
        joined.collect::<io::Result<Vec<_>>>()
    });
    let mut errors: Vec<(&PlannedPath, Vec<f64>)> =
        long.iter().map(|(path, ..)| *path).zip(long_errors.map_err(failed)?).collect();
    for (path, rtt, server) in short {
        // A separate thread, so that the calling thread keeps its settings.
        let echoes = thread::scope(|scope| {
            scope
                .spawn(|| probe(server, rtt, SHORT_PATH_PROBES))
                .join()
                .expect("a probe never panics")
        });
        errors.push((path, echoes.map_err(failed)?));
    }
    let calibration = |(path, errors): (&PlannedPath, Vec<f64>)| {
        let errors = ascending(errors);
        let p99 = if errors.len() >= samples_needed(0.99) { 0.99 } else { 1.0 };
        Some(Calibration {
            profile: path.name().to_owned(),
            before,
            probes: errors.len(),
            min_us: *errors.first()?,
            p50_us: percentile(&errors, 0.5)?,
            p99_us: percentile(&errors, p99)?,
        })
    };
    Ok(errors.into_iter().filter_map(calibration).collect())
}

/// Sends `count` echoes at least [`PROBE_INTERVAL`] apart, and returns by how many microseconds
/// each took longer than `rtt`.
fn probe(server: Ipv4Addr, rtt: Duration, count: usize) -> io::Result<Vec<f64>> {
    let _ = wake_promptly();
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(SocketAddr::from((server, PORT)))?;
    let mut sent: Vec<Instant> = Vec::with_capacity(count);
    let mut errors = Vec::with_capacity(count);
    let mut next = Instant::now();
    let mut buffer = [0; 64];
    loop {
        let now = Instant::now();
        if sent.len() < count && now >= next {
            let number = sent.len() as u32;
            sent.push(Instant::now());
            socket.send(&number.to_be_bytes())?;
            // Keeps probes from falling into step with timers or with the previous echo.
            next = now + PROBE_INTERVAL.max(rtt.min(PROBE_INTERVAL * 2)) + STAGGER * (number % 7);
        }
        let deadline = sent.last().map_or(now, |last| *last + rtt + ECHO_TIMEOUT);
        let until = if sent.len() < count { next } else { deadline };
        let remaining = until.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            match sent.len() == count {
                true => return Ok(errors),
                false => continue,
            }
        }
        socket.set_read_timeout(Some(remaining))?;
        match socket.recv(&mut buffer) {
            Ok(_) => {
                let received = Instant::now();
                let number = u32::from_be_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]);
                if let Some(sent) = sent.get(number as usize) {
                    errors.push((received - *sent).as_secs_f64() * 1e6 - rtt.as_secs_f64() * 1e6);
                }
                if errors.len() == count {
                    return Ok(errors);
                }
            }
            Err(error) if is_timeout(error.kind()) => {}
            Err(error) => return Err(error),
        }
    }
}

fn is_timeout(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

const PORT: u16 = 7;
/// An echo: 4 bytes in UDP and IPv4.
const ECHO_BYTES: usize = 4 + 8 + 20;
const PROBE_INTERVAL: Duration = Duration::from_millis(3);
const STAGGER: Duration = Duration::from_micros(170);
const LONG_PATH_PROBES: usize = 60;
const SHORT_PATH_PROBES: usize = 100;
/// How much longer than the round-trip time the last echo may take before it counts as lost.
const ECHO_TIMEOUT: Duration = Duration::from_millis(500);
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The processor time that the machine has denied the link so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MachineTimes {
    /// How long the link's thread waited for a processor.
    waited_ns: Option<u64>,
    /// How long the hypervisor ran other guests instead of this machine, in processor ticks.
    stolen: Option<u64>,
}

impl MachineTimes {
    pub(crate) fn now(network: &Network) -> Self {
        Self {
            waited_ns: network.counters().ok().and_then(|counters| counters.waited_ns),
            stolen: KernelStats::current().ok().and_then(|stats| stats.total.steal),
        }
    }
}

/// Describes the link, how punctually it has delivered packets so far, and the processor time that
/// the machine has denied it since `before`.
pub(crate) fn link_facts(network: &Network, keep_awake: bool, before: MachineTimes) -> LinkFacts {
    let lateness = network.lateness();
    let after = MachineTimes::now(network);
    let denied = |before: Option<u64>, after: Option<u64>, per_ms: f64| {
        Some(after?.saturating_sub(before?) as f64 / per_ms)
    };
    let ticks_per_ms = procfs::ticks_per_second() as f64 / 1e3;
    let defaults = NetworkConfig::new(Vec::new());
    LinkFacts {
        backend: match network.backend() {
            Backend::PacketRings => "packet rings".to_owned(),
            Backend::Tun => "TUN".to_owned(),
        },
        congestion_control: defaults.congestion_control,
        initial_window: defaults.initial_window,
        packets: lateness.packets,
        lateness_p50_us: lateness.p50_ns as f64 / 1e3,
        lateness_p99_us: lateness.p99_ns as f64 / 1e3,
        lateness_max_us: lateness.max_ns as f64 / 1e3,
        own_lateness_p99_us: Some(lateness.own_p99_ns as f64 / 1e3),
        waited_ms: denied(before.waited_ns, after.waited_ns, 1e6),
        stolen_ms: denied(before.stolen, after.stolen, ticks_per_ms),
        refused_settings: network.refused_settings().to_vec(),
        keep_awake,
        calibrations: Vec::new(),
    }
}

/// Whether the machine is mostly idle. Watches its processors for [`IDLE_CHECK_TIME`].
pub(crate) fn machine_is_idle() -> bool {
    let Some(before) = ticks() else { return false };
    thread::sleep(IDLE_CHECK_TIME);
    let Some(after) = ticks() else { return false };
    let (idle, all) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
    idle as f64 >= MIN_IDLE_SHARE * all.max(1) as f64
}

const IDLE_CHECK_TIME: Duration = Duration::from_millis(500);
const MIN_IDLE_SHARE: f64 = 0.8;

/// Idle ticks and all ticks of all processors since the machine was booted.
fn ticks() -> Option<(u64, u64)> {
    let total = KernelStats::current().ok()?.total;
    let idle = total.idle + total.iowait?;
    // User and nice include guest times.
    let busy = total.user + total.nice + total.system + total.irq? + total.softirq? + total.steal?;
    Some((idle, idle + busy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_ticks_are_a_part_of_all_ticks() {
        let (idle, all) = ticks().unwrap();
        assert!(0 < idle && idle < all, "{idle} of {all}");
    }
}
