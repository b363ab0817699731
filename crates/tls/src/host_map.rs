//! Host names: maps keyed by names and wildcards, and the names of certificates.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::Ipv6Addr;

use boring::x509::X509Ref;

use crate::TlsError;

/// A map from host names. Keys are exact names and wildcards: `*.example.test` matches all names
/// with one more label. Exact names take precedence. Case and a trailing dot are ignored.
/// Internationalized names are in the form that clients send (`xn--...`, RFC 5890).
#[derive(Clone, Debug)]
pub struct HostMap<T> {
    exact: HashMap<String, T>,
    /// Keyed by what follows `*.`.
    wildcards: HashMap<String, T>,
}

impl<T> HostMap<T> {
    /// Adds a name.
    ///
    /// # Errors
    /// [`TlsError::BadHost`] if it is not a valid name, [`TlsError::DuplicateName`] if it was added
    /// before.
    pub fn add(&mut self, pattern: &str, value: T) -> Result<(), TlsError> {
        let (map, name) = match pattern.strip_prefix("*.") {
            Some(parent) => (&mut self.wildcards, parent),
            None => (&mut self.exact, pattern),
        };
        let name = normalize_host(name).ok_or_else(|| TlsError::BadHost(pattern.to_owned()))?;
        match map.insert(name.into_owned(), value) {
            None => Ok(()),
            Some(_) => Err(TlsError::DuplicateName(pattern.to_owned())),
        }
    }

    /// Returns the value for a host name or address.
    pub fn get(&self, name: &str) -> Option<&T> {
        let name = normalize_host(name)?;
        self.exact.get(&*name).or_else(|| {
            let (_, parent) = name.split_once('.')?;
            self.wildcards.get(parent)
        })
    }

    /// Whether the map is empty.
    pub fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.wildcards.is_empty()
    }
}

impl<T> Default for HostMap<T> {
    fn default() -> Self {
        Self { exact: HashMap::new(), wildcards: HashMap::new() }
    }
}

/// Normalizes a host name for comparison: lower case, without a trailing dot. Addresses are allowed
/// too, IPv6 without brackets. Returns `None` if the name is invalid.
pub fn normalize_host(raw: &str) -> Option<Cow<'_, str>> {
    let name = raw.strip_suffix('.').unwrap_or(raw);
    let (mut label_length, mut has_upper_case) = (0, false);
    for byte in name.bytes() {
        match byte {
            // Underscores are in use, although host names must not have them (RFC 8553).
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => label_length += 1,
            b'A'..=b'Z' => (label_length, has_upper_case) = (label_length + 1, true),
            b'.' if (1..=MAX_LABEL_BYTES).contains(&label_length) => label_length = 0,
            b':' => return raw.parse::<Ipv6Addr>().ok().map(|ip| Cow::Owned(ip.to_string())),
            _ => return None,
        }
    }
    let is_valid = name.len() <= MAX_NAME_BYTES && (1..=MAX_LABEL_BYTES).contains(&label_length);
    is_valid.then(|| match has_upper_case {
        true => Cow::Owned(name.to_ascii_lowercase()),
        false => Cow::Borrowed(name),
    })
}

/// The DNS names of a certificate (RFC 5280 section 4.2.1.6), in lower case.
pub(crate) fn dns_names(certificate: &X509Ref) -> Vec<String> {
    let names = certificate.subject_alt_names();
    let names = names.iter().flatten().filter_map(|name| name.dnsname());
    names.map(str::to_ascii_lowercase).collect()
}

/// RFC 1035 section 2.3.4.
const MAX_LABEL_BYTES: usize = 63;
const MAX_NAME_BYTES: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> HostMap<u8> {
        let mut names = HostMap::default();
        for (pattern, value) in
            [("example.test", 1), ("*.example.test", 2), ("www.Example.test.", 3), ("::1", 4)]
        {
            names.add(pattern, value).unwrap();
        }
        names
    }

    #[test]
    fn exact_names_take_precedence_and_wildcards_match_one_label() {
        for (name, found) in [
            ("example.test", Some(1)),
            ("EXAMPLE.test.", Some(1)),
            ("a.example.test", Some(2)),
            ("www.example.test", Some(3)),
            ("a.b.example.test", None),
            (".example.test", None),
            ("notexample.test", None),
            ("test", None),
            ("", None),
            ("0:0::1", Some(4)),
            ("xn--bcher-kva.example.test", Some(2)),
        ] {
            assert_eq!(names().get(name).copied(), found, "{name}");
        }
    }

    #[test]
    fn invalid_and_duplicate_names_are_refused() {
        let long = "a".repeat(64);
        for name in ["", ".", "a..b", "bücher.test", "a b", "a/b", "*", "a.*.b", "**.a", &*long] {
            assert!(names().add(name, 0).is_err(), "{name}");
        }
        assert!(matches!(names().add("EXAMPLE.TEST", 0), Err(TlsError::DuplicateName(_))));
        assert!(matches!(names().add("*.example.test", 0), Err(TlsError::DuplicateName(_))));
    }
}
