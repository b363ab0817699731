//! `firstflight fetch` over QUIC from `firstflight serve` and other servers. Each call is a separate
//! process.

use std::fs::{self, File};
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use firstflight_testkit::{free_port, program_path, skipped_without};

use crate::support::peer::{Peer, certificate};
use crate::support::program::{
    PAGE, Running, Serve, fetch, fields, firstflight, run, site, text, until,
};

const FACTS: &str = "http_version tls_resumed early_data quic_token http_code num_connects";

/// Fetches once with each of these additional arguments, and returns the results.
fn calls(dir: &Path, cert: &Path, url: &str, arguments: &[&[&str]]) -> Vec<String> {
    let call = |arguments: &&[&str]| {
        let fetched = fetch(dir, cert, url, arguments);
        assert_eq!(fetched.ended.code, Some(0), "{:?}", fetched.ended);
        assert_eq!(fetched.ended.out, PAGE, "{:?}", fetched.ended);
        fields(&fetched.facts, FACTS)
    };
    arguments.iter().map(call).collect()
}

/// Full, resumed, and with the request as early data.
const CALL_FLAGS: [&[&str]; 3] =
    [&["--http3-only"], &["--http3-only"], &["--http3-only", "--tls-earlydata"]];

/// The results if the server issues sessions and tokens.
const RESULTS: [&str; 3] = ["3 0 none 0 200 1", "3 1 none 1 200 1", "3 1 accepted 1 200 1"];

fn local(port: impl std::fmt::Display) -> String {
    format!("https://localhost:{port}/index.html")
}

#[test]
fn firstflight_full_resumed_and_early_with_a_token_from_the_second_call_on() {
    let site = site();
    let dir = site.path();
    let server = Serve::files(dir, &[]);
    let url = local(server.port());
    assert_eq!(calls(dir, &server.cert, &url, &CALL_FLAGS), RESULTS);
    let early = fetch(dir, &server.cert, &url, &["--http3-only", "--tls-earlydata"]).facts;
    assert!(early["tls_earlydata"].as_i64().unwrap() > 0, "{early}");
    let time = |name: &str| early[name].as_f64().unwrap();
    assert!(time("time_connect") > 0.0 && time("time_connect") == time("time_appconnect"));
    assert!(time("time_pretransfer") < time("time_appconnect"), "{early}");
    // Whether the server handles a request before the client's Finished is chance on loopback. The
    // tests in quic/ delay the Finished.
    let logged: Vec<_> =
        server.stop().iter().map(|line| fields(line, "resumed early_data executed")).collect();
    assert_eq!(
        logged,
        [
            "false no_session_offered true",
            "true peer_declined true",
            "true accepted true",
            "true accepted true"
        ]
    );
}

/// A restart loses the ticket keys: the request is refused as early data, and arrives once.
#[test]
fn early_data_refused_by_a_server_with_other_keys_arrives_once() {
    let site = site();
    let dir = site.path();
    let port = free_port();
    let cert = certificate(dir);
    let (listen, key) = (format!("127.0.0.1:{port}"), dir.join("key.pem"));
    let arguments =
        ["--listen", &listen, "--cert", cert.to_str().unwrap(), "--key", key.to_str().unwrap()];
    let first = Serve::files(dir, &arguments);
    let url = local(port);
    let early: &[&str] = &["--http3-only", "--tls-earlydata"];
    assert_eq!(calls(dir, &cert, &url, &[early]), ["3 0 none 0 200 1"]);
    first.stop();
    fs::remove_file(dir.join("log")).unwrap();
    let second = Serve::files(dir, &arguments);
    let fetched = fetch(dir, &cert, &url, &[early, &["-v"]].concat());
    assert_eq!(fields(&fetched.facts, FACTS), "3 0 refused 1 200 1", "{:?}", fetched.ended);
    assert!(fetched.facts["tls_earlydata"].as_i64().unwrap() < 0);
    assert_eq!(fetched.ended.out, PAGE);
    let stderr = &fetched.ended.err;
    assert!(stderr.contains("over QUIC, with an address token"), "{stderr}");
    assert!(stderr.contains("early data refused (session_not_resumed)"), "{stderr}");
    assert!(stderr.contains("> GET /index.html HTTP/3"), "{stderr}");
    let log = second.stop();
    assert_eq!(log.len(), 1, "{log:?}");
    assert_eq!(fields(&log[0], "early resumed status"), "false false 200");
}

