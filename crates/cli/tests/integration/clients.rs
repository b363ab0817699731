//! Other people's clients at `firstflight serve`: full, resumed, and by early data where they can.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use firstflight_testkit::{StoreListen, StoreProcess, skipped_without};

use crate::running::{Ended, PAGE, Running, Serve, fields, run, site, text, until};

const REQUEST: &str = "GET /index.html HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
const FIELDS: &str = "tls_version resumed early claim executed status complete";

/// `openssl s_client`, with the request as input unless it goes as early data.
fn s_client(dir: &Path, server: &Serve, input: &str, arguments: &[&str]) -> Ended {
    let (out, err) = (dir.join("out"), dir.join("err"));
    let mut command = Command::new("openssl");
    command
        .current_dir(dir)
        .args(["s_client", "-servername", "localhost", "-verify_return_error", "-ign_eof"])
        .args(["-CAfile", "cert.pem", "-connect", &server.address.to_string()])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(File::create(&out).unwrap())
        .stderr(File::create(&err).unwrap());
    let mut running = Running::start(&mut command);
    // It may have ended before it has read all, which its output will tell.
    let mut stdin = running.0.stdin.take().unwrap();
    let _ = stdin.write_all(input.as_bytes());
    let status = running.wait().expect("s_client ends with the answer");
    drop(stdin);
    Ended { code: status.code(), out: text(&out), err: text(&err) }
}

#[test]
fn openssl_full_resumed_and_early() {
    let site = site();
    let dir = site.path();
    let server = Serve::files(dir, &[]);
    fs::write(dir.join("request"), REQUEST).unwrap();
    let full = s_client(dir, &server, REQUEST, &["-sess_out", "one"]);
    assert!(full.out.contains("New, TLSv1.3") && full.out.contains(PAGE), "{full:?}");
    let again = s_client(dir, &server, REQUEST, &["-sess_in", "one", "-sess_out", "two"]);
    assert!(again.out.contains("Reused, TLSv1.3") && again.out.contains(PAGE), "{again:?}");
    let early = s_client(dir, &server, "", &["-sess_in", "two", "-early_data", "request"]);
    assert!(early.out.contains("Early data was accepted"), "{early:?}");
    assert!(early.out.contains(PAGE), "{early:?}");
    let log = server.stop();
    let seen: Vec<_> = log.iter().map(|line| fields(line, FIELDS)).collect();
    assert_eq!(
        seen,
        [
            "TLSv1.3 false false none true 200 true",
            "TLSv1.3 true false none true 200 true",
            "TLSv1.3 true true won true 200 true",
        ]
    );
}

/// A store that was just started has not recorded for long enough for its word to count. The
/// server knows that only once it has asked, with the ClientHello in its hands.
#[test]
fn openssl_is_refused_by_tls_when_the_store_says_so_late() {
    let site = site();
    let dir = site.path();
    let store = StoreProcess::redis(StoreListen::Unix);
    let config = format!("[store]\nurl = \"{}\"\nbudget = \"1s\"\n", store.url());
    let file = dir.join("serve.toml");
    fs::write(&file, config).unwrap();
    let server = Serve::files(dir, &["--config", file.to_str().unwrap()]);
    fs::write(dir.join("request"), REQUEST).unwrap();
    // Until the server has reached its store, it need not ask.
    let asked = until(|| {
        let full = s_client(dir, &server, REQUEST, &["-sess_out", "one"]);
        assert!(full.out.contains(PAGE), "{full:?}");
        let early = s_client(dir, &server, REQUEST, &["-sess_in", "one", "-early_data", "request"]);
        assert!(early.out.contains("Early data was rejected"), "{early:?}");
        assert!(early.out.contains("Reused, TLSv1.3") && early.out.contains(PAGE), "{early:?}");
        server.log().iter().any(|line| line["early_data"] == "store_window")
    });
    assert!(asked, "{:?}", server.log());
    for line in server.stop() {
        assert_eq!((&line["early"], &line["status"]), (&false.into(), &200.into()), "{line}");
    }
}

#[test]
fn openssl_resumes_older_versions_too() {
    let site = site();
    let dir = site.path();
    let server = Serve::files(dir, &["--tls-min", "1.0"]);
    for version in ["1", "1_1", "1_2"] {
        let flag = format!("-tls{version}");
        let cipher = ["-cipher", "ALL:@SECLEVEL=0"];
        let full = [&[flag.as_str(), "-sess_out", "old"], &cipher[..]].concat();
        let full = s_client(dir, &server, REQUEST, &full);
        assert!(full.out.contains(PAGE), "{full:?}");
        let again = [&[flag.as_str(), "-sess_in", "old"], &cipher[..]].concat();
        let again = s_client(dir, &server, REQUEST, &again);
        assert!(again.out.contains("Reused, ") && again.out.contains(PAGE), "{again:?}");
    }
    let log = server.stop();
    let seen: Vec<_> = log.iter().map(|line| fields(line, "tls_version resumed")).collect();
    assert_eq!(
        seen,
        [
            "TLSv1.0 false",
            "TLSv1.0 true",
            "TLSv1.1 false",
            "TLSv1.1 true",
            "TLSv1.2 false",
            "TLSv1.2 true",
        ]
    );
}

