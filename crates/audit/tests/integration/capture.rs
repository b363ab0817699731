//! The capture of an audit, and what the report says about its connections.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;
use std::time::Duration;

use firstflight_audit::{Capture, Finding, Node, Settings, Target, Verdict, audit_captured};
use firstflight_first_flight::Link;
use firstflight_first_flight::test_server::{Behaviour, Recorded, TestServer};
use firstflight_packets::{Direction, LabelKind, Observer, Packet};

use crate::Simulated;

/// A server over QUIC.
struct OverQuic(TestServer);

impl Target for OverQuic {
    fn connect(&self) -> io::Result<Box<dyn Link>> {
        Ok(self.0.datagram_link(None))
    }

    fn now(&self) -> Duration {
        self.0.now()
    }

    fn wait(&self, time: Duration) {
        self.0.wait(time);
    }
}

#[derive(Clone, Default)]
struct Buffer(Rc<RefCell<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A packet of a capture.
struct Captured {
    time: u64,
    frame: Vec<u8>,
    comment: String,
}

/// The packets and secrets of a pcapng file.
fn read(mut file: &[u8]) -> (Vec<Captured>, String) {
    let (mut packets, mut secrets) = (Vec::new(), String::new());
    while !file.is_empty() {
        let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
        let (kind, total) = (word(0), word(4) as usize);
        match kind {
            10 => secrets += std::str::from_utf8(&file[16..16 + word(12) as usize]).unwrap(),
            6 => {
                let captured = word(20) as usize;
                let options = 28 + captured.next_multiple_of(4);
                let text = String::from_utf8_lossy(&file[options..total - 4]).into_owned();
                packets.push(Captured {
                    time: u64::from(word(12)) << 32 | u64::from(word(16)),
                    frame: file[28..28 + captured].to_vec(),
                    comment: text,
                });
            }
            _ => {}
        }
        file = &file[total..];
    }
    (packets, secrets)
}

/// The finding of a check at a server that keeps no records, and its capture.
fn captured(check: &str, over_quic: bool) -> (Finding, Vec<Captured>, String) {
    let server = TestServer::new(Behaviour { recorded: Recorded::Never, ..Behaviour::default() });
    let target: Box<dyn Target> = match over_quic {
        true => Box::new(OverQuic(server)),
        false => Box::new(Simulated(server)),
    };
    let settings = Settings {
        witness: true,
        http3: over_quic,
        only: vec![check.to_owned()],
        ..Settings::new("localhost", "localhost:443", "/witness")
    };
    let buffer = Buffer::default();
    let start = Duration::from_secs(1_800_000_000);
    let mut capture = Capture::new(Box::new(buffer.clone()), start, over_quic).unwrap();
    let node = Node { address: "192.0.2.2:443".to_owned(), target: &*target };
    let report = audit_captured(&[node], &settings, "", Some(&mut capture), |_| {}).unwrap();
    let (packets, secrets) = read(&buffer.0.borrow());
    (report.findings[0].clone(), packets, secrets)
}

#[test]
fn copies_are_byte_for_byte_the_original_and_have_their_times() {
    for over_quic in [false, true] {
        let (finding, packets, secrets) = captured("replay-delayed", over_quic);
        assert_eq!(finding.verdict, Verdict::Fail);
        let digests: Vec<&str> =
            finding.connections.iter().map(|connection| &*connection.first_flight_sha256).collect();
        let is_repeated =
            |digest: &&&str| digests.iter().filter(|other| other == digest).count() > 1;
        let repeated: Vec<_> = digests.iter().filter(is_repeated).collect();
        // Over QUIC each copy has an original of its own.
        let expected = if over_quic { 2 * DELAYS.len() } else { 1 + DELAYS.len() };
        assert_eq!(repeated.len(), expected, "{digests:?}");
        for delay in DELAYS {
            let time = format!("copy at +{delay}.000 s: ");
            assert!(finding.evidence.iter().any(|line| line.starts_with(&time)), "{finding:#?}");
        }
        // The capture has each connection of the check, with its own comment.
        for (number, connection) in finding.connections.iter().enumerate() {
            let number = number + 1;
            let name = format!("replay-delayed, connection {number} of ");
            let first = packets.iter().find(|packet| packet.comment.contains(&name)).unwrap();
            assert!(first.comment.contains(&connection.first_flight_sha256));
            let opened = Duration::from_nanos(first.time) - Duration::from_secs(1_800_000_000);
            assert_eq!(opened.as_millis() as u64, connection.opened_ms, "{name}");
        }
        assert!(secrets.contains("CLIENT_EARLY_TRAFFIC_SECRET "));
        assert!(secrets.contains("SERVER_TRAFFIC_SECRET_0 "));
    }
}

/// The capture is read by the packet analysis, which knows nothing of the audit.
#[test]
fn the_capture_is_decrypted_by_its_own_secrets() {
    let (_, packets, secrets) = captured("early-data-header", true);
    let mut observer = Observer::new();
    for packet in &packets {
        let to_server = packet.frame[..6] == [2, 0, 0, 0, 0, 2];
        let direction = if to_server { Direction::ToServer } else { Direction::ToClient };
        let delivered = Some(packet.time);
        let frame = &packet.frame;
        observer.packet(&Packet { direction, arrived: packet.time, delivered, frame });
    }
    assert!(observer.add_secrets(&secrets) > 0);
    let labels: Vec<_> = observer.finish().iter().map(|facts| facts.label()).collect();
    let count = |kind| labels.iter().flatten().filter(|label| label.kind == kind).count();
    assert!(count(LabelKind::EarlyAccepted) > 0, "{labels:?}");
    assert!(count(LabelKind::Full) > 0, "{labels:?}");
}

/// The default delays, in seconds.
const DELAYS: [u64; 6] = [1, 5, 10, 20, 60, 120];
