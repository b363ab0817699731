//! Probes the capabilities of each server under test, with every certificate and size.
//!
//! Uses no standard harness: an ordinary user must enter a user namespace before any thread starts.

use std::path::Path;
use std::process::ExitCode;

use firstflight_lab::{
    Capabilities, Capability, CertificateKind, Group, ResponseSize, ServerKind, probe_server,
};
use firstflight_tls::Version;
use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    if let Err(error) = firstflight_emulator::enter_user_namespace() {
        eprintln!("the server tests cannot run here: {error}");
        return ExitCode::FAILURE;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(1);
    let trials = vec![
        trial("nginx_supports_all_but_ping_pong", ServerKind::Nginx, |capabilities| {
            all_versions(capabilities);
            common(capabilities);
            assert_all(
                capabilities,
                &[Capability::EarlyData, Capability::FastOpen, Capability::RequestLog],
            );
        }),
        trial("haproxy_supports_all_but_ping_pong", ServerKind::Haproxy, |capabilities| {
            all_versions(capabilities);
            common(capabilities);
            assert_all(
                capabilities,
                &[Capability::EarlyData, Capability::FastOpen, Capability::RequestLog],
            );
        }),
        trial("h2o_accepts_no_early_data", ServerKind::H2o, |capabilities| {
            all_versions(capabilities);
            common(capabilities);
            assert_all(capabilities, &[Capability::FastOpen, Capability::RequestLog]);
            assert_none(capabilities, &[Capability::EarlyData, Capability::Http3]);
        }),
        trial(
            "envoy_accepts_early_data_over_quic_only_and_is_post_quantum",
            ServerKind::Envoy,
            |capabilities| {
                all_versions(capabilities);
                common(capabilities);
                let group = Capability::Group(Group::X25519MlKem768);
                assert_all(capabilities, &[Capability::FastOpen, Capability::RequestLog, group]);
                assert_all(capabilities, &OVER_QUIC);
                assert_all(capabilities, &[Capability::QuicTicketAgeCheck]);
                assert_none(capabilities, &[Capability::EarlyData]);
            },
        ),
        trial(
            "caddy_accepts_early_data_over_quic_of_any_ticket_age",
            ServerKind::Caddy,
            |capabilities| {
                common(capabilities);
                assert_all(capabilities, &[Capability::RequestLog]);
                let old = [Version::Tls10, Version::Tls11].map(Capability::Tls);
                assert_none(capabilities, &old);
                assert_all(capabilities, &OVER_QUIC);
                assert_none(
                    capabilities,
                    &[Capability::EarlyData, Capability::FastOpen, Capability::QuicTicketAgeCheck],
                );
            },
        ),
        trial("s_server_serves_one_connection_at_a_time", ServerKind::Openssl, |capabilities| {
            all_versions(capabilities);
            assert_all(capabilities, &ResponseSize::ALL.map(Capability::ResponseSize));
            let without_chain = CertificateKind::ALL
                .into_iter()
                .filter(|certificate| *certificate != CertificateKind::Rsa4096Chain);
            assert_all(
                capabilities,
                &without_chain.map(Capability::Certificate).collect::<Vec<_>>(),
            );
            assert_none(
                capabilities,
                &[Capability::ConcurrentConnections, Capability::Http2, Capability::EarlyData],
            );
        }),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(name: &str, server: ServerKind, check: fn(&Capabilities)) -> Trial {
    Trial::test(name, move || {
        let directory = tempfile::tempdir()?;
        let probed = probe_server(server, directory.path(), Path::new("not needed"))
            .map_err(|error| Failed::from(format!("{error}; `make deps-test` installs it")))?;
        check(&probed.capabilities);
        assert!(probed.version.contains(|c: char| c.is_ascii_digit()), "{}", probed.version);
        assert!(!probed.capabilities.supports(Capability::PingPong));
        Ok(())
    })
}

/// The capabilities of the servers that support HTTP/3.
const OVER_QUIC: [Capability; 4] = [
    Capability::Http3,
    Capability::QuicResumption,
    Capability::QuicEarlyData,
    Capability::AddressTokens,
];

/// All TLS versions, full and resumed.
fn all_versions(capabilities: &Capabilities) {
    assert_all(capabilities, &Version::ALL.map(Capability::Tls));
    assert_all(capabilities, &Version::ALL.map(Capability::Resumption));
}

/// The capabilities of all servers but s_server.
fn common(capabilities: &Capabilities) {
    assert_all(capabilities, &[Version::Tls12, Version::Tls13].map(Capability::Resumption));
    assert_all(capabilities, &[Group::X25519, Group::P256].map(Capability::Group));
    assert_all(
        capabilities,
        &[CertificateKind::EcdsaP256, CertificateKind::Rsa2048].map(Capability::Certificate),
    );
    assert_all(capabilities, &ResponseSize::ALL.map(Capability::ResponseSize));
    assert_all(capabilities, &[Capability::Http2, Capability::ConcurrentConnections]);
}

fn assert_all(capabilities: &Capabilities, required: &[Capability]) {
    for capability in required {
        assert_eq!(capabilities.missing_reason(*capability), None, "{capability}");
    }
}

fn assert_none(capabilities: &Capabilities, missing: &[Capability]) {
    for capability in missing {
        assert!(!capabilities.supports(*capability), "{capability}");
    }
}
