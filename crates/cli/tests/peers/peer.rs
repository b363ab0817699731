//! The servers, and what is known about them beforehand.

use std::path::PathBuf;
use std::process::Command;

use firstflight_testkit::{find_program, program_path};

use crate::kind::{Kind, PROGRAM};
use crate::row::Row;

/// A server program, and how its processes are set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    /// Ours, one process with ticket keys of its own.
    Alone,
    /// Ours, three nodes with a store.
    Store,
    /// Ours, nodes with a key file and no store.
    KeyFile,
    Nginx,
    Haproxy,
    /// `openssl s_server`.
    Openssl,
    /// `gnutls-serv`.
    Gnutls,
    /// rustls with stateful sessions; over QUIC with quinn.
    Rustls,
    /// One process with ticket keys of its own.
    Envoy,
    /// Processes with the same ticket keys.
    EnvoyKeys,
    /// Processes that share a storage, which contains the ticket keys.
    Caddy,
    H2o,
    /// `gtlsserver`.
    Ngtcp2,
    Aioquic,
}

/// A column of a table: a server over TCP or QUIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) server: Server,
    /// Whether it is audited over QUIC.
    pub(crate) quic: bool,
    /// The name in commands.
    pub(crate) slug: &'static str,
    /// The name in the table.
    pub(crate) name: &'static str,
}

const fn tcp(server: Server, slug: &'static str, name: &'static str) -> Peer {
    Peer { server, quic: false, slug, name }
}

const fn quic(server: Server, slug: &'static str, name: &'static str) -> Peer {
    Peer { server, quic: true, slug, name }
}

/// All columns, those over TCP first.
pub(crate) const PEERS: [Peer; 21] = [
    tcp(Server::Alone, "firstflight", "firstflight"),
    tcp(Server::Store, "firstflight-store", "firstflight, 3 nodes, store"),
    tcp(Server::KeyFile, "firstflight-key-file", "firstflight, key file, no store"),
    tcp(Server::Nginx, "nginx", "nginx"),
    tcp(Server::Haproxy, "haproxy", "HAProxy"),
    tcp(Server::Openssl, "openssl", "OpenSSL s_server"),
    tcp(Server::Gnutls, "gnutls", "gnutls-serv"),
    tcp(Server::Rustls, "rustls", "rustls"),
    tcp(Server::Envoy, "envoy", "Envoy"),
    tcp(Server::Caddy, "caddy", "Caddy"),
    tcp(Server::H2o, "h2o", "h2o"),
    quic(Server::Alone, "firstflight-quic", "firstflight"),
    quic(Server::Store, "firstflight-store-quic", "firstflight, 3 nodes, store"),
    quic(Server::KeyFile, "firstflight-key-file-quic", "firstflight, key file, no store"),
    quic(Server::Nginx, "nginx-quic", "nginx"),
    quic(Server::Envoy, "envoy-quic", "Envoy"),
    quic(Server::EnvoyKeys, "envoy-keys-quic", "Envoy, 2 processes, shared keys"),
    quic(Server::Caddy, "caddy-quic", "Caddy"),
    quic(Server::Ngtcp2, "ngtcp2", "ngtcp2"),
    quic(Server::Aioquic, "aioquic", "aioquic"),
    quic(Server::Rustls, "quinn", "quinn on rustls"),
];

impl Peer {
    pub(crate) fn is_ours(self) -> bool {
        matches!(self.server, Server::Alone | Server::Store | Server::KeyFile)
    }

    /// Whether it is a TLS library's server, which reads no requests from early data.
    pub(crate) fn is_tls_only(self) -> bool {
        matches!(self.server, Server::Openssl | Server::Gnutls)
    }

    /// Whether it forwards to a witness or is one. ngtcp2's log has a line with the target of each
    /// request.
    pub(crate) fn has_witness(self) -> bool {
        self.server != Server::Ngtcp2
    }

