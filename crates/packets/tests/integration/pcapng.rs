//! tshark reads the captures that this crate writes.

use std::process::Command;

use firstflight_packets::pcapng::{Metadata, Writer};
use firstflight_packets::{Direction, KeyLog};
use firstflight_testkit::{TEST_TIMEOUT, output_within, skipped_without};

use crate::peers::{PeerConfig, analyze};
use crate::quic_path::QuicPath;
use crate::quic_peers::QuicPeers;
use crate::tcp_path::{Captured, MS, Path, Tfo};

/// 2026-01-01, in nanoseconds since 1970.
const EPOCH: u64 = 1_767_225_600_000_000_000;

/// A file with the packets of `capture` and all secrets of `key_log`.
fn write(capture: &[Captured], key_log: &str) -> Vec<u8> {
    let metadata = Metadata {
        application: "firstflight".into(),
        os: "Linux".into(),
        interface: "tap".into(),
        description: "20 ms".into(),
        ..Metadata::default()
    };
    let mut writer = Writer::new(Vec::new(), &metadata).unwrap();
    writer.secrets(key_log.lines()).unwrap();
    for captured in capture {
        let (time, length) = (EPOCH + captured.arrived, captured.frame.len() as u32);
        let comment = if captured.delivered.is_none() { "dropped by the loss cell" } else { "" };
        writer.packet(time, captured.direction, &captured.frame, length, comment).unwrap();
    }
    writer.finish().unwrap()
}

