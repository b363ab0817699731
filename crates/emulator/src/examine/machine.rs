//! Checks that need no other process: container, TCP, processors, clocks, wake-ups.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socket, sockopt};
use nix::unistd::Pid;

use super::Assessment;
use crate::clock::monotonic_ns;
use crate::{WakeSettings, wake_promptly};

/// Checks for a container or a system call filter. `permits_lab`: whether it permits everything that
/// the lab needs.
pub(super) fn container(permits_lab: bool) -> Assessment {
    let marks = [("/.dockerenv", "Docker"), ("/run/.containerenv", "Podman")];
    let kind = marks.iter().find(|(file, _)| Path::new(file).exists()).map(|(_, name)| *name);
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    judge_container(kind, &status, permits_lab)
}

fn judge_container(kind: Option<&str>, status: &str, permits_lab: bool) -> Assessment {
    let filtered = status.lines().any(|line| line.split_whitespace().eq(["Seccomp:", "2"]));
    match (kind, filtered) {
        (None, false) => Assessment::good("none, and no filter of system calls"),
        (kind, filtered) => {
            let kind =
                kind.map_or("no container is recognised".to_owned(), |k| format!("a {k} one"));
            let filter = if filtered { "system calls are filtered (seccomp)" } else { "no filter" };
            if permits_lab {
                return Assessment::good(format!(
                    "{kind}, {filter}: all passes that the lab needs"
                ));
            }
            Assessment::limited(
                format!("{kind}, {filter}"),
                "start it with --cap-add SYS_ADMIN \
                 --cap-add NET_ADMIN --cap-add NET_RAW --security-opt seccomp=unconfined",
            )
        }
    }
}

/// Checks whether TCP Fast Open is enabled outside of the lab, which has its own setting.
pub(super) fn fast_open() -> Assessment {
    judge_fast_open(setting("net/ipv4/tcp_fastopen").as_deref())
}

fn judge_fast_open(value: Option<&str>) -> Assessment {
    let Some(bits) = value.and_then(|value| value.parse::<u32>().ok()) else {
        return Assessment::limited(
            "net.ipv4.tcp_fastopen cannot be read",
            "mount /proc, and use a kernel with IPv4",
        );
    };
    let fix = "sysctl net.ipv4.tcp_fastopen=3 for `serve` and `fetch`; the lab sets it itself";
    match (bits & 1 != 0, bits & 2 != 0) {
        (true, true) => Assessment::good("on for clients and servers"),
        (true, false) => Assessment::limited("on for clients, off for servers", fix),
        (false, true) => Assessment::limited("on for servers, off for clients", fix),
        (false, false) => Assessment::limited("off", fix),
    }
}

/// Checks whether cubic is available, which the lab uses on its routes.
pub(super) fn congestion_control() -> Assessment {
    let flags = SockFlag::SOCK_CLOEXEC;
    let result = socket(AddressFamily::Inet, SockType::Stream, flags, None)
        .and_then(|socket| setsockopt(&socket, sockopt::TcpCongestion, &"cubic".into()));
    let default = setting("net/ipv4/tcp_congestion_control");
    let available = setting("net/ipv4/tcp_available_congestion_control");
    judge_congestion_control(result, available.as_deref(), default.as_deref())
}

fn judge_congestion_control(
    result: nix::Result<()>,
    available: Option<&str>,
    default: Option<&str>,
) -> Assessment {
    let default = default.unwrap_or("unknown");
    let is_available =
        available.is_some_and(|names| names.split_whitespace().any(|n| n == "cubic"));
    match result {
        // Ordinary users may not select it for a socket, but may for a route of their namespace.
        Ok(()) | Err(Errno::EPERM) if result.is_ok() || is_available => Assessment::good(format!(
            "cubic is there, and the lab sets it on its routes; this machine's default is {default}"
        )),
        result => Assessment::missing(
            format!(
                "cubic cannot be chosen ({}); this machine's default is {default}",
                result.err().map_or("unknown", Errno::desc)
            ),
            "load it (`modprobe tcp_cubic`)",
        ),
    }
}

/// Checks how many processors this process may use.
pub(super) fn processors() -> Assessment {
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    let count = (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false)).count();
    judge_processors(count, fs::read_to_string("/sys/fs/cgroup/cpu.max").ok().as_deref())
}

fn judge_processors(count: usize, quota: Option<&str>) -> Assessment {
    let quota = quota.and_then(|text| {
        let (quota, period) = text.trim().split_once(' ')?;
        Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
    });
    match (count, quota) {
        (_, Some(quota)) => Assessment::limited(
            format!("{count}, of which a control group allows {quota:.1}'s time"),
            "lift the quota (cpu.max): who has used it up sleeps for tens of milliseconds",
        ),
        (0..4, None) => Assessment::limited(
            format!("{count}, which client, link, servers and the measuring itself share"),
            "use a machine with 4 or more; figures of small ones are right, with more spread",
        ),
        (_, None) => Assessment::good(format!("{count}")),
    }
}

/// Checks the clock source, and the cost of reading it.
pub(super) fn clock() -> Assessment {
    let file = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let source = fs::read_to_string(file).map_or("unknown".to_owned(), |s| s.trim().to_owned());
    let start = Instant::now();
    for _ in 0..CLOCK_READS {
        std::hint::black_box(monotonic_ns());
    }
    judge_clock(&source, start.elapsed() / CLOCK_READS)
}

