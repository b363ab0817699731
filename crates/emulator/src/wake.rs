//! Waking promptly: what a thread can ask the scheduler for without any privilege.

/// What the kernel granted a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WakeSettings {
    /// Timers end when they are due, instead of up to 50 microseconds later.
    pub timer_slack: bool,
    /// A short time slice (Linux 6.12), which lets the thread go before others when it wakes.
    pub short_slice: bool,
}

/// Makes the calling thread wake as promptly as an ordinary user may ask for, as the link's own
/// thread does; threads that it starts inherit it. For threads that measure: on a machine where
/// other things compute, they otherwise wait for a slice of several milliseconds to end.
pub fn wake_promptly() -> WakeSettings {
    // SAFETY: prctl with two plain numbers, for this thread alone.
    let slack = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
    // A short slice gives an early virtual deadline, so that waking preempts others.
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

/// Older kernels take the attribute and ignore it.
fn kernel_has_slices() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    at_least(&release, (6, 12))
}

fn at_least(release: &str, wanted: (u32, u32)) -> bool {
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= wanted
}

/// The shortest that the kernel grants.
const SLICE_NS: u64 = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_number() {
        assert!(at_least("6.18.44-fc-v669\n", (6, 12)));
        assert!(at_least("7.0-rc1", (6, 12)));
        assert!(!at_least("6.9.12", (6, 12)));
        assert!(!at_least("", (6, 12)));
    }

    #[test]
    fn a_thread_may_ask() {
        // What is granted depends on the kernel; timer slack has been there since 2008.
        assert!(std::thread::spawn(wake_promptly).join().expect("no panic").timer_slack);
    }
}
