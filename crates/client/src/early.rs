use firstflight_tls::TlsError;
use http::{Method, StatusCode};

/// Which requests may travel as early data, where whoever records the first flight can have it
/// run again (RFC 8446 section 8, RFC 8470 section 4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EarlyPolicy {
    /// None.
    #[default]
    Never,
    /// Those with a safe method.
    SafeMethods,
    /// All: the caller knows that running one twice does no harm.
    AnyMethod,
}

impl EarlyPolicy {
    /// Whether a request with this method may be early data.
    pub fn allows(self, method: &Method) -> bool {
        match self {
            Self::Never => false,
            Self::SafeMethods => is_safe(method),
            Self::AnyMethod => true,
        }
    }
}

/// Whether a method is safe: asks, and changes nothing (RFC 9110 section 9.2.1).
pub fn is_safe(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE].contains(method)
}

/// Whether a response asks for the request once more after the handshake: 425 to a request that
/// was early data (RFC 8470 section 5.2). To one that was not, 425 is a response like any other.
pub(crate) fn too_early(status: StatusCode, was_early: bool) -> bool {
    was_early && status == StatusCode::TOO_EARLY
}

/// Whether a failure is fixed by a fresh connection without early data: the server has gone back
/// to an older version (RFC 8446 appendix D.3) or to another protocol.
pub(crate) fn mended_without_early_data(error: &TlsError) -> bool {
    matches!(error, TlsError::RetryWithoutEarlyData | TlsError::AlpnChanged { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc9110_9_2_1_safe_methods_alone_are_early_by_default() {
        for (method, safe) in [
            (Method::GET, true),
            (Method::HEAD, true),
            (Method::OPTIONS, true),
            (Method::TRACE, true),
            (Method::POST, false),
            (Method::PUT, false),
            (Method::DELETE, false),
            (Method::PATCH, false),
            (Method::CONNECT, false),
        ] {
            assert_eq!(EarlyPolicy::SafeMethods.allows(&method), safe, "{method}");
            assert!(EarlyPolicy::AnyMethod.allows(&method));
            assert!(!EarlyPolicy::Never.allows(&method));
        }
    }

    #[test]
    fn rfc8470_5_2_only_an_early_request_is_retried() {
        assert!(too_early(StatusCode::TOO_EARLY, true));
        assert!(!too_early(StatusCode::TOO_EARLY, false));
        assert!(!too_early(StatusCode::OK, true));
    }
}
