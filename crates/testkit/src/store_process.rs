//! One store process.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::child::{SupervisedChild, TEST_TIMEOUT, free_port, program_path};
use crate::limited::output_within;

/// Which program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreKind {
    /// `redis-server` in `PATH`.
    Redis,
    /// `valkey-server` in `PATH`, or where `scripts/install-deps` puts it.
    Valkey,
}

/// Where it listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreListen {
    /// A unix socket in its own directory.
    Unix,
    /// A port of 127.0.0.1.
    Tcp,
    /// TLS on a port of 127.0.0.1 (and an ordinary port for [`StoreProcess::cli`]): PEM files of a
    /// certificate and its key.
    Tls {
        /// The certificate.
        certificate: PathBuf,
        /// Its key.
        key: PathBuf,
    },
}

/// What to start.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Which program.
    pub kind: StoreKind,
    /// Where it listens.
    pub listen: StoreListen,
    /// Additional settings, as in `redis.conf`: name and value.
    pub settings: Vec<(String, String)>,
    /// The offset of its clock in the notation of faketime (`+7s`); `None` for the right time.
    /// Valkey only: faketime does not work with the allocator of Debian's Redis.
    pub clock: Option<String>,
}

impl StoreOptions {
    /// Default settings, and the right time.
    pub fn new(kind: StoreKind, listen: StoreListen) -> Self {
        Self { kind, listen, settings: Vec::new(), clock: None }
    }

    /// With one more setting.
    #[must_use]
    pub fn set(mut self, name: &str, value: impl ToString) -> Self {
        self.settings.push((name.to_owned(), value.to_string()));
        self
    }

    /// With a clock that is off, in the notation of faketime (`+7s`).
    #[must_use]
    pub fn clock(mut self, offset: &str) -> Self {
        self.clock = Some(offset.to_owned());
        self
    }
}

/// A store process without persistence, killed when dropped.
pub struct StoreProcess {
    options: StoreOptions,
    directory: TempDir,
    port: u16,
    tls_port: u16,
    child: Option<SupervisedChild>,
}

impl StoreProcess {
    /// `redis-server`.
    ///
    /// # Panics
    /// As [`StoreProcess::start`].
    pub fn redis(listen: StoreListen) -> Self {
        Self::start(StoreOptions::new(StoreKind::Redis, listen))
    }

    /// `valkey-server`.
    ///
    /// # Panics
    /// As [`StoreProcess::start`].
    pub fn valkey(listen: StoreListen) -> Self {
        Self::start(StoreOptions::new(StoreKind::Valkey, listen))
    }

