use proptest::prelude::*;

use super::*;
use crate::header::HeaderKey;
use crate::initial::initial_secrets;
use crate::packet::PacketKey;
use crate::test_packets::{crypto_frame, initial_packet};

const ID: [u8; 8] = [0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08];
const NOW: Duration = Duration::from_secs(100);

fn remote(port: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], port))
}

fn flights() -> FirstFlights {
    FirstFlights::new(FirstFlightsLimits::default())
}

fn hello(length: usize) -> Vec<u8> {
    let mut hello = vec![1, 0, (length >> 8) as u8, length as u8];
    hello.extend((0..length).map(|at| at as u8));
    hello
}

/// A datagram with one Initial packet, padded to at least 1,200 bytes.
fn datagram(id: &[u8], token: &[u8], number: u32, mut payload: Vec<u8>) -> Vec<u8> {
    payload.resize(payload.len().max(1180), 0);
    initial_packet(id, token, number, &payload)
}

fn whole(client_hello: &[u8], token: &[u8]) -> FirstFlight {
    FirstFlight::Whole { client_hello: client_hello.to_vec(), token: token.to_vec() }
}

fn take(flights: &mut FirstFlights, port: u16) -> FirstFlight {
    flights.take(remote(port), &ConnectionId::new(&ID))
}

fn take_with_token(flights: &mut FirstFlights, port: u16) -> FirstFlight {
    match flights.connection_id_after_retry(remote(port)) {
        Some(id) => flights.take(remote(port), &id),
        None => FirstFlight::Unknown,
    }
}

/// Returns whether a ClientHello became complete.
fn process(flights: &mut FirstFlights, remote: SocketAddr, datagram: &[u8], now: Duration) -> bool {
    flights.process_datagram(remote, datagram, now).is_some()
}

/// The ClientHello and the Initial packet of RFC 9001 appendix A.2, whose last bytes are the tag
/// over all of it.
fn appendix_a2() -> (Vec<u8>, Vec<u8>) {
    let frame = hex::decode(concat!(
        "060040f1010000ed0303ebf8fa56f12939b9584a3896472ec40bb863cfd3e868",
        "04fe3a47f06a2b69484c00000413011302010000c000000010000e00000b6578",
        "616d706c652e636f6dff01000100000a00080006001d00170018001000070005",
        "04616c706e000500050100000000003300260024001d00209370b2c9caa47fba",
        "baf4559fedba753de171fa71f50f1ce15d43e994ec74d748002b000302030400",
        "0d0010000e0403050306030203080408050806002d00020101001c0002400100",
        "3900320408ffffffffffffffff05048000ffff07048000ffff08011001048000",
        "75300901100f088394c8f03e51570806048000ffff",
    ));
    let frame = frame.expect("hexadecimal");
    let mut payload = frame.clone();
    payload.resize(1162, 0);
    let mut packet = hex::decode("c300000001088394c8f03e5157080000449e00000002").expect("hex");
    let header_len = packet.len();
    packet.extend_from_slice(&payload);
    packet.extend_from_slice(&[0; 16]);
    let (client, _) = initial_secrets(&ID);
    use quinn_proto::crypto::{HeaderKey as _, PacketKey as _};
    PacketKey::new(&client).encrypt(2, &mut packet, header_len);
    HeaderKey::new(&client).encrypt(header_len - 4, &mut packet);
    (frame[4..].to_vec(), packet)
}

#[test]
fn rfc9001_a_2_the_client_hello_of_an_initial_packet() {
    let (client_hello, packet) = appendix_a2();
    let start = "c000000001088394c8f03e5157080000449e7b9aec34d1b1c98dd7689fb8ec11";
    assert_eq!(hex::encode(&packet[..32]), start);
    assert_eq!(hex::encode(&packet[1184..]), "e221af44860018ab0856972e194cd934");
    let mut flights = flights();
    assert!(process(&mut flights, remote(1), &packet, NOW));
    assert_eq!(take(&mut flights, 2), FirstFlight::Unknown, "from another address");
    assert_eq!(take(&mut flights, 1), whole(&client_hello, b""));
    assert_eq!(take(&mut flights, 1), FirstFlight::Unknown, "taken");
}

#[test]
fn rfc9001_5_2_a_packet_that_does_not_decrypt_starts_no_connection() {
    let (_, packet) = appendix_a2();
    let mut flights = flights();
    for at in [6, 30, 600, 1199] {
        let mut changed = packet.clone();
        changed[at] ^= 1;
        assert!(!process(&mut flights, remote(1), &changed, NOW));
    }
    assert!(flights.is_empty());
}

