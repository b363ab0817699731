//! Servers as browsers visit them: one process for each version of HTTP.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use firstflight_emulator::{Network, Process};

use super::running::{failed, listens};
use super::{Manner, Page, Post, ServerKind, Site};
use crate::{Certificate, Http, LabError, Workload};

/// A server that browsers visit over one version of HTTP.
pub(crate) struct Visited {
    pub kind: ServerKind,
    pub http: Http,
    /// What it calls itself.
    pub version: String,
    /// Its port in the server's namespace.
    pub port: u16,
    process: Process,
    said: PathBuf,
}

/// A page that servers are requested.
pub(crate) struct VisitedPage {
    /// The file's name below the site's root.
    pub name: String,
    pub content_type: &'static str,
    pub bytes: usize,
}

impl Visited {
    /// Starts a server and waits until it listens.
    ///
    /// # Errors
    /// [`LabError::NotInstalled`], [`LabError::Start`] with its last words, or what the
    /// machine refused.
    pub(crate) fn start(
        kind: ServerKind,
        manner: Manner,
        http: Http,
        site: &Site,
        pages: &[VisitedPage],
        network: &Network,
    ) -> Result<Self, LabError> {
        let server = kind.server();
        let missing = LabError::NotInstalled { server: kind.name(), mend: server.mend() };
        let found = server.find().ok_or(missing)?;
        let directory = site.directory.join(format!("{kind}-visited-{}", http.name()));
        fs::create_dir_all(&directory).map_err(|source| LabError::File {
            verb: "make",
            path: directory.clone(),
            source,
        })?;
        let port = kind.visited_port(http);
        let post = Post {
            site,
            workload: Workload::Get,
            identity: site.identity(Certificate::EcdsaP256),
            port,
            addresses: network.paths().iter().map(|path| path.server).collect(),
            pages: pages.iter().map(|page| page.below(site)).collect(),
            log: directory.join("requests"),
            directory,
            manner: Manner { http: Some(http), ..manner },
        };
        let command = server.command(&found, &post)?;
        let process = network.server().spawn_child(command)?;
        let said = post.said();
        let address = SocketAddr::from((network.path(0)?.server, port));
        listens(kind, &process, &said, address, network)?;
        Ok(Self { kind, http, version: found.version, port, process, said })
    }

    /// Where it is reached over a path.
    pub(crate) fn at(&self, address: Ipv4Addr) -> SocketAddr {
        SocketAddr::from((address, self.port))
    }

    /// Whether it still runs.
    ///
    /// # Errors
    /// If it has ended, with its last words.
    pub(crate) fn look(&self) -> Result<(), LabError> {
        match self.process.try_wait() {
            Ok(Some(status)) => {
                Err(failed(self.kind, &self.said, &format!("it ended with {status}")))
            }
            _ => Ok(()),
        }
    }
}

impl VisitedPage {
    fn below(&self, site: &Site) -> Page {
        Page {
            path: format!("/{}", self.name),
            file: site.root.join(&self.name),
            content_type: self.content_type,
            bytes: self.bytes,
        }
    }
}
