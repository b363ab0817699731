//! The server, of which there may be two for a while.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_firstflight");

/// How long anything may take on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    first: Child,
    main: Pid,
    dir: PathBuf,
    manager: UnixDatagram,
}

impl Server {
    /// Forwards to an upstream.
    pub(crate) fn start(dir: &Path, upstream: SocketAddr, with_key_file: bool) -> Self {
        certify(dir);
        configure(dir, upstream, "permissive");
        let manager = UnixDatagram::bind(dir.join("notify")).unwrap();
        manager.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
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
        let said = File::create(dir.join("said")).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
        let first = command.spawn().unwrap();
        let main = Pid::from_raw(first.id() as i32);
        let mut server =
            Self { address: ([127, 0, 0, 1], 0).into(), first, main, dir: dir.to_owned(), manager };
        let ready = server.hears("READY=1");
        let serving = ready.lines().find_map(|line| line.strip_prefix("STATUS=serving on "));
        let address = serving.and_then(|text| text.split(' ').next()).unwrap();
        server.address = address.parse().unwrap();
        server
    }

    pub(crate) fn reload(&self) {
        kill(self.main, Signal::SIGHUP).unwrap();
        self.hears("RELOADING=1");
        let said = self.hears("READY=1");
        assert!(said.contains("serving on"), "{said}");
    }

    pub(crate) fn upgrade(&mut self) {
        kill(self.main, Signal::SIGUSR2).unwrap();
        let said = self.hears("MAINPID=");
        let pid = said.lines().find_map(|line| line.strip_prefix("MAINPID=")).unwrap();
        self.main = Pid::from_raw(pid.parse().unwrap());
        self.hears("READY=1");
    }

    /// Ends all of it; what is asked until then is answered.
    pub(crate) fn end(&mut self) {
        let _ = kill(self.main, Signal::SIGTERM);
        let _ = kill(Pid::from_raw(self.first.id() as i32), Signal::SIGTERM);
        let _ = self.first.wait();
        let deadline = Instant::now() + TEST_TIMEOUT;
        while kill(self.main, None).is_ok() && !is_zombie(self.main) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The access log of all processes.
    pub(crate) fn log(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.dir.join("log")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// What all processes have said.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(self.dir.join("said")).unwrap()
    }

    fn hears(&self, word: &str) -> String {
        let mut buffer = [0; 4000];
        loop {
            let count = self.manager.recv(&mut buffer).unwrap_or_else(|error| {
                panic!("no {word}: {error}: {}", self.said());
            });
            let said = String::from_utf8_lossy(&buffer[..count]).into_owned();
            assert!(!said.contains("STATUS=not"), "{said}");
            if said.contains(word) {
                return said;
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both are ours: the second was started by the first.
        for pid in [self.main, Pid::from_raw(self.first.id() as i32)] {
            let _ = kill(pid, Signal::SIGKILL);
        }
        let _ = self.first.wait();
    }
}

fn is_zombie(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}

/// A new certificate and its key.
pub(crate) fn certify(dir: &Path) {
    let key = rcgen::KeyPair::generate().unwrap();
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let cert = rcgen::CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
    for (name, text) in [("key.pem", key.serialize_pem()), ("cert.pem", cert.pem())] {
        fs::write(dir.join("new"), text).unwrap();
        fs::rename(dir.join("new"), dir.join(name)).unwrap();
    }
}

/// A configuration by which requests may run early, or not.
pub(crate) fn configure(dir: &Path, upstream: SocketAddr, policy: &str) {
    let text = format!(
        "[process]\nwatch = false\n[early_data]\ndefault = {policy:?}\n[[site]]\n[[site.route]]\n\
         path = \"/\"\nupstream = \"app\"\n[upstream.app]\nservers = [\"http://{upstream}\"]\n"
    );
    fs::write(dir.join("new"), text).unwrap();
    fs::rename(dir.join("new"), dir.join("firstflight.toml")).unwrap();
}

/// Runs the program to its end, which has to be a good one.
pub(crate) fn run(arguments: &[&str]) {
    let output = Command::new(PROGRAM).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}
