//! The form that a request has to have before anything looks at it: one that all servers read alike.
//!
//! The libraries see to lines, lengths and chunks. What is left is what they hand on as it came, and
//! what a policy here, a site's choice and an upstream's might read differently.

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version, header,
};

use crate::handler::response::{ResponseBody, plain};
use crate::route::authority;

/// Whether a request is of a form to be answered; otherwise with what it is refused.
pub(crate) fn check<B>(request: &Request<B>) -> Result<(), StatusCode> {
    let headers = request.headers();
    target(request)?;
    authority::host(request).map_err(|_| StatusCode::BAD_REQUEST)?;
    coding(headers)?;
    match request.version() {
        Version::HTTP_2 | Version::HTTP_3 => connection_fields(headers),
        _ => Ok(()),
    }
}

/// The answer to a request that is refused for its form. Nothing has looked at it, and over HTTP/1 its
/// connection ends: what follows may not be what the client takes it for.
pub(crate) fn refusal(status: StatusCode, version: Version) -> Response<ResponseBody> {
    let mut answer = plain(status);
    if is_http1(version) {
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

/// Removes fields that are told from this server's own only by an underscore. Servers that hand
/// fields on as variables (CGI, WSGI, FastCGI) take both for the same, and a client could say who it
/// is, or that its request is not early.
pub(crate) fn remove_lookalikes(headers: &mut HeaderMap) {
    remove_spelt(headers, |name| OURS.contains(&name));
}

/// The same for a field that a configuration names, in lower case.
pub(crate) fn remove_lookalikes_of(ours: &str, headers: &mut HeaderMap) {
    remove_spelt(headers, |name| name == ours.replace('_', "-"));
}

fn remove_spelt(headers: &mut HeaderMap, is_ours: impl Fn(&str) -> bool) {
    let lookalikes: Vec<HeaderName> = headers
        .keys()
        .filter(|name| name.as_str().contains('_'))
        .filter(|name| is_ours(&name.as_str().replace('_', "-")))
        .cloned()
        .collect();
    for name in lookalikes {
        headers.remove(name);
    }
}

/// What this server says to an upstream, or takes out on the way there.
const OURS: [&str; 12] = [
    "connection",
    "content-length",
    "early-data",
    "forwarded",
    "host",
    "transfer-encoding",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-real-ip",
];

/// RFC 9112 section 3.2: which form belongs to which method. (A tunnel is refused elsewhere.)
fn target<B>(request: &Request<B>) -> Result<(), StatusCode> {
    let uri = request.uri();
    let of_form = match (uri.scheme_str(), uri.path()) {
        _ if request.method() == Method::CONNECT => true,
        (_, "*") => request.method() == Method::OPTIONS,
        (Some("http" | "https"), path) => path.starts_with('/'),
        (Some(_), _) => false,
        (None, path) => {
            path.starts_with('/') && (uri.authority().is_none() || !is_http1(request.version()))
        }
    };
    if of_form { Ok(()) } else { Err(StatusCode::BAD_REQUEST) }
}

/// RFC 9112 section 6.1: chunks are taken apart here, and what is coded otherwise besides would reach
/// the upstream without saying so.
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

/// RFC 9113 section 8.2.2, RFC 9114 section 4.2. The library for HTTP/3 lets them pass.
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
    fn rfc9112_3_2_no_host_no_answer() {
        assert_eq!(refused(Version::HTTP_11, "/", &[]), Some(400));
        assert_eq!(refused(Version::HTTP_11, "/", &[("host", "a"), ("host", "b")]), Some(400));
        assert_eq!(refused(Version::HTTP_2, "https://a/", &[("host", "b")]), Some(400));
        assert_eq!(refused(Version::HTTP_2, "ftp://a/", &[]), Some(400));
        assert_eq!(refused(Version::HTTP_11, "ftp://a/", &[("host", "a")]), Some(400));
        assert_eq!(refused(Version::HTTP_2, "https://a/", &[]), None);
    }

    #[test]
    fn rfc9112_3_2_the_target_has_its_methods_form() {
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
    fn rfc9112_6_1_only_chunks_are_taken_apart() {
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

    #[test]
    fn only_what_looks_like_our_own_is_removed() {
        let mut headers = HeaderMap::new();
        for name in ["x_forwarded_for", "early_data", "x-forwarded_proto", "x_app", "x-real-ip"] {
            headers.insert(name, HeaderValue::from_static("1"));
        }
        remove_lookalikes(&mut headers);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["x-real-ip", "x_app"]);
    }
}
