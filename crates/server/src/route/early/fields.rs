//! Parses the fields that the rules for early requests use, and derives claim keys from idempotency
//! keys and nonces.

use std::time::Duration;

use firstflight_replay::ClaimKey;
use http::{HeaderMap, HeaderName, Request, header};

use crate::route::validation;

/// The field of draft-ietf-httpapi-idempotency-key-header.
pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// A field that may occur once.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Field<'a> {
    Absent,
    /// 1 to [`MAX_FIELD_BYTES`] bytes.
    Value(&'a [u8]),
    /// Several values, or one that is empty or too long.
    Invalid,
}

/// The single value of a field.
pub(crate) fn single_field<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Field<'a> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Field::Absent,
        (Some(value), None) if (1..=MAX_FIELD_BYTES).contains(&value.len()) => {
            Field::Value(value.as_bytes())
        }
        _ => Field::Invalid,
    }
}

/// Whether a timestamp, RFC 3339 or seconds since 1970, differs from the current time by at most
/// `window`.
pub(crate) fn is_fresh(value: &[u8], window: Duration, now_micros: i64) -> bool {
    let Some(micros) = std::str::from_utf8(value).ok().and_then(unix_micros) else { return false };
    u128::from(micros.abs_diff(now_micros)) <= window.as_micros()
}

fn unix_micros(text: &str) -> Option<i64> {
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    if !seconds.is_empty() && is_number(seconds) && is_number(fraction) {
        let fraction: String = fraction.chars().chain("000000".chars()).take(6).collect();
        let seconds = seconds.parse::<i64>().ok()?.checked_mul(1_000_000)?;
        return seconds.checked_add(fraction.parse().ok()?);
    }
    Some(text.parse::<jiff::Timestamp>().ok()?.as_microsecond())
}

/// The maximum length of a field. A UUID has 36 bytes, a signature's nonce seldom more than 88.
const MAX_FIELD_BYTES: usize = 255;

/// The claim key of a value that a request carries. It covers the method, the host, the path and
/// the user's `Authorization`, so one user's key does not block another's. A client that repeats a
/// request repeats all of that. If it has got a new token meanwhile, the claim key differs, and the
/// application has to detect the repetition.
///
/// Cookies are not part of it, because they change with each response.
pub(crate) fn claim_key<B>(kind: &str, request: &Request<B>, value: &[u8]) -> ClaimKey {
    let (path, headers) = (request.uri().path(), request.headers());
    // A request without a host gets 400.
    let host = validation::host(request).ok().flatten().unwrap_or_default();
    let method = request.method().as_str().as_bytes();
    let mut parts = vec![kind.as_bytes(), method, host.as_bytes(), path.as_bytes(), value];
    parts.extend(headers.get_all(header::AUTHORIZATION).iter().map(|value| value.as_bytes()));
    ClaimKey::from_name(&parts)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_repeated_empty_or_long_field_is_invalid() {
        let mut headers = HeaderMap::new();
        assert_eq!(single_field(&headers, &IDEMPOTENCY_KEY), Field::Absent);
        for (value, invalid) in [("", true), ("k", false), (&"k".repeat(256), true)] {
            headers.insert(IDEMPOTENCY_KEY, HeaderValue::from_str(value).unwrap());
            assert_eq!(
                single_field(&headers, &IDEMPOTENCY_KEY) == Field::Invalid,
                invalid,
                "{value}"
            );
        }
        headers.insert(IDEMPOTENCY_KEY, HeaderValue::from_static("a"));
        headers.append(IDEMPOTENCY_KEY, HeaderValue::from_static("a"));
        assert_eq!(single_field(&headers, &IDEMPOTENCY_KEY), Field::Invalid);
    }

    #[test]
    fn rfc3339_and_unix_seconds_are_parsed() {
        let now = 1_700_000_000_000_000;
        let fresh = |text: &str| is_fresh(text.as_bytes(), Duration::from_secs(10), now);
        for text in [
            "1700000000",
            "1700000010",
            "1699999990",
            "1700000010.000000",
            "2023-11-14T22:13:20Z",
            "2023-11-14T23:13:25.5+01:00",
        ] {
            assert!(fresh(text), "{text}");
        }
        for text in [
            "1700000010.000001",
            "1700000011",
            "1699999989",
            "2023-11-14T22:13:31Z",
            "2023-11-14T22:13:20",
            "",
            ".5",
            "-1700000000",
            "+1700000000",
            "1700000000x",
            "99999999999999999999",
            "9223372036854775807",
            "soon",
        ] {
            assert!(!fresh(text), "{text}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            is_fresh(&bytes, Duration::MAX, i64::MIN);
            is_fresh(&bytes, Duration::ZERO, i64::MAX);
        }
    }
}

#[cfg(test)]
mod claim_key_tests {
    use http::Version;

    use super::*;

    fn key_of(method: &str, uri: &str, headers: &[(&str, &str)]) -> ClaimKey {
        // HTTP/2 has the whole URI and no `Host`.
        let version = if uri.starts_with('/') { Version::HTTP_11 } else { Version::HTTP_2 };
        let mut request = Request::builder().method(method).uri(uri).version(version);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        claim_key("key", &request.body(()).unwrap(), b"k")
    }

    #[test]
    fn a_claim_key_is_the_same_over_every_protocol() {
        let http1 = key_of("POST", "/pay?a", &[("host", "Example.test"), ("cookie", "a=1")]);
        let http2 = key_of("POST", "https://example.test/pay?b", &[]);
        assert_eq!(http1, http2);
    }

    #[test]
    fn a_claim_key_covers_method_host_path_and_user() {
        let alice = [("host", "h"), ("authorization", "Bearer alice")];
        let bob = [("host", "h"), ("authorization", "Bearer bob")];
        let keys = [
            key_of("POST", "/pay", &alice),
            key_of("POST", "/pay", &bob),
            key_of("PUT", "/pay", &alice),
            key_of("POST", "/pay/", &alice),
            key_of("POST", "/pay", &[("host", "i"), ("authorization", "Bearer alice")]),
            key_of("POST", "/pay", &[("host", "h")]),
        ];
        let different: std::collections::HashSet<_> = keys.into_iter().collect();
        assert_eq!(different.len(), keys.len());
    }
}
