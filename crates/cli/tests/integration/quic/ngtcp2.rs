//! ngtcp2's client and server on GnuTLS, as packaged by Debian. The tests rely on their logs of
//! packets.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use firstflight_testkit::{Serving, free_port, skipped_without};

use super::setup::{EARLY, FULL, RESUMED, RETRY, Setup, TWICE};
use crate::support::program::{Ended, Running, fields, run, text};

/// The result of a run of the client, and its log.
pub(crate) struct ClientRun {
    ended: Ended,
}

/// Runs the client for these targets, one after the other on one connection. Its session, transport
/// parameters and token stay in `dir`.
pub(crate) fn client(dir: &Path, port: u16, flags: &[&str], targets: &[&str]) -> ClientRun {
    let mut command = Command::new("gtlsclient");
    command.current_dir(dir).env("SSLKEYLOGFILE", dir.join("keys"));
    command.args(["--no-quic-dump", "--no-http-dump", "--exit-on-all-streams-close"]);
    command.args(["--session-file=ngtcp2.session", "--tp-file=ngtcp2.parameters"]);
    command.arg("--token-file=ngtcp2.token").args(flags);
    command.args(["localhost".to_owned(), port.to_string()]);
    command.args(targets.iter().map(|target| format!("https://localhost:{port}{target}")));
    ClientRun { ended: run(&mut command) }
}

impl ClientRun {
    /// The number of sent packets of this type (`Initial`, `0RTT`, `Handshake`, `1RTT`).
    pub(crate) fn sent(&self, kind: &str) -> usize {
        packets(self.lines(), "pkt tx", kind)
    }

    /// The number of received packets of this type (also `Retry`) that could be opened.
    pub(crate) fn received(&self, kind: &str) -> usize {
        packets(self.lines(), "pkt rx", kind)
    }

    /// The numbers of 1-RTT packets sent, and received and opened, under the keys after the first
    /// update.
    pub(crate) fn under_new_keys(&self) -> (usize, usize) {
        let new = |direction: &str| {
            let new = |line: &&str| line.contains(direction) && line.contains("type=1RTT k=1");
            self.lines().filter(new).count()
        };
        (new("pkt tx"), new("pkt rx"))
    }

    /// The statuses of its responses.
    pub(crate) fn statuses(&self) -> Vec<&str> {
        let statuses = self.lines().filter_map(|line| line.split_once("[:status: "));
        statuses.map(|(_, status)| status.trim_end_matches(']')).collect()
    }

    /// Whether a frame of this name was received.
    pub(crate) fn received_frame(&self, name: &str) -> bool {
        self.lines().any(|line| line.contains("frm rx") && line.contains(name))
    }

    /// Whether a line contains this text.
    pub(crate) fn logged(&self, text: &str) -> bool {
        self.lines().any(|line| line.contains(text))
    }

    fn lines(&self) -> impl Iterator<Item = &str> {
        self.ended.err.lines().chain(self.ended.out.lines())
    }

    /// A summary of the packets, for failed assertions.
    pub(crate) fn summary(&self) -> String {
        let lines = self.lines().filter(|line| line.contains("pkt ") || line.contains("http"));
        format!("{:?}\n{}", self.ended.code, lines.collect::<Vec<_>>().join("\n"))
    }
}

fn packets<'a>(lines: impl Iterator<Item = &'a str>, direction: &str, kind: &str) -> usize {
    let kind = format!("type={kind}");
    let of_kind = |line: &&str| line.split(' ').any(|word| word.starts_with(&kind));
    lines.filter(|line| line.contains(direction)).filter(of_kind).count()
}

/// A running server.
pub(crate) struct Server {
    _running: Running,
    pub(crate) port: u16,
    output: PathBuf,
}

impl Server {
    /// Serves the directory `root` in `dir`; its certificate is cert.pem there, and its key
    /// key.pem.
    pub(crate) fn start(dir: &Path, flags: &[&str]) -> Self {
        let output = dir.join("ngtcp2.stderr");
        for _ in 0..5 {
            // It does not support port 0.
            let port = free_port();
            let mut command = Command::new("gtlsserver");
            command.env("PATH", path_with_sbin()).current_dir(dir).stdin(Stdio::null());
            command.stdout(Stdio::null()).stderr(File::create(&output).unwrap());
            command.args(["--no-quic-dump", "--no-http-dump", "--htdocs=root"]).args(flags);
            command.args(["127.0.0.1", &port.to_string(), "key.pem", "cert.pem"]);
            if let Some((running, _)) = Running::serve(&mut command, Serving::Udp(port)) {
                return Self { _running: running, port, output };
            }
        }
        panic!("ngtcp2's server does not start: {}", text(&output));
    }

