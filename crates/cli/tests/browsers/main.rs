//! What browsers do that a server must know, found out by experiments.
//!
//! The witnesses are packets and the server's own eyes, never the browser's word. What was found is
//! in `docs/browsers.toml`, and told in `docs/browsers.md`; the very versions named there have to
//! do the same again, while others are only reported on. Some experiments run with all other tests,
//! and all of them by `make browsers`, or where the environment variable BROWSERS is `all`.
//!
//! Has no standard harness: an ordinary user must enter a user namespace before any thread starts.

mod findings;
mod habits;
mod named_tickets;
mod ours;
mod room;
mod seen;
mod stage;
mod witness;

use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use firstflight_browser::{Installed, Make};
use firstflight_emulator::enter_user_namespace;
use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    if let Err(error) = enter_user_namespace() {
        eprintln!("browsers cannot be tried here: {error}");
        return ExitCode::FAILURE;
    }
    let mut arguments = Arguments::from_args();
    // They wait for most of their time.
    arguments.test_threads.get_or_insert(2);
    let all = std::env::var("BROWSERS").is_ok_and(|value| value == "all");
    let mut trials = Vec::new();
    for habit in habits::ALL {
        for make in Make::ALL {
            let trial = Trial::test(format!("{}::{}", make, habit.name), move || {
                let installed = Installed::find(make).map_err(|error| error.to_string())?;
                (habit.run)(&installed).map_err(Into::into)
            });
            trials.push(trial.with_ignored_flag(!habit.short && !all));
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    if !arguments.list {
        findings::publish();
    }
    conclusion.exit_code()
}

/// Waits until it is so, as long as a busy machine may need.
pub(crate) fn within(mut is_so: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + TEST_TIMEOUT;
    loop {
        if is_so() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        sleep(Duration::from_millis(20));
    }
}

const TEST_TIMEOUT: Duration = Duration::from_secs(20);