/// A `gnutls-cli` that is talked to as a person would: input stays open until the response is
/// there, because it closes right behind its input, and a peer that has gone is answered nothing.
struct Gnutls {
    running: Running,
    out: std::path::PathBuf,
}

impl Gnutls {
    fn start(dir: &Path, server: &Serve, arguments: &[&str]) -> Self {
        let out = dir.join("gnutls");
        let mut command = Command::new("gnutls-cli");
        command
            .current_dir(dir)
            .args(["--x509cafile", "cert.pem", "-p", &server.port(), "localhost"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(File::create(&out).unwrap())
            .stderr(Stdio::null());
        Self { running: Running::start(&mut command), out }
    }

    fn say(&mut self, input: &str) {
        self.running.0.stdin.as_mut().unwrap().write_all(input.as_bytes()).unwrap();
    }

    /// Waits until it shows this so many times.
    fn shows(&self, what: &str, times: usize) {
        until(|| text(&self.out).matches(what).count() >= times);
        assert_eq!(text(&self.out).matches(what).count(), times, "{what}: {}", text(&self.out));
    }
}

#[test]
fn gnutls_full_and_resumed() {
    if skipped_without(&["gnutls-cli"]) {
        return;
    }
    let site = site();
    let server = Serve::files(site.path(), &[]);
    let mut client = Gnutls::start(site.path(), &server, &["--inline-commands"]);
    client.say(&REQUEST.replace("Connection: close\r\n", ""));
    client.shows(PAGE, 1);
    client.say("^resume^\n");
    client.shows("This is a resumed session", 1);
    client.say(REQUEST);
    client.shows(PAGE, 2);
    let seen: Vec<_> = server.lines(2).iter().map(|line| fields(line, FIELDS)).collect();
    assert_eq!(
        seen,
        ["TLSv1.3 false false none true 200 true", "TLSv1.3 true false none true 200 true"]
    );
}

#[test]
fn gnutls_sends_early_data() {
    if skipped_without(&["gnutls-cli"]) {
        return;
    }
    let site = site();
    let server = Serve::files(site.path(), &[]);
    fs::write(site.path().join("request"), REQUEST).unwrap();
    let flags = ["--inline-commands", "--earlydata", "request"];
    let mut client = Gnutls::start(site.path(), &server, &flags);
    client.say(&REQUEST.replace("Connection: close\r\n", ""));
    client.shows(PAGE, 1);
    client.say("^resume^\n");
    client.shows(PAGE, 2);
    let seen: Vec<_> = server.lines(2).iter().map(|line| fields(line, FIELDS)).collect();
    assert_eq!(
        seen,
        ["TLSv1.3 false false none true 200 true", "TLSv1.3 true true won true 200 true"]
    );
}

/// Debian's curl keeps sessions only within a call and sends no early data.
fn curl(server: &Serve, http: &str, names: &[&str]) -> Ended {
    let mut command = Command::new("curl");
    command.args(["-sS", http, "-w", "%{http_version}\n", "--cacert"]).arg(&server.cert);
    for name in names {
        command.arg(format!("https://localhost:{}/{name}", server.port()));
    }
    run(&mut command)
}

#[test]
fn curl_full_and_resumed_over_http_1_1() {
    let site = site();
    let server = Serve::files(site.path(), &["--keep-alive", "off"]);
    let ended = curl(&server, "--http1.1", &["index.html", "index.html?again"]);
    assert_eq!(
        (ended.code, &*ended.out),
        (Some(0), &*format!("{PAGE}1.1\n").repeat(2)),
        "{ended:?}"
    );
    let log = server.stop();
    let seen: Vec<_> =
        log.iter().map(|line| fields(line, "target protocol resumed executed")).collect();
    assert_eq!(seen, ["/index.html HTTP/1.1 false true", "/index.html?again HTTP/1.1 true true"]);
}

#[test]
fn curl_over_http_2_on_one_connection() {
    let site = site();
    let server = Serve::files(site.path(), &[]);
    let ended = curl(&server, "--http2", &["index.html", "index.html?again"]);
    assert_eq!((ended.code, &*ended.out), (Some(0), &*format!("{PAGE}2\n").repeat(2)), "{ended:?}");
    let log = server.stop();
    let seen: Vec<_> = log.iter().map(|line| fields(line, "protocol resumed executed")).collect();
    assert_eq!(seen, ["HTTP/2 false true"; 2]);
    assert_eq!(log[0]["client_random"], log[1]["client_random"], "one connection");
}
