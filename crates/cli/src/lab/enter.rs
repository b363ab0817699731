//! `firstflight lab --enter`: a shell or a command inside a lab that is up.

use std::env;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus};

use anyhow::Context;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;

/// Runs a command inside, or a shell, and ends as it does.
///
/// # Errors
/// If there is no such lab, it may not be entered, or the command cannot be started.
pub(super) fn run(door: Option<u32>, command: &[OsString]) -> anyhow::Result<ExitCode> {
    let door = door.map_or_else(only_door, Ok)?;
    let environment = firstflight_link::enter(door)?;
    let mut inside = match command {
        [] => Command::new(env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into())),
        [program, arguments @ ..] => {
            let mut command = Command::new(program);
            command.args(arguments);
            command
        }
    };
    let program = inside.get_program().to_string_lossy().into_owned();
    if command.is_empty() && std::io::stdin().is_terminal() {
        eprintln!("Inside the lab of process {door}; leave it by `exit`.");
    }
    let child = inside.envs(environment).spawn();
    let status = wait(child.with_context(|| format!("cannot start {program} in the lab"))?)?;
    Ok(ExitCode::from(code(status)))
}

/// The only lab of this user.
fn only_door() -> anyhow::Result<u32> {
    match firstflight_link::doors()[..] {
        [door] => Ok(door),
        [] => anyhow::bail!(
            "no lab of this user is up; start one by `firstflight lab --serve`, or name the \
             process that it printed"
        ),
        ref doors => {
            let doors: Vec<String> = doors.iter().map(u32::to_string).collect();
            let doors = doors.join(", ");
            anyhow::bail!("several labs are up; name the process of one: --enter {doors}")
        }
    }
}

/// Waits for its end. What a terminal sends goes to the child as well, which decides; what others
/// send to this process is passed on.
fn wait(mut child: Child) -> anyhow::Result<ExitStatus> {
    let signals: SigSet =
        [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGCHLD]
            .into_iter()
            .collect();
    // After the child was started, which would inherit it.
    signals.thread_block()?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let signal = signals.wait()?;
        if matches!(signal, Signal::SIGTERM | Signal::SIGHUP) {
            kill(Pid::from_raw(child.id() as i32), signal)?;
        }
    }
}

/// As shells have it.
fn code(status: ExitStatus) -> u8 {
    let signal = || 128 + status.signal().unwrap_or(0);
    u8::try_from(status.code().unwrap_or_else(signal)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_ends_as_shells_say_it() {
        assert_eq!(code(ExitStatus::from_raw(0)), 0);
        assert_eq!(code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(code(ExitStatus::from_raw(Signal::SIGTERM as i32)), 143);
    }
}
