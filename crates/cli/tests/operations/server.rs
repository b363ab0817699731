//! The server. During an upgrade there are two processes.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use firstflight_testkit::{Running, ServiceManager, TEST_TIMEOUT, output_within, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_firstflight");

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    first: Running,
    main: Pid,
    dir: PathBuf,
    manager: ServiceManager,
}

impl Server {
    /// Starts a server that forwards to an upstream.
    pub(crate) fn start(dir: &Path, upstream: SocketAddr, with_key_file: bool) -> Self {
        write_certificate(dir);
        write_configuration(dir, upstream, "permissive");
        let manager = ServiceManager::new(dir);
        let mut command = Command::new(PROGRAM);
        command
            .env("HOME", dir)
            .env("NOTIFY_SOCKET", dir.join("notify"))
            .env_remove("SSLKEYLOGFILE")
            .args(["serve", "--listen", "127.0.0.1:0", "--log-format", "json"]);
        for (flag, file) in [
            ("--config", "firstflight.toml"),
            ("--cert", "cert.pem"),
            ("--key", "key.pem"),
            ("--access-log", "log"),
        ] {
            command.arg(flag).arg(dir.join(file));
        }
        if with_key_file {
            run(&["keys", "new", dir.join("keys").to_str().unwrap()]);
            command.arg("--ticket-keys").arg(dir.join("keys"));
        }
        let stderr = File::create(dir.join("stderr")).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        let first = Running::start(&mut command);
        let main = Pid::from_raw(first.0.id() as i32);
        let mut server =
            Self { address: ([127, 0, 0, 1], 0).into(), first, main, dir: dir.to_owned(), manager };
        let ready = server.wait_for_message("READY=1");
        let serving = ready.lines().find_map(|line| line.strip_prefix("STATUS=serving on "));
        let address = serving.and_then(|text| text.split(' ').next()).unwrap();
        server.address = address.parse().unwrap();
        server
    }

    pub(crate) fn reload(&self) {
        kill(self.main, Signal::SIGHUP).unwrap();
        self.wait_for_message("RELOADING=1");
        let stderr = self.wait_for_message("READY=1");
        assert!(stderr.contains("serving on"), "{stderr}");
    }

    pub(crate) fn upgrade(&mut self) {
        kill(self.main, Signal::SIGUSR2).unwrap();
        let stderr = self.wait_for_message("MAINPID=");
        let pid = stderr.lines().find_map(|line| line.strip_prefix("MAINPID=")).unwrap();
        self.main = Pid::from_raw(pid.parse().unwrap());
        self.wait_for_message("READY=1");
    }

    /// Stops the server gracefully.
    pub(crate) fn end(&mut self) {
        let _ = kill(self.main, Signal::SIGTERM);
        let _ = kill(Pid::from_raw(self.first.0.id() as i32), Signal::SIGTERM);
        let has_ended = self.first.wait().is_some()
            && until(|| kill(self.main, None).is_err() || is_zombie(self.main));
        assert!(has_ended, "SIGTERM does not end it: {}", self.stderr());
    }

    /// The access log of all processes.
    pub(crate) fn log(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.dir.join("log")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The standard error of all processes.
    pub(crate) fn stderr(&self) -> String {
        fs::read_to_string(self.dir.join("stderr")).unwrap()
    }

    fn wait_for_message(&self, message: &str) -> String {
        self.manager.wait_for_or(message, || self.stderr())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both processes are killed: the first, which is killed when dropped, has started the second.
        let _ = kill(self.main, Signal::SIGKILL);
    }
}

fn is_zombie(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}

/// Writes a new certificate and its key.
pub(crate) fn write_certificate(dir: &Path) {
    let key = rcgen::KeyPair::generate().unwrap();
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let cert = rcgen::CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
    for (name, text) in [("key.pem", key.serialize_pem()), ("cert.pem", cert.pem())] {
        fs::write(dir.join("new"), text).unwrap();
        fs::rename(dir.join("new"), dir.join(name)).unwrap();
    }
}

/// Writes a configuration with this early-data policy.
pub(crate) fn write_configuration(dir: &Path, upstream: SocketAddr, policy: &str) {
    let text = format!(
        "[process]\nwatch = false\n[early_data]\ndefault = {policy:?}\n[[site]]\n[[site.route]]\n\
         path = \"/\"\nupstream = \"app\"\n[upstream.app]\nservers = [\"http://{upstream}\"]\n"
    );
    fs::write(dir.join("new"), text).unwrap();
    fs::rename(dir.join("new"), dir.join("firstflight.toml")).unwrap();
}

/// Runs the program, which must succeed.
pub(crate) fn run(arguments: &[&str]) {
    let output = output_within(Command::new(PROGRAM).args(arguments), TEST_TIMEOUT);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}
