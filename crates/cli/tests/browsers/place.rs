//! The clients' namespace as a place where browsers run.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;

use firstflight_browser::{Place, Running};
use firstflight_link::{Network, Process};

/// The clients' namespace of a network.
pub(crate) struct AmongClients(pub(crate) Arc<Network>);

impl Place for AmongClients {
    fn start(&self, command: Command) -> io::Result<Box<dyn Running>> {
        let process = self.0.client().spawn_child(command).map_err(io::Error::other)?;
        Ok(Box::new(Inside(process)))
    }

    fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        self.0.client().run(|| TcpStream::connect(address)).map_err(io::Error::other)?
    }
}

struct Inside(Process);

impl Running for Inside {
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
        // Not by waiting for it, which would give its number away: the group has it until it is
        // killed. The state stands behind the name, which may have any characters.
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id()));
        let state = stat.ok().and_then(|stat| stat.rsplit(") ").next()?.chars().next());
        Ok(matches!(state, None | Some('Z' | 'X')))
    }

    fn kill(&mut self) -> io::Result<()> {
        self.0.kill()
    }
}
