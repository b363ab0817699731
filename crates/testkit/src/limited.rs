//! Kills commands that hang, so that a test fails with a message instead of waiting forever.

use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::child::{TEST_TIMEOUT, spawn, until};

/// Runs a command to its end, without input, and returns its output.
///
/// # Panics
/// If the command cannot be started, or does not end in time. It is then killed with its children,
/// and the message contains its output so far.
pub fn output_within(command: &mut Command, limit: Duration) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let child = spawn(command);
    let watchdog = Watchdog::start(&child, limit);
    let output = child.wait_with_output().expect("its output can be read");
    assert!(
        !watchdog.stop(),
        "{command:?} does not end within {limit:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Kills a child with its process group after a time limit, unless stopped or dropped before.
pub struct Watchdog {
    stop: Sender<()>,
    thread: JoinHandle<bool>,
}

impl Watchdog {
    /// Watches a child that leads a process group (`Command::process_group(0)`).
    pub fn start(child: &Child, limit: Duration) -> Self {
        let group = Pid::from_raw(child.id() as i32);
        let (stop, stopped) = mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            let is_late = stopped.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
            if is_late {
                // The child may have ended just now.
                let _ = killpg(group, Signal::SIGKILL);
            }
            is_late
        });
        Self { stop, thread }
    }

    /// Stops the watchdog. Returns whether it has killed the child.
    pub fn stop(self) -> bool {
        drop(self.stop);
        self.thread.join().expect("it only waits")
    }
}

/// Accepts the next client of a listener. Makes the listener non-blocking, and sets a read timeout
/// on the client.
///
/// # Panics
/// If no client connects in time.
pub fn next_client(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).expect("a listener");
    let mut accepted = None;
    until(|| {
        accepted = listener.accept().ok();
        accepted.is_some()
    });
    let (client, _) = accepted.expect("a client connects");
    client.set_read_timeout(Some(TEST_TIMEOUT)).expect("a timeout above zero");
    client
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Output {
        output_within(Command::new("sh").args(["-c", script]), limit)
    }

    #[test]
    fn a_command_that_hangs_is_killed_with_its_children() {
        assert_eq!(shell("echo said", TEST_TIMEOUT).stdout, b"said\n");
        // The child that holds the output would keep the reader waiting.
        let hangs = || shell("sleep 1000 & wait", Duration::from_millis(100));
        let panic = std::panic::catch_unwind(hangs).unwrap_err();
        let message = panic.downcast::<String>().unwrap();
        assert!(message.contains("does not end within 100ms"), "{message}");
    }
}
