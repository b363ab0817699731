//! Packets that no honest client sends: the server continues, and its responses are bounded.

use std::fs;

use rustls::Side;

use super::attacker::Attacker;
use super::initial::{
    CLOSE, FULL, Initials, PING, RETRY, client_hello, crypto, header, open, packets,
};
use super::rustls_client::{Client, get};
use super::setup::{self, Setup};
use super::{aioquic, ngtcp2};
use firstflight_testkit::skipped_without;

use crate::support::program::PAGE;

/// Checks that the server still serves an honest client.
fn still_serves(setup: &mut Setup) {
    let client = Client::new(&setup.cert);
    let mut link = client.connect(setup.port());
    let response = link.request(get("/index.html?honest"));
    assert_eq!((response.status, &*response.body), (200, PAGE));
    link.close();
    let log = setup.end();
    assert_eq!(log.last().unwrap()["target"], "/index.html?honest");
}

/// The ClientHello of an honest client, which the server accepts.
fn hello(setup: &Setup) -> Vec<u8> {
    Client::new(&setup.cert).connect(setup.port()).close();
    client_hello(&setup.relay.flight())
}

/// The error code of a CONNECTION_CLOSE in the received Initial packets.
fn close_code(received: &[Vec<u8>], destination: &[u8]) -> Option<u8> {
    let initials = received.iter().flat_map(|datagram| packets(datagram));
    let frames = initials.filter_map(|(_, packet)| open(packet, destination, Side::Server));
    let closes = frames.filter_map(|frames| {
        let at = frames.iter().position(|byte| *byte == 0x1c)?;
        frames.get(at + 1).copied()
    });
    closes.collect::<Vec<_>>().pop()
}

#[test]
fn rfc9000_7_5_an_endless_client_hello() {
    let mut setup = Setup::new(&[]);
    for number in 0..50_u8 {
        let initials = Initials::new(&[number, 1, 2, 3, 4, 5, 6, 7], b"source");
        let attacker = Attacker::new(setup.server.address);
        // The first bytes of a message of 16 MB, followed by more of it, beyond all buffers.
        attacker.send(&initials.packet(0, &[], &crypto(0, &[1, 0xff, 0xff, 0xff]), FULL));
        for (number, offset) in (1..).zip((0..200_000_u64).step_by(1_000)) {
            let frames = crypto(offset + 4, &[0; 1000]);
            attacker.send(&initials.packet(number, &[], &frames, FULL));
        }
        attacker.settle(&initials.destination);
    }
    still_serves(&mut setup);
}

#[test]
fn rfc9000_7_5_crypto_far_ahead_is_an_error() {
    let mut setup = Setup::new(&[]);
    let initials = Initials::new(b"far ahead", b"source");
    let attacker = Attacker::new(setup.server.address);
    attacker.send(&initials.packet(0, &[], &crypto(1 << 30, b"far"), FULL));
    let received = attacker.settle_slowly(&initials.destination);
    assert_eq!(
        close_code(&received, &initials.destination),
        Some(CRYPTO_BUFFER_EXCEEDED),
        "{received:?}"
    );
    still_serves(&mut setup);
}

/// RFC 9000 section 20.1.
const CRYPTO_BUFFER_EXCEEDED: u8 = 0x0d;

#[test]
fn overlapping_crypto_frames_with_different_bytes() {
    let mut setup = Setup::new(&[]);
    let honest = hello(&setup);
    for cut in (50..honest.len().min(1_000)).step_by(50) {
        let initials = Initials::new(&[cut as u8, 9, 9, 9, 9, 9, 9, cut as u8], b"source");
        let attacker = Attacker::new(setup.server.address);
        // The rest before the start, then a different rest, and the start again with a different
        // client random.
        let mut other = honest.clone();
        other[6..38].fill(7);
        let later = &honest[cut..honest.len().min(cut + 1_000)];
        let fragments = [(cut, later), (cut, &vec![7; later.len()]), (0, &honest[..cut])];
        for (number, (offset, data)) in (0..).zip(fragments) {
            attacker.send(&initials.packet(number, &[], &crypto(offset as u64, data), FULL));
        }
        attacker.send(&initials.packet(3, &[], &crypto(0, &other[..cut]), FULL));
        attacker.settle(&initials.destination);
    }
    still_serves(&mut setup);
}

