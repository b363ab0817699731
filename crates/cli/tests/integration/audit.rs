//! `firstflight audit` against our server, nginx and HAProxy, with a witness behind each, and against
//! servers that cannot be audited.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use firstflight_testkit::{free_port, skipped_without};
use serde_json::Value;

use crate::support::peer::{Peer, certificate};
use crate::support::program::{Ended, Running, Serve, firstflight, run, site, until};

/// A running `firstflight audit --serve-witness`.
struct Witness {
    _running: Running,
    port: u16,
}

impl Witness {
    fn start(home: &Path) -> Self {
        let port = free_port();
        let address = format!("127.0.0.1:{port}");
        let mut command = firstflight(home);
        command.args(["audit", "--serve-witness", &address]);
        let running = Running::start(command.stdout(Stdio::null()).stderr(Stdio::null()));
        assert!(until(|| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()));
        Self { _running: running, port }
    }
}

/// Runs an audit that sends delayed copies after one second only, instead of the default delays.
fn audit(home: &Path, port: u16, arguments: &[&str]) -> Ended {
    let url = format!("https://localhost:{port}/witness");
    let mut command = firstflight(home);
    run(command.args(["audit", &url, "--delay", "1s", "--json"]).args(arguments))
}

/// The check, the verdict and the summary of each finding.
fn verdicts(ended: &Ended) -> Vec<(String, String, String)> {
    let report: Value =
        serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {ended:?}"));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let findings = report["findings"].as_array().unwrap();
    findings
        .iter()
        .map(|finding| {
            (text(&finding["check"]), text(&finding["verdict"]), text(&finding["summary"]))
        })
        .collect()
}

fn verdict(ended: &Ended, check: &str) -> (String, String) {
    let all = verdicts(ended);
    let found = all.iter().find(|(name, ..)| name == check);
    let (_, verdict, summary) = found.unwrap_or_else(|| panic!("{check}: {all:?}"));
    (verdict.clone(), summary.clone())
}

/// Checks that do not wait.
const FAST: &[&str] = &[
    "offers",
    "replay-at-once",
    "replay-concurrent",
    "overtaken-flight",
    "unsafe-method",
    "too-early",
    "reused-ticket",
    "early-data-header",
    "ticket-age",
    "wrong-binder",
    "flipped-ticket",
    "changed-name",
    "changed-protocol",
    "early-data-limit",
    "fast-open",
];
/// Checks that apply only to QUIC.
const QUIC: &[&str] = &["replay-addresses", "replay-connection-ids"];
/// Checks that wait for a copy to become fresh or stale.
const SLOW: &[&str] = &["replay-delayed", "refused-flight"];

