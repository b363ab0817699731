//! Certificates from an ACME authority (Pebble).

mod setup;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use firstflight_testkit::{
    Pebble, PebblePlan, ServiceManager, StoreListen, StoreProcess, faketime_library,
    skipped_without,
};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use self::setup::{
    Ports, certificate, configure, is_served, metric, serial, start_server, start_server_with,
    stderr, trusted,
};
use crate::lifecycle::main_process;
use crate::support::openssl::connect;
use crate::support::program::{
    Serve, TEST_TIMEOUT, fetch, fields, firstflight, run, site, until, within,
};

#[test]
fn each_kind_of_challenge_gets_a_certificate_without_downtime() {
    if skipped_without(&["pebble"]) {
        return;
    }
    for kind in ["tls-alpn-01", "http-01"] {
        let (site, ports, pebble, server, root) = start_server(kind, None);
        let dir = site.path();
        // One certificate for both names, which OpenSSL trusts too.
        let script = format!(
            "openssl s_client -connect 127.0.0.1:{} -servername b.test -verify_hostname b.test \
             -CAfile {} -verify_return_error </dev/null",
            ports.https,
            root.display()
        );
        let shown = run(Command::new("sh").args(["-c", &script]));
        assert!(shown.out.contains("Verify return code: 0 (ok)"), "{shown:?}");
        assert!(stderr(&server).contains("there is no certificate yet"), "{}", stderr(&server));
        let state = certificate(&server, "a.test");
        assert_eq!(fields(&state, "source missing last_error"), "acme false null");
        assert_eq!(metric(&server, "firstflight_acme_certificate_missing{site=\"a.test\"}"), 0.0);
        let requested = format!("firstflight_acme_challenges_total{{kind={kind:?}}}");
        assert!(metric(&server, &requested) >= 2.0, "two names");

        // A reload adds a site, and the next one removes another.
        configure(dir, &pebble, ports, kind, &[&["a.test", "b.test"], &["c.test"]]);
        let there = until(|| is_served(dir, &root, ports.https, "c.test"));
        assert!(there, "{}\n{}", stderr(&server), pebble.log());
        configure(dir, &pebble, ports, kind, &[&["c.test"]]);
        assert!(until(|| certificate(&server, "a.test").is_null()), "{}", stderr(&server));
        assert!(is_served(dir, &root, ports.https, "c.test"));
        assert_eq!(pebble.orders(), 2);

        // Validation requests of the authority are not logged as visits.
        let log = server.stop();
        let visits = log.iter().all(|line| line["target"] == "/" && line["status"] == 200);
        assert!(visits, "{log:#?}");
    }
}

/// An HTTP server on port 80 that redirects all requests to https, as load balancers do.
fn redirector(https: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut connection in listener.incoming().flatten() {
            let mut head = BufReader::new(&mut connection).lines().map_while(Result::ok);
            let target = head.next().unwrap_or_default();
            let target = target.split(' ').nth(1).unwrap_or_default().to_owned();
            head.find(String::is_empty);
            let response = format!(
                "HTTP/1.1 301 Moved Permanently\r\nLocation: https://a.test:{https}{target}\r\n\
                 Content-Length: 0\r\nConnection: close\r\n\r\n"
            );
            let _ = connection.write_all(response.as_bytes());
        }
    });
    port
}

#[test]
fn rfc8555_8_3_a_redirected_challenge_is_served_over_https() {
    if skipped_without(&["pebble"]) {
        return;
    }
    let plan = |ports: Ports| PebblePlan { http_port: redirector(ports.https), ..ports.plan() };
    let (_site, _, _, server, _) = start_server_with("http-01", plan);
    let requested = "firstflight_acme_challenges_total{kind=\"http-01\"}";
    assert!(metric(&server, requested) >= 2.0);
    // The challenge's request is logged like any other.
    let log = server.stop();
    let is_challenge = |line: &Value| {
        let target = line["target"].as_str().unwrap_or_default();
        target.starts_with("/.well-known/acme-challenge/") && line["status"] == 200
    };
    assert!(log.iter().any(is_challenge), "{log:#?}");
}

