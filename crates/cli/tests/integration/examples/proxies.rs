//! nginx and HAProxy with their examples, two nodes each with the keys of one ring: which requests
//! are executed early, what the application receives, and what happens to copies. `keys_fleet`
//! tests sessions across rotations with the same examples.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use firstflight_testkit::{Recorder, Upstream, skipped_without};
use tempfile::TempDir;

use super::{start_haproxy, start_nginx};
use crate::support::peer::{Peer, certificate};
use crate::support::program::{
    Fetched, TEST_TIMEOUT, fetch, fields, firstflight, run, text, until, within,
};

/// Two nodes in front of one application, and an attacker on the path to the first.
struct Fleet {
    dir: TempDir,
    application: Upstream,
    nodes: [Peer; 2],
    path: Recorder,
    /// The number of lines in the first node's log before packets after a first flight may pass.
    min_lines: Arc<AtomicUsize>,
    http: &'static str,
    log: &'static str,
}

impl Fleet {
    fn start(
        http: &'static str,
        format: &str,
        log: &'static str,
        node: impl Fn(&Path, &str) -> Peer,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        certificate(dir.path());
        keys(dir.path(), &["new", "ring"]);
        let application = Upstream::start();
        let address = application.address().to_string();
        let nodes = ["a", "b"].map(|name| {
            let home = dir.path().join(name);
            fs::create_dir(&home).unwrap();
            for file in ["cert.pem", "key.pem", "both.pem"] {
                fs::copy(dir.path().join(file), home.join(file)).unwrap();
            }
            keys(
                dir.path(),
                &["export", "--format", format, "--to", &format!("{name}/tickets"), "ring"],
            );
            node(&home, &address)
        });
        let min_lines = Arc::<AtomicUsize>::default();
        let (awaited, file) = (min_lines.clone(), dir.path().join("a").join(log));
        let opens = move || text(&file).lines().count() >= awaited.load(Ordering::Relaxed);
        let path = Recorder::start(address_of(&nodes[0]));
        path.hold_rest(opens);
        Self { dir, application, nodes, path, min_lines, http, log }
    }

    /// Sends a request to the first node. If `early`, the client's Finished is delayed until the
    /// node has responded.
    fn fetch(&self, target: &str, early: bool, flags: &[&str]) -> Fetched {
        let lines = if early { self.lines().len() + 1 } else { 0 };
        self.min_lines.store(lines, Ordering::Relaxed);
        let arguments = [flags, &[self.http, "--include"]].concat();
        let fetched =
            fetch(self.dir.path(), &self.nodes[0].cert, &self.path.url(target), &arguments);
        self.min_lines.store(0, Ordering::Relaxed);
        assert!(fetched.ended.out.ends_with("upstream\n"), "{target}: {:?}", fetched.ended);
        assert!(fetched.ended.out.to_lowercase().contains("strict-transport-security: max-age"));
        fetched
    }

    /// The first node's log.
    fn lines(&self) -> Vec<String> {
        text(&self.dir.path().join("a").join(self.log)).lines().map(str::to_owned).collect()
    }

    /// The response of the first node on one of its sockets.
    fn curl(&self, socket: &str) -> String {
        let mut command = Command::new("curl");
        command.arg("--unix-socket").arg(self.dir.path().join("a").join(socket));
        run(command.args(["--silent", "--include", "http://localhost/metrics"])).out
    }

    fn assert_redirects(&self) {
        let moved = self.curl("plain").to_lowercase();
        let there = moved.contains("location: https://localhost/metrics");
        assert!(there && moved.contains(" 308 "), "{moved}");
    }

    /// How often the application got a request for this target, with any method.
    fn requested(&self, target: &str) -> usize {
        self.application.recorded(target).len()
    }

    /// Sends the latest first flight `times` times to each node, and waits for the first bytes of
    /// each response, which belong to the handshake. The connections stay open as long as the
    /// returned streams: a server may drop a request whose client has disconnected.
    fn copies(&self, times: usize) -> Vec<TcpStream> {
        let flight = self.path.flight();
        let copy = |node: &Peer| {
            let mut tcp = TcpStream::connect(address_of(node)).unwrap();
            tcp.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
            tcp.write_all(&flight).unwrap();
            assert!(tcp.read(&mut [0; 1024]).unwrap() > 0, "a copy gets a response");
            tcp
        };
        self.nodes.iter().flat_map(|node| (0..times).map(|_| copy(node))).collect()
    }
}

fn address_of(node: &Peer) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, node.port).into()
}

