//! Metrics of the process: its resources, configuration reloads and exported spans.

use std::fs;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};
use procfs::process::{LimitValue, Process};

use super::labels::LabelInfo;
use super::{Counters, Description, Readings, ReloadResult, Snapshot};

/// Resources of the process.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProcessReading {
    /// The program's version.
    pub version: &'static str,
    /// Dropped lines of the access log.
    pub log_lines_lost: u64,
    /// Seconds of processor time used.
    pub cpu_seconds: f64,
    /// When it started, in seconds since 1970.
    pub start_time: f64,
    /// Bytes of memory in use.
    pub resident_bytes: u64,
    /// Bytes of address space.
    pub virtual_bytes: u64,
    /// Threads.
    pub threads: u64,
    /// Open file descriptors.
    pub open_fds: u64,
    /// Maximum number of open file descriptors.
    pub max_fds: u64,
}

impl ProcessReading {
    /// Reads /proc for this process. Values that cannot be read are 0.
    pub fn current(version: &'static str, log_lines_lost: u64) -> Self {
        let mut reading = Self { version, log_lines_lost, ..Self::default() };
        // Counted before `Process::myself`, which opens another descriptor.
        reading.open_fds = fs::read_dir("/proc/self/fd").map_or(0, |fds| fds.count() as u64);
        let Ok(process) = Process::myself() else { return reading };
        if let Ok(stat) = process.stat() {
            let seconds = |ticks: u64| ticks as f64 / procfs::ticks_per_second() as f64;
            reading.cpu_seconds = seconds(stat.utime + stat.stime);
            reading.start_time = *BOOTED_AT + seconds(stat.starttime);
            reading.resident_bytes = stat.rss * procfs::page_size();
            reading.virtual_bytes = stat.vsize;
            reading.threads = stat.num_threads.unsigned_abs();
        }
        let limit = process.limits().map(|limits| limits.max_open_files.soft_limit);
        if let Ok(LimitValue::Value(limit)) = limit {
            reading.max_fds = limit;
        }
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

/// When the machine was booted, in seconds since 1970. Not from /proc/stat, which systemd hides from
/// the packaged service; read once, so that the start time does not change.
static BOOTED_AT: LazyLock<f64> = LazyLock::new(|| {
    let uptime = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(uptime).as_secs_f64()
});

const VERSION: LabelInfo = LabelInfo::configured("version", "the program's version");

static BUILD_INFO: Description = Description::gauge(
    "firstflight_build_info",
    "Always 1; the label is the version.",
    "Different versions for longer than an upgrade: a node was not upgraded.",
);
static LOG_LINES_LOST: Description = Description::counter(
    "firstflight_access_log_lines_lost_total",
    "Lines of the access log dropped because the disk was too slow.",
    "Use a faster disk, or switch the access log off.",
);
static CPU_SECONDS: Description = Description::counter(
    "process_cpu_seconds_total",
    "Processor time used, in user and system mode.",
    "Full handshakes cost the most: check their share.",
);
static START_TIME: Description = Description::gauge(
    "process_start_time_seconds",
    "When the process started, in seconds since 1970.",
    "A change is a restart.",
);
static RESIDENT: Description = Description::gauge(
    "process_resident_memory_bytes",
    "Memory in use.",
    "Mostly the register and connections; both are bounded.",
);
static VIRTUAL: Description = Description::gauge(
    "process_virtual_memory_bytes",
    "Address space in use.",
    "Not a limit by itself.",
);
static THREADS: Description = Description::gauge(
    "process_threads",
    "Threads.",
    "`process.workers`, and some for file access.",
);
static OPEN_FDS: Description = Description::gauge(
    "process_open_fds",
    "Open file descriptors.",
    "At `process_max_fds` no connection can be accepted.",
);
static MAX_FDS: Description = Description::gauge(
    "process_max_fds",
    "Maximum number of open file descriptors.",
    "Set at least twice `limits.connections`: an upstream needs another one per connection.",
);

/// Reloads of the configuration.
#[derive(Debug)]
pub struct Reloads {
    ended: Counters<ReloadResult>,
    failed: AtomicBool,
    /// Milliseconds since 1970.
    applied_at: AtomicI64,
}

impl Default for Reloads {
    fn default() -> Self {
        Self {
            ended: Counters::new(&RELOADS),
            failed: AtomicBool::new(false),
            applied_at: AtomicI64::new(0),
        }
    }
}

impl Reloads {
    /// The process started with a configuration, at `unix` milliseconds since 1970.
    pub fn started(&self, unix: i64) {
        self.applied_at.store(unix, Ordering::Relaxed);
    }

    /// A reload applied a configuration, at `unix` milliseconds since 1970.
    pub fn succeeded(&self, unix: i64) {
        self.started(unix);
        self.failed.store(false, Ordering::Relaxed);
        self.ended.count(ReloadResult::Success);
    }

    /// A reload failed.
    pub fn failed(&self) {
        self.failed.store(true, Ordering::Relaxed);
        self.ended.count(ReloadResult::Failure);
    }

    pub(super) fn collect(&self, readings: &Readings, snapshot: &mut Snapshot) {
        snapshot.number(&GENERATION, readings.generation as f64);
        let successful = !self.failed.load(Ordering::Relaxed);
        snapshot.number(&SUCCESSFUL, f64::from(u8::from(successful)));
        snapshot.number(&APPLIED_AT, self.applied_at.load(Ordering::Relaxed) as f64 / 1e3);
        snapshot.push(self.ended.family());
    }
}

static GENERATION: Description = Description::gauge(
    "firstflight_config_generation",
    "Generation of the configuration in use: 1 after the start, plus 1 with each reload.",
    "Equal on nodes after the same reloads.",
);
static SUCCESSFUL: Description = Description::gauge(
    "firstflight_config_last_reload_successful",
    "1 unless the last reload failed.",
    "At 0 the old configuration stays in use. The log says why: an error, which \
     `firstflight serve --check` shows too, or a change that needs a restart.",
);
static APPLIED_AT: Description = Description::gauge(
    "firstflight_config_last_reload_success_timestamp_seconds",
    "When the configuration in use was applied, in seconds since 1970.",
    "Before your last change: it was not reloaded.",
);
static RELOADS: Description = Description::counter(
    "firstflight_config_reloads_total",
    "Reloads of the configuration.",
    "Growing without changes: something touches the files.",
);

/// Exported spans.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpanReading {
    /// Accepted by the collector.
    pub sent: u64,
    /// Dropped, because too many were waiting or the collector did not accept them.
    pub dropped: u64,
}

/// Adds the metric of exported spans. If spans are not exported, it has no series.
pub(super) fn collect_spans(spans: Option<&SpanReading>, snapshot: &mut Snapshot) {
    let results = spans.map(|spans| {
        [("sent".into(), spans.sent as f64), ("dropped".into(), spans.dropped as f64)]
    });
    snapshot.numbers(&SPANS, RESULT, results.into_iter().flatten());
}

const RESULT: LabelInfo = LabelInfo {
    name: "result",
    values: &[
        ("sent", "Accepted by the collector."),
        ("dropped", "Too many were waiting, or the collector did not accept them for a minute."),
    ],
    meaning: "",
};

static SPANS: Description = Description::counter(
    "firstflight_spans_total",
    "Spans of sampled requests, by result.",
    "`dropped`: the collector is unreachable or too slow, or `telemetry.traces_sampled` is too \
     high.",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_of_this_process_are_read() {
        let reading = ProcessReading::current("1", 0);
        assert!(reading.resident_bytes > 100_000, "{reading:?}");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let age = now - reading.start_time;
        assert!((-1.0..600.0).contains(&age) && reading.open_fds > 2, "{reading:?}");
        assert!(reading.max_fds >= reading.open_fds && reading.threads >= 1, "{reading:?}");
    }
}
