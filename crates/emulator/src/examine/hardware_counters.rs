//! Checks hardware counters, by perf_event_open(2).

use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::os::fd::FromRawFd;

use nix::errno::Errno;

use super::Assessment;

/// Checks whether cycles and instructions can be counted.
pub(super) fn hardware_counters() -> Assessment {
    let all = [CYCLES, INSTRUCTIONS].map(|event| count(event, 0));
    let own = [CYCLES, INSTRUCTIONS].map(|event| count(event, EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR));
    judge(&all, &own, &perf_event_paranoid())
}

fn judge(
    all: &[Result<u64, Errno>; 2],
    own: &[Result<u64, Errno>; 2],
    perf_event_paranoid: &str,
) -> Assessment {
    let works = |counts: &[Result<u64, Errno>; 2]| counts.iter().all(|c| matches!(c, Ok(1..)));
    if works(all) {
        return Assessment::good("cycles and instructions are counted, the kernel's too");
    }
    let loosen = "sysctl kernel.perf_event_paranoid=1, or run as root";
    if works(own) {
        let what = format!(
            "cycles and instructions are counted, but not the kernel's \
             (kernel.perf_event_paranoid is {perf_event_paranoid})"
        );
        return Assessment::limited(what, loosen);
    }
    match own.iter().find_map(|count| count.err()) {
        Some(Errno::EACCES | Errno::EPERM) => Assessment::limited(
            format!("refused (kernel.perf_event_paranoid is {perf_event_paranoid})"),
            format!("{loosen}; in a container, allow perf_event_open in its seccomp profile"),
        ),
        Some(Errno::ENOENT | Errno::ENODEV | Errno::EOPNOTSUPP) => Assessment::limited(
            "this processor, or the hypervisor that emulates it, offers none",
            "run on the machine itself, or switch the virtual PMU on; CPU time is counted anyway",
        ),
        Some(Errno::ENOSYS) => Assessment::limited(
            "this kernel has no performance events",
            "use a kernel with CONFIG_PERF_EVENTS; CPU time is counted anyway",
        ),
        Some(errno) => Assessment::limited(
            format!("could not be opened: {}", errno.desc()),
            "CPU time is counted anyway",
        ),
        None => Assessment::limited(
            "they open and stay at zero, as those of some hypervisors do",
            "run on the machine itself; CPU time is counted anyway",
        ),
    }
}

fn perf_event_paranoid() -> String {
    let file = "/proc/sys/kernel/perf_event_paranoid";
    std::fs::read_to_string(file).map_or_else(|_| "unknown".to_owned(), |s| s.trim().to_owned())
}

/// Counts an event during some work of this thread.
fn count(event: u64, flags: u64) -> Result<u64, Errno> {
    let mut attributes = Attributes {
        kind: HARDWARE,
        size: size_of::<Attributes>() as u32,
        config: event,
        sample_period: 0,
        sample_type: 0,
        read_format: 0,
        flags,
        wakeup_events: 0,
        breakpoint_type: 0,
        breakpoint: 0,
    };
    let (this_thread, any_processor, no_group) = (0, -1, -1);
    // SAFETY: the kernel reads `size` bytes from a live structure, and writes its own size into it
    // if it does not support that one.
    let descriptor = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw mut attributes,
            this_thread,
            any_processor,
            no_group,
            CLOSE_ON_EXEC,
        )
    };
    let descriptor = Errno::result(descriptor)?;
    // SAFETY: a new descriptor that nothing else owns.
    let mut counter = unsafe { File::from_raw_fd(descriptor as i32) };
    let mut number = 1u64;
    for _ in 0..100_000 {
        number = black_box(number.wrapping_mul(3));
    }
    let mut value = [0; 8];
    counter.read_exact(&mut value).map_err(|_| Errno::EIO)?;
    Ok(u64::from_ne_bytes(value))
}

/// `struct perf_event_attr` of linux/perf_event.h in its first published size.
#[repr(C)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    breakpoint: u64,
}

const HARDWARE: u32 = 0;
const CYCLES: u64 = 0;
const INSTRUCTIONS: u64 = 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn perf_event_attr_has_its_first_published_size() {
        assert_eq!(size_of::<Attributes>(), 64);
    }

    #[test]
    fn failures_are_distinguished() {
        let judged = |all: Result<u64, Errno>, own: Result<u64, Errno>| {
            let assessment = judge(&[all; 2], &[own; 2], "3");
            (assessment.state, assessment.what)
        };
        assert_eq!(judged(Ok(5), Ok(5)).0, State::Good);
        assert!(judged(Err(Errno::EACCES), Ok(5)).1.contains("but not the kernel's"));
        assert!(judged(Err(Errno::EACCES), Err(Errno::EACCES)).1.contains("paranoid is 3"));
        assert!(judged(Err(Errno::ENOENT), Err(Errno::ENOENT)).1.contains("offers none"));
        assert!(judged(Err(Errno::ENOSYS), Err(Errno::ENOSYS)).1.contains("no performance"));
        assert!(judged(Ok(0), Ok(0)).1.contains("zero"));
        assert!(judged(Err(Errno::EMFILE), Err(Errno::EMFILE)).1.contains("open files"));
    }
}
