//! Servers with an application behind them, and a store that some of them share.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use firstflight_testkit::{StoreListen, StoreProcess, TEST_TIMEOUT, output_within};
use firstflight_tls::EarlyData;
use tempfile::TempDir;

use crate::application::Application;
use crate::client::{Client, Transport};
use crate::server::{PROGRAM, Server};
use crate::settings::{Keys, Settings, Store};

/// Which servers a case runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Servers {
    /// One process with the default keys: a separate key for each ticket.
    OnePunctured,
    /// One process with ticket keys for all its tickets.
    One,
    /// One process with a key file.
    OneWithKeyFile,
    /// One process with a store.
    OneWithStore,
    /// Nodes that share a store with the ticket keys.
    NodesByStore(usize),
    /// Nodes that share a store and a key file.
    NodesByFile(usize),
}

impl Servers {
    /// The name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OnePunctured => "one, punctured",
            Self::One => "one, process",
            Self::OneWithKeyFile => "one, key file",
            Self::OneWithStore => "one, store",
            Self::NodesByStore(_) => "three, store",
            Self::NodesByFile(_) => "three, key file",
        }
    }

    fn count(self) -> usize {
        match self {
            Self::NodesByStore(count) | Self::NodesByFile(count) => count,
            _ => 1,
        }
    }

    /// Whether they share a store.
    pub(crate) fn with_store(self) -> bool {
        !matches!(self, Self::OnePunctured | Self::One | Self::OneWithKeyFile)
    }
}

/// The servers of a case. Their processes end when this is dropped.
pub(crate) struct Stage {
    nodes: Vec<Mutex<Server>>,
    /// The client that trusts them.
    pub(crate) client: Client,
    /// The application behind them.
    pub(crate) application: Application,
    _dir: TempDir,
}

impl Stage {
    /// Starts servers; with a store, they use the one that all cases share.
    pub(crate) fn start(servers: Servers) -> Self {
        Self::start_with(servers, |_| store_url(), |settings| settings)
    }

    /// Like [`Self::start`] with these settings, and with a store at the address that `url` returns
    /// for each node.
    pub(crate) fn start_with(
        servers: Servers,
        url: impl Fn(usize) -> String,
        change: impl Fn(Settings) -> Settings,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let names = ["localhost", "renamed.test"].map(str::to_owned);
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let certificate = dir.path().join("cert.pem");
        fs::write(&certificate, made.cert.pem()).unwrap();
        fs::write(dir.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        let keys = keys(servers, dir.path().join("keys"));
        let application = Application::start(servers.count());
        // Each case has its own prefix in the store.
        let prefix = dir.path().file_name().unwrap().to_string_lossy().replace('.', "");
        let node = |number: usize| {
            let store = || Store { url: url(number), prefix: prefix.clone() };
            let settings = Settings::new(keys.clone(), servers.with_store().then(store));
            let own = dir.path().join(format!("node-{number}"));
            let address = application.addresses[number];
            Mutex::new(Server::start(dir.path(), &own, address, change(settings)))
        };
        let nodes = (0..servers.count()).map(node).collect();
        Self { nodes, client: Client::new(&certificate), application, _dir: dir }
    }

    /// A node.
    pub(crate) fn node(&self, number: usize) -> MutexGuard<'_, Server> {
        self.nodes[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address of a node.
    pub(crate) fn address(&self, number: usize) -> SocketAddr {
        self.node(number).address()
    }

    /// The addresses of all nodes.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        (0..self.nodes.len()).map(|number| self.address(number)).collect()
    }

    /// Waits until all nodes accept early data, which they refuse for a while after the start of a
    /// store.
    ///
    /// # Panics
    /// If they do not.
    pub(crate) fn wait_for_early_data(&self) {
        let deadline = Instant::now() + EARLY_DATA_TIMEOUT;
        for number in 0..self.nodes.len() {
            while !self.accepts_early_data(number) {
                let stderr = || self.node(number).stderr();
                assert!(Instant::now() < deadline, "no early data at node {number}: {}", stderr());
                thread::sleep(Duration::from_millis(500));
            }
        }
    }

    fn accepts_early_data(&self, number: usize) -> bool {
        let address = self.address(number);
        let Ok(ticket) = self.client.ticket(Transport::Http1, address) else { return false };
        let result = self.client.request(Transport::Http1, address, &ticket, "/warm");
        result.early == EarlyData::Accepted
    }

    /// The access log entries of a target on all nodes, with the number of equal consecutive lines.
    pub(crate) fn log_of(&self, target: &str) -> Vec<String> {
        let mut all = Vec::new();
        for number in 0..self.nodes.len() {
            let lines = self.node(number).log_of(target);
            all.extend(
                lines
                    .chunk_by(|one, next| one == next)
                    .map(|same| format!("node {number}: {} times {}", same.len(), same[0])),
            );
        }
        all
    }
}

/// Longer than any window in which no early data is accepted.
const EARLY_DATA_TIMEOUT: Duration = Duration::from_secs(150);

fn keys(servers: Servers, file: PathBuf) -> Keys {
    let make = |verb: &str| {
        let mut command = Command::new(PROGRAM);
        let output = output_within(command.args(["keys", verb]).arg(&file), TEST_TIMEOUT);
        assert!(output.status.success(), "keys {verb}: {output:?}");
        file.clone()
    };
    match servers {
        Servers::OnePunctured => Keys::Punctured,
        Servers::One => Keys::Process,
        Servers::OneWithKeyFile | Servers::NodesByFile(_) => Keys::File(make("new")),
        Servers::OneWithStore | Servers::NodesByStore(_) => Keys::Store(make("new-encryption")),
    }
}

/// The store of all cases that leave it unchanged. It ends with this program in any case.
static STORE: Mutex<Option<StoreProcess>> = Mutex::new(None);

fn store_url() -> String {
    let mut store = STORE.lock().unwrap_or_else(PoisonError::into_inner);
    store.get_or_insert_with(|| StoreProcess::redis(StoreListen::Tcp)).url()
}

/// A stage for several cases, started by the first that needs it.
pub(crate) struct Shared {
    servers: Servers,
    stage: Mutex<Option<Arc<Stage>>>,
}

impl Shared {
    /// Creates it without starting servers.
    pub(crate) const fn new(servers: Servers) -> Self {
        Self { servers, stage: Mutex::new(None) }
    }

    /// The stage, once it accepts early data.
    pub(crate) fn get(&self) -> Arc<Stage> {
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        let started = stage.get_or_insert_with(|| {
            let stage = Stage::start(self.servers);
            stage.wait_for_early_data();
            Arc::new(stage)
        });
        started.clone()
    }

    /// Ends its processes.
    pub(crate) fn end(&self) {
        drop(self.stage.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// Ends the store that the cases share.
pub(crate) fn end_store() {
    drop(STORE.lock().unwrap_or_else(PoisonError::into_inner).take());
}
