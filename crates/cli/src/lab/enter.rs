//! `firstflight lab --enter`: a shell or a command inside a lab that is up.

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

/// Runs a command inside, or a shell, or a browser with this added to its command, and ends as it
/// does.
///
/// # Errors
/// If there is no such lab, it may not be entered, or the command cannot be started.
pub(super) fn run(
    door: Option<u32>,
    browser: Option<&str>,
    command: &[OsString],
) -> anyhow::Result<ExitCode> {
    let door = door.map_or_else(only_door, Ok)?;
    let browser = browser.map(installed).transpose()?;
    let environment = firstflight_emulator::enter(door, &LAB_VARIABLES)?;
    let mut inside = match (&browser, command) {
        (Some(browser), arguments) => {
            let mut inside = for_a_person(browser, &environment)?;
            inside.args(arguments);
            inside
        }
        (None, []) => Command::new(env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into())),
        (None, [program, arguments @ ..]) => {
            let mut inside = Command::new(program);
            inside.args(arguments);
            inside
        }
    };
    let program = inside.get_program().to_string_lossy().into_owned();
    if browser.is_none() && command.is_empty() && std::io::stdin().is_terminal() {
        eprintln!("Inside the lab of process {door}; leave it by `exit`.");
    }
    let child = inside.envs(environment).spawn();
    let status = wait(child.with_context(|| format!("cannot start {program} in the lab"))?)?;
    Ok(ExitCode::from(code(status)))
}

/// A browser with a fresh profile, which lies in the lab's directory and is gone with it. To be
/// called inside.
fn for_a_person(
    browser: &Installed,
    environment: &[(OsString, OsString)],
) -> anyhow::Result<Command> {
    let file = |wanted: &str| {
        let found = environment.iter().find(|(name, _)| name == wanted);
        found.map(|(_, path)| PathBuf::from(path)).context("this lab gives no files to its guests")
    };
    let profile = tempfile::Builder::new()
        .prefix("browser-")
        .tempdir_in(file("FIRSTFLIGHT_LAB")?)
        .context("cannot make a profile in the lab's directory")?
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
            // It asks /etc/hosts then, as the others do, and each network has its own address.
            BrowserKind::Firefox => vec!["network.dns.forceResolve=".to_owned()],
        },
        ..Settings::default()
    };
    Ok(Browser::prepare(browser, &profile, &settings)?)
}

/// The names in a text as `/etc/hosts` has it (hosts(5)), those of this machine left out.
fn names(hosts: &str) -> Vec<(String, IpAddr)> {
    let lines = hosts.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let address: IpAddr = words.next()?.parse().ok()?;
        (!address.is_loopback()).then(|| words.map(move |name| (name.to_owned(), address)))
    });
    lines.flatten().collect()
}

/// The only lab of this user.
fn only_door() -> anyhow::Result<u32> {
    match firstflight_emulator::doors()[..] {
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
    fn a_browser_is_told_the_names_of_the_networks() {
        let hosts = "127.0.0.1 localhost\n::1 localhost\n10.77.1.2 lab.test\n10.77.2.2 a b\n#\n\n";
        let name = |name: &str, last| (name.to_owned(), IpAddr::from([10, 77, last, 2]));
        assert_eq!(names(hosts), [name("lab.test", 1), name("a", 2), name("b", 2)]);
    }

    #[test]
    fn a_command_ends_as_shells_say_it() {
        assert_eq!(code(ExitStatus::from_raw(0)), 0);
        assert_eq!(code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(code(ExitStatus::from_raw(Signal::SIGTERM as i32)), 143);
    }
}
