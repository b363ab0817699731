//! `firstflight lab --browser`: a short run with real browsers.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::lab::LAB;
use crate::support::program::{Running, firstflight, run, text, until, within};

/// How long browsers may take on a busy machine.
const BROWSER_TIMEOUT: Duration = Duration::from_secs(400);

/// A lab with browsers, in a temporary directory.
fn lab(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = firstflight(dir);
    let search = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{search}:/usr/sbin:/sbin")).env("TMPDIR", dir);
    command.args(["lab", "--profile", "walkthrough", "--page", "small"]).args(arguments);
    command.arg("-o").arg(dir.join("results")).stdin(Stdio::null());
    command.stdout(File::create(dir.join("out")).unwrap());
    command.stderr(File::create(dir.join("err")).unwrap());
    command
}

/// Runs the lab, which must succeed. Returns the record.
fn record(dir: &Path, arguments: &[&str]) -> Value {
    let mut running = Running::start(&mut lab(dir, arguments));
    let mut status = None;
    within(BROWSER_TIMEOUT, Duration::from_millis(50), || {
        status = running.0.try_wait().unwrap();
        status.is_some()
    });
    let code = status.and_then(|status| status.code());
    let err = text(&dir.join("err"));
    // On a busy machine all visits may be spoiled.
    let has_measured = code == Some(0) || code == Some(2) && err.contains("no good visit of ");
    assert!(has_measured && !err.contains("FAILED"), "{err}{}", text(&dir.join("out")));
    serde_json::from_slice(&fs::read(dir.join("results/lab.json")).unwrap()).unwrap()
}

/// The visits of a cell that were not spoiled, in order.
fn good_visits<'a>(record: &'a Value, [browser, server, kind]: [&str; 3]) -> Vec<&'a Value> {
    let cells = record["visit_cells"].as_array().unwrap();
    let is_in_cell = |visit: &&Value| {
        let cell = &cells[visit["cell"].as_u64().unwrap() as usize];
        cell["browser"] == browser && cell["server"] == server && cell["visit"] == kind
    };
    let visits = record["visits"].as_array().unwrap().iter().filter(is_in_cell);
    let spoiled = |visit: &Value| visit["fault"]["kind"] == "spoiled";
    let good: Vec<&Value> = visits.filter(|visit| !spoiled(visit)).collect();
    for visit in &good {
        assert!(visit["fault"].is_null(), "{browser}, {server}, {kind}: {visit}");
    }
    good
}

const RTT: f64 = 112.0;

fn tls(visit: &Value) -> f64 {
    visit["wire"]["tls_ms"].as_f64().unwrap_or_else(|| panic!("{visit}"))
}

fn total(visit: &Value) -> f64 {
    visit["wire"]["last_byte_ms"].as_f64().unwrap_or_else(|| panic!("{visit}"))
}

/// By the packets, TLS setup takes one round trip or none, which shows in the total of a return.
#[test]
fn a_return_with_early_data_saves_the_round_trip_of_tls() {
    let _one_at_a_time = LAB.lock().unwrap_or_else(|error| error.into_inner());
    let dir = tempfile::tempdir().unwrap();
    let arguments = ["--browser", "firefox,chromium", "--server", "firstflight,nginx"];
    let arguments = [&arguments[..], &["--visits", "6", "--lanes", "2", "--no-films"]].concat();
    let record = record(dir.path(), &arguments);
    for browser in ["firefox", "chromium"] {
        for server in ["firstflight", "nginx"] {
            for visit in good_visits(&record, [browser, server, "first"]) {
                assert_eq!(visit["wire"]["label"], "full", "{visit}");
            }
            for visit in good_visits(&record, [browser, server, "off"]) {
                assert_ne!(visit["wire"]["label"], "0-RTT", "{visit}");
                assert_eq!(visit["wire"]["round_trips"], 3, "{visit}");
                assert!(tls(visit) >= RTT && total(visit) >= 3.0 * RTT, "{visit}");
            }
            let on = good_visits(&record, [browser, server, "on"]);
            let early = |visit: &&&Value| visit["wire"]["label"] == "0-RTT";
            // Our server issues a ticket with each response; nginx's two tickets suffice for two
            // visits.
            let least = if server == "firstflight" { on.len() } else { on.len().min(2) };
            assert!(on.iter().filter(early).count() >= least, "{browser}, {server}: {on:?}");
            for visit in on.iter().filter(early) {
                assert_eq!(visit["wire"]["round_trips"], 2, "{visit}");
                assert!(visit["wire"]["early_bytes"].as_u64() > Some(0), "{visit}");
                assert!(total(visit) >= 2.0 * RTT, "{visit}");
            }
            // A busy machine delays some visits.
            let least = |value: fn(&Value) -> f64| {
                on.iter().filter(early).map(|visit| value(visit)).fold(f64::MAX, f64::min)
            };
            assert!(least(tls) < RTT && least(total) < 3.0 * RTT, "{on:?}");
        }
    }
}

/// The IDs of processes whose environment contains a directory.
fn processes_in(dir: &Path) -> Vec<String> {
    let dir = dir.display().to_string();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let is_inside = |process: &fs::DirEntry| {
        let environment = fs::read(process.path().join("environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(&dir)
    };
    processes.filter(is_inside).map(|entry| entry.file_name().display().to_string()).collect()
}

#[test]
fn an_interrupted_run_leaves_no_browser_behind() {
    let _one_at_a_time = LAB.lock().unwrap_or_else(|error| error.into_inner());
    let dir = tempfile::tempdir().unwrap();
    let arguments = ["--browser", "firefox,chromium", "--server", "firstflight", "--lanes", "2"];
    let mut running = Running::start(&mut lab(dir.path(), &arguments));
    // This program, its server, and two browsers with several processes each.
    let many =
        within(BROWSER_TIMEOUT, Duration::from_millis(50), || processes_in(dir.path()).len() > 8);
    assert!(many, "{}", text(&dir.path().join("err")));
    running.signal(Signal::SIGINT);
    assert_eq!(running.wait().and_then(|status| status.code()), Some(130));
    let gone = until(|| processes_in(dir.path()).is_empty());
    assert!(gone, "{:?}", processes_in(dir.path()));
    let remaining: Vec<_> =
        fs::read_dir(dir.path()).unwrap().flatten().map(|e| e.file_name()).collect();
    let scratch =
        |name: &&std::ffi::OsString| name.display().to_string().contains("firstflight-lab");
    assert_eq!(remaining.iter().find(scratch), None);
}

#[test]
fn invalid_flags_are_refused_with_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    for (arguments, words) in [
        (&["--browser", "firefox", "--experiment", "get"][..], "cannot be used with"),
        (&["--browser", "opera"], "opera"),
        (&["--browser", "/no/such/program"], "/no/such/program"),
        (&["--browser", "firefox", "--page", "large"], "small, resources, image"),
        (&["--page", "small"], "--browser"),
    ] {
        let ended = run(firstflight(dir.path()).arg("lab").args(arguments));
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.err.contains(words), "{ended:?}");
    }
}
