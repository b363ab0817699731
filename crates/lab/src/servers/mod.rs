//! The servers under test: how each is configured and started, its capabilities, and which requests
//! its log shows as executed.

mod caddy;
mod capabilities;
mod command;
mod envoy;
mod firstflight;
mod h2o;
mod haproxy;
mod kind;
mod nginx;
mod openssl;
mod probe;
mod program;
mod running;
mod site;

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub use capabilities::{Capabilities, Capability, MissingCapability};
pub use command::CommandServer;
pub use kind::{SERVERS, ServerKind};
pub use probe::{ProbedServer, probe_server};
pub(crate) use program::{find, processor_time};
pub(crate) use running::{Requirements, RunningServer, VisitedFile, VisitedServer};
pub(crate) use site::{HOST, Site, page};

use crate::{HttpVersion, LabError, ResponseSize, Workload};
use program::InstalledProgram;
use site::Identity;

/// How a server is found, configured and started. Each server has a file.
trait Server: Sync {
    /// The program, if it is installed.
    fn find(&self) -> Option<InstalledProgram>;

    /// The command that installs it.
    fn install_hint(&self) -> &'static str;

    /// The capabilities that are known to be missing, without a probe.
    fn missing(&self) -> Vec<MissingCapability>;

    /// Whether it can be restricted to this HTTP version, so that browsers cannot choose a newer
    /// one.
    fn supports_only(&self, _http: HttpVersion) -> bool {
        true
    }

    /// Writes its configuration and returns the command that starts it in the foreground.
    fn command(
        &self,
        found: &InstalledProgram,
        setup: &ServerSetup<'_>,
    ) -> Result<Command, LabError>;

    /// Whether a line of its log belongs to an executed request.
    fn executed(&self, _line: &str) -> bool {
        true
    }
}

/// The setup of a server process.
struct ServerSetup<'a> {
    site: &'a Site,
    workload: Workload,
    identity: &'a Identity,
    port: u16,
    /// Its addresses, one for each path. Over UDP, a server that listens on 0.0.0.0 must respond
    /// from the address that received the request, which not all servers do.
    addresses: Vec<Ipv4Addr>,
    /// The requested pages, for servers that serve no files.
    pages: Vec<Page>,
    /// A directory for the files of this process.
    directory: PathBuf,
    /// The request log, with a line for each request.
    log: PathBuf,
    /// How to serve HTTP. Servers ignore what they cannot configure.
    options: HttpOptions,
}

/// A page that is served.
struct Page {
    /// The path in the URL.
    path: String,
    file: PathBuf,
    content_type: &'static str,
    bytes: usize,
}

impl Page {
    /// The page of a size.
    fn of_size(size: ResponseSize, site: &Site) -> Self {
        Self {
            path: size.path().to_owned(),
            file: site.root.join(size.name()),
            content_type: match size {
                ResponseSize::TenKib => "text/html",
                ResponseSize::OneKib | ResponseSize::OneMib => "application/octet-stream",
            },
            bytes: size.bytes(),
        }
    }
}

/// How HTTP is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HttpOptions {
    /// The HTTP version to restrict the server to; `None` allows all.
    pub http: Option<HttpVersion>,
    /// Whether HTTP/1.1 connections persist.
    pub keep_alive: bool,
}

impl HttpOptions {
    /// The server's defaults.
    const DEFAULT: Self = Self { http: None, keep_alive: true };
}

impl ServerSetup<'_> {
    /// A command whose output goes to [`ServerSetup::output`].
    fn base_command(&self, program: &Path) -> Result<Command, LabError> {
        let path = self.output();
        let output = File::options().append(true).create(true).open(&path);
        let outputs = output.and_then(|output| Ok((output.try_clone()?, output)));
        let (stdout, stderr) =
            outputs.map_err(|source| LabError::File { verb: "write", path, source })?;
        let mut command = Command::new(program);
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        if let Some(key_log) = &self.site.key_log {
            command.env("SSLKEYLOGFILE", key_log);
        }
        Ok(command)
    }

    /// The file for the output of the process, which is shown if it ends.
    fn output(&self) -> PathBuf {
        self.directory.join("output")
    }

    /// Writes a file into the directory and returns its path.
    fn write(&self, name: &str, content: &str) -> Result<PathBuf, LabError> {
        let path = self.directory.join(name);
        match fs::write(&path, content) {
            Ok(()) => Ok(path),
            Err(source) => Err(LabError::File { verb: "write", path, source }),
        }
    }
}

/// Only this project's server supports ping-pong.
const NO_PING_PONG: MissingCapability =
    (Capability::PingPong, "it does not support the ping-pong protocol");
