//! The process, by the names that all exporters use.

use std::fs;

use super::label::LabelInfo;
use super::{Description, Snapshot};

/// The process's figures.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProcessReading {
    /// The program's version.
    pub version: &'static str,
    /// Lines of the access log that could not be written in time.
    pub log_lines_lost: u64,
    /// Seconds of processor time used.
    pub cpu_seconds: f64,
    /// When it began, in seconds since 1970.
    pub start_time: f64,
    /// Bytes of memory in use.
    pub resident_bytes: u64,
    /// Bytes of address space.
    pub virtual_bytes: u64,
    /// Threads.
    pub threads: u64,
    /// File descriptors that are open.
    pub open_fds: u64,
    /// File descriptors that may be open.
    pub max_fds: u64,
}

impl ProcessReading {
    /// This process, from /proc. What is not to be had is 0.
    pub fn of_this_process(version: &'static str, log_lines_lost: u64) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let mut reading = Self { version, log_lines_lost, ..Self::default() };
        let ticks = sysconf(nix::unistd::SysconfVar::CLK_TCK) as f64;
        let page = sysconf(nix::unistd::SysconfVar::PAGE_SIZE);
        if let Some(stat) = Stat::parse(&read("/proc/self/stat")) {
            reading.cpu_seconds = stat.cpu_ticks as f64 / ticks;
            reading.start_time = booted(&read("/proc/stat")) + stat.start_ticks as f64 / ticks;
            reading.resident_bytes = stat.resident_pages * page;
            reading.virtual_bytes = stat.virtual_bytes;
            reading.threads = stat.threads;
        }
        reading.open_fds = fs::read_dir("/proc/self/fd").map_or(0, |fds| fds.count() as u64);
        reading.max_fds = max_fds(&read("/proc/self/limits"));
        reading
    }

    pub(super) fn collect(&self, snapshot: &mut Snapshot) {
        let version = [(self.version.into(), 1.0)];
        snapshot.numbers(&BUILD_INFO, VERSION, version);
        snapshot.number(&LOG_LINES_LOST, self.log_lines_lost as f64);
        snapshot.number(&CPU_SECONDS, self.cpu_seconds);
        snapshot.number(&START_TIME, self.start_time);
        snapshot.number(&RESIDENT, self.resident_bytes as f64);
        snapshot.number(&VIRTUAL, self.virtual_bytes as f64);
        snapshot.number(&THREADS, self.threads as f64);
        snapshot.number(&OPEN_FDS, self.open_fds as f64);
        snapshot.number(&MAX_FDS, self.max_fds as f64);
    }
}

fn sysconf(what: nix::unistd::SysconfVar) -> u64 {
    let value = nix::unistd::sysconf(what).ok().flatten();
    value.and_then(|value| u64::try_from(value).ok()).unwrap_or(1).max(1)
}

/// What proc(5) has in /proc/PID/stat.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    cpu_ticks: u64,
    threads: u64,
    start_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The program's name comes second, in brackets, and may have anything in it.
        let (_, rest) = text.rsplit_once(')')?;
        let fields = rest.split_ascii_whitespace().collect::<Vec<_>>();
        // Counted from 1 in proc(5); two lie before the bracket's end.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            cpu_ticks: field(14)? + field(15)?,
            threads: field(20)?,
            start_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

/// When the machine was booted, from /proc/stat.
fn booted(stat: &str) -> f64 {
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "));
    line.and_then(|seconds| seconds.trim().parse().ok()).unwrap_or(0.0)
}

fn max_fds(limits: &str) -> u64 {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(0)
}

const VERSION: LabelInfo = LabelInfo::configured("version", "the program's version");

static BUILD_INFO: Description = Description::gauge(
    "firstflight_build_info",
    "Always 1; the label says what is running.",
    "Different versions for longer than an upgrade takes: a node was left out.",
);
static LOG_LINES_LOST: Description = Description::counter(
    "firstflight_access_log_lines_lost_total",
    "Lines of the access log that were dropped because the disk could not follow.",
    "Anything above 0: a faster disk, or no access log.",
);
static CPU_SECONDS: Description = Description::counter(
    "process_cpu_seconds_total",
    "Processor time used, in user and system mode.",
    "Full handshakes cost the most: see their share.",
);
static START_TIME: Description = Description::gauge(
    "process_start_time_seconds",
    "When the process began, in seconds since 1970.",
    "A change is a restart.",
);
static RESIDENT: Description = Description::gauge(
    "process_resident_memory_bytes",
    "Memory in use.",
    "Register and connections make it; both are bounded.",
);
static VIRTUAL: Description =
    Description::gauge("process_virtual_memory_bytes", "Address space in use.", "Of no concern.");
static THREADS: Description =
    Description::gauge("process_threads", "Threads.", "process.workers, and some for files.");
static OPEN_FDS: Description = Description::gauge(
    "process_open_fds",
    "File descriptors that are open.",
    "At the limit no connection can be accepted.",
);
static MAX_FDS: Description = Description::gauge(
    "process_max_fds",
    "File descriptors that may be open.",
    "Twice limits.connections and more: an upstream takes another one each.",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_may_have_anything_in_it() {
        let stat =
            "7 (a ) b (c) S 1 7 7 0 -1 4194304 10 0 0 0 25 17 0 0 20 0 9 0 12345 4096000 250 0";
        let expected = Stat {
            cpu_ticks: 42,
            threads: 9,
            start_ticks: 12345,
            virtual_bytes: 4_096_000,
            resident_pages: 250,
        };
        assert_eq!(Stat::parse(stat), Some(expected));
        assert_eq!(Stat::parse("7 (a) S 1"), None);
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn this_process_has_figures() {
        let reading = ProcessReading::of_this_process("1", 0);
        assert!(reading.resident_bytes > 100_000, "{reading:?}");
        assert!(reading.start_time > 1.6e9 && reading.open_fds > 2, "{reading:?}");
        assert!(reading.max_fds >= reading.open_fds && reading.threads >= 1, "{reading:?}");
    }
}
