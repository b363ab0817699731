//! `firstflight fetch` at other people's servers: full, resumed in another process, and early.

use firstflight_testkit::skipped_without;

use crate::peers::Peer;
use crate::running::{PAGE, fetch, fields, site};

const FACTS: &str = "http_version tls_version tls_resumed early_data http_code";

/// Full, resumed without and with early data, each in a process of its own.
fn three_calls(peer: &Peer, dir: &std::path::Path, http: &str) -> Vec<(String, String)> {
    [&[][..], &[], &["--tls-earlydata"]]
        .into_iter()
        .map(|flags| {
            let arguments = [&[http, "-i"], flags].concat();
            let fetched = fetch(dir, &peer.cert, &peer.url(), &arguments);
            assert_eq!(fetched.ended.code, Some(0), "{:?}", fetched.ended);
            assert!(fetched.ended.out.ends_with(PAGE), "{:?}", fetched.ended);
            (fields(&fetched.facts, FACTS), fetched.ended.out)
        })
        .collect()
}

fn facts(calls: &[(String, String)]) -> Vec<&str> {
    calls.iter().map(|(facts, _)| facts.as_str()).collect()
}

#[test]
fn nginx_full_resumed_and_early() {
    if skipped_without(&["nginx"]) {
        return;
    }
    for (flag, name) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let site = site();
        let nginx = Peer::nginx(site.path());
        let calls = three_calls(&nginx, site.path(), flag);
        let expected = [
            format!("{name} TLSv1.3 0 none 200"),
            format!("{name} TLSv1.3 1 none 200"),
            format!("{name} TLSv1.3 1 accepted 200"),
        ];
        assert_eq!(facts(&calls), expected);
        let runs_early = |out: &str| out.contains("x-early: early=1");
        assert!(!runs_early(&calls[0].1) && !runs_early(&calls[1].1), "{calls:?}");
        // On loopback the client's Finished can be there before nginx looks: not every time.
        let again = || {
            let arguments = [flag, "-i", "--tls-earlydata"];
            fetch(site.path(), &nginx.cert, &nginx.url(), &arguments).ended.out
        };
        let mut later = std::iter::repeat_with(again).take(20);
        assert!(runs_early(&calls[2].1) || later.any(|out| runs_early(&out)), "{calls:?}");
    }
}

#[test]
fn nginx_resumes_tls_1_2() {
    if skipped_without(&["nginx"]) {
        return;
    }
    let site = site();
    let nginx = Peer::nginx(site.path());
    let calls: Vec<_> = (0..2)
        .map(|_| fetch(site.path(), &nginx.cert, &nginx.url(), &["--tls-max", "1.2"]))
        .map(|fetched| fields(&fetched.facts, FACTS))
        .collect();
    assert_eq!(calls, ["2 TLSv1.2 0 none 200", "2 TLSv1.2 1 none 200"]);
}

#[test]
fn haproxy_full_resumed_and_early() {
    if skipped_without(&["haproxy"]) {
        return;
    }
    for (flag, name) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let site = site();
        let haproxy = Peer::haproxy(site.path());
        let calls = three_calls(&haproxy, site.path(), flag);
        let expected = [
            format!("{name} TLSv1.3 0 none 200"),
            format!("{name} TLSv1.3 1 none 200"),
            format!("{name} TLSv1.3 1 accepted 200"),
        ];
        assert_eq!(facts(&calls), expected);
    }
}

#[test]
fn h2o_full_and_resumed() {
    if skipped_without(&["h2o"]) {
        return;
    }
    for (flag, name) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let site = site();
        let h2o = Peer::h2o(site.path());
        let calls = three_calls(&h2o, site.path(), flag);
        // Its tickets allow no early data, so none is offered even where it is requested.
        let expected = [
            format!("{name} TLSv1.3 0 none 200"),
            format!("{name} TLSv1.3 1 none 200"),
            format!("{name} TLSv1.3 1 none 200"),
        ];
        assert_eq!(facts(&calls), expected);
    }
}
