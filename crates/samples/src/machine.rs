//! The machine that measures: its facts, and its performance counters.

use std::fs;

use firstflight_report::{MachineFacts, Record, SCHEMA};
use perf_event::events::Hardware;
use perf_event::{Builder, Counter};
use procfs::{CpuInfo, Current as _};

/// Returns the facts about the machine that matter when figures are compared.
pub fn machine_facts() -> MachineFacts {
    let processor = CpuInfo::current().ok().and_then(|all| Some(all.model_name(0)?.to_owned()));
    MachineFacts {
        kernel: nix::sys::utsname::uname()
            .map(|name| format!("Linux {}", name.release().to_string_lossy()))
            .unwrap_or_default(),
        processor: processor.unwrap_or_else(|| "unknown".to_owned()),
        processors: std::thread::available_parallelism().map_or(1, Into::into),
        no_counters: counters_unavailable_reason(),
    }
}

/// Returns an empty record of a run that starts now on this machine. `command` repeats the run.
pub fn blank_record(command: Vec<String>, seed: u64) -> Record {
    Record {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        date: utc_now(),
        command,
        seed,
        machine: machine_facts(),
        ..Record::default()
    }
}

/// The current time in UTC (RFC 3339).
pub fn utc_now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Counts the cycles and instructions that threads spend in user space.
pub struct Counters(Vec<[Counter; 2]>);

/// The values of counters.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// Processor cycles.
    pub cycles: f64,
    /// Instructions.
    pub instructions: f64,
}

impl Counters {
    /// Counts the calling thread.
    pub fn for_current_thread() -> Option<Self> {
        Some(Self(vec![open(None).ok()?]))
    }

    /// Counts all threads of these processes. Returns `None` if one of them cannot be counted.
    pub fn for_processes(pids: &[u32]) -> Option<Self> {
        let mut counters = Vec::new();
        for pid in pids {
            for task in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
                let thread = task.file_name().to_str()?.parse().ok()?;
                counters.push(open(Some(thread)).ok()?);
            }
        }
        Some(Self(counters))
    }

    /// The values so far.
    pub fn read(&mut self) -> Option<Counts> {
        let mut counts = Counts::default();
        for [cycles, instructions] in &mut self.0 {
            counts.cycles += cycles.read().ok()? as f64;
            counts.instructions += instructions.read().ok()? as f64;
        }
        Some(counts)
    }
}

/// Says why the machine's counters cannot be used. Returns `None` if they can.
pub fn counters_unavailable_reason() -> Option<String> {
    let error = open(None).err()?;
    let why = match error.raw_os_error() {
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV) => {
            "the processor has no counters, as on most virtual machines"
        }
        Some(libc::EACCES | libc::EPERM) => {
            "the kernel does not permit counting; set kernel.perf_event_paranoid to 2 or less"
        }
        Some(libc::ENOSYS) => "the kernel was built without perf_event_open",
        _ => "the counters cannot be opened",
    };
    Some(format!("{why} (perf_event_open: {error})"))
}

fn open(thread: Option<i32>) -> std::io::Result<[Counter; 2]> {
    let counter = |event| -> std::io::Result<Counter> {
        let mut builder = Builder::new(event);
        if let Some(thread) = thread {
            builder.observe_pid(thread);
        }
        let mut counter = builder.build()?;
        counter.enable()?;
        Ok(counter)
    };
    Ok([counter(Hardware::CPU_CYCLES)?, counter(Hardware::INSTRUCTIONS)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_work_or_their_absence_is_explained() {
        match (Counters::for_current_thread(), counters_unavailable_reason()) {
            (Some(mut counters), None) => {
                let before = counters.read().unwrap();
                let sum: u64 = std::hint::black_box((0..100_000_u64).sum());
                assert_eq!(sum, 4_999_950_000);
                let after = counters.read().unwrap();
                assert!(after.instructions > before.instructions);
            }
            (None, Some(why)) => assert!(why.contains("perf_event_open"), "{why}"),
            (counters, why) => panic!("counters: {}, yet {why:?}", counters.is_some()),
        }
    }
}
