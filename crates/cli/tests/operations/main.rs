//! A day of an operator in a minute: reloads, new certificates, key rotations and an upgrade of the
//! program, under a load of all kinds of connections and an attacker who copies flights.
//!
//! No request may fail, and none may be executed twice. `make operations` does it at 2,000 requests
//! a second, fifty reloads long.

mod attacker;
mod deeds;
mod load;
mod server;
mod upstream;
mod verdict;

use std::time::Duration;

use attacker::Attacker;
use deeds::Deeds;
use firstflight::lifecycle::raise_file_limit;
use load::Loads;
use server::Server;
use upstream::Upstream;
use verdict::Verdict;

/// How much of everything.
pub(crate) struct Plan {
    /// Requests a second of all loads together.
    pub(crate) rate: f64,
    pub(crate) reloads: usize,
    pub(crate) certificates: usize,
    pub(crate) rotations: usize,
    /// From one deed to the next.
    pub(crate) pause: Duration,
    /// Where figures go.
    pub(crate) results: Option<std::path::PathBuf>,
}

impl Plan {
    fn from_environment() -> Self {
        let number = |name: &str, default: f64| {
            let given = std::env::var(name).ok();
            given.map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
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
    // Load, attacker and upstream are this process, with a connection for each request.
    raise_file_limit().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let upstream = Upstream::start();
    // Keys in a file can be rotated by hand; those of the process need no start-up window.
    let mut server = Server::start(dir.path(), upstream.address, plan.rotations > 0);
    if plan.rotations > 0 {
        load::until_early_data_is_accepted(server.address);
    }
    let attacker = Attacker::start(server.address);
    let loads = Loads::start(&plan, server.address, attacker.address);
    let deeds = Deeds::all(&plan, &mut server, dir.path());
    let results = loads.end();
    let copies = attacker.end();
    server.end();
    let verdict = Verdict::new(&deeds, &results, copies, &server.log(), upstream.executed());
    println!("{verdict}");
    if let Some(directory) = &plan.results {
        verdict.write(directory, &results);
    }
    verdict.judge(&server.said());
}
