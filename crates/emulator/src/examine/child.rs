//! Checks in a child process, so that namespaces and users can change without affecting this
//! process.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork, pipe2};

use super::{Assessment, State};

/// Runs a check in a copy of this process.
pub(super) fn in_child(f: impl FnOnce() -> Assessment) -> Assessment {
    match run(f) {
        Ok(assessment) => assessment,
        Err(why) => Assessment::missing(
            format!("the check could not be run: {why}"),
            "check that processes and memory are available, and try again",
        ),
    }
}

fn run(f: impl FnOnce() -> Assessment) -> Result<Assessment, String> {
    let (read, write) = pipe2(OFlag::O_CLOEXEC).map_err(|errno| errno.to_string())?;
    // SAFETY: the child continues to run Rust code until it ends. If this process has several
    // threads, a lock held by another one stays locked in the child; the C library releases its
    // own, and a child that waits for any other is killed below.
    match unsafe { fork() }.map_err(|errno| errno.to_string())? {
        ForkResult::Child => {
            drop(read);
            let assessment = catch_unwind(AssertUnwindSafe(f));
            let text = assessment.map_or_else(|_| String::new(), |assessment| assessment.to_line());
            // If the parent no longer reads, the result is not needed.
            let _ = File::from(write).write_all(text.as_bytes());
            // SAFETY: ends this copy immediately, without the exit handlers of the original.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => {
            drop(write);
            let text = read_within(File::from(read), CHECK_TIMEOUT);
            // The child has ended, or it hangs.
            let _ = kill(child, Signal::SIGKILL);
            let _ = waitpid(child, None);
            Assessment::from_line(&text?).ok_or_else(|| "the process exited early".to_owned())
        }
    }
}

/// Reads until the end. Processes started by the child may hold copies of the write end, so there
/// is a timeout.
fn read_within(mut pipe: File, limit: Duration) -> Result<String, String> {
    let start = Instant::now();
    let mut bytes = Vec::new();
    loop {
        let left = limit.saturating_sub(start.elapsed());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        let mut descriptors = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
        match poll(&mut descriptors, timeout) {
            Ok(0) => return Err(format!("it did not end within {limit:?}")),
            Err(nix::errno::Errno::EINTR) => continue,
            Err(errno) => return Err(errno.to_string()),
            Ok(_) => {}
        }
        let mut buffer = [0; 4_096];
        match pipe.read(&mut buffer).map_err(|e| e.to_string())? {
            0 => break,
            length => bytes.extend_from_slice(&buffer[..length]),
        }
        if bytes.contains(&LINE_END) {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

impl Assessment {
    fn to_line(&self) -> String {
        let state = match self.state {
            State::Good => "good",
            State::Limited => "limited",
            State::Missing => "missing",
        };
        let fix = self.fix.as_deref().unwrap_or_default();
        let (field, end) = (char::from(FIELD_SEPARATOR), char::from(LINE_END));
        format!("{state}{field}{}{field}{fix}{end}", self.what)
    }

    fn from_line(line: &str) -> Option<Self> {
        let mut fields =
            line.strip_suffix(char::from(LINE_END))?.split(char::from(FIELD_SEPARATOR));
        let state = match fields.next()? {
            "good" => State::Good,
            "limited" => State::Limited,
            "missing" => State::Missing,
            _ => return None,
        };
        let (what, fix) = (fields.next()?.to_owned(), fields.next()?);
        Some(Self { state, what, fix: (!fix.is_empty()).then(|| fix.to_owned()) })
    }
}

const CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// ASCII's unit and record separators, which no message contains.
const FIELD_SEPARATOR: u8 = 0x1f;
const LINE_END: u8 = 0x1e;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_returned_from_the_child() {
        for assessment in [
            Assessment::good("fine"),
            Assessment::limited("so: so", "do\nthis"),
            Assessment::missing("", "x"),
        ] {
            assert_eq!(Assessment::from_line(&assessment.to_line()), Some(assessment));
        }
        assert_eq!(
            in_child(|| Assessment::good(std::process::id().to_string())).state,
            State::Good
        );
    }

    #[test]
    fn a_child_that_exits_early_is_reported() {
        // SAFETY: ends the copy of this process, which is what is tested.
        let assessment = in_child(|| unsafe { libc::_exit(3) });
        assert_eq!(assessment.state, State::Missing);
        assert!(assessment.what.contains("exited early"), "{assessment:?}");
        assert_eq!(Assessment::from_line("good\u{1f}cut"), None);
    }
}
