//! Any bytes in response to a first flight of our own: as records, as handshake messages inside of
//! genuine ones, as datagrams, and as frames in Initial packets, whose keys everybody has. An error or a wait, and no completed handshake with bytes that no server sealed.
#![no_main]

use std::time::Duration;

use firstflight_first_flight::test_server::{Behaviour, TestServer};
use firstflight_first_flight::{Driver, Entropy, Event, FlightPlan, Hello};
use firstflight_wire::{PacketKeys, Sender, Version};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, u8, &[u8])| {
    let (how, step, bytes) = input;
    match how % 5 {
        0 => {
            let mut connection = plan().build(Duration::ZERO, &ENTROPY).connection();
            let mut pieces = bytes.chunks(usize::from(step).max(1));
            let _ = pieces.all(|piece| connection.receive(piece, Duration::ZERO).is_ok());
            assert!(!connection.is_ready() && !connection.finish());
        }
        3 | 4 => {
            let hello = Hello::new("localhost", &["h3"]).over_quic(b"");
            let mut connection =
                FlightPlan::full(hello).build(Duration::ZERO, &ENTROPY).connection();
            let pieces = bytes.chunks(usize::from(step).max(1) * 4).zip(0_u32..);
            for (piece, number) in pieces {
                let datagram = if how % 5 == 3 { piece.to_vec() } else { initial(number, piece) };
                if connection.receive(&datagram, Duration::ZERO).is_err() {
                    break;
                }
                connection.take_output();
            }
            assert!(!connection.is_ready() && !connection.finish());
        }
        1 => run(Behaviour { inserted: bytes.to_vec(), ..Behaviour::default() }),
        _ => run(Behaviour { appended: bytes.to_vec(), ..Behaviour::default() }),
    }
});

/// A server's Initial packet with these frames.
fn initial(number: u32, frames: &[u8]) -> Vec<u8> {
    let [id, client] = ENTROPY.connection_ids;
    let keys = PacketKeys::initial(Version::One, &id, Sender::Server).expect("keys");
    let mut header = [&[0xc3, 0, 0, 0, 1, 8][..], &client, &[8], &[4; 8], &[0]].concat();
    let frames = [frames, &[0; 4]].concat();
    header.extend((0x4000 | (4 + frames.len() + 16) as u16).to_be_bytes());
    header.extend(number.to_be_bytes());
    keys.seal(number.into(), &header, &frames)
}

/// A whole handshake with a server that sends these bytes.
fn run(behaviour: Behaviour) {
    let server = TestServer::new(behaviour);
    let flight = plan().build(server.now(), &ENTROPY);
    let mut driver = Driver::start(&flight, server.link());
    let _ = driver.wait_for(Duration::from_secs(1), |event| *event == Event::Finished);
    driver.connection().finish();
    let _ = driver.wait_for(Duration::from_secs(1), |_| false);
}

fn plan() -> FlightPlan {
    FlightPlan::full(Hello::new("localhost", &["http/1.1"]))
}

const ENTROPY: Entropy =
    Entropy { random: [7; 32], private_key: [9; 32], connection_ids: [[1; 8], [2; 8]] };
