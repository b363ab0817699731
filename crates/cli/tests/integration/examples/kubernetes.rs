//! The Kubernetes manifests: checked against Kubernetes' schemas, and their nodes run as processes,
//! with the configuration, the secrets and the store's arguments of the manifests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use firstflight_testkit::{
    Recorder, StoreKind, StoreListen, StoreOptions, StoreProcess, program_path, resend,
    skipped_without,
};
use saphyr::{LoadableYamlNode, Yaml};
use serde_json::Value;

use super::{adapted, example};
use crate::prometheus::age;
use crate::support::peer::certificate;
use crate::support::program::{Ended, Serve, fetch, firstflight, run, site, text, until, within};

/// Runs `kubectl kustomize`.
fn manifests(dir: &Path) -> Ended {
    run(Command::new("kubectl").args(["kustomize"]).arg(dir))
}

/// Validates the manifests against the schemas of a Kubernetes version.
fn validate(version: &str, manifests: &Path) -> Ended {
    let module = program_path("kubernetes-validate");
    let library = module.parent().and_then(Path::parent).unwrap_or(Path::new(""));
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", library).args(["-m", "kubernetes_validate", "--strict"]);
    run(command.args(["--kubernetes-version", version]).arg(manifests))
}

/// Finds the manifest of this kind and name.
fn find<'a>(all: &'a [Yaml<'a>], kind: &str, name: &str) -> &'a Yaml<'a> {
    let is = |manifest: &&Yaml<'_>| {
        manifest["kind"].as_str() == Some(kind)
            && manifest["metadata"]["name"].as_str() == Some(name)
    };
    all.iter().find(is).unwrap_or_else(|| panic!("no {kind} {name}"))
}

fn words(list: &Yaml<'_>) -> Vec<String> {
    list.as_vec().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
}

fn pod<'a>(all: &'a [Yaml<'a>], name: &str) -> &'a Yaml<'a> {
    &find(all, "Deployment", name)["spec"]["template"]["spec"]
}

