//! Cycles and instructions, where the machine counts them.

use std::fs;

use perf_event::events::Hardware;
use perf_event::{Builder, Counter};

/// Counters of some threads, in user space.
pub struct Counters(Vec<[Counter; 2]>);

/// What counters have counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counted {
    /// Processor cycles.
    pub cycles: f64,
    /// Instructions.
    pub instructions: f64,
}

impl Counters {
    /// Counters of the calling thread.
    pub fn of_this_thread() -> Option<Self> {
        Some(Self(vec![open(None).ok()?]))
    }

    /// Counters of all threads of these processes; `None` if one of them cannot be counted.
    pub fn of(pids: &[u32]) -> Option<Self> {
        let mut counters = Vec::new();
        for pid in pids {
            for task in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
                let thread = task.file_name().to_str()?.parse().ok()?;
                counters.push(open(Some(thread)).ok()?);
            }
        }
        Some(Self(counters))
    }

    /// What they have counted so far.
    pub fn read(&mut self) -> Option<Counted> {
        let mut counted = Counted::default();
        for [cycles, instructions] in &mut self.0 {
            counted.cycles += cycles.read().ok()? as f64;
            counted.instructions += instructions.read().ok()? as f64;
        }
        Some(counted)
    }
}

/// Why this machine has no counters for us; `None`: it has.
pub fn why_none() -> Option<String> {
    let error = open(None).err()?;
    let why = match error.raw_os_error() {
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV) => {
            "the processor's counters are not there, as on most virtual machines"
        }
        Some(libc::EACCES | libc::EPERM) => {
            "the kernel does not let us count; set kernel.perf_event_paranoid to 2 or less"
        }
        Some(libc::ENOSYS) => "the kernel was built without perf_event_open",
        _ => "they cannot be opened",
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
    fn a_machine_counts_or_says_why_not() {
        match (Counters::of_this_thread(), why_none()) {
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