#[test]
fn without_http3_at_the_server_tcp_wins_and_http3_only_fails() {
    let site = site();
    let dir = site.path();
    let server = Serve::files(dir, &["--no-http3"]);
    let url = local(server.port());
    let fetched = fetch(dir, &server.cert, &url, &["--http3", "-v"]);
    assert_eq!(fields(&fetched.facts, "http_version http_code"), "2 200", "{:?}", fetched.ended);
    let stderr = &fetched.ended.err;
    assert!(stderr.contains("* Trying TCP: cannot connect to 127.0.0.1"), "{stderr}");
    let fetched = fetch(dir, &server.cert, &url, &["--http3-only"]);
    assert_eq!(fetched.ended.code, Some(7), "{:?}", fetched.ended);
    // A port that never responds, as behind a firewall.
    let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = local(silent.local_addr().unwrap().port());
    let arguments = ["--http3-only", "--connect-timeout", "0.5"];
    let fetched = fetch(dir, &server.cert, &url, &arguments);
    assert_eq!(fetched.ended.code, Some(28), "{:?}", fetched.ended);
    let http = url.replace("https", "http");
    let fetched = fetch(dir, &server.cert, &http, &["--http3-only"]);
    assert_eq!(fetched.ended.code, Some(3), "{:?}", fetched.ended);
}

#[test]
fn quic_wins_the_race_and_its_secrets_are_logged() {
    let site = site();
    let dir = site.path();
    let server = Serve::files(dir, &[]);
    let log = dir.join("secrets");
    for expected in ["3 0 none", "3 1 accepted"] {
        let fetched = || {
            let mut command = firstflight(dir);
            command.env("SSLKEYLOGFILE", &log).args(["fetch", "--http3", "--tls-earlydata", "-s"]);
            command.args(["-o", "/dev/null", "-w", "%{http_version} %{tls_resumed} %{early_data}"]);
            command.arg("--cacert").arg(&server.cert).arg("--ssl-sessions").arg(dir.join("jar"));
            run(command.arg(local(server.port()))).out
        };
        // On a busy machine QUIC may need longer than its head start.
        assert!(until(|| fetched() == expected), "{expected}");
    }
    let secrets = text(&log);
    for label in ["CLIENT_TRAFFIC_SECRET_0 ", "CLIENT_EARLY_TRAFFIC_SECRET "] {
        assert!(secrets.contains(label), "{secrets}");
    }
}

/// Another server that listens on UDP.
struct QuicPeer {
    _running: Running,
    cert: PathBuf,
    port: u16,
}

impl QuicPeer {
    /// Starts `command` with a free port. Retries with another one, as the port may be taken meanwhile.
    fn start(dir: &Path, command: impl Fn(u16) -> Command) -> Self {
        let cert = certificate(dir);
        let stderr = dir.join("peer.stderr");
        for _ in 0..5 {
            let port = free_port();
            let log = File::create(&stderr).unwrap();
            let mut command = command(port);
            command.current_dir(dir).stdin(Stdio::null());
            command.stdout(log.try_clone().unwrap()).stderr(log);
            let mut running = Running::start(&mut command);
            let mut ended = false;
            let listens = until(|| {
                ended = running.0.try_wait().unwrap().is_some();
                ended || UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).is_err()
            });
            if listens && !ended {
                return Self { _running: running, cert, port };
            }
        }
        panic!("the server does not start: {}", text(&stderr));
    }
}