fn keys(dir: &Path, arguments: &[&str]) {
    let ended = run(firstflight(dir).current_dir(dir).arg("keys").args(arguments));
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

const POLL_INTERVAL: Duration = Duration::from_millis(10);
const EARLY: [&str; 1] = ["--tls-earlydata"];
const ORDER: [&str; 4] = ["--tls-earlydata", "--early-data-any-method", "-d", "book=1"];

#[test]
fn rfc8470_nginx_executes_safe_requests_early_and_responds_425_to_others() {
    if skipped_without(&["nginx"]) {
        return;
    }
    for http in ["--http1.1", "--http2"] {
        let fleet = Fleet::start(http, "nginx", "early-data.log", start_nginx);
        let verdict = |fetched: Fetched| fields(&fetched.facts, "early_data num_retries http_code");
        assert_eq!(verdict(fleet.fetch("/full", false, &EARLY)), "none 0 200");
        assert_eq!(verdict(fleet.fetch("/early", true, &EARLY)), "accepted 0 200");
        assert_eq!(verdict(fleet.fetch("/late", false, &[])), "none 0 200");
        // The client's Finished waits for the 425.
        assert_eq!(verdict(fleet.fetch("/order", true, &ORDER)), "accepted 1 200");
        let _copies = fleet.copies(3);
        let lines_with = |words: &str| {
            let lines = fleet.lines();
            lines.into_iter().filter(|line| line.contains(words)).collect::<Vec<_>>()
        };
        // The copies reach the rule.
        assert!(until(|| lines_with("POST /order").len() == 2 + 3), "{:#?}", fleet.lines());
        // The field of a proxy in front of this one is kept.
        assert_eq!(verdict(fleet.fetch("/marked", false, &["-H", "Early-Data: 1"])), "none 0 200");
        let seen = ["GET /full - ", "GET /early 1 ", "GET /late - ", "POST /order - book=1"];
        assert_eq!(fleet.application.summaries(), [&seen[..], &["GET /marked 1 "]].concat());
        let [early, late] = ["GET /early", "GET /late"].map(|words| lines_with(words).remove(0));
        assert!(early.ends_with("tls=TLSv1.3 resumed=r early=1"), "{early}");
        assert!(late.ends_with("resumed=r early=-"), "{late}");
        let orders = lines_with("POST /order");
        assert!(orders[0].contains("\" 425 ") && orders[0].ends_with("early=1"), "{orders:#?}");
        assert!(orders[1].contains("\" 200 ") && orders[1].ends_with("early=-"), "{orders:#?}");
        assert!(orders[2..].iter().all(|copy| copy.contains("\" 425 ")), "{orders:#?}");
    }
}

/// As described in examples/nginx/README.md. This is the reason for its narrow rule.
#[test]
fn nginx_executes_each_replay_at_each_node() {
    if skipped_without(&["nginx"]) {
        return;
    }
    let fleet = Fleet::start("--http1.1", "nginx", "early-data.log", start_nginx);
    let (mut round, mut target) = (0, String::new());
    let mut sent = Instant::now();
    // A copy is fresh for ten seconds, which a busy machine may exceed.
    let executed = until(|| {
        round += 1;
        target = format!("/copied/{round}/");
        sent = Instant::now();
        fleet.fetch("/full", false, &EARLY);
        assert_eq!(fleet.fetch(&target, true, &EARLY).facts["early_data"], "accepted");
        let _copies = fleet.copies(3);
        within(Duration::from_secs(5), POLL_INTERVAL, || fleet.requested(&target) == 1 + 2 * 3)
    });
    assert!(executed, "{:#?}", fleet.application.summaries());
    fleet.assert_redirects();
    // OpenSSL accepts a ticket's age within ten seconds, plus one for rounding.
    thread::sleep(Duration::from_secs(12).saturating_sub(sent.elapsed()));
    let _stale = fleet.copies(3);
    fleet.fetch("/full", false, &[]);
    assert_eq!(fleet.requested(&target), 1 + 2 * 3, "stale copies are executed");
}

#[test]
fn haproxy_holds_early_data_and_executes_no_replay() {
    if skipped_without(&["haproxy"]) {
        return;
    }
    for http in ["--http1.1", "--http2"] {
        let fleet = Fleet::start(http, "haproxy", "peer.stderr", |dir, to| {
            start_haproxy(dir, to, |config| config)
        });
        let verdict = |fetched: Fetched| fields(&fetched.facts, "early_data num_retries http_code");
        assert_eq!(verdict(fleet.fetch("/full", false, &EARLY)), "none 0 200");
        // If it were delayed, both sides would wait for the client's Finished.
        assert_eq!(verdict(fleet.fetch("/early", false, &EARLY)), "accepted 0 200");
        let _copies = fleet.copies(3);
        assert_eq!(verdict(fleet.fetch("/order", false, &ORDER)), "accepted 0 200");
        let _more = fleet.copies(3);
        assert_eq!(verdict(fleet.fetch("/marked", false, &["-H", "Early-Data: 1"])), "none 0 200");
        let seen = ["GET /full - ", "GET /early - ", "POST /order - book=1"];
        assert_eq!(fleet.application.summaries(), [&seen[..], &["GET /marked 1 "]].concat());
        let lines = fleet.lines();
        let early = lines.iter().find(|line| line.contains("/early")).unwrap();
        assert!(early.ends_with("resumed=1 early=0"), "{lines:#?}");
    }
}

/// HAProxy 2.6 never reports a request as early, so its rule is tested with another property.
#[test]
fn haproxy_responds_425_by_its_rule() {
    if skipped_without(&["haproxy"]) {
        return;
    }
    let fleet = Fleet::start("--http1.1", "haproxy", "peer.stderr", |dir, to| {
        start_haproxy(dir, to, |config| {
            config.replace("if { ssl_fc_has_early }", "if { ssl_fc_is_resumed }")
        })
    });
    fleet.fetch("/full", false, &[]);
    fleet.fetch("/resumed", false, &[]);
    let url = fleet.path.url("/order");
    let refused = fetch(fleet.dir.path(), &fleet.nodes[0].cert, &url, &["--http1.1", "-d", "x=1"]);
    assert_eq!(fields(&refused.facts, "tls_resumed http_code"), "1 425");
    assert_eq!(fleet.application.summaries(), ["GET /full - ", "GET /resumed - "]);

    let rejected = "haproxy_frontend_http_responses_total{proxy=\"web\",code=\"4xx\"} 1";
    let page = fleet.curl("metrics");
    assert!(page.lines().any(|line| line == rejected), "{page}");
    fleet.assert_redirects();
}
