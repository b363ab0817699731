//! Three nodes with a shared store and shared ticket keys: a first flight that one of them executed
//! is not executed by any of them again.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use firstflight_testkit::{StoreListen, StoreProcess, skipped_without};
use serde_json::Value;
use tempfile::TempDir;

use super::attacker::resend;
use super::relay::Relay;
use super::rustls_client::{Client, get};
use crate::support::peer::certificate;
use crate::support::program::{Serve, firstflight, run, site, within};

struct Nodes {
    store: StoreProcess,
    _site: TempDir,
    nodes: Vec<Serve>,
    /// In front of the first node.
    relay: Relay,
    client: Client,
}

impl Nodes {
    fn start() -> Self {
        let site = site();
        let cert = certificate(site.path());
        let store = StoreProcess::redis(StoreListen::Unix);
        let kek = site.path().join("kek");
        let made = run(firstflight(site.path()).args(["keys", "new-encryption"]).arg(&kek));
        assert_eq!(made.code, Some(0), "{made:?}");
        let nodes: Vec<_> = ["a", "b", "c"].map(|name| node(&site, &store, name)).into();
        let relay = Relay::start(nodes[0].address);
        let client = Client::new(&cert);
        Self { store, _site: site, nodes, relay, client }
    }

    /// Sends early requests to a node until one is accepted, and returns its target.
    fn early(&self, node: usize, name: &str) -> String {
        self.relay.forward_to(self.nodes[node].address);
        let mut round = 0;
        let mut target = String::new();
        let accepted = within(STARTUP_TIMEOUT, Duration::from_millis(100), || {
            round += 1;
            target = format!("/index.html?{name}.{round}.");
            let mut link = self.client.connect(self.relay.port);
            assert_eq!(link.request(get("/index.html")).status, 200);
            link.close_with_ticket();
            let (link, responses) = self.client.connect_early(self.relay.port, &[get(&target)]);
            assert_eq!(responses[0].status, 200);
            let early = link.early == Some(true);
            link.close_with_ticket();
            early && self.counts(&target, "claim", "won") == [(node, 1)]
        });
        assert!(accepted, "no early data at node {node}");
        target
    }

    /// Sends each flight `times` times to each node.
    fn resend(&self, flights: &[Vec<Vec<u8>>], times: usize) {
        for node in &self.nodes {
            resend(node.address, flights, times);
        }
    }

    /// The nodes whose logs have this value for a target, with the number of entries.
    fn counts(&self, target: &str, field: &str, value: impl Into<Value>) -> Vec<(usize, usize)> {
        let value = value.into();
        let lines = |node: &Serve| {
            let log = node.log();
            log.iter().filter(|l| l["target"] == target && l[field] == value).count()
        };
        let all = self.nodes.iter().map(lines).enumerate();
        all.filter(|(_, count)| *count > 0).collect()
    }
}

fn node(site: &TempDir, store: &StoreProcess, name: &str) -> Serve {
    let dir: PathBuf = site.path().join(name);
    fs::create_dir(&dir).unwrap();
    let config = format!(
        "[early_data]\nfreshness = \"5s\"\n[store]\nurl = {:?}\n[tickets]\nkeys = \
         \"store\"\nkey_encryption_file = {:?}\n",
        store.url(),
        site.path().join("kek")
    );
    fs::write(dir.join("config.toml"), config).unwrap();
    let files = ["cert.pem", "key.pem", "root"].map(|name| site.path().join(name));
    let [cert, key, root] = files.each_ref().map(|file| file.to_str().unwrap());
    let config = dir.join("config.toml");
    let arguments = ["--cert", cert, "--key", key, "--root", root, "--config"];
    let more = [config.to_str().unwrap(), "--header-timeout", "4s"];
    Serve::start(&dir, &[&arguments[..], &more].concat())
}

/// Longer than the recording window after the store's start.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(150);

#[test]
fn rfc8446_8_2_ten_thousand_replays_at_three_nodes_execute_nothing() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let mut nodes = Nodes::start();
    let mut recorded = Vec::new();
    for number in 0..30 {
        let target = nodes.early(number % 3, &format!("flight={number}"));
        let flight = [nodes.relay.flight()];
        // The tickets are fresh at every node.
        nodes.resend(&flight, 10);
        recorded.push((number % 3, target, flight));
    }
    let flights: Vec<_> = recorded.iter().map(|(_, _, [flight])| flight.clone()).collect();
    nodes.resend(&flights, 100);
    nodes.store.freeze();
    nodes.resend(&flights, 5);
    nodes.store.thaw();
    nodes.store.kill();
    nodes.resend(&flights, 5);
    // With a ticket from before, the ClientHello offers early data, which cannot be recorded
    // without the store. Later tickets allow no early data.
    let mut statuses = Vec::new();
    while statuses.last() != Some(&200) {
        nodes.relay.forward_to(nodes.nodes[statuses.len() % 3].address);
        let mut link = nodes.client.connect(nodes.relay.port);
        statuses.push(link.request(get("/index.html?honest")).status);
        link.close_with_ticket();
        assert!(statuses.len() < 10, "{statuses:?}");
    }
    assert_eq!(statuses[0], 425);
    let mut elsewhere = 0;
    for (node, target, _) in &recorded {
        assert_eq!(nodes.counts(target, "executed", true), [(*node, 1)], "{target}");
        let lost = nodes.counts(target, "claim", "lost");
        elsewhere += lost.iter().filter(|(at, _)| at != node).count();
    }
    assert!(elsewhere > 10, "hardly any copy reached the shared register: {elsewhere}");
}
