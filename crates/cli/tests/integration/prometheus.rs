//! Prometheus with a running server: the metrics are valid, a replay fires its alert, and every query
//! of the dashboard has data.

use std::fs::{self, File};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use firstflight_testkit::{
    Recorder, StoreListen, StoreProcess, Upstream, free_port, resend, skipped_without,
};
use serde_json::Value;

use crate::examples::start_nginx;
use crate::support::peer::certificate;
use crate::support::program::{
    Running, Serve, TEST_TIMEOUT, fetch, firstflight, run, site, text, until, within,
};

#[test]
fn a_replay_makes_its_alert_fire_and_nothing_else_does() {
    if skipped_without(&["promtool", "prometheus"]) {
        return;
    }
    let site = site();
    let config = site.path().join("config.toml");
    fs::write(&config, "[admin]\naddress = \"127.0.0.1:0\"\n").unwrap();
    let server = Serve::files(site.path(), &["--config", config.to_str().unwrap()]);
    check_page(&server);
    let prometheus = Prometheus::start(site.path(), server.console());
    let recorder = Recorder::start(server.address);
    let accepted = until(|| {
        let url = recorder.url("/index.html");
        let fetched = fetch(site.path(), &server.cert, &url, &["--tls-earlydata", "--http1.1"]);
        fetched.facts["early_data"] == "accepted"
    });
    assert!(accepted, "no early data: {:#?}", server.log().last());
    let flight = recorder.flight();
    // An increase needs more than one sample. Then the rules have been evaluated, too.
    prometheus.wait_for_series("count_over_time(firstflight:replays:increase5m[1m]) > 2");
    prometheus.wait_for_series("firstflight_early_data_accepted_total{transport=\"tcp\"} > 0");
    assert_eq!(prometheus.query("ALERTS"), Vec::<Value>::new());

    assert_eq!(resend(server.address, &flight, 4, 1), 4);
    let alert = "ALERTS{alertname=\"FirstflightReplaysSeen\",alertstate=\"firing\"}";
    prometheus.wait_for_series(alert);
    assert_eq!(prometheus.query("ALERTS").len(), 1, "{:#?}", prometheus.query("ALERTS"));
    check_page(&server);
    server.stop();
}

#[test]
fn every_query_of_the_dashboard_has_data() {
    if skipped_without(&["prometheus", "promtool", "redis-server"]) {
        return;
    }
    let site = site();
    let dir = site.path();
    let store = StoreProcess::redis(StoreListen::Unix);
    let upstream = Upstream::start();
    fs::create_dir(dir.join("root/strict")).unwrap();
    fs::copy(dir.join("root/index.html"), dir.join("root/strict/index.html")).unwrap();
    let config = dir.join("config.toml");
    let root = dir.join("root");
    let root = root.display();
    let settings = format!(
        "[admin]\naddress = \"127.0.0.1:0\"\n\
         [store]\nurl = \"{}\"\nbudget = \"1s\"\n\
         [[site]]\n[[site.route]]\npath = \"/\"\nroot = \"{root}\"\n\
         [[site.route]]\npath = \"/strict\"\nroot = \"{root}/strict\"\nearly_data = \"strict\"\n\
         [[site.route]]\npath = \"/app\"\nupstream = \"app\"\n\
         [[site]]\nnames = [\"acme.test\"]\nacme = true\n\
         [[site.route]]\nroot = \"{root}\"\n\
         [acme]\ndirectory = \"https://127.0.0.1:1/\"\nterms_agreed = true\nstate = \"acme\"\n\
         [upstream.app]\nservers = [\"{}\"]\n",
        store.url(),
        upstream.url()
    );
    fs::write(&config, settings).unwrap();
    let server = Serve::start(dir, &["--config", config.to_str().unwrap()]);
    let prometheus = Prometheus::start(dir, server.console());
    let recorder = Recorder::start(server.address);
    let mut missing = dashboard();
    // Rates need traffic between two scrapes, so it is sent repeatedly.
    let all = within(TEST_TIMEOUT * 3, Duration::ZERO, || {
        age(|words| store.cli(words));
        traffic(dir, &server, &recorder);
        missing.retain(|expression| !prometheus.query(expression).iter().any(has_a_number));
        missing.is_empty()
    });
    assert!(all, "no data for {missing:#?}\n{}", page(&server));
    check_page(&server);
    server.stop();
}

