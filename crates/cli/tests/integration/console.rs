//! The console in a browser: live figures, replays, and access control.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use firstflight_testkit::{Recorder, resend, skipped_without};

use crate::support::chromium::Browser;
use crate::support::program::{Ended, PAGE, Serve, fetch, firstflight, run, site, text, until};

#[test]
fn the_console_shows_0_rtt_and_a_blocked_replay() {
    if skipped_without(&["chromium"]) {
        return;
    }
    let site = site();
    let (server, console) = with_console(site.path(), "");
    let recorder = Recorder::start(server.address);
    let mut browser = Browser::open(site.path(), "");
    browser.go(&console);
    browser.wait_for_text(LIVE, "Live");
    browser.wait_for_text(USED, "Not offered");
    browser.wait_for_text(REPLAYED, "No flight was received twice");
    // The scroll position stays the same when parts of the page are drawn again.
    browser.eval("document.querySelector('#keys .scroll').focus()");

    let flight = early_flight(site.path(), &server, &recorder);
    browser.wait_for_text(USED, "Yes");
    browser.wait_for_text("document.getElementById('refusals').innerText", "accepted");
    browser.wait_for_text("document.getElementById('kinds').innerText", "0-RTT");
    assert_eq!(resend(server.address, &flight, 20, 1), 20);
    browser.wait_for_text(REPLAYED, "Tried, and stopped");
    browser.wait_for_text("document.getElementById('replays').innerText", "127.0.0.0/24");
    browser.wait_for_text("document.getElementById('replays').innerText", "20");
    let active_section = "document.activeElement.closest('section').id";
    assert_eq!(browser.eval(active_section), "keys");

    for width in [320, 390, 800, 1400] {
        let size =
            json!({ "width": width, "height": 800, "deviceScaleFactor": 1, "mobile": false });
        browser.call("Emulation.setDeviceMetricsOverride", size);
        let overhang = "document.documentElement.scrollWidth - innerWidth";
        assert!(browser.eval(overhang).as_i64().unwrap() <= 0, "{width} px wide");
    }
    assert_eq!(browser.console_messages, [""; 0]);
    let external: Vec<_> =
        browser.requested.iter().filter(|url| !url.starts_with(&console)).collect();
    assert!(external.is_empty(), "{external:?}");
}

#[test]
fn without_scripts_the_console_is_a_snapshot() {
    if skipped_without(&["chromium"]) {
        return;
    }
    let site = site();
    let (_server, console) = with_console(site.path(), "");
    let mut browser = Browser::open(site.path(), "");
    browser.call("Emulation.setScriptExecutionDisabled", json!({ "value": true }));
    browser.go(&console);
    browser.wait_for_text(LIVE, "Snapshot of");
    browser.wait_for_text("document.getElementById('keys').innerText", "current");
    assert_eq!(browser.console_messages, [""; 0]);
}

#[test]
fn a_page_with_a_rebound_name_reads_nothing_from_the_console() {
    if skipped_without(&["chromium"]) {
        return;
    }
    let site = site();
    let (_server, console) = with_console(site.path(), "");
    let mut browser = Browser::open(site.path(), "MAP rebound.example 127.0.0.1");
    browser.go(&console.replace("127.0.0.1", "rebound.example"));
    browser.wait_for_text("document.body.innerText", "unknown host name");
    // A script of that origin cannot read the responses of the address either.
    let steal = format!(
        "fetch('{console}status.json').then(response => response.text()).catch(error => String(error))"
    );
    browser.wait_for_text(&steal, "Failed to fetch");
}

#[test]
fn a_browser_logs_in_with_the_token_and_scripts_cannot_read_it() {
    if skipped_without(&["chromium"]) {
        return;
    }
    let site = site();
    let token = write_token(site.path());
    let (_server, console) = with_console(site.path(), "token_file = \"admin.token\"\n");
    let mut browser = Browser::open(site.path(), "");
    browser.go(&console);
    let log_in = |browser: &mut Browser, token: &str| {
        browser.wait_for_text("document.title", "log in");
        let fill = format!("document.getElementById('token').value = '{token}'");
        browser.eval(&fill);
        browser.eval("document.querySelector('form').submit()");
    };
    log_in(&mut browser, "not the token");
    browser.wait_for_text("document.body.innerText", "Wrong token");
    log_in(&mut browser, &token);
    browser.wait_for_text(LIVE, "Live");
    assert_eq!(browser.eval("document.cookie"), "");
    assert!(browser.requested.iter().all(|url| !url.contains(&token)));
    browser.eval("document.querySelector('form[action=logout]').submit()");
    browser.wait_for_text("document.title", "log in");
}

#[test]
fn no_response_contains_a_secret() {
    let site = site();
    let dir = site.path();
    let keys = dir.join("keys");
    let made = run(firstflight(dir).args(["keys", "new"]).arg(&keys));
    assert_eq!(made.code, Some(0), "{made:?}");
    let token = write_token(dir);
    let more = "token_file = \"admin.token\"\n";
    let (server, console) = with_console(dir, more);
    let recorder = Recorder::start(server.address);
    early_flight(dir, &server, &recorder);
    let mut secrets = vec![token.clone()];
    secrets.extend(server.log().iter().map(|line| line["client_random"].as_str().unwrap().into()));
    secrets.extend(key_secrets(&keys));
    for path in ["", "metrics", "status.json", "readyz", "nothing"] {
        let response = curl(&[&format!("{console}{path}"), "-i", "-H", &bearer(&token)]);
        assert!(response.out.contains("HTTP/1.1 "), "{response:?}");
        for secret in &secrets {
            assert!(!response.out.contains(secret), "{path}: {secret}");
        }
    }
    assert!(!text(&server.stderr).contains(&token));
}