fn judge_clock(source: &str, cost: Duration) -> Assessment {
    let text = format!("{source}, read in {} ns", cost.as_nanos());
    // Without the vDSO each read is a system call, or worse a device access.
    if cost > MAX_CLOCK_COST {
        Assessment::limited(
            text,
            "boot with a clock source that is read without a system call (tsc, kvm-clock), or \
             measure while the machine has nothing else to do",
        )
    } else {
        Assessment::good(text)
    }
}

/// Checks how late a thread wakes that is configured like the link's.
pub(super) fn wake_ups() -> Assessment {
    let measured = thread::Builder::new().spawn(|| {
        let granted = wake_promptly();
        let mut late: Vec<Duration> = (0..SLEEPS)
            .map(|_| {
                let start = Instant::now();
                thread::sleep(SLEEP);
                start.elapsed().saturating_sub(SLEEP)
            })
            .collect();
        late.sort_unstable();
        (granted, late[SLEEPS / 2], late[SLEEPS - 1])
    });
    match measured.map(thread::JoinHandle::join) {
        Ok(Ok((granted, median, worst))) => judge_wake_ups(granted, median, worst),
        _ => Assessment::limited("no thread could be started", "let this user have more threads"),
    }
}

fn judge_wake_ups(granted: WakeSettings, median: Duration, worst: Duration) -> Assessment {
    let us = |duration: Duration| duration.as_micros();
    let text =
        format!("{} us late in the median after 1 ms, {} us at worst", us(median), us(worst));
    let requested = [
        ("timer slack", granted.timer_slack),
        ("a short time slice (Linux 6.12)", granted.short_slice),
    ];
    let refused: Vec<_> =
        requested.into_iter().filter_map(|(name, granted)| (!granted).then_some(name)).collect();
    if !refused.is_empty() {
        Assessment::limited(
            format!("{text}; refused: {}", refused.join(", ")),
            "use a newer kernel, or allow prctl and sched_setattr in the container's seccomp \
             profile",
        )
    } else if median > MAX_MEDIAN_LATENESS {
        Assessment::limited(
            text,
            "measure while the machine has nothing else to do; `--keep-awake` helps where virtual \
             processors fall asleep",
        )
    } else {
        Assessment::good(text)
    }
}

fn setting(key: &str) -> Option<String> {
    fs::read_to_string(Path::new("/proc/sys").join(key)).ok().map(|s| s.trim().to_owned())
}

const CLOCK_READS: u32 = 1_000;
const MAX_CLOCK_COST: Duration = Duration::from_nanos(500);
const SLEEP: Duration = Duration::from_millis(1);
const SLEEPS: usize = 101;
/// The longest wake-up margin of the link; up to it, lateness is compensated by spinning.
const MAX_MEDIAN_LATENESS: Duration = Duration::from_micros(300);

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn fast_open_is_read_bit_by_bit() {
        let judged = |value| judge_fast_open(value).state;
        assert_eq!(judged(Some("3")), State::Good);
        assert_eq!(judged(Some("1027")), State::Good, "further bits do not matter");
        assert_eq!(judge_fast_open(Some("1")).what, "on for clients, off for servers");
        assert_eq!(judge_fast_open(Some("2")).what, "on for servers, off for clients");
        assert_eq!(judge_fast_open(Some("0")).what, "off");
        assert_eq!(judged(None), State::Limited);
    }

    #[test]
    fn a_quota_and_few_processors_are_limits() {
        assert_eq!(judge_processors(8, Some("max 100000\n")).state, State::Good);
        let quota = judge_processors(8, Some("150000 100000\n"));
        assert!(quota.what.contains("1.5"), "{quota:?}");
        assert_eq!(judge_processors(2, None).state, State::Limited);
        assert_eq!(judge_processors(4, None).state, State::Good);
    }

    #[test]
    fn a_container_or_filter_is_named() {
        let filtered = "Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n";
        assert_eq!(judge_container(None, "Seccomp:\t0\n", false).state, State::Good);
        assert!(judge_container(None, filtered, false).what.contains("seccomp"));
        let docker = judge_container(Some("Docker"), filtered, false);
        assert_eq!(judge_container(Some("Docker"), filtered, true).state, State::Good);
        assert!(docker.what.contains("Docker") && docker.what.contains("seccomp"), "{docker:?}");
    }

    #[test]
    fn cubic_for_routes_is_enough() {
        let judged = |result, available| {
            judge_congestion_control(result, Some(available), Some("bbr")).state
        };
        assert_eq!(judged(Ok(()), "reno"), State::Good, "loaded by the check");
        assert_eq!(judged(Err(Errno::EPERM), "reno bbr cubic"), State::Good);
        assert_eq!(judged(Err(Errno::EPERM), "reno bbr"), State::Missing);
        assert_eq!(judged(Err(Errno::ENOENT), "reno bbr"), State::Missing);
    }

    #[test]
    fn slow_clocks_and_late_wake_ups_are_limits() {
        assert_eq!(judge_clock("tsc", Duration::from_nanos(30)).state, State::Good);
        assert_eq!(judge_clock("hpet", Duration::from_micros(2)).state, State::Limited);
        let us = Duration::from_micros;
        let all = WakeSettings { timer_slack: true, short_slice: true };
        assert_eq!(judge_wake_ups(all, us(80), us(900)).state, State::Good);
        assert_eq!(judge_wake_ups(all, us(800), us(900)).state, State::Limited);
        let old = judge_wake_ups(WakeSettings { short_slice: false, ..all }, us(80), us(900));
        assert!(old.what.contains("6.12"), "{old:?}");
    }
}
