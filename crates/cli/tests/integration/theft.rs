//! A thief takes the server's whole memory, and tries every secret in it on a recorded first
//! flight.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use firstflight_testkit::{MemorySnapshot, RecordedFlight, Recorder, ServiceManager, StolenSecret};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::lifecycle::{certify, main_process};
use crate::support::program::{Fetched, PAGE, Running, Serve, fetch, firstflight, run, site};

/// The secrets that decrypt the flight: in memory before the flight arrives, and after its use.
struct Theft {
    before: Vec<StolenSecret>,
    after: Vec<StolenSecret>,
}

/// Serves with this `[tickets]` section, records a resumed connection with early data, and takes
/// the server's memory before the flight arrives and after the connection has ended.
fn steal(dir: &Path, tickets: &str) -> Theft {
    // Keeps the memory to search small.
    let config =
        format!("[early_data]\nregister_capacity = 64\n[http3]\nenabled = false\n{tickets}");
    fs::write(dir.join("config.toml"), config).unwrap();
    let config = dir.join("config.toml");
    let server = Serve::files(dir, &["--workers", "1", "--config", config.to_str().unwrap()]);
    let pid = server.pid();
    let empty = MemorySnapshot::of(pid);
    let recorder = Recorder::start(server.address);
    let url = recorder.url("/index.html");
    let request = |flags: &[&str]| -> Fetched {
        let all = ["--tls-earlydata", "--http1.1", "--tls13-ciphers", "TLS_AES_128_GCM_SHA256"];
        fetch(dir, &server.cert, &url, &[&all, flags].concat())
    };
    assert_eq!(request(&[]).ended.out, PAGE);
    let held = recorder.hold_next();
    let (flight, before) = thread::scope(|scope| {
        // `fetch` opens no second connection for a POST, however long the recorder holds its
        // flight.
        let returning = scope.spawn(|| request(&["-X", "POST", "--early-data-any-method"]));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (flight, release) = runtime.block_on(held.flight());
        let before = MemorySnapshot::of(pid);
        release.send(()).unwrap();
        let fetched = returning.join().unwrap();
        assert_eq!(fetched.facts["early_data"], "accepted", "{:?}", fetched.ended);
        (flight, before)
    });
    // The connection has ended when its line is in the log.
    server.lines(2);
    let after = MemorySnapshot::of(pid);
    server.stop();
    let flight = RecordedFlight::over_tcp(&flight, *b"POST /index.html");
    let tried = |memory: &MemorySnapshot| {
        let (found, tries) = memory.try_on(&flight, Some(&empty));
        assert!(tries > 1000, "there is memory to search");
        found
    };
    Theft { before: tried(&before), after: tried(&after) }
}

/// Only the seed above the ticket's index decrypts the flight, and its use destroys the seed.
#[test]
fn early_data_of_a_used_punctured_ticket_cannot_be_decrypted_with_the_whole_memory() {
    let site = site();
    let theft = steal(site.path(), "");
    assert!(matches!(theft.before[..], [StolenSecret::Seed(_)]), "{:?}", theft.before);
    assert_eq!(theft.after, []);
}

/// The recorder holds the flight during an upgrade. The old process, which still serves a
/// connection, then has no secret that decrypts it; the new process has one until the flight is
/// used.
#[test]
fn after_an_upgrade_the_old_process_has_no_keys() {
    let site = site();
    let dir = site.path();
    certify(dir);
    let manager = ServiceManager::new(dir);
    let settings = "[early_data]\nregister_capacity = 64\n[http3]\nenabled = false\n\
                    [limits]\nheader_timeout = \"30s\"\nidle_timeout = \"10m\"\n\
                    drain_timeout = \"10m\"\n";
    fs::write(dir.join("config.toml"), settings).unwrap();
    let files = ["root", "cert.pem", "key.pem", "config.toml"].map(|name| dir.join(name));
    let [root, cert, key, config] = files.each_ref().map(|path| path.to_str().unwrap());
    let arguments = ["--root", root, "--cert", cert, "--key", key, "--config", config];
    let arguments = [&arguments[..], &["--workers", "1"]].concat();
    let server = Serve::start_in(dir, &arguments, &[("NOTIFY_SOCKET", manager.path())]);
    manager.wait_for("READY=1");
    let old = server.pid();
    // The old process waits for its next request.
    let kept = keep_connection(&server);
    let empty = MemorySnapshot::of(old);
    let recorder = Recorder::start(server.address);
    let url = recorder.url("/index.html");
    let request = |flags: &[&str]| -> Fetched {
        let all = ["--tls-earlydata", "--http1.1", "--tls13-ciphers", "TLS_AES_128_GCM_SHA256"];
        fetch(dir, &server.cert, &url, &[&all, flags].concat())
    };
    assert_eq!(request(&[]).ended.out, PAGE);
    let held = recorder.hold_next();
    let (flight, new, before) = thread::scope(|scope| {
        let returning = scope.spawn(|| request(&["-X", "POST", "--early-data-any-method"]));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (flight, release) = runtime.block_on(held.flight());
        kill(Pid::from_raw(old as i32), Signal::SIGUSR2).unwrap();
        let new = main_process(&manager.wait_for("MAINPID="));
        manager.wait_for("READY=1");
        let before = [old, new.0.as_raw() as u32].map(MemorySnapshot::of);
        release.send(()).unwrap();
        let fetched = returning.join().unwrap();
        assert_eq!(fetched.facts["early_data"], "accepted", "{:?}", fetched.ended);
        (flight, new, before)
    });
    server.lines(3);
    let after = [old, new.0.as_raw() as u32].map(MemorySnapshot::of);
    drop(kept);
    let flight = RecordedFlight::over_tcp(&flight, *b"POST /index.html");
    let tried = |[old, new]: &[MemorySnapshot; 2]| {
        [old.try_on(&flight, Some(&empty)).0, new.try_on(&flight, None).0]
    };
    let [of_old, of_new] = tried(&before);
    assert_eq!(of_old, []);
    assert!(matches!(of_new[..], [StolenSecret::Seed(_)]), "{of_new:?}");
    assert_eq!(tried(&after), [vec![], vec![]]);
}

/// A client that has got its first response, and keeps its connection open.
fn keep_connection(server: &Serve) -> Running {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-quiet", "-servername", "localhost", "-connect"]);
    command.arg(server.address.to_string());
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut client = Running::start(&mut command);
    let request = b"GET /index.html HTTP/1.1\r\nHost: localhost\r\n\r\n";
    client.0.stdin.as_mut().unwrap().write_all(request).unwrap();
    server.lines(1);
    client
}

#[test]
fn early_data_under_a_key_of_the_process_can_be_decrypted_later() {
    let site = site();
    let theft = steal(site.path(), "[tickets]\nkeys = \"process\"\n");
    for found in [&theft.before, &theft.after] {
        assert!(found.contains(&StolenSecret::TicketKey), "{found:?}");
    }
}

#[test]
fn early_data_under_a_key_file_can_be_decrypted_later() {
    let site = site();
    let made = run(firstflight(site.path()).args(["keys", "new"]).arg(site.path().join("ring")));
    assert_eq!(made.code, Some(0), "{made:?}");
    let theft = steal(site.path(), "[tickets]\nkeys = \"file\"\nfile = \"ring\"\n");
    for found in [&theft.before, &theft.after] {
        assert!(found.contains(&StolenSecret::TicketKey), "{found:?}");
    }
}
