//! Which requests may run from early data: by path and method, decided from the request alone.

use std::fmt;

use http::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::prefixes::{InvalidRulePath, PathMatch, Prefixes};

/// What may run from early data, from the strictest to the loosest mode: each allows what those
/// before it allow. The names are those of Google's load balancer.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Nothing.
    Disabled,
    /// Safe methods (RFC 9110 section 9.2.1) without a query.
    Strict,
    /// Safe methods (RFC 8470 section 4).
    Permissive,
    /// Idempotent methods: safe ones, PUT and DELETE (RFC 9110 section 9.2.2). Only where it does
    /// no harm that such a request is repeated after a later one.
    Idempotent,
    /// Every request. Only for applications that recognize repeated requests: the server prevents
    /// that a flight is executed twice, but not that a client sends a request twice.
    Unrestricted,
}

/// Modes by path. The rule with the longest prefix of the path, by whole segments, decides; without
/// a rule, the default.
///
/// A path that servers interpret differently (encoded slashes or dots, dot segments, empty
/// segments, backslashes, parameters, double encoding, different case) gets the strictest mode of
/// all rules, so that its spelling cannot bypass one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    default: Mode,
    rules: Prefixes<Mode>,
    strictest: Mode,
}

/// What happens to an early request that may not run early.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum WhenNotAllowed {
    /// It waits for the end of its handshake, one round trip that the client does not notice.
    #[default]
    #[serde(rename = "hold")]
    Hold,
    /// It gets 425 (Too Early), and the client sends it again (RFC 8470 section 5.2).
    #[serde(rename = "425")]
    TooEarly,
}

impl Mode {
    /// All modes, from the strictest to the loosest.
    pub const ALL: [Self; 5] =
        [Self::Disabled, Self::Strict, Self::Permissive, Self::Idempotent, Self::Unrestricted];

    /// Whether a request with this method and query may run from early data.
    pub fn allows(self, method: &Method, query: Option<&str>) -> bool {
        match self {
            Self::Disabled => false,
            Self::Strict => method.is_safe() && query.is_none(),
            Self::Permissive => method.is_safe(),
            Self::Idempotent => method.is_idempotent(),
            Self::Unrestricted => true,
        }
    }
}

impl Policy {
    /// A policy with one mode for all requests.
    pub fn new(default: Mode) -> Self {
        Self { default, rules: Prefixes::default(), strictest: default }
    }

    /// Adds a rule for `path` and everything below it, replacing one for the same path.
    ///
    /// # Errors
    /// [`InvalidRulePath`].
    pub fn rule(mut self, path: &str, mode: Mode) -> Result<Self, InvalidRulePath> {
        self.rules.insert(path, mode)?;
        self.strictest = self.rules.values().copied().fold(self.default, Mode::min);
        Ok(self)
    }

    /// The mode of paths without a rule.
    pub fn default_mode(&self) -> Mode {
        self.default
    }

    /// The rules in the order in which they were added; paths are decoded and have no trailing
    /// slash.
    pub fn rules(&self) -> impl Iterator<Item = (String, Mode)> {
        self.rules.iter().map(|(path, mode)| (path, *mode))
    }

    /// The mode of a request path (still percent-encoded).
    pub fn mode(&self, path: &str) -> Mode {
        match self.rules.find(path) {
            PathMatch::Unique(rule) => rule.copied().unwrap_or(self.default),
            PathMatch::CaseDependent(_) | PathMatch::Ambiguous => self.strictest,
        }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self::new(Mode::Permissive)
    }
}

