//! The `firstflight` program: parses, calls, prints.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// TLS 1.3 0-RTT that people dare to switch on: serves it, fetches by it, measures it.
#[derive(Parser)]
#[command(name = "firstflight", version, about, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {}

fn main() -> ExitCode {
    match Cli::parse().command {}
}
