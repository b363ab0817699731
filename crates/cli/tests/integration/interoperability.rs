//! Other clients with `firstflight serve`, and `firstflight fetch` with other servers: full handshakes,
//! resumption, and early data where supported.

use std::fs::{self, File};
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use firstflight_testkit::{Recorder, StoreListen, StoreProcess, resumes_over_tcp, skipped_without};

use crate::support::peer::Peer;
use crate::support::program::{Ended, PAGE, Running, Serve, fetch, fields, run, site, text, until};

const REQUEST: &str = "GET /index.html HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
const FIELDS: &str = "tls_version resumed early claim executed status complete";

/// Runs `openssl s_client`, with the request as input unless it is sent as early data.
fn s_client(dir: &Path, server: &Serve, input: &str, arguments: &[&str]) -> Ended {
    s_client_to(dir, server.address, input, arguments)
}

/// Like [`s_client`], at this address.
fn s_client_to(dir: &Path, address: SocketAddr, input: &str, arguments: &[&str]) -> Ended {
    let (out, err) = (dir.join("out"), dir.join("err"));
    let mut command = Command::new("openssl");
    command
        .current_dir(dir)
        .args(["s_client", "-servername", "localhost", "-verify_return_error", "-ign_eof"])
        .args(["-CAfile", "cert.pem", "-connect", &address.to_string()])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(File::create(&out).unwrap())
        .stderr(File::create(&err).unwrap());
    let mut running = Running::start(&mut command);
    // The client may have ended before it has read everything; its output shows why.
    let mut stdin = running.0.stdin.take().unwrap();
    let _ = stdin.write_all(input.as_bytes());
    let status = running.wait().expect("s_client ends after the response");
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
    let logged: Vec<_> = log.iter().map(|line| fields(line, FIELDS)).collect();
    assert_eq!(
        logged,
        [
            "TLSv1.3 false false none true 200 true",
            "TLSv1.3 true false none true 200 true",
            "TLSv1.3 true true won true 200 true",
        ]
    );
}

/// s_client keeps its session file as it is, so it uses the same ticket again and again.
#[test]
fn rfc8446_c_4_openssl_with_a_used_ticket_makes_a_full_handshake() {
    let site = site();
    let dir = site.path();
    let server = Serve::files(dir, &[]);
    let recorder = Recorder::start(server.address);
    fs::write(dir.join("request"), REQUEST).unwrap();
    let full = s_client(dir, &server, REQUEST, &["-sess_out", "one"]);
    assert!(full.out.contains(PAGE), "{full:?}");
    let return_with_early_data = |input| {
        let flags = ["-sess_in", "one", "-early_data", "request"];
        let ended = s_client_to(dir, recorder.address(), input, &flags);
        assert!(ended.out.contains(PAGE), "{ended:?}");
        (ended, resumes_over_tcp(&recorder.response()))
    };
    let (first, resumed) = return_with_early_data("");
    assert!(resumed && first.out.contains("Early data was accepted"), "{first:?}");
    let (second, resumed) = return_with_early_data(REQUEST);
    assert!(!resumed && second.out.contains("Early data was rejected"), "{second:?}");
    assert!(second.out.contains("New, TLSv1.3"), "{second:?}");
    let log = server.stop();
    let logged: Vec<_> = log.iter().map(|line| fields(line, "resumed early_data status")).collect();
    assert_eq!(logged[1..], ["true accepted 200", "false ticket_used 200"]);
}

/// A new store has not recorded for a whole recording window, so its claims do not count. The server
/// learns that from the store's reply, after it has read the ClientHello.
#[test]
fn openssl_early_data_is_refused_when_the_store_responds_late() {
    if skipped_without(&["redis-server"]) {
        return;
    }
    let site = site();
    let dir = site.path();
    let store = StoreProcess::redis(StoreListen::Unix);
    let config = format!("[store]\nurl = \"{}\"\nbudget = \"1s\"\n", store.url());
    let file = dir.join("serve.toml");
    fs::write(&file, config).unwrap();
    let server = Serve::files(dir, &["--config", file.to_str().unwrap()]);
    fs::write(dir.join("request"), REQUEST).unwrap();
    // Until the server is connected to its store, its tickets allow no early data.
    let refused = until(|| {
        let full = s_client(dir, &server, REQUEST, &["-sess_out", "one"]);
        assert!(full.out.contains(PAGE), "{full:?}");
        let early = s_client(dir, &server, REQUEST, &["-sess_in", "one", "-early_data", "request"]);
        assert!(!early.out.contains("Early data was accepted"), "{early:?}");
        assert!(early.out.contains("Reused, TLSv1.3") && early.out.contains(PAGE), "{early:?}");
        server.log().iter().any(|line| line["early_data"] == "store_window")
    });
    assert!(refused, "{:?}", server.log());
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
    let logged: Vec<_> = log.iter().map(|line| fields(line, "tls_version resumed")).collect();
    assert_eq!(
        logged,
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

/// A `gnutls-cli` whose input stays open until the response has arrived: at the end of its input it
/// closes the connection.
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

    fn send(&mut self, input: &str) {
        self.running.0.stdin.as_mut().unwrap().write_all(input.as_bytes()).unwrap();
    }

    /// Waits until the output contains this text `times` times, and not more often.
    fn wait_for_output(&self, what: &str, times: usize) {
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
    client.send(&REQUEST.replace("Connection: close\r\n", ""));
    client.wait_for_output(PAGE, 1);
    client.send("^resume^\n");
    client.wait_for_output("This is a resumed session", 1);
    client.send(REQUEST);
    client.wait_for_output(PAGE, 2);
    let logged: Vec<_> = server.lines(2).iter().map(|line| fields(line, FIELDS)).collect();
    assert_eq!(
        logged,
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
    // It resumes by the latest ticket only, so it never uses one twice.
    let flags = ["--inline-commands", "--earlydata", "request"];
    let mut client = Gnutls::start(site.path(), &server, &flags);
    client.send(&REQUEST.replace("Connection: close\r\n", ""));
    client.wait_for_output(PAGE, 1);
    client.send("^resume^\n");
    client.wait_for_output(PAGE, 2);
    let logged: Vec<_> = server.lines(2).iter().map(|line| fields(line, FIELDS)).collect();
    assert_eq!(
        logged,
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
    let logged: Vec<_> =
        log.iter().map(|line| fields(line, "target protocol resumed executed")).collect();
    assert_eq!(logged, ["/index.html HTTP/1.1 false true", "/index.html?again HTTP/1.1 true true"]);
}

#[test]
fn curl_over_http_2_on_one_connection() {
    let site = site();
    let server = Serve::files(site.path(), &[]);
    let ended = curl(&server, "--http2", &["index.html", "index.html?again"]);
    assert_eq!((ended.code, &*ended.out), (Some(0), &*format!("{PAGE}2\n").repeat(2)), "{ended:?}");
    let log = server.stop();
    let logged: Vec<_> = log.iter().map(|line| fields(line, "protocol resumed executed")).collect();
    assert_eq!(logged, ["HTTP/2 false true"; 2]);
    assert_eq!(log[0]["client_random"], log[1]["client_random"], "one connection");
}

const FACTS: &str = "http_version tls_version tls_resumed early_data http_code";

/// Full, resumed without and with early data, each in a separate process.
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
        // On loopback the client's Finished may arrive before nginx handles the request, so try
        // again.
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