#[test]
fn truncated_and_corrupted_packets() {
    let mut setup = Setup::new(&[]);
    let honest = hello(&setup);
    let initials = Initials::new(b"spoiled!", b"source");
    let packet = initials.packet(0, &[], &crypto(0, &honest[..honest.len().min(1_000)]), FULL);
    let attacker = Attacker::new(setup.server.address);
    for length in 0..packet.len().min(100) {
        attacker.send(&packet[..length.max(1)]);
        // Long enough, but with a changed byte.
        let mut spoiled = packet.clone();
        spoiled[length] ^= 0x55;
        attacker.send(&spoiled);
        if length % 20 == 0 {
            attacker.settle(&initials.destination);
        }
    }
    still_serves(&mut setup);
}

#[test]
fn rfc9000_8_1_at_most_three_times_the_received_bytes_are_sent() {
    let mut setup = Setup::new(&[]);
    let honest = hello(&setup);
    let initials = Initials::new(b"amplify!", b"source");
    let attacker = Attacker::new(setup.server.address);
    let cut = honest.len() / 2;
    let initial_packets = [
        initials.packet(0, &[], &crypto(0, &honest[..cut]), FULL),
        initials.packet(1, &[], &crypto(cut as u64, &honest[cut..]), FULL),
    ];
    for packet in &initial_packets {
        attacker.send(packet);
    }
    // Everything received within two seconds, including probes.
    let mut received = 0;
    for _ in 0..10 {
        while let Some(datagram) = attacker.receive() {
            received += datagram.len();
        }
    }
    let sent: usize = initial_packets.iter().map(Vec::len).sum();
    assert!(received > 0 && received <= 3 * sent, "{received} bytes for {sent}");
    still_serves(&mut setup);
}

#[test]
fn rfc9000_10_3_guessed_stateless_resets_are_ignored() {
    let mut setup = Setup::new(&[]);
    let client = Client::new(&setup.cert);
    let mut link = client.connect(setup.port());
    assert_eq!(link.request(get("/index.html?before")).status, 200);
    let attacker = Attacker::new(setup.server.address);
    let mut responses = 0;
    for number in 0..2_000_u32 {
        let mut guess = vec![0x40; 50];
        guess[1..5].copy_from_slice(&number.to_be_bytes());
        attacker.send(&guess);
        if number % 50 == 0 {
            // The response is a reset, shorter than the packet that caused it (section 10.3.3).
            let received = attacker.settle(&guess[1..9]);
            assert!(received.iter().all(|reset| reset.len() < guess.len()), "{received:?}");
            responses += received.len();
        }
    }
    assert!(responses > 0, "no reset at all");
    // The client ignores forged resets too.
    setup.relay.send_down(&[0x41; 60]);
    assert_eq!(link.request(get("/index.html?after")).status, 200);
    link.close();
    still_serves(&mut setup);
}

#[test]
fn rfc9000_6_2_a_forged_version_negotiation_is_ignored() {
    let mut setup = Setup::new(&[]);
    // Two forged packets: one with the client's own version before the server's first response, and
    // one with another version after it.
    setup.relay.rule(move |direction, nth, datagram| {
        if direction == super::relay::Direction::Up || nth > 0 {
            return vec![datagram];
        }
        let header = header(&datagram).unwrap();
        let negotiate = |version: [u8; 4]| {
            let mut forged = vec![0x80, 0, 0, 0, 0, header.destination.len() as u8];
            forged.extend_from_slice(&header.destination);
            forged.push(header.source.len() as u8);
            forged.extend_from_slice(&header.source);
            forged.extend_from_slice(&version);
            forged
        };
        vec![negotiate([0, 0, 0, 1]), datagram, negotiate([0x6b, 0x33, 0x43, 0xcf])]
    });
    let run = ngtcp2::client(setup.dir(), setup.port(), &[], &["/index.html"]);
    assert_eq!(run.statuses(), ["200"], "{}", run.summary());
    still_serves(&mut setup);
}

