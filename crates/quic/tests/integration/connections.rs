//! The scenarios of quinn-proto's own tests that concern its cryptography, on ours.

use std::time::Duration;

use bytes::BytesMut;
use firstflight_quic::Remembered;
use firstflight_tls::{CipherPolicy, ConnectorConfig, TlsError, Trust};
use quinn_proto::{
    ConnectError, ConnectionError, DatagramEvent, Endpoint, TransportErrorCode, VarInt,
};

use crate::support::{Admission, LATENCY, Setup, bytes, endpoint_config, facts};

#[test]
fn lifecycle() {
    let mut pair = Setup::default().pair();
    let connected = pair.connect(Remembered::default());
    pair.close(connected.client);
    pair.drive_for(Duration::from_secs(10));
    let (client, server) = (connected.client, connected.server);
    assert!(pair.client(client).is_drained() && pair.server(server).is_drained());
    let [ConnectionError::ApplicationClosed(close)] = &pair.server.lost[..] else {
        panic!("{:?}", pair.server.lost);
    };
    assert_eq!((close.error_code, &close.reason[..]), (VarInt::from_u32(42), &b"done"[..]));
}

#[test]
fn version_negotiation() {
    let (now, address) = (std::time::Instant::now(), "[::2]:7890".parse().unwrap());
    let config = Setup::default().server_config(Setup::default().server());
    let mut server = Endpoint::new(endpoint_config(), Some(config), true, None);
    // A reserved version (RFC 9000 section 6.3).
    let mut packet = vec![0x80, 0x0a, 0x1a, 0x2a, 0x3a, 4, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0];
    packet.resize(1200, 0);
    let mut buffer = Vec::new();
    let event = server.handle(now, address, None, None, BytesMut::from(&packet[..]), &mut buffer);
    assert!(matches!(event, Some(DatagramEvent::Response(_))));
    assert_eq!(buffer[1..15], [0, 0, 0, 0, 4, 0, 0, 0, 0, 4, 0, 0, 0, 0]);
    assert!(buffer[15..].chunks(4).any(|version| version == [0, 0, 0, 1]));
}

#[test]
fn an_unsupported_version_is_not_started() {
    let setup = Setup::default();
    let mut pair = setup.pair();
    let (mut config, _) = setup.client_config(Remembered::default());
    config.version(0xff00_001d);
    let started = pair.client.endpoint.connect(pair.now, config, pair.server.address, "localhost");
    assert!(matches!(started, Err(ConnectError::UnsupportedVersion)));
}

#[test]
fn stateless_retry() {
    let setup = Setup::default();
    let remembered = setup.remembered();
    let mut pair = setup.pair();
    let (made, crypto) = (setup.clone(), pair.crypto.clone());
    pair.policy = Box::new(move |incoming| match incoming.remote_address_validated() {
        true => {
            let judged = crypto.for_connection(Box::new(|_| true), None);
            Admission::Accept(made.server_config(judged))
        }
        false => Admission::Retry,
    });
    let started = pair.start(remembered);
    pair.send(started.client, b"early");
    pair.drive();
    let connected = pair.connected(started);
    assert!(pair.client(connected.client).accepted_0rtt());
    assert_eq!(pair.received(connected.server), [b"early"]);
    // A Retry packet: long header of type 3.
    assert!(pair.wire.iter().any(|(from_client, packet)| !from_client && packet[0] >> 4 == 0xf));
}

#[test]
fn a_retry_that_is_not_the_servers_is_ignored() {
    let setup = Setup::default();
    let mut pair = setup.pair();
    let started = pair.start(Remembered::default());
    pair.exchange();
    // A Retry with the client's connection id, from its first packet, and a wrong tag.
    let (_, first) = &pair.wire[0];
    let dst_len = usize::from(first[5]);
    let src = &first[6 + dst_len..][..usize::from(first[6 + dst_len]) + 1];
    let forged = [&[0xf0, 0, 0, 0, 1], src, &[2, 9, 9], &[7; 40]].concat();
    pair.client.inbound.push_front((pair.now, forged));
    pair.drive();
    assert!(pair.client.has_event(started.client, "Connected"));
}

#[test]
fn export_keying_material() {
    let mut pair = Setup::default().pair();
    let connected = pair.connect(Remembered::default());
    let (mut client, mut server) = ([0; 64], [0; 64]);
    let export = |session: &dyn quinn_proto::crypto::Session, out: &mut [u8]| {
        session.export_keying_material(out, b"test", b"context")
    };
    export(pair.client(connected.client).crypto_session(), &mut client).unwrap();
    export(pair.server(connected.server).crypto_session(), &mut server).unwrap();
    assert_eq!(client, server);
    assert_ne!(client, [0; 64]);
    // More than the maximum output of HKDF-Expand (RFC 5869 section 2.3).
    let mut too_long = vec![0; 255 * 48 + 1];
    assert!(export(pair.client(connected.client).crypto_session(), &mut too_long).is_err());
}

