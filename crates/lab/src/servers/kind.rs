use std::fmt;
use std::str::FromStr;

use super::command::CommandServer;
use super::{Abilities, Ability, Server};
use super::{caddy, envoy, firstflight, h2o, haproxy, nginx, openssl};
use crate::{Certificate, Http, LabError, Workload};

/// A server that the lab knows to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServerKind {
    /// This program's own.
    Firstflight,
    /// nginx, as installed on this machine.
    Nginx,
    /// HAProxy.
    Haproxy,
    /// h2o.
    H2o,
    /// Envoy.
    Envoy,
    /// Caddy.
    Caddy,
    /// `openssl s_server`.
    Openssl,
    /// Whatever a command line starts; see [`ServerKind::commands`].
    Command(&'static CommandServer),
}

/// Those that have a name of their own.
pub const SERVERS: [ServerKind; 7] = [
    ServerKind::Firstflight,
    ServerKind::Nginx,
    ServerKind::Haproxy,
    ServerKind::H2o,
    ServerKind::Envoy,
    ServerKind::Caddy,
    ServerKind::Openssl,
];

impl ServerKind {
    /// Servers from command lines, each `COMMAND` or `NAME=COMMAND`. Without a name they are
    /// called `cmd`, `cmd2` and so on. What stands in braces is replaced: `{port}` (it must be
    /// there), `{cert}`, `{key}` (PEM files), `{root}` (directory with the files `1k`, `10k` and
    /// `1m`) and `{log}` (where it may log a line for each request, with the request's target, so
    /// that replays can be counted). A shell runs the command; it has to stay in the foreground.
    ///
    /// To be called once a process: the commands are kept until it ends.
    ///
    /// # Errors
    /// [`LabError::BadCommand`] for a command without `{port}`, an unknown placeholder or a
    /// name that is taken.
    pub fn commands(arguments: &[String]) -> Result<Vec<Self>, LabError> {
        let commands = CommandServer::parse_all(arguments, &SERVERS.map(Self::name))?;
        Ok(commands.into_iter().map(|one| Self::Command(Box::leak(Box::new(one)))).collect())
    }

    /// The servers that are installed here.
    pub fn all_installed() -> Vec<Self> {
        SERVERS.into_iter().filter(|server| server.installed()).collect()
    }

    /// The name in tables and flags.
    pub fn name(self) -> &'static str {
        match self {
            Self::Firstflight => "firstflight",
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::H2o => "h2o",
            Self::Envoy => "envoy",
            Self::Caddy => "caddy",
            Self::Openssl => "openssl",
            Self::Command(command) => command.name(),
        }
    }

    /// Whether its program is on this machine; of commands, only a trial can tell.
    pub fn installed(self) -> bool {
        self.server().find().is_some()
    }

    /// What is known of it before it is tried; the trial at its start has the last word.
    pub fn abilities(self) -> Abilities {
        Abilities::without(&self.server().lacks())
    }

    /// Its port for a workload and a kind of certificate, in the server's namespace. Each has a
    /// process of its own.
    pub(crate) fn port(self, workload: Workload, certificate: Certificate) -> u16 {
        let server = match self {
            Self::Command(command) => SERVERS.len() + command.index(),
            named => SERVERS.iter().position(|one| *one == named).unwrap_or(0),
        };
        let listeners = Workload::ALL.len() * Certificate::ALL.len();
        let listener = workload as usize * Certificate::ALL.len() + certificate as usize;
        FIRST_PORT + (server * listeners + listener) as u16
    }

    /// Its port for browsers' visits over a version of HTTP, likewise.
    pub(crate) fn visited_port(self, http: Http) -> u16 {
        let servers = self.port(Workload::PingPong, Certificate::EcdsaP256) - FIRST_PORT;
        FIRST_VISITED_PORT + servers + http as u16
    }

    /// Whether browsers can be made to visit it over this version of HTTP.
    ///
    /// # Errors
    /// Why not.
    pub fn visited_over(self, http: Http) -> Result<(), &'static str> {
        let ability = match http {
            Http::One if !self.server().keeps_to(http) => {
                return Err("it cannot be told to speak HTTP/1.1 alone");
            }
            Http::One => return Ok(()),
            Http::Two => Ability::Http2,
            Http::Three => Ability::Http3,
        };
        let lacks = self.server().lacks();
        match lacks.into_iter().find(|(lacking, _)| *lacking == ability) {
            Some((_, why)) => Err(why),
            None => Ok(()),
        }
    }

    pub(super) fn server(self) -> &'static dyn Server {
        match self {
            Self::Firstflight => &firstflight::Firstflight,
            Self::Nginx => &nginx::Nginx,
            Self::Haproxy => &haproxy::Haproxy,
            Self::H2o => &h2o::H2o,
            Self::Envoy => &envoy::Envoy,
            Self::Caddy => &caddy::Caddy,
            Self::Openssl => &openssl::Openssl,
            Self::Command(command) => command,
        }
    }
}

impl fmt::Display for ServerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ServerKind {
    type Err = LabError;

    fn from_str(text: &str) -> Result<Self, LabError> {
        SERVERS.into_iter().find(|server| server.name() == text).ok_or_else(|| {
            LabError::UnknownServer {
                name: text.to_owned(),
                known: SERVERS.map(ServerKind::name).join(", "),
            }
        })
    }
}

/// Below the ports that clients get, in a namespace that has no other servers.
const FIRST_PORT: u16 = 4430;
const FIRST_VISITED_PORT: u16 = 8430;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_printed() {
        for server in SERVERS {
            assert_eq!(server.to_string().parse::<ServerKind>().unwrap(), server);
        }
        let refused = "apache".parse::<ServerKind>().unwrap_err().to_string();
        assert!(SERVERS.iter().all(|server| refused.contains(server.name())), "{refused}");
    }

    #[test]
    fn no_two_listeners_share_a_port() {
        let commands = vec!["serve {port}".to_owned(); CommandServer::MAX_SERVERS];
        let mut servers = SERVERS.to_vec();
        servers.extend(ServerKind::commands(&commands).unwrap());
        let mut ports = Vec::new();
        for server in &servers {
            for workload in Workload::ALL {
                ports.extend(Certificate::ALL.map(|one| server.port(workload, one)));
            }
            ports.extend([Http::One, Http::Two, Http::Three].map(|one| server.visited_port(one)));
        }
        let count = ports.len();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), count);
        assert!(ports.iter().all(|port| (FIRST_PORT..16_384).contains(port)));
    }
}
