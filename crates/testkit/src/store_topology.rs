//! Several stores together: a cluster, and a master with its replica and sentinels.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::child::{SupervisedChild, TEST_TIMEOUT, free_port};
use crate::limited::output_within;
use crate::store_process::{StoreKind, StoreListen, StoreOptions, StoreProcess};

/// The slots of a cluster, and how many masters share them here.
const SLOTS: u32 = 16_384;
const MASTERS: u32 = 3;

/// Three masters, without replicas at first, killed when dropped.
pub struct Cluster {
    /// The masters, in the order of their slots.
    pub masters: Vec<StoreProcess>,
    /// The replicas that [`Cluster::add_replica`] added.
    pub replicas: Vec<StoreProcess>,
}

impl Cluster {
    /// Starts the masters, and waits until each of them reports a complete cluster.
    ///
    /// # Panics
    /// If that takes more than a minute.
    pub fn start(kind: StoreKind) -> Self {
        let masters: Vec<_> =
            (0..MASTERS).map(|_| StoreProcess::start(cluster_options(kind))).collect();
        for (index, master) in (0..MASTERS).zip(&masters) {
            let first = index * SLOTS / MASTERS;
            let last = (index + 1) * SLOTS / MASTERS - 1;
            let epoch = (index + 1).to_string();
            master.cli(&["cluster", "set-config-epoch", &epoch]);
            master.cli(&["cluster", "addslotsrange", &first.to_string(), &last.to_string()]);
        }
        masters[1..].iter().for_each(|other| meet(&masters[0], other));
        until("the cluster is whole", || {
            masters.iter().all(|master| {
                let output = master.cli(&["cluster", "info"]);
                output.contains("cluster_state:ok") && output.contains("cluster_size:3")
            })
        });
        Self { masters, replicas: Vec::new() }
    }

    /// Gives a master a replica, which takes its place when it dies.
    ///
    /// # Panics
    /// If a step of that takes more than a minute.
    pub fn add_replica(&mut self, kind: StoreKind, of: usize) {
        let replica = StoreProcess::start(cluster_options(kind));
        let id = self.masters[of].cli(&["cluster", "myid"]);
        meet(&self.masters[of], &replica);
        until("the replica has heard of its master", || {
            replica.cli(&["cluster", "replicate", &id]) == "OK"
        });
        until("the replica is in step, and all know of it", || {
            let id = replica.cli(&["cluster", "myid"]);
            let known = |master: &StoreProcess| master.cli(&["cluster", "nodes"]).contains(&id);
            replica.cli(&["info", "replication"]).contains("master_link_status:up")
                && self.masters.iter().all(known)
        });
        self.replicas.push(replica);
    }

    /// Where the masters listen.
    pub fn addresses(&self) -> Vec<(String, u16)> {
        self.masters.iter().map(StoreProcess::tcp).collect()
    }

    /// Moves an empty slot from one master to another, by their indices.
    ///
    /// # Panics
    /// If a master refuses, as the old one does if the slot holds a key.
    pub fn move_slot(&self, slot: u16, from: usize, to: usize) {
        let [old, new] = [from, to].map(|index| self.masters[index].cli(&["cluster", "myid"]));
        let slot = slot.to_string();
        let set = |index: usize, words: &[&str]| {
            let command = [&["cluster", "setslot", &slot], words].concat();
            assert_eq!(self.masters[index].cli(&command), "OK", "moving slot {slot}");
        };
        // An importing node takes a configuration epoch above all others with the slot. Otherwise
        // the old owner's next message could take the slot back, and nobody would serve it.
        set(to, &["importing", &old]);
        set(from, &["migrating", &new]);
        set(to, &["node", &new]);
        (0..self.masters.len()).filter(|index| *index != to).for_each(|index| {
            set(index, &["node", &new]);
        });
    }
}

fn meet(one: &StoreProcess, other: &StoreProcess) {
    let bus = setting(other, "cluster-port");
    one.cli(&["cluster", "meet", "127.0.0.1", &other.plain_port().to_string(), &bus]);
}