fn crypto_alert(error: &ConnectionError) -> Option<u64> {
    match error {
        ConnectionError::TransportError(error) => Some(u64::from(error.code) - 0x100),
        ConnectionError::ConnectionClosed(close) => Some(u64::from(close.error_code) - 0x100),
        _ => None,
    }
}

#[test]
fn reject_self_signed_server_cert() {
    let setup = Setup { trust: Trust::System, ..Setup::default() };
    let mut pair = setup.pair();
    let started = pair.start(Remembered::default());
    pair.drive();
    assert!(!pair.client.has_event(started.client, "Connected"));
    let [ConnectionError::TransportError(error)] = &pair.client.lost[..] else {
        panic!("{:?}", pair.client.lost);
    };
    assert!(error.reason.contains("not accepted"), "{}", error.reason);
    // unknown_ca or bad_certificate, which is also sent to the server.
    assert_eq!(crypto_alert(&pair.client.lost[0]), crypto_alert(&pair.server.lost[0]));
}

#[test]
fn server_hostname_mismatch() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &crate::support::pem().0).unwrap();
    for (host, trusted) in [("localhost", true), ("elsewhere.example", false)] {
        let setup = Setup { trust: Trust::File(file.path().to_owned()), ..Setup::default() };
        let mut pair = setup.pair();
        let (crypto, _, _) = setup.client().for_connection(host, Remembered::default()).unwrap();
        let config = quinn_proto::ClientConfig::new(crypto);
        let at = pair.server.address;
        let (handle, connection) =
            pair.client.endpoint.connect(pair.now, config.clone(), at, host).unwrap();
        pair.client.connections.insert(handle, connection);
        pair.drive();
        assert_eq!(pair.client.has_event(handle, "Connected"), trusted, "{host}");
        // The certificate is checked against the first host, so no other may be named.
        let other = pair.client.endpoint.connect(pair.now, config, at, "other.example");
        assert!(matches!(other, Err(ConnectError::InvalidServerName(_))));
    }
}

#[test]
fn alpn() {
    let negotiate = |server: &[&[u8]], client: &[&[u8]]| {
        let names = |names: &[&[u8]]| names.iter().map(|name| name.to_vec()).collect::<Vec<_>>();
        let setup =
            Setup { server_alpn: names(server), client_alpn: names(client), ..Setup::default() };
        let mut pair = setup.pair();
        let started = pair.start(Remembered::default());
        pair.drive();
        match pair.client.has_event(started.client, "Connected") {
            true => Ok(facts(pair.client(started.client)).alpn.unwrap()),
            false => Err(crypto_alert(&pair.client.lost[0]).unwrap()),
        }
    };
    let negotiated = negotiate(&[b"foo", b"bar", b"baz"], &[b"bar", b"quux", b"corge"]);
    assert_eq!(negotiated, Ok(b"bar".to_vec()));
    // no_application_protocol, RFC 9001 section 8.1.
    assert_eq!(negotiate(&[], &[b"foo"]), Err(0x78));
    assert_eq!(negotiate(&[b"foo"], &[b"bar"]), Err(0x78));
    let unset = firstflight_quic::ClientCrypto::new(ConnectorConfig::new(Trust::Anyone));
    assert!(matches!(unset, Err(TlsError::Setup { .. })));
}

#[test]
fn key_update_many_times_from_both_sides() {
    let setup = Setup::default();
    let remembered = setup.remembered();
    let mut pair = setup.pair();
    let connected = pair.connect(remembered);
    for round in 0..20 {
        match round % 3 {
            0 => pair.client(connected.client).force_key_update(),
            1 => pair.server(connected.server).force_key_update(),
            _ => {}
        }
        pair.server(connected.server).ping();
        pair.send(connected.client, b"hello");
        pair.drive();
        assert_eq!(pair.received(connected.server), [b"hello"], "{round}");
    }
    assert_eq!(pair.client(connected.client).stats().path.lost_packets, 0);
    assert_eq!(pair.server(connected.server).stats().path.lost_packets, 0);
}

#[test]
fn key_update_reordered() {
    let mut pair = Setup::default().pair();
    let connected = pair.connect(Remembered::default());
    pair.send(connected.client, b"one");
    pair.exchange();
    let held: Vec<_> = pair.server.inbound.drain(..).collect();
    assert!(!held.is_empty());
    pair.client(connected.client).force_key_update();
    pair.send(connected.client, b"two");
    pair.exchange();
    pair.server.inbound.extend(held);
    pair.drive();
    let mut received = pair.received(connected.server);
    received.sort();
    assert_eq!(received, [b"one", b"two"]);
    assert_eq!(pair.client(connected.client).stats().path.lost_packets, 0);
}