    /// How an audit's report names the server. The audit's remedies depend on that; most servers
    /// are not recognised.
    pub(crate) fn recognised(self) -> &'static str {
        match self.server {
            Server::Nginx => "(nginx)",
            Server::Haproxy if !self.quic => "(HAProxy)",
            Server::Envoy | Server::EnvoyKeys => "(Envoy)",
            Server::Caddy => "(Caddy)",
            Server::H2o => "(h2o)",
            _ => "(not recognised)",
        }
    }

    /// How the chaos suite starts it, if it does. Its nginx has no QUIC.
    pub(crate) fn kind(self) -> Option<Kind> {
        match self.server {
            Server::Alone => Some(Kind::Alone),
            Server::Store => Some(Kind::Shared),
            Server::KeyFile => Some(Kind::Local),
            Server::Nginx if !self.quic => Some(Kind::Nginx),
            Server::Haproxy => Some(Kind::Haproxy),
            _ => None,
        }
    }

    /// The program, if it is not ours. Empty if it must be given, and was not.
    pub(crate) fn program(self) -> Option<String> {
        let name = match self.server {
            Server::Alone | Server::Store | Server::KeyFile | Server::Rustls => return None,
            Server::Nginx if self.must_be_given() => {
                return Some(std::env::var(NGINX_HTTP3).unwrap_or_default());
            }
            Server::Nginx => "nginx",
            Server::Haproxy => "haproxy",
            Server::Openssl => "openssl",
            Server::Gnutls => "gnutls-serv",
            Server::Envoy | Server::EnvoyKeys => "envoy",
            Server::Caddy => "caddy",
            Server::H2o => "h2o",
            Server::Ngtcp2 => "gtlsserver",
            Server::Aioquic => "aioquic",
        };
        Some(name.to_owned())
    }

    /// Whether the path of its program has to be given in [`NGINX_HTTP3`]: distributions have no nginx
    /// with HTTP/3 yet.
    pub(crate) fn must_be_given(self) -> bool {
        self.server == Server::Nginx && self.quic
    }

    /// The version that the program prints.
    pub(crate) fn version(self) -> String {
        let program = match self.program() {
            Some(program) => program_path(&program),
            None => PathBuf::from(PROGRAM),
        };
        let mut command = Command::new(&program);
        match self.server {
            Server::Rustls if self.quic => return "quinn and rustls, as in Cargo.lock".to_owned(),
            Server::Rustls => return "rustls, as in Cargo.lock".to_owned(),
            // The program does not print its version.
            Server::Ngtcp2 => {
                command = Command::new("dpkg-query");
                command.args(["-W", "-f", "${Package} ${Version}", "ngtcp2-server"]);
            }
            Server::Aioquic => {
                command = python();
                command.args(["-c", "import aioquic; print('aioquic', aioquic.__version__)"]);
            }
            Server::Nginx => _ = command.arg("-V"),
            Server::Haproxy => _ = command.arg("-vv"),
            Server::Openssl | Server::Caddy => _ = command.arg("version"),
            _ => _ = command.arg("--version"),
        }
        let Ok(output) = command.output() else { return "unknown".to_owned() };
        let output_text = [output.stdout, output.stderr].concat();
        let output_text = String::from_utf8_lossy(&output_text).into_owned();
        let is_relevant = |line: &&str| {
            let is_of_library = line.starts_with("built with ") || line.starts_with("Running on ");
            !line.trim().is_empty()
                && (output_text.lines().next() == Some(*line)
                    || is_of_library && (line.contains("SSL ") || line.contains("AWS-LC")))
        };
        let mut lines: Vec<&str> = output_text.lines().filter(is_relevant).collect();
        if lines.is_empty() {
            lines.extend(output_text.lines().find(|line| !line.trim().is_empty()));
        }
        // Envoy's version starts with its path on this machine.
        let own_path = program.to_string_lossy().into_owned();
        lines.join("; ").trim_start_matches(&own_path).trim().to_owned()
    }

    /// Why a row does not apply, if that is known.
    pub(crate) fn inapplicable(self, row: Row) -> Option<&'static str> {
        if matches!(self.server, Server::Envoy | Server::Caddy | Server::H2o) && !self.quic {
            return (row != Row::SameInstance).then_some("no early data over TCP");
        }
        let keys = row.needs_other_nodes() || row == Row::Restart;
        match self.server {
            Server::Alone if row.needs_other_nodes() => Some("one process"),
            Server::Openssl | Server::Gnutls | Server::Envoy | Server::Ngtcp2 if keys => {
                Some("its ticket keys belong to one process")
            }
            Server::Rustls | Server::Aioquic if keys => {
                Some("its sessions are in the memory of one process")
            }
            Server::Openssl | Server::Gnutls if row == Row::OriginalDelayed => {
                Some("it takes no requests from early data")
            }
            Server::Openssl | Server::Gnutls | Server::Envoy | Server::Ngtcp2 | Server::Aioquic
                if row == Row::PolicyChange =>
            {
                Some("its settings and its tickets are those of its process")
            }
            Server::Caddy if row == Row::PolicyChange => {
                Some("this version has no setting for early data")
            }
            Server::Rustls if row == Row::ClockStep => {
                Some("not tried: it runs in the process of the audit, with its clock")
            }
            Server::Envoy | Server::EnvoyKeys if matches!(row, Row::ClockSkew | Row::ClockStep) => {
                Some("not tried: it does not start with a clock that a test can set")
            }
            Server::Caddy if matches!(row, Row::ClockSkew | Row::ClockStep) => {
                Some("not tried: programs in Go do not read the clock that a test can set")
            }
            _ => None,
        }
    }

    /// Whether copies are known to run in this row, which shows that the attack works: at nginx
    /// unless they are too late, and at Caddy once it has forgotten the original's connection id.
    pub(crate) fn is_control(self, row: Row) -> bool {
        match self.server {
            Server::Nginx => !self.quic,
            Server::Caddy => self.quic && matches!(row, Row::Addresses | Row::CopyDelayed),
            _ => false,
        }
    }
}

/// Python with aioquic.
pub(crate) fn python() -> Command {
    let mut command = Command::new("python3");
    let library = find_program("aioquic");
    if let Some(folder) = library.as_deref().and_then(|file| file.parent()?.parent()) {
        command.env("PYTHONPATH", folder);
    }
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// The variable with the path of an nginx that has HTTP/3.
pub(crate) const NGINX_HTTP3: &str = "NGINX_HTTP3";
