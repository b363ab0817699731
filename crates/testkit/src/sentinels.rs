//! A master, a replica, and three sentinels.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::keeper::Keeper;
use crate::ports::free_port;
use crate::process::{Kind, Listen, Plan, Process};

/// What the sentinels call the master.
pub const MASTER_NAME: &str = "mymaster";

/// A master with one replica, watched by three sentinels (quorum 2, down after 500 ms). Killed when
/// dropped.
pub struct Sentinels {
    /// The processes, the first master first.
    pub stores: Vec<Process>,
    sentinels: Vec<Sentinel>,
}

struct Sentinel {
    port: u16,
    keeper: Keeper,
    _directory: TempDir,
}

impl Sentinels {
    /// Starts them all; returns when the replica is in step and each sentinel knows the others.
    ///
    /// # Panics
    /// If that does not come about within a minute.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same, with settings for both stores.
    ///
    /// # Panics
    /// As [`Sentinels::start`].
    pub fn start_with(settings: &[(&str, &str)]) -> Self {
        let plan = || {
            let plan = Plan::new(Kind::Redis, Listen::Tcp);
            settings.iter().fold(plan, |plan, (name, value)| plan.set(name, value))
        };
        let master = Process::start(plan());
        let replicaof = format!("127.0.0.1 {}", master.plain_port());
        let replica = Process::start(plan().set("replicaof", replicaof));
        until("the replica is in step", || {
            replica.ask(&["info", "replication"]).contains("master_link_status:up")
        });
        let sentinels = (0..3).map(|_| Sentinel::start(master.plain_port())).collect();
        let all = Self { stores: vec![master, replica], sentinels };
        until("the sentinels know each other", || {
            all.sentinels.iter().all(|one| {
                let seen = one.ask(&["sentinel", "master", MASTER_NAME]);
                field(&seen, "num-other-sentinels") == Some("2")
                    && field(&seen, "num-slaves") == Some("1")
            })
        });
        all
    }

    /// Where the sentinels listen.
    pub fn addresses(&self) -> Vec<(String, u16)> {
        self.sentinels.iter().map(|one| ("127.0.0.1".to_owned(), one.port)).collect()
    }

    /// The port of the master, by the first sentinel's word.
    pub fn master_port(&self) -> Option<u16> {
        let said = self.sentinels[0].ask(&["sentinel", "get-master-addr-by-name", MASTER_NAME]);
        said.lines().nth(1)?.trim().parse().ok()
    }

    /// Stops all sentinels where they are (SIGSTOP).
    pub fn freeze_sentinels(&self) {
        self.sentinels.iter().for_each(|one| one.keeper.signal(Signal::SIGSTOP));
    }

    /// Lets them go on.
    pub fn thaw_sentinels(&self) {
        self.sentinels.iter().for_each(|one| one.keeper.signal(Signal::SIGCONT));
    }

    /// Waits until the first sentinel names the process `index` as master.
    ///
    /// # Panics
    /// After a minute.
    pub fn wait_for_master(&self, index: usize) {
        let port = self.stores[index].plain_port();
        until("the failover is done", || self.master_port() == Some(port));
    }
}

impl Sentinel {
    /// A port that was free a moment ago may be taken, so it is tried again with another.
    fn start(master: u16) -> Self {
        for _ in 0..5 {
            let sentinel = Self::launch(master);
            let end = Instant::now() + Duration::from_secs(5);
            while sentinel.keeper.runs() && Instant::now() < end {
                if sentinel.ask(&["ping"]).contains("PONG") {
                    return sentinel;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        panic!("a sentinel does not start")
    }

    fn launch(master: u16) -> Self {
        let directory = tempfile::Builder::new().prefix("ff-sen-").tempdir().expect("a directory");
        let port = free_port();
        let path = directory.path().join("sentinel.conf");
        let settings = format!(
            "port {port}\nbind 127.0.0.1\ndir {dir}\nlogfile {dir}/log\n\
             sentinel monitor {MASTER_NAME} 127.0.0.1 {master} 2\n\
             sentinel down-after-milliseconds {MASTER_NAME} 500\n\
             sentinel failover-timeout {MASTER_NAME} 3000\n",
            dir = directory.path().display()
        );
        fs::write(&path, settings).expect("write the sentinel's settings");
        let keeper = Keeper::start(&["redis-sentinel".to_owned(), path.display().to_string()]);
        Self { port, keeper, _directory: directory }
    }

    fn ask(&self, words: &[&str]) -> String {
        let output = std::process::Command::new("redis-cli")
            .args(["-p", &self.port.to_string()])
            .args(words)
            .output()
            .expect("redis-cli (install-deps) can be started");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// The value on the line below the name, as redis-cli prints maps.
fn field<'a>(said: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = said.lines();
    lines.find(|line| *line == name)?;
    lines.next()
}

/// Waits at most a minute: machines that run tests are busy.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "a minute passed, and not yet: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