/// ngtcp2 with GnuTLS, which does not listen on TCP.
#[test]
fn ngtcp2s_server_full_resumed_and_early() {
    if skipped_without(&["gtlsserver"]) {
        return;
    }
    let site = site();
    let dir = site.path();
    let peer = QuicPeer::start(dir, |port| {
        let mut command = Command::new(program_path("gtlsserver"));
        command.args(["127.0.0.1", &port.to_string(), "key.pem", "cert.pem", "-d", "root", "-q"]);
        command
    });
    let url = local(peer.port);
    let three: [&[&str]; 3] = [&["--http3"], CALL_FLAGS[1], CALL_FLAGS[2]];
    assert_eq!(calls(dir, &peer.cert, &url, &three), RESULTS);
    // GnuTLS refuses early data if the client states a greater age than the ticket has, even by a
    // millisecond. Rounding to whole seconds would do that when a second turns between the calls.
    for _ in 0..3 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_millis();
        sleep(Duration::from_millis((1_950 - u64::from(since)) % 1_000));
        calls(dir, &peer.cert, &url, &CALL_FLAGS[1..2]);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_millis();
        sleep(Duration::from_millis(1_000 - u64::from(since)));
        assert_eq!(calls(dir, &peer.cert, &url, &CALL_FLAGS[2..]), RESULTS[2..]);
    }
}

/// Caddy uses quic-go.
#[test]
fn caddy_full_resumed_and_early_and_before_tcp() {
    if skipped_without(&["caddy"]) {
        return;
    }
    let site = site();
    let dir = site.path();
    let arguments = ["run", "--adapter", "caddyfile"];
    let caddy = Peer::start(dir, "caddy", &arguments, |port| {
        format!(
            "{{\n\tadmin off\n\tauto_https off\n\tstorage file_system {storage}\n}}\n\
             https://localhost:{port} {{\n\tbind 127.0.0.1\n\ttls cert.pem key.pem\n\
             \troot * root\n\tfile_server\n}}\n",
            storage = dir.join("caddy").display()
        )
    });
    let url = caddy.url();
    assert_eq!(calls(dir, &caddy.cert, &url, &CALL_FLAGS), RESULTS);
    let raced = fetch(dir, &caddy.cert, &url, &["--http3", "--tls-earlydata"]);
    assert_eq!(fields(&raced.facts, FACTS), RESULTS[2], "{:?}", raced.ended);
}

/// Envoy uses Google's QUICHE.
#[test]
fn envoy_full_resumed_and_early() {
    if skipped_without(&["envoy"]) {
        return;
    }
    let site = site();
    let dir = site.path();
    let peer = QuicPeer::start(dir, |port| {
        fs::write(dir.join("envoy.yaml"), envoy(port)).unwrap();
        let mut command = Command::new(program_path("envoy"));
        command.args(["-c", "envoy.yaml", "--concurrency", "1", "--use-dynamic-base-id"]);
        command.args(["-l", "warn"]);
        command
    });
    assert_eq!(calls(dir, &peer.cert, &local(peer.port), &CALL_FLAGS), RESULTS);
}

fn envoy(port: u16) -> String {
    let api = "type.googleapis.com/envoy.extensions";
    format!(
        "static_resources:
  listeners:
  - address: {{socket_address: {{protocol: UDP, address: 127.0.0.1, port_value: {port}}}}}
    udp_listener_config: {{quic_options: {{}}}}
    filter_chains:
    - transport_socket:
        name: quic
        typed_config:
          '@type': {api}.transport_sockets.quic.v3.QuicDownstreamTransport
          downstream_tls_context:
            common_tls_context:
              tls_certificates:
              - certificate_chain: {{filename: cert.pem}}
                private_key: {{filename: key.pem}}
      filters:
      - name: http
        typed_config:
          '@type': {api}.filters.network.http_connection_manager.v3.HttpConnectionManager
          codec_type: HTTP3
          stat_prefix: test
          route_config:
            virtual_hosts:
            - name: all
              domains: ['*']
              routes:
              - match: {{prefix: /}}
                direct_response: {{status: 200, body: {{inline_string: {PAGE:?}}}}}
          http_filters:
          - name: router
            typed_config: {{'@type': {api}.filters.http.router.v3.Router}}
"
    )
}