#[test]
fn kubernetes_accepts_the_manifests() {
    if skipped_without(&["kubectl"]) {
        return;
    }
    let made = manifests(&example("kubernetes"));
    assert_eq!(made.code, Some(0), "{made:?}");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("all.yaml");
    fs::write(&file, &made.out).unwrap();
    // The oldest version still in use, and the newest known one.
    for version in ["1.27", "1.37"] {
        let ended = validate(version, &file);
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    fs::write(&file, made.out.replace("maxUnavailable", "maxUnavailible")).unwrap();
    assert_ne!(validate("1.37", &file).code, Some(0), "the validator detects mistakes");

    let all = Yaml::load_from_str(&made.out).unwrap();
    let spec = pod(&all, "firstflight");
    for name in ["firstflight", "store"] {
        let spec = pod(&all, name);
        assert_eq!(spec["securityContext"]["runAsNonRoot"].as_bool(), Some(true), "{name}");
        let context = &spec["containers"][0]["securityContext"];
        assert_eq!(context["readOnlyRootFilesystem"].as_bool(), Some(true), "{name}");
        assert_eq!(context["allowPrivilegeEscalation"].as_bool(), Some(false), "{name}");
        assert_eq!(words(&context["capabilities"]["drop"]), ["ALL"], "{name}");
        let image = spec["containers"][0]["image"].as_str().unwrap();
        assert!(image.rsplit_once(':').unwrap().1.contains('.'), "{image} moves");
        // Written as 0400, which is octal in YAML 1.1, the version that Kubernetes uses.
        let volumes = spec["volumes"].as_vec().unwrap();
        let secrets = volumes.iter().filter_map(|volume| volume.as_mapping_get("secret"));
        assert!(secrets.clone().count() > 0, "{name}");
        for secret in secrets {
            assert_eq!(secret["defaultMode"].as_integer(), Some(0o400), "{name}");
        }
    }
    // The grace period of a pod is longer than the drain times of its configuration.
    let config = text(&example("kubernetes/firstflight.toml"));
    let seconds = |key: &str| -> i64 {
        let line = config.lines().find_map(|line| line.strip_prefix(key)).expect(key);
        line.trim_matches([' ', '=', '"', 's']).parse().unwrap()
    };
    let grace = spec["terminationGracePeriodSeconds"].as_integer().unwrap();
    assert!(grace > seconds("drain_delay") + seconds("drain_timeout"));
    let monitor = text(&example("kubernetes/service-monitor.yaml"));
    let monitor = Yaml::load_from_str(&monitor).unwrap().remove(0);
    let labels = &monitor["spec"]["selector"]["matchLabels"];
    let service = find(&all, "Service", "firstflight-admin");
    assert_eq!(&service["metadata"]["labels"], labels);
    // The operator names the job by this label; by default by the service.
    let job_label = monitor["spec"]["jobLabel"].as_str().unwrap();
    let job = service["metadata"]["labels"][job_label].as_str().unwrap();
    let alerts = text(&example("prometheus/alerts.yml"));
    assert!(alerts.contains(&format!("up{{job=\"{job}\"}} == 0")), "{job}");
    let port = monitor["spec"]["endpoints"][0]["port"].as_str();
    assert_eq!(service["spec"]["ports"][0]["name"].as_str(), port);
}

/// Three nodes and their store, as processes.
struct Nodes {
    store: StoreProcess,
    dir: tempfile::TempDir,
    all: Vec<Serve>,
}

impl Nodes {
    fn start() -> Self {
        let dir = site();
        certificate(dir.path());
        let secret = dir.path().join("secret");
        fs::create_dir(&secret).unwrap();
        make_secrets(&secret);
        let store = store(&secret);
        let mut nodes = Self { store, dir, all: Vec::new() };
        for name in ["a", "b", "c"] {
            let node = nodes.node(name);
            nodes.all.push(node);
        }
        nodes
    }

    /// Starts a node with the ConfigMap's file and the pod's arguments.
    fn node(&self, name: &str) -> Serve {
        let dir = self.dir.path().join(name);
        fs::create_dir_all(&dir).unwrap();
        let at = |name: &str| self.dir.path().join(name).display().to_string();
        let places = [
            ("0.0.0.0:443", "127.0.0.1:0".to_owned()),
            ("0.0.0.0:9090", "127.0.0.1:0".to_owned()),
            ("www.example.test", "localhost".to_owned()),
            ("/etc/firstflight/tls/tls.crt", at("cert.pem")),
            ("/etc/firstflight/tls/tls.key", at("key.pem")),
            ("/etc/firstflight/secret/store-password", at("secret/store-password")),
            ("/etc/firstflight/secret/kek", at("secret/kek")),
            ("/etc/firstflight/secret/token", at("secret/token")),
            ("redis://store:6379", self.store.url()),
            // The application is not part of this test: files replace it.
            ("upstream = \"app\"", format!("root = {:?}", at("root"))),
            ("drain_delay = \"10s\"", "drain_delay = \"100ms\"".to_owned()),
        ];
        let config = adapted("kubernetes/firstflight.toml", &places);
        fs::write(dir.join("config.toml"), config).unwrap();
        fs::copy(self.dir.path().join("cert.pem"), dir.join("cert.pem")).unwrap();
        let checked = run(firstflight(&dir).current_dir(&dir).args([
            "serve",
            "--check",
            "--config",
            "config.toml",
        ]));
        assert!(checked.code == Some(0) && checked.out.contains("OK"), "{checked:?}");
        Serve::configured(&dir)
    }

    /// Makes the nodes trust a store that has just started.
    fn age(&self) {
        let password = text(&self.dir.path().join("secret/store-password"));
        age(|words| self.store.cli_as(Some(("firstflight", password.trim())), words));
    }

    /// Sends early requests through the recorder until one is accepted, because a claim may exceed
    /// its budget; returns its target.
    fn early(&self, path: &Recorder, node: usize, when: &str, before: impl Fn()) -> String {
        path.forward_to(self.all[node].address);
        let mut round = 0;
        let mut target = String::new();
        let accepted = within(TIMEOUT_BELOW_A_WINDOW, Duration::from_millis(50), || {
            before();
            round += 1;
            target = format!("/index.html?{when}&node={node}&round={round}.");
            let flags = ["--tls-earlydata", "--http1.1"];
            let fetched = fetch(self.dir.path(), &self.all[node].cert, &path.url(&target), &flags);
            fetched.facts["early_data"] == "accepted"
        });
        assert!(accepted, "no early data at node {node}: {:#?}", self.all[node].log().last());
        target
    }

    /// Checks the pods' probes, which have no token, and that nothing else is accessible without
    /// one.
    fn probes_get_responses(&self, node: &Serve) {
        let made = manifests(&example("kubernetes"));
        let all = Yaml::load_from_str(&made.out).unwrap();
        let container = &pod(&all, "firstflight")["containers"][0];
        let probes = ["readinessProbe", "livenessProbe"].map(|probe| &container[probe]["httpGet"]);
        let status = |path: &str| {
            let url = format!("http://{}{path}", node.console());
            let print = ["--silent", "--output", "/dev/null", "--write-out", "%{http_code}"];
            run(Command::new("curl").args(print).arg(url)).out
        };
        for probe in probes {
            assert_eq!(probe["port"].as_str(), Some("admin"));
            assert_eq!(status(probe["path"].as_str().unwrap()), "200", "{probe:?}");
        }
        assert_eq!(status("/metrics"), "401");
    }

    /// How often a target was executed by all nodes together.
    fn executed(&self, target: &str) -> usize {
        let log = self.all.iter().flat_map(Serve::log);
        log.filter(|line: &Value| line["target"] == target && line["executed"] == true).count()
    }
}

/// Makes the secrets with the README's commands.
fn make_secrets(dir: &Path) {
    let readme = text(&example("kubernetes/README.md"));
    let block = readme.split("```sh\n").find(|block| block.starts_with("umask")).unwrap();
    let commands = block.split("```").next().unwrap();
    let path = PathBuf::from(crate::support::program::PROGRAM);
    let search = std::env::var("PATH").unwrap_or_default();
    let ended = run(Command::new("bash")
        .args(["-e", "-c", commands])
        .current_dir(dir)
        .env("HOME", dir)
        .env("PATH", format!("{}:{search}", path.parent().unwrap().display())));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    // The command that makes a Kubernetes secret of them.
    let create = "create secret generic firstflight --dry-run=client --output=yaml \
                  --from-file=kek --from-file=token --from-file=store-password \
                  --from-file=users.acl";
    assert!(
        readme.split_whitespace().collect::<Vec<_>>().join(" ").contains("--from-file=users.acl")
    );
    let made = run(Command::new("kubectl").args(create.split_whitespace()).current_dir(dir));
    assert_eq!(made.code, Some(0), "{made:?}");
    fs::write(dir.join("secret.yaml"), made.out).unwrap();
    let ended = validate("1.37", &dir.join("secret.yaml"));
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

/// Starts Valkey with the manifest's arguments.
fn store(secret: &Path) -> StoreProcess {
    let made = manifests(&example("kubernetes"));
    let all = Yaml::load_from_str(&made.out).unwrap();
    let arguments = words(&pod(&all, "store")["containers"][0]["args"]);
    assert_eq!(arguments[..2], ["--port", "6379"]);
    let users = secret.join("users.acl").display().to_string();
    let mut plan = StoreOptions::new(StoreKind::Valkey, StoreListen::Tcp);
    for pair in arguments[2..].chunks(2) {
        let [name, value] = pair else { panic!("{pair:?}") };
        let value = value.replace("/etc/valkey/users.acl", &users);
        plan = plan.set(name.trim_start_matches("--"), value);
    }
    StoreProcess::start(plan)
}

#[test]
fn rfc8446_8_three_nodes_execute_a_flight_once_also_after_a_restart() {
    if skipped_without(&["kubectl", "valkey-server", "redis-cli"]) {
        return;
    }
    let mut nodes = Nodes::start();
    // Other clients are rejected.
    assert!(nodes.store.cli(&["GET", "firstflight:epoch"]).contains("NOAUTH"));
    let path = Recorder::start(nodes.all[0].address);
    let mut targets = Vec::new();
    for node in [0, 1, 2] {
        let target = nodes.early(&path, node, "first", || nodes.age());
        for at in &nodes.all {
            assert_eq!(resend(at.address, &path.flight(), 10, 1), 10);
        }
        targets.push(target);
    }
    nodes.probes_get_responses(&nodes.all[0]);
    // A rolling update: a node is replaced by another one, which needs no recording window.
    let log = nodes.all.remove(0).stop();
    let line = |line: &&Value, target: &str| line["target"] == target && line["executed"] == true;
    let executed_there =
        targets.iter().map(|target| log.iter().filter(|l| line(l, target)).count());
    let executed_there: Vec<usize> = executed_there.collect();
    let another = nodes.node("another");
    nodes.all.insert(0, another);
    let late = nodes.early(&path, 0, "later", || {});
    resend(nodes.all[1].address, &path.flight(), 10, 1);
    // A log line is written when its request has ended.
    assert!(until(|| nodes.executed(&late) > 0));
    for (target, executed_there) in targets.iter().zip(executed_there) {
        assert_eq!(nodes.executed(target) + executed_there, 1, "{target}");
    }
    assert_eq!(nodes.executed(&late), 1);
    for node in nodes.all {
        node.stop();
    }
}

/// A new store is not trusted for 47 s. Early data that is accepted within this time did not wait
/// for a window.
const TIMEOUT_BELOW_A_WINDOW: Duration = Duration::from_secs(40);
