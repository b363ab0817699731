//! Replays of recorded first flights over TCP: requests are executed once.

use std::fs;
use std::path::Path;
use std::time::Duration;

use firstflight_testkit::{Recorder, resend};
use serde_json::Value;

use crate::support::peer::certificate;
use crate::support::program::{PAGE, Serve, fetch, fields, firstflight, run, site, within};

/// Fetches through the recorder until early data is accepted. Returns the flight and its target.
fn captured(dir: &Path, server: &Serve, recorder: &Recorder) -> (Vec<u8>, String) {
    let mut round = 0;
    let mut target = String::new();
    let accepted = within(STARTUP_TIMEOUT, Duration::from_millis(250), || {
        round += 1;
        target = format!("/index.html?round={round}");
        let fetched = fetch(dir, &server.cert, &recorder.url(&target), &FLAGS);
        assert_eq!(fetched.ended.out, PAGE, "{:?}", fetched.ended);
        fetched.facts["early_data"] == "accepted"
    });
    assert!(accepted, "no early data: {:#?}", server.log().last());
    (recorder.flight(), target)
}

fn executed(log: &[Value], target: &str) -> usize {
    log.iter().filter(|line| line["target"] == target && line["executed"] == true).count()
}

#[test]
fn rfc8446_8_ten_thousand_replays_execute_nothing() {
    let site = site();
    // With these settings the copies get as far as the strike register.
    let config = site.path().join("config.toml");
    let settings = "[tickets]\nkeys = \"process\"\n[early_data]\nfreshness = \"60s\"\n";
    fs::write(&config, settings).unwrap();
    let server = Serve::files(site.path(), &["--config", config.to_str().unwrap()]);
    let recorder = Recorder::start(server.address);
    let (flight, target) = captured(site.path(), &server, &recorder);
    assert_eq!(resend(server.address, &flight, 10_000, 50), 10_000);
    let log = server.stop();
    assert_eq!(executed(&log, &target), 1);
    // On a slow machine, the other copies are no longer fresh.
    let has_lost = |line: &&Value| line["target"] == target && line["claim"] == "lost";
    let lost = log.iter().filter(has_lost).count();
    assert!(lost > 1_000, "the copies get as far as the strike register: {lost}");
}

#[test]
fn rfc8446_8_2_replays_after_a_restart_with_the_same_keys_execute_nothing() {
    let site = site();
    let dir = site.path();
    let keys = dir.join("keys");
    let made = run(firstflight(dir).args(["keys", "new"]).arg(&keys));
    assert_eq!(made.code, Some(0), "{made:?}");
    // Shortens the recording window after the start, in which no early data is accepted.
    let config = dir.join("config.toml");
    fs::write(&config, "[early_data]\nfreshness = \"2s\"\n").unwrap();
    let cert = certificate(dir);
    let key = dir.join("key.pem");
    let flags = ["--ticket-keys", "--config", "--cert", "--key"];
    let files = [&keys, &config, &cert, &key].map(|path| path.to_str().unwrap());
    let flags: Vec<_> =
        flags.into_iter().zip(files).flat_map(|(flag, file)| [flag, file]).collect();
    let first = Serve::files(dir, &flags);
    let recorder = Recorder::start(first.address);
    let (flight, target) = captured(dir, &first, &recorder);
    assert_eq!(executed(&first.stop(), &target), 1);

    let second = Serve::files(dir, &flags);
    assert_eq!(resend(second.address, &flight, 1_000, 50), 1_000);
    // The log continues in the same file.
    let so_far = executed(&second.log(), &target);
    // The honest client still has tickets from before the restart.
    recorder.forward_to(second.address);
    let honest = fetch(dir, &second.cert, &recorder.url("/index.html?honest"), &FLAGS);
    assert_eq!(honest.ended.out, PAGE, "{:?}", honest.ended);
    let facts = fields(&honest.facts, "tls_resumed early_data http_code");
    assert_eq!(facts, "1 refused 200");
    let log = second.stop();
    assert_eq!((so_far, executed(&log, &target)), (1, 1));
    assert_eq!(executed(&log, "/index.html?honest"), 1);
}

/// The HTTP/2 library delivers no requests of a connection that has ended, so replays over HTTP/2 would
/// not reach the gate.
const FLAGS: [&str; 2] = ["--tls-earlydata", "--http1.1"];

/// Longer than the minute after a start in which no early data is accepted.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(150);
