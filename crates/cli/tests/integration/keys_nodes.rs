//! Nodes with a ring in a store, and key-encryption keys from OpenBao, whose agent replaces their file
//! while the nodes run.

use std::fs::{self, File};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use firstflight_testkit::{free_port, program_path, skipped_without};
use serde_json::Value;

use crate::keys_store::{Cluster, example, names};
use crate::support::openssl::{Session, connect};
use crate::support::program::{Ended, Running, Serve, firstflight, run, text, until};

fn serve(cluster: &Cluster, name: &str) -> Serve {
    let dir = cluster.dir().join(name);
    let file = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let (config, cert, key) = (file("serve.toml"), file("cert.pem"), file("key.pem"));
    let root = cluster.dir().join("root");
    let arguments =
        ["--config", &config, "--cert", &cert, "--key", &key, "--root", root.to_str().unwrap()];
    Serve::start(&dir, &arguments)
}

/// Checks that these sessions resume at every node.
fn assert_resume_everywhere(dir: &Path, sessions: &[Session], nodes: &[&Serve], when: &str) {
    for session in sessions {
        for node in nodes {
            let resumed = connect(dir, node.address.port(), Some(session));
            assert!(resumed.reused, "{when}: {session:?}: {resumed:?}");
        }
    }
}

#[test]
fn nodes_and_their_keys_are_listed_and_rotated() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let cluster = Cluster::start();
    let dir = cluster.dir();
    let a_dir = cluster.configure("a");
    let made = run(firstflight(dir).args(["keys", "new-encryption"]).arg(a_dir.join("kek")));
    assert_eq!(made.code, Some(0), "{made:?}");
    fs::copy(a_dir.join("kek"), cluster.configure("b").join("kek")).unwrap();
    let (a, b) = (serve(&cluster, "a"), serve(&cluster, "b"));
    let session = connect(dir, a.address.port(), None);
    assert!(connect(dir, b.address.port(), Some(&session)).reused);
    let mut listed = Value::Null;
    let both = until(|| {
        listed = cluster.list("a");
        listed["nodes"].as_array().is_some_and(|nodes| nodes.len() == 2)
            && listed["keys"][0]["last_opened"].is_number()
    });
    assert!(both, "{listed:#}");
    assert_eq!((names(&listed, "current").len(), names(&listed, "next").len()), (1, 1));
    let zones: Vec<_> = [0, 1].map(|at| listed["nodes"][at]["zone"].as_str().unwrap()).into();
    assert_eq!(zones, ["eu-west", "eu-west"]);
    let table = cluster.keys("b", &["list"]);
    assert_eq!((table.code, &*table.err), (Some(0), ""), "{table:?}");
    assert!(table.out.lines().all(|line| line.chars().count() <= 100), "{}", table.out);
    assert!(table.out.contains("\na     eu-west  "), "{}", table.out);

    let rotated = cluster.keys("b", &["rotate"]);
    assert_eq!(rotated.code, Some(0), "{rotated:?}");
    let changed = until(|| names(&cluster.list("a"), "current") != names(&listed, "current"));
    assert!(changed, "{:#}", cluster.list("a"));
    assert_resume_everywhere(dir, &[session], &[&a, &b], "after the rotation");
    let current = names(&cluster.list("a"), "current");
    let sealed = until(|| {
        let session = connect(dir, a.address.port(), None);
        session.key.replace([' ', '-'], "")[2..] == current[0][..30]
    });
    assert!(sealed, "a seals under the new key");
}

/// OpenBao in development mode, with the policy of the examples and credentials for the nodes.
struct Bao {
    _server: Running,
    dir: PathBuf,
    address: String,
}

impl Bao {
    fn start(dir: &Path) -> Self {
        let port = free_port();
        let stderr = File::create(dir.join("bao.stderr")).unwrap();
        let mut command = Command::new(program_path("bao"));
        command.args(["server", "-dev", "-dev-root-token-id=root", "-dev-no-store-token"]);
        command.arg(format!("-dev-listen-address=127.0.0.1:{port}")).env("HOME", dir);
        command.stdin(Stdio::null()).stdout(stderr.try_clone().unwrap()).stderr(stderr);
        let server = Running::start(&mut command);
        let address = format!("http://127.0.0.1:{port}");
        let bao = Self { _server: server, dir: dir.to_owned(), address };
        let listens = || TcpStream::connect(("127.0.0.1", port)).is_ok();
        let ready = || listens() && bao.run("bao secrets list").code == Some(0);
        assert!(until(ready), "{}", text(&dir.join("bao.stderr")));
        fs::write(dir.join("bao-policy.hcl"), example("bao-policy.hcl")).unwrap();
        for line in [
            "bao policy write firstflight bao-policy.hcl",
            "bao auth enable approle",
            "bao write auth/approle/role/firstflight token_policies=firstflight token_period=1h",
            "bao read -field=role_id auth/approle/role/firstflight/role-id > role-id",
            "bao write -f -field=secret_id auth/approle/role/firstflight/secret-id > secret-id",
        ] {
            bao.done(line);
        }
        bao
    }