impl fmt::Display for Mode {
    /// Writes the name that the configuration uses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn policy() -> Policy {
        Policy::new(Mode::Permissive)
            .rule("/api", Mode::Disabled)
            .and_then(|policy| policy.rule("/api/status", Mode::Permissive))
            .and_then(|policy| policy.rule("/search/", Mode::Strict))
            .unwrap()
    }

    #[test]
    fn the_longest_prefix_by_whole_segments_decides() {
        let policy = policy();
        for (path, mode) in [
            ("/", Mode::Permissive),
            ("/index.html", Mode::Permissive),
            ("/api", Mode::Disabled),
            ("/api/", Mode::Disabled),
            ("/api/orders", Mode::Disabled),
            ("/apis", Mode::Permissive),
            ("/api/status", Mode::Permissive),
            ("/api/status/now", Mode::Permissive),
            ("/api/statuses", Mode::Disabled),
            ("/search", Mode::Strict),
            ("/a%20b/caf%C3%A9", Mode::Permissive),
        ] {
            assert_eq!(policy.mode(path), mode, "{path}");
        }
    }

    #[test]
    fn no_spelling_bypasses_a_rule() {
        for path in [
            "/x/../api/orders",
            "/x/%2e%2e/api/orders",
            "/x/.%2E/api",
            "/./api",
            "//api",
            "/x//api",
            "/%61pi/orders",
            "/api%2forders",
            "/x%2f..%2fapi",
            "/x/..%5capi",
            "/x\\..\\api",
            "/%2561pi",
            "/x;/../api",
            "/x/..;/api",
            "/api;v=1/orders",
            "/API/orders",
            "/aPi",
            "/%00/api",
            "/%ff/api",
            "/%zz/api",
            "*",
            "",
            "/api/status/../orders",
            "/api/status/%2e%2e/orders",
        ] {
            assert_eq!(policy().mode(path), Mode::Disabled, "{path}");
        }
    }

    #[test]
    fn without_rules_every_spelling_has_the_default() {
        assert_eq!(Policy::default().mode("/x/../%2e%2e"), Mode::Permissive);
    }

    #[test]
    fn rfc8470_4_only_safe_methods_by_default() {
        let default = Policy::default().mode("/");
        for method in [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE] {
            assert!(default.allows(&method, Some("q=1")), "{method}");
        }
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::PATCH] {
            assert!(!default.allows(&method, None), "{method}");
        }
        assert!(Mode::Strict.allows(&Method::GET, None));
        assert!(!Mode::Strict.allows(&Method::GET, Some("")));
        assert!(!Mode::Disabled.allows(&Method::GET, None));
        assert!(Mode::Unrestricted.allows(&Method::POST, None));
    }

    #[test]
    fn rfc9110_9_2_2_idempotent_methods() {
        for method in [Method::GET, Method::HEAD, Method::OPTIONS, Method::PUT, Method::DELETE] {
            assert!(Mode::Idempotent.allows(&method, Some("q=1")), "{method}");
        }
        for method in [Method::POST, Method::PATCH, Method::CONNECT] {
            assert!(!Mode::Idempotent.allows(&method, None), "{method}");
        }
        assert_eq!(Mode::Idempotent.to_string(), "idempotent");
    }

    #[test]
    fn a_looser_mode_allows_all_requests_of_a_stricter_mode() {
        assert!(Mode::ALL.is_sorted());
        let methods = [
            Method::GET,
            Method::HEAD,
            Method::OPTIONS,
            Method::TRACE,
            Method::PUT,
            Method::DELETE,
            Method::POST,
            Method::PATCH,
            Method::CONNECT,
        ];
        for modes in Mode::ALL.windows(2) {
            for method in &methods {
                for query in [None, Some("q=1")] {
                    let [stricter, looser] = [0, 1].map(|at| modes[at].allows(method, query));
                    assert!(looser || !stricter, "{modes:?} {method} {query:?}");
                }
            }
        }
    }

    #[test]
    fn rules_that_never_match_are_refused() {
        for path in ["api", "/a/../b", "/a%20b", "/a?b", "", "/a//b", "/a;b"] {
            assert!(Policy::default().rule(path, Mode::Disabled).is_err(), "{path}");
        }
    }

    proptest! {
        #[test]
        fn every_encoding_of_a_path_below_a_rule_is_under_the_rule(
            tail in "[ -~]{0,20}",
            spell in prop::collection::vec(0u8..3, 3),
        ) {
            let api: String = "api"
                .bytes()
                .zip(spell)
                .map(|(byte, how)| match how {
                    0 => (byte as char).to_string(),
                    1 => format!("%{byte:02x}"),
                    _ => format!("%{byte:02X}"),
                })
                .collect();
            let policy = Policy::new(Mode::Permissive).rule("/api", Mode::Disabled).unwrap();
            prop_assert_eq!(policy.mode(&format!("/{api}/{tail}")), Mode::Disabled);
        }
    }
}