#[test]
fn rfc9000_14_1_a_short_datagram_starts_no_connection() {
    let (_, packet) = appendix_a2();
    let mut flights = flights();
    let hello = hello(300);
    let short = initial_packet(&ID, b"", 0, &crypto_frame(0, &hello));
    assert!(!process(&mut flights, remote(1), &short, NOW));
    let mut version_2 = packet.clone();
    version_2[1..5].copy_from_slice(&[0x6b, 0x33, 0x43, 0xcf]);
    assert!(!process(&mut flights, remote(1), &version_2, NOW));
    assert!(!process(&mut flights, remote(1), &packet[..1199], NOW));
    assert!(!process(&mut flights, remote(1), &[0; 1200], NOW));
    assert!(!process(&mut flights, remote(1), &[], NOW));
    assert!(flights.is_empty());
}

#[test]
fn rfc9000_12_2_packets_in_one_datagram() {
    let hello = hello(1500);
    let part = |id: &[u8], number, from, to| {
        initial_packet(id, b"", number, &crypto_frame(from, &hello[from..to]))
    };
    let mut flights = flights();
    let mut zero_rtt = vec![0xd0, 0, 0, 0, 1, 8];
    zero_rtt.extend_from_slice(&ID);
    zero_rtt.extend_from_slice(&[0, 0x40, 100]);
    zero_rtt.extend_from_slice(&[5; 100]);
    // Another connection's packet is ignored.
    let together =
        [part(&ID, 0, 0, 700), zero_rtt.clone(), part(&[9; 8], 0, 0, 700), part(&ID, 1, 700, 1504)];
    assert!(process(&mut flights, remote(1), &together.concat(), NOW));
    assert_eq!(flights.len(), 1);
    assert_eq!(take(&mut flights, 1), whole(&hello, b""));
    assert!(!process(&mut flights, remote(1), &[&zero_rtt[..], &together.concat()].concat(), NOW));
    assert!(flights.is_empty(), "a client starts with an Initial packet");
}

#[test]
fn an_incomplete_flight_stays_until_it_expires() {
    let hello = hello(1500);
    let mut flights = flights();
    let first = datagram(&ID, b"", 0, crypto_frame(0, &hello[..800]));
    let second = datagram(&ID, b"", 1, crypto_frame(800, &hello[800..]));
    assert!(!process(&mut flights, remote(1), &second, NOW));
    assert_eq!(take(&mut flights, 1), FirstFlight::Partial);
    assert!(process(&mut flights, remote(1), &first, NOW));
    assert!(!process(&mut flights, remote(1), &first, NOW), "already complete");
    assert!(!process(&mut flights, remote(2), &first, NOW), "from another address");
    assert_eq!(take(&mut flights, 1), whole(&hello, b""));
    assert!(!process(&mut flights, remote(3), &first, NOW + Duration::from_millis(999)));
    assert_eq!(take(&mut flights, 2), FirstFlight::Partial);
    assert!(!process(&mut flights, remote(4), &first, NOW + Duration::from_secs(1)));
    assert_eq!(take(&mut flights, 2), FirstFlight::Unknown, "expired");
    flights.forget(remote(3), &ConnectionId::new(&ID));
    assert_eq!(take(&mut flights, 3), FirstFlight::Unknown);
    assert_eq!(take(&mut flights, 4), FirstFlight::Partial);
}

#[test]
fn a_flight_that_cannot_become_a_client_hello_is_dropped() {
    let mut flights = flights();
    let server_hello = [&[2][..], &hello(100)[1..]].concat();
    process(&mut flights, remote(1), &datagram(&ID, b"", 0, crypto_frame(0, &server_hello)), NOW);
    let endless = datagram(&ID, b"", 0, crypto_frame(9000, b"more"));
    process(&mut flights, remote(1), &endless, NOW);
    // STREAM frames do not belong in an Initial packet (RFC 9000 section 12.4).
    let stream = [crypto_frame(0, &hello(100)), vec![8, 0]].concat();
    process(&mut flights, remote(1), &datagram(&ID, b"", 0, stream), NOW);
    // A packet without CRYPTO frames starts no flight.
    process(&mut flights, remote(1), &datagram(&ID, b"", 0, vec![1]), NOW);
    assert!(flights.is_empty());
    process(
        &mut flights,
        remote(1),
        &datagram(&ID, b"", 0, crypto_frame(0, &hello(100)[..50])),
        NOW,
    );
    assert_eq!(flights.len(), 1);
    process(&mut flights, remote(1), &endless, NOW);
    assert!(flights.is_empty(), "a flight that had started");
}

#[test]
fn beyond_the_limit_the_oldest_flight_is_dropped() {
    let limits = FirstFlightsLimits { flights: 4, ..FirstFlightsLimits::default() };
    let mut flights = FirstFlights::new(limits);
    let packet = datagram(&ID, b"token", 0, crypto_frame(0, &hello(100)));
    for port in 1..=4 {
        assert!(process(&mut flights, remote(port), &packet, NOW));
    }
    assert_ne!(take(&mut flights, 2), FirstFlight::Unknown);
    assert!(process(&mut flights, remote(5), &packet, NOW), "in place of the taken flight");
    assert!(process(&mut flights, remote(6), &packet, NOW));
    assert_eq!(take(&mut flights, 1), FirstFlight::Unknown, "the oldest");
    assert_eq!(flights.len(), 4);
    for port in (3..=6).rev() {
        assert_ne!(take(&mut flights, port), FirstFlight::Unknown);
    }
    // Nothing grows while flights come and are taken.
    for port in 1..1000 {
        assert!(process(&mut flights, remote(port), &packet, NOW));
        assert_ne!(take(&mut flights, port), FirstFlight::Unknown);
    }
    assert!(flights.order.len() <= 8 && flights.with_token.is_empty());
}

