//! A thief takes the server's whole memory, and tries every secret in it on a recorded first flight
//! over QUIC.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use firstflight_testkit::{
    MemorySnapshot, RecordedFlight, StolenSecret, TEST_TIMEOUT, until, within,
};
use firstflight_wire::{PacketKeys, Suite, Version};

use super::initial::{ZERO_RTT, client_hello, packets};
use super::relay::Direction;
use super::setup::Setup;
use crate::support::program::{PAGE, fetch, firstflight, run, text};

/// The secrets that the thief finds before the flight arrives, and what a later search needs.
struct Theft {
    setup: Setup,
    empty: MemorySnapshot,
    flight: RecordedFlight,
    before: Vec<StolenSecret>,
}

impl Theft {
    /// Serves with this `[tickets]` section, holds a flight with early data back, takes the
    /// server's memory, and then lets the flight arrive and be used.
    fn of(tickets: &str) -> Self {
        // Keeps the memory to search small.
        let config = format!("[early_data]\nregister_capacity = 64\n{tickets}");
        let setup = Setup::configured(&config, &["--workers", "1"]);
        let dir = setup.dir();
        let empty = MemorySnapshot::of(setup.server.pid());
        let url = format!("https://localhost:{}/index.html", setup.port());
        let all = ["--http3-only", "--tls-earlydata", "--tls13-ciphers", "TLS_AES_128_GCM_SHA256"];
        assert_eq!(fetch(dir, &setup.cert, &url, &all).ended.out, PAGE);

        let arrives = Arc::new(AtomicBool::new(false));
        let opens = arrives.clone();
        setup.relay.rule(move |direction, _, datagram| {
            let passes = direction == Direction::Down || opens.load(Ordering::Relaxed);
            passes.then_some(datagram).into_iter().collect()
        });
        let secrets = dir.join("secrets");
        let (flight, before) = thread::scope(|scope| {
            // `fetch` opens no second connection for a POST, however long its flight is held back.
            let returning = scope.spawn(|| {
                let mut command = firstflight(dir);
                command.env("SSLKEYLOGFILE", &secrets).arg("fetch").args(all);
                command.args(["-X", "POST", "--early-data-any-method", "--cacert"]);
                command.arg(&setup.cert).arg("--ssl-sessions").arg(dir.join("jar"));
                run(command.args(["-w", "%{stderr}%{early_data}", &url]))
            });
            assert!(
                until(|| early_packet(&setup.relay.flight()).is_some()),
                "nothing early is sent"
            );
            let flight = setup.relay.flight();
            let before = MemorySnapshot::of(setup.server.pid());
            arrives.store(true, Ordering::Relaxed);
            let ended = returning.join().unwrap();
            assert_eq!(ended.err, "accepted", "{ended:?}");
            (flight, before)
        });
        let (packet, number_at) = early_packet(&flight).unwrap();
        let frames = decrypted(&packet, number_at, &text(&secrets));
        let tag = 16;
        let ciphertext = packet[packet.len() - tag - frames.len()..].to_vec();
        let known_start = *frames.first_chunk().expect("16 bytes of frames");
        let flight = RecordedFlight::over_quic(&client_hello(&flight), ciphertext, known_start);
        let (before, tries) = before.try_on(&flight, Some(&empty));
        assert!(tries > 1000, "there is memory to search");
        setup.server.lines(2);
        Self { setup, empty, flight, before }
    }

    /// The secrets that the thief finds now.
    fn now(&self) -> Vec<StolenSecret> {
        MemorySnapshot::of(self.setup.server.pid()).try_on(&self.flight, Some(&self.empty)).0
    }
}

/// The first 0-RTT packet of a flight, and where its number starts.
fn early_packet(flight: &[Vec<u8>]) -> Option<(Vec<u8>, usize)> {
    let mut all = flight.iter().flat_map(|datagram| packets(datagram));
    let (header, packet) = all.find(|(header, _)| header.kind == Some(ZERO_RTT))?;
    Some((packet.to_vec(), header.number))
}

/// The frames of a packet, by the client's own secret.
fn decrypted(packet: &[u8], number_at: usize, secrets: &str) -> Vec<u8> {
    let line = secrets.lines().find_map(|line| line.strip_prefix("CLIENT_EARLY_TRAFFIC_SECRET "));
    let (_, secret) = line.and_then(|line| line.split_once(' ')).expect("the client logs secrets");
    let secret: Vec<u8> = (0..secret.len() / 2)
        .map(|at| u8::from_str_radix(&secret[2 * at..2 * at + 2], 16).expect("hexadecimal"))
        .collect();
    let keys = PacketKeys::new(Version::One, Suite::Aes128GcmSha256, &secret).expect("32 bytes");
    keys.open(packet, number_at, None).expect("the client's own packet").frames
}

/// Only the seed above the ticket's index decrypts the flight, and its use destroys the seed.
#[test]
fn early_data_of_a_used_punctured_ticket_cannot_be_decrypted_with_the_whole_memory() {
    let theft = Theft::of("");
    assert!(matches!(theft.before[..], [StolenSecret::Seed(_)]), "{:?}", theft.before);
    // A closed connection and its session stay for three probe timeouts (RFC 9000 section 10.2).
    let is_gone = || theft.now().is_empty();
    assert!(within(TEST_TIMEOUT, Duration::from_millis(500), is_gone), "{:?}", theft.now());
}

#[test]
fn early_data_under_a_key_file_can_be_decrypted_later() {
    let key_dir = tempfile::tempdir().unwrap();
    let ring = key_dir.path().join("ring");
    let made = run(firstflight(key_dir.path()).args(["keys", "new"]).arg(&ring));
    assert_eq!(made.code, Some(0), "{made:?}");
    assert!(fs::exists(&ring).unwrap());
    let theft = Theft::of(&format!("[tickets]\nkeys = \"file\"\nfile = {ring:?}\n"));
    for found in [&theft.before, &theft.now()] {
        assert!(found.contains(&StolenSecret::TicketKey), "{found:?}");
    }
}
