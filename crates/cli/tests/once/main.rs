//! A request is executed once, whatever copies of its first flight arrive at any time, even if its
//! early data was refused and its client sent it again.
//!
//! Honest clients send requests that are accepted, or refused for many reasons; an attacker sends
//! copies of their first flights to all nodes until none can be fresh. Each request has to be
//! executed exactly once and get a response. `FIRSTFLIGHT_ONCE=long`, which `make chaos` sets, has
//! more cases and sends copies for longer.

#[path = "../chaos/application.rs"]
mod application;
mod attacker;
mod cases;
mod client;
#[path = "../chaos/clock.rs"]
mod clock;
mod clock_steps;
mod copied_random;
mod honest;
mod http;
#[path = "../chaos/link.rs"]
#[allow(dead_code)]
mod link;
mod plan;
mod report;
mod scenarios;
mod server;
mod settings;
mod stage;
mod store_failures;

use std::process::ExitCode;
use std::sync::OnceLock;

use firstflight::lifecycle::raise_file_limit;
use libtest_mimic::{Arguments, Trial};
use tokio::runtime::Runtime;

/// Drives links and attackers.
pub(crate) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
    })
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    let plan = plan::Plan::from_environment();
    raise_file_limit().unwrap();
    let cases = cases::all(&plan);
    arguments.test_threads.get_or_insert(plan.concurrency(cases.len()));
    let trials = cases.into_iter().enumerate().map(|(number, case)| {
        Trial::test(case.name, move || report::check(number, (case.run)()).map_err(Into::into))
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    cases::end();
    if !arguments.list {
        report::publish(&plan);
    }
    conclusion.exit_code()
}
