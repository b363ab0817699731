//! The compose file, loaded by Docker's own library, and its processes, run without containers with
//! the same configuration. Grafana is not run; its files are checked.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use firstflight_testkit::{
    Recorder, StoreKind, StoreListen, StoreOptions, StoreProcess, program_path, skipped_without,
};
use saphyr::{LoadableYamlNode, Yaml};
use serde_json::Value;

use super::{adapted, example};
use crate::prometheus::{Prometheus, age};
use crate::support::program::{
    Ended, Running, Serve, TEST_TIMEOUT, fetch, fields, firstflight, run, text, until, within,
};

/// Loads `compose.yaml` with these variables set.
fn load(file: &Path, variables: &[(&str, &str)]) -> Ended {
    let mut command = Command::new(program_path("compose-go"));
    command.env_remove("EARLY_DATA").env_remove("KEEP_ALIVE");
    run(command.arg(file).envs(variables.iter().copied()))
}

/// Loads the example with these variables set.
fn services(variables: &[(&str, &str)]) -> String {
    let ended = load(&example("compose/compose.yaml"), variables);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended.out
}

fn parsed(text: &str) -> Yaml<'_> {
    Yaml::load_from_str(text).unwrap().remove(0)
}

fn words(list: &Yaml<'_>) -> Vec<String> {
    let list = list.as_vec().unwrap_or_else(|| panic!("a list: {list:?}"));
    list.iter().map(|word| word.as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_compose_file_is_valid_and_hardened() {
    if skipped_without(&["compose-go"]) {
        return;
    }
    let out = services(&[]);
    let services = parsed(&out)["services"].clone();
    let services = services.as_mapping().unwrap();
    assert_eq!(services.len(), 7, "{out}");
    for (name, service) in services {
        let name = name.as_str().unwrap();
        let (image, tag) = service["image"].as_str().unwrap().rsplit_once(':').expect("a tag");
        assert!(tag.contains('.') && !image.is_empty(), "{name}: {tag} moves");
        assert_eq!(service["read_only"].as_bool(), Some(true), "{name}");
        assert_eq!(words(&service["cap_drop"]), ["ALL"], "{name}");
        assert_eq!(words(&service["security_opt"]), ["no-new-privileges:true"], "{name}");
        assert!(service.as_mapping_get("privileged").is_none(), "{name}");
        let checked = service.as_mapping_get("healthcheck").is_some();
        assert_eq!(checked, name != "secrets", "{name}: it exits by itself");
        for volume in service.as_mapping_get("volumes").and_then(Yaml::as_vec).into_iter().flatten()
        {
            if volume["type"].as_str() == Some("bind") {
                let source = volume["source"].as_str().unwrap();
                assert!(Path::new(source).exists(), "{name}: {source}");
                assert_eq!(volume["read_only"].as_bool(), Some(true), "{name}: {source}");
            }
        }
    }
    // Only the server can reach the store, which accepts connections of its clients only.
    let networks = |name: &str| -> Vec<String> {
        let service = services.iter().find(|(key, _)| key.as_str() == Some(name)).unwrap().1;
        let networks = service["networks"].as_mapping().unwrap();
        networks.keys().map(|name| name.as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(networks("valkey"), ["store"]);
    let with_store = services.keys().filter_map(Yaml::as_str).filter(|name| *name != "secrets");
    let with_store: Vec<_> =
        with_store.filter(|name| networks(name).contains(&"store".to_owned())).collect();
    assert_eq!(with_store, ["firstflight", "valkey"]);
    assert!(out.contains("- --aclfile\n"), "{out}");

    // The image of this version is the one that is built here.
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(out.matches(&format!("image: firstflight:{version}\n")).count(), 2, "{out}");
    assert!(out.contains(&format!("ROOT: firstflight-{version}-image.tar\n")), "{out}");
    // The ports for operators are bound to this machine only.
    let open = out.matches("published:").count() - out.matches("host_ip: 127.0.0.1").count();
    assert_eq!(open, 2, "the server's, over TCP and UDP: {out}");

    // The loader detects mistakes.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("compose.yaml");
    let wrong = text(&example("compose/compose.yaml")).replace("stop_grace_period", "stop_grace");
    fs::write(&file, wrong).unwrap();
    let refused = load(&file, &[]);
    assert!(refused.code == Some(1) && refused.err.contains("stop_grace"), "{refused:?}");
}

#[test]
fn grafana_finds_prometheus_and_the_dashboard() {
    if skipped_without(&["compose-go"]) {
        return;
    }
    let out = services(&[]);
    let services = parsed(&out)["services"].clone();
    let targets: Vec<(String, String)> = services["grafana"]["volumes"]
        .as_vec()
        .unwrap()
        .iter()
        .map(|volume| {
            ["source", "target"].map(|key| volume[key].as_str().unwrap().to_owned()).into()
        })
        .collect();
    let at = |target: &str| -> PathBuf {
        let found = targets.iter().find(|(_, at)| at == target);
        found.unwrap_or_else(|| panic!("{target}: {targets:?}")).0.clone().into()
    };
    let provisioning = "/etc/grafana/provisioning";
    let sources = text(&at(&format!("{provisioning}/datasources")).join("prometheus.yml"));
    let source = parsed(&sources)["datasources"][0].clone();
    assert_eq!(source["type"].as_str(), Some("prometheus"));
    assert_eq!(source["url"].as_str(), Some("http://prometheus:9090"));
    let providers = text(&at(&format!("{provisioning}/dashboards")).join("firstflight.yml"));
    let provider = parsed(&providers)["providers"][0].clone();
    let path = provider["options"]["path"].as_str().unwrap();
    let dashboard = text(&at(&format!("{path}/firstflight.json")));
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    assert_eq!(dashboard["uid"], "firstflight");
    let home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
        .as_str()
        .unwrap();
    assert_eq!(home, format!("{path}/firstflight.json"));
}

/// The processes of the compose file except Grafana.
struct Stack {
    dir: tempfile::TempDir,
    store: StoreProcess,
    password: String,
    _app: Running,
    app: SocketAddr,
}

impl Stack {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let secrets = || {
            let script = example("compose/app/draw_secrets.py");
            let ended = run(Command::new("python3").arg(script).arg(dir.path().join("secrets")));
            assert_eq!(ended.code, Some(0), "{ended:?}");
            [
                "firstflight/kek",
                "firstflight/token",
                "prometheus/token",
                "firstflight/store-password",
                "valkey/users.acl",
            ]
            .map(|name| text(&dir.path().join("secrets").join(name)))
        };
        let drawn = secrets();
        let [kek, token, prometheus_token, password, users] = &drawn;
        assert!(kek.len() == 65 && token.len() == 65 && kek != token && token == prometheus_token);
        assert!(password.len() == 65 && users.contains(&format!(" >{} ", password.trim())));
        assert_eq!(secrets(), drawn, "the second start keeps the secrets");
        let password = password.trim().to_owned();
        let users = dir.path().join("secrets/valkey/users.acl");
        let plan =
            StoreOptions::new(StoreKind::Valkey, StoreListen::Tcp).set("aclfile", users.display());
        let store = StoreProcess::start(plan);
        let unrelated = store.cli(&["SET", "firstflight:epoch", "1"]);
        assert!(unrelated.contains("NOPERM") && store.cli(&["PING"]) == "PONG", "{unrelated}");
        let stderr = dir.path().join("app.stderr");
        let app = Running::start(
            Command::new("python3")
                .arg(example("compose/app/app.py"))
                .arg("127.0.0.1:0")
                .stdin(Stdio::null())
                .stdout(fs::File::create(&stderr).unwrap()),
        );
        let mut address = None;
        until(|| {
            let stderr = text(&stderr);
            address =
                stderr.strip_prefix("listening on ").and_then(|rest| rest.trim().parse().ok());
            address.is_some()
        });
        let app_address = address.expect("the sample application listens");
        Self { dir, store, password, _app: app, app: app_address }
    }

    /// Starts the server as compose does, with these variables set.
    fn serve(&self, name: &str, variables: &[(&str, &str)]) -> Serve {
        let dir = self.dir.path().join(name);
        fs::create_dir(&dir).unwrap();
        let secrets = self.dir.path().join("secrets/firstflight").display().to_string();
        let places = [
            ("0.0.0.0:8443", "127.0.0.1:0".to_owned()),
            ("0.0.0.0:9090", "127.0.0.1:0".to_owned()),
            ("http://app:8080", format!("http://{}", self.app)),
            ("redis://valkey:6379", self.store.url()),
            ("/run/firstflight/kek", format!("{secrets}/kek")),
            ("/run/firstflight/token", format!("{secrets}/token")),
            ("/run/firstflight/store-password", format!("{secrets}/store-password")),
        ];
        let config = adapted("compose/firstflight.toml", &places);
        fs::write(dir.join("config.toml"), config).unwrap();
        let out = services(variables);
        let service = parsed(&out)["services"]["firstflight"].clone();
        let command = words(&service["command"]);
        assert_eq!(command[..2], ["serve", "--config=/etc/firstflight/firstflight.toml"]);
        let mut environment: Vec<(&str, &str)> = service["environment"]
            .as_mapping()
            .unwrap()
            .iter()
            .map(|(name, value)| (name.as_str().unwrap(), value.as_str().unwrap()))
            .collect();
        let flags: Vec<&str> = command[2..].iter().map(String::as_str).collect();
        // The image sets it; its volume then contains the authority.
        let image = text(&example("../packaging/image/Dockerfile"));
        assert!(image.contains("XDG_DATA_HOME=/var/lib\n"), "{image}");
        environment.push(("XDG_DATA_HOME", self.dir.path().to_str().unwrap()));
        Serve::configured_with(&dir, &flags, &environment)
    }

    fn prometheus(&self, server: &Serve) -> Prometheus {
        let rules = |name: &str| example("prometheus").join(name).display().to_string();
        let token = self.dir.path().join("secrets/prometheus/token").display().to_string();
        let places = [
            ("scrape_interval: 5s", "scrape_interval: 1s".to_owned()),
            ("evaluation_interval: 5s", "evaluation_interval: 1s".to_owned()),
            ("/etc/prometheus/recording.yml", rules("recording.yml")),
            ("/etc/prometheus/alerts.yml", rules("alerts.yml")),
            ("/run/prometheus/token", token),
            ("firstflight:9090", server.console().to_string()),
        ];
        Prometheus::configured(self.dir.path(), &adapted("compose/prometheus.yml", &places))
    }

    /// Sends a request with the one jar that all servers here share, as they share their ticket
    /// keys.
    fn fetch(&self, path: &Recorder, target: &str) -> (String, String) {
        let flags = ["--tls-earlydata", "--http1.1"];
        // A user who has copied the authority out of the volume trusts both servers.
        let authority = self.dir.path().join("firstflight/authority/authority.pem");
        let fetched = fetch(self.dir.path(), &authority, &path.url(target), &flags);
        let facts = fields(&fetched.facts, "tls_resumed early_data http_code");
        (facts, fetched.ended.out)
    }
}

#[test]
fn a_changed_mount_is_detected_and_sessions_survive() {
    if skipped_without(&["compose-go", "valkey-server", "redis-cli", "promtool", "prometheus"]) {
        return;
    }
    let stack = Stack::start();
    let server = stack.serve("on", &[]);
    let prometheus = stack.prometheus(&server);
    prometheus.wait_for_series("firstflight:replays:increase5m");
    // Sessions belong to host and port, so to the client both servers are the same.
    let path = Recorder::start(server.address);
    // The store has to have recorded for a window before early data is accepted.
    let accepted = within(TEST_TIMEOUT, Duration::from_millis(50), || {
        age(|words| stack.store.cli_as(Some(("firstflight", &stack.password)), words));
        let (facts, page) = stack.fetch(&path, "/");
        facts == "1 accepted 200" && page.contains("Early data: <b>yes</b>")
    });
    assert!(accepted, "{:#?}", server.log().last());
    let (_, page) = stack.fetch(&path, "/account");
    assert!(page.contains("Early data: <b>no</b>"), "{page}");
    let (_, counts) = stack.fetch(&path, "/count");
    let counts: Value = serde_json::from_str(&counts).unwrap();
    assert_eq!(counts["GET /account"], 1, "{counts}");
    prometheus.wait_for_series("firstflight_early_data_accepted_total{transport=\"tcp\"} > 0");
    // The health check would read the address from the configuration, which has port 0 here.
    let health = ["health", "--admin", &server.console().to_string()].map(str::to_owned);
    let ended = run(firstflight(stack.dir.path()).args(health));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    server.stop();

    let server = stack.serve("off", &[("EARLY_DATA", "off"), ("KEEP_ALIVE", "off")]);
    path.forward_to(server.address);
    let (facts, page) = stack.fetch(&path, "/");
    assert!(
        facts.starts_with("1 ") && !facts.contains("accepted"),
        "{facts} {}",
        text(&server.stderr)
    );
    assert!(page.contains("Early data: <b>no</b>"), "{page}");
    let (facts, image) = stack.fetch(&path, "/image");
    assert!(facts.starts_with("1 ") && !facts.contains("accepted"), "{facts}");
    assert!(image.len() > 1_000_000, "{}", image.len());
    server.stop();
}
