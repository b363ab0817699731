//! What each packet of a connection carried.

use firstflight_packets::{Direction, Event, FastOpenOption, Observer, Part, Trace};
use rustls::crypto::ring::kx_group;

use crate::peers::{PeerConfig, Peers, analyze_and_trace};
use crate::quic_path::QuicPath;
use crate::quic_peers::{QuicPeers, analyze_quic};
use crate::tcp_path::{MS, Path, Tfo, feed};

fn trace(peers: &Peers, path: &Path) -> Trace {
    analyze_and_trace(&peers.capture(path), &peers.key_log()).1
}

/// The packets that count, a line each: direction, depth, and what it carries.
fn describe(trace: &Trace) -> Vec<String> {
    let counting = trace
        .packets
        .iter()
        .filter(|packet| packet.payload_bytes > 0 || packet.tcp.unwrap().flags.syn);
    counting
        .map(|packet| {
            let arrow = if packet.direction == Direction::ToServer { '>' } else { '<' };
            let carries: Vec<_> = packet.carries.iter().map(ToString::to_string).collect();
            format!("{arrow} {} {}", packet.round_trips.unwrap(), carries.join(", "))
        })
        .collect()
}

#[test]
fn rfc8446_2_3_early_data_packet_by_packet() {
    let expected = [
        "> 1 SYN",
        "< 1 SYN-ACK",
        "> 2 ClientHello, ChangeCipherSpec, early data 36 B",
        "< 2 ServerHello, ChangeCipherSpec, EncryptedExtensions (early data accepted), Finished, \
         application data 38 B",
        "> 3 EndOfEarlyData, Finished, close_notify",
        "< 3 NewSessionTicket, NewSessionTicket",
    ];
    assert_eq!(
        describe(&trace(&PeerConfig::default().peers().with_session(), &Path::new(20 * MS))),
        expected
    );
}

#[test]
fn rfc8446_2_a_full_handshake_packet_by_packet() {
    let expected = [
        "> 1 SYN",
        "< 1 SYN-ACK",
        "> 2 ClientHello",
        "< 2 ServerHello, ChangeCipherSpec, EncryptedExtensions, Certificate, CertificateVerify, \
         Finished",
        "> 3 ChangeCipherSpec, Finished, application data 36 B",
        "< 3 NewSessionTicket, NewSessionTicket, application data 38 B",
        "> 4 close_notify",
    ];
    assert_eq!(describe(&trace(&PeerConfig::default().peers(), &Path::new(20 * MS))), expected);
}

#[test]
fn rfc5246_7_3_tls12_packet_by_packet() {
    let peers = PeerConfig::tls12().peers();
    let capture = peers.capture(&Path::new(20 * MS));
    check_tls12(&analyze_and_trace(&capture, &peers.key_log()).1, "close_notify");
    // Without secrets only the content of the alert is unknown.
    check_tls12(&analyze_and_trace(&capture, "").1, "alert, encrypted");
}

fn check_tls12(trace: &Trace, last: &str) {
    let expected = [
        "> 1 SYN",
        "< 1 SYN-ACK",
        "> 2 ClientHello",
        "< 2 ServerHello, Certificate, ServerKeyExchange, ServerHelloDone",
        "> 3 ClientKeyExchange, ChangeCipherSpec, Finished",
        "< 3 NewSessionTicket, ChangeCipherSpec, Finished",
        "> 4 application data 36 B",
        "< 4 application data 38 B",
        &format!("> 5 {last}"),
    ];
    let lines = describe(trace);
    // Whether a ticket is sent before TLS 1.3 is the library's choice.
    let lines: Vec<_> = lines.iter().map(|line| line.replace("NewSessionTicket, ", "")).collect();
    let expected: Vec<_> =
        expected.iter().map(|line| line.replace("NewSessionTicket, ", "")).collect();
    assert_eq!(lines, expected);
}

