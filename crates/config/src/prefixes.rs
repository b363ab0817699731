//! Values by path prefix: the longest prefix of a request's path, by whole segments.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// Values by path prefix. Routes and the early-data policy both use it, so that they interpret
/// paths alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefixes<T>(Vec<Entry<T>>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry<T> {
    segments: Vec<String>,
    /// The segments in lower case.
    folded: Vec<String>,
    value: T,
}

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathMatch<'a, T> {
    /// All servers find this value. `None`: no prefix matches.
    Unique(Option<&'a T>),
    /// This value, but servers that ignore case find another one.
    CaseDependent(Option<&'a T>),
    /// Servers interpret this path differently: encoded slashes or dots, dot segments, empty
    /// segments, backslashes, parameters, double encoding, not UTF-8.
    Ambiguous,
}

/// A path that cannot be used for a rule or route.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a path for a rule; examples are \"/api\" or \"/shop/orders\": decoded, \
     from the root, without a query, empty or dot segments, backslashes or semicolons"
)]
pub struct InvalidRulePath(pub String);

impl<T> Prefixes<T> {
    /// Inserts a value for a path and everything below it. Returns the previous value of the same
    /// path.
    ///
    /// # Errors
    /// [`InvalidRulePath`].
    pub fn insert(&mut self, path: &str, value: T) -> Result<Option<T>, InvalidRulePath> {
        let bad = || InvalidRulePath(path.to_owned());
        if path.contains(['%', '?', '#']) {
            return Err(bad());
        }
        let segments: Vec<String> =
            segments(path).ok_or_else(bad)?.into_iter().map(Cow::into_owned).collect();
        if let Some(entry) = self.0.iter_mut().find(|entry| entry.segments == segments) {
            return Ok(Some(std::mem::replace(&mut entry.value, value)));
        }
        let folded = segments.iter().map(|segment| segment.to_lowercase()).collect();
        self.0.push(Entry { segments, folded, value });
        Ok(None)
    }

    /// Looks up a request path (still percent-encoded).
    pub fn find(&self, path: &str) -> PathMatch<'_, T> {
        if self.0.is_empty() {
            return PathMatch::Unique(None);
        }
        let Some(segments) = segments(path) else { return PathMatch::Ambiguous };
        let exact = self.longest(&segments, |entry| &entry.segments);
        let folded: Vec<_> =
            segments.iter().map(|segment| Cow::<str>::Owned(segment.to_lowercase())).collect();
        let found = exact.map(|at| &self.0[at].value);
        match self.longest(&folded, |entry| &entry.folded) == exact {
            true => PathMatch::Unique(found),
            false => PathMatch::CaseDependent(found),
        }
    }

    /// The value of every path, if `/` is the only prefix.
    pub fn only_root(&self) -> Option<&T> {
        match &*self.0 {
            [entry] if entry.segments.is_empty() => Some(&entry.value),
            _ => None,
        }
    }

    /// All values in the order of insertion.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|entry| &entry.value)
    }

    /// All paths, decoded and without a trailing slash, with their values.
    pub fn iter(&self) -> impl Iterator<Item = (String, &T)> {
        self.0.iter().map(|entry| (format!("/{}", entry.segments.join("/")), &entry.value))
    }

    fn longest(
        &self,
        path: &[Cow<'_, str>],
        segments_of: fn(&Entry<T>) -> &Vec<String>,
    ) -> Option<usize> {
        let prefixes = self.0.iter().enumerate().filter(|(_, entry)| {
            let prefix = segments_of(entry);
            prefix.len() <= path.len() && prefix.iter().zip(path).all(|(a, b)| a == b)
        });
        // Of two that differ only in case, the first one.
        prefixes.rev().max_by_key(|(_, entry)| entry.segments.len()).map(|(at, _)| at)
    }
}

impl<T> Default for Prefixes<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// The decoded segments of a path, or `None` if servers may interpret it differently. A trailing
/// slash is ignored.
fn segments(path: &str) -> Option<Vec<Cow<'_, str>>> {
    let path = path.strip_prefix('/')?;
    let path = path.strip_suffix('/').unwrap_or(path);
    if path.is_empty() {
        return Some(Vec::new());
    }
    path.split('/').map(segment).collect()
}

fn segment(raw: &str) -> Option<Cow<'_, str>> {
    let decoded = percent_decode_str(raw).decode_utf8().ok()?;
    // A remaining percent sign was encoded itself, or is not followed by two hex digits.
    let unambiguous = !decoded.is_empty()
        && decoded != "."
        && decoded != ".."
        && !decoded.contains(['/', '\\', '%', ';'])
        && !decoded.contains(char::is_control);
    unambiguous.then_some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefixes(paths: &[&'static str]) -> Prefixes<&'static str> {
        let mut prefixes = Prefixes::default();
        for &path in paths {
            assert_eq!(prefixes.insert(path, path), Ok(None));
        }
        prefixes
    }

    #[test]
    fn the_longest_by_whole_segments_is_found() {
        let prefixes = prefixes(&["/a", "/", "/a/b c", "/a/b"]);
        for (path, found) in [
            ("/", "/"),
            ("/a", "/a"),
            ("/a/", "/a"),
            ("/ab", "/"),
            ("/a/bc", "/a"),
            ("/a/b%20c/d", "/a/b c"),
            ("/a/%62", "/a/b"),
        ] {
            assert_eq!(prefixes.find(path), PathMatch::Unique(Some(&found)), "{path}");
        }
    }

    #[test]
    fn case_dependent_and_ambiguous_paths_are_reported() {
        let rules = prefixes(&["/a"]);
        assert_eq!(rules.find("/A"), PathMatch::CaseDependent(None));
        assert_eq!(rules.find("/b"), PathMatch::Unique(None));
        for path in ["/x/../a", "//a", "/a%2fb", "/%61;v", "/%2561", "*", "", "/\\a", "/%ff"] {
            assert_eq!(rules.find(path), PathMatch::Ambiguous, "{path}");
        }
        let both = prefixes(&["/a", "/A"]);
        assert_eq!(both.find("/A/x"), PathMatch::CaseDependent(Some(&"/A")));
    }

    #[test]
    fn the_same_path_replaces_itself() {
        let mut rules = prefixes(&["/a"]);
        assert_eq!(rules.insert("/a/", "again"), Ok(Some("/a")));
        assert_eq!(rules.find("/a"), PathMatch::Unique(Some(&"again")));
    }
}
