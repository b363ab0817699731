//! What each server under test is found to do, really started, with every certificate and size.
//!
//! Has no standard harness: an ordinary user must enter a user namespace before any thread starts.

use std::path::Path;
use std::process::ExitCode;

use firstflight_lab::{Abilities, Ability, Certificate, Group, ServerKind, Size, survey};
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
        trial("nginx_can_all_but_ping_pong", ServerKind::Nginx, |can| {
            all_versions(can);
            common(can);
            assert_all(can, &[Ability::EarlyData, Ability::FastOpen, Ability::Counts]);
        }),
        trial("haproxy_can_all_but_ping_pong", ServerKind::Haproxy, |can| {
            all_versions(can);
            common(can);
            assert_all(can, &[Ability::EarlyData, Ability::FastOpen, Ability::Counts]);
        }),
        trial("h2o_takes_no_early_data", ServerKind::H2o, |can| {
            all_versions(can);
            common(can);
            assert_all(can, &[Ability::FastOpen, Ability::Counts]);
            assert_none(can, &[Ability::EarlyData, Ability::Http3]);
        }),
        trial(
            "envoy_takes_early_data_over_quic_alone_and_is_post_quantum",
            ServerKind::Envoy,
            |can| {
                all_versions(can);
                common(can);
                let group = Ability::Exchanges(Group::X25519MlKem768);
                assert_all(can, &[Ability::FastOpen, Ability::Counts, group]);
                assert_all(can, &OVER_QUIC);
                assert_all(can, &[Ability::FreshnessQuic]);
                assert_none(can, &[Ability::EarlyData]);
            },
        ),
        trial("caddy_takes_early_data_over_quic_whatever_its_age", ServerKind::Caddy, |can| {
            common(can);
            assert_all(can, &[Ability::Counts]);
            let old = [Version::Tls10, Version::Tls11].map(Ability::Speaks);
            assert_none(can, &old);
            assert_all(can, &OVER_QUIC);
            assert_none(can, &[Ability::EarlyData, Ability::FastOpen, Ability::FreshnessQuic]);
        }),
        trial("s_server_serves_one_connection_at_a_time", ServerKind::Openssl, |can| {
            all_versions(can);
            assert_all(can, &Size::ALL.map(Ability::Serves));
            assert_all(can, &Certificate::ALL.map(Ability::Presents));
            assert_none(can, &[Ability::SideBySide, Ability::Http2, Ability::EarlyData]);
        }),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(name: &str, server: ServerKind, check: fn(&Abilities)) -> Trial {
    Trial::test(name, move || {
        let directory = tempfile::tempdir()?;
        let surveyed = survey(server, directory.path(), Path::new("not needed"))
            .map_err(|error| Failed::from(format!("{error}; `make deps-test` installs it")))?;
        check(&surveyed.abilities);
        assert!(surveyed.version.contains(|c: char| c.is_ascii_digit()), "{}", surveyed.version);
        assert!(!surveyed.abilities.can(Ability::PingPong));
        Ok(())
    })
}

/// What those that speak HTTP/3 do.
const OVER_QUIC: [Ability; 4] =
    [Ability::Http3, Ability::ResumesQuic, Ability::EarlyDataQuic, Ability::AddressTokens];

/// Each version, full and resumed.
fn all_versions(can: &Abilities) {
    assert_all(can, &Version::ALL.map(Ability::Speaks));
    assert_all(can, &Version::ALL.map(Ability::Resumes));
}

/// What all but s_server do.
fn common(can: &Abilities) {
    assert_all(can, &[Version::Tls12, Version::Tls13].map(Ability::Resumes));
    assert_all(can, &[Group::X25519, Group::P256].map(Ability::Exchanges));
    assert_all(can, &[Certificate::EcdsaP256, Certificate::Rsa2048].map(Ability::Presents));
    assert_all(can, &Size::ALL.map(Ability::Serves));
    assert_all(can, &[Ability::Http2, Ability::SideBySide]);
}

fn assert_all(abilities: &Abilities, wanted: &[Ability]) {
    for ability in wanted {
        assert_eq!(abilities.why_not(*ability), None, "{ability}");
    }
}

fn assert_none(abilities: &Abilities, lacking: &[Ability]) {
    for ability in lacking {
        assert!(!abilities.can(*ability), "{ability}");
    }
}
