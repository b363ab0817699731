//! `firstflight serve`: runs the server over TLS and QUIC, with early data executed at most once.

mod admin;
mod args;
mod check;
mod memory;
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
use tracing::warn;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

pub(crate) use self::args::ServeArgs;
use self::process::ConfigSource;
use self::settings::{check_effects, read_config, require_complete};
use crate::print::with_causes;

/// Serves until a signal stops it. `memory_protection` is the result of
/// [`protect_memory`](firstflight::lifecycle::protect_memory): this process will hold private keys,
/// ticket keys and its clients' requests.
///
/// # Errors
/// If the server cannot start.
pub(crate) fn run(
    mut args: ServeArgs,
    memory_protection: io::Result<bool>,
) -> anyhow::Result<ExitCode> {
    args.prefer_flags();
    if args.print_config {
        let config = read_config(&args)?;
        check_effects(&args, &config)?;
        out!("{}", config.to_toml());
        return Ok(ExitCode::SUCCESS);
    }
    if args.check {
        let config = read_config(&args)?;
        check_effects(&args, &config)?;
        init_log(&args, &config.log)?;
        return check::check(&args, require_complete(config)?);
    }
    let channel = upgrade::channel_to_predecessor()?;
    let outcome = start(args, memory_protection, channel.clone());
    if let (Some(channel), Err(error)) = (channel, &outcome) {
        // The predecessor keeps serving, and logs the error.
        let _ = channel.send(with_causes(error).as_bytes(), &[]);
    }
    outcome
}

fn start(
    args: ServeArgs,
    memory_protection: io::Result<bool>,
    channel: Option<Arc<HandoffChannel>>,
) -> anyhow::Result<ExitCode> {
    let args = Arc::new(args);
    let file = args.config.clone();
    let reload_args = args.clone();
    let source = ConfigSource {
        file,
        read: Box::new(move || read_config(&reload_args).and_then(require_complete)),
    };
    let initial = source.initial()?;
    check_effects(&args, &initial.config)?;
    init_log(&args, &initial.config.log)?;
    // A connection needs a descriptor, and one with an upstream two. The soft limit is usually 1024,
    // for programs that use select(2); the hard limit is much higher.
    if let Err(error) = raise_file_limit() {
        warn!("cannot raise the limit of open files: {error}");
    }
    match memory_protection {
        Err(error) => {
            warn!("cannot disable core dumps, which would contain secrets: {error}");
        }
        // An attacker with the same user can choose the time: SIGUSR2 starts this process.
        Ok(true) if channel.is_some() => warn!(
            "other processes of this user could read the memory of this one while it started; \
             install the program with owner root and mode 0711 (see docs/operate/lifecycle.md)"
        ),
        Ok(_) => {}
    }
    if let Some(path) = &initial.config.tls.key_log {
        warn!("TLS secrets are written to {} (SSLKEYLOGFILE)", path.display());
    }
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(workers) = initial.config.process.workers {
        builder.worker_threads(workers.into());
    }
    let runtime = builder.enable_all().build().context("cannot start worker threads")?;
    let outcome = runtime.block_on(process::serve(source, initial, channel));
    // Does not wait for tasks that are blocked on a file or another process.
    runtime.shutdown_background();
    outcome
}

/// Starts logging with the level and format of the initial configuration.
fn init_log(args: &ServeArgs, settings: &LogSettings) -> anyhow::Result<()> {
    let filter = filter(&settings.level, args.logs.rust_log().is_some())?;
    crate::log::init(filter, settings.format == LogFormat::Json);
    Ok(())
}

/// `allow_module`: whether a single word may name a module, as in RUST_LOG.
fn filter(level: &str, allow_module: bool) -> anyhow::Result<EnvFilter> {
    // `EnvFilter` would take an unknown word for a module, and log nothing of all others.
    let is_word = level.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let is_valid = allow_module || !is_word || level.parse::<LevelFilter>().is_ok();
    EnvFilter::try_new(level).ok().filter(|_| is_valid).with_context(|| {
        format!(
            "{level:?} is not a log level; use error, warn, info, debug, trace or off, also per \
             module, such as info,firstflight_server=debug"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_word_is_a_log_level() {
        for level in ["error", "warn", "info", "debug", "trace", "off", "INFO", ""] {
            filter(level, false).unwrap();
        }
        for directives in ["info,firstflight_server=debug", "firstflight_server=off", "a::b"] {
            filter(directives, false).unwrap();
        }
        for bad in ["inof", "verbose", "firstflight_server", "a=loud"] {
            let error = filter(bad, false).unwrap_err().to_string();
            assert!(error.contains(bad) && error.contains("debug, trace or off"), "{error}");
        }
        filter("firstflight_server", true).unwrap();
        assert!(filter("a=loud", true).is_err());
    }
}
