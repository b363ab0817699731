//! `firstflight lab --serve` and `--enter`, as root and as an ordinary user.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use nix::sys::signal::Signal;
use serde_json::Value;

use firstflight_testkit::skipped_without;

use crate::support::program::{Ended, PROGRAM, Running, TEST_TIMEOUT, fields, run, until};

/// A running lab, stopped when dropped.
struct Lab {
    running: Running,
    lines: Receiver<Value>,
    up: Value,
    /// The user who started it.
    user: User,
}

/// A user with a home directory.
#[derive(Clone)]
struct User {
    program: PathBuf,
    dir: PathBuf,
    nobody: bool,
}

impl User {
    /// The user who runs the tests.
    fn current(dir: &Path) -> Self {
        Self { program: PROGRAM.into(), dir: dir.to_owned(), nobody: false }
    }

    /// An ordinary user: the one who runs the tests, if that is not root.
    fn ordinary(dir: &Path) -> Self {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
        let program = dir.join("firstflight");
        fs::copy(PROGRAM, &program).unwrap();
        // With the mode that packages install.
        fs::set_permissions(&program, fs::Permissions::from_mode(0o711)).unwrap();
        Self { program, dir: dir.to_owned(), nobody: nix::unistd::geteuid().is_root() }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(if self.nobody { "setpriv" } else { "env" });
        if self.nobody {
            command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        }
        let search = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{search}:/usr/sbin:/sbin")).env("HOME", &self.dir);
        for variable in ["XDG_CONFIG_HOME", "XDG_DATA_HOME", "SSLKEYLOGFILE", "RUST_LOG"] {
            command.env_remove(variable);
        }
        command.current_dir(&self.dir).arg(&self.program);
        command
    }
}

impl Lab {
    fn start(user: &User, arguments: &[&str]) -> Self {
        let mut command = user.command();
        command.args(["lab", "--serve", "--json"]).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut running = Running::start(&mut command);
        let stdout = BufReader::new(running.0.stdout.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).expect("a line is JSON");
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let up = Value::Null;
        let mut lab = Self { running, lines, up, user: user.clone() };
        lab.up = lab.next();
        assert_eq!(lab.up["event"], "up", "{}", lab.up);
        lab
    }

    /// The next event.
    fn next(&self) -> Value {
        self.lines.recv_timeout(TEST_TIMEOUT).expect("the lab prints an event")
    }

    /// A command that runs another one inside the lab; its arguments follow.
    fn inside(&self) -> Command {
        let mut command = self.user.command();
        command.args(["lab", "--enter", &self.up["pid"].to_string(), "--"]);
        command
    }

    /// Fetches a page, with early data if there is a session. Returns the connection as the lab
    /// reports it.
    fn fetch(&self, network: usize, arguments: &[&str]) -> Value {
        let host = self.up["networks"][network]["host"].as_str().unwrap();
        let url = format!("https://{host}:{}/1k", self.up["servers"][0]["port"]);
        let mut command = self.inside();
        command.arg(&self.user.program).args(["fetch", "--tls-earlydata", "--ssl-sessions", "jar"]);
        let ended = run(command.args(arguments).arg(url));
        assert_eq!((ended.code, ended.out.len()), (Some(0), 1024), "{ended:?}");
        let line = self.next();
        assert_eq!(line["event"], "connection", "{line}");
        line
    }

    /// The network namespace that `--enter` enters.
    fn namespace(&self) -> PathBuf {
        fs::read_link(format!("/proc/{}/ns/net", self.up["pid"])).unwrap()
    }

    /// Stops the lab, and checks that no process remains.
    fn end(mut self, signal: Signal) {
        let namespace = self.namespace();
        assert!(!processes_in(&namespace).is_empty());
        self.running.signal(signal);
        let status = self.running.wait().expect("it ends");
        assert!(status.success(), "{status}");
        // Unclassified connections are reported first.
        while self.next()["event"] != "end" {}
        assert!(until(|| processes_in(&namespace).is_empty()), "{:?}", processes_in(&namespace));
        let directory = self.up["directory"].as_str().unwrap();
        assert!(!Path::new(directory).exists(), "{directory}");
    }
}

/// The processes in a network namespace.
fn processes_in(namespace: &Path) -> Vec<String> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let inside = all.filter(|entry| {
        fs::read_link(entry.path().join("ns/net")).is_ok_and(|net| net == namespace)
    });
    inside.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

const CONNECTION: &str = "network server transport handshake round_trips";

