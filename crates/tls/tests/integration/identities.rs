//! Certificates by server name, tickets under another name, and whose cipher order decides.

use std::path::Path;

use firstflight_tls::{
    CipherPolicy, CipherPreference, EarlyData, EarlyDataReason, Identities, Identity,
    IdentityEntry, Progress, TlsError, Trust, Version,
};

use crate::support::{Pair, Setup, server_read};

/// A server with a certificate for each of these sets of names, each saved as `N.pem`.
fn sites(directory: &Path, sites: &[&[&str]]) -> Setup {
    let mut entries = Vec::new();
    for (number, names) in sites.iter().enumerate() {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let made = rcgen::generate_simple_self_signed(names.clone()).unwrap();
        let pem = made.cert.pem();
        std::fs::write(directory.join(format!("{number}.pem")), &pem).unwrap();
        let key = made.signing_key.serialize_pem();
        let identity = Identity::from_pem(pem.as_bytes(), key.as_bytes()).unwrap();
        entries.push(IdentityEntry::new(names, identity));
    }
    let first = entries.remove(0);
    Setup { identities: Identities::new(first, entries).unwrap(), ..Setup::default() }
}

fn with_host(setup: &Setup, host: &str) -> Setup {
    Setup { host: host.to_owned(), ..setup.clone() }
}

#[test]
fn rfc6066_3_the_server_name_selects_the_certificate_in_every_version() {
    let directory = tempfile::tempdir().unwrap();
    let sites = sites(directory.path(), &[&["one.test"], &["two.test", "*.two.test"]]);
    for version in Version::ALL {
        for (host, file) in [("one.test", 0), ("Two.test", 1), ("a.two.test", 1)] {
            let trust = |number: u8| Trust::File(directory.path().join(format!("{number}.pem")));
            let setup = |number| Setup {
                min: version,
                max: version,
                trust: trust(number),
                ..with_host(&sites, host)
            };
            Pair::new(&setup(file), None, false).complete();
            let error = Pair::new(&setup(1 - file), None, false).fails_on_client();
            assert!(matches!(error, TlsError::Certificate(_)), "{version} {host}: {error}");
        }
    }
}

#[test]
fn rfc8879_a_client_verifies_a_compressed_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let sites = sites(directory.path(), &[&["one.test"], &["two.test"]]);
    let trust = |number: u8| Trust::File(directory.path().join(format!("{number}.pem")));
    let setup =
        |number| Setup { compression: true, trust: trust(number), ..with_host(&sites, "one.test") };
    Pair::new(&setup(0), None, false).complete();
    let error = Pair::new(&setup(1), None, false).fails_on_client();
    assert!(matches!(error, TlsError::Certificate(_)), "{error}");
}

#[test]
fn an_unknown_or_missing_name_gets_the_first_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let sites = sites(directory.path(), &[&["one.test"], &["two.test"]]);
    let first = Trust::File(directory.path().join("0.pem"));
    for host in ["three.test", "192.0.2.1", "a.two.test"] {
        let setup = Setup { trust: first.clone(), ..with_host(&sites, host) };
        let error = Pair::new(&setup, None, false).fails_on_client();
        // The certificate is trusted but for another name, so it is the first one.
        let message = error.to_string().to_lowercase();
        assert!(
            message.contains("hostname mismatch") || message.contains("ip address"),
            "{message}"
        );
    }
    assert!(sites.identities.for_name(None).covers("one.test"));
    assert!(sites.identities.for_name(Some("TWO.test.")).covers("two.test"));
    assert!(!sites.identities.for_name(Some("two.test")).covers("one.test"));
}

#[test]
fn rfc8446_4_6_1_a_ticket_is_valid_only_for_the_site_that_issued_it() {
    let directory = tempfile::tempdir().unwrap();
    let sites = sites(directory.path(), &[&["one.test", "www.one.test"], &["two.test"]]);
    for version in [Version::Tls12, Version::Tls13] {
        let setup = Setup { min: version, max: version, ..with_host(&sites, "one.test") };
        for (host, resumed) in [("www.one.test", true), ("unknown.test", true), ("two.test", false)]
        {
            let mut pair = Pair::new(&with_host(&setup, host), Some(setup.session()), false);
            pair.complete();
            assert_eq!(pair.server.facts().resumed, resumed, "{version} {host}");
        }
        let session = with_host(&setup, "two.test").session();
        let mut pair = Pair::new(&setup, Some(session), false);
        pair.complete();
        assert!(!pair.server.facts().resumed, "{version}: from the second to the first");
    }
}

