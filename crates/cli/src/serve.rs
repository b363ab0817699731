//! `firstflight serve`: sites over TLS and QUIC, with early data that runs at most once.

mod args;
mod check;
mod process;
mod settings;

use std::process::ExitCode;

use anyhow::Context;
use firstflight_server::ServerError;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing::warn;

pub(crate) use self::args::ServeArgs;
use self::process::Source;
use self::settings::{complete, settings};

/// Serves until it is told to stop. An error means that it could not start; the caller prints it
/// and exits with 2.
///
/// # Errors
/// One sentence with the mend.
pub(crate) fn run(args: ServeArgs) -> anyhow::Result<ExitCode> {
    if args.print_config {
        print!("{}", settings(&args)?.to_toml());
        return Ok(ExitCode::SUCCESS);
    }
    if args.check {
        return check::check(&args, settings(&args)?);
    }
    keep_memory_private();
    allow_files();
    let file = args.config.clone();
    let source = Source { file, read: Box::new(move || settings(&args).and_then(complete)) };
    let first = source.first()?;
    if let Some(path) = &first.config.tls.key_log {
        warn!("TLS secrets are written to {} (SSLKEYLOGFILE)", path.display());
    }
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(workers) = first.config.process.workers {
        builder.worker_threads(workers.into());
    }
    let runtime = builder.enable_all().build().context("cannot start worker threads")?;
    runtime.block_on(process::serve(source, first))
}

/// The memory of a server has its private keys in it, ticket keys, and what its clients said. So it
/// leaves no core dump, and other processes of the same user may not look into it.
fn keep_memory_private() {
    if let Err(error) = nix::sys::prctl::set_dumpable(false) {
        warn!("a core dump would contain secrets: it cannot be forbidden ({error})");
    }
}

/// A connection is an open file, one with an upstream two. Systems allow 1,024 at first, for the sake
/// of programs that use select(2), and many more to who asks.
fn allow_files() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most));
    if let Err(error) = raised {
        warn!("the limit of open files stays as it is ({error})");
    }
}

/// The error's own sentence, which has its cause in it already.
fn sentence(error: ServerError) -> anyhow::Error {
    anyhow::Error::msg(error.to_string())
}
