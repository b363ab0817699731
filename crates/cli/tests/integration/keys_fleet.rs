//! A ring shared by several nginx, HAProxy or Envoy: sessions resume at any node during a rotation.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;

use firstflight_testkit::{program_path, skipped_without};
use serde_json::json;
use tempfile::TempDir;

use crate::examples::{start_haproxy, start_nginx};
use crate::support::openssl::{Session, connect};
use crate::support::peer::{Peer, certificate};
use crate::support::program::{Running, firstflight, run, text, until};

/// Two nodes with the keys of one ring, and a third with other keys.
struct Fleet {
    make: &'static Make,
    dir: TempDir,
    a: Peer,
    b: Peer,
    unrelated: Peer,
}

/// A server under test.
struct Make {
    format: &'static str,
    start: fn(dir: &Path) -> Peer,
    /// A shell command that makes it reload its keys; `{}` is its process ID. `None` if it reloads
    /// by itself.
    reload: Option<&'static str>,
    /// The lifetime in its TLS 1.3 tickets, in seconds.
    lifetime: u64,
}

impl Fleet {
    fn start(make: &'static Make) -> Self {
        let dir = tempfile::tempdir().unwrap();
        certificate(dir.path());
        for (name, keys) in [("a", "ring"), ("b", "ring"), ("stranger", "other")] {
            let node = dir.path().join(name);
            fs::create_dir(&node).unwrap();
            for file in ["cert.pem", "key.pem", "both.pem"] {
                fs::copy(dir.path().join(file), node.join(file)).unwrap();
            }
            if name != "b" {
                firstflight_keys(dir.path(), &["new", keys]);
            }
            let to = format!("{name}/tickets");
            firstflight_keys(dir.path(), &["export", "--format", make.format, "--to", &to, keys]);
        }
        let node = |name: &str| (make.start)(&dir.path().join(name));
        let (a, b, unrelated) = (node("a"), node("b"), node("stranger"));
        Self { make, dir, a, b, unrelated }
    }

    fn rotate(&self) {
        firstflight_keys(self.dir.path(), &["rotate", "ring"]);
    }

    /// Starts `keys watch` for a node.
    fn watch(&self, name: &str, node: &Peer) -> Running {
        let mut command = firstflight(self.dir.path());
        command.current_dir(self.dir.path()).args(["keys", "watch", "ring", "--format"]);
        command.args([self.make.format, "--to"]).arg(format!("{name}/tickets"));
        if let Some(reload) = self.make.reload {
            command.arg("--exec").arg(reload.replace("{}", &node.pid().to_string()));
        }
        let log = self.dir.path().join(format!("{name}.watch"));
        let stderr = File::create(&log).unwrap();
        let running = Running::start(command.stdin(Stdio::null()).stderr(stderr));
        if self.make.reload.is_some() {
            assert!(until(|| text(&log).contains("succeeded")), "{}", text(&log));
            // HAProxy ignores a signal that arrives while it reloads.
            std::thread::sleep(std::time::Duration::from_secs(3));
        }
        running
    }

    fn connect(&self, node: &Peer, session: Option<&Session>) -> Session {
        connect(self.dir.path(), node.port, session)
    }

    /// Checks that sessions of either node resume at the other.
    fn assert_resumes_at_both(&self, when: &str) {
        for (from, to) in [(&self.a, &self.b), (&self.b, &self.a)] {
            let session = self.connect(from, None);
            assert!(!session.reused, "{when}: nothing was offered");
            let resumed = self.connect(to, Some(&session));
            assert!(resumed.reused, "{when}: {session:?} at the other node: {resumed:?}");
        }
    }

    /// Waits until a node seals with another key than `from`, and returns it.
    fn wait_for_new_key(&self, node: &Peer, name: &str, from: &str) -> String {
        let mut key = String::new();
        let turned = until(|| {
            key = self.connect(node, None).key;
            key != from
        });
        let stderr = text(&self.dir.path().join(format!("{name}.watch")));
        assert!(turned, "{name} still seals under {from}: {stderr}");
        key
    }
}

/// Runs `firstflight keys`.
fn firstflight_keys(dir: &Path, arguments: &[&str]) {
    let ended = run(firstflight(dir).current_dir(dir).arg("keys").args(arguments));
    assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
}

