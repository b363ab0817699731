//! Keeps the processors from sleeping while figures are taken.
//!
//! A halted virtual CPU takes tens of microseconds to wake, at each end of each round trip. A
//! thread that spins at idle priority on every CPU prevents the halt and gives way at once to
//! whatever else wants to run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// One idle-priority thread for each CPU that this process may use; dropped, they end.
#[derive(Debug)]
pub(crate) struct Awake {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Awake {
    /// Starts them; a machine that refuses one does without.
    pub(crate) fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
        let cpus = (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false));
        let start = |cpu| {
            let stop = Arc::clone(&stop);
            thread::Builder::new().name(format!("awake {cpu}")).spawn(move || spin(cpu, &stop)).ok()
        };
        let threads = cpus.filter_map(start).collect();
        Self { stop, threads }
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It cannot panic, and nothing could be done about it.
            let _ = thread.join();
        }
    }
}

fn spin(cpu: usize, stop: &AtomicBool) {
    let mut only = CpuSet::new();
    let pinned = only.set(cpu).is_ok() && sched_setaffinity(Pid::from_raw(0), &only).is_ok();
    // Never at a priority that would take time from anybody.
    if !pinned || !at_idle_priority() {
        return;
    }
    while !stop.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
}

fn at_idle_priority() -> bool {
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads a live sched_param; pid 0 is this thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameter) == 0 }
}
