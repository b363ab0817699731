//! The client's namespace as a place for browsers.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use firstflight_browser::{Place, Running};
use firstflight_emulator::{LinkError, Namespace, Process};

/// A namespace of a [`firstflight_emulator::Network`], whose programs end with it.
pub struct InNamespace<'a>(pub &'a Namespace);

impl Place for InNamespace<'_> {
    fn start(&self, command: Command) -> io::Result<Box<dyn Running>> {
        Ok(Box::new(Started(self.0.spawn_child(command).map_err(system)?)))
    }

    fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        self.0.run(|| TcpStream::connect(address)).map_err(system)?
    }
}

fn system(error: LinkError) -> io::Error {
    io::Error::other(error)
}

struct Started(Process);

impl Running for Started {
    fn stdin(&mut self) -> Option<Box<dyn Write + Send>> {
        self.0.stdin.take().map(|pipe| Box::new(pipe) as Box<_>)
    }

    fn stdout(&mut self) -> Option<Box<dyn Read + Send>> {
        self.0.stdout.take().map(|pipe| Box::new(pipe) as Box<_>)
    }

    fn id(&self) -> u32 {
        self.0.id()
    }

    fn ended(&mut self) -> io::Result<bool> {
        self.0.has_ended()
    }

    fn kill(&mut self) -> io::Result<()> {
        self.0.kill()
    }
}