fn check_flags(checks: &[&'static str]) -> Vec<&'static str> {
    checks.iter().flat_map(|&check| ["--check", check]).chain(["--witness"]).collect()
}

/// Audits our server, which has to pass all these checks as far as they apply.
fn assert_our_server_passes(checks: &[&'static str], more: &[&'static str]) {
    let site = site();
    let witness = Witness::start(site.path());
    let upstream = format!("http://127.0.0.1:{}", witness.port);
    let server = Serve::start(site.path(), &["--upstream", &upstream]);
    let arguments = [&check_flags(checks), more].concat();
    let ended = audit(site.path(), server.address.port(), &arguments);
    for (check, verdict, summary) in verdicts(&ended) {
        // Over QUIC the packets of an overtaken original belong to the copy's connection.
        let overtakes = more.is_empty() && check == "overtaken-flight";
        let replay = check.starts_with("replay-") || check == "refused-flight" || overtakes;
        let passed = verdict == "pass" || verdict == "not_applicable" && !replay;
        assert!(passed, "{check}: {verdict} {summary}: {ended:?}");
    }
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn rfc9846_8_our_server_passes() {
    assert_our_server_passes(FAST, &[]);
}

#[test]
fn rfc9846_8_our_server_passes_the_checks_that_wait() {
    assert_our_server_passes(SLOW, &[]);
}

#[test]
fn rfc8470_6_3_our_server_times_out_slow_clients() {
    assert_our_server_passes(&["unfinished", "slow-early-data"], &[]);
}

#[test]
fn rfc8446_4_6_1_the_lifetime_of_ticket_keys_is_measured() {
    let site = site();
    let server = Serve::files(site.path(), &[]);
    let url = format!("https://localhost:{}/", server.address.port());
    let mut command = firstflight(site.path());
    let ended =
        run(command.args(["audit", &url, "--check", "key-life", "--watch", "2s", "--json"]));
    let (verdict, summary) = verdict(&ended, "key-life");
    assert_eq!(verdict, "pass", "{ended:?}");
    assert!(summary.ends_with("lived for 2 s and longer"), "{summary}");
}

/// Runs in a separate network namespace: enables Fast Open for clients, then also for servers.
const FAST_OPEN: &str = r#"
ip link set lo up
"$0" serve --listen 127.0.0.1:4433 --root "$1" 2>"$1/serve.log" &
for sides in 1 3; do
    echo $sides >/proc/sys/net/ipv4/tcp_fastopen
    until "$0" audit https://127.0.0.1:4433/ --check fast-open --json; do sleep 0.2; done
done
"#;

#[test]
fn rfc7413_4_1_our_server_accepts_data_in_a_syn() {
    let site = site();
    let root = site.path().join("root");
    let mut command = Command::new("unshare");
    command.args(["--net", "--pid", "--fork", "--kill-child"]);
    // An unprivileged user is root in a user namespace.
    command.args((!nix::unistd::geteuid().is_root()).then_some("--map-root-user"));
    command.args(["sh", "-c", FAST_OPEN, crate::support::program::PROGRAM]).arg(&root);
    let ended = run(command.env("HOME", site.path()).env_remove("XDG_DATA_HOME"));
    for sentence in ["gives no cookie", "data in a SYN is accepted", "acknowledged by the SYN-ACK"]
    {
        assert!(ended.out.contains(sentence), "{sentence}: {ended:?}");
    }
}

#[test]
fn rfc9846_8_our_server_passes_over_quic() {
    let checks: Vec<_> = FAST.iter().chain(QUIC).chain(&["replay-delayed"]).copied().collect();
    assert_our_server_passes(&checks, &["--http3"]);
}

/// nginx in front of a witness.
fn nginx(dir: &Path, location: &str) -> Peer {
    Peer::start(dir, "nginx", &["-e", "stderr", "-p", "."], |port| {
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {name};\n"))
            .concat();
        format!(
            "daemon off;\nmaster_process off;\npid nginx.pid;\nevents {{ }}\nhttp {{\n\
             access_log off;\n{temporary}server {{\nlisten 127.0.0.1:{port} ssl;\n\
             ssl_certificate cert.pem;\nssl_certificate_key key.pem;\n{location}\n}}\n}}\n"
        )
    })
}

#[test]
fn rfc9846_8_nginx_executes_every_copy() {
    if skipped_without(&["nginx"]) {
        return;
    }
    let site = site();
    let witness = Witness::start(site.path());
    let location = format!(
        "ssl_protocols TLSv1.3;\nssl_early_data on;\nlocation / {{\n\
         proxy_pass http://127.0.0.1:{};\n}}",
        witness.port
    );
    let nginx = nginx(site.path(), &location);
    let html = site.path().join("audit.html");
    let mut arguments = check_flags(&[FAST, SLOW].concat());
    arguments.extend(["--html", html.to_str().unwrap()]);
    let capture = site.path().join("audit.pcapng");
    arguments.extend(["--capture", capture.to_str().unwrap()]);
    let ended = audit(site.path(), nginx.port, &arguments);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    for (check, expected) in [
        ("replay-at-once", "the request ran 4 times"),
        ("replay-concurrent", "the request ran 4 times"),
        ("replay-delayed", "the request ran 2 times"),
        ("refused-flight", "the request ran 2 times"),
        ("unsafe-method", "the POST ran 3 times"),
        ("early-data-header", "without Early-Data"),
    ] {
        let (verdict, summary) = verdict(&ended, check);
        assert!(verdict == "fail" && summary.contains(expected), "{check}: {verdict} {summary}");
    }
    for check in ["ticket-age", "wrong-binder", "flipped-ticket"] {
        let (verdict, summary) = verdict(&ended, check);
        assert_eq!(verdict, "pass", "{check}: {summary}");
    }
    assert!(fs::read_to_string(html).unwrap().contains("ssl_early_data off"), "the remedy");
    let packets = String::from_utf8_lossy(&fs::read(capture).unwrap()).into_owned();
    assert!(packets.contains("replay-at-once, connection 5 of 6;"), "copies and their comments");
    // Without a witness, responses before any Finished show that copies are executed.
    let mut command = firstflight(site.path());
    let url = format!("https://localhost:{}/", nginx.port);
    let ended = run(command.args(["audit", &url, "--check", "replay-at-once"]));
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.out.contains("3 of 3 copies got a response before any Finished"), "{ended:?}");
}

#[test]
fn rfc8446_4_2_1_the_versions_of_nginx_are_found() {
    if skipped_without(&["nginx"]) {
        return;
    }
    for (protocols, expected) in
        [("TLSv1.3", "TLS 1.3, TLS_"), ("TLSv1.2 TLSv1.3", "TLS 1.3 and 1.2, TLS_")]
    {
        let site = site();
        let nginx = nginx(site.path(), &format!("ssl_protocols {protocols};"));
        let ended = audit(site.path(), nginx.port, &["--check", "offers"]);
        assert!(ended.out.contains(expected), "{ended:?}");
    }
}

/// quic-go remembers no flights. It ignores copies while it knows their connection id.
#[test]
fn rfc9846_8_caddy_executes_copies_over_quic() {
    if skipped_without(&["caddy"]) {
        return;
    }
    let site = site();
    let dir = site.path();
    let witness = Witness::start(dir);
    let caddy = Peer::start(dir, "caddy", &["run", "--adapter", "caddyfile"], |port| {
        format!(
            "{{\n\tadmin off\n\tauto_https off\n\tstorage file_system {}\n}}\n\
             https://localhost:{port} {{\n\tbind 127.0.0.1\n\ttls cert.pem key.pem\n\
             \treverse_proxy 127.0.0.1:{}\n}}\n",
            dir.join("caddy").display(),
            witness.port
        )
    });
    let checks = [QUIC, &["offers", "replay-delayed", "unsafe-method", "wrong-binder"]].concat();
    let ended = audit(
        dir,
        caddy.port,
        &[&check_flags(&checks)[..], &["--http3", "--delay", "10s"]].concat(),
    );
    assert_eq!(ended.code, Some(1), "{ended:?}");
    for (check, expected) in [
        ("replay-addresses", "fail"),
        ("replay-connection-ids", "warn"),
        ("replay-delayed", "fail"),
        ("wrong-binder", "pass"),
        ("offers", "pass"),
    ] {
        let (verdict, summary) = verdict(&ended, check);
        assert_eq!(verdict, expected, "{check}: {summary}");
    }
}

/// Two processes with the same ticket keys, at two addresses of a name.
#[test]
fn rfc9846_8_copies_go_to_every_address() {
    let site = site();
    let dir = site.path();
    let witness = Witness::start(dir);
    let upstream = format!("http://127.0.0.1:{}", witness.port);
    let keys = dir.join("ticket.keys");
    let made = run(firstflight(dir).args(["keys", "new", keys.to_str().unwrap()]));
    assert_eq!(made.code, Some(0), "{made:?}");
    let (cert, key) = (certificate(dir), dir.join("key.pem"));
    let [keys, cert, key] = [&keys, &cert, &key].map(|path| path.to_str().unwrap());
    let more = ["--upstream", &upstream, "--ticket-keys", keys, "--cert", cert, "--key", key];
    let first = Serve::start(dir, &more);
    let port = first.address.port();
    let listen = format!("127.0.0.2:{port}");
    let second = crate::support::program::site();
    let _second = Serve::start(second.path(), &[&more[..], &["--listen", &listen]].concat());
    assert!(until(|| TcpStream::connect((Ipv4Addr::new(127, 0, 0, 2), port)).is_ok()));
    let names = format!("localhost:{port}:127.0.0.1,127.0.0.2");
    for more in [&["--resolve", &*names][..], &["--resolve", &*names, "--http3"]] {
        let ended = audit(dir, port, &[&check_flags(&["replay-nodes"])[..], more].concat());
        let (verdict, summary) = verdict(&ended, "replay-nodes");
        assert_eq!(verdict, "pass", "{summary} {ended:?}");
        assert!(ended.out.contains("copy to 127.0.0.2"), "{ended:?}");
        assert!(ended.out.contains("the same ticket keys"), "{ended:?}");
    }
}

#[test]
fn rfc8470_3_haproxy_waits_for_finished() {
    if skipped_without(&["haproxy"]) {
        return;
    }
    let site = site();
    let witness = Witness::start(site.path());
    let haproxy = Peer::start(site.path(), "haproxy", &["-db"], |port| {
        format!(
            "global\n  noreuseport\ndefaults\n  mode http\n  timeout client 30s\n  timeout server \
             30s\n  timeout connect 5s\nfrontend test\n  bind 127.0.0.1:{port} ssl crt both.pem \
             allow-0rtt alpn http/1.1\n  default_backend witness\nbackend witness\n  server witness 127.0.0.1:{}\n",
            witness.port
        )
    });
    let checks = ["replay-at-once", "replay-concurrent", "unsafe-method"];
    let ended = audit(site.path(), haproxy.port, &check_flags(&checks));
    for check in checks {
        let (verdict, summary) = verdict(&ended, check);
        assert_eq!(verdict, "pass", "{check}: {summary}");
    }
    let (_, summary) = verdict(&ended, "replay-at-once");
    assert!(summary.contains("waits for the Finished"), "{summary}");
    assert!(ended.out.contains("(HAProxy)"), "recognised by its error page: {ended:?}");
}

/// Runs an audit that must fail with one sentence.
fn assert_refused(arguments: &[&str], expected: &[&str]) {
    let site = site();
    let ended = run(firstflight(site.path()).arg("audit").args(arguments));
    assert_eq!((ended.code, &*ended.out), (Some(2), ""), "{ended:?}");
    let last = ended.err.lines().last().unwrap_or_default();
    assert!(last.starts_with("firstflight: "), "{ended:?}");
    for word in expected {
        assert!(last.contains(word), "{word:?} is not in {last:?}");
    }
}

/// A server that responds to whatever it reads with these bytes, on each connection.
fn respond(bytes: &'static [u8]) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 1000]);
            let _ = stream.write_all(bytes);
            // Without a response, the server hangs.
            while bytes.is_empty() && stream.read(&mut [0; 1000]).is_ok_and(|length| length > 0) {}
        }
    });
    url
}

