//! A cluster with a store, on which a scenario runs.

use std::process::Command;
use std::time::Duration;

use firstflight_testkit::{
    MASTER_NAME, Sentinels, StoreListen, StoreProcess, TEST_TIMEOUT, output_within,
};

use crate::cluster::{ALL, Cluster, NODES};
use crate::evaluation::{Row, evaluate};
use crate::kind::{Kind, Settings};
use crate::link::Link;
use crate::plan::Plan;
use crate::run::Run;

/// The offsets of the nodes' clocks, in the format of faketime.
pub(crate) type Clocks = [Option<&'static str>; NODES];

/// The settings of a scenario's cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    /// How far a ticket's age may be off.
    pub(crate) freshness: Duration,
    /// How far a clock may be off.
    pub(crate) clock_margin: Duration,
    /// The nodes' clocks.
    pub(crate) clocks: Clocks,
    /// The nodes that accept early data; a scenario waits until they do.
    pub(crate) early_data_nodes: &'static [usize],
    /// Further settings of `[tickets]`.
    pub(crate) tickets: &'static str,
}

impl Setup {
    /// The defaults of the product: a recording window of 47 s, or 52 s with sentinels.
    pub(crate) const DEFAULT: Self = Self {
        freshness: Duration::from_secs(10),
        clock_margin: Duration::from_secs(6),
        clocks: [None; NODES],
        early_data_nodes: &ALL,
        tickets: "",
    };

    /// The same freshness, with a recording window that is 20 s shorter.
    pub(crate) const TIGHT: Self = Self { clock_margin: Duration::from_secs(1), ..Self::DEFAULT };

    /// [`Self::DEFAULT`] in an extended run, otherwise [`Self::TIGHT`].
    pub(crate) fn of(plan: &Plan) -> Self {
        if plan.extended { Self::DEFAULT } else { Self::TIGHT }
    }
}

/// Three nodes, and a store that each of them reaches over a separate link.
pub(crate) struct Stage {
    /// The nodes.
    pub(crate) cluster: Cluster,
    /// The requests, the copies and their counts.
    pub(crate) run: Run,
    /// The link from each node to the store. Empty if the store announces the addresses of its
    /// masters.
    pub(crate) links: Vec<Link>,
    /// The store.
    pub(crate) store: Store,
}

/// The store's processes.
pub(crate) enum Store {
    /// A single process.
    Single(StoreProcess),
    /// A master, a replica and three sentinels.
    Sentinels(Sentinels),
    /// Three masters in cluster mode.
    Sharded(firstflight_testkit::Cluster),
}

impl Stage {
    /// One store process. Returns when the nodes accept early data.
    pub(crate) fn single(name: &'static str, plan: &Plan, setup: &Setup) -> Self {
        let store = StoreProcess::redis(StoreListen::Tcp);
        let links: Vec<_> = ALL.iter().map(|_| Link::to(store.tcp().1)).collect();
        let url = |node: usize| format!("url = \"redis://127.0.0.1:{}\"\n", links[node].port());
        let (cluster, run) = start(name, plan, setup, url);
        Self { run, cluster, links, store: Store::Single(store) }
    }

    /// A master and a replica, watched by sentinels; `more` is for the section `[store]`.
    pub(crate) fn sentinels(name: &'static str, plan: &Plan, more: &str) -> Self {
        let store = Sentinels::start();
        // On a machine that is busy with tests, a slow master must not seem to be down.
        tell_sentinels(&store, "down-after-milliseconds", 3000);
        let urls = urls(&store.addresses());
        let url = format!("{urls}mode = \"sentinel\"\nmaster = \"{MASTER_NAME}\"\n{more}");
        let (cluster, run) = start(name, plan, &Setup::of(plan), |_| url.clone());
        Self { run, cluster, links: Vec::new(), store: Store::Sentinels(store) }
    }

    /// Three masters, with a third of the claims each.
    pub(crate) fn sharded(name: &'static str, plan: &Plan) -> Self {
        let store = firstflight_testkit::Cluster::start(firstflight_testkit::StoreKind::Redis);
        let url = format!("{}mode = \"cluster\"\n", urls(&store.addresses()));
        let (cluster, run) = start(name, plan, &Setup::of(plan), |_| url.clone());
        Self { run, cluster, links: Vec::new(), store: Store::Sharded(store) }
    }

    /// The store, or the first master.
    pub(crate) fn process(&mut self) -> &mut StoreProcess {
        match &mut self.store {
            Store::Single(process) => process,
            Store::Sentinels(sentinels) => &mut sentinels.stores[0],
            Store::Sharded(cluster) => &mut cluster.masters[0],
        }
    }

    /// Sends the remaining copies, and evaluates the run. One of these reasons has to be in the
    /// logs: otherwise the fault had no effect, and the scenario proves nothing.
    pub(crate) fn end(self, reasons: &[&str]) -> Row {
        self.run.remaining_copies();
        let stderr = self.cluster.stderr();
        let (log, complete_logs) = self.cluster.stop();
        let mut row = evaluate(&self.run, &log, complete_logs);
        let found =
            reasons.iter().any(|reason| row.reasons.keys().any(|logged| logged.ends_with(reason)));
        if !found && !reasons.is_empty() {
            row.faults.push(format!("none of {reasons:?} came about: {:?}", row.reasons));
        }
        if !row.faults.is_empty() {
            row.faults.push(stderr);
        }
        row
    }
}

/// Changes a setting of all sentinels.
pub(crate) fn tell_sentinels(store: &Sentinels, setting: &str, value: u32) {
    for (_, port) in store.addresses() {
        let mut command = Command::new("redis-cli");
        command.args(["-p", &port.to_string(), "sentinel", "set", MASTER_NAME, setting]);
        let output = output_within(command.arg(value.to_string()), TEST_TIMEOUT);
        assert!(output.stdout.starts_with(b"OK"), "the sentinel takes {setting}");
    }
}

/// Starts a cluster of our server with a shared register, and waits until it accepts early data.
fn start(
    name: &'static str,
    plan: &Plan,
    setup: &Setup,
    url: impl Fn(usize) -> String,
) -> (Cluster, Run) {
    let settings = |node| Settings {
        freshness: setup.freshness,
        clock_margin: setup.clock_margin,
        budget: plan.budget,
        store: url(node),
        tickets: setup.tickets,
        early_data: true,
    };
    let cluster = Cluster::start(Kind::Shared, setup.clocks, settings);
    cluster.warm_up(EARLY_DATA_TIMEOUT, setup.early_data_nodes);
    let run = Run::new(&cluster.clients, name, plan.copies);
    (cluster, run)
}

fn urls(addresses: &[(String, u16)]) -> String {
    let urls: Vec<_> =
        addresses.iter().map(|(host, port)| format!("\"redis://{host}:{port}\"")).collect();
    format!("url = [{}]\n", urls.join(", "))
}

/// How long nodes may refuse early data: longer than a recording window, on a busy machine.
pub(crate) const EARLY_DATA_TIMEOUT: Duration = Duration::from_secs(120);
