//! What can be seen without leaving this process: container, TCP, processors, clocks, wake-ups.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socket, sockopt};
use nix::unistd::Pid;

use super::FindingState;
use crate::clock::monotonic_ns;
use crate::{WakeSettings, wake_promptly};

/// Whether a container or a filter of system calls stands around this process; `open`: it lets all
/// pass that the lab needs.
pub(super) fn container(open: bool) -> FindingState {
    let marks = [("/.dockerenv", "Docker"), ("/run/.containerenv", "Podman")];
    let kind = marks.iter().find(|(file, _)| Path::new(file).exists()).map(|(_, name)| *name);
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    judge_container(kind, &status, open)
}

fn judge_container(kind: Option<&str>, status: &str, open: bool) -> FindingState {
    let filtered = status.lines().any(|line| line.split_whitespace().eq(["Seccomp:", "2"]));
    match (kind, filtered) {
        (None, false) => FindingState::good("none, and no filter of system calls"),
        (kind, filtered) => {
            let kind =
                kind.map_or("no container is recognised".to_owned(), |k| format!("a {k} one"));
            let filter = if filtered { "system calls are filtered (seccomp)" } else { "no filter" };
            if open {
                return FindingState::good(format!(
                    "{kind}, {filter}: all passes that the lab needs"
                ));
            }
            FindingState::limited(
                format!("{kind}, {filter}"),
                "start it with --cap-add SYS_ADMIN \
                 --cap-add NET_ADMIN --cap-add NET_RAW --security-opt seccomp=unconfined",
            )
        }
    }
}

/// Whether TCP Fast Open is on outside the lab, which has a setting of its own.
pub(super) fn fast_open() -> FindingState {
    judge_fast_open(setting("net/ipv4/tcp_fastopen").as_deref())
}

fn judge_fast_open(value: Option<&str>) -> FindingState {
    let Some(bits) = value.and_then(|value| value.parse::<u32>().ok()) else {
        return FindingState::limited(
            "net.ipv4.tcp_fastopen cannot be read",
            "mount /proc, and use a kernel with IPv4",
        );
    };
    let mend = "sysctl net.ipv4.tcp_fastopen=3 for `serve` and `fetch`; the lab sets it itself";
    match (bits & 1 != 0, bits & 2 != 0) {
        (true, true) => FindingState::good("on for clients and servers"),
        (true, false) => FindingState::limited("on for clients, off for servers", mend),
        (false, true) => FindingState::limited("on for servers, off for clients", mend),
        (false, false) => FindingState::limited("off", mend),
    }
}

/// Whether cubic is there, which the lab puts on its routes.
pub(super) fn congestion_control() -> FindingState {
    let flags = SockFlag::SOCK_CLOEXEC;
    let tried = socket(AddressFamily::Inet, SockType::Stream, flags, None)
        .and_then(|socket| setsockopt(&socket, sockopt::TcpCongestion, &"cubic".into()));
    let default = setting("net/ipv4/tcp_congestion_control");
    let available = setting("net/ipv4/tcp_available_congestion_control");
    judge_congestion_control(tried, available.as_deref(), default.as_deref())
}

fn judge_congestion_control(
    tried: nix::Result<()>,
    available: Option<&str>,
    default: Option<&str>,
) -> FindingState {
    let default = default.unwrap_or("unknown");
    let there = available.is_some_and(|names| names.split_whitespace().any(|n| n == "cubic"));
    match tried {
        // Ordinary users may not choose it for a socket, but for a route in a namespace of theirs.
        Ok(()) | Err(Errno::EPERM) if tried.is_ok() || there => FindingState::good(format!(
            "cubic is there, and the lab sets it on its routes; this machine's default is {default}"
        )),
        tried => FindingState::missing(
            format!(
                "cubic cannot be chosen ({}); this machine's default is {default}",
                tried.err().map_or("unknown", Errno::desc)
            ),
            "load it (`modprobe tcp_cubic`)",
        ),
    }
}

/// How many processors this process may use.
pub(super) fn processors() -> FindingState {
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    let count = (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false)).count();
    judge_processors(count, fs::read_to_string("/sys/fs/cgroup/cpu.max").ok().as_deref())
}

