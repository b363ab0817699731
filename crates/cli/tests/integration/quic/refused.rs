//! Refused early data: each request reaches the upstream once, and none is lost.

use std::fs;

use bytes::Bytes;
use firstflight_testkit::{Upstream, skipped_without};
use http::Method;

use super::ngtcp2;
use super::rustls_client::{Client, TestRequest};
use super::setup::Setup;
use crate::support::program::{fetch, fields, firstflight, run};

/// Checks the requests of a client's two rounds at the upstream.
fn check(upstream: &Upstream, requests: [&str; 4]) {
    assert_eq!(upstream.summaries(), requests.map(|request| request.to_owned()));
}

/// Servers that restart without their keys, or with other limits and the same keys, so that the
/// early data of the first session cannot be accepted.
fn setups() -> Vec<(Upstream, Setup, Restart)> {
    let keys_lost = {
        let upstream = Upstream::start();
        let setup = Setup::in_front_of(&upstream.url(), "", &[]);
        (upstream, setup, Restart { config: "", keys: None })
    };
    let limits_lowered = {
        let upstream = Upstream::start();
        let dir = tempfile::tempdir().unwrap();
        let keys = dir.keep().join("keys");
        let made = run(firstflight(keys.parent().unwrap()).args(["keys", "new"]).arg(&keys));
        assert_eq!(made.code, Some(0), "{made:?}");
        let keys = keys.display().to_string();
        let setup = Setup::in_front_of(&upstream.url(), "", &["--ticket-keys", &keys]);
        (upstream, setup, Restart { config: "[limits]\nstreams = 7\n", keys: Some(keys) })
    };
    vec![keys_lost, limits_lowered]
}

struct Restart {
    config: &'static str,
    keys: Option<String>,
}

impl Restart {
    fn restart(&self, setup: &mut Setup) {
        let arguments: Vec<_> = self.keys.iter().flat_map(|keys| ["--ticket-keys", keys]).collect();
        setup.restart(self.config, &arguments);
    }
}

impl Drop for Restart {
    fn drop(&mut self) {
        if let Some(keys) = &self.keys {
            let _ = fs::remove_dir_all(std::path::Path::new(keys).parent().unwrap());
        }
    }
}

#[test]
fn rfc9001_4_6_2_rustls_repeats_refused_early_requests() {
    for (upstream, mut setup, restart) in setups() {
        let client = Client::new(&setup.cert);
        let post =
            |target: &str| TestRequest(Method::POST, target.to_owned(), Bytes::from_static(b"x=1"));
        for (target, early) in [("/a", false), ("/b", true), ("/c", false), ("/d", true)] {
            if early {
                restart.restart(&mut setup);
                let (link, responses) = client.connect_early(setup.port(), &[post(target)]);
                assert_eq!((link.early, &*responses[0].body), (Some(false), "upstream\n"));
                link.close();
            } else {
                let mut link = client.connect(setup.port());
                assert_eq!(link.request(post(target)).body, "upstream\n");
                link.close();
            }
        }
        check(&upstream, ["POST /a - x=1", "POST /b - x=1", "POST /c - x=1", "POST /d - x=1"]);
    }
}

#[test]
fn rfc9001_4_6_2_ngtcp2_repeats_refused_early_requests() {
    if skipped_without(&["gtlsclient"]) {
        return;
    }
    for (upstream, mut setup, restart) in setups() {
        fs::write(setup.dir().join("body"), "x=1").unwrap();
        let post = ["--http-method=POST", "--data=body"];
        for (flags, target) in [(&[][..], "/a"), (&[], "/b"), (&post, "/c"), (&post, "/d")] {
            let early = ["/b", "/d"].contains(&target);
            let late = if early { &[][..] } else { &["--disable-early-data"] };
            let flags = [flags, late].concat();
            let run = ngtcp2::client(setup.dir(), setup.port(), &flags, &[target]);
            assert_eq!(run.statuses(), ["200"], "{}", run.summary());
            assert_eq!(run.logged("Early data was rejected"), early, "{}", run.summary());
            if !early {
                restart.restart(&mut setup);
            }
        }
        check(&upstream, ["GET /a - ", "GET /b - ", "POST /c - x=1", "POST /d - x=1"]);
    }
}

#[test]
fn rfc9001_4_6_2_fetch_repeats_refused_early_requests() {
    for (upstream, mut setup, restart) in setups() {
        let post = ["-d", "x=1"];
        for (flags, target) in [(&[][..], "/a"), (&[], "/b"), (&post, "/c"), (&post, "/d")] {
            let early = ["/b", "/d"].contains(&target);
            let now = if early { &EARLY_DATA[..] } else { &[] };
            let flags = [&["--http3-only"], now, flags].concat();
            let url = format!("https://localhost:{}{target}", setup.port());
            let fetched = fetch(setup.dir(), &setup.cert, &url, &flags);
            assert_eq!(fetched.ended.out, "upstream\n", "{:?}", fetched.ended);
            let expected = if early { "refused" } else { "none" };
            assert_eq!(fields(&fetched.facts, "early_data"), expected, "{target}");
            if !early {
                restart.restart(&mut setup);
            }
        }
        check(&upstream, ["GET /a - ", "GET /b - ", "POST /c - x=1", "POST /d - x=1"]);
    }
}

const EARLY_DATA: [&str; 2] = ["--tls-earlydata", "--early-data-any-method"];