#[test]
fn servers_that_cannot_be_audited_are_refused_with_one_sentence() {
    assert_refused(&["http://localhost/"], &["not an https:// URL"]);
    assert_refused(&["https://192.0.2.1/"], &["192.0.2.1", "--i-am-allowed"]);
    // Refused before the name is looked up: `.invalid` would not resolve.
    assert_refused(&["https://server.invalid/"], &["server.invalid", "--i-am-allowed"]);
    assert_refused(&["https://server.invalid/", "--i-am-allowed"], &["server.invalid"]);
    // An override for another port or name does not help.
    for other in ["server.invalid:444:127.0.0.1", "xserver.invalid:443:127.0.0.1"] {
        assert_refused(&["https://server.invalid/", "--resolve", other], &["--i-am-allowed"]);
    }
    let elsewhere = "a.test:443:127.0.0.1,192.0.2.1";
    assert_refused(&["https://a.test/", "--resolve", elsewhere], &["192.0.2.1", "--i-am-allowed"]);
    let closed = format!("https://127.0.0.1:{}/", free_port());
    assert_refused(&[&closed], &["cannot connect", "check the address"]);
    assert_refused(&[&respond(b"HTTP/1.1 400 Bad Request\r\n\r\n")], &["does not speak TLS"]);
    assert_refused(&[&respond(b""), "--timeout", "1s"], &["does not respond in time", "--timeout"]);
    let tcp_only = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("https://{}/", tcp_only.local_addr().unwrap());
    assert_refused(&[&url, "--http3"], &["cannot connect", "nothing listens"]);
    let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("https://{}/", silent.local_addr().unwrap());
    assert_refused(&[&url, "--http3", "--timeout", "1s"], &["no response over QUIC", "over TCP"]);
    let home = site();
    let unknown = run(firstflight(home.path()).args(["audit", "https://a/", "--check", "x"]));
    assert!(unknown.code == Some(2) && unknown.err.contains("replay-at-once"), "{unknown:?}");
}

