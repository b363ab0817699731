//! Nothing outlives the network: not when it is dropped, not when the process is killed.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use firstflight_emulator::{Namespace, Network, Process};
use libtest_mimic::Trial;

use crate::{HOLD, Outcome, ROLE, network, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("kill_9_leaves_nothing", kill_9_leaves_nothing),
        trial("dropping_the_network_ends_its_children", dropping_the_network_ends_its_children),
        trial("children_run_in_their_namespace", children_run_in_their_namespace),
        trial("dropping_a_process_ends_its_group", dropping_a_process_ends_its_group),
        trial("a_group_is_ended_after_its_leader", a_group_is_ended_after_its_leader),
        trial("a_panic_inside_a_namespace_is_passed_on", a_panic_is_passed_on),
        trial("a_missing_program_is_named", a_missing_program_is_named),
    ]
}

/// The process that `kill_9_leaves_nothing` kills: builds a network with a server that has workers,
/// one of them in a new session, prints the inodes of the namespaces, and never ends.
pub(crate) fn hold() -> ! {
    let network = network([2_000]);
    let _server = network.server().spawn_child(server_with_workers()).expect("starts");
    let namespaces = namespaces(&network).map(inode);
    println!("{}", namespaces.map(|inode| inode.to_string()).join(" "));
    loop {
        thread::sleep(Duration::from_secs(60));
    }
}

fn kill_9_leaves_nothing() -> Outcome {
    let interfaces = fs::read_to_string("/proc/net/dev")?.lines().count();
    let mut holder =
        Command::new("/proc/self/exe").env(ROLE, HOLD).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(holder.stdout.take().ok_or("piped")?).read_line(&mut line)?;
    let namespaces: BTreeSet<u64> =
        line.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    assert_eq!(namespaces.len(), 3, "{line:?}");
    // The server's shell and its two workers, and the first process of each namespace.
    let processes = eventually(|| processes_in(&namespaces), |processes| processes.len() >= 6);
    assert!(processes.len() >= 6, "before: {processes:?}");

    holder.kill()?;
    holder.wait()?;
    let remaining = eventually(|| processes_in(&namespaces), BTreeSet::is_empty);
    assert!(remaining.is_empty(), "{remaining:?}");
    assert_eq!(fs::read_to_string("/proc/net/dev")?.lines().count(), interfaces);
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    for namespace in namespaces {
        assert!(!mounts.contains(&format!("net:[{namespace}]")), "a mount holds {namespace}");
    }
    Ok(())
}

fn dropping_the_network_ends_its_children() -> Outcome {
    let network = network([2_000]);
    let server = network.server().spawn_child(server_with_workers())?;
    let all: BTreeSet<u64> = namespaces(&network).map(inode).into();
    let processes = eventually(|| processes_in(&all), |processes| processes.len() >= 6);
    assert!(processes.len() >= 6, "before: {processes:?}");
    drop(network);
    assert!(server.try_wait()?.is_some(), "ended, though its handle is kept");
    let remaining = eventually(|| processes_in(&all), BTreeSet::is_empty);
    assert!(remaining.is_empty(), "{remaining:?}");
    Ok(())
}

fn children_run_in_their_namespace() -> Outcome {
    let network = network([2_000]);
    for namespace in namespaces(&network) {
        let mut command = Command::new("readlink");
        command.arg("/proc/self/ns/net").stdout(Stdio::piped());
        let mut process = namespace.spawn_child(command)?;
        let mut output = String::new();
        process.stdout.take().ok_or("piped")?.read_to_string(&mut output)?;
        assert_eq!(output.trim(), format!("net:[{}]", inode(namespace)));
        let status = process.wait_timeout(TEST_TIMEOUT)?.ok_or("still runs")?;
        assert!(status.success());
    }
    Ok(())
}

