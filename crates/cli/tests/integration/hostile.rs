//! Malicious peers: control sequences in texts that are shown or logged, and forged Initial packets.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use std::{fs, thread};

use firstflight_bench::{
    Exchange, FloodConfig, FloodPhase, FloodTrial, Forgery, LoadConfig, LoadHandshake, Model,
    Transport,
};
use firstflight_tls::Trust;

use crate::quic::initial::{FULL, Initials, close, header};
use crate::support::program::{Ended, PROGRAM, Serve, fetch, firstflight, run, site, text};

/// A terminal title, a workflow command on its own line, a C1 control character, and a bidirectional
/// override.
const WORDS: &str = "\x1b]0;owned\x07\n::error::owned\r\n\u{9b}2J\u{7f}\u{202e}";
const WORDS_ESCAPED: &str = r"\u{1b}]0;owned\u{7}\n::error::owned\r\n\u{9b}2J\u{7f}\u{202e}";

/// A header field with those characters of [`WORDS`] that it can contain, and a byte that is not
/// UTF-8.
const FIELD: &[u8] = b"a\xc2\x9b2J\xe2\x80\xae\x9b\tb";
const FIELD_ESCAPED: &str = r"a\u{9b}2J\u{202e}\x9b\tb";

/// Starts a QUIC server that closes each connection with this code and [`WORDS`]. Returns its port.
fn closes_with(code: u64) -> u16 {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = socket.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut datagram = [0; 2048];
        while let Ok((length, client)) = socket.recv_from(&mut datagram) {
            if let Some(first) = header(&datagram[..length]) {
                let initials = Initials::server(&first, b"hostile");
                let packet = initials.packet(0, &[], &close(code, WORDS.as_bytes()), FULL);
                let _ = socket.send_to(&packet, client);
            }
        }
    });
    port
}

/// An HTTP/1.1 server that sends this response to each client.
fn responds_with(response: Vec<u8>) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let _ = client.read(&mut [0; 4096]);
            let _ = client.write_all(&response);
            let _ = client.shutdown(Shutdown::Write);
            let _ = std::io::copy(&mut client, &mut std::io::sink());
        }
    });
    format!("http://127.0.0.1:{port}/")
}

