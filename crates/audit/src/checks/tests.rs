//! Each check against a server that makes one mistake, and against one that makes none.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use firstflight_first_flight::Link;
use firstflight_first_flight::test_server::{Behaviour, TestServer};

use super::Check;
use crate::audit::run;
use crate::finding::Outcome;
use crate::probe::Probe;
use crate::target::Node;
use crate::{Settings, Target, Verdict};

/// A simulated server, over TCP or QUIC.
pub(crate) struct TestTarget {
    server: TestServer,
    http3: bool,
}

impl TestTarget {
    pub(crate) fn new(behaviour: Behaviour, http3: bool) -> Self {
        Self { server: TestServer::new(behaviour), http3 }
    }

    /// Another node of the same service, over TCP. `keys` and `register`: whether they share these.
    pub(crate) fn node(&self, keys: bool, register: bool) -> Self {
        Self { server: self.server.node(keys, register), http3: false }
    }

    /// Another node with the same ticket keys, over TCP, with an upstream of its own.
    pub(crate) fn node_with_own_upstream(&self) -> Self {
        Self { server: self.server.node_with_own_upstream(), http3: false }
    }
}

impl Target for TestTarget {
    fn connect(&self) -> io::Result<Box<dyn Link>> {
        Ok(match self.http3 {
            true => self.server.datagram_link(None),
            false => self.server.link(),
        })
    }

    fn connect_with_fast_open(&self) -> io::Result<Box<dyn Link>> {
        Ok(self.server.fast_open_link())
    }

    fn connect_from(&self, local: SocketAddr) -> io::Result<Box<dyn Link>> {
        Ok(self.server.datagram_link(Some(local)))
    }

    fn now(&self) -> Duration {
        self.server.now()
    }

    fn wait(&self, time: Duration) {
        self.server.wait(time);
    }
}

/// A balancer that sends each connection to the next of two servers.
pub(crate) struct RoundRobin {
    servers: [TestTarget; 2],
    next: Cell<usize>,
}

impl RoundRobin {
    pub(crate) fn without_shared_keys() -> Self {
        let first = TestTarget::new(Behaviour::default(), false);
        let other = first.node(false, false);
        Self { servers: [first, other], next: Cell::new(0) }
    }
}

impl Target for RoundRobin {
    fn connect(&self) -> io::Result<Box<dyn Link>> {
        self.servers[self.next.replace(1 - self.next.get())].connect()
    }

    fn now(&self) -> Duration {
        self.servers[0].now()
    }

    fn wait(&self, time: Duration) {
        self.servers[0].wait(time);
    }
}

/// A server to which only this many connections can be made.
pub(crate) struct RefusesAfter {
    pub(crate) server: TestTarget,
    pub(crate) left: Cell<usize>,
}

impl Target for RefusesAfter {
    fn connect(&self) -> io::Result<Box<dyn Link>> {
        match self.left.get() {
            0 => Err(io::ErrorKind::ConnectionRefused.into()),
            left => {
                self.left.set(left - 1);
                self.server.connect()
            }
        }
    }

    fn now(&self) -> Duration {
        self.server.now()
    }

    fn wait(&self, time: Duration) {
        self.server.wait(time);
    }
}

pub(crate) fn settings() -> Settings {
    Settings { witness: true, ..Settings::new("localhost", "localhost", "/witness") }
}

/// The verdict about a server. Asserts that it is the same in five runs.
pub(crate) fn verdict(check: &Check, behaviour: &Behaviour, witness: bool) -> Verdict {
    verdict_of_runs(check, behaviour, &Settings { witness, ..settings() }, 5)
}

/// As [`verdict`], over QUIC.
pub(crate) fn verdict_over_quic(check: &Check, behaviour: &Behaviour, witness: bool) -> Verdict {
    verdict_of_runs(check, behaviour, &Settings { witness, http3: true, ..settings() }, 5)
}

/// The verdict about a server. Asserts that it is the same in all runs.
fn verdict_of_runs(
    check: &Check,
    behaviour: &Behaviour,
    settings: &Settings,
    runs: usize,
) -> Verdict {
    let behaviour = Behaviour { witness: settings.witness, ..behaviour.clone() };
    let run_once = || {
        let target = TestTarget::new(behaviour.clone(), settings.http3);
        let probe = Probe::survey(&target, &[], settings).expect("the server can be audited");
        run(check, &probe)
    };
    let first = run_once();
    for _ in 1..runs {
        assert_eq!(run_once().verdict, first.verdict, "{}", check.name);
    }
    println!("{}: {} {} {:#?}", check.name, first.verdict, first.summary, first.evidence);
    first.verdict
}