    /// How often it logged this.
    pub(crate) fn count(&self, text_logged: &str) -> usize {
        text(&self.output).lines().filter(|line| line.contains(text_logged)).count()
    }

    /// The number of received packets of this type that could be opened.
    pub(crate) fn received(&self, kind: &str) -> usize {
        packets(text(&self.output).lines(), "pkt rx", kind)
    }

    /// The targets that were requested, in order.
    pub(crate) fn targets(&self) -> Vec<String> {
        let output = text(&self.output);
        let targets = output.lines().filter_map(|line| line.split_once("[:path: "));
        targets.map(|(_, target)| target.trim_end_matches(']').to_owned()).collect()
    }
}

fn path_with_sbin() -> String {
    format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default())
}

#[test]
fn ngtcp2_full_resumed_and_early() {
    if skipped_without(&["gtlsclient"]) {
        return;
    }
    let setup = Setup::new(&[]);
    let full = client(setup.dir(), setup.port(), &[], &["/index.html"]);
    assert_eq!(full.statuses(), ["200"], "{}", full.summary());
    let late = ["--disable-early-data"];
    let resumed = client(setup.dir(), setup.port(), &late, &["/index.html"]);
    assert_eq!(
        (resumed.statuses(), resumed.sent("0RTT")),
        (vec!["200"], 0),
        "{}",
        resumed.summary()
    );
    setup.delay_finished(2);
    let early = client(setup.dir(), setup.port(), &[], &["/index.html"]);
    assert_eq!(early.statuses(), ["200"], "{}", early.summary());
    assert!(early.sent("0RTT") > 0 && !early.logged(REJECTED), "{}", early.summary());
    assert_eq!(setup.logged(3), [FULL, RESUMED, EARLY]);
}

#[test]
fn ngtcp2_refused_by_a_server_without_its_keys() {
    if skipped_without(&["gtlsclient"]) {
        return;
    }
    let mut setup = Setup::new(&[]);
    client(setup.dir(), setup.port(), &[], &["/index.html"]);
    setup.restart("", &[]);
    let early = client(setup.dir(), setup.port(), &[], &["/index.html"]);
    assert!(early.sent("0RTT") > 0 && early.logged(REJECTED), "{}", early.summary());
    assert_eq!(early.statuses(), ["200"], "{}", early.summary());
    assert_eq!(setup.logged(2), [FULL, FULL]);
}

/// ngtcp2's client uses GnuTLS, whose own client, gnutls-cli, cannot use a ticket twice.
#[test]
fn rfc8446_c_4_ngtcp2_with_a_used_ticket_makes_a_full_handshake() {
    if skipped_without(&["gtlsclient"]) {
        return;
    }
    let setup = Setup::new(&[]);
    client(setup.dir(), setup.port(), &[], &["/index.html"]);
    assert!(!setup.has_resumed());
    let session = fs::read(setup.dir().join("ngtcp2.session")).unwrap();
    let first = client(setup.dir(), setup.port(), &[], &["/index.html"]);
    assert!(first.sent("0RTT") > 0 && !first.logged(REJECTED), "{}", first.summary());
    assert!(setup.has_resumed());
    fs::write(setup.dir().join("ngtcp2.session"), session).unwrap();
    let second = client(setup.dir(), setup.port(), &[], &["/index.html"]);
    assert!(second.sent("0RTT") > 0 && second.logged(REJECTED), "{}", second.summary());
    assert_eq!(second.statuses(), ["200"], "{}", second.summary());
    assert!(!setup.has_resumed());
    let lines = setup.server.lines(3);
    let logged: Vec<_> =
        lines[1..].iter().map(|line| fields(line, "resumed early_data status")).collect();
    assert_eq!(logged, TWICE);
}

const REJECTED: &str = "Early data was rejected";

