//! Tries in a copy of this process, so that namespaces and users can be changed without a trace.

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

use super::{FindingState, State};

/// What `f` finds in a copy of this process, which ends with it.
pub(super) fn in_a_copy(f: impl FnOnce() -> FindingState) -> FindingState {
    match run(f) {
        Ok(verdict) => verdict,
        Err(why) => FindingState::missing(
            format!("a trial could not be made: {why}"),
            "see whether the machine has processes and memory to spare, and try again",
        ),
    }
}

fn run(f: impl FnOnce() -> FindingState) -> Result<FindingState, String> {
    let (read, write) = pipe2(OFlag::O_CLOEXEC).map_err(|errno| errno.to_string())?;
    // SAFETY: the child runs on in Rust until it ends. Where this process has several threads, a
    // lock that another holds just now stays locked in the child; the C library frees its own, and
    // a child that waits for any other is killed below.
    match unsafe { fork() }.map_err(|errno| errno.to_string())? {
        ForkResult::Child => {
            drop(read);
            let verdict = catch_unwind(AssertUnwindSafe(f));
            let text = verdict.map_or_else(|_| String::new(), |verdict| verdict.to_line());
            // If nobody reads any more, nobody needs it.
            let _ = File::from(write).write_all(text.as_bytes());
            // SAFETY: ends this copy at once, without what the original has registered for its end.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => {
            drop(write);
            let text = read_within(File::from(read), TRIAL_TIMEOUT);
            // It has ended, or it hangs.
            let _ = kill(child, Signal::SIGKILL);
            let _ = waitpid(child, None);
            FindingState::from_line(&text?).ok_or_else(|| "it broke off".to_owned())
        }
    }
}

/// All that comes until the end. Copies of the writing end may be held by processes that the child
/// has started, so there is a limit.
fn read_within(mut pipe: File, limit: Duration) -> Result<String, String> {
    let began = Instant::now();
    let mut bytes = Vec::new();
    loop {
        let left = limit.saturating_sub(began.elapsed());
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
        if bytes.contains(&END) {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

impl FindingState {
    fn to_line(&self) -> String {
        let state = match self.state {
            State::Good => "good",
            State::Limited => "limited",
            State::Missing => "missing",
        };
        let mend = self.mend.as_deref().unwrap_or_default();
        let (field, end) = (char::from(FIELD), char::from(END));
        format!("{state}{field}{}{field}{mend}{end}", self.what)
    }

    fn from_line(line: &str) -> Option<Self> {
        let mut fields = line.strip_suffix(char::from(END))?.split(char::from(FIELD));
        let state = match fields.next()? {
            "good" => State::Good,
            "limited" => State::Limited,
            "missing" => State::Missing,
            _ => return None,
        };
        let (what, mend) = (fields.next()?.to_owned(), fields.next()?);
        Some(Self { state, what, mend: (!mend.is_empty()).then(|| mend.to_owned()) })
    }
}

const TRIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// ASCII's unit and record separators, which no message has.
const FIELD: u8 = 0x1f;
const END: u8 = 0x1e;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_comes_back_from_the_copy() {
        for verdict in [
            FindingState::good("fine"),
            FindingState::limited("so: so", "do\nthis"),
            FindingState::missing("", "x"),
        ] {
            assert_eq!(FindingState::from_line(&verdict.to_line()), Some(verdict));
        }
        assert_eq!(
            in_a_copy(|| FindingState::good(std::process::id().to_string())).state,
            State::Good
        );
    }

    #[test]
    fn a_copy_that_breaks_off_is_told() {
        // SAFETY: ends the copy of this process, which is what is tried.
        let verdict = in_a_copy(|| unsafe { libc::_exit(3) });
        assert_eq!(verdict.state, State::Missing);
        assert!(verdict.what.contains("broke off"), "{verdict:?}");
        assert_eq!(FindingState::from_line("good\u{1f}cut"), None);
    }
}