/// The outcome at a service with two nodes. `keys` and `register`: whether they share these.
pub(crate) fn outcome_with_node(
    check: &Check,
    behaviour: &Behaviour,
    (keys, register): (bool, bool),
    witness: bool,
) -> Outcome {
    let settings = Settings { witness, ..settings() };
    let target = TestTarget::new(Behaviour { witness, ..behaviour.clone() }, false);
    let other = target.node(keys, register);
    let others = [Node { address: "192.0.2.2:443".to_owned(), target: &other }];
    let probe = Probe::survey(&target, &others, &settings).expect("the server can be audited");
    run(check, &probe)
}

/// How often a check is tried on a server of each kind: the verdict must always be the same.
const RUNS: usize = 50;

/// Asserts both directions, with the executions counted by a witness: the verdict about a server that
/// makes one mistake, and a pass for one that makes none. Over TCP, and over QUIC if the check applies.
pub(crate) fn assert_proven(check: &Check, wrong: &Behaviour, expected: Verdict) {
    assert_proven_beside(check, &Behaviour::default(), wrong, expected);
}

/// As [`assert_proven`], with another correct server.
pub(crate) fn assert_proven_beside(
    check: &Check,
    right: &Behaviour,
    wrong: &Behaviour,
    expected: Verdict,
) {
    assert_proven_with(check, right, wrong, expected, &settings());
    let over_quic = Settings { http3: true, ..settings() };
    if verdict_of_runs(check, right, &over_quic, 1) != Verdict::NotApplicable {
        assert_proven_with(check, right, wrong, expected, &over_quic);
    }
}

/// As [`assert_proven`], over TCP only.
pub(crate) fn assert_proven_over_tcp(check: &Check, wrong: &Behaviour, expected: Verdict) {
    assert_proven_with(check, &Behaviour::default(), wrong, expected, &settings());
}

/// As [`assert_proven`], over QUIC only.
pub(crate) fn assert_proven_over_quic(check: &Check, wrong: &Behaviour, expected: Verdict) {
    let settings = Settings { http3: true, ..settings() };
    assert_proven_with(check, &Behaviour::default(), wrong, expected, &settings);
}

/// As [`assert_proven`], with another correct server and other settings.
pub(crate) fn assert_proven_with(
    check: &Check,
    right: &Behaviour,
    wrong: &Behaviour,
    expected: Verdict,
    settings: &Settings,
) {
    for (behaviour, expected) in [(wrong, expected), (right, Verdict::Pass)] {
        let found = verdict_of_runs(check, behaviour, settings, RUNS);
        assert_eq!(found, expected, "{}: {behaviour:?}", check.name);
    }
}

#[test]
fn a_refusal_of_all_early_data_is_inconclusive() {
    let refuses = Behaviour { accepts_early_data: false, ..Behaviour::default() };
    for check in [
        &super::ticket_age::CHECK,
        &super::changed_name::CHECK,
        &super::changed_protocol::CHECK,
        &super::early_data_limit::CHECK,
    ] {
        assert_eq!(verdict(check, &refuses, false), Verdict::Inconclusive, "{}", check.name);
    }
    for check in [
        &super::early_data_header::CHECK,
        &super::overtaken_flight::CHECK,
        &super::too_early::CHECK,
    ] {
        assert_eq!(verdict(check, &refuses, true), Verdict::Inconclusive, "{}", check.name);
    }
}

#[test]
fn no_response_to_a_fault_is_inconclusive() {
    let hangs =
        Behaviour { hangs_on_errors: true, handshake_timeout: None, ..Behaviour::default() };
    for check in [&super::wrong_binder::CHECK, &super::changed_protocol::CHECK] {
        for verdict in [verdict, verdict_over_quic] {
            assert_eq!(verdict(check, &hangs, false), Verdict::Inconclusive, "{}", check.name);
        }
    }
}

#[test]
fn names_are_unique_and_every_check_names_its_section() {
    let mut names: Vec<_> = super::CHECKS.iter().map(|check| check.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), super::CHECKS.len());
    for check in super::CHECKS {
        assert!(check.section.starts_with("RFC "), "{}", check.name);
        assert!(check.explanation.ends_with('.'), "{}", check.name);
    }
}