fn judge_processors(count: usize, quota: Option<&str>) -> FindingState {
    let quota = quota.and_then(|text| {
        let (quota, period) = text.trim().split_once(' ')?;
        Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
    });
    match (count, quota) {
        (_, Some(quota)) => FindingState::limited(
            format!("{count}, of which a control group allows {quota:.1}'s time"),
            "lift the quota (cpu.max): who has used it up sleeps for tens of milliseconds",
        ),
        (0..4, None) => FindingState::limited(
            format!("{count}, which client, link, servers and the measuring itself share"),
            "use a machine with 4 or more; figures of small ones are right, with more spread",
        ),
        (_, None) => FindingState::good(format!("{count}")),
    }
}

/// Which clock there is, and what reading it costs.
pub(super) fn clock() -> FindingState {
    let file = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let source = fs::read_to_string(file).map_or("unknown".to_owned(), |s| s.trim().to_owned());
    let began = Instant::now();
    for _ in 0..READS {
        std::hint::black_box(monotonic_ns());
    }
    judge_clock(&source, began.elapsed() / READS)
}

fn judge_clock(source: &str, cost: Duration) -> FindingState {
    let said = format!("{source}, read in {} ns", cost.as_nanos());
    // Without the vDSO each read is a system call, or worse a device's register.
    if cost > DEAR {
        FindingState::limited(
            said,
            "boot with a clock source that is read without a system call (tsc, kvm-clock), or \
             measure while the machine has nothing else to do",
        )
    } else {
        FindingState::good(said)
    }
}

/// How late a thread wakes that is prepared as the link's is.
pub(super) fn wake_ups() -> FindingState {
    let measured = thread::Builder::new().spawn(|| {
        let taken = wake_promptly();
        let mut late: Vec<Duration> = (0..SLEEPS)
            .map(|_| {
                let began = Instant::now();
                thread::sleep(SLEEP);
                began.elapsed().saturating_sub(SLEEP)
            })
            .collect();
        late.sort_unstable();
        (taken, late[SLEEPS / 2], late[SLEEPS - 1])
    });
    match measured.map(thread::JoinHandle::join) {
        Ok(Ok((taken, median, worst))) => judge_wake_ups(taken, median, worst),
        _ => FindingState::limited("no thread could be started", "let this user have more threads"),
    }
}

fn judge_wake_ups(taken: WakeSettings, median: Duration, worst: Duration) -> FindingState {
    let us = |duration: Duration| duration.as_micros();
    let said =
        format!("{} us late in the median after 1 ms, {} us at worst", us(median), us(worst));
    let asked = [
        ("timer slack", taken.timer_slack),
        ("a short time slice (Linux 6.12)", taken.short_slice),
    ];
    let refused: Vec<_> =
        asked.into_iter().filter_map(|(name, taken)| (!taken).then_some(name)).collect();
    if !refused.is_empty() {
        FindingState::limited(
            format!("{said}; refused: {}", refused.join(", ")),
            "use a newer kernel, or allow prctl and sched_setattr in the container's seccomp \
             profile",
        )
    } else if median > LATE {
        FindingState::limited(
            said,
            "measure while the machine has nothing else to do; `--keep-awake` helps where virtual \
             processors fall asleep",
        )
    } else {
        FindingState::good(said)
    }
}

fn setting(key: &str) -> Option<String> {
    fs::read_to_string(Path::new("/proc/sys").join(key)).ok().map(|s| s.trim().to_owned())
}

const READS: u32 = 1_000;
const DEAR: Duration = Duration::from_nanos(500);
const SLEEP: Duration = Duration::from_millis(1);
const SLEEPS: usize = 101;
/// The link's longest margin for waking: up to it, it spins the lateness away.
const LATE: Duration = Duration::from_micros(300);

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
        let judged =
            |tried, available| judge_congestion_control(tried, Some(available), Some("bbr")).state;
        assert_eq!(judged(Ok(()), "reno"), State::Good, "loaded by the trial");
        assert_eq!(judged(Err(Errno::EPERM), "reno bbr cubic"), State::Good);
        assert_eq!(judged(Err(Errno::EPERM), "reno bbr"), State::Missing);
        assert_eq!(judged(Err(Errno::ENOENT), "reno bbr"), State::Missing);
    }

    #[test]
    fn clocks_and_wake_ups_are_judged_by_what_they_take() {
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
