//! A child that does not outlive us, however we end.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The shell starts the program, says its pid, and waits for the end of its standard input, which
/// the kernel brings about also when we are killed. It does not reap the program before that, so
/// the pid stays the program's own.
const KEEP: &str =
    r#""$@" </dev/null >/dev/null 2>&1 & echo $!; read -r _; kill -9 $! 2>/dev/null; wait"#;

/// A running program and the shell that waits for our end.
pub(crate) struct Keeper {
    shell: Child,
    pid: Pid,
}

impl Keeper {
    pub(crate) fn start(command: &[String]) -> Self {
        let mut shell = Command::new("/bin/sh")
            .args(["-c", KEEP, "sh"])
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start a shell");
        let mut line = String::new();
        let said = shell.stdout.take().expect("its output is piped");
        BufReader::new(said).read_line(&mut line).expect("the shell says a pid");
        let pid = line.trim().parse().expect("the shell says a pid");
        Self { shell, pid: Pid::from_raw(pid) }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        // It may have ended by itself.
        let _ = kill(self.pid, signal);
    }

    /// Whether the program still runs (or is stopped).
    pub(crate) fn runs(&self) -> bool {
        state(self.pid).is_some_and(|state| !matches!(state, 'Z' | 'X'))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        let end = Instant::now() + Duration::from_secs(5);
        while self.runs() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

/// The letter in `/proc/PID/stat`, behind the name in brackets.
fn state(pid: Pid) -> Option<char> {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    stat.ok()?.rsplit_once(')')?.1.trim_start().chars().next()
}
