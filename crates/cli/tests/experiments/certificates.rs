//! The axes of cipher suites and certificates.

use std::collections::HashMap;
use std::time::Duration;

use firstflight_emulator::Profile;
use firstflight_lab::{
    Axes, CertificateKind, CipherSuite, ConnectionAxes, Experiment, HandshakeKind, HttpVersion,
};

use crate::{RoundTrips, lab, samples, spoiled};

pub(crate) fn axes() {
    let record = lab(|config| {
        config.costs = false;
        config.experiments.push(Experiment {
            name: "certificates".to_owned(),
            title: "every cipher suite and certificate".to_owned(),
            // Short, so that samples are taken one by one.
            profiles: vec![Profile::plain(Duration::from_millis(9))],
            axes: Axes {
                connections: ConnectionAxes {
                    kinds: vec![HandshakeKind::Full, HandshakeKind::ZeroRtt],
                    http: vec![HttpVersion::One, HttpVersion::Three],
                    ciphers: CipherSuite::ALL.to_vec(),
                    certificates: CertificateKind::ALL.to_vec(),
                    compressions: vec![false, true],
                    ..ConnectionAxes::baseline()
                },
                ..Axes::baseline()
            },
            samples: 2,
            control: false,
        });
    });
    // Over TCP and QUIC: full, full with a compressed certificate, and 0-RTT.
    assert_eq!(record.cells.len(), 2 * 3 * CipherSuite::ALL.len() * CertificateKind::ALL.len());
    assert_eq!(record.left_out, Vec::<String>::new());
    let mut counts = RoundTrips::default();
    // The most and least bytes from the server in full handshakes over TCP, by certificate.
    let mut down: HashMap<&str, (u64, u64)> = HashMap::new();
    for (cell, sample) in samples(&record, |_| true) {
        // A connection with another suite, or with the certificate in the other form, would be
        // mislabelled.
        assert!(sample.fault.is_none() || spoiled(sample), "{sample:?} in {cell:?}");
        // RFC 9000 section 8.1: over QUIC the chain takes a round trip more.
        counts.note(sample.round_trips, cell.expected_round_trips, (cell, sample));
        if let (true, "tcp", Some(bytes)) =
            (cell.kind == "full", &*cell.transport, sample.handshake_bytes)
        {
            let (most, least) = down.entry(&cell.certificate).or_insert((0, u64::MAX));
            (*most, *least) = (bytes.down.max(*most), bytes.down.min(*least));
        }
    }
    counts.check(&record);
    let most = |certificate: &str| down[certificate].0;
    assert!(most("rsa-4096-chain") > 3 * most("rsa-2048"), "{down:?}");
    assert!(most("rsa-2048") > most("ecdsa-p256"), "{down:?}");
    for (certificate, saved) in [("rsa-2048", 1), ("rsa-4096-chain", 200)] {
        let compressed = most(&format!("{certificate} compressed"));
        assert!(compressed + saved <= down[certificate].1, "{certificate}: {down:?}");
    }
}
