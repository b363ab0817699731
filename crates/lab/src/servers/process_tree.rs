//! The processes of a server: those that were started and all that they started, and the processor
//! time of all.

use std::collections::HashSet;
use std::time::Duration;

use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use procfs::process::{Stat, all_processes};

/// `roots` and all their living descendants, as seen from this process. A descendant whose parent
/// has ended is found by its process group.
pub(super) fn tree(roots: &[u32]) -> Vec<u32> {
    let others: Vec<Stat> = all_processes()
        .into_iter()
        .flatten()
        .filter_map(|process| process.ok()?.stat().ok())
        .collect();
    let mut found = roots.to_vec();
    let mut known: HashSet<u32> = roots.iter().copied().collect();
    loop {
        let before = found.len();
        for other in &others {
            let [pid, parent, group] = [other.pid, other.ppid, other.pgrp].map(|id| id as u32);
            if (known.contains(&parent) || roots.contains(&group)) && known.insert(pid) {
                found.push(pid);
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

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

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
