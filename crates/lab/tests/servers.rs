//! What each server under test is found to do, really started, with every certificate and size.
//!
//! Has no standard harness: an ordinary user must enter a user namespace before any thread starts.

use std::path::Path;
use std::process::ExitCode;

use firstflight_lab::{
    Capabilities, Capability, CertificateKind, Group, ResponseSize, ServerKind, probe_server,
};
use firstflight_tls::Version;
use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    if let Err(error) = firstflight_emulator::enter_user_namespace() {
        eprintln!("the servers' tests cannot run here: {error}");
        return ExitCode::FAILURE;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(1);
    let trials = vec![
        trial("nginx_can_all_but_ping_pong", ServerKind::Nginx, |supports| {
            all_versions(supports);
            common(supports);
            assert_all(
                supports,
                &[Capability::EarlyData, Capability::FastOpen, Capability::RequestLog],
            );
        }),
        trial("haproxy_can_all_but_ping_pong", ServerKind::Haproxy, |supports| {
            all_versions(supports);
            common(supports);
            assert_all(
                supports,
                &[Capability::EarlyData, Capability::FastOpen, Capability::RequestLog],
            );
        }),
        trial("h2o_takes_no_early_data", ServerKind::H2o, |supports| {
            all_versions(supports);
            common(supports);
            assert_all(supports, &[Capability::FastOpen, Capability::RequestLog]);
            assert_none(supports, &[Capability::EarlyData, Capability::Http3]);
        }),
        trial(
            "envoy_takes_early_data_over_quic_alone_and_is_post_quantum",
            ServerKind::Envoy,
            |supports| {
                all_versions(supports);
                common(supports);
                let group = Capability::Group(Group::X25519MlKem768);
                assert_all(supports, &[Capability::FastOpen, Capability::RequestLog, group]);
                assert_all(supports, &OVER_QUIC);
                assert_all(supports, &[Capability::QuicTicketAgeCheck]);
                assert_none(supports, &[Capability::EarlyData]);
            },
        ),
        trial("caddy_takes_early_data_over_quic_whatever_its_age", ServerKind::Caddy, |supports| {
            common(supports);
            assert_all(supports, &[Capability::RequestLog]);
            let old = [Version::Tls10, Version::Tls11].map(Capability::Tls);
            assert_none(supports, &old);
            assert_all(supports, &OVER_QUIC);
            assert_none(
                supports,
                &[Capability::EarlyData, Capability::FastOpen, Capability::QuicTicketAgeCheck],
            );
        }),
        trial("s_server_serves_one_connection_at_a_time", ServerKind::Openssl, |supports| {
            all_versions(supports);
            assert_all(supports, &ResponseSize::ALL.map(Capability::Response));
            assert_all(supports, &CertificateKind::ALL.map(Capability::Certificate));
            assert_none(
                supports,
                &[Capability::ConcurrentConnections, Capability::Http2, Capability::EarlyData],
            );
        }),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(name: &str, server: ServerKind, check: fn(&Capabilities)) -> Trial {
    Trial::test(name, move || {
        let directory = tempfile::tempdir()?;
        let surveyed = probe_server(server, directory.path(), Path::new("not needed"))
            .map_err(|error| Failed::from(format!("{error}; `make deps-test` installs it")))?;
        check(&surveyed.capabilities);
        assert!(surveyed.version.contains(|c: char| c.is_ascii_digit()), "{}", surveyed.version);
        assert!(!surveyed.capabilities.supports(Capability::PingPong));
        Ok(())
    })
}

/// What those that speak HTTP/3 do.
const OVER_QUIC: [Capability; 4] = [
    Capability::Http3,
    Capability::QuicResumption,
    Capability::QuicEarlyData,
    Capability::AddressTokens,
];

/// Each version, full and resumed.
fn all_versions(supports: &Capabilities) {
    assert_all(supports, &Version::ALL.map(Capability::Tls));
    assert_all(supports, &Version::ALL.map(Capability::Resumption));
}

/// What all but s_server do.
fn common(supports: &Capabilities) {
    assert_all(supports, &[Version::Tls12, Version::Tls13].map(Capability::Resumption));
    assert_all(supports, &[Group::X25519, Group::P256].map(Capability::Group));
    assert_all(
        supports,
        &[CertificateKind::EcdsaP256, CertificateKind::Rsa2048].map(Capability::Certificate),
    );
    assert_all(supports, &ResponseSize::ALL.map(Capability::Response));
    assert_all(supports, &[Capability::Http2, Capability::ConcurrentConnections]);
}

fn assert_all(capabilities: &Capabilities, required: &[Capability]) {
    for capability in required {
        assert_eq!(capabilities.missing_reason(*capability), None, "{capability}");
    }
}

fn assert_none(capabilities: &Capabilities, lacking: &[Capability]) {
    for capability in lacking {
        assert!(!capabilities.supports(*capability), "{capability}");
    }
}
