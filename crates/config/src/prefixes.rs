//! Things by path: the longest path that is a prefix of the request's, by whole segments.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// Things by path. One implementation decides for routes and for what may run early, so that both
/// read a path alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefixes<T>(Vec<Entry<T>>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry<T> {
    segments: Vec<String>,
    /// The same in lower case.
    folded: Vec<String>,
    value: T,
}

/// What is there for a path as a request has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found<'a, T> {
    /// This; `None`: no path is a prefix.
    Clear(Option<&'a T>),
    /// This, but something else for servers that take `/A` and `/a` for one.
    ButForCase(Option<&'a T>),
    /// Servers disagree on what this path is: encoded slashes or dots, dot segments, empty
    /// segments, backslashes, parameters, a double encoding, no text.
    Unclear,
}

/// A path for a rule or a route that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no path for a rule; allowed are paths such as \"/api\" or \"/shop/orders\": decoded, \
     from the root, without a query, empty or dot segments, backslashes or semicolons"
)]
pub struct BadRulePath(pub String);

impl<T> Prefixes<T> {
    /// Puts something under a path and all below it, and gives back what was there under the very
    /// same.
    ///
    /// # Errors
    /// [`BadRulePath`].
    pub fn insert(&mut self, path: &str, value: T) -> Result<Option<T>, BadRulePath> {
        let bad = || BadRulePath(path.to_owned());
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

    /// What is there for a path as the request has it (still percent-encoded).
    pub fn find(&self, path: &str) -> Found<'_, T> {
        if self.0.is_empty() {
            return Found::Clear(None);
        }
        let Some(segments) = segments(path) else { return Found::Unclear };
        let exact = self.longest(&segments, |entry| &entry.segments);
        let folded: Vec<_> =
            segments.iter().map(|segment| Cow::<str>::Owned(segment.to_lowercase())).collect();
        let found = exact.map(|at| &self.0[at].value);
        match self.longest(&folded, |entry| &entry.folded) == exact {
            true => Found::Clear(found),
            false => Found::ButForCase(found),
        }
    }

    /// What is there for every path: it lies under `/`, and nothing else is there.
    pub fn only_root(&self) -> Option<&T> {
        match &*self.0 {
            [entry] if entry.segments.is_empty() => Some(&entry.value),
            _ => None,
        }
    }

    /// All of them, as they were put in.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|entry| &entry.value)
    }

    /// All of them with their paths, decoded and without a slash at the end.
    pub fn iter(&self) -> impl Iterator<Item = (String, &T)> {
        self.0.iter().map(|entry| (format!("/{}", entry.segments.join("/")), &entry.value))
    }

    fn longest(&self, path: &[Cow<'_, str>], of: fn(&Entry<T>) -> &Vec<String>) -> Option<usize> {
        let prefixes = self.0.iter().enumerate().filter(|(_, entry)| {
            let segments = of(entry);
            segments.len() <= path.len() && segments.iter().zip(path).all(|(ours, its)| ours == its)
        });
        // The first of two that differ in case alone.
        prefixes.rev().max_by_key(|(_, entry)| entry.segments.len()).map(|(at, _)| at)
    }
}

impl<T> Default for Prefixes<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// The decoded segments of a path, or `None` if servers may read it differently. A slash at the
/// end does not count.
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
    // A percent sign that is left was encoded itself, or stood before no two hex digits.
    let clear = !decoded.is_empty()
        && decoded != "."
        && decoded != ".."
        && !decoded.contains(['/', '\\', '%', ';'])
        && !decoded.contains(char::is_control);
    clear.then_some(decoded)
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
            assert_eq!(prefixes.find(path), Found::Clear(Some(&found)), "{path}");
        }
    }

    #[test]
    fn case_and_unclear_paths_are_told_apart() {
        let rules = prefixes(&["/a"]);
        assert_eq!(rules.find("/A"), Found::ButForCase(None));
        assert_eq!(rules.find("/b"), Found::Clear(None));
        for path in ["/x/../a", "//a", "/a%2fb", "/%61;v", "/%2561", "*", "", "/\\a", "/%ff"] {
            assert_eq!(rules.find(path), Found::Unclear, "{path}");
        }
        let both = prefixes(&["/a", "/A"]);
        assert_eq!(both.find("/A/x"), Found::ButForCase(Some(&"/A")));
    }

    #[test]
    fn the_same_path_replaces_itself() {
        let mut rules = prefixes(&["/a"]);
        assert_eq!(rules.insert("/a/", "again"), Ok(Some("/a")));
        assert_eq!(rules.find("/a"), Found::Clear(Some(&"again")));
    }
}