#[test]
fn rfc8446_4_1_4_a_retry_packet_by_packet() {
    let config = PeerConfig { server_groups: vec![kx_group::SECP256R1], ..PeerConfig::default() };
    let lines = describe(&trace(&config.peers(), &Path::new(20 * MS)));
    let expected = ["> 2 ClientHello", "< 2 HelloRetryRequest, ChangeCipherSpec"];
    assert_eq!(lines[2..4], expected);
    assert!(lines[4].ends_with("ClientHello"), "{}", lines[4]);
    assert!(lines[5].starts_with("< 3 ServerHello, "), "{}", lines[5]);
}

#[test]
fn rfc8446_4_2_10_refused_early_data_is_shown() {
    let mut peers = PeerConfig::default().peers().with_session();
    peers.refuse_early_data();
    let lines = describe(&trace(&peers, &Path::new(20 * MS)));
    assert!(lines[2].ends_with("early data 36 B"), "{}", lines[2]);
    assert!(lines[3].contains("EncryptedExtensions (early data refused)"), "{}", lines[3]);
}

#[test]
fn rfc7413_a_flight_in_the_syn_is_sent_again_if_it_was_ignored_or_lost() {
    let flight = "ClientHello, ChangeCipherSpec, early data 36 B";
    for (tfo, syn, later) in [
        (Tfo::Accepted, format!("> 1 SYN, {flight}"), None),
        (Tfo::Ignored, format!("> 1 SYN, {flight}"), Some(format!("> 2 {flight}"))),
        (Tfo::Lost, format!("> 1 SYN, {flight}"), Some(format!("> 2 {flight}"))),
    ] {
        let trace =
            trace(&PeerConfig::default().peers().with_session(), &Path::new(20 * MS).tfo(tfo));
        let lines = describe(&trace);
        assert_eq!(lines[0], syn);
        assert_eq!(lines.iter().skip(1).find(|line| line.ends_with(flight)).cloned(), later);
        let options: Vec<_> =
            trace.packets.iter().filter_map(|packet| packet.tcp?.options).collect();
        assert_eq!(options[0].fast_open, Some(FastOpenOption::Cookie(8)));
        assert_eq!(options.len(), if tfo == Tfo::Lost { 3 } else { 2 }, "SYNs and SYN-ACKs");
        assert!(options[1..].iter().all(|options| options.fast_open.is_none()));
        // Data that the server ignored or never received is no retransmission; the second SYN is.
        let again = trace.packets.iter().filter(|packet| packet.retransmission).count();
        assert_eq!(again, usize::from(tfo == Tfo::Lost));
        assert_eq!(trace.packets[0].delivered.is_none(), tfo == Tfo::Lost);
    }
}

#[test]
fn a_message_over_several_packets_is_in_each_of_them() {
    let path = Path { segment: 300, ..Path::new(20 * MS) };
    let trace = trace(&PeerConfig::default().peers(), &path);
    let parts: Vec<_> = trace
        .packets
        .iter()
        .flat_map(|packet| &packet.carries)
        .filter(|carried| carried.event == Event::Certificate)
        .map(|carried| carried.part)
        .collect();
    assert_eq!((parts[0], *parts.last().unwrap()), (Part::First, Part::Last));
    assert!(parts.len() > 1 && parts[1..parts.len() - 1].iter().all(|part| *part == Part::Middle));
    // Both streams are parsed completely.
    let unparsed = |event: &Event| matches!(event, Event::Payload { .. } | Event::Encrypted { .. });
    assert!(!trace.packets.iter().any(|p| p.carries.iter().any(|c| unparsed(&c.event))));
}

#[test]
fn a_lost_packet_and_its_copy_are_distinguished() {
    let path = Path { drop_to_server: vec![1], ..Path::new(20 * MS) };
    let trace = trace(&PeerConfig::default().peers(), &path);
    let finished: Vec<_> = trace
        .packets
        .iter()
        .filter(|packet| packet.carries.iter().any(|carried| carried.event == Event::Finished))
        .map(|packet| (packet.direction, packet.delivered.is_some(), packet.retransmission))
        .collect();
    let expected = [
        (Direction::ToClient, true, false),
        (Direction::ToServer, false, false),
        (Direction::ToServer, true, true),
    ];
    assert_eq!(finished, expected);
}

