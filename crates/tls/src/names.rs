use std::borrow::Cow;
use std::collections::HashMap;
use std::net::Ipv6Addr;

use crate::TlsError;

/// Things by host name: exact names, and `*.example.test` for all names with one label more. An
/// exact name comes first. Letters' case and a dot at the end do not count; names beyond ASCII are
/// given as clients send them (`xn--...`, RFC 5890).
#[derive(Clone, Debug)]
pub struct Names<T> {
    exact: HashMap<String, T>,
    /// What `*` stands before, without it and its dot.
    below: HashMap<String, T>,
}

impl<T> Names<T> {
    /// Adds a name.
    ///
    /// # Errors
    /// [`TlsError::BadHost`] for what is no name, [`TlsError::NameTwice`] for one that is there.
    pub fn add(&mut self, pattern: &str, value: T) -> Result<(), TlsError> {
        let (map, name) = match pattern.strip_prefix("*.") {
            Some(parent) => (&mut self.below, parent),
            None => (&mut self.exact, pattern),
        };
        let name = host_name(name).ok_or_else(|| TlsError::BadHost(pattern.to_owned()))?;
        match map.insert(name.into_owned(), value) {
            None => Ok(()),
            Some(_) => Err(TlsError::NameTwice(pattern.to_owned())),
        }
    }

    /// What is there for a name, or for an address.
    pub fn find(&self, name: &str) -> Option<&T> {
        let name = host_name(name)?;
        self.exact.get(&*name).or_else(|| {
            let (_, parent) = name.split_once('.')?;
            self.below.get(parent)
        })
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.below.is_empty()
    }
}

impl<T> Default for Names<T> {
    fn default() -> Self {
        Self { exact: HashMap::new(), below: HashMap::new() }
    }
}

/// A host name as names are compared: lower case, without the dot at the end. Addresses are names
/// here too, those of IPv6 without brackets. `None`: no such name can be.
pub fn host_name(raw: &str) -> Option<Cow<'_, str>> {
    if raw.contains(':') {
        return raw.parse::<Ipv6Addr>().ok().map(|address| Cow::Owned(address.to_string()));
    }
    let name = raw.strip_suffix('.').unwrap_or(raw);
    let sound = name.len() <= 253 && name.split('.').all(is_label);
    match name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        _ if !sound => None,
        true => Some(Cow::Owned(name.to_ascii_lowercase())),
        false => Some(Cow::Borrowed(name)),
    }
}

/// Underscores are in use, though not in host names (RFC 8553).
fn is_label(label: &str) -> bool {
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=63).contains(&label.len()) && label.bytes().all(sound)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names<u8> {
        let mut names = Names::default();
        for (pattern, value) in
            [("example.test", 1), ("*.example.test", 2), ("www.Example.test.", 3), ("::1", 4)]
        {
            names.add(pattern, value).unwrap();
        }
        names
    }

    #[test]
    fn exact_names_come_before_wildcards_of_one_label() {
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
            assert_eq!(names().find(name).copied(), found, "{name}");
        }
    }

    #[test]
    fn names_that_cannot_be_are_refused_and_so_are_those_that_are_there() {
        let long = "a".repeat(64);
        for name in ["", ".", "a..b", "bücher.test", "a b", "a/b", "*", "a.*.b", "**.a", &*long] {
            assert!(names().add(name, 0).is_err(), "{name}");
        }
        assert!(matches!(names().add("EXAMPLE.TEST", 0), Err(TlsError::NameTwice(_))));
        assert!(matches!(names().add("*.example.test", 0), Err(TlsError::NameTwice(_))));
    }
}
