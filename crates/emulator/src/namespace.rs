//! A network namespace without a name, and the threads and processes inside.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::resume_unwind;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};

use nix::sched::{CloneFlags, setns, unshare};

use crate::LinkError;
use crate::process::{Process, ProcessSpawner};

/// A network namespace, held by a descriptor and by a thread that starts its child processes.
///
/// Dropping it ends those children. Running threads of [`Namespace::spawn`] keep the namespace
/// itself alive until they end.
#[derive(Debug)]
pub struct Namespace {
    name: &'static str,
    descriptor: Arc<OwnedFd>,
    runner: Option<(Sender<Job>, JoinHandle<()>)>,
}

impl Namespace {
    pub(crate) fn new(name: &'static str) -> Result<Self, LinkError> {
        let (sender, jobs) = channel();
        let (ready, created) = sync_channel(1);
        let handle = thread::Builder::new()
            .name(format!("{name} runner"))
            .spawn(move || run_children(&ready, &jobs))
            .map_err(|e| LinkError::system("start a thread", e))?;
        let descriptor = created.recv().map_err(|_| LinkError::ThreadGone("runner"))??;
        Ok(Self { name, descriptor: Arc::new(descriptor), runner: Some((sender, handle)) })
    }

    /// Its name in messages: client, link, server or attacker.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Runs `f` on a new thread inside the namespace. Sockets and threads created there are inside
    /// too, including those of an async runtime.
    ///
    /// Start child processes by [`Namespace::spawn_child`], which ends them with this process.
    ///
    /// # Errors
    /// If the thread cannot be started or cannot enter.
    pub fn spawn<T, F>(&self, thread_name: &str, f: F) -> Result<JoinHandle<T>, LinkError>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let descriptor = Arc::clone(&self.descriptor);
        let (ready, entered) = sync_channel(1);
        let handle = thread::Builder::new()
            .name(thread_name.to_owned())
            .spawn(move || {
                let result = enter(&descriptor);
                let failed = result.is_err();
                // The receiver waits for exactly this message.
                let _ = ready.send(result);
                if failed {
                    // Ends the thread without a message: nobody has its handle.
                    resume_unwind(Box::new("not in the namespace"));
                }
                f()
            })
            .map_err(|e| LinkError::system("start a thread", e))?;
        entered.recv().map_err(|_| LinkError::ThreadGone("namespace"))??;
        Ok(handle)
    }

    /// Runs `f` inside the namespace and waits for it; `f` may borrow. A panic is propagated.
    ///
    /// # Errors
    /// If the thread cannot be started or cannot enter.
    pub fn run<T, F>(&self, f: F) -> Result<T, LinkError>
    where
        T: Send,
        F: FnOnce() -> T + Send,
    {
        thread::scope(|scope| {
            let handle = thread::Builder::new()
                .name(format!("in {}", self.name))
                .spawn_scoped(scope, || {
                    enter(&self.descriptor)?;
                    Ok(f())
                })
                .map_err(|e| LinkError::system("start a thread", e))?;
            handle.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// Starts a child process inside the namespace.
    ///
    /// It leads its own process group, which is killed when the handle is dropped. When the network
    /// is dropped, or when this process ends in any way, including SIGKILL, it ends with all its
    /// descendants.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn spawn_child(&self, command: Command) -> Result<Process, LinkError> {
        let program = command.get_program().to_string_lossy().into_owned();
        let (reply, response) = sync_channel(1);
        let (sender, _) = self.runner.as_ref().ok_or(LinkError::ThreadGone("runner"))?;
        sender.send(Job { command, reply }).map_err(|_| LinkError::ThreadGone("runner"))?;
        response
            .recv()
            .map_err(|_| LinkError::ThreadGone("runner"))?
            .map_err(|e| LinkError::system(format!("start {program}"), e))
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Some((sender, handle)) = self.runner.take() {
            drop(sender);
            // The thread can only have panicked, and then its children have ended.
            let _ = handle.join();
        }
    }
}

#[derive(Debug)]
struct Job {
    command: Command,
    reply: SyncSender<std::io::Result<Process>>,
}

/// The runner: creates the namespace, reports it, and starts children until the [`Namespace`]
/// is dropped.
fn run_children(ready: &SyncSender<Result<OwnedFd, LinkError>>, jobs: &Receiver<Job>) {
    let created = create().and_then(|descriptor| Ok((descriptor, ProcessSpawner::new()?)));
    let mut spawner = match created {
        Ok((descriptor, spawner)) => {
            if ready.send(Ok(descriptor)).is_err() {
                return;
            }
            spawner
        }
        Err(error) => {
            // If this fails, the caller is gone and needs no response.
            let _ = ready.send(Err(error));
            return;
        }
    };
    for Job { command, reply } in jobs {
        // If nobody waits any more, the process handle is dropped here, which ends the child.
        let _ = reply.send(spawner.start(command));
    }
}

fn create() -> Result<OwnedFd, LinkError> {
    unshare(CloneFlags::CLONE_NEWNET)
        .map_err(|errno| LinkError::NamespacesRefused { source: errno.into() })?;
    File::open("/proc/thread-self/ns/net")
        .map(OwnedFd::from)
        .map_err(|e| LinkError::system("open its network namespace in /proc", e))
}

fn enter(descriptor: &OwnedFd) -> Result<(), LinkError> {
    setns(descriptor, CloneFlags::CLONE_NEWNET)
        .map_err(|e| LinkError::system("enter a network namespace", e))
}
