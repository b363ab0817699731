//! `firstflight serve`: sites over TLS and QUIC, with early data that runs at most once.

mod admin;
mod args;
mod check;
mod process;
mod settings;
mod signals;
mod upgrade;

use std::io;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use firstflight::lifecycle::{HandoffChannel, raise_file_limit};
use firstflight_config::{LogFormat, LogSettings};
use firstflight_server::ServerError;
use tracing::warn;
use tracing_subscriber::EnvFilter;

pub(crate) use self::args::ServeArgs;
use self::process::Source;
use self::settings::{complete, settings};

/// Serves until it is told to stop. An error means that it could not start; the caller prints it
/// and exits with 2. `memory`: what came of [closing](firstflight::lifecycle::close_memory) this
/// process's memory, which will have private keys in it, ticket keys, and what its clients said.
///
/// # Errors
/// One sentence with the fix.
pub(crate) fn run(args: ServeArgs, memory: io::Result<bool>) -> anyhow::Result<ExitCode> {
    if args.print_config {
        print!("{}", settings(&args)?.to_toml());
        return Ok(ExitCode::SUCCESS);
    }
    if args.check {
        let config = settings(&args)?;
        begin_log(&config.log)?;
        return check::check(&args, config);
    }
    let way = upgrade::way()?;
    let outcome = start(args, memory, way.clone());
    if let (Some(way), Err(error)) = (way, &outcome) {
        // The process before this one goes on, and says why.
        let _ = way.send(format!("{error:#}").as_bytes(), &[]);
    }
    outcome
}

fn start(
    args: ServeArgs,
    memory: io::Result<bool>,
    way: Option<Arc<HandoffChannel>>,
) -> anyhow::Result<ExitCode> {
    let file = args.config.clone();
    let source = Source { file, read: Box::new(move || settings(&args).and_then(complete)) };
    let first = source.first()?;
    begin_log(&first.config.log)?;
    // A connection is an open file, one with an upstream two. Systems allow 1,024 at first, for the
    // sake of programs that use select(2), and many more to who asks.
    if let Err(error) = raise_file_limit() {
        warn!("the limit of open files stays as it is ({error})");
    }
    match memory {
        Err(error) => {
            warn!("a core dump would contain secrets: it cannot be forbidden ({error})");
        }
        // An attacker chooses the moment: SIGUSR2 starts this process.
        Ok(true) if way.is_some() => warn!(
            "other processes of this user could open the memory of this one as it started; \
             install the program as root's with mode 0711, see docs/lifecycle.md"
        ),
        Ok(_) => {}
    }
    if let Some(path) = &first.config.tls.key_log {
        warn!("TLS secrets are written to {} (SSLKEYLOGFILE)", path.display());
    }
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(workers) = first.config.process.workers {
        builder.worker_threads(workers.into());
    }
    let runtime = builder.enable_all().build().context("cannot start worker threads")?;
    let outcome = runtime.block_on(process::serve(source, first, way));
    // A task that still waits for a file or another process is not waited for.
    runtime.shutdown_background();
    outcome
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
    crate::log::begin(filter, settings.format == LogFormat::Json);
    Ok(())
}

/// The error's own sentence, which has its cause in it already.
fn sentence(error: ServerError) -> anyhow::Error {
    anyhow::Error::msg(error.to_string())
}
