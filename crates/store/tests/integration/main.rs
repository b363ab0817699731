//! Tests with real stores: when their replies count, and when not.
//!
//! The tests mostly wait for recording windows, so their own harness runs more of them at once than
//! there are processors.

/// The tests of a module, named after their functions.
macro_rules! trials {
    ($($test:ident),* $(,)?) => { vec![$($crate::trial(stringify!($test), $test)),*] };
}

mod cluster;
mod connections;
mod ring;
mod sentinel;
mod single;
mod support;
mod untrusted;

use std::future::Future;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// Tests that run at once, unless `--test-threads` is given.
const DEFAULT_TEST_THREADS: usize = 8;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(DEFAULT_TEST_THREADS);
    let modules = [
        single::trials(),
        connections::trials(),
        sentinel::trials(),
        cluster::trials(),
        untrusted::trials(),
        ring::trials(),
    ];
    libtest_mimic::run(&arguments, modules.into_iter().flatten().collect()).exit_code()
}

/// A test with its own runtime; it fails by a panic.
fn trial<F: Future>(name: &str, test: impl FnOnce() -> F + Send + 'static) -> Trial {
    Trial::test(name, move || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime?.block_on(test());
        Ok(())
    })
}