#[test]
fn without_secrets_records_are_named_by_their_headers() {
    let peers = PeerConfig::default().peers();
    let trace = analyze_and_trace(&peers.capture(&Path::new(20 * MS)), "").1;
    let lines = describe(&trace);
    assert!(lines[3].starts_with("< 2 ServerHello, ChangeCipherSpec, encrypted "), "{}", lines[3]);
    assert!(lines[4].starts_with("> 3 ChangeCipherSpec, encrypted "), "{}", lines[4]);
}

#[test]
fn a_trace_has_every_packet_and_is_made_only_on_request() {
    let peers = PeerConfig::default().peers();
    let capture = peers.capture(&Path::new(20 * MS));
    let trace = analyze_and_trace(&capture, &peers.key_log()).1;
    assert_eq!((trace.packets.len(), trace.left_out), (capture.len(), 0));
    let times = trace.packets.iter().map(|packet| (packet.arrived, packet.delivered));
    assert!(times.eq(capture.iter().map(|captured| (captured.arrived, captured.delivered))));
    let json = serde_json::to_value(&trace).unwrap();
    assert_eq!(json["packets"][0]["carries"][0]["what"], "syn");
    assert_eq!(json["packets"][0]["carries"][0]["part"], "whole");
    let mut observer = Observer::new();
    feed(&mut observer, &capture);
    let taken = observer.take_finished_traced(|facts| facts.client.port() == 1);
    assert!(taken[0].1.is_none());
}

#[test]
fn rfc9001_4_quic_datagram_by_datagram() {
    let peers = QuicPeers::ping_pong().sends_tokens().with_session();
    let path = QuicPath { retry: true, ..QuicPath::new(20 * MS) };
    let (_, trace) = analyze_quic(&peers.capture(&path), &peers.key_log());
    let carried = |packet: &firstflight_packets::TracedPacket| {
        packet.carries.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    // With the token of the first connection the server sends no Retry.
    assert_eq!(
        carried(&trace.packets[0]),
        ["Initial packet 0", "ClientHello", "0-RTT packet 0", "early data, stream 0 4 B, FIN"]
    );
    let response = carried(&trace.packets[1]);
    assert_eq!(
        response[..7],
        [
            "Initial packet 0",
            "ACK",
            "ServerHello",
            "Handshake packet 0",
            "EncryptedExtensions (early data accepted)",
            "Finished",
            "1-RTT packet 0"
        ]
    );
    assert_eq!(response[response.len() - 1], "stream 0 4 B, FIN");
    assert!(response.contains(&"NEW_TOKEN 46 B".to_owned()), "{response:?}");
    assert_eq!((trace.packets[1].round_trips, trace.packets[1].tcp), (Some(1), None));
    let closing = carried(&trace.packets[trace.packets.len() - 2]);
    assert_eq!(closing[closing.len() - 1], "CONNECTION_CLOSE, application error 0x100");

    let peers = QuicPeers::ping_pong();
    let capture = peers.capture(&path);
    let (_, trace) = analyze_quic(&capture, &peers.key_log());
    let retry = carried(&trace.packets[1]);
    assert!(retry[0].starts_with("Retry, token ") && retry.len() == 1, "{retry:?}");
    let again = &trace.packets[2];
    assert_eq!((again.retransmission, again.round_trips), (false, Some(2)));
    // Without secrets only Initial packets are decrypted.
    let (_, blind) = analyze_quic(&capture, "");
    let handshake = &carried(&blind.packets[3])[3..5];
    assert!(
        handshake[0] == "Handshake packet" && handshake[1].starts_with("encrypted "),
        "{handshake:?}"
    );
}
