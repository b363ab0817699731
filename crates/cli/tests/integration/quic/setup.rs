//! Our server behind a relay, with the same certificate after each restart.

use std::fs;
use std::path::{Path, PathBuf};

use firstflight_testkit::resumes;
use serde_json::Value;
use tempfile::TempDir;

use super::initial::server_hello;
use super::relay::Relay;
use crate::support::peer::certificate;
use crate::support::program::{Serve, fields, site, text};

/// The compared fields of the access log.
pub(crate) const FIELDS: &str = "protocol resumed early claim executed status complete";

/// A full handshake, a resumed one, and one with a request that was executed early.
pub(crate) const FULL: &str = "HTTP/3 false false none true 200 true";
pub(crate) const RESUMED: &str = "HTTP/3 true false none true 200 true";
pub(crate) const EARLY: &str = "HTTP/3 true true won true 200 true";

/// The log of two connections with early data under the same ticket.
pub(crate) const TWICE: [&str; 2] = ["true accepted 200", "false ticket_used 200"];

/// Every client without a token has to validate its address.
pub(crate) const RETRY: &str = "[http3]\nretry_above = 0\n";

/// A site, a certificate and a running server.
pub(crate) struct Setup {
    site: TempDir,
    /// The service, as arguments.
    service: [String; 2],
    pub(crate) cert: PathBuf,
    pub(crate) server: Serve,
    /// In front of the server.
    pub(crate) relay: Relay,
}

impl Setup {
    /// Starts a server for a page.
    pub(crate) fn new(arguments: &[&str]) -> Self {
        Self::configured("", arguments)
    }

    /// Like [`Self::new`], with a configuration file.
    pub(crate) fn configured(config: &str, arguments: &[&str]) -> Self {
        let site = site();
        let root = site.path().join("root").display().to_string();
        Self::serving(site, ["--root".to_owned(), root], config, arguments)
    }

    /// Starts a server that forwards to an upstream.
    pub(crate) fn in_front_of(upstream: &str, config: &str, arguments: &[&str]) -> Self {
        let service = ["--upstream", upstream].map(ToOwned::to_owned);
        Self::serving(site(), service, config, arguments)
    }

    fn serving(site: TempDir, service: [String; 2], config: &str, arguments: &[&str]) -> Self {
        let cert = certificate(site.path());
        let server = serve(site.path(), &service, config, arguments);
        let relay = Relay::start(server.address);
        Self { site, service, cert, server, relay }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.site.path()
    }

    /// The relay's port.
    pub(crate) fn port(&self) -> u16 {
        self.relay.port
    }

    /// Stops the server and starts another one with these arguments. The log continues.
    pub(crate) fn restart(&mut self, config: &str, arguments: &[&str]) {
        self.server.end();
        self.server = serve(self.site.path(), &self.service, config, arguments);
        self.relay.forward_to(self.server.address);
    }

    /// Delays a client's Finished until the log has one more line than this: over loopback it could
    /// arrive before an early request is delivered.
    pub(crate) fn delay_finished(&self, lines: usize) {
        self.server.lines(lines);
        let min_lines = lines + 1;
        let log = self.server.log.clone();
        self.relay.hold_until(move || text(&log).matches('\n').count() >= min_lines);
    }

    /// Whether the server has resumed the latest client's session, by its ServerHello.
    pub(crate) fn has_resumed(&self) -> bool {
        resumes(&server_hello(&self.relay.flight(), &self.relay.response()))
    }

    /// Stops the server and returns its log.
    pub(crate) fn end(&mut self) -> Vec<Value> {
        self.server.end();
        self.server.log()
    }

    /// Returns the fields of the log's lines once there are `count` of them.
    pub(crate) fn logged(&self, count: usize) -> Vec<String> {
        self.server.lines(count).iter().map(|line| fields(line, FIELDS)).collect()
    }
}

/// Starts a server with the certificate in the directory.
fn serve(dir: &Path, service: &[String; 2], config: &str, arguments: &[&str]) -> Serve {
    fs::write(dir.join("config.toml"), config).unwrap();
    let files = [("--cert", "cert.pem"), ("--key", "key.pem"), ("--config", "config.toml")];
    let files = files.map(|(flag, name)| (flag, dir.join(name).display().to_string()));
    let files: Vec<&str> = files.iter().flat_map(|(flag, path)| [*flag, path]).collect();
    let service = service.each_ref().map(String::as_str);
    Serve::start(dir, &[&service, &*files, arguments].concat())
}