fn response() -> Vec<u8> {
    let head = [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-Words: ", FIELD, b"\r\n\r\n"].concat();
    [&head[..], b"\x1b[2J"].concat()
}

/// Whether a text has no control characters.
fn is_plain(text: &str) -> bool {
    !text.contains(|c: char| c != '\n' && firstflight_units::is_unprintable(c))
        && !text.lines().any(|line| line.trim_start().starts_with("::"))
}

fn assert_plain(ended: &Ended) {
    assert!(is_plain(&ended.err) && is_plain(&ended.out), "{ended:?}");
}

#[test]
fn the_close_reason_of_a_quic_server_is_escaped() {
    let site = site();
    let dir = site.path();
    // PROTOCOL_VIOLATION, and the TLS alert internal_error.
    for code in [0x0a, 0x150] {
        let url = format!("https://localhost:{}/", closes_with(code));
        for flags in [&["--http3-only"][..], &["--http3-only", "-v"]] {
            let mut command = firstflight(dir);
            command.args(["fetch", "-w", "%{errormsg} %{json}"]).args(flags).arg(&url);
            let ended = run(&mut command);
            assert!(ended.err.contains(WORDS_ESCAPED), "{ended:?}");
            assert_plain(&ended);
        }
    }
}

#[test]
fn header_fields_are_escaped_and_bodies_are_not() {
    let site = site();
    let dir = site.path();
    let url = responds_with(response());
    let mut command = firstflight(dir);
    command.args(["fetch", "-v", "-o"]).arg(dir.join("body"));
    command.args(["-w", "%header{x-words} %{header_json} %{json}", &url]);
    let ended = run(&mut command);
    assert!(ended.err.contains(&format!("< X-Words: {FIELD_ESCAPED}\n")), "{ended:?}");
    assert_eq!(std::fs::read(dir.join("body")).unwrap(), b"\x1b[2J");
    assert_plain(&ended);
    // Output into a pipe or a file is not changed, not even the head with -i.
    let ended = run(firstflight(dir).args(["fetch", "-i", "-o"]).arg(dir.join("all")).arg(&url));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(std::fs::read(dir.join("all")).unwrap(), response());
}

#[test]
fn a_terminal_gets_heads_without_control_sequences() {
    let site = site();
    let dir = site.path();
    let head = [b"HTTP/1.1 204 No\r\nX-Words: ", FIELD, b"\r\n\r\n"].concat();
    let call = format!("{PROGRAM} fetch -i {}", responds_with(head));
    let mut script = Command::new("script");
    let ended = run(script.env("HOME", dir).args(["-qec", &call, "/dev/null"]));
    assert!(ended.out.contains(&format!("X-Words: {FIELD_ESCAPED}\r")), "{ended:?}");
}

#[test]
fn a_user_agent_is_escaped_in_the_log() {
    let site = site();
    let dir = site.path();
    let server = Serve::files(dir, &[]);
    let url = format!("https://localhost:{}/index.html", server.port());
    let agent = "a\u{9b}2J\u{202e}b";
    fetch(dir, &server.cert, &url, &["-A", agent]);
    let path = server.log.clone();
    let log = server.stop();
    assert_eq!(log[0]["user_agent"], agent);
    assert!(is_plain(&text(Path::new(&path))), "{log:?}");
}

/// Forged connections per second: few enough for an unoptimised server on a slow machine that runs
/// other tests, too.
const FORGED_PER_SECOND: f64 = 150.0;

/// Handshakes in progress above which the server sends Retry packets.
const RETRY_ABOVE: usize = 100;

/// The memory that the server may use for forged connections. A handshake takes about 35 KiB, and
/// fragmentation about as much again. All forged connections would take more than twice this limit.
const MAX_MEMORY_KIB: u64 = 32 * 1024;

#[test]
fn forged_initial_packets_neither_exhaust_memory_nor_block_clients() {
    let dir = site();
    let config = dir.path().join("config.toml");
    // A slow machine that runs other tests too takes seconds for a handshake.
    let text =
        format!("[http3]\nretry_above = {RETRY_ABOVE}\n[limits]\nheader_timeout = \"30s\"\n");
    fs::write(&config, text).unwrap();
    let config = ["--config", config.to_str().unwrap(), "--workers", "1"];
    let server = Serve::files(dir.path(), &config);
    let trial = FloodTrial {
        flood: FloodConfig {
            target: server.address,
            host: "localhost".to_owned(),
            forgeries: Forgery::ALL.to_vec(),
            rate: Some(FORGED_PER_SECOND),
            seed: 1,
        },
        honest: LoadConfig {
            transport: Transport::Quic,
            exchange: Exchange::get(&server.address.to_string(), "/"),
            trust: Trust::File(server.cert.clone()),
            model: Model::open(5.0),
            // Long enough never to matter on a loaded machine.
            timeout: Duration::from_secs(60),
            ..LoadConfig::new(vec![server.address], "localhost")
        },
        kinds: vec![LoadHandshake::Full, LoadHandshake::ZeroRtt],
        server_pid: server.pid(),
        phase: Duration::from_secs(12),
    };
    let phases = trial.run().unwrap();
    let [before, during, after] = phases.as_slice() else { panic!("{phases:?}") };
    for phase in &phases {
        let (due, completed) = phase.honest_connections();
        assert!(phase.starved.is_empty(), "{phase:?}");
        assert!(due > 0 && completed == due, "{completed} of {due}: {phase:?}");
    }
    let flood = during.flood.as_ref().unwrap();
    assert!(flood.forged > 0 && flood.retries > 0, "{flood:?}");
    // RFC 9000 section 8.1: an address that is not validated gets at most three times the bytes that it sent.
    assert!(flood.bytes_received <= 3 * flood.bytes_sent, "{flood:?}");
    let max_memory = |phase: &FloodPhase| phase.resident_max_kib;
    let grown = max_memory(during).max(max_memory(after)).saturating_sub(max_memory(before));
    assert!(grown < MAX_MEMORY_KIB, "{grown} KiB: {flood:?}");
    server.stop();
}