#[test]
fn early_data_with_another_sites_ticket_is_refused_and_sent_again() {
    let directory = tempfile::tempdir().unwrap();
    let sites = sites(directory.path(), &[&["one.test", "www.one.test"], &["two.test"]]);
    let session = || with_host(&sites, "one.test").session();
    for (host, early_data) in
        [("www.one.test", EarlyData::Accepted), ("two.test", EarlyData::Refused)]
    {
        let mut pair = Pair::new(&with_host(&sites, host), Some(session()), true);
        pair.client.handshake().unwrap();
        assert_eq!(pair.client.write(b"GET").unwrap(), Progress::Done(3));
        pair.client_to_server();
        let _ = pair.server.handshake().unwrap();
        let refused = early_data == EarlyData::Refused;
        assert_eq!(pair.server.in_early_data(), !refused, "{host}");
        if refused {
            assert_eq!(
                pair.server.facts().early_data_reason,
                EarlyDataReason::SessionNotResumed,
                "{host}"
            );
            pair.complete();
            assert_eq!(server_read(&mut pair.server).unwrap(), b"GET", "once, after the handshake");
        }
    }
}

#[test]
fn a_connection_that_refuses_early_data_does_so_for_every_name() {
    let directory = tempfile::tempdir().unwrap();
    let sites = sites(directory.path(), &[&["one.test"], &["two.test"]]);
    let setup = Setup { decline: true, ..with_host(&sites, "two.test") };
    let mut pair = Pair::new(&setup, Some(setup.session()), true);
    pair.complete();
    assert!(pair.server.facts().resumed);
    assert_eq!(pair.server.facts().early_data_reason, EarlyDataReason::Disabled);
}

#[test]
fn errors_name_duplicate_and_invalid_names() {
    let entry = |name: &str| IdentityEntry::new(vec![name.to_owned()], crate::support::identity());
    for (first, second) in [("one.test", "ONE.test"), ("one.test", "bad name")] {
        let error = Identities::new(entry(first), vec![entry(second)]).err().unwrap();
        assert!(error.to_string().contains(second), "{error}");
    }
}

#[test]
fn the_clients_cipher_order_decides_among_equals() {
    let chosen = |preference, version, ciphers: &str| {
        let policy = CipherPolicy {
            ciphers: (version == Version::Tls12).then(|| ciphers.to_owned()),
            tls13_ciphers: (version == Version::Tls13).then(|| ciphers.to_owned()),
            groups: None,
        };
        let server = Setup { preference, min: version, max: version, ..Setup::default() };
        let client = Setup { ciphers: policy, ..server.clone() };
        let mut pair = Pair::between(&client, &server, None, false);
        pair.complete();
        pair.server.facts().cipher.unwrap()
    };
    let aes = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256";
    let chacha = "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256";
    let aes_1_2 = "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-CHACHA20-POLY1305";
    let chacha_1_2 = "ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-ECDSA-AES128-GCM-SHA256";
    let with_aes = cfg!(target_arch = "x86_64") && std::is_x86_feature_detected!("aes");
    for preference in [CipherPreference::Client, CipherPreference::Hardware] {
        // Without AES instructions ChaCha20 comes first for everybody.
        let client_decides = preference == CipherPreference::Client || with_aes;
        for (version, aes, chacha) in
            [(Version::Tls13, aes, chacha), (Version::Tls12, aes_1_2, chacha_1_2)]
        {
            assert!(chosen(preference, version, chacha).contains("CHACHA20"), "{version}");
            assert_eq!(
                chosen(preference, version, aes).contains("AES_128"),
                client_decides,
                "{version}"
            );
        }
    }
}
