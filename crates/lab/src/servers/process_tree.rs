//! The processes of a server: those that were started and all that they started, and the processor
//! time of all.

use std::collections::HashSet;
use std::fs;
use std::time::Duration;

use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

/// `roots` and all their living descendants, as seen from this process. A descendant whose parent
/// has ended is found by its process group.
pub(super) fn tree(roots: &[u32]) -> Vec<u32> {
    let others: Vec<Stat> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid: u32| {
            Stat::parse(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
        })
        .collect();
    let mut found = roots.to_vec();
    let mut known: HashSet<u32> = roots.iter().copied().collect();
    loop {
        let before = found.len();
        for other in &others {
            let ours = known.contains(&other.parent) || roots.contains(&other.group);
            if ours && known.insert(other.pid) {
                found.push(other.pid);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

/// The processor time of these processes so far, all threads, also those that have ended; a
/// process that is gone counts nothing.
pub(super) fn processor_time(pids: &[u32]) -> Duration {
    let time = |pid: &u32| {
        let clock = clock_getcpuclockid(Pid::from_raw(*pid as i32)).ok()?;
        clock_gettime(clock).ok().map(Duration::from)
    };
    pids.iter().filter_map(time).sum()
}

/// What places a process in a tree (proc_pid_stat(5)).
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    pid: u32,
    parent: u32,
    group: u32,
}

impl Stat {
    fn parse(pid: u32, line: &str) -> Option<Self> {
        // The name stands in parentheses and may hold any of them.
        let (_, rest) = line.rsplit_once(')')?;
        let mut fields = rest.split_whitespace().skip(1);
        let mut number = || fields.next()?.parse().ok();
        Some(Self { pid, parent: number()?, group: number()? })
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_name_may_hold_parentheses_and_spaces() {
        let stat = Stat::parse(7, "7 (a) b (c)) S 3 5 5 0 -1");
        assert_eq!(stat, Some(Stat { pid: 7, parent: 3, group: 5 }));
        assert_eq!(Stat::parse(7, "7 nonsense"), None);
    }

    #[test]
    fn children_of_children_are_found_and_their_time_is_counted() {
        // Says something when its own child has been started.
        let script = "sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo ready; \
                      read line' & wait";
        let mut shell = Command::new("sh")
            .args(["-c", &format!("exec 3<&0; {}", script.replace("read line", "read line <&3"))])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = std::io::BufReader::new(shell.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut said, &mut String::new()).unwrap();
        let found = tree(&[shell.id()]);
        let time = processor_time(&found);
        let parents = processor_time(&[shell.id()]);
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(time > parents, "{time:?} of all, {parents:?} of the parent");
    }
}
