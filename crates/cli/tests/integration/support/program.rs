//! The program under test: running commands and servers, and reading their output.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use firstflight_testkit::Serving;
pub(crate) use firstflight_testkit::{Running, TEST_TIMEOUT, text, until, within};
use nix::sys::signal::Signal;
use rcgen::{CertificateParams, DnType, KeyPair};
use serde_json::Value;
use tempfile::TempDir;

/// The binary under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_firstflight");

/// The exit code and output of a command.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs a command to its end, without input.
pub(crate) fn run(command: &mut Command) -> Ended {
    let dir = tempfile::tempdir().unwrap();
    let (out, err) = (dir.path().join("out"), dir.path().join("err"));
    command
        .stdin(Stdio::null())
        .stdout(File::create(&out).unwrap())
        .stderr(File::create(&err).unwrap());
    let mut running = Running::start(command);
    let status = running.wait();
    let ended =
        Ended { code: status.and_then(|status| status.code()), out: text(&out), err: text(&err) };
    assert!(status.is_some(), "{command:?} does not end: {ended:?}");
    ended
}

/// The program with a temporary home directory, so that no test uses files of a user.
pub(crate) fn firstflight(home: &Path) -> Command {
    firstflight_at(Path::new(PROGRAM), home)
}

fn firstflight_at(program: &Path, home: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("HOME", home).env_remove("XDG_CONFIG_HOME").env_remove("SSLKEYLOGFILE");
    // The development authority is then below `home`, too.
    command.env_remove("XDG_DATA_HOME");
    command.env_remove("RUST_LOG").env_remove("FIRSTFLIGHT_SESSIONS_PASSPHRASE");
    command
}

/// A temporary directory with a page in `root`.
pub(crate) fn site() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("root")).unwrap();
    fs::write(dir.path().join("root/index.html"), PAGE).unwrap();
    dir
}

/// A self-signed certificate and its key, in PEM. Its subject is its first name, since a file of
/// trusted certificates is searched by subject.
pub(crate) fn self_signed(names: &[&str]) -> (String, String) {
    let covered: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
    let mut params = CertificateParams::new(covered).unwrap();
    params.distinguished_name.push(DnType::CommonName, names[0]);
    let key = KeyPair::generate().unwrap();
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

/// The content of the page.
pub(crate) const PAGE: &str = "the page of the test\n";

/// A running `firstflight serve` on a free port, with an access log in JSON.
pub(crate) struct Serve {
    running: Running,
    pub(crate) address: SocketAddr,
    pub(crate) cert: PathBuf,
    pub(crate) stderr: PathBuf,
    pub(crate) log: PathBuf,
}

impl Serve {
    /// Serves a site's files.
    pub(crate) fn files(dir: &Path, arguments: &[&str]) -> Self {
        let root = dir.join("root");
        Self::start(dir, &[&["--root", root.to_str().unwrap()], arguments].concat())
    }

    /// Starts the server and waits until it is ready. Its certificate is cert.pem in `dir`, self-signed
    /// unless the arguments name one.
    pub(crate) fn start(dir: &Path, arguments: &[&str]) -> Self {
        Self::start_in(dir, arguments, &[])
    }

    /// Like [`Self::start`], with environment variables.
    pub(crate) fn start_in(dir: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::start_from(Path::new(PROGRAM), dir, arguments, environment)
    }

    /// Like [`Self::start_in`], with the program at this path.
    pub(crate) fn start_from(
        program: &Path,
        dir: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let (log, cert) = (dir.join("log"), dir.join("cert.pem"));
        let mut command = firstflight_at(program, dir);
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--log-format", "json"])
            .arg("--access-log")
            .arg(&log)
            .args(arguments)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(dir.join("stderr")).unwrap());
        if !arguments.contains(&"--cert") {
            command.arg("--save-cert").arg(&cert);
        }
        Self::ready(dir, command)
    }

    /// Serves with `config.toml` in `dir` as working directory. The address is that of the first
    /// listener.
    pub(crate) fn configured(dir: &Path) -> Self {
        Self::configured_with(dir, &[], &[])
    }

    /// Like [`Self::configured`], with arguments and environment variables.
    pub(crate) fn configured_with(
        dir: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let mut command = firstflight(dir);
        command
            .current_dir(dir)
            .args(["serve", "--config", "config.toml", "--log-format", "json"])
            .args(["--access-log", "log"])
            .args(arguments)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(dir.join("stderr")).unwrap());
        Self::ready(dir, command)
    }

    fn ready(dir: &Path, mut command: Command) -> Self {
        let (log, cert, stderr) = (dir.join("log"), dir.join("cert.pem"), dir.join("stderr"));
        let serving = Running::serve(&mut command, Serving::Announced(&stderr));
        let (running, address) =
            serving.unwrap_or_else(|| panic!("the server does not start: {}", text(&stderr)));
        Self { running, address, cert, stderr, log }
    }

    pub(crate) fn port(&self) -> String {
        self.address.port().to_string()
    }

    /// The address of the admin listener, once it is logged.
    pub(crate) fn console(&self) -> SocketAddr {
        let mut console = None;
        until(|| {
            console = text(&self.stderr).lines().find_map(|line| {
                line.split_once("the console is on ").and_then(|(_, rest)| rest.trim().parse().ok())
            });
            console.is_some()
        });
        console.unwrap_or_else(|| panic!("no console: {}", text(&self.stderr)))
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.running.0.id()
    }

    /// Waits until it exits without a signal from the test.
    pub(crate) fn ends_by_itself(&mut self) -> ExitStatus {
        self.running.wait().expect("it ends")
    }

    /// The access log so far, without an incomplete last line.
    pub(crate) fn log(&self) -> Vec<Value> {
        text(&self.log)
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'))
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// Waits until the access log has `count` lines, and not more.
    pub(crate) fn lines(&self, count: usize) -> Vec<Value> {
        until(|| self.log().len() >= count);
        let log = self.log();
        assert_eq!(log.len(), count, "{log:#?}");
        log
    }

    /// Stops it with SIGTERM, which must succeed. Returns the access log.
    pub(crate) fn stop(mut self) -> Vec<Value> {
        self.end();
        self.log()
    }

    /// Stops it, but keeps its address and files available.
    pub(crate) fn end(&mut self) {
        self.running.signal(Signal::SIGTERM);
        let status = self.running.wait().expect("SIGTERM ends it");
        let stderr = text(&self.stderr);
        assert!(status.success(), "{status}: {stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
    }
}

/// The result of `fetch`, with the variables of `-w`.
pub(crate) struct Fetched {
    pub(crate) ended: Ended,
    pub(crate) facts: Value,
}

/// Fetches with a session jar in `dir`. The facts are those of `%{json}`.
pub(crate) fn fetch(dir: &Path, cert: &Path, url: &str, arguments: &[&str]) -> Fetched {
    let mut command = firstflight(dir);
    command.args(["fetch", "-w", "%{stderr}\n%{json}"]).arg("--cacert").arg(cert);
    command.arg("--ssl-sessions").arg(dir.join("jar"));
    let ended = run(command.args(arguments).arg(url));
    let last = ended.err.lines().last().unwrap_or_default();
    let facts = serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {ended:?}"));
    Fetched { ended, facts }
}

/// Joins fields of an entry to one string, so that a failed assertion shows them all.
pub(crate) fn fields(entry: &Value, names: &str) -> String {
    let field = |name| match &entry[name] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    names.split(' ').map(field).collect::<Vec<_>>().join(" ")
}
