//! `firstflight serve` with other servers as upstreams, and behind and in front of load balancers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use firstflight_testkit::skipped_without;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::peer::{Peer, certificate};
use crate::support::program::{PAGE, Running, Serve, fetch, fields, site, text, until};

/// Creates a separate directory for one of several peers.
fn peer_dir(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    fs::create_dir_all(path.join("root")).unwrap();
    fs::write(path.join("root/index.html"), PAGE).unwrap();
    path
}

/// nginx without TLS. It responds with its name, closes a connection after 50 requests, and responds
/// 425 to early requests for `/late`.
fn app(dir: &Path, name: &str) -> Peer {
    Peer::start(&peer_dir(dir, name), "nginx", &["-e", "stderr", "-p", "."], |port| {
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {kind};\n"))
            .concat();
        format!(
            "daemon off;\nmaster_process off;\npid nginx.pid;\nevents {{ }}\nhttp {{\n\
             access_log off;\nkeepalive_requests 50;\n{temporary}server {{\n\
             listen 127.0.0.1:{port};\ndefault_type text/plain;\n\
             location / {{ return 200 \"{name}\\n\"; }}\n\
             location /late {{ if ($http_early_data) {{ return 425; }} return 200 \"{name}\\n\"; }}\n\
             location /from {{ return 200 \"$http_x_forwarded_for\\n\"; }}\n}}\n}}\n"
        )
    })
}

fn http(peer: &Peer) -> String {
    format!("http://127.0.0.1:{}", peer.port)
}

/// Starts a server with a pool of these upstreams and further settings of the pool.
fn pool(dir: &Path, servers: &[String], settings: &str) -> Serve {
    pool_behind(dir, "", servers, settings)
}

/// Like [`pool`], with settings of the listener.
fn pool_behind(dir: &Path, listener: &str, servers: &[String], settings: &str) -> Serve {
    certificate(dir);
    let config = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\n{listener}\n[[site]]\ncertificate = \
         \"cert.pem\"\nkey = \"key.pem\"\n[[site.route]]\npath = \"/\"\nupstream = \"app\"\n\
         [upstream.app]\nservers = {servers:?}\n{settings}"
    );
    fs::write(dir.join("config.toml"), config).unwrap();
    Serve::configured(dir)
}

fn get(dir: &Path, server: &Serve, path: &str) -> String {
    let url = format!("https://localhost:{}{path}", server.port());
    let fetched = fetch(dir, &server.cert, &url, &[]);
    assert_eq!(fetched.ended.code, Some(0), "{:?}", fetched.ended);
    fetched.ended.out
}

/// Runs h2load, and calls `meanwhile` while it runs. Returns its output.
fn load(server: &Serve, requests: usize, meanwhile: impl FnOnce()) -> String {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("stderr");
    let mut command = Command::new("h2load");
    command.arg(format!("-n{requests}")).args(["-c8", "-m4", "-t1"]);
    command.arg(format!("https://127.0.0.1:{}/", server.port()));
    let out = fs::File::create(&output).unwrap();
    let mut running =
        Running::start(command.stdin(Stdio::null()).stdout(out).stderr(Stdio::null()));
    until(|| server.log().len() > requests / 10);
    meanwhile();
    assert!(running.wait().is_some(), "h2load does not end: {}", text(&output));
    text(&output)
}

#[test]
fn no_request_fails_when_an_upstream_dies_under_load() {
    if skipped_without(&["h2load"]) {
        return;
    }
    let dir = site();
    let (first, second) = (app(dir.path(), "first"), app(dir.path(), "second"));
    let server = pool(dir.path(), &[http(&first), http(&second)], "");
    let both = [get(dir.path(), &server, "/"), get(dir.path(), &server, "/")];
    assert!(
        both.contains(&"first\n".to_owned()) && both.contains(&"second\n".to_owned()),
        "{both:?}"
    );
    let kill = || kill(Pid::from_raw(first.pid() as i32), Signal::SIGKILL).unwrap();
    let output = load(&server, 4000, kill);
    assert!(output.contains("4000 succeeded, 0 failed, 0 errored, 0 timeout"), "{output}");
    assert!(output.contains("4000 2xx, 0 3xx, 0 4xx, 0 5xx"), "{output}");
    assert_eq!(get(dir.path(), &server, "/"), "second\n");
    assert!(text(&server.stderr).contains("is ejected"), "{}", text(&server.stderr));
}

#[test]
fn an_upstream_that_fails_its_checks_gets_no_requests() {
    let dir = site();
    let (one, two) = (app(dir.path(), "one"), app(dir.path(), "two"));
    let check = "health_check = { path = \"/\", interval = \"50ms\", fall = 2 }\n";
    let server = pool(dir.path(), &[http(&one), http(&two)], check);
    drop(one);
    until(|| text(&server.stderr).contains("is down"));
    for _ in 0..4 {
        assert_eq!(get(dir.path(), &server, "/"), "two\n");
    }
    drop(two);
    until(|| text(&server.stderr).matches("is down").count() == 2);
    let url = format!("https://localhost:{}/", server.port());
    let fetched = fetch(dir.path(), &server.cert, &url, &[]);
    assert_eq!(fields(&fetched.facts, "http_code"), "503");
}

