//! Processes of a cluster: each ends with its guard.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long anything may take on a busy machine before it is called hung.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A child that is killed with its guard.
pub(crate) struct Process(Child);

impl Process {
    /// Starts a command.
    ///
    /// # Panics
    /// With a sentence that names the mend where the program is missing.
    pub(crate) fn start(command: &mut Command) -> Self {
        match command.spawn() {
            Ok(child) => Self(child),
            Err(error) if error.kind() == ErrorKind::NotFound => panic!(
                "{} is not installed; run `make deps-test`",
                command.get_program().to_string_lossy()
            ),
            Err(error) => panic!("{command:?}: {error}"),
        }
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    /// Lets it end in its own time; whether it did.
    pub(crate) fn terminate(mut self) -> bool {
        kill(Pid::from_raw(self.0.id() as i32), Signal::SIGTERM).unwrap();
        until(|| self.has_ended())
    }
}

impl Drop for Process {
    /// As `kill -9` does it.
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Polls a condition; whether it came true in time.
pub(crate) fn until(mut condition: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !condition() {
        if began.elapsed() > PATIENCE {
            return false;
        }
        thread::sleep(Duration::from_millis(10));
    }
    true
}

/// A file's text; nothing where there is none yet.
pub(crate) fn text(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

/// Where Debian puts servers, which ordinary users' PATH does not have.
pub(crate) fn found(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(more)
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
        .unwrap_or_else(|| program.into())
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}
