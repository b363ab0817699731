//! One `firstflight serve`. During an upgrade there are two processes.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use firstflight_testkit::{ServiceManager, TEST_TIMEOUT};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::clock;
use crate::settings::{Settings, Switch};

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_firstflight");

/// A server with its own directory. It is stopped when this is dropped.
pub(crate) struct Server {
    settings: Settings,
    /// Where the certificate is.
    shared: PathBuf,
    dir: PathBuf,
    upstream: SocketAddr,
    manager: ServiceManager,
    processes: Option<Processes>,
}

struct Processes {
    address: SocketAddr,
    first: Child,
    /// After an upgrade, not the first process.
    main: Pid,
}

impl Server {
    /// Starts a server in the directory `dir`, which is created.
    pub(crate) fn start(
        shared: &Path,
        dir: &Path,
        upstream: SocketAddr,
        settings: Settings,
    ) -> Self {
        fs::create_dir(dir).unwrap();
        let manager = ServiceManager::new(dir);
        let (shared, dir) = (shared.to_owned(), dir.to_owned());
        if settings.settable_clock {
            clock::set(&dir, "+0s");
        }
        let mut server = Self { settings, shared, dir, upstream, manager, processes: None };
        server.launch();
        server
    }

    /// The address on which it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.processes.as_ref().expect("a server that runs").address
    }

    /// Reloads with this setting changed (SIGHUP).
    pub(crate) fn reload(&mut self, switch: Option<Switch>) {
        self.configure(switch);
        kill(self.main(), Signal::SIGHUP).unwrap();
        self.wait_for_message("RELOADING=1");
        let stderr = self.wait_for_message("READY=1");
        assert!(stderr.contains("serving on"), "{stderr}");
    }

    /// Upgrades to a new process with this setting changed (SIGUSR2).
    pub(crate) fn upgrade(&mut self, switch: Option<Switch>) {
        self.configure(switch);
        let old = self.main();
        kill(old, Signal::SIGUSR2).unwrap();
        let stderr = self.wait_for_message("MAINPID=");
        let pid = stderr.lines().find_map(|line| line.strip_prefix("MAINPID=")).unwrap();
        self.processes.as_mut().unwrap().main = Pid::from_raw(pid.parse().unwrap());
        self.wait_for_message("READY=1");
        // Another upgrade is possible only after the old process has ended.
        assert!(self.ends(old), "the old process does not end: {}", self.stderr());
    }

    /// Ends the process, waits for it, and starts another one.
    pub(crate) fn restart(&mut self) {
        self.stop();
        self.launch();
    }

    /// Kills the process, and starts another one.
    pub(crate) fn crash(&mut self) {
        self.processes = None;
        self.launch();
    }

    /// Sets the process's clock to this offset from the real one, in seconds, and waits until the
    /// process has noticed it.
    pub(crate) fn set_clock(&self, offset: i64) {
        assert!(self.settings.settable_clock, "it has the machine's clock");
        let noticed = || self.stderr().matches("clock was set").count();
        let before = noticed();
        clock::set(&self.dir, &format!("{offset:+}s"));
        let deadline = Instant::now() + TEST_TIMEOUT;
        while noticed() == before {
            assert!(Instant::now() < deadline, "it does not notice: {}", self.stderr());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The access log entries of a target, abbreviated.
    pub(crate) fn log_of(&self, target: &str) -> Vec<String> {
        const FIELDS: [&str; 7] =
            ["protocol", "resumed", "early_data", "claim", "held", "executed", "status"];
        let text = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let lines = lines.filter(|line| line["target"] == target);
        lines.map(|line| FIELDS.map(|field| line[field].to_string()).join(" ")).collect()
    }

    /// The standard error output of all processes.
    pub(crate) fn stderr(&self) -> String {
        fs::read_to_string(self.dir.join("stderr")).unwrap_or_default()
    }

    fn main(&self) -> Pid {
        self.processes.as_ref().expect("a server that runs").main
    }

    fn configure(&self, switch: Option<Switch>) {
        let text = self.settings.file(&self.shared, self.upstream, switch);
        fs::write(self.dir.join("new"), text).unwrap();
        fs::rename(self.dir.join("new"), self.dir.join("firstflight.toml")).unwrap();
    }

    fn launch(&mut self) {
        self.configure(None);
        let stderr =
            File::options().create(true).append(true).open(self.dir.join("stderr")).unwrap();
        let mut command = Command::new(PROGRAM);
        command
            .env("HOME", &self.dir)
            .env("NOTIFY_SOCKET", self.dir.join("notify"))
            .env_remove("SSLKEYLOGFILE")
            .env_remove("RUST_LOG")
            .current_dir(&self.dir)
            .args(["serve", "--listen", "127.0.0.1:0", "--config"])
            .arg(self.dir.join("firstflight.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr);
        if self.settings.settable_clock {
            clock::follow(&mut command, &self.dir);
        }
        let first = command.spawn().unwrap();
        let main = Pid::from_raw(first.id() as i32);
        let address = ([127, 0, 0, 1], 0).into();
        self.processes = Some(Processes { address, first, main });
        let ready = self.wait_for_message("READY=1");
        let serving = ready.lines().find_map(|line| line.strip_prefix("STATUS=serving on "));
        let address = serving.and_then(|text| text.split(' ').next()).unwrap();
        self.processes.as_mut().unwrap().address = address.parse().unwrap();
    }

    /// Stops all processes gracefully.
    fn stop(&mut self) {
        let Some(processes) = &self.processes else { return };
        let first = Pid::from_raw(processes.first.id() as i32);
        let main = processes.main;
        kill(main, Signal::SIGTERM).unwrap();
        assert!(self.ends(main) && self.ends(first), "it does not end: {}", self.stderr());
        self.processes = None;
    }

    /// Waits for the end of a process. Returns whether it ended.
    fn ends(&mut self, pid: Pid) -> bool {
        let first = &mut self.processes.as_mut().expect("a server that runs").first;
        let is_first = first.id() as i32 == pid.as_raw();
        let deadline = Instant::now() + TEST_TIMEOUT;
        while Instant::now() < deadline {
            let ended = match is_first {
                true => first.try_wait().unwrap().is_some(),
                false => has_ended(pid),
            };
            if ended {
                return true;
            }
            thread::sleep(Duration::from_millis(20));
        }
        false
    }

    fn wait_for_message(&self, message: &str) -> String {
        self.manager.wait_for_or(message, || self.stderr())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        // Both processes are killed: the first has started the second.
        let first = Pid::from_raw(self.first.id() as i32);
        if self.main != first && !has_ended(self.main) {
            let _ = kill(self.main, Signal::SIGKILL);
        }
        let _ = self.first.kill();
        let _ = self.first.wait();
    }
}

/// Whether a process that is not a child has ended.
fn has_ended(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}