#[test]
fn rfc9001_6_ngtcp2_updates_keys() {
    if skipped_without(&["gtlsclient"]) {
        return;
    }
    let setup = Setup::new(&[]);
    let flags = ["--key-update=1ms", "--delay-stream=50ms"];
    let run = client(setup.dir(), setup.port(), &flags, &["/index.html"]);
    let (sent, received) = run.under_new_keys();
    assert!(sent > 0 && received > 0 && run.logged("key update confirmed"), "{}", run.summary());
    assert_eq!(run.statuses(), ["200"], "{}", run.summary());
    assert_eq!(setup.logged(1), [FULL]);
}

#[test]
fn rfc9000_9_ngtcp2_changes_its_address() {
    if skipped_without(&["gtlsclient"]) {
        return;
    }
    let setup = Setup::new(&[]);
    // A client that moves on purpose validates the path; behind a NAT the server does.
    for (nat, frame) in [(None, "PATH_RESPONSE"), (Some("--nat-rebinding"), "PATH_CHALLENGE")] {
        let mut flags = vec!["--change-local-addr=1ms", "--delay-stream=50ms"];
        flags.extend(["--disable-early-data"].into_iter().chain(nat));
        let run = client(setup.dir(), setup.port(), &flags, &["/index.html"]);
        assert!(run.logged("Changing local address"), "{}", run.summary());
        assert!(run.received_frame(frame), "{}", run.summary());
        assert_eq!(run.statuses(), ["200"], "{}", run.summary());
    }
    assert_eq!(setup.logged(2), [FULL, RESUMED]);
}

#[test]
fn ngtcp2_with_chacha20() {
    if skipped_without(&["gtlsclient"]) {
        return;
    }
    let setup = Setup::new(&[]);
    let flags = ["--ciphers=NORMAL:-VERS-ALL:+VERS-TLS1.3:-CIPHER-ALL:+CHACHA20-POLY1305"];
    for early in [false, true] {
        if early {
            setup.delay_finished(1);
        }
        let run = client(setup.dir(), setup.port(), &flags, &["/index.html"]);
        assert_eq!(run.statuses(), ["200"], "{}", run.summary());
    }
    assert_eq!(setup.logged(2), [FULL, EARLY]);
    assert!(setup.server.log().iter().all(|line| line["cipher"] == CHACHA20));
}

const CHACHA20: &str = "TLS_CHACHA20_POLY1305_SHA256";

#[test]
fn ngtcp2_with_a_client_hello_of_two_packets() {
    if skipped_without(&["gtlsclient"]) {
        return;
    }
    let setup = Setup::new(&[]);
    let flags = ["--groups=-GROUP-ALL:+GROUP-FFDHE8192:+GROUP-X25519"];
    for early in [false, true] {
        if early {
            setup.delay_finished(1);
        }
        let run = client(setup.dir(), setup.port(), &flags, &["/index.html"]);
        assert!(run.logged("Initial CRYPTO(0x06) offset=0") && run.sent("Initial") > 1);
        assert_eq!(run.statuses(), ["200"], "{}", run.summary());
    }
    assert_eq!(setup.logged(2), [FULL, EARLY]);
}

#[test]
fn rfc9000_6_ngtcp2_negotiates_the_version() {
    if skipped_without(&["gtlsclient"]) {
        return;
    }
    let setup = Setup::new(&[]);
    let flags = ["--version=0x1a2a3a4a", "--preferred-versions=v1", "--other-versions=v1"];
    let run = client(setup.dir(), setup.port(), &flags, &["/index.html"]);
    assert_eq!(run.statuses(), ["200"], "{}", run.summary());
    assert_eq!(setup.logged(1), [FULL]);
}

#[test]
fn rfc9000_8_1_2_ngtcp2_validates_its_address() {
    if skipped_without(&["gtlsclient"]) {
        return;
    }
    let setup = Setup::configured(RETRY, &[]);
    for early in [false, true] {
        if early {
            setup.delay_finished(1);
        }
        let run = client(setup.dir(), setup.port(), &[], &["/index.html"]);
        assert_eq!((run.received("Retry"), run.statuses()), (1, vec!["200"]), "{}", run.summary());
    }
    assert_eq!(setup.logged(2), [FULL, EARLY]);
}
