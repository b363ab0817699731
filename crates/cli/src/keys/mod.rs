//! `firstflight keys`: ticket keys that several servers share, ours and those of other makes.

mod grid;
mod list;
mod runner;
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

/// Makes, rotates and shows the ticket keys that several servers share, and writes them for nginx,
/// HAProxy and Envoy.
///
/// Whoever has a ticket key can read the early data of the tickets under it: files are made for
/// their owner only (mode 0600), and `serve` refuses one that others can read.
#[derive(Args)]
pub(crate) struct KeysArgs {
    #[command(subcommand)]
    command: KeysCommand,
}

#[derive(Subcommand)]
enum KeysCommand {
    /// Write a new file of ticket keys: one in use, one to follow
    New {
        /// The file; it must not exist yet
        file: PathBuf,
        /// How long a key seals tickets before the next one takes over, in hours
        #[arg(long, value_name = "HOURS", default_value_t = 12, value_parser = clap::value_parser!(u64).range(1..=168))]
        rotation: u64,
        /// How long a ticket is good, in hours (RFC 8446 allows 7 days)
        #[arg(long, value_name = "HOURS", default_value_t = 12, value_parser = clap::value_parser!(u64).range(1..=168))]
        lifetime: u64,
    },
    /// Put the next key into use now, make a new next one, and drop what no ticket needs any more
    Rotate {
        #[command(flatten)]
        source: SourceArgs,
    },
    /// Show the keys and what each is for; exits with 1 where something has to be done
    List {
        #[command(flatten)]
        source: SourceArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Write the keys once for another server, in the order that it wants
    Export {
        #[command(flatten)]
        source: SourceArgs,
        #[command(flatten)]
        target: TargetArgs,
    },
    /// Write them, and again whenever they change or the next one takes over, until SIGTERM
    Watch {
        #[command(flatten)]
        source: SourceArgs,
        #[command(flatten)]
        target: TargetArgs,
        /// Run by sh at the start and after each change; tried again later if it fails
        #[arg(long, value_name = "COMMAND")]
        exec: Option<String>,
    },
    /// Write a new file with a key-encryption key, under which ticket keys lie in a store
    NewEncryption {
        /// The file; it must not exist yet. All nodes get the same
        file: PathBuf,
    },
    /// Put a new key-encryption key first, and keep the one that was first to open with
    RotateEncryption {
        /// The file, to be given to all nodes again; running servers take it up within a second
        file: PathBuf,
    },
}

#[derive(Args)]
struct TargetArgs {
    /// Whose format
    #[arg(long)]
    format: Format,
    /// The file; for nginx a directory, in which tickets.conf is to be included. What exists keeps
    /// its mode and owner, what is new has mode 0600
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
    /// Whether the command says what it has to say and ends. Then it need not tell how it went
    /// about it.
    pub(crate) fn answers_at_once(&self) -> bool {
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
            println!(
                "{} holds new ticket keys; give it to each server by --ticket-keys",
                file.display()
            );
        }
        KeysCommand::Rotate { source } => println!("{}", source.open()?.rotate().await?),
        KeysCommand::List { source, json } => return list::run(&source.open()?, json).await,
        KeysCommand::Export { source, target } => {
            let ring = source.open()?.take().await?;
            let target = target.target();
            let said = match target.write(&ring, now())? {
                true => "holds the keys as they are now",
                false => "held the keys as they are already",
            };
            println!("{} {said}", target.path().display());
        }
        KeysCommand::Watch { source, target, exec } => {
            return watch::run(&source.open()?, &target.target(), exec).await;
        }
        KeysCommand::NewEncryption { file } => {
            let id = KeyEncryption::write_new(&file)?;
            let file = file.display();
            println!("{file} holds a new key-encryption key, {id}; give the file to each node");
        }
        KeysCommand::RotateEncryption { file } => {
            let id = KeyEncryption::rotate(&file)?;
            let file = file.display();
            println!("{file} begins with a new key-encryption key, {id}; give it to each node");
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
