//! `firstflight keys`: ticket keys that several processes share.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use firstflight_tickets::{KeyFile, Schedule, UnixTime};

/// Makes and rotates the ticket keys that several servers share.
///
/// Whoever has a ticket key can read the early data of the tickets under it: the file is made for
/// its owner only (mode 0600), and `serve` refuses one that others can read.
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
        /// The file, as `keys new` wrote it; running servers take it up within a second
        file: PathBuf,
    },
}

pub(crate) fn run(args: KeysArgs) -> anyhow::Result<ExitCode> {
    let now = UnixTime::from(SystemTime::now());
    match args.command {
        KeysCommand::New { file, rotation, lifetime } => {
            let schedule = Schedule::new(hours(rotation), hours(lifetime))?;
            KeyFile::new(&file).write_new(schedule, now)?;
            println!(
                "{} holds new ticket keys; give it to each server by --ticket-keys",
                file.display()
            );
        }
        KeysCommand::Rotate { file } => {
            KeyFile::new(&file).rotate(now)?;
            println!("{} is rotated; servers take it up within a second", file.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn hours(count: u64) -> Duration {
    Duration::from_secs(count * 3600)
}
