//! Child processes that cannot outlive the network.
//!
//! A parent-death signal reaches the direct child only, so a server killed with us would leave its
//! workers behind. Children are therefore started inside a process-id namespace; when its first
//! process dies, the kernel kills all others in it. That first process does nothing but wait for
//! the end of ours.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{ForkResult, Pid, fork, pipe2};

use crate::LinkError;

/// A child process in a namespace, with its process group: killed and reaped when this handle or
/// the network is dropped.
#[derive(Debug)]
pub struct Process {
    child: Arc<Mutex<Child>>,
    /// The writing end of its standard input, where the command asked for a pipe.
    pub stdin: Option<ChildStdin>,
    /// The reading end of its standard output, where the command asked for a pipe.
    pub stdout: Option<ChildStdout>,
    /// The reading end of its standard error, where the command asked for a pipe.
    pub stderr: Option<ChildStderr>,
}

impl Process {
    /// Its process id, as seen from this process.
    pub fn id(&self) -> u32 {
        lock(&self.child).id()
    }

    /// Its exit status, if it has ended.
    ///
    /// # Errors
    /// The operating system's.
    pub fn try_wait(&self) -> io::Result<Option<ExitStatus>> {
        lock(&self.child).try_wait()
    }

    /// Whether it has ended. It is not reaped: its number, which is its group's too, stays its own.
    ///
    /// # Errors
    /// The operating system's.
    pub fn has_ended(&self) -> io::Result<bool> {
        ended(&lock(&self.child))
    }

    /// Waits for its end, at most as long as given; `None` if it still runs then.
    ///
    /// # Errors
    /// The operating system's.
    pub fn wait_timeout(&self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        let started = Instant::now();
        loop {
            // The lock is released between looks, so that a drop of the network need not wait.
            let status = self.try_wait()?;
            if status.is_some() || started.elapsed() >= limit {
                return Ok(status);
            }
            thread::sleep(WAIT_STEP);
        }
    }

    /// Sends it a signal by number, as `libc::SIGTERM`; a process that has ended is left alone.
    ///
    /// # Errors
    /// The operating system's, as for a number that is no signal.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        let mut child = lock(&self.child);
        // Not yet reaped, so the number cannot belong to another process meanwhile.
        if child.try_wait()?.is_none() {
            kill(Pid::from_raw(child.id() as i32), Signal::try_from(signal)?)?;
        }
        Ok(())
    }

    /// Kills its process group and reaps it.
    ///
    /// # Errors
    /// The operating system's.
    pub fn kill(&self) -> io::Result<()> {
        end(&self.child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself, and nobody could act on a failure here.
        let _ = end(&self.child);
    }
}

/// What a runner thread needs to start children and to end them with itself.
pub(crate) struct ProcessSpawner {
    init: Pid,
    /// Closed by the kernel when this process ends, which is what the first process waits for.
    _alive: OwnedFd,
    children: Vec<Weak<Mutex<Child>>>,
}

impl ProcessSpawner {
    /// Gives the calling thread a process-id namespace for its children.
    ///
    /// The calling thread can start no further threads afterwards (clone(2), `CLONE_THREAD`).
    pub(crate) fn new() -> Result<Self, LinkError> {
        let step = "make a process-id namespace";
        let (ours, alive) =
            pipe2(nix::fcntl::OFlag::O_CLOEXEC).map_err(|e| LinkError::system(step, e))?;
        unshare(CloneFlags::CLONE_NEWPID).map_err(|e| LinkError::system(step, e))?;
        // SAFETY: the child of a process with threads may only make async-signal-safe calls;
        // `first_process` makes system calls alone and never returns.
        match unsafe { fork() }.map_err(|e| LinkError::system(step, e))? {
            ForkResult::Child => first_process(ours.as_raw_fd()),
            ForkResult::Parent { child } => {
                Ok(Self { init: child, _alive: alive, children: Vec::new() })
            }
        }
    }

    pub(crate) fn start(&mut self, mut command: Command) -> io::Result<Process> {
        let mut child = command.process_group(0).spawn()?;
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let child = Arc::new(Mutex::new(child));
        self.children.retain(|known| known.strong_count() > 0);
        self.children.push(Arc::downgrade(&child));
        Ok(Process { child, stdin, stdout, stderr })
    }
}

impl Drop for ProcessSpawner {
    fn drop(&mut self) {
        // Direct children first: the namespace's first process cannot end before they are reaped.
        for child in self.children.drain(..).filter_map(|known| known.upgrade()) {
            let _ = end(&child);
        }
        if kill(self.init, Signal::SIGKILL).is_ok() {
            while waitpid(self.init, None) == Err(Errno::EINTR) {}
        }
    }
}

/// The first process of the namespace: ends when the writing end of `alive` is closed.
fn first_process(alive: i32) -> ! {
    let mut byte = 0u8;
    // SAFETY: all of these are async-signal-safe system calls on numbers and on a local byte.
    // The copies of the parent's other descriptors are closed, since they would hold its sockets
    // and pipes open; ignoring SIGCHLD makes the kernel reap orphans by itself.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
        libc::dup2(alive, 0);
        libc::close_range(1, u32::MAX, 0);
        while libc::read(0, (&raw mut byte).cast(), 1) < 0
            && *libc::__errno_location() == libc::EINTR
        {}
        libc::_exit(0)
    }
}

fn end(child: &Mutex<Child>) -> io::Result<()> {
    let mut child = lock(child);
    if !reaped(&child) {
        // The whole group, so that a server's workers do not keep its ports; they may be there
        // though its leader has ended.
        match killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => return Err(error.into()),
        }
        child.wait()?;
    }
    Ok(())
}

/// Whether a child has ended, without reaping it.
fn ended(child: &Child) -> io::Result<bool> {
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    match waitid(Id::Pid(Pid::from_raw(child.id() as i32)), look) {
        Ok(WaitStatus::StillAlive) => Ok(false),
        Ok(_) | Err(Errno::ECHILD) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Whether a child was reaped, so that its number may be another's.
fn reaped(child: &Child) -> bool {
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    waitid(Id::Pid(Pid::from_raw(child.id() as i32)), look) == Err(Errno::ECHILD)
}

fn lock(child: &Mutex<Child>) -> MutexGuard<'_, Child> {
    child.lock().unwrap_or_else(PoisonError::into_inner)
}

const WAIT_STEP: Duration = Duration::from_millis(5);
