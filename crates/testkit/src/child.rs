//! Child processes that end with their test, and waiting for what they do.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long anything may take on a busy machine before a test calls it hung.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A child that is killed when dropped.
pub struct Running(pub Child);

impl Running {
    /// Starts a command.
    ///
    /// # Panics
    /// If it cannot be started; names the fix where the program is missing.
    pub fn start(command: &mut Command) -> Self {
        match command.spawn() {
            Ok(child) => Self(child),
            Err(error) if error.kind() == ErrorKind::NotFound => panic!(
                "{} is not installed; run `make deps-test`",
                command.get_program().to_string_lossy()
            ),
            Err(error) => panic!("{command:?}: {error}"),
        }
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// If it has ended, and been waited for.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).expect("the child can be signalled");
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.0.try_wait().expect("the child can be waited for").is_some()
    }

    /// The status once it has ended; `None` if that takes too long.
    pub fn wait(&mut self) -> Option<ExitStatus> {
        until(|| self.has_ended());
        self.0.try_wait().expect("the child can be waited for")
    }

    /// Sends SIGTERM and waits; whether it ended.
    pub fn terminate(mut self) -> bool {
        self.signal(Signal::SIGTERM);
        until(|| self.has_ended())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Polls a condition; whether it came true in time.
pub fn until(condition: impl FnMut() -> bool) -> bool {
    within(TEST_TIMEOUT, Duration::from_millis(10), condition)
}

/// Polls a condition at this interval; whether it came true before the timeout.
pub fn within(timeout: Duration, interval: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() > timeout {
            return false;
        }
        thread::sleep(interval);
    }
    true
}

/// A file's text; empty where there is no file yet.
pub fn text(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}
