//! CPU time and memory of threads and processes.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use procfs::ProcError;
use procfs::process::Process;

/// Returns the CPU time of the calling thread so far, kernel included.
pub(crate) fn thread_cpu_time() -> Duration {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(Duration::ZERO, |usage| {
        let micros = (usage.user_time() + usage.system_time()).num_microseconds();
        Duration::from_micros(micros.try_into().unwrap_or_default())
    })
}

/// Returns the resident memory of a process in KiB.
pub(crate) fn resident_kib(pid: u32) -> io::Result<u64> {
    let status = Process::new(pid as i32).and_then(|process| process.status());
    let resident = status.map_err(io::Error::other)?.vmrss;
    resident.ok_or_else(|| io::Error::other("its status has no VmRSS"))
}

/// Measures the CPU time of processes, thread by thread. The time of a thread that ends before
/// [`CpuMeter::used`] is called is lost.
pub(crate) struct CpuMeter {
    pids: Vec<u32>,
    before: HashMap<(u32, u32), u64>,
}

impl CpuMeter {
    /// Starts to measure.
    ///
    /// # Errors
    /// The process that cannot be read, and why.
    pub(crate) fn start(pids: &[u32]) -> Result<Self, (u32, io::Error)> {
        let before = read_times(pids)?;
        Ok(Self { pids: pids.to_vec(), before })
    }

    /// Returns the CPU time since the start. `None` if a process has ended, or if there are none.
    pub(crate) fn used(&self) -> Option<Duration> {
        if self.pids.is_empty() {
            return None;
        }
        let after = read_times(&self.pids).ok()?;
        let used = after.iter().map(|(thread, nanos)| {
            nanos.saturating_sub(self.before.get(thread).copied().unwrap_or_default())
        });
        Some(Duration::from_nanos(used.sum()))
    }
}

/// CPU time in nanoseconds, by process and thread.
fn read_times(pids: &[u32]) -> Result<HashMap<(u32, u32), u64>, (u32, io::Error)> {
    let mut times = HashMap::new();
    for &pid in pids {
        let failed = |error: ProcError| (pid, io::Error::other(error));
        let process = Process::new(pid as i32).map_err(failed)?;
        for thread in process.tasks().map_err(failed)? {
            match thread.and_then(|thread| Ok((thread.tid as u32, thread.schedstat()?))) {
                Ok((tid, schedule)) => {
                    times.insert((pid, tid), schedule.sum_exec_runtime);
                }
                // The thread ended after it was listed.
                Err(ProcError::NotFound(_)) if process.schedstat().is_ok() => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(until: impl Fn() -> bool) {
        while !until() {
            std::hint::black_box((0..1000).sum::<u64>());
        }
    }

    #[test]
    fn work_counts_for_the_thread_and_for_the_process() {
        let meter = CpuMeter::start(&[std::process::id()]).unwrap();
        let before = thread_cpu_time();
        work(|| thread_cpu_time() > before + Duration::from_millis(20));
        assert!(meter.used().unwrap() >= Duration::from_millis(10));
    }

    #[test]
    fn a_missing_process_is_named() {
        // Process ids end at 2^22.
        assert_eq!(CpuMeter::start(&[1 << 23]).err().unwrap().0, 1 << 23);
        assert_eq!(CpuMeter::start(&[]).unwrap().used(), None);
    }

    #[test]
    fn touched_memory_is_resident() {
        let before = resident_kib(std::process::id()).unwrap();
        let touched = vec![1u8; 32 << 20];
        let after = resident_kib(std::process::id()).unwrap();
        assert!(std::hint::black_box(touched)[1 << 20] == 1 && after >= before + (24 << 10));
    }
}
