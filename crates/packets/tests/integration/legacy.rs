//! TLS 1.0 to 1.2, analyzed without secrets.

use firstflight_packets::{EarlyData, FirstResponse, HandshakeKind, LabelKind, TlsVersion};

use crate::peers::{PeerConfig, analyze};
use crate::tcp_path::{MS, Path, Peer};

#[test]
fn rfc5246_7_3_full_takes_four_round_trips() {
    let peers = PeerConfig::tls12().peers();
    let facts = analyze(&peers.capture(&Path::new(20 * MS)), "");
    let label = facts.label().unwrap();
    assert_eq!((label.version, label.kind), (TlsVersion::Tls12, LabelKind::Full));
    assert_eq!(facts.round_trips(), Some(4));
    let tls = facts.tls.unwrap();
    assert_eq!((tls.alpn.as_deref(), tls.client_finished), (Some("http/1.1"), Some(true)));
    assert_eq!(tls.early.outcome, EarlyData::NotOffered);
}

#[test]
fn rfc5246_7_3_resumed_takes_three_round_trips() {
    let peers = PeerConfig::tls12().peers().with_session();
    let facts = analyze(&peers.capture(&Path::new(20 * MS)), "");
    let label = facts.label().unwrap();
    assert_eq!((label.version, label.kind), (TlsVersion::Tls12, LabelKind::Resumed));
    assert_eq!(facts.round_trips(), Some(3));
    assert_eq!(facts.tls.unwrap().client_finished, Some(true));
}

/// A peer that sends fixed bytes.
struct Scripted {
    received: usize,
    /// How many bytes it receives in total before it sends these.
    steps: Vec<(usize, Vec<u8>)>,
    /// How many bytes it receives in total before it closes.
    ends_at: usize,
}

impl Peer for Scripted {
    fn receive(&mut self, bytes: &[u8]) {
        self.received += bytes.len();
    }

    fn send(&mut self) -> Vec<u8> {
        let ready = self.steps.iter().take_while(|(after, _)| *after <= self.received).count();
        self.steps.drain(..ready).flat_map(|(_, bytes)| bytes).collect()
    }

    fn done(&self) -> bool {
        self.received >= self.ends_at
    }
}

fn record(kind: u8, version: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![kind];
    out.extend(version.to_be_bytes());
    out.extend((payload.len() as u16).to_be_bytes());
    out.extend(payload);
    out
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut out = (body.len() as u32).to_be_bytes().to_vec();
    out[0] = kind;
    out.extend(body);
    out
}

fn hello(version: u16, tail: &[u8]) -> Vec<u8> {
    let mut body = version.to_be_bytes().to_vec();
    body.extend([0x42; 32]);
    body.push(0);
    body.extend(tail);
    body
}

/// The peers of a TLS 1.0 or 1.1 connection: real plaintext messages, dummy ciphertext.
fn legacy_peers(version: u16, resumed: bool) -> (Scripted, Scripted) {
    let plain = |messages: &[u8]| record(22, version, messages);
    let change = record(20, version, &[1]);
    let sealed = record(22, version, &[0xee; 48]);
    let data = |len| record(23, version, &vec![0xdd; len]);
    let client_hello = plain(&message(1, &hello(version, &[0, 2, 0, 0x2f, 1, 0])));
    let server_hello = message(2, &hello(version, &[0, 0x2f, 0]));
    let finish = [change, sealed].concat();
    let first = client_hello.len();
    if resumed {
        let flight = [plain(&server_hello), finish.clone()].concat();
        let request = [finish, data(32), data(64)].concat();
        let (second, third) = (first + request.len(), flight.len() + 101);
        let client = vec![(0, client_hello), (flight.len(), request)];
        let server = vec![(first, flight), (second, data(96))];
        return (scripted(client, third), scripted(server, usize::MAX));
    }
    // The certificate and what follows share a record with the ServerHello.
    let flight = plain(&[server_hello, message(11, &[0; 900]), message(14, &[])].concat());
    let exchange = [plain(&message(16, &[7; 66])), finish.clone()].concat();
    let request = [data(32), data(64)].concat();
    let second = first + exchange.len();
    let third = second + request.len();
    let client =
        vec![(0, client_hello), (flight.len(), exchange), (flight.len() + finish.len(), request)];
    let ends_at = flight.len() + finish.len() + 101;
    let server = vec![(first, flight), (second, finish), (third, data(96))];
    (scripted(client, ends_at), scripted(server, usize::MAX))
}

fn scripted(steps: Vec<(usize, Vec<u8>)>, ends_at: usize) -> Scripted {
    Scripted { received: 0, steps, ends_at }
}

#[test]
fn rfc2246_and_rfc4346_take_as_many_round_trips_as_rfc5246() {
    for (number, version) in [(0x0301, TlsVersion::Tls10), (0x0302, TlsVersion::Tls11)] {
        for (resumed, kind, round_trips) in
            [(false, HandshakeKind::Full, 4), (true, HandshakeKind::Resumed, 3)]
        {
            let (mut client, mut server) = legacy_peers(number, resumed);
            let facts = analyze(&Path::new(20 * MS).run(&mut client, &mut server), "");
            assert_eq!(facts.round_trips(), Some(round_trips), "{version} {kind:?}");
            let tls = facts.tls.unwrap();
            assert_eq!((tls.version, tls.kind), (Some(version), Some(kind)));
            assert_eq!(tls.cipher_suite, Some(0x002f));
            assert_eq!(tls.client_finished, Some(true));
        }
    }
}

#[test]
fn a_server_that_responds_with_an_alert_has_no_label() {
    let (mut client, _) = legacy_peers(0x0301, false);
    client.ends_at = 7;
    let mut server = scripted(vec![(1, record(21, 0x0301, &[2, 70]))], usize::MAX);
    let facts = analyze(&Path::new(20 * MS).run(&mut client, &mut server), "");
    assert_eq!(facts.first_response, FirstResponse::None);
    let tls = facts.tls.as_ref().unwrap();
    assert_eq!((tls.version, tls.kind), (None, None));
    assert!(facts.label().unwrap_err().to_string().contains("ServerHello"));
}
