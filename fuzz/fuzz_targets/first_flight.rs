//! Datagrams as a server's front door reads them before quinn does: any bytes, and Initial packets
//! with any payload, under keys that everybody can derive.
#![no_main]

use std::net::SocketAddr;
use std::time::Duration;

use firstflight_quic::test_packets::initial_packet;
use firstflight_quic::{FirstFlight, FirstFlights, FirstFlightsLimits};
use libfuzzer_sys::fuzz_target;

const LIMITS: FirstFlightsLimits =
    FirstFlightsLimits { flights: 4, client_hello: 600, lifetime: Duration::from_millis(40) };

fuzz_target!(|datagrams: Vec<(u8, Vec<Vec<u8>>)>| {
    let mut flights = FirstFlights::new(LIMITS);
    let mut now = Duration::ZERO;
    for (flags, packets) in datagrams {
        let remote = SocketAddr::from(([127, 0, 0, 1], u16::from(flags & 3)));
        let id = [flags & 4; 8];
        let mut datagram = Vec::new();
        for (packet, number) in packets.into_iter().zip(0..) {
            datagram.extend(match flags & 8 {
                0 => initial_packet(&id, &packet[..packet.len() / 4], number, &packet),
                _ => packet,
            });
        }
        datagram.resize(datagram.len().max(1200), 0);
        now += Duration::from_millis(u64::from(flags >> 4));
        let whole = flights.process_datagram(remote, &datagram, now);
        assert!(flights.len() <= LIMITS.flights);
        let Some(id) = whole else { continue };
        let FirstFlight::Whole { client_hello, .. } = flights.take(remote, &id) else {
            panic!("it became whole");
        };
        let length = client_hello[1..4].iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        assert_eq!((client_hello[0], client_hello.len()), (1, 4 + length));
        assert!(client_hello.len() <= LIMITS.client_hello);
        assert_eq!(flights.take(remote, &id), FirstFlight::Unknown);
    }
});