fn cluster_options(kind: StoreKind) -> StoreOptions {
    StoreOptions::new(kind, StoreListen::Tcp)
        .set("cluster-enabled", "yes")
        .set("cluster-port", free_port())
        .set("cluster-node-timeout", "2000")
}

/// `CONFIG GET` returns name and value on one line each.
fn setting(process: &StoreProcess, name: &str) -> String {
    process.cli(&["config", "get", name]).lines().nth(1).unwrap_or_default().to_owned()
}

/// What the sentinels call the master.
pub const MASTER_NAME: &str = "mymaster";

/// A master with one replica, watched by three sentinels (quorum 2, down after 500 ms). Killed when
/// dropped.
pub struct Sentinels {
    /// The processes, the first master first.
    pub stores: Vec<StoreProcess>,
    sentinels: Vec<Sentinel>,
}

struct Sentinel {
    port: u16,
    child: SupervisedChild,
    _directory: TempDir,
}

impl Sentinels {
    /// Starts all processes, and waits until the replica is synchronized and the sentinels know
    /// each other.
    ///
    /// # Panics
    /// If that takes more than a minute.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Like [`Sentinels::start`], with settings for both stores.
    ///
    /// # Panics
    /// As [`Sentinels::start`].
    pub fn start_with(settings: &[(&str, &str)]) -> Self {
        let options = || {
            let options = StoreOptions::new(StoreKind::Redis, StoreListen::Tcp);
            settings.iter().fold(options, |options, (name, value)| options.set(name, value))
        };
        let master = StoreProcess::start(options());
        let replicaof = format!("127.0.0.1 {}", master.plain_port());
        let replica = StoreProcess::start(options().set("replicaof", replicaof));
        until("the replica is in step", || {
            replica.cli(&["info", "replication"]).contains("master_link_status:up")
        });
        let sentinels = (0..3).map(|_| Sentinel::start(master.plain_port())).collect();
        let all = Self { stores: vec![master, replica], sentinels };
        until("the sentinels know each other", || {
            all.sentinels.iter().all(|sentinel| {
                let seen = sentinel.cli(&["sentinel", "master", MASTER_NAME]);
                field(&seen, "num-other-sentinels") == Some("2")
                    && field(&seen, "num-slaves") == Some("1")
            })
        });
        all
    }

    /// Where the sentinels listen.
    pub fn addresses(&self) -> Vec<(String, u16)> {
        self.sentinels.iter().map(|sentinel| ("127.0.0.1".to_owned(), sentinel.port)).collect()
    }

    /// The port of the master, according to the first sentinel.
    pub fn master_port(&self) -> Option<u16> {
        let output = self.sentinels[0].cli(&["sentinel", "get-master-addr-by-name", MASTER_NAME]);
        output.lines().nth(1)?.trim().parse().ok()
    }

    /// Freezes all sentinels (SIGSTOP).
    pub fn freeze_sentinels(&self) {
        self.sentinels.iter().for_each(|sentinel| sentinel.child.signal(Signal::SIGSTOP));
    }

    /// Continues them (SIGCONT).
    pub fn thaw_sentinels(&self) {
        self.sentinels.iter().for_each(|sentinel| sentinel.child.signal(Signal::SIGCONT));
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
    /// Tries another port if a free one was taken in the meantime.
    fn start(master: u16) -> Self {
        for _ in 0..5 {
            let sentinel = Self::launch(master);
            let end = Instant::now() + Duration::from_secs(30);
            while sentinel.child.runs() && Instant::now() < end {
                if sentinel.cli(&["ping"]).contains("PONG") {
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
        let child =
            SupervisedChild::start(&["redis-sentinel".to_owned(), path.display().to_string()]);
        Self { port, child, _directory: directory }
    }

    fn cli(&self, words: &[&str]) -> String {
        let mut command = std::process::Command::new("redis-cli");
        command.args(["-p", &self.port.to_string()]).args(words);
        let output = output_within(&mut command, TEST_TIMEOUT);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// The value on the line below the name, as redis-cli prints maps.
fn field<'a>(output: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = output.lines();
    lines.find(|line| *line == name)?;
    lines.next()
}

/// Waits at most a minute: machines that run tests are busy.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
