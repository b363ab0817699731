//! A ring in a store, shared by other servers, without a running `firstflight serve`.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use firstflight_testkit::{StoreListen, StoreProcess, skipped_without};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::peer::certificate;
use crate::support::program::{Ended, Running, firstflight, run, site, text, until};

/// Nodes that share a store. Each has a directory with the configuration of the examples.
pub(crate) struct Cluster {
    store: StoreProcess,
    site: TempDir,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        let site = site();
        certificate(site.path());
        Self { store: StoreProcess::redis(StoreListen::Unix), site }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.site.path()
    }

    /// Writes the configuration of the example for a node. Its key-encryption keys are in the node's
    /// directory.
    pub(crate) fn configure(&self, name: &str) -> PathBuf {
        let dir = self.dir().join(name);
        fs::create_dir(&dir).unwrap();
        for file in ["cert.pem", "key.pem"] {
            fs::copy(self.dir().join(file), dir.join(file)).unwrap();
        }
        fs::set_permissions(dir.join("key.pem"), Permissions::from_mode(0o600)).unwrap();
        let is_kept = |line: &&str| !line.starts_with("username") && !line.starts_with("password");
        let lines: Vec<_> =
            example("serve.toml").lines().filter(is_kept).map(str::to_owned).collect();
        let toml = lines
            .join("\n")
            .replace("rediss://store.internal:6379", &self.store.url())
            .replace("/run/firstflight/", &format!("{}/", dir.display()));
        fs::write(dir.join("serve.toml"), format!("{toml}\nnode = \"{name}\"\n")).unwrap();
        dir
    }

    /// `firstflight keys` with a node's configuration.
    pub(crate) fn keys(&self, name: &str, arguments: &[&str]) -> Ended {
        let config = self.dir().join(name).join("serve.toml");
        run(firstflight(self.dir()).arg("keys").args(arguments).arg("--config").arg(config))
    }

    /// Starts `keys watch`, which writes another server's files in the node's directory.
    pub(crate) fn watch(&self, name: &str, format: &str) -> Running {
        let dir = self.dir().join(name);
        let mut command = firstflight(self.dir());
        command.args(["keys", "watch", "--format", format, "--to", "tickets"]);
        command.args(["--config", "serve.toml", "--exec", "echo >> ran"]);
        let stderr = File::create(dir.join("watch")).unwrap();
        Running::start(command.current_dir(dir).stdin(Stdio::null()).stderr(stderr))
    }

    pub(crate) fn list(&self, name: &str) -> Value {
        let ended = self.keys(name, &["list", "--json"]);
        serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
    }
}

pub(crate) fn example(name: &str) -> String {
    fs::read_to_string(format!("{EXAMPLES}/{name}")).unwrap()
}

pub(crate) fn names(list: &Value, state: &str) -> Vec<String> {
    let keys = list["keys"].as_array().unwrap().iter().filter(|key| key["state"] == state);
    keys.map(|key| key["name"].as_str().unwrap().to_owned()).collect()
}

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/cluster");

/// Both nodes create missing keys and get the same ones. A rotation reaches both before its key seals,
/// and keys change state also without the store.
#[test]
fn other_servers_share_a_ring_without_a_firstflight_server() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let mut cluster = Cluster::start();
    let nodes = ["a", "b"].map(|name| cluster.configure(name));
    let made =
        run(firstflight(cluster.dir()).args(["keys", "new-encryption"]).arg(nodes[0].join("kek")));
    assert_eq!(made.code, Some(0), "{made:?}");
    fs::copy(nodes[0].join("kek"), nodes[1].join("kek")).unwrap();
    let empty = cluster.keys("a", &["list"]);
    assert_eq!(empty.code, Some(2), "{empty:?}");
    assert!(empty.err.contains("no ticket keys in the store"), "{empty:?}");

    let _watches = ["a", "b"].map(|name| cluster.watch(name, "haproxy"));
    let files = || nodes.each_ref().map(|node| text(&node.join("tickets")));
    let agree = || !files()[0].is_empty() && files()[0] == files()[1];
    let stderr = || nodes.each_ref().map(|node| text(&node.join("watch")));
    assert!(until(agree), "{:?}", stderr());
    let before = files()[0].clone();
    let listed = cluster.list("b");
    assert_eq!((names(&listed, "current").len(), names(&listed, "next").len()), (1, 1));

    let rotated = cluster.keys("b", &["rotate"]);
    assert_eq!(rotated.code, Some(0), "{rotated:?}");
    assert!(rotated.out.contains("servers seal with it in "), "{rotated:?}");
    assert!(until(|| agree() && files()[0] != before), "{:?}", stderr());
    cluster.store.kill();
    assert!(until(|| stderr().iter().all(|stderr| stderr.contains("WARN"))), "{:?}", stderr());
    // The key that sealed tickets takes the place of the previous key, and still opens tickets.
    let sealed = before.lines().nth(1).unwrap();
    let has_rotated = || agree() && files()[0].lines().next() == Some(sealed);
    assert!(until(has_rotated), "the new key takes over without the store: {:?}", stderr());
    for node in &nodes {
        assert!(until(|| text(&node.join("ran")).lines().count() >= 3), "{:?}", stderr());
    }
}