/// An address token that the server gave to aioquic.
fn token(setup: &Setup) -> Vec<u8> {
    let result = aioquic::client(setup.dir(), &setup.cert, setup.port(), &["/index.html"]);
    assert_eq!(result["responses"][0]["status"], 200, "{result}");
    let kept = setup.dir().join("aioquic.token");
    let token = fs::read(&kept).unwrap();
    // Otherwise the next call would use it.
    fs::remove_file(kept).unwrap();
    token
}

/// Whether the server responds to this Initial packet with a Retry.
fn retried(attacker: &Attacker, destination: &[u8], token: &[u8]) -> bool {
    let initials = Initials::new(destination, b"source");
    attacker.send(&initials.packet(0, token, &PING, FULL));
    let received = attacker.settle_slowly(destination);
    let retry = |datagram: &Vec<u8>| header(datagram).is_some_and(|h| h.kind == Some(RETRY));
    let retried = received.iter().any(retry);
    if !retried {
        attacker.send(&initials.packet(1, token, &CLOSE, FULL));
        attacker.settle_slowly(destination);
    }
    retried
}

#[test]
fn rfc9000_8_1_3_a_token_is_valid_once_and_only_from_its_address() {
    if skipped_without(&["aioquic"]) {
        return;
    }
    let mut setup = Setup::configured(setup::RETRY, &[]);
    let (first, second) = (token(&setup), token(&setup));
    let elsewhere = Attacker::from([127, 0, 0, 2], setup.server.address);
    assert!(retried(&elsewhere, b"elsewhere", &first), "another address");
    let here = Attacker::new(setup.server.address);
    assert!(!retried(&here, b"the first", &first), "its own address");
    assert!(retried(&here, b"the first again", &first), "its own address, once more");
    assert!(!retried(&here, b"one more token", &second), "another token");
    let mut spoiled = second.clone();
    spoiled[20] ^= 1;
    assert!(retried(&here, b"spoilt token", &spoiled), "a forged token");
    still_serves(&mut setup);
}

#[test]
fn rfc9000_8_1_2_a_retry_token_is_invalid_from_another_address() {
    let mut setup = Setup::configured(setup::RETRY, &[]);
    let honest = hello(&setup);
    let here = Attacker::new(setup.server.address);
    let initials = Initials::new(b"requester", b"source");
    here.send(&initials.packet(0, &[], &crypto(0, &honest[..200]), FULL));
    let received = here.settle_slowly(&initials.destination);
    let mut headers = received.iter().filter_map(|datagram| header(datagram));
    let retry = headers.find(|header| header.kind == Some(RETRY)).expect("a Retry");
    // With the Retry's token and connection id, from another port and from another address.
    let again = Initials::new(&retry.source, b"source");
    let packet = again.packet(1, &retry.token, &crypto(0, &honest[..200]), FULL);
    for elsewhere in
        [Attacker::from([127, 0, 0, 2], setup.server.address), Attacker::new(setup.server.address)]
    {
        elsewhere.send(&packet);
        let received = elsewhere.settle_slowly(&again.destination);
        assert_eq!(close_code(&received, &again.destination), Some(INVALID_TOKEN), "{received:?}");
    }
    // From the address of the request, it is valid.
    here.send(&packet);
    let received = here.settle_slowly(&again.destination);
    let mut frames = received
        .iter()
        .flat_map(|datagram| packets(datagram))
        .filter_map(|(_, packet)| open(packet, &again.destination, Side::Server));
    assert!(frames.any(|frames| frames[0] == ACK), "{received:?}");
    still_serves(&mut setup);
}

/// RFC 9000 section 20.1.
const INVALID_TOKEN: u8 = 0x0b;

/// The type of an ACK frame.
const ACK: u8 = 0x02;
