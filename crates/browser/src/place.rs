//! Where a browser runs: on this machine, or wherever its caller can start programs.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// Where programs can be started, and whose loopback they listen on: this machine, or a network
/// namespace.
pub trait Place: Send + Sync {
    /// Starts a program. It leads a process group of its own, which ends with the handle.
    ///
    /// # Errors
    /// The operating system's.
    fn start(&self, command: Command) -> io::Result<Box<dyn Running>>;

    /// Connects to an address of the place, which is one of its loopback.
    ///
    /// # Errors
    /// The operating system's.
    fn connect(&self, address: SocketAddr) -> io::Result<TcpStream>;
}

/// A program that was started; dropped, it is killed with its whole process group.
pub trait Running: Send {
    /// Takes the writing end of its standard input, where the command asked for a pipe.
    fn stdin(&mut self) -> Option<Box<dyn Write + Send>>;

    /// Takes the reading end of its standard output, where the command asked for a pipe.
    fn stdout(&mut self) -> Option<Box<dyn Read + Send>>;

    /// Its process id, as seen from this process.
    fn id(&self) -> u32;

    /// Whether it has ended by itself.
    ///
    /// # Errors
    /// The operating system's.
    fn ended(&mut self) -> io::Result<bool>;

    /// Kills its process group and reaps it.
    ///
    /// # Errors
    /// The operating system's.
    fn kill(&mut self) -> io::Result<()>;
}

/// This machine, with its network as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct OnThisMachine;

impl Place for OnThisMachine {
    fn start(&self, mut command: Command) -> io::Result<Box<dyn Running>> {
        let child = command.process_group(0).spawn()?;
        Ok(Box::new(Group { child, reaped: false }))
    }

    fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect(address)
    }
}

/// A child that leads a process group.
struct Group {
    child: Child,
    reaped: bool,
}

impl Running for Group {
    fn stdin(&mut self) -> Option<Box<dyn Write + Send>> {
        self.child.stdin.take().map(|pipe| Box::new(pipe) as Box<_>)
    }

    fn stdout(&mut self) -> Option<Box<dyn Read + Send>> {
        self.child.stdout.take().map(|pipe| Box::new(pipe) as Box<_>)
    }

    fn id(&self) -> u32 {
        self.child.id()
    }

    fn ended(&mut self) -> io::Result<bool> {
        if self.reaped {
            return Ok(true);
        }
        // It is not reaped here: its number has to stay the group's until that is killed.
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(WaitId::Pid(Pid::from_child(&self.child)), look)?.is_some())
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

impl Drop for Group {
    fn drop(&mut self) {
        // Nobody could act on a failure here.
        let _ = self.kill();
    }
}
