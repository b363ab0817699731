//! Two servers whose ticket keys and single-use sessions are in a real store.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use firstflight_config::{Content, KeySource, TicketSettings};
use firstflight_store::ring::SharedRing;
use firstflight_store::{Store, StoreConfig};
use firstflight_testkit::{StoreListen, StoreProcess, Upstream, skipped_without};
use firstflight_tickets::{KeyEncryption, KeyState, Schedule};
use firstflight_tls::{EarlyData, Handshake, Session, SteadyClock};
use tokio::net::TcpStream;

use crate::support::{
    Client, RunningServer, TEST_TIMEOUT, executions, get, line, replay, start_upstream,
    store_config,
};

struct Cluster {
    store: StoreProcess,
    config: StoreConfig,
    dir: Arc<tempfile::TempDir>,
}

impl Cluster {
    fn new() -> Self {
        let store = StoreProcess::redis(StoreListen::Unix);
        let config = store_config(&store);
        let cluster = Self { store, config, dir: Arc::new(tempfile::tempdir().unwrap()) };
        std::fs::write(cluster.key_encryption(), "0123456789abcdef".repeat(4)).unwrap();
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(cluster.key_encryption(), mode).unwrap();
        cluster
    }

    fn key_encryption(&self) -> PathBuf {
        self.dir.path().join("kek")
    }

    /// Two nodes that issue single-use tickets, once early data is accepted between them.
    async fn single_use_nodes(&self, upstream: &Upstream) -> (RunningServer, RunningServer) {
        let single_use = |tickets: &mut TicketSettings| tickets.single_use = true;
        let nodes = (self.node(upstream, single_use).await, self.node(upstream, single_use).await);
        self.until(&nodes.0, &nodes.1, accepted).await;
        nodes
    }

    async fn node(
        &self,
        upstream: &Upstream,
        change: impl FnOnce(&mut TicketSettings),
    ) -> RunningServer {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        RunningServer::start(dir, Content::upstream(&upstream.url()).unwrap(), |config| {
            config.store = Some(self.config.clone());
            config.tickets.keys = KeySource::Store {
                key_encryption: self.key_encryption(),
                schedule: Schedule::default(),
            };
            change(&mut config.tickets);
        })
        .await
    }