#[test]
fn a_report_that_cannot_be_written_is_noticed_before_the_audit() {
    let closed = format!("https://127.0.0.1:{}/", free_port());
    for flag in ["--html", "--sarif", "--junit"] {
        assert_refused(&[&closed, flag, "none/report"], &["none/report", "choose a path"]);
        assert_refused(&[&closed, flag, "/dev"], &["/dev", "choose a path"]);
    }
    // The check leaves no file behind.
    let site = site();
    let report = site.path().join("report");
    let mut command = firstflight(site.path());
    let ended = run(command.args(["audit", &closed, "--html"]).arg(&report));
    assert!(ended.err.contains("cannot connect") && !report.exists(), "{ended:?}");
}

#[test]
fn a_report_is_printed_even_if_its_file_cannot_be_written() {
    let site = site();
    let server = Serve::files(site.path(), &[]);
    let url = format!("https://localhost:{}/", server.address.port());
    let mut command = firstflight(site.path());
    let ended = run(command.args(["audit", &url, "--check", "offers", "--html", "/dev/full"]));
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.out.contains("offers") && ended.err.contains("/dev/full"), "{ended:?}");
}

/// A TCP server that calls `act` on each connection once it has received data.
fn bad_server(act: impl Fn(&mut TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.peek(&mut [0]);
            act(&mut stream);
        }
    });
    url
}

