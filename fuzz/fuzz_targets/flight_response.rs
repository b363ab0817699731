//! Any bytes in response to a first flight of our own: as records, and as handshake messages inside
//! of genuine ones. An error or a wait, and no completed handshake with bytes that no server sealed.
#![no_main]

use std::time::Duration;

use firstflight_first_flight::test_server::{Behaviour, TestServer};
use firstflight_first_flight::{Driver, Entropy, Event, FlightPlan, Hello};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, u8, &[u8])| {
    let (how, step, bytes) = input;
    match how % 3 {
        0 => {
            let mut connection = plan().build(Duration::ZERO, &ENTROPY).connection();
            let mut pieces = bytes.chunks(usize::from(step).max(1));
            let _ = pieces.all(|piece| connection.receive(piece, Duration::ZERO).is_ok());
            assert!(!connection.is_ready() && !connection.finish());
        }
        1 => run(Behaviour { inserted: bytes.to_vec(), ..Behaviour::default() }),
        _ => run(Behaviour { appended: bytes.to_vec(), ..Behaviour::default() }),
    }
});

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

const ENTROPY: Entropy = Entropy { random: [7; 32], private_key: [9; 32] };
