//! Where a browser runs: on this machine, or where its caller can start programs.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// Starts programs and connects to their loopback: this machine, or a network namespace.
pub trait Environment: Send + Sync {
    /// Starts a program as the leader of a new process group, which ends with the handle.
    ///
    /// # Errors
    /// If the program cannot be started.
    fn start(&self, command: Command) -> io::Result<Box<dyn BrowserProcess>>;

    /// Connects to a loopback address of the environment.
    ///
    /// # Errors
    /// If the connection fails.
    fn connect(&self, address: SocketAddr) -> io::Result<TcpStream>;
}

/// A started program. It is killed with its process group when this is dropped.
pub trait BrowserProcess: Send {
    /// Takes the pipe to its standard input, if there is one.
    fn stdin(&mut self) -> Option<ChildStdin>;

    /// Takes the pipe from its standard output, if there is one.
    fn stdout(&mut self) -> Option<Box<dyn Read + Send>>;

    /// The process id, as seen from this process.
    fn id(&self) -> u32;

    /// Whether the process has ended.
    ///
    /// # Errors
    /// If the system call fails.
    fn has_ended(&mut self) -> io::Result<bool>;

    /// Kills the process group and reaps the process.
    ///
    /// # Errors
    /// If a system call fails.
    fn kill(&mut self) -> io::Result<()>;
}

/// This machine, with its network.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalMachine;

impl Environment for LocalMachine {
    fn start(&self, mut command: Command) -> io::Result<Box<dyn BrowserProcess>> {
        let child = command.process_group(0).spawn()?;
        Ok(Box::new(ProcessGroup { child, reaped: false }))
    }

    fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect(address)
    }
}

/// A child that leads a process group.
struct ProcessGroup {
    child: Child,
    reaped: bool,
}

impl BrowserProcess for ProcessGroup {
    fn stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    fn stdout(&mut self) -> Option<Box<dyn Read + Send>> {
        self.child.stdout.take().map(|pipe| Box::new(pipe) as Box<_>)
    }

    fn id(&self) -> u32 {
        self.child.id()
    }

    fn has_ended(&mut self) -> io::Result<bool> {
        if self.reaped {
            return Ok(true);
        }
        // The process is not reaped, so that no other process gets its id before the group is killed.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(WaitId::Pid(Pid::from_child(&self.child)), options)?.is_some())
    }

    fn kill(&mut self) -> io::Result<()> {
        if !self.reaped {
            kill_process_group(Pid::from_child(&self.child), Signal::KILL)?;
            self.child.wait()?;
            self.reaped = true;
        }
        Ok(())
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // A failure cannot be reported here.
        let _ = self.kill();
    }
}
