//! Names that a certificate can be had for.

use std::net::IpAddr;

use firstflight_tls::normalize_host;
use sha2::{Digest as _, Sha256};

use crate::acme::AcmeError;

/// The names as certificates have them, each once: lower case, without a dot at the end.
///
/// # Errors
/// [`AcmeError::Names`] with the first name that cannot be had by `tls-alpn-01` or `http-01`.
pub fn certificate_names(names: &[String]) -> Result<Vec<String>, AcmeError> {
    let mut sound = Vec::new();
    for name in names {
        let refuse = |reason| AcmeError::Names { name: name.clone(), reason };
        if name.starts_with("*.") {
            return Err(refuse(
                "a wildcard needs the challenge dns-01, which is not supported; name each host, or \
                 give a certificate by files",
            ));
        }
        if name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() {
            return Err(refuse("it is an address; give host names, or a certificate by files"));
        }
        let plain = normalize_host(name).filter(|name| !name.contains(['_', ':']));
        let plain = plain.ok_or_else(|| {
            refuse("it is no host name; beyond ASCII, write it as DNS has it (xn--...)")
        })?;
        if !sound.iter().any(|name| *name == plain) {
            sound.push(plain.into_owned());
        }
    }
    match sound.len() {
        0 => Err(AcmeError::Names { name: String::new(), reason: "a site has to have a name" }),
        1..=MAX_NAMES => Ok(sound),
        _ => Err(AcmeError::Names {
            name: sound.swap_remove(MAX_NAMES),
            reason: "a certificate has 100 names at most; make several sites of them",
        }),
    }
}

/// What certificates of these names are kept under: readable, and different for each set of names.
pub(crate) fn label(names: &[String]) -> String {
    let mut sorted: Vec<_> = names.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    let shortest = sorted.iter().min_by_key(|name| name.len()).copied().unwrap_or_default();
    labelled(shortest, &sorted.join("\n"))
}

/// `readable`, shortened, and eight digits that stand for `all`.
pub(crate) fn labelled(readable: &str, all: &str) -> String {
    let hash = Sha256::digest(all.as_bytes());
    let digits: String = hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let safe = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
    let readable: String = readable.chars().filter(safe).take(100).collect();
    format!("{}-{digits}", readable.trim_start_matches('.'))
}

/// As Let's Encrypt and most others have it.
const MAX_NAMES: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn names_are_brought_into_one_form() {
        let given = names(&["Example.org.", "www.example.org", "example.org"]);
        assert_eq!(certificate_names(&given).unwrap(), ["example.org", "www.example.org"]);
    }

    #[test]
    fn what_cannot_be_had_is_named() {
        let long = "a".repeat(64);
        for (name, word) in [
            ("*.example.org", "dns-01"),
            ("192.0.2.1", "address"),
            ("::1", "address"),
            ("[::1]", "address"),
            ("", "no host name"),
            ("a_b.example.org", "no host name"),
            ("b\u{fc}cher.example", "xn--"),
            ("a b", "no host name"),
            (long.as_str(), "no host name"),
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
        assert_eq!(labelled("../../x", "").split('-').next(), Some("x"));
        assert!(label(&names(&[&"a.".repeat(120)])).len() < 120);
    }

    #[test]
    fn the_order_of_names_does_not_count() {
        let (one, other) =
            (names(&["a.test", "b.test", "c.test"]), names(&["c.test", "a.test", "b.test"]));
        assert_eq!(label(&one), label(&other));
    }
}