/// Explores the lab by hand. The networks have long round-trip times, so that pauses of a busy machine
/// do not look like round trips.
fn explore_lab(user: &User) {
    let lab = Lab::start(user, &["--rtt", "200,150", "--server", "firstflight", "-o", "results"]);
    let first = lab.fetch(0, &[]);
    assert_eq!(fields(&first, CONNECTION), "200 ms firstflight tcp full 3", "{first}");
    let second = lab.fetch(0, &[]);
    assert_eq!(fields(&second, CONNECTION), "200 ms firstflight tcp 0-RTT accepted 2", "{second}");
    assert!(second["early_bytes"].as_u64().unwrap() > 20, "{second}");
    let other = lab.fetch(1, &["--http3-only"]);
    assert_eq!(fields(&other, CONNECTION), "150 ms firstflight quic full 2", "{other}");
    let other = lab.fetch(1, &["--http3-only"]);
    assert_eq!(fields(&other, CONNECTION), "150 ms firstflight quic 0-RTT accepted 1", "{other}");

    let failed = run(lab.inside().args(["sh", "-c", "exit 7"]));
    assert_eq!(failed.code, Some(7), "{failed:?}");
    let missing = run(lab.inside().arg("no-such-program"));
    assert_eq!(missing.code, Some(2), "{missing:?}");
    assert!(missing.err.contains("cannot start no-such-program in the lab"), "{missing:?}");

    // A process that is still inside when the lab ends is killed.
    let mut resident = Running::start(lab.inside().args(["sleep", "4711"]));
    let namespace = lab.namespace();
    let sleeps = |id: &String| {
        fs::read(format!("/proc/{id}/cmdline")).is_ok_and(|line| line == b"sleep\x004711\0")
    };
    assert!(until(|| processes_in(&namespace).iter().any(sleeps)));
    lab.end(Signal::SIGINT);
    assert_eq!(resident.wait().expect("it ends").code(), Some(128 + Signal::SIGKILL as i32));
    assert_decryptable(&user.dir.join("results/explored.pcapng"));
}

/// Checks that the capture contains the TLS secrets: tshark decrypts all requests, early ones, too.
fn assert_decryptable(capture: &Path) {
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(capture).args(["-Y", "http.request or http2.headers.method"]);
    let Ended { code, out, err } = run(&mut tshark);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.lines().count() >= 2, "{out}");
}

#[test]
fn a_lab_stays_up_and_can_be_entered() {
    if skipped_without(&["tshark"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    explore_lab(&User::current(dir.path()));
}

/// Only as root: otherwise the test above has covered it.
#[test]
fn a_lab_is_entered_without_root() {
    if skipped_without(&["tshark"]) {
        return;
    }
    if nix::unistd::geteuid().is_root() {
        let dir = tempfile::tempdir().unwrap();
        explore_lab(&User::ordinary(dir.path()));
    }
}

#[test]
fn a_browser_starts_inside_the_lab() {
    let dir = tempfile::tempdir().unwrap();
    let user = User::current(dir.path());
    let lab = Lab::start(&user, &["--server", "firstflight", "--captures", "none", "--rtt", "20"]);
    let host = lab.up["networks"][0]["host"].as_str().unwrap();
    let url = format!("https://{host}:{}/", lab.up["servers"][0]["port"]);
    let mut command = user.command();
    command.args(["lab", "--enter", &lab.up["pid"].to_string(), "--browser", "chromium", "--"]);
    let ended = run(command.args(["--headless", "--dump-dom"]).arg(url));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.contains("<h1>It flies.</h1>"), "{ended:?}");
    let seen = lab.next();
    assert_eq!(fields(&seen, "server_name alpn handshake"), format!("{host} h2 full"), "{seen}");
    lab.end(Signal::SIGINT);
}

#[test]
fn a_lab_ends_after_its_time_and_on_sigterm() {
    let dir = tempfile::tempdir().unwrap();
    let user = User::current(dir.path());
    let mut command = user.command();
    command.args(["lab", "--serve", "--for", "1", "--server", "firstflight", "--captures", "none"]);
    let ended = run(&mut command);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for words in ["lab --enter ", "https://112ms.lab.test:", "0 connections"] {
        assert!(ended.out.contains(words), "{words}: {}", ended.out);
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "no capture, no results");
    let lab = Lab::start(&user, &["--server", "firstflight", "--captures", "none"]);
    lab.end(Signal::SIGTERM);
}
