//! Names that a certificate can be issued for.

use std::net::IpAddr;

use firstflight_tls::normalize_host;
use sha2::{Digest as _, Sha256};

use crate::acme::AcmeError;

/// Normalizes names: lower case, without a trailing dot, each once.
///
/// # Errors
/// [`AcmeError::Names`] with the first name that `tls-alpn-01` and `http-01` cannot validate.
pub fn certificate_names(names: &[String]) -> Result<Vec<String>, AcmeError> {
    let mut valid = Vec::new();
    for name in names {
        let refuse = |reason| AcmeError::Names { name: name.clone(), reason };
        if name.starts_with("*.") {
            return Err(refuse(
                "a wildcard needs the challenge dns-01, which is not supported; name each host, or \
                 use a certificate from files",
            ));
        }
        if name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() {
            return Err(refuse(
                "it is an address; give host names, or use a certificate from files",
            ));
        }
        let plain = normalize_host(name).filter(|name| !name.contains(['_', ':']));
        let plain = plain.ok_or_else(|| {
            refuse("it is not a host name; write names beyond ASCII in their DNS form (xn--...)")
        })?;
        if !valid.iter().any(|name| *name == plain) {
            valid.push(plain.into_owned());
        }
    }
    match valid.len() {
        0 => Err(AcmeError::Names { name: String::new(), reason: "a site has to have a name" }),
        1..=MAX_NAMES => Ok(valid),
        _ => Err(AcmeError::Names {
            name: valid.swap_remove(MAX_NAMES),
            reason: "a certificate has 100 names at most; split them over several sites",
        }),
    }
}

/// The label under which a certificate is stored: readable, and different for each set of names.
pub(crate) fn label(names: &[String]) -> String {
    let mut sorted: Vec<_> = names.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    let shortest = sorted.iter().min_by_key(|name| name.len()).copied().unwrap_or_default();
    digest_label(shortest, &sorted.join("\n"))
}

/// `readable`, shortened, and eight hex digits of the digest of `all`.
pub(crate) fn digest_label(readable: &str, all: &str) -> String {
    let hash = Sha256::digest(all.as_bytes());
    let digits: String = hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let safe = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
    let readable: String = readable.chars().filter(safe).take(100).collect();
    format!("{}-{digits}", readable.trim_start_matches('.'))
}

/// The limit of Let's Encrypt and most others.
const MAX_NAMES: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn names_are_normalized() {
        let configured = names(&["Example.org.", "www.example.org", "example.org"]);
        assert_eq!(certificate_names(&configured).unwrap(), ["example.org", "www.example.org"]);
    }

    #[test]
    fn names_without_a_possible_certificate_are_refused() {
        let long = "a".repeat(64);
        for (name, word) in [
            ("*.example.org", "dns-01"),
            ("192.0.2.1", "address"),
            ("::1", "address"),
            ("[::1]", "address"),
            ("", "not a host name"),
            ("a_b.example.org", "not a host name"),
            ("b\u{fc}cher.example", "xn--"),
            ("a b", "not a host name"),
            (long.as_str(), "not a host name"),
        ] {
            let error = certificate_names(&names(&["ok.example.org", name])).unwrap_err();
            assert!(error.to_string().contains(word), "{name}: {error}");
        }
        assert!(certificate_names(&[]).is_err());
        let many: Vec<_> = (0..101).map(|n| format!("n{n}.example.org")).collect();
        assert!(certificate_names(&many).unwrap_err().to_string().contains("n100"));
    }

    #[test]
    fn labels_tell_sets_of_names_apart() {
        let one = label(&names(&["example.org", "www.example.org"]));
        assert!(one.starts_with("example.org-") && !one.contains('/'));
        assert_ne!(one, label(&names(&["example.org"])));
        assert_eq!(digest_label("../../x", "").split('-').next(), Some("x"));
        assert!(label(&names(&[&"a.".repeat(120)])).len() < 120);
    }

    #[test]
    fn the_order_of_names_does_not_count() {
        let (one, other) =
            (names(&["a.test", "b.test", "c.test"]), names(&["c.test", "a.test", "b.test"]));
        assert_eq!(label(&one), label(&other));
    }
}
