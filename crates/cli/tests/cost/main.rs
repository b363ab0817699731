//! What a connection and a kept request cost `firstflight serve`, in units that do not depend on
//! time: instructions and allocations by callgrind, system calls by strace, compared with
//! `baseline.toml`.
//!
//! A separate program, since each test drives one server, which must not share its processors with
//! hundreds of other tests. `make bless` accepts the measured costs as the new baseline.
//!
//! Instructions are those of the build that the other tests use: BoringSSL is optimised there, Rust
//! is not. They show that something was added, not its cost in a release; `make profile` does that.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod baseline;
mod scenario;
mod server;

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use firstflight_bench::Transport;
use firstflight_bench::cost::{CallgrindDump, system_calls};
use firstflight_testkit::skipped_without;

use baseline::{Baseline, Cost};
use scenario::Scenario;
use server::{Instrument, Server};

/// The functions with which Rust and BoringSSL allocate.
const ALLOCATORS: [&str; 5] = ["malloc", "calloc", "realloc", "posix_memalign", "aligned_alloc"];

#[test]
fn instructions_and_allocations_are_those_of_the_baseline() {
    if skipped_without(&["valgrind", "vgdb", "objcopy"]) {
        return;
    }
    let server = Server::start(Instrument::Callgrind);
    let read = |server: &Server| {
        let dump = CallgrindDump::parse(&server.dump());
        [dump.total(), dump.calls_of(&ALLOCATORS)]
    };
    warm_up(&server);
    read(&server);
    let mut measured = BTreeMap::new();
    for scenario in Scenario::ALL {
        let [fewer, more] = counts(&server, scenario, 1, read);
        let [instructions, allocations] =
            [0, 1].map(|index| per_connection(scenario, fewer[index], more[index]));
        let cost = Cost {
            instructions: Some(instructions.round() as u64),
            allocations: Some(allocations),
            ..Cost::default()
        };
        measured.insert(scenario.name().to_owned(), cost);
    }
    server.stop();
    Baseline::check(&measured);
}

#[test]
fn system_calls_are_those_of_the_baseline() {
    if skipped_without(&["strace"]) {
        return;
    }
    let server = Server::start(Instrument::Strace);
    warm_up(&server);
    server.log();
    let mut measured = BTreeMap::new();
    for scenario in Scenario::ALL {
        let [fewer, more] = min_calls(&server, scenario);
        let names = more.keys().filter(|name| !by_chance(scenario, name));
        let calls = names.map(|name| {
            let count = per_connection(scenario, *fewer.get(name).unwrap_or(&0), more[name]);
            (name.clone(), count / STRACE_FACTOR as f64)
        });
        let calls = calls.filter(|(_, count)| *count >= 0.25).collect();
        measured
            .insert(scenario.name().to_owned(), Cost { system_calls: calls, ..Cost::default() });
    }
    server.stop();
    Baseline::check(&measured);
}

/// Excludes what happens only once. The server reads the page from disk until it has been unchanged
/// for two seconds, and keeps it in memory from then on.
fn warm_up(server: &Server) {
    thread::sleep(Duration::from_millis(2500));
    Scenario::ALL.iter().for_each(|scenario| scenario.drive(server.address, 2));
    server.settle();
}

/// What the server does for some connections, and for twice as many. The difference excludes what
/// the runs have in common, such as fetching tickets.
fn counts<T>(
    server: &Server,
    scenario: Scenario,
    factor: u64,
    read: impl Fn(&Server) -> T,
) -> [T; 2] {
    [1, 2].map(|times| {
        scenario.drive(server.address, times * factor * scenario.count());
        server.settle();
        read(server)
    })
}

/// The counts of each system call. Unrelated calls only add to them, so the minimum of several runs
/// is taken.
fn min_calls(server: &Server, scenario: Scenario) -> [BTreeMap<String, u64>; 2] {
    let run = |_| counts(server, scenario, STRACE_FACTOR, |server| system_calls(&server.log()));
    let minimum = |[a, b]: [BTreeMap<String, u64>; 2], [c, d]: [BTreeMap<String, u64>; 2]| {
        [minimum(a, &c), minimum(b, &d)]
    };
    (0..STRACE_RUNS).map(run).reduce(minimum).expect("there are runs")
}

fn minimum(
    mut calls: BTreeMap<String, u64>,
    others: &BTreeMap<String, u64>,
) -> BTreeMap<String, u64> {
    calls.retain(|name, _| others.contains_key(name));
    for (name, count) in &mut calls {
        *count = (*count).min(others[name]);
    }
    calls
}

/// Connections are faster under strace than under valgrind, so more are made.
const STRACE_FACTOR: u64 = 2;
const STRACE_RUNS: u32 = 3;

fn per_connection(scenario: Scenario, fewer: u64, more: u64) -> f64 {
    (more as f64 - fewer as f64) / scenario.count() as f64
}

/// Whether a call is made when threads happen to wait or wake, or when memory grows.
fn by_chance(scenario: Scenario, name: &str) -> bool {
    // How many of a handshake's datagrams leave in one call depends on which is ready first: 3.6 to
    // 6.7 calls were seen for the same handshakes.
    if matches!(scenario, Scenario::Connection(Transport::Quic, _)) && name == "sendmsg" {
        return true;
    }
    const WAITS: [&str; 5] =
        ["futex", "epoll_wait", "restart_syscall", "sched_yield", "clock_nanosleep"];
    // Depends on how many packets have arrived when the server reads.
    const PACKETS: [&str; 1] = ["recvmmsg"];
    // The runtime wakes itself by an event descriptor.
    const WAKES: [&str; 1] = ["write"];
    const MEMORY: [&str; 5] = ["madvise", "mprotect", "mmap", "munmap", "brk"];
    [&WAITS[..], &PACKETS, &WAKES, &MEMORY].concat().contains(&name)
}
