//! Arbitrary bytes of a server cause an error or a wait, and never complete a handshake.

use std::time::Duration;

use firstflight_first_flight::{Entropy, FirstFlight, FlightPlan, Hello};
use proptest::prelude::*;

fn flight() -> FirstFlight {
    FlightPlan::full(Hello::new("localhost", &["h2"])).build(Duration::ZERO, &Entropy::system())
}

/// A record with this content.
fn record(content_type: u8, content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u16).to_be_bytes();
    [&[content_type, 3, 3], &length[..], content].concat()
}

proptest! {
    #[test]
    fn no_bytes_complete_a_handshake(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        kind in 18_u8..26,
        step in 1_usize..40,
    ) {
        for stream in [bytes.clone(), record(kind, &bytes), record(22, &bytes)] {
            let mut connection = flight().connection();
            for piece in stream.chunks(step) {
                if connection.receive(piece, Duration::ZERO).is_err() {
                    break;
                }
            }
            prop_assert!(!connection.is_ready());
            prop_assert!(!connection.finish());
        }
    }

    #[test]
    fn any_server_hello_is_read_or_refused(
        body in prop::collection::vec(any::<u8>(), 0..200),
        suite in 0x1301_u16..0x1304,
        share in prop::array::uniform32(any::<u8>()),
    ) {
        let mut hello = vec![3, 3];
        hello.extend([7; 32]);
        hello.push(0);
        hello.extend(suite.to_be_bytes());
        hello.push(0);
        let mut extensions = vec![0, 43, 0, 2, 3, 4, 0, 51, 0, 36, 0, 29, 0, 32];
        extensions.extend(share);
        extensions.extend(&body);
        hello.extend((extensions.len() as u16).to_be_bytes());
        hello.extend(extensions);
        let length = (hello.len() as u32).to_be_bytes();
        let message = [&[2], &length[1..], &hello].concat();
        let mut connection = flight().connection();
        let _ = connection.receive(&record(22, &message), Duration::ZERO);
        let _ = connection.receive(&record(23, &body), Duration::ZERO);
        prop_assert!(!connection.is_ready());
    }
}
