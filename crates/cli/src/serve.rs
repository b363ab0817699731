//! `firstflight serve`: sites over TLS and QUIC, with early data that runs at most once.

mod args;
mod check;
mod process;
mod settings;

use std::process::ExitCode;

use anyhow::Context;
use firstflight_config::{LogFormat, LogSettings};
use firstflight_server::ServerError;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing::warn;
use tracing_subscriber::EnvFilter;

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
        let config = settings(&args)?;
        begin_log(&config.log)?;
        return check::check(&args, config);
    }
    let private = keep_memory_private();
    let file = args.config.clone();
    let source = Source { file, read: Box::new(move || settings(&args).and_then(complete)) };
    let first = source.first()?;
    begin_log(&first.config.log)?;
    allow_files();
    if let Err(error) = private {
        warn!("a core dump would contain secrets: it cannot be forbidden ({error})");
    }
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
fn keep_memory_private() -> nix::Result<()> {
    nix::sys::prctl::set_dumpable(false)
}

/// Logs from now on, as the configuration at the start has it.
fn begin_log(settings: &LogSettings) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&settings.level).map_err(|_| {
        anyhow::anyhow!(
            "{:?} is no log level; allowed are error, warn, info, debug, trace, also for parts of \
             the program, such as info,firstflight_server=debug",
            settings.level
        )
    })?;
    crate::begin_log(filter, settings.format == LogFormat::Json);
    Ok(())
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