/// A ChangeCipherSpec record, which TLS 1.3 ignores (RFC 8446 appendix D.4).
const CHANGE_CIPHER_SPEC: &[u8] = &[20, 3, 3, 0, 1, 1];

#[test]
fn bad_servers_over_tcp_are_refused_with_one_sentence() {
    let slow = bad_server(|stream| {
        for byte in CHANGE_CIPHER_SPEC.iter().cycle() {
            if stream.write_all(&[*byte]).is_err() {
                break;
            }
            thread::sleep(Duration::from_millis(50));
        }
    });
    assert_refused(&[&slow, "--timeout", "1s"], &["does not respond in time", "--timeout"]);
    let endless = bad_server(|stream| {
        let records = CHANGE_CIPHER_SPEC.repeat(1000);
        while stream.write_all(&records).is_ok() {}
    });
    assert_refused(&[&endless], &["a full handshake fails", "more than 16 MiB"]);
    // Closing a socket with unread data resets the connection.
    let reset = bad_server(|_| {});
    assert_refused(&[&reset], &["a full handshake fails", "closed the connection"]);
    let half_closed = bad_server(|stream| {
        let _ = stream.write_all(&CHANGE_CIPHER_SPEC[..3]);
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    });
    assert_refused(&[&half_closed], &["a full handshake fails", "closed the connection"]);
}