#[test]
fn rfc8470_5_2_an_early_request_with_425_from_nginx_is_retried() {
    if skipped_without(&["nginx"]) {
        return;
    }
    let dir = site();
    let one = app(dir.path(), "one");
    let server = pool(dir.path(), &[http(&one)], "");
    let url = format!("https://localhost:{}/late", server.port());
    for early_data in ["none 0", "accepted 0", "accepted 0"] {
        let fetched = fetch(dir.path(), &server.cert, &url, &["--tls-earlydata"]);
        assert_eq!(fetched.ended.out, "one\n", "{:?}", fetched.ended);
        assert_eq!(fields(&fetched.facts, "early_data num_retries"), early_data);
    }
}

#[test]
fn rfc9113_3_3_h2o_over_http2() {
    if skipped_without(&["h2o"]) {
        return;
    }
    let dir = site();
    let home = peer_dir(dir.path(), "h2o");
    let h2o = Peer::start(&home, "h2o", &[], |port| {
        let user = if nix::unistd::geteuid().is_root() { "user: root\n" } else { "" };
        format!(
            "{user}listen:\n  host: 127.0.0.1\n  port: {port}\naccess-log:\n  path: h2o.log\n  \
             format: \"%H %r\"\nhosts:\n  default:\n    paths:\n      /:\n        file.dir: root\n"
        )
    });
    let server = pool(dir.path(), &[http(&h2o)], "protocol = \"http2\"\n");
    let output = load(&server, 500, || ());
    assert!(output.contains("500 2xx, 0 3xx, 0 4xx, 0 5xx"), "{output}");
    assert_eq!(get(dir.path(), &server, "/"), PAGE);
    let log = text(&home.join("h2o.log"));
    assert!(log.lines().count() > 500 && log.lines().all(|line| line.starts_with("HTTP/2")));
}

#[test]
fn nginx_upstream_over_tls_with_its_own_authority() {
    if skipped_without(&["nginx"]) {
        return;
    }
    let dir = site();
    let nginx = Peer::nginx(&peer_dir(dir.path(), "nginx"));
    let servers = [format!("https://localhost:{}", nginx.port)];
    for protocol in ["http1", "http2"] {
        let trusting = format!("protocol = \"{protocol}\"\nca = {:?}\n", nginx.cert);
        let server = pool(dir.path(), &servers, &trusting);
        assert_eq!(get(dir.path(), &server, "/index.html"), PAGE);
        let server = pool(dir.path(), &servers, &format!("protocol = \"{protocol}\"\n"));
        let url = format!("https://localhost:{}/", server.port());
        let fetched = fetch(dir.path(), &server.cert, &url, &[]);
        assert_eq!(fields(&fetched.facts, "http_code"), "502");
        assert!(text(&server.stderr).contains("certificate"), "{}", text(&server.stderr));
    }
}

#[test]
fn haproxy_as_upstream_gets_the_client_address() {
    if skipped_without(&["haproxy"]) {
        return;
    }
    for version in ["v1", "v2"] {
        let dir = site();
        let haproxy = Peer::start(&peer_dir(dir.path(), "haproxy"), "haproxy", &["-db"], |port| {
            format!(
                "global\n  noreuseport\ndefaults\n  mode http\n  timeout client 30s\n  \
                 timeout server 30s\n  timeout \
                 connect 5s\nfrontend test\n  bind 127.0.0.1:{port} accept-proxy\n  http-request \
                 return status 200 content-type text/plain lf-string \"%[src] %[dst_port]\\n\"\n"
            )
        });
        let settings = format!("proxy_protocol = \"{version}\"\n");
        let server = pool(dir.path(), &[http(&haproxy)], &settings);
        let output = get(dir.path(), &server, "/");
        assert_eq!(output, format!("127.0.0.1 {}\n", server.port()));
    }
}

#[test]
fn haproxy_in_front_passes_the_client_address() {
    if skipped_without(&["haproxy"]) {
        return;
    }
    for version in ["send-proxy", "send-proxy-v2"] {
        let dir = site();
        let one = app(dir.path(), "one");
        let trusting = "proxy_protocol_from = [\"127.0.0.9\"]";
        let server = pool_behind(dir.path(), trusting, &[http(&one)], "");
        let ours = server.port();
        let haproxy = Peer::start(&peer_dir(dir.path(), "haproxy"), "haproxy", &["-db"], |port| {
            format!(
                "global\n  noreuseport\ndefaults\n  mode tcp\n  timeout client 30s\n  \
                 timeout server 30s\n  timeout \
                 connect 5s\nfrontend test\n  bind 127.0.0.1:{port}\n  default_backend ours\n\
                 backend ours\n  source 127.0.0.9\n  server ours 127.0.0.1:{ours} {version}\n"
            )
        });
        let url = format!("https://localhost:{}/from", haproxy.port);
        for early_data in ["none", "accepted"] {
            let fetched = fetch(dir.path(), &server.cert, &url, &["--tls-earlydata"]);
            assert_eq!(fetched.ended.out, "127.0.0.1\n", "{:?}", fetched.ended);
            assert_eq!(fields(&fetched.facts, "early_data"), early_data);
        }
        // Clients outside `proxy_protocol_from` send no PROXY header.
        assert_eq!(get(dir.path(), &server, "/from"), "127.0.0.1\n");
        let log = server.stop();
        let clients: Vec<_> = log.iter().map(|line| fields(line, "client")).collect();
        assert!(clients.iter().all(|client| client.starts_with("127.0.0.1:")), "{clients:?}");
    }
}