/// mtail derives nginx's metrics from its log, with examples/nginx/firstflight.mtail.
#[test]
fn the_dashboard_shows_nginx_too() {
    if skipped_without(&["nginx", "mtail", "prometheus"]) {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let dir = home.path();
    certificate(dir);
    for words in [&["new", "ring"][..], &["export", "--format", "nginx", "--to", "tickets", "ring"]]
    {
        let ended = run(firstflight(dir).current_dir(dir).arg("keys").args(words));
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    let upstream = Upstream::start();
    let nginx = start_nginx(dir, &upstream.address().to_string());
    let log = dir.join("early-data.log");
    let port = free_port();
    let output = File::create(dir.join("mtail.out")).unwrap();
    let mut mtail = Command::new("mtail");
    mtail.args(["--address", "127.0.0.1", "--port", &port.to_string(), "--logtostderr"]);
    mtail.arg("--progs").arg(example("nginx/firstflight.mtail")).arg("--logs").arg(&log);
    mtail.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
    let _mtail = Running::start(&mut mtail);
    let settings = format!(
        "global: {{ scrape_interval: 1s }}\nscrape_configs:\n  - job_name: nginx\n    \
         static_configs: [{{ targets: [\"127.0.0.1:{port}\"] }}]\n"
    );
    let prometheus = Prometheus::configured(dir, &settings);
    // The client's Finished waits until nginx has responded, so each request with a session is early.
    let recorder = Recorder::start(SocketAddr::from((Ipv4Addr::LOCALHOST, nginx.port)));
    let lines = move || text(&log).lines().count();
    let min_lines = Arc::<AtomicUsize>::default();
    let (awaited, count) = (min_lines.clone(), lines.clone());
    recorder.hold_rest(move || count() >= awaited.load(Ordering::Relaxed));
    let request = |early: bool, flags: &[&str]| {
        min_lines.store(if early { lines() + 1 } else { 0 }, Ordering::Relaxed);
        let flags = [flags, &["--http1.1"]].concat();
        fetch(dir, &nginx.cert, &recorder.url("/page"), &flags)
    };
    request(false, &[]);
    let is_derived = |metric: &str| {
        ["connections_total", "early_data_accepted_total", "too_early_total", "requests_total"]
            .contains(&metric)
            || metric.starts_with("request_seconds")
            || metric == "build_info"
    };
    let mut missing = dashboard();
    missing.retain(|expression| {
        expression.split("firstflight_").skip(1).all(|rest| {
            is_derived(rest.split(|c: char| !(c.is_ascii_lowercase() || c == '_')).next().unwrap())
        }) && expression.contains("firstflight_")
    });
    assert!(missing.len() >= 5, "{missing:#?}");
    let all = within(TEST_TIMEOUT * 3, Duration::ZERO, || {
        let early = request(true, &["--tls-earlydata"]);
        assert_eq!(early.facts["early_data"], "accepted", "{:?}", early.ended);
        request(true, &["--tls-earlydata", "--early-data-any-method", "-d", "book=1"]);
        missing.retain(|expression| !prometheus.query(expression).iter().any(has_a_number));
        missing.is_empty()
    });
    assert!(all, "no data for {missing:#?}\n{}", text(&dir.join("mtail.out")));
    let ran = "firstflight_requests_total{method=\"get\",early=\"ran\",status=\"2xx\"} > 0";
    let held = "firstflight_requests_total{method=\"post\",early=\"held\",status=\"4xx\"} > 0";
    for expression in [ran, held, "firstflight_too_early_total > 0"] {
        prometheus.wait_for_series(expression);
    }
}

/// Creates traffic of every kind.
fn traffic(dir: &Path, server: &Serve, recorder: &Recorder) {
    let direct = |target: &str| format!("https://127.0.0.1:{}{target}", server.address.port());
    let tcp = ["--tls-earlydata", "--http1.1"];
    fetch(dir, &server.cert, &recorder.url("/index.html"), &tcp);
    let flight = recorder.flight();
    resend(server.address, &flight, 1, 1);
    for target in ["/strict/index.html?held", "/app"] {
        fetch(dir, &server.cert, &direct(target), &tcp);
    }
    fetch(dir, &server.cert, &direct("/index.html"), &["--tls-earlydata", "--http3-only"]);
    // Without a session.
    let fresh = tempfile::tempdir_in(dir).unwrap();
    fetch(fresh.path(), &server.cert, &direct("/index.html"), &["--http2"]);
}

/// Makes the store appear to have recorded for a day, so that its claims count.
pub(crate) fn age(cli: impl Fn(&[&str]) -> String) {
    let epoch = "firstflight:epoch";
    if let Ok(ttl) = cli(&["PTTL", epoch]).parse::<u64>()
        && ttl > DAY_MS
    {
        cli(&["PEXPIRE", epoch, &(ttl - DAY_MS).to_string()]);
    }
}

/// The queries of the dashboard, with values for its variables.
fn dashboard() -> Vec<String> {
    let dashboard: Value =
        serde_json::from_str(&text(&example("grafana/firstflight.json"))).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let expressions = targets.map(|target| {
        let expression = target["expr"].as_str().unwrap();
        let expression = expression.replace("$__rate_interval", "1m");
        expression.replace("$job", ".+").replace("$instance", ".+")
    });
    let expressions = expressions.collect::<Vec<_>>();
    assert!(expressions.len() > 40, "{}", expressions.len());
    expressions
}

fn has_a_number(series: &Value) -> bool {
    let value = series["value"][1].as_str().unwrap();
    value.parse::<f64>().unwrap().is_finite()
}

fn example(path: &str) -> PathBuf {
    fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(path))
        .unwrap()
}

fn page(server: &Serve) -> String {
    let url = format!("http://{}/metrics", server.console());
    run(Command::new("curl").args(["--silent", "--fail", &url])).out
}

/// Checks the metrics with promtool.
fn check_page(server: &Serve) {
    let page = page(server);
    assert!(page.contains("\nfirstflight_build_info{"), "{page}");
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("stderr");
    let mut promtool = Running::start(
        Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(File::create(&output).unwrap())
            .stderr(File::options().append(true).open(&output).unwrap()),
    );
    promtool.0.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let status = promtool.wait().expect("promtool ends");
    assert!(status.success() && text(&output).is_empty(), "{}\n{page}", text(&output));
}

/// A running Prometheus.
pub(crate) struct Prometheus {
    _running: Running,
    address: SocketAddr,
}

impl Prometheus {
    /// Starts Prometheus with the rules of the examples, scraping every second.
    fn start(dir: &Path, target: SocketAddr) -> Self {
        let [recording, alerts] = ["recording", "alerts"]
            .map(|name| example(&format!("prometheus/{name}.yml")).display().to_string());
        let settings = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\n\
             rule_files: [{recording:?}, {alerts:?}]\n\
             scrape_configs:\n  - job_name: firstflight\n    static_configs: \
             [{{ targets: [\"{target}\"] }}]\n"
        );
        Self::configured(dir, &settings)
    }

    /// Starts Prometheus with this configuration, and waits until its target is up.
    pub(crate) fn configured(dir: &Path, settings: &str) -> Self {
        let config = dir.join("prometheus.yml");
        fs::write(&config, settings).unwrap();
        let output = dir.join("prometheus.log");
        let log = File::create(&output).unwrap();
        let running = Running::start(
            Command::new("prometheus")
                .arg("--config.file")
                .arg(&config)
                .arg("--storage.tsdb.path")
                .arg(dir.join("tsdb"))
                .args(["--web.listen-address", "127.0.0.1:0"])
                .stdin(Stdio::null())
                .stdout(log.try_clone().unwrap())
                .stderr(log),
        );
        let mut address = None;
        until(|| {
            let output = text(&output);
            let line = output.lines().find(|line| line.contains("msg=\"Listening on\""));
            address = line.and_then(|line| line.rsplit_once("address=")?.1.trim().parse().ok());
            address.is_some()
        });
        let address = address.unwrap_or_else(|| panic!("no Prometheus: {}", text(&output)));
        let prometheus = Self { _running: running, address };
        prometheus.wait_for_series("up == 1");
        prometheus
    }

    /// The current series of an expression.
    pub(crate) fn query(&self, expression: &str) -> Vec<Value> {
        let url = format!("http://{}/api/v1/query", self.address);
        let query = format!("query={expression}");
        let ended =
            run(Command::new("curl").args(["--silent", "--get", "--data-urlencode", &query, &url]));
        let response: Value = serde_json::from_str(&ended.out).unwrap_or_default();
        match response["data"]["result"].as_array() {
            Some(result) => result.clone(),
            // Prometheus may not be ready yet.
            None => {
                assert_ne!(response["errorType"], "bad_data", "{expression}: {response}");
                Vec::new()
            }
        }
    }

    /// Waits until an expression has a series.
    pub(crate) fn wait_for_series(&self, expression: &str) {
        assert!(until(|| !self.query(expression).is_empty()), "no series: {expression}");
    }
}

const DAY_MS: u64 = 86_400_000;
