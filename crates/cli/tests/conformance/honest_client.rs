//! An honest client during an attack, and the cost of the attack for the server.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::running::Serve;
use crate::wire::Dialer;

/// A client that fetches the page repeatedly, each time on a new connection.
pub(crate) struct HonestClient {
    stop_flag: Arc<AtomicBool>,
    thread: JoinHandle<Report>,
}

/// The result of an honest client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    /// Requests that got the page.
    pub(crate) served: u32,
    /// Errors of other requests.
    pub(crate) failed: Vec<String>,
    /// The maximum time of a request, handshake included.
    pub(crate) slowest: Duration,
}

impl HonestClient {
    pub(crate) fn start(server: &Serve) -> Self {
        let dialer = Dialer::new(server, "http/1.1");
        let stop_flag = Arc::<AtomicBool>::default();
        let stop = stop_flag.clone();
        let thread = thread::spawn(move || {
            let mut report = Report::default();
            // At least once, even if the attack is short.
            while report.served == 0 || !stop.load(Ordering::Relaxed) {
                let started = Instant::now();
                match fetch(&dialer) {
                    Ok(()) => report.served += 1,
                    Err(what) => report.failed.push(what),
                }
                report.slowest = report.slowest.max(started.elapsed());
                if report.failed.len() > 10 {
                    break;
                }
                thread::sleep(Duration::from_millis(20));
            }
            report
        });
        Self { stop_flag, thread }
    }

    pub(crate) fn end(self) -> Report {
        self.stop_flag.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn fetch(dialer: &Dialer) -> Result<(), String> {
    let mut wire = dialer.connect().map_err(|error| error.to_string())?;
    wire.send(b"GET /index.html HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .map_err(|error| error.to_string())?;
    let response = wire.read_to_end();
    match response.starts_with(b"HTTP/1.1 200 ")
        && response.ends_with(crate::running::PAGE.as_bytes())
    {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&response).into_owned()),
    }
}

/// The resources that a process has used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// Resident memory in KiB: now, and the maximum so far.
    pub(crate) memory: u64,
    pub(crate) peak: u64,
    /// Processor time so far.
    pub(crate) cpu: Duration,
}

/// Reads the resources that a server has used so far.
pub(crate) fn usage(server: &Serve) -> Usage {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let number = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap()
    };
    let stat = fs::read_to_string(format!("/proc/{}/stat", server.pid())).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    // User and system time, in hundredths of a second, are the 14th and 15th of all fields.
    let ticks: u64 =
        fields.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    Usage {
        memory: number("VmRSS:"),
        peak: number("VmHWM:"),
        cpu: Duration::from_millis(ticks * 10),
    }
}
