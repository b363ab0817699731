use std::fmt;
use std::str::FromStr;

use super::command::CommandServer;
use super::{Capabilities, Capability, Server};
use super::{caddy, envoy, firstflight, h2o, haproxy, nginx, openssl};
use crate::{CertificateKind, HttpVersion, LabError, Transport, Workload};

/// A server that the lab can start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServerKind {
    /// This project's server.
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
    /// A server that a command line starts; see [`ServerKind::commands`].
    Command(&'static CommandServer),
}

/// The servers with predefined names.
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
    /// Servers from command lines, each `COMMAND` or `NAME=COMMAND`. Without a name they are called
    /// `cmd`, `cmd2` and so on. These placeholders are replaced: `{port}` (required), `{cert}` and
    /// `{key}` (PEM files), `{root}` (a directory with the files `1k`, `10k` and `1m`) and `{log}`
    /// (a file for a line with the target of each request, so that replays can be counted). A shell
    /// runs the command, which must stay in the foreground.
    ///
    /// Call this once per process, since the commands are never freed.
    ///
    /// # Errors
    /// [`LabError::BadCommand`] for a command without `{port}`, an unknown placeholder or a
    /// name that is already used.
    pub fn commands(arguments: &[String]) -> Result<Vec<Self>, LabError> {
        let commands = CommandServer::parse_all(arguments, &SERVERS.map(Self::name))?;
        Ok(commands
            .into_iter()
            .map(|command| Self::Command(Box::leak(Box::new(command))))
            .collect())
    }

    /// The servers that are installed on this machine.
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

    /// Whether its program is installed on this machine. Always true for commands.
    pub fn installed(self) -> bool {
        self.server().find().is_some()
    }

    /// Its capabilities as far as they are known before it is probed.
    pub fn capabilities(self) -> Capabilities {
        let mut missing = self.server().missing();
        // Clients do not report whether a certificate is compressed, so no probe shows it.
        if self != Self::Firstflight {
            missing.push((
                Capability::CertificateCompression,
                "the lab knows how to switch it on at its own server only",
            ));
        }
        Capabilities::without(&missing)
    }

    /// Whether each of its addresses accepts its own tickets only. Caddy must listen on each address,
    /// and each of its QUIC listeners has separate ticket keys.
    pub(crate) fn has_ticket_keys_for_each_address(self, transport: Transport) -> bool {
        (self, transport) == (Self::Caddy, Transport::Quic)
    }

    /// Its port for a workload and a certificate. Each combination has a separate process.
    pub(crate) fn port(self, workload: Workload, certificate: CertificateKind) -> u16 {
        let server = match self {
            Self::Command(command) => SERVERS.len() + command.index(),
            named => SERVERS.iter().position(|server| *server == named).unwrap_or(0),
        };
        let listeners = Workload::ALL.len() * CertificateKind::ALL.len();
        let listener = workload as usize * CertificateKind::ALL.len() + certificate as usize;
        FIRST_PORT + (server * listeners + listener) as u16
    }

    /// Its port for visits by browsers over an HTTP version.
    pub(crate) fn visited_port(self, http: HttpVersion) -> u16 {
        let servers = self.port(Workload::PingPong, CertificateKind::EcdsaP256) - FIRST_PORT;
        FIRST_VISITED_PORT + servers + http as u16
    }

    /// Checks whether browsers can visit it over an HTTP version.
    ///
    /// # Errors
    /// The reason, if they cannot.
    pub fn visited_over(self, http: HttpVersion) -> Result<(), &'static str> {
        let capability = match http {
            HttpVersion::One if !self.server().supports_only(http) => {
                return Err("it cannot be restricted to HTTP/1.1");
            }
            HttpVersion::One => return Ok(()),
            HttpVersion::Two => Capability::Http2,
            HttpVersion::Three => Capability::Http3,
        };
        let missing = self.server().missing();
        match missing.into_iter().find(|(missing, _)| *missing == capability) {
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

/// Below the range of the clients' ports.
const FIRST_PORT: u16 = 4430;
const FIRST_VISITED_PORT: u16 = 8430;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_as_printed() {
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
                ports.extend(
                    CertificateKind::ALL.map(|certificate| server.port(workload, certificate)),
                );
            }
            ports.extend(
                [HttpVersion::One, HttpVersion::Two, HttpVersion::Three]
                    .map(|http| server.visited_port(http)),
            );
        }
        let count = ports.len();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), count);
        assert!(ports.iter().all(|port| (FIRST_PORT..16_384).contains(port)));
    }
}
