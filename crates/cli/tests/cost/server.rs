//! The server under an instrument.

use std::cell::Cell;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use firstflight_testkit::{Running, Serving, text, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instrument {
    Callgrind,
    Strace,
}

/// A running `firstflight serve` with one worker, and a page of 1 KiB.
pub(crate) struct Server {
    dir: TempDir,
    running: Running,
    pub(crate) address: SocketAddr,
    dumps: Cell<usize>,
    /// How much of strace's log was read.
    read: Cell<usize>,
}

impl Server {
    pub(crate) fn start(instrument: Instrument) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir(&root).unwrap();
        fs::write(root.join("index.html"), [b'x'; 1024]).unwrap();
        certificate(dir.path());
        fs::write(dir.path().join("config.toml"), config(&root, instrument)).unwrap();
        let program = env!("CARGO_BIN_EXE_firstflight");
        let mut command = match instrument {
            Instrument::Callgrind => {
                let mut command = Command::new("valgrind");
                command
                    .args(["--tool=callgrind", "--callgrind-out-file=dump"])
                    .arg(format!("--vgdb-prefix={}", prefix(dir.path()).display()))
                    .arg(without_debug_information(program, dir.path()));
                command
            }
            Instrument::Strace => {
                let mut command = Command::new("strace");
                command.args(["--follow-forks", "--output=trace", program]);
                command
            }
        };
        command
            .current_dir(dir.path())
            .env("HOME", dir.path())
            .env_remove("RUST_LOG")
            .args(["serve", "--config", "config.toml", "--workers", "1"])
            .args(["--listen", "127.0.0.1:0", "--cert", "cert.pem", "--key", "key.pem"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(dir.path().join("stderr")).unwrap());
        let stderr = dir.path().join("stderr");
        let serving = Running::serve(&mut command, Serving::Announced(&stderr));
        let (running, address) =
            serving.unwrap_or_else(|| panic!("the server does not start: {}", text(&stderr)));
        Self { dir, running, address, dumps: Cell::new(0), read: Cell::new(0) }
    }

    /// Waits until the server has nothing more to do.
    pub(crate) fn settle(&self) {
        let pid = self.pid();
        let mut before = None;
        until(|| {
            thread::sleep(IDLE_TIME);
            let now = Some(cpu_time(pid));
            std::mem::replace(&mut before, now) == now
        });
    }

    /// Callgrind's dump of the time since the last call.
    pub(crate) fn dump(&self) -> String {
        let dir = self.dir.path();
        let mut command = Command::new("vgdb");
        command
            .arg(format!("--vgdb-prefix={}", prefix(dir).display()))
            .args([&format!("--pid={}", self.pid()), "dump"])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let status = Running::start(&mut command).wait();
        assert!(
            status.is_some_and(|status| status.success()),
            "valgrind takes no commands: {status:?}"
        );
        self.dumps.set(self.dumps.get() + 1);
        // Written before the command ends.
        text(&dir.join(format!("dump.{}", self.dumps.get())))
    }

    /// Strace's log since the last call.
    pub(crate) fn log(&self) -> String {
        let log = text(&self.dir.path().join("trace"));
        log[self.read.replace(log.len())..].to_owned()
    }

    /// Ends it, which must succeed.
    pub(crate) fn stop(mut self) {
        kill(Pid::from_raw(self.pid() as i32), Signal::SIGTERM).unwrap();
        let status = self.running.wait().expect("SIGTERM ends it");
        assert!(status.success(), "{status}: {}", text(&self.dir.path().join("stderr")));
    }

    /// The server's process: strace's child, or the one that valgrind has become.
    fn pid(&self) -> u32 {
        let started = self.running.0.id();
        let children = fs::read_to_string(format!("/proc/{started}/task/{started}/children"));
        let child = children.ok().and_then(|pids| pids.split(' ').next()?.parse().ok());
        child.unwrap_or(started)
    }
}

/// A server whose threads have not run for this time waits for clients.
const IDLE_TIME: Duration = Duration::from_millis(60);

/// The time that all threads of a process have run, in nanoseconds.
fn cpu_time(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let time = |task: fs::DirEntry| {
        let schedule = fs::read_to_string(task.path().join("schedstat")).ok()?;
        schedule.split(' ').next()?.parse::<u64>().ok()
    };
    tasks.flatten().filter_map(time).sum()
}

/// valgrind 3.19, Debian 12's, cannot read the debug information of today's compilers.
fn without_debug_information(program: &str, dir: &Path) -> PathBuf {
    let copy = dir.join("firstflight");
    let status = Command::new("objcopy").args(["--strip-debug", program]).arg(&copy).status();
    assert!(status.unwrap().success());
    copy
}

fn prefix(dir: &Path) -> PathBuf {
    dir.join("vgdb-pipe")
}

/// valgrind 3.19 does not know openat2, without which links cannot be confined to the directory. Under
/// it a connection takes seconds on a busy machine, so the timeouts are the longest.
fn config(root: &Path, instrument: Instrument) -> String {
    format!(
        "[limits]\nheader_timeout = \"30s\"\nidle_timeout = \"10m\"\n\
         [[site]]\n[[site.route]]\nroot = {root:?}\nfollow_symlinks = {}\n",
        instrument == Instrument::Callgrind
    )
}

fn certificate(dir: &Path) {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    fs::write(dir.join("cert.pem"), certificate.self_signed(&key).unwrap().pem()).unwrap();
    fs::write(dir.join("key.pem"), key.serialize_pem()).unwrap();
}
