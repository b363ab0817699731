//! The `firstflight` program: parses the flags, runs the command and prints its errors.

// `print!` and `eprint!` panic if their stream is closed or full.
#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
mod print;

mod allocator;
mod audit;
mod authority;
mod axes;
mod bench;
mod doctor;
mod ech;
mod fetch;
mod health;
mod keys;
mod lab;
mod log;
mod manual;
mod progress;
mod report;
mod results;
mod serve;
mod static_build;
mod try_command;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod x25519;

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use firstflight::lifecycle::protect_memory;
use firstflight_units::printable_lines;

/// TLS 1.3 0-RTT that people dare to switch on: serves it, fetches by it, measures it.
#[derive(Parser)]
#[command(name = "firstflight", version, about, propagate_version = true, after_help = ENVIRONMENT)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Audit(audit::AuditArgs),
    Authority(authority::AuthorityArgs),
    Bench(bench::BenchArgs),
    Completions(manual::CompletionsArgs),
    Doctor(doctor::DoctorArgs),
    Ech(ech::EchArgs),
    Fetch(fetch::FetchArgs),
    Health(health::HealthArgs),
    Keys(keys::KeysArgs),
    Lab(lab::LabArgs),
    Manual(manual::ManualArgs),
    Report(report::ReportArgs),
    Serve(serve::ServeArgs),
    Try(try_command::TryArgs),
}

fn main() -> ExitCode {
    // First of all: until then, other processes of the same user can open the server's memory.
    let is_serve = std::env::args_os().nth(1).is_some_and(|command| command == "serve");
    let memory = is_serve.then(protect_memory);
    if !is_serve {
        allocator::map_large_buffers();
    }
    static_build::use_built_in_name_services();
    let command = Cli::try_parse().unwrap_or_else(|error| exit_with(&error)).command;
    match &command {
        // `serve` logs as its configuration says.
        Command::Serve(_) => {}
        Command::Try(_) => log::to_stderr("warn"),
        Command::Keys(args) if args.runs_once() => log::to_stderr("warn"),
        _ => log::to_stderr("info"),
    }
    let result = match command {
        Command::Audit(args) => audit::run(args),
        Command::Authority(args) => authority::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Completions(args) => Ok(manual::complete(&args)),
        Command::Doctor(args) => doctor::run(args),
        Command::Ech(args) => ech::run(args),
        Command::Fetch(args) => fetch::run(args),
        Command::Health(args) => health::run(args),
        Command::Keys(args) => keys::run(args),
        Command::Lab(args) => lab::run(args),
        Command::Manual(args) => manual::run(&args),
        Command::Report(args) => report::run(args),
        Command::Serve(args) => serve::run(args, memory.unwrap_or_else(protect_memory)),
        Command::Try(args) => try_command::run(args),
    };
    result.unwrap_or_else(|error| {
        errln!("firstflight: {}", printable_lines(&print::with_causes(&error)));
        ExitCode::from(2)
    })
}

/// Prints why the flags are invalid, or the help that they request, and ends the program.
fn exit_with(error: &clap::Error) -> ! {
    let is_fetch = std::env::args_os().nth(1).is_some_and(|command| command == "fetch");
    if is_fetch
        && error.kind() == ErrorKind::UnknownArgument
        && let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg)
        && let Some(name) = fetch::missing_curl_flag(flag)
    {
        errln!(
            "firstflight: curl has {name}, but firstflight fetch has not; leave it out, or use curl"
        );
        std::process::exit(2);
    }
    error.exit()
}

/// The definition of all flags, from which completions and manual pages are generated.
fn command() -> clap::Command {
    Cli::command()
}

const ENVIRONMENT: &str = "Environment:
  RUST_LOG                what is logged to stderr: error, warn, info, debug, trace
  FIRSTFLIGHT_LOG_FORMAT  json: each log message as a JSON object
  SSLKEYLOGFILE           a file to which serve and fetch append their TLS secrets";
