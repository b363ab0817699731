//! The `firstflight` program: parses, calls, prints.

mod fetch;
mod keys;
mod lab;
mod serve;

use std::io::IsTerminal;
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
enum Command {
    Fetch(fetch::FetchArgs),
    Keys(keys::KeysArgs),
    Lab(lab::LabArgs),
    Serve(serve::ServeArgs),
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into()),
        )
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    let result = match Cli::parse().command {
        Command::Fetch(args) => fetch::run(args),
        Command::Keys(args) => keys::run(args),
        Command::Lab(args) => lab::run(args),
        Command::Serve(args) => serve::run(args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("firstflight: {error:#}");
        ExitCode::from(2)
    })
}
