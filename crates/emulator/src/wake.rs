//! Wake-ups: keeping CPUs from sleeping, prompt wake-ups of a thread, the margin before a deadline,
//! and the times at which the machine did not run a thread.
//!
//! A halted virtual CPU takes tens of microseconds to wake, at each end of each round trip. A
//! thread that spins at idle priority on every CPU prevents the halt, and yields at once to any
//! other thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// One idle-priority thread for each CPU of this process. The threads end when it is dropped.
#[derive(Debug)]
pub(crate) struct KeepAwake {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl KeepAwake {
    /// Starts the threads; CPUs that refuse are skipped.
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

impl Drop for KeepAwake {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It cannot panic.
            let _ = thread.join();
        }
    }
}

fn spin(cpu: usize, stop: &AtomicBool) {
    let mut cpus = CpuSet::new();
    let pinned = cpus.set(cpu).is_ok() && sched_setaffinity(Pid::from_raw(0), &cpus).is_ok();
    // Never spin at a priority that takes time from other threads.
    if !pinned || !set_idle_priority() {
        return;
    }
    while !stop.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
}

fn set_idle_priority() -> bool {
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads a live sched_param; pid 0 is this thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameter) == 0 }
}

/// Which settings the kernel granted a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WakeSettings {
    /// Timers expire when they are due, instead of up to 50 microseconds later.
    pub timer_slack: bool,
    /// A short time slice (Linux 6.12), so that the thread runs before others when it wakes.
    pub short_slice: bool,
}

/// Makes the calling thread wake as promptly as an ordinary user may request, like the link's own
/// thread. Threads that it starts inherit the settings. For threads that measure: on a busy machine
/// they otherwise wait for a time slice of several milliseconds.
pub fn wake_promptly() -> WakeSettings {
    // SAFETY: prctl with two plain numbers, for this thread only.
    let slack = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
    // A short slice gives an early virtual deadline, so a waking thread preempts others.
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: SLICE_NS,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel reads `size` bytes from a live sched_attr; pid 0 is this thread.
    let slice = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    WakeSettings { timer_slack: slack == 0, short_slice: slice == 0 && kernel_has_slices() }
}

/// Older kernels accept the attribute and ignore it.
fn kernel_has_slices() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    at_least(&release, (6, 12))
}

fn at_least(release: &str, minimum: (u32, u32)) -> bool {
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= minimum
}

/// The shortest slice that the kernel grants.
const SLICE_NS: u64 = 100_000;

/// How long before a deadline to wake, by sleep length, each between 60 and 300 microseconds.
///
/// A virtual CPU wakes later the longer it slept, so each class of sleep lengths learns its own
/// margin: it grows at once after a late wake-up, and shrinks slowly otherwise. A margin that is too
/// long takes CPU time from the endpoints; one that is too short costs accuracy.
#[derive(Debug)]
pub(crate) struct WakeMargin {
    margins_ns: [u64; CLASSES],
}

impl WakeMargin {
    pub(crate) fn new() -> Self {
        Self { margins_ns: [MIN_MARGIN_NS; CLASSES] }
    }

    /// How long before the deadline to wake from a sleep of about `sleep_ns`.
    pub(crate) fn for_sleep(&self, sleep_ns: u64) -> u64 {
        self.margins_ns[class(sleep_ns)]
    }

    /// Learns that a sleep of `sleep_ns` ended `late_ns` late.
    pub(crate) fn observe(&mut self, sleep_ns: u64, late_ns: u64) {
        let needed = (late_ns + HEADROOM_NS).clamp(MIN_MARGIN_NS, MAX_MARGIN_NS);
        let margin = &mut self.margins_ns[class(sleep_ns)];
        if needed > *margin {
            *margin = needed;
        } else {
            *margin -= (*margin - needed) / MARGIN_DECAY;
        }
    }
}