    /// Runs a line of shell in which `bao` is OpenBao with administrator rights.
    fn run(&self, line: &str) -> Ended {
        let program = program_path("bao");
        let script = format!("set -e; bao() {{ {} \"$@\"; }}; {line}", program.display());
        let mut command = Command::new("bash");
        command.args(["-c", &script]).current_dir(&self.dir).env("HOME", &self.dir);
        run(command.env("BAO_ADDR", &self.address).env("BAO_TOKEN", "root"))
    }

    fn done(&self, line: &str) {
        let ended = self.run(line);
        assert_eq!(ended.code, Some(0), "{line}: {ended:?}");
    }

    /// Starts the agent of the examples for a node. It polls every second.
    fn agent(&self, node: &Path) -> Running {
        let config = example("bao-agent.hcl")
            .replace("https://bao.internal:8200", &self.address)
            .replace("/etc/firstflight/", &format!("{}/", self.dir.display()))
            .replace("/run/firstflight/", &format!("{}/", node.display()))
            .replace("\"1m\"", "\"1s\"");
        fs::write(node.join("agent.hcl"), config).unwrap();
        let stderr = File::create(node.join("agent.stderr")).unwrap();
        let mut command = Command::new(program_path("bao"));
        command.args(["agent", "-config"]).arg(node.join("agent.hcl")).env("HOME", node);
        command.stdin(Stdio::null()).stdout(stderr.try_clone().unwrap()).stderr(stderr);
        Running::start(&mut command)
    }
}

#[test]
fn openbao_replaces_the_key_encryption_key_under_running_servers() {
    if skipped_without(&["bao", "redis-server"]) {
        return;
    }
    let cluster = Cluster::start();
    let dir = cluster.dir();
    let bao = Bao::start(dir);
    bao.done("openssl rand -hex 32 | bao kv put secret/firstflight keys=-");
    let nodes = ["a", "b"].map(|name| cluster.configure(name));
    let _agents = nodes.each_ref().map(|node| bao.agent(node));
    let keks = || nodes.each_ref().map(|node| text(&node.join("kek")));
    let files_have = |lines: usize| {
        keks().iter().all(|kek| kek.lines().filter(|line| !line.is_empty()).count() == lines)
    };
    assert!(until(|| files_have(1)), "{}", text(&nodes[0].join("agent.stderr")));
    let (a, b) = (serve(&cluster, "a"), serve(&cluster, "b"));
    let sessions = [&a, &b].map(|node| connect(dir, node.address.port(), None));
    assert_resume_everywhere(dir, &sessions, &[&a, &b], "before");

    let old = keks();
    // The new one first, the old one second.
    bao.done(
        "(openssl rand -hex 32; bao kv get -field=keys secret/firstflight | head -n1) | bao kv put \
         secret/firstflight keys=-",
    );
    assert!(until(|| files_have(2)), "{}", text(&nodes[0].join("agent.stderr")));
    assert_resume_everywhere(dir, &sessions, &[&a, &b], "the file is replaced");
    assert!(keks()[0].contains(old[0].trim()), "the old key still opens records");

    // The new key alone opens every record: the servers have sealed them again.
    let last = cluster.configure("last");
    let new = keks()[0].lines().next().unwrap().to_owned();
    assert!(!old[0].contains(&new));
    File::create(last.join("kek")).unwrap().set_permissions(mode_600()).unwrap();
    fs::write(last.join("kek"), new).unwrap();
    let mut logged = cluster.keys("last", &["list"]);
    let read = until(|| {
        logged = cluster.keys("last", &["list"]);
        logged.code == Some(0)
    });
    assert!(read, "{logged:?}");
    let c = serve(&cluster, "last");
    assert_resume_everywhere(dir, &sessions, &[&a, &b, &c], "a node with the new key alone");
    let fresh = [&a, &b, &c].map(|node| connect(dir, node.address.port(), None));
    assert_resume_everywhere(dir, &fresh, &[&a, &b, &c], "after");
    for node in [a, b, c] {
        let stderr = text(&node.stderr);
        assert!(!stderr.contains("WARN") && !stderr.contains("ERROR"), "{stderr}");
        node.stop();
    }
}

fn mode_600() -> fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o600)
}