#[test]
fn a_renewal_keeps_connections_and_sessions() {
    if skipped_without(&["pebble"]) {
        return;
    }
    let (site, ports, pebble, server, root) = start_server("tls-alpn-01", Some(60));
    let dir = site.path();
    let first = serial(ports.https, "a.test");
    let session = connect(dir, ports.https, None);
    let resolve = format!("a.test:{}:127.0.0.1", ports.https);
    let url = format!("https://a.test:{}/", ports.https);
    let fetch = || {
        let fetched = fetch(dir, &root, &url, &["--resolve", &resolve, "--tls-earlydata"]);
        assert_eq!(fetched.ended.code, Some(0), "{:?}", fetched.ended);
        fields(&fetched.facts, "tls_resumed early_data")
    };
    let mut requests = 0;
    // A fourth of its life is left when it is to have been renewed, on however busy a machine.
    let renewed = within(3 * TEST_TIMEOUT, Duration::from_millis(250), || {
        fetch();
        requests += 1;
        serial(ports.https, "a.test") != first
    });
    assert!(renewed, "{}", stderr(&server));
    assert!(requests > 3 && pebble.orders() == 2, "{requests} requests, {}", pebble.orders());
    assert_eq!(fetch(), "1 accepted", "with an earlier ticket");
    assert!(connect(dir, ports.https, Some(&session)).reused, "a session from before");
    assert_eq!(
        metric(&server, "firstflight_config_generation"),
        1.0,
        "it is the same configuration"
    );
    let issued = "firstflight_acme_attempts_total{site=\"a.test\",result=\"issued\"}";
    assert_eq!(metric(&server, issued), 2.0);
    server.stop();
}

#[test]
fn the_old_certificate_is_served_while_renewal_fails() {
    if skipped_without(&["pebble"]) {
        return;
    }
    let unrelated = crate::support::program::site();
    let other = Serve::files(unrelated.path(), &[]);
    let plan = |ports: Ports| PebblePlan { tls_port: other.address.port(), ..ports.plan() };
    let (site, ports, mut pebble, server, root) = start_server_with("http-01", plan);
    let dir = site.path();
    let first = serial(ports.https, "a.test");
    server.stop();

    // The authority is down: the certificate on disk is served at once, and the state of the
    // missing one has the reason.
    pebble.kill();
    let sites: &[&[&str]] = &[&["a.test", "b.test"], &["new.test"]];
    configure(dir, &pebble, ports, "http-01", sites);
    let server = Serve::configured(dir);
    assert!(is_served(dir, &root, ports.https, "a.test"), "{}", stderr(&server));
    let why = |server: &Serve| certificate(server, "new.test")["last_error"]["reason"].to_string();
    assert!(until(|| why(&server) != "null"), "{}", stderr(&server));
    assert!(why(&server).contains("127.0.0.1"), "{}", why(&server));
    assert_eq!(certificate(&server, "new.test")["missing"], true);
    assert_eq!(metric(&server, "firstflight_acme_certificate_missing{site=\"new.test\"}"), 1.0);
    server.stop();

    // The authority is up again, but validates at the port of another server.
    pebble.restart();
    configure(dir, &pebble, ports, "tls-alpn-01", sites);
    let server = Serve::configured(dir);
    let refused = until(|| why(&server).contains("tls-alpn-01"));
    assert!(refused, "{}\n{}\n{}", why(&server), stderr(&server), pebble.log());
    assert_eq!(serial(ports.https, "a.test"), first, "{}", stderr(&server));
    let state = certificate(&server, "new.test");
    let moment = |key: &str| state[key].as_str().unwrap_or_default().parse::<jiff::Timestamp>();
    let failed: jiff::Timestamp = state["last_error"]["at"].as_str().unwrap().parse().unwrap();
    let pause = moment("next_try_at").unwrap().as_second() - failed.as_second();
    assert!(pause >= 300, "there is no immediate retry: {state:#}");
    assert_eq!(metric(&server, "firstflight_acme_consecutive_failures{site=\"new.test\"}"), 1.0);
    server.stop();
    other.stop();
}

#[test]
fn a_certificate_close_to_expiry_is_renewed_at_once() {
    if skipped_without(&["faketime", "pebble"]) {
        return;
    }
    const LIFE: u32 = 90 * 86_400;
    let (site, ports, pebble, server, root) = start_server("tls-alpn-01", Some(LIFE));
    let dir = site.path();
    let first = serial(ports.https, "a.test");
    server.stop();
    let library = faketime_library();
    let environment = [
        ("LD_PRELOAD", library.to_str().unwrap()),
        ("FAKETIME", "+85d"),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ("DONT_FAKE_MONOTONIC", "1"),
    ];
    let server = Serve::configured_with(dir, &[], &environment);
    let renewed = until(|| serial(ports.https, "a.test") != first);
    assert!(renewed, "{}\n{}", stderr(&server), pebble.log());
    assert!(is_served(dir, &root, ports.https, "a.test"));
    server.stop();
}

