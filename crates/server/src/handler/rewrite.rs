//! Replaces a route's path, at the start of a request's path, by another prefix.

/// Replaces the route's path.
#[derive(Clone, Debug)]
pub(crate) struct Rewrite {
    /// The number of segments of the route's path.
    segments: usize,
    /// What replaces them, without a slash at the end.
    prefix: Box<str>,
}

impl Rewrite {
    /// `route`: the route's path. `prefix`: what replaces it, percent-encoded; a URL for a redirect.
    pub(crate) fn new(route: &str, prefix: &str) -> Self {
        let segments = route.split('/').filter(|segment| !segment.is_empty()).count();
        Self { segments, prefix: prefix.trim_end_matches('/').into() }
    }

    /// The new target of a request whose path matches the route and is not ambiguous, so its
    /// segments are those that the route was found by, however they are encoded.
    pub(crate) fn apply(&self, path: &str, query: Option<&str>) -> String {
        let mut rest = path;
        for _ in 0..self.segments {
            let below = rest.strip_prefix('/').unwrap_or(rest);
            rest = &below[below.find('/').unwrap_or(below.len())..];
        }
        let mut target = String::with_capacity(self.prefix.len() + path.len() + 1);
        target.push_str(&self.prefix);
        target.push_str(rest);
        if !target.contains('/') || (rest.is_empty() && self.prefix.is_empty()) {
            target.push('/');
        }
        if let Some(query) = query {
            target.push('?');
            target.push_str(query);
        }
        target
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_routes_path_is_replaced_in_each_spelling() {
        for (route, prefix, path, expected) in [
            ("/app", "/", "/app", "/"),
            ("/app", "/", "/app/", "/"),
            ("/app", "/", "/%61pp/x%20y/", "/x%20y/"),
            ("/app/", "/v2/", "/app/x", "/v2/x"),
            ("/a/b", "/c", "/a/b/d", "/c/d"),
            ("/", "/base", "/x", "/base/x"),
            ("/", "/base", "/", "/base/"),
            ("/", "https://b.test", "/x", "https://b.test/x"),
            ("/old", "https://b.test/new/", "/old/x", "https://b.test/new/x"),
            ("/old", "https://b.test", "/old", "https://b.test"),
        ] {
            assert_eq!(Rewrite::new(route, prefix).apply(path, None), expected, "{route} {path}");
        }
        assert_eq!(Rewrite::new("/app", "/").apply("/app", Some("a=b?c")), "/?a=b?c");
        assert_eq!(Rewrite::new("/app", "/").apply("/app/x", Some("")), "/x?");
    }
}
