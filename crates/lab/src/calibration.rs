//! The link held against its configuration: UDP echoes over each path, before and after the
//! samples.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use firstflight_emulator::Network;
use firstflight_report::Calibration;
use firstflight_report::statistics::{ascending, percentile, samples_needed};

use crate::LabError;
use crate::paths::{Family, PlannedPath};

/// Answers echoes in the server's namespace until it is dropped.
pub(crate) struct Echo {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    pub(crate) fn start(network: &Network) -> Result<Self, LabError> {
        let failed = |source| LabError::System { what: "answer echoes", source };
        let socket = network.server().run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)))?;
        let socket = socket.map_err(failed)?;
        socket.set_read_timeout(Some(LOOK_UP)).map_err(failed)?;
        let ended = Arc::new(AtomicBool::new(false));
        let until = ended.clone();
        let thread = network.server().spawn("echo", move || response(&socket, &until))?;
        Ok(Self { ended, thread: Some(thread) })
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It can only have panicked, and then nothing is left to end.
            let _ = thread.join();
        }
    }
}

fn response(socket: &UdpSocket, ended: &AtomicBool) {
    let mut buffer = [0; 64];
    while !ended.load(Ordering::Relaxed) {
        if let Ok((length, from)) = socket.recv_from(&mut buffer) {
            // A lost echo is one probe less.
            let _ = socket.send_to(&buffer[..length], from);
        }
    }
}

/// Sends echoes over every path and returns their errors. To be called in the client's namespace.
pub(crate) fn calibrate(
    paths: &[(PlannedPath, Ipv4Addr)],
    before: bool,
) -> Result<Vec<Calibration>, LabError> {
    let failed = |source| LabError::System { what: "send echoes", source };
    let (short, long): (Vec<_>, Vec<_>) =
        paths.iter().partition(|(path, _)| path.family == Family::Short);
    // Paths of which most is waiting do not disturb each other.
    let together = thread::scope(|scope| {
        let probe = |(path, server): &&(PlannedPath, Ipv4Addr)| {
            let (rtt, server) = (path.rtt_of(ECHO_BYTES), *server);
            scope.spawn(move || probe(server, rtt, LONG_PROBES))
        };
        let probes: Vec<_> = long.iter().map(probe).collect();
        let joined = probes.into_iter().map(|thread| thread.join().expect("a probe never panics"));
        joined.collect::<io::Result<Vec<_>>>()
    });
    let mut errors: Vec<(&PlannedPath, Vec<f64>)> =
        long.iter().map(|(path, _)| path).zip(together.map_err(failed)?).collect();
    for (path, server) in short {
        errors.push((path, probe(*server, path.rtt_of(ECHO_BYTES), SHORT_PROBES).map_err(failed)?));
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

/// Sends `count` echoes, one every [`EVERY`] or one after the other if the path is shorter, and
/// returns by how many microseconds each took longer than `rtt`.
fn probe(server: Ipv4Addr, rtt: Duration, count: usize) -> io::Result<Vec<f64>> {
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
            // Not in step with timers or with the echo before.
            next = now + EVERY.max(rtt.min(EVERY * 2)) + STAGGER * (number % 7);
        }
        let last = sent.last().map_or(now, |last| *last + rtt + ECHO_TIMEOUT);
        let until = if sent.len() < count { next } else { last };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            match sent.len() == count {
                true => return Ok(errors),
                false => continue,
            }
        }
        socket.set_read_timeout(Some(left))?;
        match socket.recv(&mut buffer) {
            Ok(_) => {
                let came = Instant::now();
                let number = u32::from_be_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]);
                if let Some(sent) = sent.get(number as usize) {
                    errors.push((came - *sent).as_secs_f64() * 1e6 - rtt.as_secs_f64() * 1e6);
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
/// An echo's number in UDP in IPv4.
const ECHO_BYTES: usize = 4 + 8 + 20;
const EVERY: Duration = Duration::from_millis(3);
const STAGGER: Duration = Duration::from_micros(170);
const LONG_PROBES: usize = 60;
const SHORT_PROBES: usize = 100;
/// How long a lost echo is waited for.
const ECHO_TIMEOUT: Duration = Duration::from_millis(500);
const LOOK_UP: Duration = Duration::from_millis(100);