#[test]
fn an_upgrade_keeps_the_certificate() {
    if skipped_without(&["pebble"]) {
        return;
    }
    let (site, ports, pebble, server, root) = start_server("tls-alpn-01", None);
    let dir = site.path();
    let first = serial(ports.https, "a.test");
    server.stop();
    let manager = ServiceManager::new(dir);
    let mut server = Serve::configured_with(dir, &[], &[("NOTIFY_SOCKET", manager.path())]);
    manager.wait_for("READY=1");
    kill(Pid::from_raw(server.pid() as i32), Signal::SIGUSR2).unwrap();
    let successor = main_process(&manager.wait_for("MAINPID="));
    manager.wait_for("READY=1");
    assert!(server.ends_by_itself().success(), "{}", stderr(&server));
    assert!(is_served(dir, &root, ports.https, "a.test"), "{}", stderr(&server));
    // Of two processes with the same state, only one orders: here for a name that a reload adds.
    configure(dir, &pebble, ports, "tls-alpn-01", &[&["a.test", "b.test"], &["c.test"]]);
    assert!(until(|| is_served(dir, &root, ports.https, "c.test")), "{}", stderr(&server));
    assert_eq!((serial(ports.https, "a.test"), pebble.orders()), (first, 2));
    kill(successor.0, Signal::SIGTERM).unwrap();
    assert!(successor.ends());
}

#[test]
fn two_nodes_order_a_certificate_once_and_serve_challenges_for_each_other() {
    if skipped_without(&["pebble", "redis-server"]) {
        return;
    }
    let store = StoreProcess::redis(StoreListen::Unix);
    let (a, b) = (site(), site());
    let (a_ports, b_ports) = (Ports::free(), Ports::free());
    // The authority always validates at the second node.
    let mut pebble = Pebble::start(b_ports.plan());
    let made =
        run(firstflight(a.path()).args(["keys", "new-encryption"]).arg(a.path().join("kek")));
    assert_eq!(made.code, Some(0), "{made:?}");
    fs::copy(a.path().join("kek"), b.path().join("kek")).unwrap();
    for (node, ports, name) in [(&a, a_ports, "a"), (&b, b_ports, "b")] {
        let extra = format!(
            "[store]\nurl = {:?}\n[tickets]\nkeys = \"store\"\nkey_encryption_file = \"kek\"\n\
             node = {name:?}\n",
            store.url()
        );
        fs::write(node.path().join("extra.toml"), extra).unwrap();
        configure(node.path(), &pebble, ports, "tls-alpn-01", &[&["a.test"]]);
    }
    // The second node cannot order by itself: the authority is down, and later the state is locked.
    pebble.kill();
    let second = Serve::configured(b.path());
    let mut lock = None;
    assert!(until(|| {
        lock = locked(&b.path().join("state"));
        lock.is_some()
    }));
    pebble.restart();
    let first = Serve::configured(a.path());
    let root = trusted(a.path(), &pebble);
    let both = [(a_ports.https, &first), (b_ports.https, &second)];
    for (port, server) in both {
        let there = until(|| is_served(a.path(), &root, port, "a.test"));
        assert!(there, "{}\n{}\n{}", stderr(&first), stderr(server), pebble.log());
    }
    assert_eq!(serial(a_ports.https, "a.test"), serial(b_ports.https, "a.test"));
    assert_eq!(pebble.orders(), 1);
    let requested = "firstflight_acme_challenges_total{kind=\"tls-alpn-01\"}";
    assert_eq!(metric(&first, requested), 0.0);
    assert!(metric(&second, requested) >= 1.0);
    let applied = "firstflight_acme_attempts_total{site=\"a.test\",result=\"shared\"}";
    assert_eq!(metric(&second, applied), 1.0);
    drop(lock);
    first.stop();
    second.stop();
}

/// Waits for a node's lock file, and takes the lock.
fn locked(state: &Path) -> Option<Flock<File>> {
    let directory = fs::read_dir(state).ok()?.flatten().next()?;
    let file = File::options().write(true).open(directory.path().join("lock")).ok()?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()
}

#[test]
fn impossible_acme_settings_are_refused_before_serving() {
    if skipped_without(&["pebble"]) {
        return;
    }
    let site = site();
    let root = site.path().join("root");
    let check = |arguments: &[&str]| {
        let mut command = firstflight(site.path());
        command.args(["serve", "--check", "--acme-state", "state"]).arg(&root).args(arguments);
        run(command.current_dir(site.path()))
    };
    let refused = check(&["--acme", "example.test"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.err.contains("--acme-agree"), "{refused:?}");
    let refused = check(&["--acme", "*.example.test", "--acme-agree"]);
    assert!(refused.err.contains("dns-01"), "{refused:?}");
    let good = check(&["--acme", "example.test", "--acme-agree"]);
    assert_eq!((good.code, &*good.err), (Some(0), ""), "both ports, by default");
    for part in ["[::]:443", "[::]:80", "redirect to https", "certificate by ACME"] {
        assert!(good.out.contains(part), "{part}: {good:?}");
    }
    let odd = check(&["--acme", "example.test", "--acme-agree", "--listen", "127.0.0.1:8443"]);
    assert_eq!(odd.code, Some(0));
    assert!(odd.err.contains("warning: no listener has a port"), "{odd:?}");
}