#[test]
fn bad_servers_over_quic_are_refused_with_one_sentence() {
    // QUIC version 1 headers, with payloads that cannot be decrypted.
    let noise = |length: usize| {
        let mut datagram = vec![0xc0, 0, 0, 0, 1, 8];
        datagram.resize(length, 0x55);
        datagram
    };
    let cases: [(&str, usize, Vec<u8>); 3] = [
        ("slow", 1, noise(1200)),
        ("endless", usize::MAX, noise(1200)),
        ("half a datagram", 1, noise(7)),
    ];
    for (what, count, datagram) in cases {
        let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let url = format!("https://{}/", server.local_addr().unwrap());
        let done = Arc::new(AtomicBool::new(false));
        let ended = done.clone();
        thread::spawn(move || {
            let mut buffer = [0; 2000];
            while let Ok((_, client)) = server.recv_from(&mut buffer) {
                for _ in 0..count {
                    if ended.load(Ordering::Relaxed) || server.send_to(&datagram, client).is_err() {
                        break;
                    }
                    thread::sleep(Duration::from_millis(1));
                }
            }
        });
        eprintln!("{what}");
        assert_refused(
            &[&url, "--http3", "--timeout", "1s"],
            &["no response over QUIC", "over TCP"],
        );
        done.store(true, Ordering::Relaxed);
    }
}

#[test]
fn servers_without_early_data_are_distinguished() {
    if skipped_without(&["nginx", "openssl"]) {
        return;
    }
    let hello = "location / {\nreturn 200 hello;\n}";
    let servers = site();
    let nginx_without = nginx(servers.path(), &format!("ssl_protocols TLSv1.3;\n{hello}"));
    let (_openssl, openssl_port) = openssl_without_tickets(servers.path());
    for (port, expected) in
        [(nginx_without.port, "allow no early data"), (openssl_port, "no resumption")]
    {
        let site = site();
        let url = format!("https://localhost:{port}/");
        let mut command = firstflight(site.path());
        let ended = run(command.args(["audit", &url, "--check", "replay-at-once"]));
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(ended.out.contains("not applicable"), "{ended:?}");
        assert!(ended.out.contains(expected), "{ended:?}");
    }
    for (directives, expected) in [
        ("ssl_protocols TLSv1.2;\nlocation / {\nreturn 200 hello;\n}", "does not support TLS 1.3"),
        (
            "ssl_protocols TLSv1.3;\nlocation / {\nreturn 301 https://elsewhere.test/;\n}",
            "redirects to https://elsewhere.test/",
        ),
    ] {
        let site = site();
        let nginx = nginx(site.path(), directives);
        let url = format!("https://localhost:{}/", nginx.port);
        assert_refused(&[&url], &[expected]);
        assert_refused(&[&url, "--witness"], &[expected]);
    }
    let site = site();
    let nginx = nginx(site.path(), &format!("ssl_protocols TLSv1.3;\n{hello}"));
    let url = format!("https://localhost:{}/", nginx.port);
    assert_refused(&[&url, "--witness"], &["not from a witness", "--serve-witness"]);
}

/// OpenSSL's server, which issues no tickets, with cert.pem and key.pem in this directory.
fn openssl_without_tickets(dir: &Path) -> (Running, u16) {
    let port = free_port();
    let mut command = Command::new("openssl");
    command.current_dir(dir).args(["s_server", "-www", "-tls1_3", "-num_tickets", "0"]);
    command.args(["-cert", "cert.pem", "-key", "key.pem", "-accept", &port.to_string()]);
    let running = Running::start(command.stdout(Stdio::null()).stderr(Stdio::null()));
    assert!(until(|| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()));
    (running, port)
}

#[test]
fn checks_are_explained() {
    let home = site();
    let ended = run(firstflight(home.path()).args(["audit", "--explain", "refused-flight"]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.contains("The second attack of the section."), "{ended:?}");
    let all = run(firstflight(home.path()).args(["audit", "--explain", "all"]));
    assert!(all.out.lines().all(|line| line.chars().count() <= 100), "{all:?}");
    let checklist = run(firstflight(home.path()).args(["audit", "--checklist"]));
    assert_eq!(checklist.code, Some(0), "{checklist:?}");
    assert!(checklist.out.contains("[ ] No copy of a first flight runs"), "{checklist:?}");
    assert!(checklist.out.lines().all(|line| line.chars().count() <= 100), "{checklist:?}");
}
