//! The axes of cipher suites and certificates.

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
                    ..ConnectionAxes::baseline()
                },
                ..Axes::baseline()
            },
            samples: 2,
            control: false,
        });
    });
    assert_eq!(record.cells.len(), 2 * 2 * CipherSuite::ALL.len() * CertificateKind::ALL.len());
    assert_eq!(record.left_out, Vec::<String>::new());
    let mut counts = RoundTrips::default();
    // The bytes of the server's flight in full handshakes, by certificate.
    let mut down = vec![0; CertificateKind::ALL.len()];
    for (cell, sample) in samples(&record, |_| true) {
        // A connection with another suite would be mislabelled.
        assert!(sample.fault.is_none() || spoiled(sample), "{sample:?} in {cell:?}");
        // RFC 9000 section 8.1: over QUIC the chain takes a round trip more.
        counts.note(sample.round_trips, cell.expected_round_trips, (cell, sample));
        if let (true, Some(bytes)) = (cell.kind == "full", sample.handshake_bytes) {
            let kind: CertificateKind = cell.certificate.parse().unwrap();
            let place = CertificateKind::ALL.iter().position(|one| *one == kind).unwrap();
            down[place] = bytes.down.max(down[place]);
        }
    }
    counts.check(&record);
    let of =
        |kind: CertificateKind| down[CertificateKind::ALL.iter().position(|k| *k == kind).unwrap()];
    assert!(of(CertificateKind::Rsa4096Chain) > 3 * of(CertificateKind::Rsa2048), "{down:?}");
    assert!(of(CertificateKind::Rsa2048) > of(CertificateKind::EcdsaP256), "{down:?}");
}