/// The fields of the frames that match `filter`, a line for each frame, separated by `|`.
fn tshark(file: &[u8], filter: &str, fields: &[&str]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("capture.pcapng");
    std::fs::write(&path, file).unwrap();
    let mut command = Command::new("tshark");
    // An empty configuration: the user's may name a key log.
    command.env("HOME", folder.path()).env("XDG_CONFIG_HOME", folder.path());
    command.args(["-n", "-Y", filter, "-T", "fields", "-E", "separator=|", "-r"]).arg(&path);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = output_within(&mut command, TEST_TIMEOUT);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// The requests and responses that tshark decrypts, with the types of the handshake messages in
/// their frames.
fn http(file: &[u8]) -> Vec<String> {
    let fields = ["http.request.method", "http.response.code", "tls.handshake.type"];
    tshark(file, "http", &fields)
}

#[test]
fn a_full_handshake_is_decrypted_only_with_its_secrets() {
    if skipped_without(&["tshark"]) {
        return;
    }
    let peers = PeerConfig::default().peers();
    let capture = peers.capture(&Path::new(20 * MS));
    let file = write(&capture, &peers.key_log());
    // The request comes with Finished (20), the response with two tickets (4).
    assert_eq!(http(&file), ["GET||20", "|200|4,4"]);
    assert_eq!(
        tshark(&file, "tls.handshake.type == 11", &["tls.handshake.type"]),
        ["2,8,11,15,20"]
    );
    assert!(http(&write(&capture, "")).is_empty());
}

#[test]
fn rfc8446_2_3_early_data_is_decrypted() {
    if skipped_without(&["tshark"]) {
        return;
    }
    for tfo in [Tfo::Off, Tfo::Accepted] {
        let peers = PeerConfig::default().peers().with_session();
        let capture = peers.capture(&Path::new(20 * MS).tfo(tfo));
        let file = write(&capture, &peers.key_log());
        // The request is in the frame of the ClientHello (1).
        assert_eq!(http(&file), ["GET||1", "|200|2,8,20"]);
        let accepted = "tls.handshake.type == 8 && tls.handshake.extension.type == 42";
        assert_eq!(tshark(&file, accepted, &["frame.number"]).len(), 1);
        let in_syn = tshark(&file, "tcp.flags.syn == 1 && http.request", &["frame.number"]);
        assert_eq!(in_syn.len(), usize::from(tfo == Tfo::Accepted));
    }
}

#[test]
fn rfc5246_tls12_is_decrypted_with_its_master_secret() {
    if skipped_without(&["tshark"]) {
        return;
    }
    for peers in [PeerConfig::tls12().peers(), PeerConfig::tls12().peers().with_session()] {
        let capture = peers.capture(&Path::new(20 * MS));
        let file = write(&capture, &peers.key_log());
        let fields = ["http.request.method", "http.response.code"];
        assert_eq!(tshark(&file, "http", &fields), ["GET|", "|200"]);
    }
}

#[test]
fn rfc9001_quic_is_decrypted_with_its_secrets() {
    if skipped_without(&["tshark"]) {
        return;
    }
    let peers = QuicPeers::ping_pong().with_session();
    let capture = peers.capture(&QuicPath { retry: true, ..QuicPath::new(20 * MS) });
    let file = write(&capture, &peers.key_log());
    // "PING" as early data before and after the Retry, and "PONG".
    let early = tshark(&file, "quic.long.packet_type == 1", &["quic.stream_data"]);
    assert_eq!(early, ["50494e47", "50494e47"]);
    let responses = tshark(&file, "quic.stream_data == 50:4f:4e:47", &["udp.srcport"]);
    assert_eq!(responses, ["443"]);
    let accepted = "tls.handshake.type == 8 && tls.handshake.extension.type == 42";
    assert_eq!(tshark(&file, accepted, &["frame.number"]).len(), 1);
    assert_eq!(tshark(&file, "quic.retry_token", &["frame.number"]).len(), 1);
    let closed = "quic.frame_type == 0x1d";
    assert_eq!(tshark(&file, closed, &["quic.cc.error_code.app"]), ["256"]);
    // Without secrets only the Initial packets are decrypted.
    let file = write(&capture, "");
    assert!(
        tshark(&file, "quic.stream_data || tls.handshake.type == 8", &["udp.srcport"]).is_empty()
    );
    assert!(!tshark(&file, "tls.handshake.type == 1", &["udp.srcport"]).is_empty());
}

#[test]
fn one_connection_of_many_is_written_with_its_own_secrets() {
    if skipped_without(&["tshark"]) {
        return;
    }
    let peers = PeerConfig::default().peers().with_session();
    let (first, mut second) = (Path::new(20 * MS), Path::new(20 * MS));
    second.client.set_port(40_001);
    let mut all = peers.capture(&first);
    let first_facts = analyze(&all, &peers.key_log());
    all.extend(peers.capture(&second));
    all.sort_by_key(|captured| captured.arrived);
    let mut keys = KeyLog::new(16);
    keys.add(&peers.key_log());
    let lines = keys.lines_for(&first_facts.tls.as_ref().unwrap().client_random);
    // The five secrets of a connection with early data.
    assert_eq!(lines.len(), 5);
    all.retain(|captured| first_facts.contains(&captured.packet()));
    let file = write(&all, &lines.join("\n"));
    assert_eq!(http(&file), ["GET||1", "|200|2,8,20"]);
    assert_eq!(tshark(&file, "tcp.port != 40000", &["frame.number"]), [""; 0]);
}

#[test]
fn times_directions_lengths_and_comments_are_kept() {
    if skipped_without(&["tshark"]) {
        return;
    }
    let peers = PeerConfig::default().peers();
    let path = Path { drop_to_server: vec![0], ..Path::new(20 * MS) };
    let mut capture = peers.capture(&path);
    capture.truncate(6);
    let file = write(&capture, "");
    let fields = ["frame.time_epoch", "frame.packet_flags_direction", "frame.len", "frame.comment"];
    let expected: Vec<_> = capture
        .iter()
        .map(|captured| {
            let time = EPOCH + captured.arrived;
            let direction = match captured.direction {
                Direction::ToServer => "0x00000002",
                Direction::ToClient => "0x00000001",
            };
            let comment = match captured.delivered {
                Some(_) => "",
                None => "dropped by the loss cell",
            };
            let (seconds, rest) = (time / 1_000_000_000, time % 1_000_000_000);
            format!("{seconds}.{rest:09}|{direction}|{}|{comment}", captured.frame.len())
        })
        .collect();
    assert!(expected.iter().any(|line| line.ends_with("cell")));
    assert_eq!(tshark(&file, "frame", &fields), expected);
    let section = ["frame.interface_name", "frame.interface_description"];
    assert_eq!(tshark(&file, "frame.number == 1", &section), ["tap|20 ms"]);
}
