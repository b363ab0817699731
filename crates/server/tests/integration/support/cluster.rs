//! Nodes that share a real store and their ticket keys.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use firstflight_config::{Content, KeySource, ServerConfig};
use firstflight_store::StoreConfig;
use firstflight_testkit::{StoreListen, StoreProcess, Upstream};
use firstflight_tickets::{KeyFile, Schedule, UnixTime};
use firstflight_tls::{EarlyData, Session};
use tokio::net::TcpStream;

use super::{
    Client, PREFACE, RunningServer, TEST_TIMEOUT, get, http2_request, replay, store_config,
};

/// A store and the settings that its nodes share.
pub(crate) struct Cluster {
    pub(crate) store: StoreProcess,
    config: StoreConfig,
    dir: Arc<tempfile::TempDir>,
}

impl Cluster {
    pub(crate) fn new() -> Self {
        let store = StoreProcess::redis(StoreListen::Unix);
        let config = store_config(&store);
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let now = UnixTime::from(std::time::SystemTime::now());
        KeyFile::new(dir.path().join("keys")).write_new(Schedule::default(), now).unwrap();
        Self { store, config, dir }
    }

    pub(crate) fn budget(mut self, budget: Duration) -> Self {
        self.config.budget = budget;
        self
    }

    pub(crate) async fn node(&self, upstream: &Upstream) -> RunningServer {
        self.start(Content::upstream(&upstream.url()).unwrap(), |_| {}).await
    }

    pub(crate) async fn start(
        &self,
        content: Content,
        change: impl FnOnce(&mut ServerConfig),
    ) -> RunningServer {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let keys = self.dir.path().join("keys");
        RunningServer::start(dir, content, |config| {
            config.store = Some(self.config.clone());
            config.tickets.keys = KeySource::File(keys);
            change(config);
        })
        .await
    }

    /// Waits until the node executes early requests, in a store that has recorded for a day.
    pub(crate) async fn wait_for_early_data(&self, node: &RunningServer, alpn: &str) {
        let end = Instant::now() + TEST_TIMEOUT;
        loop {
            self.age_epoch();
            let sessions = node.sessions_of("localhost", alpn).await;
            if let Some(session) = sessions.iter().find(|session| session.early_data_capable())
                && early_data(node, session, alpn).await == EarlyData::Accepted
            {
                return;
            }
            assert!(Instant::now() < end, "the node executes no early requests");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Makes the store's epoch a day older, if there is one: its age follows from the remaining
    /// lifetime of its record.
    pub(crate) fn age_epoch(&self) {
        if let Some(lifetime) = self.epoch_lifetime() {
            self.store.cli(&["PEXPIRE", EPOCH, &(lifetime - DAY.as_millis()).to_string()]);
        }
    }

    /// All keys in the store.
    pub(crate) fn keys(&self) -> HashSet<String> {
        self.store.cli(&["KEYS", "*"]).lines().map(str::to_owned).collect()
    }

    /// The remaining lifetime of the flight's record that lives longest.
    pub(crate) fn longest_record(&self) -> Duration {
        let script = "local longest = 0 for _, key in ipairs(redis.call('KEYS', KEYS[1])) do \
                      longest = math.max(longest, redis.call('PTTL', key)) end return longest";
        let longest = self.store.cli(&["EVAL", script, "1", "firstflight:c:*"]);
        Duration::from_millis(longest.parse().unwrap())
    }

    /// The remaining lifetime of the epoch's record, in milliseconds.
    pub(crate) fn epoch_lifetime(&self) -> Option<u128> {
        self.store.cli(&["PTTL", EPOCH]).parse().ok()
    }
}

const EPOCH: &str = "firstflight:epoch";
const DAY: Duration = Duration::from_secs(86_400);

/// The outcome of the early data of one request for `/probe`.
pub(crate) async fn early_data(node: &RunningServer, session: &Session, alpn: &str) -> EarlyData {
    let mut client = Client::prepare(alpn, Some(session), &request(alpn, "/probe"));
    let mut tcp = TcpStream::connect(node.address).await.unwrap();
    client.handshake(&mut tcp).await;
    client.machine.facts().early_data
}

/// Sends early requests until the node accepts one: on a machine that stalls, a claim may exceed
/// the store's budget. Each has a session and a target of its own, which starts with `prefix`.
/// Returns the accepted request's target and its client, which has completed the handshake.
pub(crate) async fn send_accepted(
    node: &RunningServer,
    alpn: &str,
    prefix: &str,
    request: impl Fn(&str) -> Vec<u8>,
) -> (String, Client, TcpStream) {
    let end = Instant::now() + TEST_TIMEOUT;
    let mut attempt = 0;
    loop {
        let target = format!("{prefix}{attempt}.");
        let session = node.session(alpn).await;
        let mut client = Client::prepare(alpn, Some(&session), &request(&target));
        let mut tcp = TcpStream::connect(node.address).await.unwrap();
        client.handshake(&mut tcp).await;
        let facts = client.machine.facts();
        if facts.early_data == EarlyData::Accepted {
            return (target, client, tcp);
        }
        assert!(Instant::now() < end, "the node accepts no early data: {facts:?}");
        attempt += 1;
    }
}

/// Sends a claimed flight again until the node knows that the claim is lost: on a machine that
/// stalls, a claim may exceed the store's budget, and the copy is refused.
pub(crate) async fn replay_until_lost(node: &RunningServer, flight: &[u8]) -> TcpStream {
    let lost = || node.handle.metrics().sum("firstflight_claims_total", &[("result", "lost")]);
    let (before, end) = (lost(), Instant::now() + TEST_TIMEOUT);
    loop {
        let copy = replay(node.address, flight).await;
        if lost() > before {
            return copy;
        }
        assert!(Instant::now() < end, "no copy's claim is lost");
    }
}

pub(crate) fn request(alpn: &str, target: &str) -> Vec<u8> {
    match alpn {
        "h2" => [PREFACE, &http2_request(1, "GET", target)].concat(),
        "ping-pong" => b"PING".to_vec(),
        _ => get(target),
    }
}