fn dropping_a_process_ends_its_group() -> Outcome {
    let network = network([2_000]);
    let namespace = BTreeSet::from([inode(network.server())]);
    let before = processes_in(&namespace).len();
    let mut command = Command::new("sh");
    command.args(["-c", "sleep 4711 & sleep 4711 & wait"]);
    let process = network.server().spawn_child(command)?;
    let during = eventually(|| processes_in(&namespace), |processes| processes.len() == before + 3);
    assert_eq!(during.len(), before + 3);
    assert_eq!(process.wait_timeout(Duration::ZERO)?, None, "it runs");
    drop(process);
    let after = eventually(|| processes_in(&namespace), |processes| processes.len() == before);
    assert_eq!(after.len(), before, "{after:?}");

    let mut command = Command::new("sleep");
    command.arg("4711");
    let process = network.server().spawn_child(command)?;
    process.signal(libc::SIGTERM)?;
    assert!(process.wait_timeout(TEST_TIMEOUT)?.is_some(), "signals arrive");
    process.signal(libc::SIGTERM)?;
    Ok(())
}

fn a_group_is_ended_after_its_leader() -> Outcome {
    let network = network([2_000]);
    let namespace = BTreeSet::from([inode(network.server())]);
    let before = processes_in(&namespace).len();
    let signal = |process: Process| process.signal(libc::SIGTERM).map(|()| Some(process));
    let kill = |process: Process| process.kill().map(|()| Some(process));
    type End = fn(Process) -> std::io::Result<Option<Process>>;
    for end in [signal as End, kill, |_| Ok(None)] {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 4711 & exit 3"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = network.server().spawn_child(command)?;
        let status = process.wait_timeout(TEST_TIMEOUT)?.ok_or("still runs")?;
        assert_eq!(status.code(), Some(3));
        let during =
            eventually(|| processes_in(&namespace), |processes| processes.len() == before + 1);
        assert_eq!(during.len(), before + 1, "{during:?}");
        let handle = end(process)?;
        let after = eventually(|| processes_in(&namespace), |processes| processes.len() == before);
        assert_eq!(after.len(), before, "{after:?}");
        // The status remains known.
        if let Some(process) = handle {
            assert_eq!(process.try_wait()?, Some(status));
        }
    }
    Ok(())
}

fn a_panic_is_passed_on() -> Outcome {
    let network = network([2_000]);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        network.client().run(|| std::panic::resume_unwind(Box::new("inside")))
    }));
    let panic = caught.map(|_: Result<(), _>| ()).expect_err("passed on");
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"inside"));
    Ok(())
}

fn a_missing_program_is_named() -> Outcome {
    let network = network([2_000]);
    let error = network.client().spawn_child(Command::new("no-such-program-4711"));
    let sentence = error.expect_err("missing").to_string();
    assert!(sentence.contains("no-such-program-4711"), "{sentence}");
    Ok(())
}

fn server_with_workers() -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "sleep 4711 & setsid sleep 4711 & wait"]);
    // A remaining worker must not keep the output of this program open.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn namespaces(network: &Network) -> [&Namespace; 3] {
    [network.client(), network.server(), network.attacker().namespace()]
}

fn inode(namespace: &Namespace) -> u64 {
    let copy = namespace.as_fd().try_clone_to_owned().expect("a descriptor");
    fs::File::from(copy).metadata().expect("a file").ino()
}

/// The processes other than this one with a thread in one of these network namespaces.
fn processes_in(namespaces: &BTreeSet<u64>) -> BTreeSet<u32> {
    let is_inside = |pid: &u32| {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        threads
            .filter_map(|thread| fs::metadata(thread.path().join("ns/net")).ok())
            .any(|namespace| namespaces.contains(&namespace.ino()))
    };
    let names = fs::read_dir("/proc").expect("/proc").flatten();
    names
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != std::process::id())
        .filter(is_inside)
        .collect()
}

/// Observes until the value is as expected or the timeout is over. Returns the last value.
fn eventually<T>(observe: impl Fn() -> T, is_expected: impl Fn(&T) -> bool) -> T {
    let started = Instant::now();
    loop {
        let value = observe();
        if is_expected(&value) || started.elapsed() > TEST_TIMEOUT {
            return value;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

const TEST_TIMEOUT: Duration = Duration::from_secs(10);
