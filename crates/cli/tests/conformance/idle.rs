//! Many idle connections: the memory that each needs, and that other clients are still served.

use std::fs::{self, File};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::honest_client::{HonestClient, usage};
use crate::http2::{self, get, hello};
use crate::running::{PROGRAM, Running, Serve, site, text, until};
use crate::table;
use crate::wire::Dialer;

/// The protocols, and the KiB that an idle connection may cost: in the long form, where connections
/// of the last second still have their buffers, and in the short form, where nothing is optimised
/// and all connections still have them. The table shows the measured values.
const MAX_KIB: [(&str, u64, u64); 2] = [("http/1.1", 16, 28), ("h2", 32, 44)];

/// What the allocator and later requests may keep, regardless of the number of connections.
const SPARE_KIB: u64 = 1024;

/// As many connections as the default limit allows beside the honest clients; fewer in the short
/// form.
pub(crate) fn connections() {
    let count = if table::is_long() { 9_900 } else { 300 };
    allow_open_files(count + 1000);
    for (protocol, long, short) in MAX_KIB {
        let max_kib = if table::is_long() { long } else { short };
        let site = site();
        let server = Serve::files(site.path(), &["--idle-timeout", "1h"]);
        let dialer = Dialer::new(&server, protocol);
        // Memory that only the first connections add does not count.
        let mut kept: Vec<_> = (0..10).map(|_| idle(&dialer, protocol)).collect();
        let before = usage(&server);
        kept.extend((0..count).map(|_| idle(&dialer, protocol)));
        let grown = || usage(&server).memory.saturating_sub(before.memory);
        let memory = grown();
        let report = HonestClient::start(&server).end();
        let cpu = idle_cpu(&server);
        let each = memory as f64 / count as f64;
        table::figure(
            &format!("idle connections, {protocol}"),
            format!("{count}: {each:.1} KiB each; CPU in the second after: {cpu:.2} s"),
        );
        assert!(report.failed.is_empty() && report.served > 0, "{report:?}");
        assert!(memory < max_kib * count, "{each:.1} KiB for each idle connection");
        drop(kept);
        let allowed = memory / 2 + SPARE_KIB;
        assert!(until(|| grown() < allowed), "{} of {memory} KiB kept", grown());
    }
}

/// The KiB that an idle HTTP/1.1 connection may cost without its buffers. With them it costs 20,
/// where nothing is optimised.
const MAX_KIB_WITHOUT_BUFFERS: u64 = 14;

/// Idle HTTP/1.1 connections free their buffers, which later connections use.
pub(crate) fn buffers() {
    const BATCH: u64 = 200;
    allow_open_files(10 * BATCH);
    let site = site();
    let server = Serve::files(site.path(), &["--idle-timeout", "1h"]);
    let dialer = Dialer::new(&server, "http/1.1");
    let mut kept: Vec<_> = (0..10).map(|_| idle(&dialer, "http/1.1")).collect();
    let mut batch = || {
        let before = usage(&server).memory;
        kept.extend((0..BATCH).map(|_| idle(&dialer, "http/1.1")));
        usage(&server).memory.saturating_sub(before)
    };
    let first = batch();
    let later: Vec<_> = (0..6)
        .map(|_| {
            // Connections count as idle after a second, on a slow machine even before their batch
            // is complete.
            std::thread::sleep(std::time::Duration::from_millis(1500));
            batch()
        })
        .collect();
    let smallest = later.iter().min().unwrap();
    table::figure("memory of 200 connections, KiB", format!("first {first}, later {later:?}"));
    assert!(*smallest < MAX_KIB_WITHOUT_BUFFERS * BATCH, "{first} KiB for {BATCH}, then {later:?}");
}

/// The server raises its soft limit of open files, which is usually below its limit of connections.
pub(crate) fn open_files() {
    let site = site();
    let (stderr, root) = (site.path().join("stderr"), site.path().join("root"));
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -S -n 256; exec \"$0\" \"$@\"", PROGRAM]);
    command.args(["serve", "--listen", "127.0.0.1:0", "--root"]).arg(root);
    command
        .env("HOME", site.path())
        .env_remove("XDG_DATA_HOME")
        .stdout(Stdio::null())
        .stderr(File::create(&stderr).unwrap());
    let server = Running::start(&mut command);
    assert!(until(|| text(&stderr).contains("serving on")), "{}", text(&stderr));
    let limits = fs::read_to_string(format!("/proc/{}/limits", server.0.id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let numbers: Vec<_> = line.split_whitespace().skip(3).take(2).collect();
    assert_eq!(numbers[0], numbers[1], "{line}");
}

/// A connection after its first request, without the client's TLS state, so that ten thousand need
/// little memory here.
fn idle(dialer: &Dialer, protocol: &str) -> TcpStream {
    let mut wire = dialer.connect().unwrap();
    match protocol {
        "h2" => {
            wire.send(&[hello(&[]), get(1, "/index.html")].concat()).unwrap();
            wire.read_until(|bytes| http2::frames(bytes).iter().any(|frame| frame.ends(1)));
        }
        _ => {
            wire.send(b"GET /index.html HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            wire.read_until(|bytes| bytes.ends_with(crate::running::PAGE.as_bytes()));
        }
    }
    wire.into_socket()
}

fn idle_cpu(server: &Serve) -> f64 {
    let before = usage(server).cpu;
    std::thread::sleep(std::time::Duration::from_secs(1));
    table::seconds(usage(server).cpu.saturating_sub(before))
}

/// Lets this process, and servers that it starts, have this many open files.
fn allow_open_files(files: u64) {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    assert!(hard >= files, "{files} open files are needed, {hard} allowed; raise `ulimit -Hn`");
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(files), hard).unwrap();
}