#[test]
fn an_admin_listener_on_all_addresses_needs_a_token() {
    let site = site();
    let config = site.path().join("config.toml");
    fs::write(&config, "[admin]\naddress = \"0.0.0.0:0\"\n").unwrap();
    let root = site.path().join("root");
    let mut command = firstflight(site.path());
    command.args(["serve", "--listen", "127.0.0.1:0", "--root"]).arg(root);
    let ended = run(command.arg("--config").arg(&config));
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err.contains("token_file"), "{ended:?}");
}

/// Connections of unauthenticated clients: some stop in the middle of a request head, some send
/// requests repeatedly.
#[test]
fn probes_get_responses_while_other_clients_hold_all_connections() {
    let site = site();
    let token = write_token(site.path());
    for more in ["", "token_file = \"admin.token\"\n"] {
        let (_server, console) = with_console(site.path(), more);
        let address = console.trim_start_matches("http://").trim_end_matches('/');
        let connect = |payload: &str| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(HALF_HEADER_TIMEOUT)).unwrap();
            // The server may have closed it already, to make room.
            let _ = stream.write_all(payload.as_bytes());
            stream
        };
        let status = |stream: &mut TcpStream| {
            let mut status = [0; 12];
            stream.read_exact(&mut status).map(|()| status)
        };
        let request =
            |fields: &str| format!("GET /livez HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
        // A connection with the token stays open when others arrive.
        let own = format!("{}\r\n", bearer(&token));
        let mut operator = connect(&request(&own));
        assert_eq!(&status(&mut operator).unwrap(), b"HTTP/1.1 200");
        std::thread::sleep(Duration::from_millis(100));
        for payload in ["GET /livez HTTP/1.1\r\n", &request("")] {
            let _held: Vec<_> = (0..200).map(|_| connect(payload)).collect();
            // In half of the time after which a silent connection is closed.
            let started = Instant::now();
            assert_eq!(&status(&mut connect(&request(""))).unwrap(), b"HTTP/1.1 200");
            assert!(started.elapsed() < HALF_HEADER_TIMEOUT, "{:?}", started.elapsed());
        }
        if more.is_empty() {
            continue;
        }
        operator.write_all(request(&own).as_bytes()).unwrap();
        let mut response = String::new();
        let _ = operator.set_read_timeout(Some(Duration::from_secs(1)));
        let _ = operator.read_to_string(&mut response);
        assert!(
            response.contains("HTTP/1.1 200") && !response.contains("connection: close"),
            "{response}"
        );
        let mut response = String::new();
        connect(&request("")).read_to_string(&mut response).unwrap();
        assert!(response.contains("connection: close"), "{response}");
    }
}

/// Starts a server with an admin listener. Returns it with the URL of its console.
fn with_console(dir: &Path, more: &str) -> (Serve, String) {
    let config = dir.join("config.toml");
    fs::write(&config, format!("[admin]\naddress = \"127.0.0.1:0\"\n{more}")).unwrap();
    let server = Serve::files(dir, &["--config", config.to_str().unwrap()]);
    let mut console = None;
    until(|| {
        console = text(&server.stderr).lines().find_map(|line| {
            line.split_once("the console is on ").map(|(_, address)| address.trim().to_owned())
        });
        console.is_some()
    });
    let console = console.unwrap_or_else(|| panic!("no console: {}", text(&server.stderr)));
    (server, format!("http://{console}/"))
}

/// Fetches until early data is accepted, and returns the first flight.
fn early_flight(dir: &Path, server: &Serve, recorder: &Recorder) -> Vec<u8> {
    let accepted = until(|| {
        let url = recorder.url("/index.html");
        let fetched = fetch(dir, &server.cert, &url, &["--tls-earlydata", "--http1.1"]);
        assert_eq!(fetched.ended.out, PAGE, "{:?}", fetched.ended);
        fetched.facts["early_data"] == "accepted"
    });
    assert!(accepted, "no early data: {:#?}", server.log().last());
    recorder.flight()
}

fn write_token(dir: &Path) -> String {
    use std::os::unix::fs::PermissionsExt;
    let token = "5ec0de5ec0de5ec0de5ec0de5ec0de5ec0de";
    let path = dir.join("admin.token");
    fs::write(&path, token).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    token.to_owned()
}

/// The secrets in a key file: all long words that are not names.
fn key_secrets(path: &Path) -> Vec<String> {
    let text = text(path);
    let words = text.split(|byte: char| !byte.is_ascii_alphanumeric() && !"+/=".contains(byte));
    words.filter(|word| word.len() > 40).map(str::to_owned).collect()
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}")
}

fn curl(arguments: &[&str]) -> Ended {
    run(std::process::Command::new("curl").arg("--silent").args(arguments))
}

const HALF_HEADER_TIMEOUT: Duration = Duration::from_secs(5);

const LIVE: &str = "document.getElementById('live').innerText";
const USED: &str = "document.getElementById('used').innerText";
const REPLAYED: &str = "document.getElementById('replayed').innerText";
