//! Encrypted ClientHello (RFC 9849): what is visible, early data, copies, and outdated configurations.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use firstflight_tls::{
    EchKey, EchKeys, Identities, Identity, IdentityEntry, OfferedFlight, Progress, TlsError, Trust,
};
use rcgen::{CertificateParams, DnType, KeyPair};

use crate::support::{Pair, Setup, server_read};

/// A server with certificates for `cover.test`, the public name, and `hidden.test`, and with these
/// ECH keys. The client knows the configuration of `known`.
fn ech_setup(directory: &Path, keys: &[&EchKey], known: &EchKey) -> Setup {
    let mut pems = String::new();
    let mut entries = ["cover.test", "hidden.test"].map(|name| {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        // The client finds its trusted certificates by subject.
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        pems += &certificate;
        let key = key.serialize_pem();
        let identity = Identity::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap();
        Some(IdentityEntry::new(vec![name.to_owned()], identity))
    });
    let file = directory.join("trusted.pem");
    std::fs::write(&file, pems).unwrap();
    let others = vec![entries[1].take().unwrap()];
    let keys: Vec<_> = keys.iter().map(|&key| key.clone()).collect();
    Setup {
        identities: Identities::new(entries[0].take().unwrap(), others).unwrap(),
        trust: Trust::File(file),
        ech: (!keys.is_empty()).then(|| EchKeys::new(&keys).unwrap()),
        ech_configs: Some(STANDARD.decode(known.config_list()).unwrap()),
        host: "hidden.test".to_owned(),
        ..Setup::default()
    }
}

fn contains(bytes: &[u8], name: &str) -> bool {
    bytes.windows(name.len()).any(|window| window == name.as_bytes())
}

#[test]
fn rfc9849_the_server_name_is_visible_to_the_server_only() {
    let directory = tempfile::tempdir().unwrap();
    let key = EchKey::generate("cover.test").unwrap();
    let setup = ech_setup(directory.path(), &[&key], &key);
    let mut pair = Pair::new(&setup, None, false);
    let _ = pair.client.handshake().unwrap();
    let sent = pair.client.outgoing().to_vec();
    assert!(contains(&sent, "cover.test") && !contains(&sent, "hidden.test"));
    pair.complete();
    let facts = pair.server.facts();
    assert_eq!(facts.server_name.as_deref(), Some("hidden.test"));
    assert!(facts.ech_accepted && pair.client.facts().ech_accepted);
    // Clients without a configuration are served as before.
    let plain = Setup { ech_configs: None, ..setup };
    let mut pair = Pair::new(&plain, None, false);
    pair.complete();
    assert!(!pair.server.facts().ech_accepted);
}

/// A client's first flight with early data.
fn early_flight(setup: &Setup) -> (Pair, Vec<u8>) {
    let mut pair = Pair::new(setup, Some(setup.session()), true);
    pair.client.handshake().unwrap();
    assert_eq!(pair.client.write(b"GET").unwrap(), Progress::Done(3));
    let flight = pair.client.outgoing().to_vec();
    (pair, flight)
}

/// The recorded flight, if a server accepts its early data.
fn accepted_flight(setup: &Setup, bytes: &[u8]) -> Option<OfferedFlight> {
    let mut server = setup.acceptor().connection(true).unwrap();
    server.feed(bytes);
    let _ = server.handshake();
    server.in_early_data().then(|| server.facts().offered_flight.expect("it is recorded"))
}

#[test]
fn early_data_is_accepted_with_an_encrypted_client_hello() {
    let directory = tempfile::tempdir().unwrap();
    let key = EchKey::generate("cover.test").unwrap();
    let setup = ech_setup(directory.path(), &[&key], &key);
    let (mut pair, flight) = early_flight(&setup);
    assert!(!contains(&flight, "hidden.test"));
    pair.client_to_server();
    let _ = pair.server.handshake().unwrap();
    assert!(pair.server.in_early_data());
    assert_eq!(server_read(&mut pair.server).unwrap(), b"GET");
    pair.complete();
    let facts = pair.server.facts();
    assert!(facts.ech_accepted && facts.resumed);
    // Without the key, the same flight is a ClientHello to the public name, without early data.
    let without = Setup { ech: None, ..setup };
    assert_eq!(accepted_flight(&without, &flight), None);
}

/// The flight's identity is what stops replays (RFC 8446 section 8.2), so an attacker who does not know
/// the inner ClientHello must not be able to change it.
#[test]
fn an_encrypted_flight_with_a_changed_byte_is_refused_or_has_the_same_digest() {
    let directory = tempfile::tempdir().unwrap();
    let key = EchKey::generate("cover.test").unwrap();
    let setup = ech_setup(directory.path(), &[&key], &key);
    let (_, flight) = early_flight(&setup);
    let original = accepted_flight(&setup, &flight).expect("accepted").digest;
    let length = 5 + usize::from(u16::from_be_bytes([flight[3], flight[4]]));
    for at in 0..length {
        let mut changed = flight.clone();
        changed[at] ^= 1;
        if let Some(accepted) = accepted_flight(&setup, &changed) {
            assert_eq!(accepted.digest, original, "byte {at}");
        }
    }
}

#[test]
fn rfc9849_6_1_6_outdated_configurations_are_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let [old, new] = [(); 2].map(|()| EchKey::generate("cover.test").unwrap());
    let rejected = |setup: &Setup| match Pair::new(setup, None, false).fails_on_client() {
        TlsError::EchRejected { retry_configs } => retry_configs,
        other => panic!("{other}"),
    };
    let outdated = ech_setup(directory.path(), &[&new], &old);
    let configs = rejected(&outdated).expect("the present configuration");
    assert_eq!(STANDARD.encode(&configs), new.config_list());
    let mut pair = Pair::new(&Setup { ech_configs: Some(configs), ..outdated }, None, false);
    pair.complete();
    assert!(pair.server.facts().ech_accepted);
    // A key that is no longer published still decrypts.
    let mut pair = Pair::new(&ech_setup(directory.path(), &[&new, &old], &old), None, false);
    pair.complete();
    assert!(pair.server.facts().ech_accepted);
    // A server without keys; then one that has no certificate for the public name.
    assert_eq!(rejected(&ech_setup(directory.path(), &[], &old)), None);
    let elsewhere = EchKey::generate("elsewhere.test").unwrap();
    let mut pair = Pair::new(&ech_setup(directory.path(), &[&new], &elsewhere), None, false);
    let error = pair.fails_on_client();
    assert!(matches!(error, TlsError::Certificate(_)), "{error}");
}

#[test]
fn a_damaged_configuration_is_an_error_of_the_client() {
    let offer = firstflight_tls::ConnectOptions {
        host: "hidden.test".to_owned(),
        ..firstflight_tls::ConnectOptions::default()
    };
    let setup = Setup { ech_configs: Some(b"damaged".to_vec()), ..Setup::default() };
    let error = setup.connector().connection(&offer).err().unwrap();
    assert!(matches!(error, TlsError::BadEchConfigs), "{error}");
}
