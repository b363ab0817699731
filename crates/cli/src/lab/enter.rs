//! `firstflight lab --enter`: runs a shell, a command or a browser inside a running lab.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::net::IpAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::{env, fs};

use anyhow::Context;
use firstflight_browser::{Browser, BrowserKind, Installed, Quic, Settings};
use firstflight_lab::LAB_VARIABLES;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;

use super::browsers::installed;

/// Runs `command`, a shell if it is empty, or a browser with `command` as further arguments, and
/// returns its exit code.
///
/// # Errors
/// If there is no such lab, it may not be entered, or the command cannot be started.
pub(super) fn run(
    pid: Option<u32>,
    browser: Option<&str>,
    command: &[OsString],
) -> anyhow::Result<ExitCode> {
    let pid = pid.map_or_else(only_lab, Ok)?;
    let browser = browser.map(installed).transpose()?;
    let environment = firstflight_emulator::enter(pid, &LAB_VARIABLES)?;
    let mut process = match (&browser, command) {
        (Some(browser), arguments) => {
            let mut process = interactive_browser(browser, &environment)?;
            process.args(arguments);
            process
        }
        (None, []) => Command::new(env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into())),
        (None, [program, arguments @ ..]) => {
            let mut process = Command::new(program);
            process.args(arguments);
            process
        }
    };
    let program = process.get_program().to_string_lossy().into_owned();
    if browser.is_none() && command.is_empty() && std::io::stdin().is_terminal() {
        errln!("Inside the lab of process {pid}; type `exit` to leave.");
    }
    let child = process.envs(environment).spawn();
    let status = wait(child.with_context(|| format!("cannot start {program} in the lab"))?)?;
    Ok(ExitCode::from(exit_code(status)))
}

/// Prepares a browser with a new profile, which is removed with the lab's directory. Call this inside
/// the lab.
fn interactive_browser(
    browser: &Installed,
    environment: &[(OsString, OsString)],
) -> anyhow::Result<Command> {
    let file = |variable: &str| {
        let found = environment.iter().find(|(name, _)| name == variable);
        found
            .map(|(_, path)| PathBuf::from(path))
            .context("this lab was started without files for clients")
    };
    let profile = tempfile::Builder::new()
        .prefix("browser-")
        .tempdir_in(file("FIRSTFLIGHT_LAB")?)
        .context("cannot create a profile in the lab's directory")?
        .keep();
    let hosts = fs::read_to_string("/etc/hosts").context("cannot read /etc/hosts in the lab")?;
    let settings = Settings {
        early_data: true,
        quic: Quic::Advertised,
        trust: vec![file("SSL_CERT_FILE")?],
        hosts: names(&hosts),
        key_log: Some(file("SSLKEYLOGFILE")?),
        cache: true,
        speculation: true,
        extra: match browser.kind {
            BrowserKind::Chromium => Vec::new(),
            // Makes it read /etc/hosts, where each network has its own address.
            BrowserKind::Firefox => vec!["network.dns.forceResolve=".to_owned()],
        },
        ..Settings::default()
    };
    Ok(Browser::prepare(browser, &profile, &settings)?)
}

/// The names in a text in the format of `/etc/hosts` (hosts(5)), except loopback's.
fn names(hosts: &str) -> Vec<(String, IpAddr)> {
    let lines = hosts.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let address: IpAddr = words.next()?.parse().ok()?;
        (!address.is_loopback()).then(|| words.map(move |name| (name.to_owned(), address)))
    });
    lines.flatten().collect()
}

/// The process ID of this user's only lab.
fn only_lab() -> anyhow::Result<u32> {
    match firstflight_emulator::holders()[..] {
        [pid] => Ok(pid),
        [] => anyhow::bail!(
            "no lab of this user is running; start one with `firstflight lab --serve`, or give the \
             process ID that it printed"
        ),
        ref pids => {
            let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
            let pids = pids.join(", ");
            anyhow::bail!("several labs are running; give the process ID of one to --enter: {pids}")
        }
    }
}

/// Waits until the child exits. Forwards SIGTERM and SIGHUP; signals from the terminal reach the
/// child directly.
fn wait(mut child: Child) -> anyhow::Result<ExitStatus> {
    let signals: SigSet =
        [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGCHLD]
            .into_iter()
            .collect();
    // After starting the child, which would inherit the mask.
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

/// The exit code that a shell would report.
fn exit_code(status: ExitStatus) -> u8 {
    let signal = || 128 + status.signal().unwrap_or(0);
    u8::try_from(status.code().unwrap_or_else(signal)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_networks_are_read_from_hosts() {
        let hosts = "127.0.0.1 localhost\n::1 localhost\n10.77.1.2 lab.test\n10.77.2.2 a b\n#\n\n";
        let name = |name: &str, last| (name.to_owned(), IpAddr::from([10, 77, last, 2]));
        assert_eq!(names(hosts), [name("lab.test", 1), name("a", 2), name("b", 2)]);
    }

    #[test]
    fn exit_codes_are_those_of_shells() {
        assert_eq!(exit_code(ExitStatus::from_raw(0)), 0);
        assert_eq!(exit_code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(exit_code(ExitStatus::from_raw(Signal::SIGTERM as i32)), 143);
    }
}
