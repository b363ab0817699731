//! Responses of the console: their bodies, and the header fields that protect them.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};

/// Limits the time for a request head, for a form, and for a write.
pub(crate) const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// The body of a response: a text, or endless events.
pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A response with this text.
pub(crate) fn text(
    status: StatusCode,
    kind: &'static str,
    text: impl Into<Bytes>,
) -> Response<Body> {
    let mut response = Response::new(Full::new(text.into()).boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// A response with one line of plain text.
pub(crate) fn plain(status: StatusCode, line: &str) -> Response<Body> {
    text(status, PLAIN, format!("{line}\n"))
}

/// Adds header fields that keep pages of other sites from using the response, forbid to cache it, and
/// restrict the page to its own resources.
pub(crate) fn with_security_headers(mut response: Response<Body>) -> Response<Body> {
    let headers = response.headers_mut();
    for (name, value) in SECURITY_HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

pub(crate) const PLAIN: &str = "text/plain; charset=utf-8";
pub(crate) const HTML: &str = "text/html; charset=utf-8";

const SECURITY_HEADERS: [(HeaderName, &str); 6] = [
    (
        http::header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
         connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (http::header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (http::header::X_FRAME_OPTIONS, "DENY"),
    // With `no-referrer`, forms would have the origin "null".
    (http::header::REFERRER_POLICY, "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];
