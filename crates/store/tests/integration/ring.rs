//! Ticket keys through a real store.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use firstflight_store::ring::{NodeStatus, SharedRing, SharedRingError};
use firstflight_testkit::{StoreListen, StoreProcess, TEST_TIMEOUT};
use firstflight_tickets::{KeyEncryption, Ring, Schedule, TicketKeys, UnixTime};
use libtest_mimic::Trial;
use tempfile::TempDir;

use crate::support::{at_socket, config, open};

/// All tests of this module.
pub(crate) fn trials() -> Vec<Trial> {
    trials![
        two_nodes_agree_and_each_record_expires,
        a_ring_outlives_its_store,
        records_are_resealed_under_a_replaced_key_encryption_key,
        a_swapped_record_is_skipped_and_reported,
        rotated_keys_and_node_status_reach_other_nodes,
    ]
}

const FIRST_KEK: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const SECOND_KEK: &str = "2222222222abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn now() -> UnixTime {
    UnixTime(u64::try_from(crate::support::unix_micros() / 1_000_000).expect("after 1970"))
}

fn put_keys(path: &Path, text: &str) {
    fs::write(path, text).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("its mode set");
}

struct Cluster {
    process: StoreProcess,
    directory: TempDir,
}

impl Cluster {
    fn start() -> Self {
        let directory = TempDir::new().expect("a directory");
        put_keys(&directory.path().join("kek"), FIRST_KEK);
        Self { process: StoreProcess::redis(StoreListen::Unix), directory }
    }

    fn node(&self) -> SharedRing {
        let topology = firstflight_store::Topology::Single(at_socket(&self.process));
        let keys = KeyEncryption::open(self.directory.path().join("kek")).expect("keys");
        SharedRing::new(open(config(topology)), keys, Schedule::default())
    }

    fn cli(&self, words: &[&str]) -> String {
        self.process.cli(words).trim().to_owned()
    }
}

/// Returns the ring as soon as the store is reachable.
async fn ring_of(node: &SharedRing) -> Ring {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match node.refresh(now()).await {
            Ok(ring) => return ring,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn two_nodes_agree_and_each_record_expires() {
    let cluster = Cluster::start();
    let (node, other) = (cluster.node(), cluster.node());
    let (ring, same) = tokio::join!(ring_of(&node), ring_of(&other));
    assert_eq!(ring.keys().len(), 2);
    assert_eq!(ring, same, "both started at the same time");
    let [first, next] =
        [0, 1].map(|at| TicketKeys::external(ring.clone()).statuses(now())[at].clone());
    // The store has two sealed records, each until its last ticket has expired.
    let half_day = 12 * 3600;
    let period = now().0 - now().0 % half_day;
    for (slot, key) in [(period, &first), (period + half_day, &next)] {
        let record_key = format!("firstflight:ring:{slot}");
        let life: u64 = cluster.cli(&["PTTL", &record_key]).parse().expect("a record with an end");
        // A period as the current key, a period for its tickets, and five minutes.
        let expected = (slot + 2 * half_day + 300 - now().0) * 1000;
        // A second or two each way, on a busy machine more.
        assert!(life.abs_diff(expected) < 30_000, "{life} {expected}");
        let record = cluster.cli(&["GET", &record_key]);
        assert!(!record.contains(&key.name), "sealed");
    }
    assert_eq!(cluster.cli(&["SCARD", "firstflight:ring"]), "2");
}

async fn a_ring_outlives_its_store() {
    let mut cluster = Cluster::start();
    let (node, other) = (cluster.node(), cluster.node());
    let ring = ring_of(&node).await;
    ring_of(&other).await;
    let (keys, others) = (TicketKeys::external(ring.clone()), TicketKeys::external(ring.clone()));
    cluster.process.kill();
    let error = node.refresh(now()).await.expect_err("the store is gone").to_string();
    assert!(error.starts_with("ticket keys: the store cannot be reached"), "{error}");
    // The next period's key is there.
    let later = now().after(Duration::from_secs(12 * 3600));
    let ticket = keys.seal(b"session", 0, later);
    assert_ne!(ticket[1..17], keys.seal(b"session", 0, now())[1..17]);
    assert!(matches!(others.open(&ticket, later), firstflight_tickets::Opened::Ticket { .. }));
    // The store restarts empty.
    cluster.process.restart();
    assert_eq!(ring_of(&other).await, ring);
    assert_eq!(ring_of(&cluster.node()).await, ring, "a new node");
}

async fn records_are_resealed_under_a_replaced_key_encryption_key() {
    let cluster = Cluster::start();
    let (node, other) = (cluster.node(), cluster.node());
    let ring = ring_of(&node).await;
    ring_of(&other).await;
    put_keys(&cluster.directory.path().join("kek"), SECOND_KEK);
    let late = cluster.node();
    // This node has the new key alone, and no record is sealed under it yet.
    let end = Instant::now() + TEST_TIMEOUT;
    let error = loop {
        match late.refresh(now()).await {
            Err(error @ SharedRingError::Store(_)) => {
                assert!(Instant::now() < end, "{error}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(error) => break error.to_string(),
            Ok(_) => panic!("read without its key"),
        }
    };
    let path = cluster.directory.path().join("kek").display().to_string();
    assert!(error.contains(&path) && error.contains("put the same keys into that file"), "{error}");
    node.refresh_key_encryption(now());
    assert_eq!(ring_of(&node).await, ring);
    late.refresh_key_encryption(now());
    assert_eq!(ring_of(&cluster.node()).await, ring, "resealed");
    // A node that has not read the new file keeps its ring.
    assert_eq!(ring_of(&other).await, ring);
}

async fn a_swapped_record_is_skipped_and_reported() {
    let cluster = Cluster::start();
    let ring = ring_of(&cluster.node()).await;
    let slots: Vec<u64> = ring.keys().iter().map(|key| key.not_before.0).collect();
    let next = format!("firstflight:ring:{}", slots[1]);
    let first = format!("firstflight:ring:{}", slots[1] - 12 * 3600);
    cluster.cli(&["COPY", &first, &next, "REPLACE"]);
    let late = cluster.node();
    assert_eq!(ring_of(&late).await.keys(), &ring.keys()[..1]);
    let warnings = late.take_warnings();
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].to_string().contains("changed or moved"), "{}", warnings[0]);
}

async fn rotated_keys_and_node_status_reach_other_nodes() {
    let cluster = Cluster::start();
    let (node, other) = (cluster.node(), cluster.node());
    let before = ring_of(&node).await;
    let rotated = node.rotate(now()).await.expect("rotated");
    assert_eq!(rotated.keys().len(), before.keys().len() + 1);
    assert_eq!(ring_of(&other).await, rotated);
    let soon = now().after(Duration::from_secs(60));
    assert_ne!(rotated.current(soon).key, before.current(soon).key);
    let status = NodeStatus {
        node: "a".to_owned(),
        zone: None,
        started: now().0,
        version: "0.1.0".to_owned(),
        keys: TicketKeys::external(rotated).statuses(now()),
        seen_at: now().0,
    };
    node.publish_status(&status).await.expect("published");
    assert_eq!(other.nodes().await.expect("nodes"), [status]);
    let life: u64 = cluster.cli(&["PTTL", "firstflight:node:a"]).parse().expect("an end");
    assert!(life > 0 && life <= 30_000);
    cluster.cli(&["DEL", "firstflight:node:a"]);
    assert_eq!(other.nodes().await.expect("nodes"), []);
    assert_eq!(cluster.cli(&["SCARD", "firstflight:nodes"]), "0");
}
