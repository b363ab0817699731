//! TLS-ALPN-01 (RFC 8737): the response to an authority that validates a name.

use std::sync::Arc;

use firstflight_tls::{ACME_TLS_ALPN, ChallengeCertificates, Identity, TlsError, Trust, Version};

use crate::support::{Pair, Setup};

/// Responds for `name.test`, with the certificate in `response.pem`.
struct Pending(Identity);

impl ChallengeCertificates for Pending {
    fn certificate(&self, server_name: &str) -> Option<Identity> {
        (server_name == "name.test").then(|| self.0.clone())
    }
}

/// A server for HTTP with a pending challenge, and an authority that validates it.
fn setups(directory: &std::path::Path) -> (Setup, Setup) {
    let made = rcgen::generate_simple_self_signed(vec!["name.test".to_owned()]).unwrap();
    let file = directory.join("response.pem");
    std::fs::write(&file, made.cert.pem()).unwrap();
    let key = made.signing_key.serialize_pem();
    let identity = Identity::from_pem(made.cert.pem().as_bytes(), key.as_bytes()).unwrap();
    let server = Setup {
        alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        challenges: Some(Arc::new(Pending(identity))),
        host: "name.test".to_owned(),
        ..Setup::default()
    };
    let authority =
        Setup { alpn: vec![ACME_TLS_ALPN.to_vec()], trust: Trust::File(file), ..server.clone() };
    (server, authority)
}

#[test]
fn rfc8737_3_a_client_that_offers_only_acme_tls_gets_the_challenge_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let (server, authority) = setups(directory.path());
    for version in [Version::Tls12, Version::Tls13] {
        let authority = Setup { max: version, ..authority.clone() };
        let mut pair = Pair::between(&authority, &server, None, false);
        // The authority trusts only the challenge certificate, so the server has sent that one.
        pair.complete();
        assert_eq!(pair.server.facts().alpn.as_deref(), Some(ACME_TLS_ALPN), "{version}");
        assert_eq!(pair.client.facts().alpn.as_deref(), Some(ACME_TLS_ALPN), "{version}");
        assert_eq!(pair.server.facts().server_name.as_deref(), Some("name.test"));
        assert!(pair.sessions().is_empty(), "{version}: a ticket");
    }
}

#[test]
fn rfc8737_3_without_a_pending_challenge_no_application_protocol_is_selected() {
    let directory = tempfile::tempdir().unwrap();
    let (server, authority) = setups(directory.path());
    let none = Setup { challenges: None, ..server.clone() };
    let cases = [(&server, "other.test"), (&server, "192.0.2.1"), (&none, "name.test")];
    for version in [Version::Tls12, Version::Tls13] {
        for (server, host) in cases {
            let authority = Setup {
                max: version,
                host: host.to_owned(),
                trust: Trust::Anyone,
                ..authority.clone()
            };
            let error = Pair::between(&authority, server, None, false).fails_on_client();
            let message = error.to_string();
            assert!(matches!(error, TlsError::Handshake(_)), "{message}");
            assert!(message.contains("no application protocol"), "{version} {host}: {message}");
        }
    }
}

#[test]
fn other_clients_get_the_sites_certificate_while_a_challenge_is_pending() {
    let directory = tempfile::tempdir().unwrap();
    let (server, authority) = setups(directory.path());
    let both = vec![ACME_TLS_ALPN.to_vec(), b"h2".to_vec()];
    for alpn in [vec![b"h2".to_vec()], both, Vec::new()] {
        let client = Setup { alpn, ..authority.clone() };
        let error = Pair::between(&client, &server, None, false).fails_on_client();
        assert!(matches!(error, TlsError::Certificate(_)), "{error}");
        let client = Setup { trust: Trust::Anyone, ..client };
        let mut pair = Pair::between(&client, &server, None, false);
        pair.complete();
        assert_ne!(pair.server.facts().alpn.as_deref(), Some(ACME_TLS_ALPN));
    }
}

#[test]
fn a_sites_session_is_not_resumed_in_a_challenge() {
    let directory = tempfile::tempdir().unwrap();
    let (server, authority) = setups(directory.path());
    for version in [Version::Tls12, Version::Tls13] {
        let authority = Setup { max: version, ..authority.clone() };
        let session = Setup { max: version, ..server.clone() }.session();
        let mut pair = Pair::between(&authority, &server, Some(session), false);
        pair.complete();
        assert!(!pair.server.facts().resumed, "{version}");
    }
}
