//! Reloads, new certificates, key rotations and an upgrade of the program, under a load of all kinds
//! of connections and an attacker that sends copies of flights.
//!
//! No request may fail, and none may be executed twice. `make operations` runs it with 2,000 requests
//! per second and fifty reloads.

mod attacker;
mod figures;
mod load;
mod operator;
mod server;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use attacker::Attacker;
use figures::Figures;
use firstflight::lifecycle::raise_file_limit;
use firstflight_testkit::{Upstream, UpstreamResponse};
use load::Loads;
use operator::OperatorActions;
use server::Server;

/// The size of a run.
pub(crate) struct Plan {
    /// Requests per second of all loads together.
    pub(crate) rate: f64,
    pub(crate) reloads: usize,
    pub(crate) certificates: usize,
    pub(crate) rotations: usize,
    /// Pause between two actions of the operator.
    pub(crate) pause: Duration,
    /// Directory for the figures.
    pub(crate) results: Option<std::path::PathBuf>,
}

impl Plan {
    fn from_environment() -> Self {
        let number = |name: &str, default: f64| {
            let value = std::env::var(name).ok();
            value.map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
        };
        Self {
            rate: number("OPERATIONS_RATE", 100.0),
            reloads: number("OPERATIONS_RELOADS", 6.0) as usize,
            certificates: number("OPERATIONS_CERTIFICATES", 2.0) as usize,
            rotations: number("OPERATIONS_ROTATIONS", 0.0) as usize,
            pause: Duration::from_secs_f64(number("OPERATIONS_PAUSE", 0.5)),
            results: std::env::var_os("OPERATIONS_RESULTS").map(Into::into),
        }
    }
}

#[test]
fn nothing_fails_and_nothing_is_executed_twice() {
    let plan = Plan::from_environment();
    // Load, attacker and upstream run in this process, with one connection per request.
    raise_file_limit().unwrap();
    let dir = tempfile::tempdir().unwrap();
    // A request that the upstream received was executed.
    let executed = Arc::new(AtomicU64::new(0));
    let counter = executed.clone();
    let upstream = Upstream::unrecorded(move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        UpstreamResponse::default()
    });
    // Keys in a file can be rotated; keys of the process need no recording window.
    let mut server = Server::start(dir.path(), upstream, plan.rotations > 0);
    if plan.rotations > 0 {
        load::until_early_data_is_accepted(server.address);
    }
    let attacker = Attacker::start(server.address);
    let loads = Loads::start(&plan, server.address, attacker.address());
    let actions = OperatorActions::all(&plan, &mut server, dir.path());
    let results = loads.end();
    let copies = attacker.end();
    server.end();
    let executed = executed.load(Ordering::SeqCst);
    let figures = Figures::new(&actions, &results, copies, &server.log(), executed);
    println!("{figures}");
    if let Some(directory) = &plan.results {
        figures.write(directory, &results);
    }
    figures.check(&server.stderr());
}
