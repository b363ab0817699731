//! TLS 1.2 ciphers: which are accepted, whose order decides, and which allow HTTP/2.

use firstflight_tls::{CipherPolicy, CipherPreference, Progress, Version};

use crate::support::{Pair, Setup};

const GCM: &str = "ECDHE-ECDSA-AES128-GCM-SHA256";
const CBC: &str = "ECDHE-ECDSA-AES128-SHA";

fn tls12() -> Setup {
    Setup { min: Version::Tls12, max: Version::Tls12, ..Setup::default() }
}

fn with(setup: &Setup, ciphers: &str) -> Setup {
    let ciphers = CipherPolicy { ciphers: Some(ciphers.to_owned()), ..CipherPolicy::default() };
    Setup { ciphers, ..setup.clone() }
}

/// The cipher and protocol that are negotiated with a client that offers these ciphers.
fn negotiated(server: &Setup, ciphers: &str) -> (&'static str, Option<Vec<u8>>) {
    let mut pair = Pair::between(&with(server, ciphers), server, None, false);
    pair.complete();
    let facts = pair.server.facts();
    (facts.cipher.unwrap(), facts.alpn)
}

#[test]
fn the_default_ciphers_have_forward_secrecy_and_aead() {
    let server = Setup { max: Version::Tls13, ..tls12() };
    for good in [GCM, "ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305"] {
        let client = Setup { max: Version::Tls12, ..server.clone() };
        let mut pair = Pair::between(&with(&client, good), &server, None, false);
        pair.complete();
        assert_eq!(pair.server.facts().version, Some(Version::Tls12), "{good}");
    }
    for old in [CBC, "ECDHE-ECDSA-AES256-SHA"] {
        let client = with(&Setup { max: Version::Tls12, ..server.clone() }, old);
        let mut pair = Pair::between(&client, &server, None, false);
        assert_eq!(pair.client.handshake().unwrap(), Progress::NeedsInput);
        pair.client_to_server();
        assert!(pair.server.handshake().is_err(), "{old}");
    }
}

#[test]
fn older_ciphers_need_a_list_or_an_older_version() {
    assert!(negotiated(&with(&tls12(), &format!("{GCM}:{CBC}")), CBC).0.contains("CBC"));
    let server = Setup { min: Version::Tls10, ..tls12() };
    assert!(negotiated(&server, CBC).0.contains("CBC"));
    assert!(negotiated(&server, &format!("{CBC}:{GCM}")).0.contains("GCM"), "but come last");
}

#[test]
fn the_servers_cipher_order_decides_unless_configured_otherwise() {
    let server = with(&tls12(), &format!("{GCM}:{CBC}"));
    let offer = format!("{CBC}:{GCM}");
    assert!(negotiated(&server, &offer).0.contains("GCM"));
    let server = Setup { preference: CipherPreference::Client, ..server };
    assert!(negotiated(&server, &offer).0.contains("CBC"));
}

#[test]
fn the_clients_group_order_decides_in_tls13() {
    let server = Setup { min: Version::Tls13, ..Setup::default() };
    let groups = |list: &str| CipherPolicy { groups: Some(list.to_owned()), ..Default::default() };
    let client = Setup { ciphers: groups("P-256:X25519"), ..server.clone() };
    let mut pair = Pair::between(&client, &server, None, false);
    pair.complete();
    assert_eq!(pair.server.facts().group, Some("P-256"), "no second round trip");
}

#[test]
fn rfc9113_appendix_a_http2_is_not_selected_with_prohibited_ciphers() {
    let alpn = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let server = with(&Setup { alpn, ..tls12() }, &format!("{GCM}:{CBC}"));
    assert_eq!(negotiated(&server, GCM).1.as_deref(), Some(&b"h2"[..]));
    assert_eq!(negotiated(&server, CBC).1.as_deref(), Some(&b"http/1.1"[..]));
    let server = Setup { max: Version::Tls13, ..server };
    assert_eq!(negotiated(&server, CBC).1.as_deref(), Some(&b"h2"[..]), "that is TLS 1.3");
    // The client offers HTTP/2 only.
    let only = Setup { alpn: vec![b"h2".to_vec()], max: Version::Tls12, ..server.clone() };
    let mut pair = Pair::between(&with(&only, CBC), &server, None, false);
    assert_eq!(pair.client.handshake().unwrap(), Progress::NeedsInput);
    pair.client_to_server();
    assert!(pair.server.handshake().is_err());
}