    /// Starts a process and waits until it responds.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(options: StoreOptions) -> Self {
        let directory = tempfile::Builder::new().prefix("ff-rig-").tempdir().expect("a directory");
        let mut process = Self { options, directory, port: 0, tls_port: 0, child: None };
        for _ in 0..5 {
            process.choose_ports();
            process.launch();
            if process.wait_ready() {
                return process;
            }
        }
        panic!("the store does not start; its log:\n{}", process.log());
    }

    /// Host and port (TLS if it was requested).
    pub fn tcp(&self) -> (String, u16) {
        let tls = matches!(self.options.listen, StoreListen::Tls { .. });
        ("127.0.0.1".to_owned(), if tls { self.tls_port } else { self.port })
    }

    /// Its unix socket, which exists with every [`StoreListen`].
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("s")
    }

    /// `redis://`, `rediss://` or `unix://`, as [`StoreListen`] says.
    pub fn url(&self) -> String {
        let (host, port) = self.tcp();
        match self.options.listen {
            StoreListen::Unix => format!("unix://{}", self.socket().display()),
            StoreListen::Tcp => format!("redis://{host}:{port}"),
            StoreListen::Tls { .. } => format!("rediss://{host}:{port}"),
        }
    }

    /// Its process id, 0 if it was killed.
    pub fn pid(&self) -> i32 {
        self.child.as_ref().map_or(0, SupervisedChild::pid)
    }

    /// Whether it runs (also if it is frozen).
    pub fn runs(&self) -> bool {
        self.child.as_ref().is_some_and(SupervisedChild::runs)
    }

    /// Freezes it (SIGSTOP): its sockets stay open, but it does not respond.
    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Continues it (SIGCONT).
    pub fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Kills it (SIGKILL).
    pub fn kill(&mut self) {
        self.child = None;
    }

    /// Kills it and starts it again at the same address. It has lost its data.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&mut self) {
        self.kill();
        self.launch();
        assert!(self.wait_ready(), "the store does not start again; its log:\n{}", self.log());
    }

    /// Runs a command with `redis-cli` and returns the trimmed reply or error.
    ///
    /// # Panics
    /// If `redis-cli` cannot be started, or gets no reply.
    pub fn cli(&self, words: &[&str]) -> String {
        self.cli_as(None, words)
    }

    /// [`StoreProcess::cli`] as the ACL user `(name, password)`.
    ///
    /// # Panics
    /// If `redis-cli` cannot be started, or gets no reply.
    pub fn cli_as(&self, user: Option<(&str, &str)>, words: &[&str]) -> String {
        let mut command = Command::new("redis-cli");
        command.arg("-s").arg(self.socket());
        if let Some((name, password)) = user {
            command.args(["--no-auth-warning", "--user", name, "--pass", password]);
        }
        let output = output_within(command.args(words), TEST_TIMEOUT);
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    pub(crate) fn plain_port(&self) -> u16 {
        self.port
    }

    fn signal(&self, signal: Signal) {
        if let Some(child) = &self.child {
            child.signal(signal);
        }
    }

    fn choose_ports(&mut self) {
        match self.options.listen {
            StoreListen::Unix => {}
            StoreListen::Tcp => self.port = free_port(),
            StoreListen::Tls { .. } => (self.port, self.tls_port) = (free_port(), free_port()),
        }
    }

    fn launch(&mut self) {
        self.child = None;
        let _ = fs::remove_file(self.socket());
        let mut command = self.options.clock.as_deref().map(faketime_prefix).unwrap_or_default();
        command.push(program(self.options.kind));
        command.extend(self.arguments());
        self.child = Some(SupervisedChild::start(&command));
    }

    fn arguments(&self) -> Vec<String> {
        let path = |name: &str| self.directory.path().join(name).display().to_string();
        let mut settings = vec![
            ("port".to_owned(), self.port.to_string()),
            ("bind".to_owned(), "127.0.0.1".to_owned()),
            ("unixsocket".to_owned(), path("s")),
            ("dir".to_owned(), path("")),
            ("logfile".to_owned(), path("log")),
            ("save".to_owned(), String::new()),
            ("appendonly".to_owned(), "no".to_owned()),
            ("repl-diskless-sync-delay".to_owned(), "0".to_owned()),
            ("repl-ping-replica-period".to_owned(), "1".to_owned()),
        ];
        if let StoreListen::Tls { certificate, key } = &self.options.listen {
            settings.extend([
                ("tls-port".to_owned(), self.tls_port.to_string()),
                ("tls-cert-file".to_owned(), certificate.display().to_string()),
                ("tls-key-file".to_owned(), key.display().to_string()),
                ("tls-auth-clients".to_owned(), "no".to_owned()),
            ]);
        }
        settings.extend(self.options.settings.iter().cloned());
        settings.into_iter().flat_map(|(name, value)| argument(&name, &value)).collect()
    }

    /// Whether it responded within 30 seconds, even with an error.
    fn wait_ready(&self) -> bool {
        let end = Instant::now() + Duration::from_secs(30);
        while self.runs() && Instant::now() < end {
            let response = self.cli(&["ping"]);
            if response.contains("PONG")
                || response.contains("NOAUTH")
                || response.contains("NOPERM")
            {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }
}

/// The library of faketime. The command `faketime` would be the parent of the program, and fails if
/// an earlier process with the same pid has left its semaphore behind.
///
/// # Panics
/// If it is not installed.
pub fn faketime_library() -> PathBuf {
    let found = fs::read_dir("/usr/lib").expect("/usr/lib").flatten().find_map(|entry| {
        let library = entry.path().join("faketime/libfaketimeMT.so.1");
        library.is_file().then_some(library)
    });
    found.expect("faketime is not installed; run `make deps-test`")
}

/// The start of a command that shifts the wall clock of a program. The monotonic clock is
/// unchanged, because timers are not under test.
fn faketime_prefix(offset: &str) -> Vec<String> {
    vec![
        "env".to_owned(),
        format!("LD_PRELOAD={}", faketime_library().display()),
        format!("FAKETIME={offset}"),
        "DONT_FAKE_MONOTONIC=1".to_owned(),
    ]
}

/// `--name value ...`: a value of several words is several arguments, an empty one is one.
fn argument(name: &str, value: &str) -> Vec<String> {
    let mut words = vec![format!("--{name}")];
    match value {
        "" => words.push(String::new()),
        _ => words.extend(value.split(' ').map(ToOwned::to_owned)),
    }
    words
}

fn program(kind: StoreKind) -> String {
    let name = match kind {
        StoreKind::Redis => "redis-server",
        StoreKind::Valkey => "valkey-server",
    };
    program_path(name).display().to_string()
}
