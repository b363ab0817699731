//! `firstflight serve --upstream`: what the upstream receives of early and other requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use firstflight_testkit::{Recorder, Upstream};

use crate::support::program::{Serve, fetch, fields, site};

#[test]
fn rfc8470_5_1_the_upstream_gets_the_early_data_field() {
    for http in ["--http1.1", "--http2"] {
        let site = site();
        let upstream = Upstream::start();
        let server = Serve::start(site.path(), &["--upstream", &upstream.url()]);
        // The client's Finished is delayed until the upstream has the early request: on loopback it
        // could arrive first.
        let min_requests = Arc::<AtomicUsize>::default();
        let (awaited, origin) = (min_requests.clone(), upstream.clone());
        let path = Recorder::start(server.address);
        path.hold_rest(move || origin.requests().len() >= awaited.load(Ordering::Relaxed));
        let fetch = |target: &str, flags: &[&str]| {
            let early = flags.contains(&"--tls-earlydata") && !upstream.requests().is_empty();
            let before = upstream.requests().len();
            min_requests.store(if early { before + 1 } else { 0 }, Ordering::Relaxed);
            let arguments = [flags, &[http]].concat();
            let fetched = fetch(site.path(), &server.cert, &path.url(target), &arguments);
            assert_eq!(fetched.ended.out, "upstream\n", "{:?}", fetched.ended);
            fetched.facts["early_data"].as_str().unwrap().to_owned()
        };
        assert_eq!(fetch("/full", &["--tls-earlydata"]), "none");
        assert_eq!(fetch("/early", &["--tls-earlydata"]), "accepted");
        assert_eq!(fetch("/resumed", &[]), "none");
        // A client's own Early-Data field is ignored.
        assert_eq!(fetch("/early?2", &["--tls-earlydata", "-H", "Early-Data: 0"]), "accepted");
        assert_eq!(
            upstream.summaries(),
            ["GET /full - ", "GET /early 1 ", "GET /resumed - ", "GET /early?2 1 "]
        );
        let log = server.stop();
        let seen: Vec<_> = log.iter().map(|line| fields(line, "early claim executed")).collect();
        let (early, late) = ("true won true", "false none true");
        assert_eq!(seen, [late, early, late, early]);
    }
}

#[test]
fn rfc8470_3_an_unsafe_early_request_is_held_and_executed_once() {
    let site = site();
    let upstream = Upstream::start();
    let server = Serve::start(site.path(), &["--upstream", &upstream.url()]);
    let url = format!("https://localhost:{}/order", server.port());
    let flags = ["--tls-earlydata", "--early-data-any-method", "-d", "book=1"];
    let early = |fetched: crate::support::program::Fetched| {
        assert_eq!(fetched.ended.out, "upstream\n", "{:?}", fetched.ended);
        fields(&fetched.facts, "early_data num_retries")
    };
    assert_eq!(early(fetch(site.path(), &server.cert, &url, &flags)), "none 0");
    assert_eq!(early(fetch(site.path(), &server.cert, &url, &flags)), "accepted 0");
    assert_eq!(upstream.summaries(), ["POST /order - book=1"; 2]);
    let log = server.stop();
    let seen: Vec<_> = log.iter().map(|line| fields(line, "early held claim executed")).collect();
    assert_eq!(seen, ["false null none true", "true policy won true"]);
}