#[test]
fn handshake_1rtt_handling() {
    let mut pair = Setup::default().pair();
    let started = pair.start(Remembered::default());
    let one_way = |pair: &mut crate::support::Pair| {
        pair.exchange();
        pair.now += LATENCY;
    };
    one_way(&mut pair);
    one_way(&mut pair);
    // The client has its keys; its Finished is overtaken by a request.
    pair.exchange();
    let held: Vec<_> = pair.server.inbound.drain(..).collect();
    pair.send(started.client, b"hello");
    pair.exchange();
    assert!(!held.is_empty() && !pair.server.inbound.is_empty());
    let connected = pair.connected(started);
    pair.now += LATENCY;
    pair.exchange();
    assert!(pair.server(connected.server).is_handshaking());
    assert!(pair.received(connected.server).is_empty());
    pair.server.inbound.extend(held);
    pair.drive();
    assert_eq!(pair.received(connected.server), [b"hello"]);
}

#[test]
fn lost_first_packets_are_sent_again() {
    for lost_from_client in [true, false] {
        let setup = Setup::default();
        let remembered = setup.remembered();
        let mut pair = setup.pair();
        let mut count = 0;
        pair.losses = Box::new(move |from_client, _| {
            count += usize::from(from_client == lost_from_client);
            from_client == lost_from_client && count <= 2
        });
        let started = pair.start(remembered);
        pair.send(started.client, b"early");
        pair.drive_for(Duration::from_secs(10));
        let connected = pair.connected(started);
        assert!(pair.client(connected.client).accepted_0rtt());
        assert_eq!(pair.received(connected.server), [b"early"]);
    }
}

#[test]
fn a_client_hello_of_several_packets() {
    // Post-quantum key shares take two packets; a thousand protocols take more.
    let groups = Some("X25519MLKEM768".to_owned());
    let ciphers = CipherPolicy { groups, ..CipherPolicy::default() };
    let many = (0..1000_u32).map(|name| name.to_be_bytes().to_vec()).collect();
    for (client_alpn, ciphers) in
        [(vec![b"test".to_vec(), vec![0, 0, 0, 42]], ciphers), (many, CipherPolicy::default())]
    {
        let server_alpn = vec![vec![0, 0, 0, 42]];
        let setup = Setup { ciphers, client_alpn, server_alpn, ..Setup::default() };
        let remembered = setup.remembered();
        let mut pair = setup.pair();
        let started = pair.start(remembered);
        pair.send(started.client, b"early");
        pair.exchange();
        assert!(pair.wire.len() > 1);
        pair.drive();
        let connected = pair.connected(started);
        assert!(pair.client(connected.client).accepted_0rtt());
        assert_eq!(pair.received(connected.server), [b"early"]);
    }
}

#[test]
fn instant_close_by_either_side() {
    let setup = Setup::default();
    // Before the first packet, and after it.
    for sent in [false, true] {
        let mut pair = setup.pair();
        let started = pair.start(Remembered::default());
        if sent {
            pair.exchange();
        }
        pair.close(started.client);
        pair.drive();
        // The application's code and reason are not sent in Initial packets (RFC 9000 section 10.2.3).
        let [ConnectionError::ConnectionClosed(close)] = &pair.server.lost[..] else {
            panic!("{:?}", pair.server.lost);
        };
        assert_eq!(close.error_code, TransportErrorCode::APPLICATION_ERROR);
    }
    let mut pair = setup.pair();
    pair.start(Remembered::default());
    pair.exchange();
    pair.now += LATENCY;
    pair.exchange();
    let (now, server) = (pair.now, *pair.accepted.last().unwrap());
    pair.server(server).close(now, VarInt::from_u32(42), bytes("no"));
    pair.drive();
    assert_eq!(pair.client.lost.len(), 1);
}

#[test]
fn idle_timeout() {
    let mut pair = Setup::default().pair();
    pair.connect(Remembered::default());
    pair.drive_for(Duration::from_secs(100));
    assert_eq!(pair.client.lost, [ConnectionError::TimedOut]);
    assert_eq!(pair.server.lost, [ConnectionError::TimedOut]);
}

#[test]
fn migration() {
    let mut pair = Setup::default().pair();
    let connected = pair.connect(Remembered::default());
    pair.client.address = "[::2]:4001".parse().unwrap();
    pair.send(connected.client, b"from elsewhere");
    pair.drive();
    assert_eq!(pair.received(connected.server), [b"from elsewhere"]);
    let address = pair.client.address;
    assert_eq!(pair.server(connected.server).remote_address(), address);
}

#[test]
fn rfc9000_10_3_stateless_reset() {
    let setup = Setup::default();
    let mut pair = setup.pair();
    let connected = pair.connect(Remembered::default());
    let config = setup.server_config(pair.crypto.clone());
    pair.server.endpoint = Endpoint::new(endpoint_config(), Some(config), true, None);
    pair.server.connections.clear();
    pair.client(connected.client).ping();
    pair.drive();
    assert_eq!(pair.client.lost, [ConnectionError::Reset]);
}