/// Classes of doubling length, from below 128 microseconds to above 65 milliseconds.
fn class(sleep_ns: u64) -> usize {
    let doublings = (sleep_ns >> 17).checked_ilog2().map_or(0, |log| log as usize + 1);
    doublings.min(CLASSES - 1)
}

const CLASSES: usize = 11;
const MIN_MARGIN_NS: u64 = 60_000;
const MAX_MARGIN_NS: u64 = 300_000;
const HEADROOM_NS: u64 = 15_000;
const MARGIN_DECAY: u64 = 64;

/// The latest period in which a thread was due to run and did not: it woke late, or was stopped while
/// it only polled the clock. The scheduler or the hypervisor causes stalls, not the link.
#[derive(Debug, Default)]
pub(crate) struct Stall {
    from_ns: u64,
    to_ns: u64,
}

impl Stall {
    /// Records that the thread was due to run at `due_ns` and ran at `ran_ns`.
    pub(crate) fn observe(&mut self, due_ns: u64, ran_ns: u64) {
        if ran_ns.saturating_sub(due_ns) >= MIN_STALL_NS {
            (self.from_ns, self.to_ns) = (due_ns, ran_ns);
        }
    }

    /// How long the thread did not run between two times.
    pub(crate) fn within(&self, from_ns: u64, to_ns: u64) -> u64 {
        self.to_ns.min(to_ns).saturating_sub(self.from_ns.max(from_ns))
    }
}

/// More than an iteration of the forwarding loop without packets takes.
const MIN_STALL_NS: u64 = 20_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_counts_where_it_overlaps() {
        let mut stall = Stall::default();
        assert_eq!(stall.within(0, 1_000_000), 0);
        stall.observe(100_000, 400_000);
        // Too short to count as a stall.
        stall.observe(500_000, 510_000);
        assert_eq!(stall.within(0, 1_000_000), 300_000);
        assert_eq!(stall.within(250_000, 420_000), 150_000);
        assert_eq!(stall.within(400_000, 500_000), 0);
        stall.observe(600_000, 700_000);
        assert_eq!(stall.within(0, 1_000_000), 100_000, "the latest");
    }

    #[test]
    fn releases_are_compared_by_number() {
        assert!(at_least("6.18.44-fc-v669\n", (6, 12)));
        assert!(at_least("7.0-rc1", (6, 12)));
        assert!(!at_least("6.9.12", (6, 12)));
        assert!(!at_least("", (6, 12)));
    }

    #[test]
    fn any_thread_may_request_prompt_wake_ups() {
        // What is granted depends on the kernel; timer slack has been there since 2008.
        assert!(std::thread::spawn(wake_promptly).join().expect("no panic").timer_slack);
    }
}

#[cfg(test)]
mod margin_tests {
    use super::*;

    #[test]
    fn a_late_wake_up_widens_its_own_class_only() {
        let mut margin = WakeMargin::new();
        margin.observe(100_000_000, 200_000);
        assert_eq!(margin.for_sleep(100_000_000), 215_000);
        assert_eq!(margin.for_sleep(100_000), MIN_MARGIN_NS);
    }

    #[test]
    fn margins_stay_within_bounds_and_shrink_again() {
        let mut margin = WakeMargin::new();
        margin.observe(5_000_000, 50_000_000);
        assert_eq!(margin.for_sleep(5_000_000), MAX_MARGIN_NS);
        for _ in 0..2_000 {
            margin.observe(5_000_000, 1_000);
        }
        let settled = margin.for_sleep(5_000_000);
        assert!((MIN_MARGIN_NS..MIN_MARGIN_NS + MARGIN_DECAY).contains(&settled), "{settled}");
    }

    #[test]
    fn classes_cover_every_length() {
        assert_eq!(class(0), 0);
        assert_eq!(class(131_071), 0);
        assert_eq!(class(131_072), 1);
        assert_eq!(class(u64::MAX), CLASSES - 1);
    }
}
