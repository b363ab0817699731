//! Validates requests before routing, so that all servers on the path parse them alike.
//!
//! The HTTP libraries check lines, lengths and chunks. This module checks what they pass through
//! and what the policy, the site selection and an upstream could parse differently.

use std::borrow::Cow;

use firstflight_tls::normalize_host;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version, header};

use crate::context::ResponseBody;
use crate::handler::response::plain;

/// Validates a request.
///
/// # Errors
/// The status of the response.
pub(crate) fn check<B>(request: &Request<B>) -> Result<(), StatusCode> {
    let headers = request.headers();
    target(request)?;
    host(request).map_err(|_| StatusCode::BAD_REQUEST)?;
    coding(headers)?;
    match request.version() {
        Version::HTTP_2 | Version::HTTP_3 => connection_fields(headers),
        _ => Ok(()),
    }
}

/// The response to an invalid request. Over HTTP/1 the connection ends: what follows may not be
/// what the client intended.
pub(crate) fn refusal(status: StatusCode, version: Version) -> Response<ResponseBody> {
    let mut response = plain(status);
    if is_http1(version) {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// RFC 9112 section 3.2: the form of the target depends on the method. (CONNECT is refused
/// elsewhere.)
fn target<B>(request: &Request<B>) -> Result<(), StatusCode> {
    let uri = request.uri();
    let is_valid = match (uri.scheme_str(), uri.path()) {
        _ if request.method() == Method::CONNECT => true,
        (_, "*") => request.method() == Method::OPTIONS,
        (Some("http" | "https"), path) => path.starts_with('/'),
        (Some(_), _) => false,
        (None, path) => {
            path.starts_with('/') && (uri.authority().is_none() || !is_http1(request.version()))
        }
    };
    if is_valid { Ok(()) } else { Err(StatusCode::BAD_REQUEST) }
}

/// RFC 9112 section 6.1: chunks are decoded here. Another coding would reach the upstream without
/// its field.
fn coding(headers: &HeaderMap) -> Result<(), StatusCode> {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => Ok(()),
        (Some(only), None) if only.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked") => {
            Ok(())
        }
        _ => Err(StatusCode::NOT_IMPLEMENTED),
    }
}

/// RFC 9113 section 8.2.2, RFC 9114 section 4.2. The HTTP/3 library does not check this.
fn connection_fields(headers: &HeaderMap) -> Result<(), StatusCode> {
    let named = ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"]
        .iter()
        .any(|name| headers.contains_key(*name));
    let te = headers.get_all(header::TE).iter().any(|value| value != "trailers");
    if named || te { Err(StatusCode::BAD_REQUEST) } else { Ok(()) }
}

fn is_http1(version: Version) -> bool {
    version <= Version::HTTP_11
}

/// The request has no host, several, or an invalid one (RFC 9112 section 3.2, RFC 9113 section
/// 8.3.1, RFC 9114 section 4.3.1). It gets 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadAuthority;

/// The host of a request, in lower case and without a port; IPv6 addresses without brackets.
/// Returns `None` for HTTP/1.0 without `Host`.
///
/// # Errors
/// [`BadAuthority`].
pub(crate) fn host<B>(request: &Request<B>) -> Result<Option<Cow<'_, str>>, BadAuthority> {
    let mut fields = request.headers().get_all(header::HOST).iter();
    let field = match (fields.next(), fields.next()) {
        (_, Some(_)) => return Err(BadAuthority),
        (Some(field), None) => Some(field.to_str().map_err(|_| BadAuthority)?),
        (None, None) => None,
    };
    let target = request.uri().authority().map(|authority| authority.as_str());
    let named = match (request.version(), target, field) {
        (Version::HTTP_09 | Version::HTTP_10, None, None) => return Ok(None),
        (Version::HTTP_09 | Version::HTTP_10 | Version::HTTP_11, target, field) => {
            // A request with a whole URL needs the field too, but its value is ignored.
            let field = match request.version() {
                Version::HTTP_11 => Some(field.ok_or(BadAuthority)?),
                _ => field,
            };
            target.or(field)
        }
        // A proxy in front of this server may have checked one and forwarded the other.
        (_, Some(target), Some(field)) if !target.eq_ignore_ascii_case(field) => {
            return Err(BadAuthority);
        }
        (_, target, field) => target.or(field),
    };
    named.and_then(without_port).and_then(normalize_host).map(Some).ok_or(BadAuthority)
}

/// Whether a request over HTTP/1 has an absolute-form target (RFC 9112 section 3.2.2).
pub(crate) fn is_absolute<B>(request: &Request<B>) -> bool {
    request.version() <= Version::HTTP_11 && request.uri().scheme().is_some()
}

