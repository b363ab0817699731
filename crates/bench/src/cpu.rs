//! CPU time: of this thread by the kernel's word, of another process by `/proc`.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use procfs::ProcError;
use procfs::process::Process;

/// CPU time of the calling thread so far, kernel included.
pub(crate) fn of_this_thread() -> Duration {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(Duration::ZERO, |usage| {
        let micros = (usage.user_time() + usage.system_time()).num_microseconds();
        Duration::from_micros(micros.try_into().unwrap_or_default())
    })
}

/// CPU time of processes, thread by thread. A thread that ends while it is watched takes its time
/// since the last look along.
pub(crate) struct Watched {
    pids: Vec<u32>,
    before: HashMap<(u32, u32), u64>,
}

impl Watched {
    /// Looks for the first time; with the process that cannot be read, if there is one.
    pub(crate) fn begin(pids: &[u32]) -> Result<Self, (u32, io::Error)> {
        let before = look(pids)?;
        Ok(Self { pids: pids.to_vec(), before })
    }

    /// CPU time since the first look; `None` when a process has gone, or none was named.
    pub(crate) fn spent(&self) -> Option<Duration> {
        if self.pids.is_empty() {
            return None;
        }
        let after = look(&self.pids).ok()?;
        let spent = after.iter().map(|(thread, nanos)| {
            nanos.saturating_sub(self.before.get(thread).copied().unwrap_or_default())
        });
        Some(Duration::from_nanos(spent.sum()))
    }
}

/// Nanoseconds on a processor by process and thread.
fn look(pids: &[u32]) -> Result<HashMap<(u32, u32), u64>, (u32, io::Error)> {
    let mut found = HashMap::new();
    for &pid in pids {
        let failed = |error: ProcError| (pid, io::Error::other(error));
        let process = Process::new(pid as i32).map_err(failed)?;
        for thread in process.tasks().map_err(failed)? {
            match thread.and_then(|thread| Ok((thread.tid as u32, thread.schedstat()?))) {
                Ok((tid, schedule)) => {
                    found.insert((pid, tid), schedule.sum_exec_runtime);
                }
                // The thread ended between the two looks.
                Err(ProcError::NotFound(_)) if process.schedstat().is_ok() => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }
    Ok(found)
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
    fn work_shows_in_both_clocks() {
        let watched = Watched::begin(&[std::process::id()]).unwrap();
        let before = of_this_thread();
        work(|| of_this_thread() > before + Duration::from_millis(20));
        assert!(watched.spent().unwrap() >= Duration::from_millis(10));
    }

    #[test]
    fn a_process_that_is_not_there_is_named() {
        // Process ids end at 2^22.
        assert_eq!(Watched::begin(&[1 << 23]).err().unwrap().0, 1 << 23);
        assert_eq!(Watched::begin(&[]).unwrap().spent(), None);
    }
}