/// Checks sessions before a rotation, while one node has rotated, and afterwards.
fn assert_rotation_keeps_sessions(make: &'static Make) {
    let fleet = Fleet::start(make);
    let dir = fleet.dir.path();
    let before = fleet.connect(&fleet.a, None);
    assert_eq!(before.lifetime, make.lifetime, "as docs/operate/keys.md has it");
    fleet.assert_resumes_at_both("before");
    assert!(!fleet.connect(&fleet.unrelated, Some(&before)).reused, "that node has other keys");

    let _a = fleet.watch("a", &fleet.a);
    fleet.rotate();
    let key = fleet.wait_for_new_key(&fleet.a, "a", &before.key);
    assert_eq!(fleet.connect(&fleet.b, None).key, before.key, "b has the old ring");
    fleet.assert_resumes_at_both("a has the new ring, b the old one");
    for node in [&fleet.a, &fleet.b] {
        assert!(fleet.connect(node, Some(&before)).reused, "from before the rotation");
    }

    let _b = fleet.watch("b", &fleet.b);
    assert_eq!(fleet.wait_for_new_key(&fleet.b, "b", &before.key), key, "both seal under the same");
    fleet.assert_resumes_at_both("after");
    for node in [&fleet.a, &fleet.b] {
        assert!(fleet.connect(node, Some(&before)).reused, "from before the rotation");
    }
    let stderr = text(&dir.join("a.watch"));
    assert!(!stderr.contains("WARN"), "{stderr}");
}

/// With the configuration of the example, and no upstream: only handshakes matter.
const NGINX: Make = Make {
    format: "nginx",
    start: |dir| start_nginx(dir, "127.0.0.1:9"),
    reload: Some("kill -HUP {}"),
    lifetime: 43_200,
};

const HAPROXY: Make = Make {
    format: "haproxy",
    start: |dir| {
        // Otherwise HAProxy would try for seconds to reach the upstream.
        let response = "    http-request return status 200\n    default_backend";
        start_haproxy(dir, "127.0.0.1:9", |config| config.replace("    default_backend", response))
    },
    reload: Some("kill -USR2 {}"),
    lifetime: 28_800,
};

const ENVOY: Make = Make { format: "envoy", start: envoy, reload: None, lifetime: 172_800 };

fn envoy(dir: &Path) -> Peer {
    let config = |port| {
        json!({ "node": { "id": "node", "cluster": "test" }, "static_resources": { "listeners": [{
            "name": "test",
            "address": { "socket_address": { "address": "127.0.0.1", "port_value": port } },
            "filter_chains": [{
                "transport_socket": { "name": "tls", "typed_config": {
                    "@type": format!("{TYPES}.transport_sockets.tls.v3.DownstreamTlsContext"),
                    "common_tls_context": {
                        "tls_params": { "tls_maximum_protocol_version": "TLSv1_3" },
                        "tls_certificates": [{
                            "certificate_chain": { "filename": "cert.pem" },
                            "private_key": { "filename": "key.pem" },
                        }],
                    },
                    "session_ticket_keys_sds_secret_config": {
                        "name": "firstflight_tickets",
                        "sds_config": {
                            "path_config_source": { "path": dir.join("tickets") },
                            "resource_api_version": "V3",
                        },
                    },
                } },
                "filters": [{ "name": "http", "typed_config": {
                    "@type": format!(
                        "{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager"
                    ),
                    "stat_prefix": "test",
                    "http_filters": [{ "name": "router", "typed_config": {
                        "@type": format!("{TYPES}.filters.http.router.v3.Router"),
                    } }],
                    "route_config": { "virtual_hosts": [{ "name": "test", "domains": ["*"],
                        "routes": [{
                            "match": { "prefix": "/" }, "direct_response": { "status": 200 },
                        }],
                    }] },
                } }],
            }],
        }] } })
        .to_string()
    };
    let arguments = ["--concurrency", "1", "--disable-hot-restart", "-l", "warn"];
    Peer::start(dir, program_path("envoy").to_str().unwrap(), &arguments, config)
}

const TYPES: &str = "type.googleapis.com/envoy.extensions";

#[test]
fn nginx_keeps_sessions_through_a_rotation() {
    if skipped_without(&["nginx"]) {
        return;
    }
    assert_rotation_keeps_sessions(&NGINX);
}

#[test]
fn haproxy_keeps_sessions_through_a_rotation() {
    if skipped_without(&["haproxy"]) {
        return;
    }
    assert_rotation_keeps_sessions(&HAPROXY);
}

#[test]
fn envoy_keeps_sessions_through_a_rotation() {
    if skipped_without(&["envoy"]) {
        return;
    }
    assert_rotation_keeps_sessions(&ENVOY);
}
