//! At most once across the cluster: three nodes, one store, one ring of ticket keys, and an
//! attacker that resends captured flights to all of them while things go wrong.
//!
//! In each scenario one flight is executed at most once, and no honest request is lost or answered
//! by an error. The figures go into one table. `make chaos` runs it all with many more copies, and
//! beside nginx and HAProxy.

mod attacker;
mod cluster;
mod kind;
mod pipe;
mod plan;
mod recorder;
mod run;
mod scenarios;
mod stage;
mod table;
mod upstream;
mod verdict;
mod world;

use std::process::ExitCode;
use std::sync::OnceLock;

use libtest_mimic::{Arguments, Trial};
use tokio::runtime::Runtime;

/// Drives clients, attackers and whatever else is not a process of its own.
pub(crate) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
    })
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    let plan = plan::Plan::from_environment();
    // They wait for most of their time.
    arguments.test_threads.get_or_insert(plan.side_by_side);
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
