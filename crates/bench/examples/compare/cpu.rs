use std::collections::HashSet;
use std::time::Duration;

use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use procfs::process::{Stat, all_processes};

/// The CPU time of processes so far. The kernel reports the sum exactly, but user and system time
/// in ticks of 10 ms.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CpuTime {
    exact: Duration,
    user_ticks: u64,
    system_ticks: u64,
}

impl CpuTime {
    /// The CPU time of a process and its descendants, including their threads that have ended.
    pub(crate) fn of_tree(root: u32) -> Self {
        let mut time = Self::default();
        for stat in tree(root) {
            time.exact += exact_cpu_time(stat.pid);
            time.user_ticks += stat.utime;
            time.system_ticks += stat.stime;
        }
        time
    }

    /// User and system time since `before`, in microseconds.
    pub(crate) fn since(self, before: Self) -> (f64, f64) {
        let all = self.exact.saturating_sub(before.exact).as_secs_f64() * 1e6;
        let system = self.system_ticks.saturating_sub(before.system_ticks) as f64;
        let user = self.user_ticks.saturating_sub(before.user_ticks) as f64;
        let system = all * system / (user + system).max(1.0);
        (all - system, system)
    }
}

/// The resident memory of a process and its descendants.
pub(crate) fn memory_kib(root: u32) -> u64 {
    tree(root).iter().map(|stat| stat.rss * procfs::page_size() / 1024).sum()
}

/// The descendants of this process that still run.
pub(crate) fn descendants() -> Vec<i32> {
    let own = std::process::id();
    let others =
        tree(own).into_iter().filter(|stat| stat.pid != own as i32 && stat.state != ZOMBIE);
    others.map(|stat| stat.pid).collect()
}

/// The state of a process that has ended and was not waited for.
const ZOMBIE: char = 'Z';

fn tree(root: u32) -> Vec<Stat> {
    let mut stats: Vec<Stat> = all_processes()
        .into_iter()
        .flatten()
        .filter_map(|process| process.ok()?.stat().ok())
        .collect();
    let relations: Vec<(i32, i32)> = stats.iter().map(|stat| (stat.pid, stat.ppid)).collect();
    let tree = with_descendants(root as i32, &relations);
    stats.retain(|stat| tree.contains(&stat.pid));
    stats
}

/// A process and its descendants, by pairs of process and parent.
fn with_descendants(root: i32, relations: &[(i32, i32)]) -> HashSet<i32> {
    let mut found: HashSet<i32> = [root].into();
    loop {
        let before = found.len();
        for (pid, parent) in relations {
            if found.contains(parent) {
                found.insert(*pid);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

fn exact_cpu_time(pid: i32) -> Duration {
    let clock = clock_getcpuclockid(Pid::from_raw(pid));
    clock.and_then(clock_gettime).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::sys::wait::{Id, WaitPidFlag, waitid};

    use super::*;

    #[test]
    fn a_process_that_has_ended_no_longer_runs() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id() as i32;
        assert!(descendants().contains(&pid));
        child.kill().unwrap();
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        waitid(Id::Pid(Pid::from_raw(pid)), flags).unwrap();
        assert!(!descendants().contains(&pid));
        child.wait().unwrap();
    }

    #[test]
    fn workers_of_workers_belong_to_the_server() {
        let relations = [(30, 20), (20, 10), (10, 1), (11, 1), (12, 11)];
        assert_eq!(with_descendants(10, &relations), [10, 20, 30].into());
    }

    #[test]
    fn the_sum_is_exact_and_the_split_by_ticks() {
        let at = |micros, user_ticks, system_ticks| CpuTime {
            exact: Duration::from_micros(micros),
            user_ticks,
            system_ticks,
        };
        assert_eq!(at(112_000, 13, 2).since(at(100_000, 10, 1)), (9_000.0, 3_000.0));
        assert_eq!(at(100, 0, 0).since(at(100, 0, 0)), (0.0, 0.0));
    }
}
