//! `firstflight completions`: what shells complete, from the flags themselves.

use std::io;
use std::process::ExitCode;

use clap::Args;
use clap_complete::Shell;

/// Write shell completions to stdout.
///
/// Packages install them. Manually, for bash, write to
/// ~/.local/share/bash-completion/completions/firstflight.
#[derive(Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(args: &CompletionsArgs) -> ExitCode {
    let mut out = Vec::new();
    clap_complete::generate(args.shell, &mut crate::command(), "firstflight", &mut out);
    // Whoever has stopped reading wants no more.
    let _ = io::Write::write_all(&mut io::stdout(), &out);
    ExitCode::SUCCESS
}
