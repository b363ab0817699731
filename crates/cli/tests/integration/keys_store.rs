//! A ring in a store, shared by servers of other makes: no server of ours has to run.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use firstflight_testkit::{StoreListen, StoreProcess};
use serde_json::Value;
use tempfile::TempDir;

use crate::peers::certificate;
use crate::running::{Ended, Running, firstflight, run, site, text, until};

/// Nodes that share a store, each with a directory, and the examples' configuration in it.
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

    /// The example's configuration file for a node of this name; its key-encryption keys are in the
    /// node's directory.
    pub(crate) fn configure(&self, name: &str) -> PathBuf {
        let dir = self.dir().join(name);
        fs::create_dir(&dir).unwrap();
        for file in ["cert.pem", "key.pem"] {
            fs::copy(self.dir().join(file), dir.join(file)).unwrap();
        }
        fs::set_permissions(dir.join("key.pem"), Permissions::from_mode(0o600)).unwrap();
        let of_others =
            |line: &&str| !line.starts_with("username") && !line.starts_with("password");
        let lines: Vec<_> =
            example("serve.toml").lines().filter(of_others).map(str::to_owned).collect();
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

    /// Has another server's files in the node's directory follow the ring.
    pub(crate) fn watch(&self, name: &str, format: &str) -> Running {
        let dir = self.dir().join(name);
        let mut command = firstflight(self.dir());
        command.args(["keys", "watch", "--format", format, "--to", "tickets"]);
        command.args(["--config", "serve.toml", "--exec", "echo >> ran"]);
        let said = File::create(dir.join("watch")).unwrap();
        Running::start(command.current_dir(dir).stdin(Stdio::null()).stderr(said))
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

/// Both offer what is missing, both get the same; a rotation reaches both before it seals; and
/// without the store time goes on.
#[test]
fn a_fleet_of_others_needs_no_server_of_ours() {
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
    let said = || nodes.each_ref().map(|node| text(&node.join("watch")));
    assert!(until(agree), "{:?}", said());
    let before = files()[0].clone();
    let listed = cluster.list("b");
    assert_eq!((names(&listed, "current").len(), names(&listed, "next").len()), (1, 1));

    let rotated = cluster.keys("b", &["rotate"]);
    assert_eq!(rotated.code, Some(0), "{rotated:?}");
    assert!(rotated.out.contains("servers seal under it in "), "{rotated:?}");
    assert!(until(|| agree() && files()[0] != before), "{:?}", said());
    cluster.store.kill();
    assert!(until(|| said().iter().all(|said| said.contains("WARN"))), "{:?}", said());
    // What sealed before opens still, in the place of the one before.
    let sealed = before.lines().nth(1).unwrap();
    let turned = || agree() && files()[0].lines().next() == Some(sealed);
    assert!(until(turned), "the new key's time comes without the store: {:?}", said());
    for node in &nodes {
        assert!(until(|| text(&node.join("ran")).lines().count() >= 3), "{:?}", said());
    }
}
