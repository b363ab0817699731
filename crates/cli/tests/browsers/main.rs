//! Experiments on how browsers use tickets and early data.
//!
//! Findings come from packets and from the server's recording, never from what the browser reports.
//! They are documented in `docs/measure/browsers.toml` and explained in `docs/measure/browsers.md`.
//! The browser versions named there must behave the same again; for other versions differences are
//! only printed. Some experiments run with all other tests; `make browsers`, or the environment
//! variable BROWSERS=all, runs all.
//!
//! Has no standard harness: an ordinary user must enter a user namespace before any thread starts.

mod connection;
mod experiments;
mod findings;
mod network;
mod server;
mod session;

use std::process::ExitCode;
use std::time::Duration;

use firstflight_browser::{BrowserKind, Installed};
use firstflight_emulator::enter_user_namespace;
use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    if let Err(error) = enter_user_namespace() {
        eprintln!("browser tests cannot run here: {error}");
        return ExitCode::FAILURE;
    }
    let mut arguments = Arguments::from_args();
    // They wait most of the time.
    arguments.test_threads.get_or_insert(2);
    let all = std::env::var("BROWSERS").is_ok_and(|value| value == "all");
    let mut trials = Vec::new();
    for experiment in experiments::ALL {
        for make in BrowserKind::ALL {
            let trial = Trial::test(format!("{}::{}", make, experiment.name), move || {
                let installed = Installed::find(make).map_err(|error| error.to_string())?;
                (experiment.run)(&installed).map_err(Into::into)
            });
            trials.push(trial.with_ignored_flag(!experiment.short && !all));
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    if !arguments.list {
        findings::write_results();
    }
    conclusion.exit_code()
}

/// Polls until a condition is true, or for as long as a busy machine may need. Returns whether it
/// is.
pub(crate) fn poll(condition: impl FnMut() -> bool) -> bool {
    firstflight_testkit::within(TEST_TIMEOUT, Duration::from_millis(20), condition)
}

const TEST_TIMEOUT: Duration = Duration::from_secs(20);
