//! Child processes that cannot outlive the network.
//!
//! A parent-death signal reaches only the direct child, so a server that is killed with this
//! process would leave its workers behind. Children are therefore started in a process-id
//! namespace: when its first process dies, the kernel kills all others in it. That first process
//! only waits for the end of this process. Network namespaces are held by descriptors, without
//! names, so nothing has to be cleaned up.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
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

/// A child process in a namespace, with its process group. Both are killed and reaped when this
/// handle or the network is dropped.
#[derive(Debug)]
pub struct Process {
    leader: Arc<Mutex<Leader>>,
    /// The write end of its standard input, if the command uses a pipe.
    pub stdin: Option<ChildStdin>,
    /// The read end of its standard output, if the command uses a pipe.
    pub stdout: Option<ChildStdout>,
    /// The read end of its standard error, if the command uses a pipe.
    pub stderr: Option<ChildStderr>,
}

impl Process {
    /// Its process id in the namespace of this process.
    pub fn id(&self) -> u32 {
        lock(&self.leader).child.id()
    }

    /// Its exit status, if it has ended. Processes of its group may still run.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn try_wait(&self) -> io::Result<Option<ExitStatus>> {
        lock(&self.leader).status()
    }

    /// Whether it has ended.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn has_ended(&self) -> io::Result<bool> {
        Ok(self.try_wait()?.is_some())
    }

    /// Waits at most this long for it to end. Returns `None` if it still runs.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn wait_timeout(&self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        let started = Instant::now();
        loop {
            // The lock is released between polls, so that dropping the network does not have to
            // wait.
            let status = self.try_wait()?;
            if status.is_some() || started.elapsed() >= limit {
                return Ok(status);
            }
            thread::sleep(WAIT_POLL_INTERVAL);
        }
    }

    /// Sends a signal by number, such as `libc::SIGTERM`, to its process group. Processes that have
    /// ended are left alone.
    ///
    /// # Errors
    /// The error of the operating system, for example for an invalid number.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        lock(&self.leader).signal(Signal::try_from(signal)?)
    }

    /// Kills its process group and reaps it.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn kill(&self) -> io::Result<()> {
        lock(&self.leader).end()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already, and a failure could not be handled here.
        let _ = lock(&self.leader).end();
    }
}

/// Starts children of a thread, and ends them when the spawner is dropped.
pub(crate) struct ProcessSpawner {
    init: Pid,
    /// Closed by the kernel when this process ends, which the first process waits for.
    _alive: OwnedFd,
    children: Vec<Weak<Mutex<Leader>>>,
}

impl ProcessSpawner {
    /// Gives the calling thread a process-id namespace for its children.
    ///
    /// The calling thread cannot start threads afterwards (clone(2), `CLONE_THREAD`).
    pub(crate) fn new() -> Result<Self, LinkError> {
        let step = "make a process-id namespace";
        let (read_end, alive) =
            pipe2(nix::fcntl::OFlag::O_CLOEXEC).map_err(|e| LinkError::system(step, e))?;
        unshare(CloneFlags::CLONE_NEWPID).map_err(|e| LinkError::system(step, e))?;
        // SAFETY: the child of a process with threads may only make async-signal-safe calls;
        // `first_process` only makes system calls and never returns.
        match unsafe { fork() }.map_err(|e| LinkError::system(step, e))? {
            ForkResult::Child => first_process(read_end.as_raw_fd()),
            ForkResult::Parent { child } => {
                Ok(Self { init: child, _alive: alive, children: Vec::new() })
            }
        }
    }

    pub(crate) fn start(&mut self, mut command: Command) -> io::Result<Process> {
        let mut child = command.process_group(0).spawn()?;
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let leader = Arc::new(Mutex::new(Leader { child, reaped: None }));
        self.children.retain(|child| child.strong_count() > 0);
        self.children.push(Arc::downgrade(&leader));
        Ok(Process { leader, stdin, stdout, stderr })
    }
}

impl Drop for ProcessSpawner {
    fn drop(&mut self) {
        // Direct children first: the namespace's first process cannot end before they are reaped.
        for child in self.children.drain(..).filter_map(|child| child.upgrade()) {
            let _ = lock(&child).end();
        }
        if kill(self.init, Signal::SIGKILL).is_ok() {
            // It ends after all other processes of its namespace. If the kernel cannot end one of
            // them, this process does not wait forever.
            let started = Instant::now();
            while started.elapsed() < END_TIMEOUT
                && matches!(
                    waitpid(self.init, Some(WaitPidFlag::WNOHANG)),
                    Ok(WaitStatus::StillAlive) | Err(Errno::EINTR)
                )
            {
                thread::sleep(END_POLL_INTERVAL);
            }
        }
    }
}

/// The first process of the namespace: ends when the write end of `alive` is closed.
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

/// A child that leads a process group.
#[derive(Debug)]
struct Leader {
    child: Child,
    /// Its exit status, once it is reaped and its id may belong to another process.
    reaped: Option<ExitStatus>,
}

impl Leader {
    fn id(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// Its exit status, if it has ended. Does not reap it, so that its id stays the id of its group.
    fn status(&self) -> io::Result<Option<ExitStatus>> {
        if self.reaped.is_some() {
            return Ok(self.reaped);
        }
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let status = match waitid(Id::Pid(self.id()), flags)? {
            WaitStatus::Exited(_, code) => code << 8,
            WaitStatus::Signaled(_, signal, dumped) => signal as i32 | (i32::from(dumped) << 7),
            _ => return Ok(None),
        };
        Ok(Some(ExitStatus::from_raw(status)))
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        if self.reaped.is_some() {
            return Ok(());
        }
        match killpg(self.id(), signal) {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Kills the whole group, so that a server's workers do not keep its ports: they may still run
    /// after their leader has ended. Reaps the leader.
    fn end(&mut self) -> io::Result<()> {
        if self.reaped.is_none() {
            self.signal(Signal::SIGKILL)?;
            self.reaped = Some(self.child.wait()?);
        }
        Ok(())
    }
}

fn lock(leader: &Mutex<Leader>) -> MutexGuard<'_, Leader> {
    leader.lock().unwrap_or_else(PoisonError::into_inner)
}

const WAIT_POLL_INTERVAL: Duration = Duration::from_millis(5);
const END_POLL_INTERVAL: Duration = Duration::from_millis(1);
const END_TIMEOUT: Duration = Duration::from_secs(10);
