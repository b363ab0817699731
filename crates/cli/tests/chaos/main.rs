//! Checks at-most-once execution across a cluster: three nodes, one store, one ticket ring, and an
//! attacker that sends copies of captured flights to all nodes during failures.
//!
//! In each scenario a flight is executed at most once, and no honest request is lost or gets an error.
//! The figures go into one table. `make chaos` runs everything with many more copies, and compares
//! with nginx and HAProxy.

mod application;
mod attacker;
mod clients;
mod clock;
mod cluster;
mod evaluation;
mod kind;
mod link;
mod plan;
mod run;
mod scenarios;
mod stage;
mod table;

use std::process::ExitCode;
use std::sync::OnceLock;

use libtest_mimic::{Arguments, Trial};
use tokio::runtime::Runtime;

/// The runtime of clients, attackers and links.
pub(crate) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
    })
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    let plan = plan::Plan::from_environment();
    // Scenarios mostly wait.
    arguments.test_threads.get_or_insert(plan.concurrency);
    let trials = scenarios::all().into_iter().map(|scenario| {
        let ignored = scenario.only_extended && !plan.extended;
        let plan = plan.clone();
        Trial::test(scenario.name, move || scenario.run(&plan).map_err(Into::into))
            .with_ignored_flag(ignored)
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    if !arguments.list {
        table::publish(&plan);
    }
    conclusion.exit_code()
}
