//! The servers under test: how each is started, what it can do, and what its log says it executed.

mod abilities;
mod caddy;
mod command;
mod envoy;
mod firstflight;
mod h2o;
mod haproxy;
mod kind;
mod nginx;
mod openssl;
mod process_tree;
mod program;
mod running;
mod site;
mod survey;
mod trial;
mod trial_quic;
mod visited;

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub use abilities::{Abilities, Ability, MissingAbility};
pub use command::CommandServer;
pub use kind::{SERVERS, ServerKind};
pub(crate) use program::find;
pub(crate) use running::{Running, Wanted};
pub(crate) use site::{HOST, Site, page};
pub use survey::{Surveyed, survey};
pub(crate) use visited::{Visited, VisitedPage};

use crate::{Http, LabError, Size, Workload};
use program::Found;
use site::Identity;

/// How a server is found, configured and started; one file each.
trait Server: Sync {
    /// The program on this machine, if it is there.
    fn find(&self) -> Option<Found>;

    /// How to install it, as a command.
    fn mend(&self) -> &'static str;

    /// What it cannot do, as far as that is known without a trial.
    fn lacks(&self) -> Vec<MissingAbility>;

    /// Whether it can be told to speak this version of HTTP and none that browsers like better.
    fn keeps_to(&self, _http: Http) -> bool {
        true
    }

    /// Writes its configuration and returns what starts it, in the foreground.
    fn command(&self, found: &Found, post: &Post<'_>) -> Result<Command, LabError>;

    /// Whether a line of its log says that its request was executed.
    fn executed(&self, _line: &str) -> bool {
        true
    }
}

/// The post of one process: a workload, a certificate and a port, with a directory for it alone.
struct Post<'a> {
    site: &'a Site,
    workload: Workload,
    identity: &'a Identity,
    port: u16,
    /// Its addresses, one for each path. All servers answer on all; a server of datagrams that
    /// listens on 0.0.0.0 has to answer from the address that it was called by, and not all do.
    addresses: Vec<Ipv4Addr>,
    /// What is requested: servers without files answer nothing else.
    pages: Vec<Page>,
    directory: PathBuf,
    /// Where it logs a line for each request.
    log: PathBuf,
    /// How it is to serve; servers do of it what they can.
    manner: Manner,
}

/// Something that is served.
struct Page {
    /// The path in the URL.
    path: String,
    file: PathBuf,
    content_type: &'static str,
    bytes: usize,
}

impl Page {
    /// The page of a size.
    fn of_size(size: Size, site: &Site) -> Self {
        Self {
            path: size.path().to_owned(),
            file: site.root.join(size.name()),
            content_type: match size {
                Size::TenKib => "text/html",
                Size::OneKib | Size::OneMib => "application/octet-stream",
            },
            bytes: size.bytes(),
        }
    }
}

/// How connections are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Manner {
    /// The only HTTP version; `None`: all that it speaks.
    pub http: Option<Http>,
    /// Whether a connection of HTTP/1.1 takes further requests.
    pub keep_alive: bool,
}

impl Manner {
    /// As the server does by itself.
    const USUAL: Self = Self { http: None, keep_alive: true };
}

impl Post<'_> {
    /// A command whose words go to [`Post::said`].
    fn start(&self, program: &Path) -> Result<Command, LabError> {
        let path = self.said();
        let said = File::options().append(true).create(true).open(&path);
        let both = said.and_then(|said| Ok((said.try_clone()?, said)));
        let (stdout, stderr) =
            both.map_err(|source| LabError::File { verb: "write", path, source })?;
        let mut command = Command::new(program);
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        if let Some(key_log) = &self.site.key_log {
            command.env("SSLKEYLOGFILE", key_log);
        }
        Ok(command)
    }

    /// What the process said, for the case that it ends.
    fn said(&self) -> PathBuf {
        self.directory.join("said")
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

/// PING and PONG are the bench's own.
const NO_PING_PONG: MissingAbility = (Ability::PingPong, "ping-pong is no protocol that it speaks");
