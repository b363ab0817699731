//! ngtcp2's client and server on GnuTLS, as Debian builds them. What they say of each packet is the
//! evidence of the tests.

use std::fs::{self, File};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::running::{Ended, Running, run, text, until};

/// How a call of the client ended, and all that it said.
pub(crate) struct Said {
    ended: Ended,
}

/// Runs the client for these targets, one after the other on one connection. Its session, its
/// transport parameters and its token stay in `dir`.
pub(crate) fn client(dir: &Path, port: u16, flags: &[&str], targets: &[&str]) -> Said {
    let mut command = Command::new("gtlsclient");
    command.current_dir(dir).env("SSLKEYLOGFILE", dir.join("keys"));
    command.args(["--no-quic-dump", "--no-http-dump", "--exit-on-all-streams-close"]);
    command.args(["--session-file=ngtcp2.session", "--tp-file=ngtcp2.parameters"]);
    command.arg("--token-file=ngtcp2.token").args(flags);
    command.args(["localhost".to_owned(), port.to_string()]);
    command.args(targets.iter().map(|target| format!("https://localhost:{port}{target}")));
    Said { ended: run(&mut command) }
}

impl Said {
    /// Packets of this type (`Initial`, `0RTT`, `Handshake`, `1RTT`) that left.
    pub(crate) fn sent(&self, kind: &str) -> usize {
        packets(self.lines(), "pkt tx", kind)
    }

    /// Packets of this type (and `Retry`) that came and could be opened.
    pub(crate) fn received(&self, kind: &str) -> usize {
        packets(self.lines(), "pkt rx", kind)
    }

    /// Packets of 1-RTT under the keys after the first update that left and that could be opened.
    pub(crate) fn under_new_keys(&self) -> (usize, usize) {
        let new = |way: &str| {
            let new = |line: &&str| line.contains(way) && line.contains("type=1RTT k=1");
            self.lines().filter(new).count()
        };
        (new("pkt tx"), new("pkt rx"))
    }

    /// The statuses of its responses.
    pub(crate) fn statuses(&self) -> Vec<&str> {
        let statuses = self.lines().filter_map(|line| line.split_once("[:status: "));
        statuses.map(|(_, status)| status.trim_end_matches(']')).collect()
    }

    /// Whether a frame of this name came.
    pub(crate) fn received_frame(&self, name: &str) -> bool {
        self.lines().any(|line| line.contains("frm rx") && line.contains(name))
    }

    /// Whether some line has this in it.
    pub(crate) fn said(&self, words: &str) -> bool {
        self.lines().any(|line| line.contains(words))
    }

    fn lines(&self) -> impl Iterator<Item = &str> {
        self.ended.err.lines().chain(self.ended.out.lines())
    }

    /// The same, for a failed assertion: what packets there were.
    pub(crate) fn story(&self) -> String {
        let lines = self.lines().filter(|line| line.contains("pkt ") || line.contains("http"));
        format!("{:?}\n{}", self.ended.code, lines.collect::<Vec<_>>().join("\n"))
    }
}

fn packets<'a>(lines: impl Iterator<Item = &'a str>, way: &str, kind: &str) -> usize {
    let kind = format!("type={kind}");
    let of_kind = |line: &&str| line.split(' ').any(|word| word.starts_with(&kind));
    lines.filter(|line| line.contains(way)).filter(of_kind).count()
}

/// A running server.
pub(crate) struct Server {
    _running: Running,
    pub(crate) port: u16,
    said: PathBuf,
}

impl Server {
    /// Serves the directory `root` in `dir`; its certificate is cert.pem there, and its key
    /// key.pem.
    pub(crate) fn start(dir: &Path, flags: &[&str]) -> Self {
        let said = dir.join("ngtcp2.said");
        for _ in 0..5 {
            // It takes no port 0.
            let port = free_udp_port();
            let mut command = Command::new("gtlsserver");
            command.env("PATH", path_with_sbin()).current_dir(dir).stdin(Stdio::null());
            command.stdout(Stdio::null()).stderr(File::create(&said).unwrap());
            command.args(["--no-quic-dump", "--no-http-dump", "--htdocs=root"]).args(flags);
            command.args(["127.0.0.1", &port.to_string(), "key.pem", "cert.pem"]);
            let mut running = Running::start(&mut command);
            let listens = until(|| listens(port) || running.0.try_wait().unwrap().is_some());
            if listens && running.0.try_wait().unwrap().is_none() {
                return Self { _running: running, port, said };
            }
        }
        panic!("ngtcp2's server does not start: {}", text(&said));
    }

    /// How often it said this.
    pub(crate) fn said(&self, words: &str) -> usize {
        text(&self.said).lines().filter(|line| line.contains(words)).count()
    }

    /// Packets of this type that came and could be opened.
    pub(crate) fn received(&self, kind: &str) -> usize {
        packets(text(&self.said).lines(), "pkt rx", kind)
    }

    /// The targets that were requested, in order.
    pub(crate) fn targets(&self) -> Vec<String> {
        let said = text(&self.said);
        let targets = said.lines().filter_map(|line| line.split_once("[:path: "));
        targets.map(|(_, target)| target.trim_end_matches(']').to_owned()).collect()
    }
}

/// A UDP port of the loopback that nobody listened on a moment ago.
fn free_udp_port() -> u16 {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Whether somebody has that UDP port of the loopback.
pub(crate) fn listens(port: u16) -> bool {
    let wanted = format!(":{port:04X} ");
    let table = fs::read_to_string("/proc/net/udp").unwrap();
    table
        .lines()
        .any(|line| line.split_whitespace().nth(1).is_some_and(|a| a.ends_with(wanted.trim_end())))
}

fn path_with_sbin() -> String {
    format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default())
}