#[test]
fn a_flight_that_is_taken_and_sent_again_has_a_new_lifetime() {
    let mut flights = flights();
    let packet = datagram(&ID, b"", 0, crypto_frame(0, &hello(100)));
    assert!(process(&mut flights, remote(1), &packet, NOW));
    take(&mut flights, 1);
    assert!(process(&mut flights, remote(1), &packet, NOW + Duration::from_millis(900)));
    process(&mut flights, remote(2), &packet, NOW + Duration::from_millis(1100));
    assert_ne!(take(&mut flights, 1), FirstFlight::Unknown);
}

#[test]
fn rfc9000_17_2_5_2_after_a_retry_a_flight_is_found_by_its_token() {
    let mut flights = flights();
    let hello = hello(100);
    let first = datagram(&ID, b"", 0, crypto_frame(0, &hello));
    let after_retry = datagram(&[7; 8], b"token", 1, crypto_frame(0, &hello));
    assert!(process(&mut flights, remote(1), &first, NOW));
    assert_eq!(take_with_token(&mut flights, 1), FirstFlight::Unknown);
    assert_eq!(
        flights.process_datagram(remote(1), &after_retry, NOW),
        Some(ConnectionId::new(&[7; 8]))
    );
    assert_eq!(take_with_token(&mut flights, 2), FirstFlight::Unknown);
    assert_eq!(take_with_token(&mut flights, 1), whole(&hello, b"token"));
    assert_eq!(take_with_token(&mut flights, 1), FirstFlight::Unknown);
    let long = datagram(&[8; 8], &[1; 300], 1, crypto_frame(0, &hello));
    assert!(process(&mut flights, remote(1), &long, NOW));
    assert_eq!(flights.take(remote(1), &ConnectionId::new(&[8; 8])), whole(&hello, b""));
}

proptest! {
    #[test]
    fn a_client_hello_is_read_from_packets_in_any_order(
        length in 0usize..4000,
        cuts in prop::collection::vec(0usize..4000, 0..8),
        order in any::<u64>(),
        numbers in 0u32..1000,
    ) {
        let hello = hello(length);
        let mut ends = cuts.iter().map(|cut| cut % hello.len()).collect::<Vec<_>>();
        ends.extend((0..hello.len()).step_by(1000));
        ends.push(hello.len());
        ends.sort_unstable();
        ends.dedup();
        let mut packets = ends
            .windows(2)
            .zip(0..)
            .map(|(ends, number)| {
                let frame = crypto_frame(ends[0], &hello[ends[0]..ends[1]]);
                datagram(&ID, b"", numbers + number, frame)
            })
            .collect::<Vec<_>>();
        packets.sort_by_key(|packet| order.wrapping_mul(u64::from(packet[40]) | 1));
        let last = packets.len() - 1;
        let mut flights = flights();
        for (at, packet) in packets.iter().enumerate() {
            prop_assert_eq!(process(&mut flights, remote(1), packet, NOW), at == last);
        }
        prop_assert_eq!(take(&mut flights, 1), whole(&hello, b""));
    }

    #[test]
    fn any_datagrams_are_processed_within_the_limits_without_panic(
        datagrams in prop::collection::vec(
            (0u16..3, any::<bool>(), prop::collection::vec(any::<u8>(), 0..60)), 0..20,
        ),
    ) {
        let limits = FirstFlightsLimits { flights: 2, client_hello: 500, lifetime: NOW };
        let mut flights = FirstFlights::new(limits);
        for (port, sealed, bytes) in datagrams {
            let packet = match sealed {
                true => datagram(&ID, &bytes[..bytes.len() / 2], 0, bytes.clone()),
                false => [&[0xc0, 0, 0, 0, 1][..], &bytes, &[0; 1200]].concat(),
            };
            process(&mut flights, remote(port), &packet, NOW);
            prop_assert!(flights.len() <= 2 && flights.order.len() <= 4);
        }
    }
}

#[test]
fn rfc9000_17_2_5_2_two_flights_from_one_socket_after_retries_are_not_confused() {
    let (mut flights, hello) = (flights(), hello(100));
    for id in [[7; 8], [8; 8]] {
        let packet = datagram(&id, b"token", 1, crypto_frame(0, &hello));
        assert!(process(&mut flights, remote(1), &packet, NOW));
    }
    assert_eq!(flights.connection_id_after_retry(remote(1)), None);
    flights.forget(remote(1), &ConnectionId::new(&[7; 8]));
    assert_eq!(take_with_token(&mut flights, 1), whole(&hello, b"token"));
    assert!(flights.with_token.is_empty());
}