/// The host of `host:port` (RFC 3986 section 3.2). Returns `None` if the port is invalid.
fn without_port(authority: &str) -> Option<&str> {
    let (host, rest) = match authority.strip_prefix('[') {
        Some(inner) => {
            let (host, rest) = inner.split_once(']')?;
            // `normalize_host` takes a name with colons for an address.
            (host.contains(':').then_some(host)?, rest)
        }
        None => match authority.find(':') {
            Some(colon) => authority.split_at(colon),
            None => (authority, ""),
        },
    };
    let port = match rest.strip_prefix(':') {
        Some(port) => port,
        None if rest.is_empty() => "",
        None => return None,
    };
    (port.len() <= 5 && port.bytes().all(|digit| digit.is_ascii_digit())).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(version: Version, target: &str, fields: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::builder().version(version).uri(target);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    fn refused(version: Version, target: &str, fields: &[(&str, &str)]) -> Option<u16> {
        check(&request(version, target, fields)).err().map(|status| status.as_u16())
    }

    #[test]
    fn rfc9112_3_2_a_request_without_a_host_gets_400() {
        assert_eq!(refused(Version::HTTP_11, "/", &[]), Some(400));
        assert_eq!(refused(Version::HTTP_11, "/", &[("host", "a"), ("host", "b")]), Some(400));
        assert_eq!(refused(Version::HTTP_2, "https://a/", &[("host", "b")]), Some(400));
        assert_eq!(refused(Version::HTTP_2, "ftp://a/", &[]), Some(400));
        assert_eq!(refused(Version::HTTP_11, "ftp://a/", &[("host", "a")]), Some(400));
        assert_eq!(refused(Version::HTTP_2, "https://a/", &[]), None);
    }

    #[test]
    fn rfc9112_3_2_the_form_of_the_target_depends_on_the_method() {
        for (method, target, outcome) in [
            ("GET", "*", Some(400)),
            ("OPTIONS", "*", None),
            ("GET", "a:80", Some(400)),
            ("CONNECT", "a:80", None),
        ] {
            let mut request = request(Version::HTTP_11, target, &[("host", "a")]);
            *request.method_mut() = method.parse().unwrap();
            let refused = check(&request).err().map(|status| status.as_u16());
            assert_eq!(refused, outcome, "{method} {target}");
        }
    }

    #[test]
    fn rfc9112_6_1_only_chunked_coding_is_supported() {
        for (codings, outcome) in [
            (&["chunked"][..], None),
            (&["CHUNKED"], None),
            (&["gzip, chunked"], Some(501)),
            (&["chunked", "chunked"], Some(501)),
            (&["identity"], Some(501)),
        ] {
            let mut fields = vec![("host", "a")];
            fields.extend(codings.iter().map(|coding| ("transfer-encoding", *coding)));
            assert_eq!(refused(Version::HTTP_11, "/", &fields), outcome, "{codings:?}");
        }
    }

    #[test]
    fn rfc9114_4_2_fields_of_one_connection_are_malformed() {
        for (name, value, outcome) in [
            ("connection", "close", Some(400)),
            ("upgrade", "h2c", Some(400)),
            ("transfer-encoding", "chunked", Some(400)),
            ("te", "gzip", Some(400)),
            ("te", "trailers", None),
        ] {
            assert_eq!(refused(Version::HTTP_3, "https://a/", &[(name, value)]), outcome, "{name}");
        }
    }
}

#[cfg(test)]
mod authority_tests {
    use super::*;

    fn parsed_host(
        version: Version,
        target: &str,
        hosts: &[&str],
    ) -> Result<Option<String>, BadAuthority> {
        let mut request = Request::builder().version(version).uri(target);
        for value in hosts {
            request = request.header(header::HOST, *value);
        }
        let request = request.body(()).unwrap();
        host(&request).map(|host| host.map(Cow::into_owned))
    }

    #[test]
    fn rfc9112_3_2_a_request_has_one_host_and_the_targets_takes_precedence() {
        let bad = Err(BadAuthority);
        for (target, hosts, found) in [
            ("/", &["Example.test"][..], Ok(Some("example.test"))),
            ("/", &["example.test.:8443"], Ok(Some("example.test"))),
            ("/", &["192.0.2.1:80"], Ok(Some("192.0.2.1"))),
            ("/", &["[::1]:443"], Ok(Some("::1"))),
            ("https://a.test/x", &["b.test"], Ok(Some("a.test"))),
            ("https://a.test/x", &[], bad),
            ("/", &[], bad),
            ("/", &[""], bad),
            ("/", &["a.test", "a.test"], bad),
            ("/", &["a.test, b.test"], bad),
            ("/", &["user@a.test"], bad),
            ("/", &["a.test/x"], bad),
            ("/", &["a.test:80:80"], bad),
            ("/", &["a.test:http"], bad),
            ("/", &["[a.test]"], bad),
            ("/", &["[::1"], bad),
            ("/", &["[::1]x"], bad),
            ("/", &["::1"], bad),
            ("/", &["a..test"], bad),
            ("/", &["a%2etest"], bad),
        ] {
            let found: Result<Option<&str>, _> = found;
            let found = found.map(|host| host.map(str::to_owned));
            assert_eq!(parsed_host(Version::HTTP_11, target, hosts), found, "{target} {hosts:?}");
        }
        assert_eq!(parsed_host(Version::HTTP_10, "/", &[]), Ok(None));
        assert_eq!(parsed_host(Version::HTTP_10, "/", &["a.test", "b.test"]), Err(BadAuthority));
    }

    #[test]
    fn rfc9113_8_3_1_authority_and_host_have_to_agree() {
        for version in [Version::HTTP_2, Version::HTTP_3] {
            let found = |host: &str| Ok(Some(host.to_owned()));
            assert_eq!(parsed_host(version, "https://a.test/", &[]), found("a.test"));
            assert_eq!(parsed_host(version, "https://a.test/", &["A.test"]), found("a.test"));
            assert_eq!(parsed_host(version, "https://a.test/", &["b.test"]), Err(BadAuthority));
            assert_eq!(parsed_host(version, "https://a.test/", &["a.test:1"]), Err(BadAuthority));
            assert_eq!(parsed_host(version, "/", &["b.test"]), found("b.test"));
            assert_eq!(parsed_host(version, "/", &[]), Err(BadAuthority));
        }
    }
}
