//! `firstflight keys`: ticket keys that several servers share, also with nginx, HAProxy and Envoy.

mod list;
mod source;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use firstflight_tickets::export::{self, Target};
use firstflight_tickets::{KeyEncryption, KeyFile, Schedule, UnixTime};

use source::SourceArgs;

/// Create, rotate and show ticket keys that several servers share, and export them for nginx,
/// HAProxy and Envoy.
///
/// Anyone with a ticket key can read the early data sent with its tickets. Key files are readable
/// by their owner only (mode 0600), and `serve` refuses one that others can read.
#[derive(Args)]
pub(crate) struct KeysArgs {
    #[command(subcommand)]
    command: KeysCommand,
}

#[derive(Subcommand)]
enum KeysCommand {
    /// Create a file of ticket keys: the current one and the next.
    New {
        /// Key file; must not exist yet.
        file: PathBuf,
        /// Hours for which a key is current.
        #[arg(long, value_name = "HOURS", default_value_t = 12, value_parser = clap::value_parser!(u64).range(1..=168))]
        rotation: u64,
        /// Lifetime of a ticket in hours (RFC 8446 allows 7 days).
        #[arg(long, value_name = "HOURS", default_value_t = 12, value_parser = clap::value_parser!(u64).range(1..=168))]
        lifetime: u64,
    },
    /// Make the next key current, create a new next key, and remove keys that no ticket needs.
    Rotate {
        #[command(flatten)]
        source: SourceArgs,
    },
    /// Show the keys and their state; exits with 1 if something must be done.
    List {
        #[command(flatten)]
        source: SourceArgs,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Write the keys once in another server's format.
    Export {
        #[command(flatten)]
        source: SourceArgs,
        #[command(flatten)]
        target: TargetArgs,
    },
    /// Write the keys in another server's format, and again on every change, until SIGTERM.
    Watch {
        #[command(flatten)]
        source: SourceArgs,
        #[command(flatten)]
        target: TargetArgs,
        /// Shell command to run at the start and after each change; retried if it fails.
        #[arg(long, value_name = "COMMAND")]
        exec: Option<String>,
    },
    /// Create a file with a key-encryption key, which protects ticket keys in a store.
    NewEncryption {
        /// The file; it must not exist yet. All nodes get the same
        file: PathBuf,
    },
    /// Add a new key-encryption key, and keep the previous one for decryption.
    RotateEncryption {
        /// The file, to be given to all nodes again; running servers take it up within a second
        file: PathBuf,
    },
}

#[derive(Args)]
struct TargetArgs {
    /// Target format.
    #[arg(long)]
    format: Format,
    /// Output file; for nginx a directory whose tickets.conf is to be included. An existing file
    /// keeps its mode and owner, a new one has mode 0600; new keys of nginx have those of
    /// tickets.conf, without access for others.
    #[arg(long, value_name = "PATH")]
    to: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// ssl_session_ticket_key: the first key seals
    Nginx,
    /// tls-ticket-keys: the last but one seals
    Haproxy,
    /// A secret for SDS, which Envoy follows by itself: the first seals
    Envoy,
}

impl TargetArgs {
    fn target(self) -> Target {
        let format = match self.format {
            Format::Nginx => export::Format::Nginx,
            Format::Haproxy => export::Format::Haproxy,
            Format::Envoy => export::Format::Envoy,
        };
        Target::new(format, self.to)
    }
}

impl KeysArgs {
    /// Whether the command prints its result and exits. Its progress is not logged then.
    pub(crate) fn runs_once(&self) -> bool {
        !matches!(self.command, KeysCommand::Watch { .. })
    }
}

pub(crate) fn run(args: KeysArgs) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start a worker")?;
    runtime.block_on(run_command(args.command))
}

async fn run_command(command: KeysCommand) -> anyhow::Result<ExitCode> {
    match command {
        KeysCommand::New { file, rotation, lifetime } => {
            let schedule = Schedule::new(hours(rotation), hours(lifetime))?;
            KeyFile::new(&file).write_new(schedule, now())?;
            outln!(
                "created {} with new ticket keys; give it to each server with --ticket-keys",
                file.display()
            );
        }
        KeysCommand::Rotate { source } => outln!("{}", source.open()?.rotate().await?),
        KeysCommand::List { source, json } => return list::run(&source.open()?, json).await,
        KeysCommand::Export { source, target } => {
            let ring = source.open()?.read_for_use().await?;
            let target = target.target();
            let state = match target.write(&ring, now())? {
                true => "now has the current keys",
                false => "already had the current keys",
            };
            outln!("{} {state}", target.path().display());
        }
        KeysCommand::Watch { source, target, exec } => {
            return watch::run(&source.open()?, &target.target(), exec).await;
        }
        KeysCommand::NewEncryption { file } => {
            let id = KeyEncryption::write_new(&file)?;
            let file = file.display();
            outln!("created {file} with key-encryption key {id}; copy it to each node");
        }
        KeysCommand::RotateEncryption { file } => {
            let id = KeyEncryption::rotate(&file)?;
            let file = file.display();
            outln!("added key-encryption key {id} to {file}; copy it to each node");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn now() -> UnixTime {
    UnixTime::from(SystemTime::now())
}

fn hours(count: u64) -> Duration {
    Duration::from_secs(count * 3600)
}
