//! The servers, and what is known about them beforehand.

use std::process::Command;

use firstflight_testkit::program_path;

use crate::kind::{Kind, PROGRAM};
use crate::row::Row;

/// A column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
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
    /// rustls with stateful sessions.
    Rustls,
    Envoy,
    Caddy,
    H2o,
}

impl Peer {
    pub(crate) const ALL: [Self; 11] = [
        Self::Alone,
        Self::Store,
        Self::KeyFile,
        Self::Nginx,
        Self::Haproxy,
        Self::Openssl,
        Self::Gnutls,
        Self::Rustls,
        Self::Envoy,
        Self::Caddy,
        Self::H2o,
    ];

    /// The name in the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Alone => "firstflight",
            Self::Store => "firstflight, 3 nodes, store",
            Self::KeyFile => "firstflight, key file, no store",
            Self::Nginx => "nginx",
            Self::Haproxy => "HAProxy",
            Self::Openssl => "OpenSSL s_server",
            Self::Gnutls => "gnutls-serv",
            Self::Rustls => "rustls",
            Self::Envoy => "Envoy",
            Self::Caddy => "Caddy",
            Self::H2o => "h2o",
        }
    }

    /// The name in commands.
    pub(crate) fn slug(self) -> &'static str {
        match self {
            Self::Alone => "firstflight",
            Self::Store => "firstflight-store",
            Self::KeyFile => "firstflight-key-file",
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::Openssl => "openssl",
            Self::Gnutls => "gnutls",
            Self::Rustls => "rustls",
            Self::Envoy => "envoy",
            Self::Caddy => "caddy",
            Self::H2o => "h2o",
        }
    }

    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Self::Alone | Self::Store | Self::KeyFile)
    }

    /// Servers of a TLS library that take no requests from early data.
    pub(crate) fn is_tls_only(self) -> bool {
        matches!(self, Self::Openssl | Self::Gnutls)
    }

    /// What an audit takes it for, on which its remedies depend. HAProxy and rustls do not say what
    /// they are.
    pub(crate) fn recognised(self) -> &'static str {
        match self {
            Self::Nginx => "(nginx)",
            Self::Envoy => "(Envoy)",
            Self::Caddy => "(Caddy)",
            Self::H2o => "(h2o)",
            _ => "(not recognised)",
        }
    }

    /// How the chaos suite starts it, if it does.
    pub(crate) fn kind(self) -> Option<Kind> {
        match self {
            Self::Alone => Some(Kind::Alone),
            Self::Store => Some(Kind::Shared),
            Self::KeyFile => Some(Kind::Local),
            Self::Nginx => Some(Kind::Nginx),
            Self::Haproxy => Some(Kind::Haproxy),
            _ => None,
        }
    }

    /// The program, if it is not ours.
    pub(crate) fn program(self) -> Option<&'static str> {
        match self {
            Self::Alone | Self::Store | Self::KeyFile | Self::Rustls => None,
            Self::Nginx => Some("nginx"),
            Self::Haproxy => Some("haproxy"),
            Self::Openssl => Some("openssl"),
            Self::Gnutls => Some("gnutls-serv"),
            Self::Envoy => Some("envoy"),
            Self::Caddy => Some("caddy"),
            Self::H2o => Some("h2o"),
        }
    }

    /// Its version in its own words.
    pub(crate) fn version(self) -> String {
        let (program, flag) = match self {
            Self::Rustls => return "rustls, as in Cargo.lock".to_owned(),
            Self::Nginx => (program_path("nginx"), "-V"),
            Self::Haproxy => (program_path("haproxy"), "-vv"),
            Self::Openssl | Self::Caddy => (program_path(self.program().unwrap()), "version"),
            _ => (self.program().map_or(PROGRAM.into(), program_path), "--version"),
        };
        let output = Command::new(&program).arg(flag).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        let wanted = |line: &&str| {
            !line.trim().is_empty()
                && (said.lines().next() == Some(*line)
                    || line.starts_with("built with OpenSSL")
                    || line.starts_with("Running on OpenSSL"))
        };
        let mut lines: Vec<&str> = said.lines().filter(wanted).collect();
        if lines.is_empty() {
            lines.extend(said.lines().find(|line| !line.trim().is_empty()));
        }
        // Envoy starts with its own path, which is of this machine only.
        let own_path = program.to_string_lossy().into_owned();
        lines.join("; ").trim_start_matches(&own_path).trim().to_owned()
    }

    /// Why a row does not apply, if that is known.
    pub(crate) fn inapplicable(self, row: Row) -> Option<&'static str> {
        let many = matches!(row, Row::OtherNode | Row::ClockSkew | Row::RefusalOtherNode);
        match (self, row) {
            (Self::Alone, _) if many => Some("one process"),
            (Self::Openssl | Self::Gnutls, _) if many || row == Row::Restart => {
                Some("its ticket keys belong to one process")
            }
            (Self::Openssl | Self::Gnutls, Row::PolicyChange) => {
                Some("its settings are those of its process")
            }
            (Self::Openssl | Self::Gnutls, Row::OriginalDelayed) => {
                Some("it takes no requests from early data")
            }
            (Self::Rustls, _) if many || row == Row::Restart => {
                Some("its sessions are in the memory of one process")
            }
            (Self::Rustls, Row::ClockStep) => {
                Some("not tried: it runs in the process of the audit, with its clock")
            }
            (Self::Envoy | Self::Caddy | Self::H2o, row) if row != Row::SameInstance => {
                Some("no early data over TCP")
            }
            _ => None,
        }
    }
}
