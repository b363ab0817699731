//! TCP Fast Open: saves a round trip of every kind of handshake, unless it falls back.

use firstflight_packets::{FastOpen, FastOpenOption, LabelKind, LabelTransport, TlsVersion};

use crate::peers::{PeerConfig, Peers};
use crate::tcp_path::{MS, Path, Tfo};

fn check(peers: &Peers, tfo: Tfo, kind: LabelKind, version: TlsVersion, round_trips: u32) {
    let facts = peers.facts(&Path::new(20 * MS).tfo(tfo));
    let label = facts.label().unwrap();
    assert_eq!((label.kind, label.version), (kind, version));
    assert_eq!(facts.round_trips(), Some(round_trips), "{label}");
    let (used, syns) = match tfo {
        Tfo::Off | Tfo::CookieRequested => (FastOpen::Off, 0),
        Tfo::Accepted => (FastOpen::Used, 0),
        Tfo::Ignored => (FastOpen::FellBack, 0),
        Tfo::Lost => (FastOpen::FellBack, 1),
    };
    assert_eq!(label.transport, LabelTransport::Tcp(used));
    let tcp = facts.tcp().unwrap();
    let option = match tfo {
        Tfo::Off => None,
        Tfo::CookieRequested => Some(FastOpenOption::CookieRequest),
        _ => Some(FastOpenOption::Cookie(8)),
    };
    assert_eq!((tcp.fast_open_option, tcp.client_options.fast_open), (option, option));
    // The server never issues a cookie.
    assert_eq!(tcp.server_options.unwrap().fast_open, None);
    assert_eq!(tcp.syn_data > 0, !matches!(tfo, Tfo::Off | Tfo::CookieRequested));
    let accepted = if tfo == Tfo::Accepted { tcp.syn_data } else { 0 };
    assert_eq!(tcp.syn_data_acknowledged, accepted);
    assert_eq!(tcp.syn_retransmissions, syns);
    // Data sent again after a fallback is no retransmission; a second SYN is.
    assert_eq!((tcp.client_retransmissions, tcp.server_retransmissions), (syns, 0));
}

/// Checks all variants of Fast Open. `round_trips` are those without it.
fn check_all(peers: impl Fn() -> Peers, kind: LabelKind, version: TlsVersion, round_trips: u32) {
    check(&peers(), Tfo::Off, kind, version, round_trips);
    check(&peers(), Tfo::CookieRequested, kind, version, round_trips);
    check(&peers(), Tfo::Accepted, kind, version, round_trips - 1);
    check(&peers(), Tfo::Ignored, kind, version, round_trips);
    check(&peers(), Tfo::Lost, kind, version, round_trips);
}

#[test]
fn rfc7413_tls13_full_takes_two_round_trips_instead_of_three() {
    check_all(|| PeerConfig::default().peers(), LabelKind::Full, TlsVersion::Tls13, 3);
}

#[test]
fn rfc7413_tls13_resumed_takes_two_round_trips_instead_of_three() {
    let peers = || {
        let mut peers = PeerConfig::default().peers().with_session();
        peers.change_client(|client| client.enable_early_data = false);
        peers
    };
    check_all(peers, LabelKind::Resumed, TlsVersion::Tls13, 3);
}

#[test]
fn rfc7413_tls13_early_data_takes_one_round_trip_instead_of_two() {
    let peers = || PeerConfig::default().peers().with_session();
    check_all(peers, LabelKind::EarlyAccepted, TlsVersion::Tls13, 2);
}

#[test]
fn rfc7413_tls13_early_data_refused_takes_two_round_trips_instead_of_three() {
    let peers = || {
        let mut peers = PeerConfig::default().peers().with_session();
        peers.refuse_early_data();
        peers
    };
    check_all(peers, LabelKind::EarlyRefused, TlsVersion::Tls13, 3);
}

#[test]
fn rfc7413_tls12_full_takes_three_round_trips_instead_of_four() {
    let peers = || PeerConfig::tls12().peers();
    check_all(peers, LabelKind::Full, TlsVersion::Tls12, 4);
}

#[test]
fn rfc7413_tls12_resumed_takes_two_round_trips_instead_of_three() {
    let peers = || PeerConfig::tls12().peers().with_session();
    check_all(peers, LabelKind::Resumed, TlsVersion::Tls12, 3);
}

#[test]
fn rfc7413_a_first_flight_larger_than_the_syn_takes_one_more_round_trip() {
    let mut peers = PeerConfig::default().peers().with_session();
    peers.request = vec![b'x'; 5000];
    let facts = peers.facts(&Path::new(20 * MS).tfo(Tfo::Accepted));
    assert_eq!(facts.label().unwrap().transport, LabelTransport::Tcp(FastOpen::Used));
    assert_eq!(facts.tcp().unwrap().syn_data, 1400);
    assert_eq!(facts.round_trips(), Some(2));
}

#[test]
fn the_first_flight_is_complete_without_fast_open_and_after_a_fallback() {
    let mut peers = PeerConfig::default().peers().with_session();
    peers.request = vec![b'x'; 3000];
    for tfo in [Tfo::Off, Tfo::Ignored, Tfo::Lost] {
        let facts = peers.facts(&Path::new(20 * MS).tfo(tfo));
        let early = facts.tls.unwrap().early;
        assert_eq!(early.plain_bytes, Some(3000));
        assert!(facts.first_flight.bytes() as u64 > early.wire_bytes);
        assert_eq!(facts.first_flight.stream().unwrap()[0], 22);
    }
}
