//! A cluster of three masters, and replicas if they are wanted.

use crate::ports::free_port;
use crate::process::{Kind, Listen, Plan, Process};
use crate::sentinels::until;

/// The slots of a cluster, and how many masters share them here.
const SLOTS: u32 = 16_384;
const MASTERS: u32 = 3;

/// Three masters, without replicas at first, killed when dropped.
pub struct Cluster {
    /// The masters, in the order of their slots.
    pub masters: Vec<Process>,
    /// What [`Cluster::add_replica`] added.
    pub replicas: Vec<Process>,
}

impl Cluster {
    /// Starts them; returns when each of them calls the cluster whole.
    ///
    /// # Panics
    /// If that does not come about within a minute.
    pub fn start(kind: Kind) -> Self {
        let masters: Vec<_> = (0..MASTERS).map(|_| Process::start(plan(kind))).collect();
        for (index, master) in (0..MASTERS).zip(&masters) {
            let first = index * SLOTS / MASTERS;
            let last = (index + 1) * SLOTS / MASTERS - 1;
            let epoch = (index + 1).to_string();
            master.ask(&["cluster", "set-config-epoch", &epoch]);
            master.ask(&["cluster", "addslotsrange", &first.to_string(), &last.to_string()]);
        }
        masters[1..].iter().for_each(|other| meet(&masters[0], other));
        until("the cluster is whole", || {
            masters.iter().all(|one| {
                let said = one.ask(&["cluster", "info"]);
                said.contains("cluster_state:ok") && said.contains("cluster_size:3")
            })
        });
        Self { masters, replicas: Vec::new() }
    }

    /// Gives a master a replica, which takes its place when it dies.
    ///
    /// # Panics
    /// If that does not come about within 20 s.
    pub fn add_replica(&mut self, kind: Kind, of: usize) {
        let replica = Process::start(plan(kind));
        let id = self.masters[of].ask(&["cluster", "myid"]);
        meet(&self.masters[of], &replica);
        until("the replica has heard of its master", || {
            replica.ask(&["cluster", "replicate", &id]) == "OK"
        });
        until("the replica is in step, and all know of it", || {
            let id = replica.ask(&["cluster", "myid"]);
            let known = |one: &Process| one.ask(&["cluster", "nodes"]).contains(&id);
            replica.ask(&["info", "replication"]).contains("master_link_status:up")
                && self.masters.iter().all(known)
        });
        self.replicas.push(replica);
    }

    /// Where the masters listen.
    pub fn addresses(&self) -> Vec<(String, u16)> {
        self.masters.iter().map(Process::tcp).collect()
    }

    /// Moves an empty slot from one master to another, by their indices.
    ///
    /// # Panics
    /// If a master refuses, as the old one does if the slot holds a key.
    pub fn move_slot(&self, slot: u16, from: usize, to: usize) {
        let [old, new] = [from, to].map(|index| self.masters[index].ask(&["cluster", "myid"]));
        let slot = slot.to_string();
        let set = |index: usize, words: &[&str]| {
            let command = [&["cluster", "setslot", &slot], words].concat();
            assert_eq!(self.masters[index].ask(&command), "OK", "moving slot {slot}");
        };
        // One that imports takes a configuration epoch above all others with the slot. Otherwise
        // the old owner's next message could take the slot back, and nobody would serve it.
        set(to, &["importing", &old]);
        set(from, &["migrating", &new]);
        set(to, &["node", &new]);
        (0..self.masters.len()).filter(|index| *index != to).for_each(|index| {
            set(index, &["node", &new]);
        });
    }
}

fn meet(one: &Process, other: &Process) {
    let bus = setting(other, "cluster-port");
    one.ask(&["cluster", "meet", "127.0.0.1", &other.plain_port().to_string(), &bus]);
}

fn plan(kind: Kind) -> Plan {
    Plan::new(kind, Listen::Tcp)
        .set("cluster-enabled", "yes")
        .set("cluster-port", free_port())
        .set("cluster-node-timeout", "2000")
}

/// `CONFIG GET` answers name and value on a line each.
fn setting(process: &Process, name: &str) -> String {
    process.ask(&["config", "get", name]).lines().nth(1).unwrap_or_default().to_owned()
}