    /// Waits until resuming a session of `from` at `to` has the expected outcome.
    async fn until(
        &self,
        from: &RunningServer,
        to: &RunningServer,
        expected: impl Fn(&Handshake) -> bool,
    ) {
        let end = Instant::now() + TEST_TIMEOUT;
        loop {
            self.age_epoch();
            let session = from.sessions_of("localhost", "http/1.1").await.remove(0);
            tokio::time::sleep(Duration::from_millis(100)).await;
            let facts = facts(to, &session).await;
            if expected(&facts) {
                return;
            }
            assert!(Instant::now() < end, "{facts:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Makes the store's epoch a day older, so that claims count immediately.
    fn age_epoch(&self) {
        if let Ok(lifetime) = self.store.cli(&["PTTL", EPOCH]).parse::<u64>() {
            self.store.cli(&["PEXPIRE", EPOCH, &(lifetime - 86_400_000).to_string()]);
        }
    }
}

async fn facts(node: &RunningServer, session: &Session) -> Handshake {
    let mut client = Client::prepare("http/1.1", Some(session), &get("/probe"));
    let mut tcp = TcpStream::connect(node.address).await.unwrap();
    client.handshake(&mut tcp).await;
    client.machine.facts()
}

fn accepted(facts: &Handshake) -> bool {
    facts.early_data == EarlyData::Accepted
}

const EPOCH: &str = "firstflight:epoch";

#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_one_node_runs_early_on_another() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let upstream = start_upstream();
    let cluster = Cluster::new();
    let a = cluster.node(&upstream, |tickets| tickets.node = Some("a".to_owned())).await;
    let b = cluster.node(&upstream, |tickets| tickets.node = Some("b".to_owned())).await;
    cluster.until(&a, &b, accepted).await;
    cluster.until(&b, &a, accepted).await;

    // The status that each node reports, with the last use of its keys.
    let store = Store::open(cluster.config.clone(), SteadyClock::unix_micros).unwrap();
    let keys = KeyEncryption::open(cluster.key_encryption()).unwrap();
    let ring = SharedRing::new(store, keys, Schedule::default());
    let end = Instant::now() + TEST_TIMEOUT;
    let nodes = loop {
        let nodes = ring.nodes().await.unwrap_or_default();
        let used = |key: &firstflight_tickets::KeyStatus| key.last_opened.is_some();
        if nodes.iter().filter(|node| node.keys.iter().any(used)).count() == 2 {
            break nodes;
        }
        assert!(Instant::now() < end, "{nodes:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert_eq!(nodes[0].node, "a");
    assert_eq!(nodes[1].node, "b");
    let names = |at: usize| nodes[at].keys.iter().map(|key| &key.name).collect::<Vec<_>>();
    assert_eq!(names(0), names(1));
    assert!(nodes[0].keys.iter().any(|key| key.state == KeyState::Next));
}

#[tokio::test(flavor = "multi_thread")]
async fn early_data_is_accepted_only_in_the_zone_that_issued_the_ticket() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let upstream = start_upstream();
    let cluster = Cluster::new();
    let west = cluster.node(&upstream, |tickets| tickets.zone = Some("west".to_owned())).await;
    let east = cluster.node(&upstream, |tickets| tickets.zone = Some("east".to_owned())).await;
    cluster.until(&west, &west, accepted).await;
    let session = west.session("http/1.1").await;
    let mut client = Client::prepare("http/1.1", Some(&session), &get("/other"));
    let mut tcp = TcpStream::connect(east.address).await.unwrap();
    client.handshake(&mut tcp).await;
    let facts = client.machine.facts();
    assert!(facts.resumed && facts.early_data != EarlyData::Accepted, "{facts:?}");
    client.write(&get("/other"));
    client.send(&mut tcp).await;
    client.finish(&mut tcp).await;
    let lines = east.stop().await;
    assert_eq!(line(&lines, "/other")["early_data"], "zone", "{lines:?}");
    assert_eq!(upstream.recorded("/other").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_use_ticket_works_for_one_connection_on_any_node() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let upstream = start_upstream();
    let cluster = Cluster::new();
    let (a, b) = cluster.single_use_nodes(&upstream).await;

    let end = Instant::now() + TEST_TIMEOUT;
    let mut accepted_target = String::new();
    for attempt in 0.. {
        let target = format!("/once.{attempt}.");
        let session = a.session("http/1.1").await;
        let mut client = Client::prepare("http/1.1", Some(&session), &get(&target));
        let flight = client.flight.clone();
        let mut tcp = TcpStream::connect(b.address).await.unwrap();
        client.handshake(&mut tcp).await;
        assert!(Instant::now() < end, "{:?}", client.machine.facts());
        // A ticket that is offered before the store has its session costs a full handshake.
        if !accepted(&client.machine.facts()) {
            continue;
        }
        client.finish(&mut tcp).await;
        // Copies find nothing to resume, and neither does the client.
        for node in [&a, &b, &a] {
            drop(replay(node.address, &flight).await);
        }
        let again = facts(&a, &session).await;
        assert!(!again.resumed, "{again:?}");
        accepted_target = target;
        break;
    }
    let (a, b) = (a.stop().await, b.stop().await);
    assert_eq!((executions(&a, &accepted_target), executions(&b, &accepted_target)), (0, 1));
    assert_eq!(upstream.recorded(&accepted_target).len(), 1);
}

/// The original cannot resume: the copy has its ticket. Its client sends the request again.
#[tokio::test(flavor = "multi_thread")]
async fn rfc8470_5_2_an_original_whose_single_use_ticket_a_copy_has_taken_gets_425() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let upstream = start_upstream();
    let cluster = Cluster::new();
    let (a, b) = cluster.single_use_nodes(&upstream).await;
    let end = Instant::now() + TEST_TIMEOUT;
    for attempt in 0.. {
        assert!(Instant::now() < end, "no copy was accepted");
        let target = format!("/taken.{attempt}.");
        let session = a.session("http/1.1").await;
        let client = Client::prepare("http/1.1", Some(&session), &get(&target));
        let copy = replay(b.address, &client.flight).await;
        // The copy does not run if it arrives before the store has the ticket.
        let ran = tokio::time::timeout(Duration::from_secs(2), upstream.wait_for(&target)).await;
        if ran.is_err() {
            continue;
        }
        let response = client.run(a.address).await;
        assert!(response.starts_with("HTTP/1.1 425"), "{response}");
        drop(copy);
        let (a, b) = (a.stop().await, b.stop().await);
        assert_eq!((executions(&a, &target), executions(&b, &target)), (0, 1));
        assert_eq!(upstream.recorded(&target).len(), 1);
        return;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn at_most_one_of_the_racing_copies_of_a_single_use_flight_runs() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let upstream = start_upstream();
    let cluster = Cluster::new();
    let (a, b) = cluster.single_use_nodes(&upstream).await;
    let end = Instant::now() + TEST_TIMEOUT;
    let mut targets = Vec::new();
    let mut raced = 0;
    while raced < 5 {
        assert!(Instant::now() < end, "{raced} flights were accepted");
        let target = format!("/race.{}.", targets.len());
        let session = a.session("http/1.1").await;
        let flight = Client::prepare("http/1.1", Some(&session), &get(&target)).flight;
        let open = tokio::join!(
            replay(a.address, &flight),
            replay(b.address, &flight),
            replay(a.address, &flight),
            replay(b.address, &flight),
        );
        // No copy runs if all arrive before the store has the ticket.
        let ran = tokio::time::timeout(Duration::from_secs(2), upstream.wait_for(&target)).await;
        raced += usize::from(ran.is_ok());
        targets.push(target);
        drop(open);
    }
    drop((a.stop().await, b.stop().await));
    for target in targets {
        assert!(upstream.recorded(&target).len() <= 1, "{target}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_start_without_the_store_get_its_keys_later() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let upstream = start_upstream();
    let mut cluster = Cluster::new();
    cluster.store.kill();
    let (a, b) = (cluster.node(&upstream, |_| {}).await, cluster.node(&upstream, |_| {}).await);
    // Each node serves with its own keys.
    let own = a.sessions_of("localhost", "http/1.1").await.remove(0);
    assert!(facts(&a, &own).await.resumed);
    assert!(!facts(&b, &own).await.resumed);
    cluster.store.restart();
    cluster.until(&a, &b, |facts| facts.resumed).await;
    cluster.until(&b, &a, accepted).await;
    // The node still opens tickets that it issued before.
    assert!(facts(&a, &own).await.resumed);
}
