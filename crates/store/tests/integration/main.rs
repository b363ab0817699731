//! Real stores: what their word is worth, and when it is worth nothing.
//!
//! Nearly all of the time passes in waiting for recording windows, so more tests run at once than
//! there are processors: that is why the harness is not the standard one.

/// The tests of a module, named after their functions.
macro_rules! trials {
    ($($test:ident),* $(,)?) => { vec![$($crate::trial(stringify!($test), $test)),*] };
}

mod cluster;
mod ring;
mod sentinel;
mod single;
mod support;
mod untrusted;

use std::future::Future;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// How many run at once, unless `--test-threads` says otherwise.
const AT_ONCE: usize = 8;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    let modules = [
        single::trials(),
        sentinel::trials(),
        cluster::trials(),
        untrusted::trials(),
        ring::trials(),
    ];
    libtest_mimic::run(&arguments, modules.into_iter().flatten().collect()).exit_code()
}

/// A test in a runtime of its own; a panic is its failure.
fn trial<F: Future>(name: &str, test: impl FnOnce() -> F + Send + 'static) -> Trial {
    Trial::test(name, move || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime?.block_on(test());
        Ok(())
    })
}
