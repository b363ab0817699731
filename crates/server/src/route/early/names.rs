//! The names by which keys and nonces are claimed.

use firstflight_replay::ClaimKey;
use http::{Request, header};

use crate::route::authority;

/// The name of a value that a request carries. It belongs to the method, the host, the path and who
/// asks, by `Authorization`: one user's key is no obstacle to another's. A client that sends the
/// same request again sends all of that again; one that has got another token in between has
/// another name, and the application has to know.
///
/// Cookies have no part in it: they change with each answer.
pub(crate) fn name<B>(kind: &str, request: &Request<B>, value: &[u8]) -> ClaimKey {
    let (path, headers) = (request.uri().path(), request.headers());
    // Without one it is answered 400.
    let host = authority::host(request).ok().flatten().unwrap_or_default();
    let method = request.method().as_str().as_bytes();
    let mut parts = vec![kind.as_bytes(), method, host.as_bytes(), path.as_bytes(), value];
    parts.extend(headers.get_all(header::AUTHORIZATION).iter().map(|value| value.as_bytes()));
    ClaimKey::from_name(&parts)
}

#[cfg(test)]
mod tests {
    use http::Version;

    use super::*;

    fn of(method: &str, uri: &str, headers: &[(&str, &str)]) -> ClaimKey {
        // As HTTP/2 has it: the whole URI, and no Host.
        let version = if uri.starts_with('/') { Version::HTTP_11 } else { Version::HTTP_2 };
        let mut request = Request::builder().method(method).uri(uri).version(version);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        name("key", &request.body(()).unwrap(), b"k")
    }

    #[test]
    fn a_name_is_the_same_over_every_protocol() {
        let http1 = of("POST", "/pay?a", &[("host", "Example.test"), ("cookie", "a=1")]);
        let http2 = of("POST", "https://example.test/pay?b", &[]);
        assert_eq!(http1, http2);
    }

    #[test]
    fn a_name_belongs_to_method_host_path_and_user() {
        let alice = [("host", "h"), ("authorization", "Bearer alice")];
        let bob = [("host", "h"), ("authorization", "Bearer bob")];
        let names = [
            of("POST", "/pay", &alice),
            of("POST", "/pay", &bob),
            of("PUT", "/pay", &alice),
            of("POST", "/pay/", &alice),
            of("POST", "/pay", &[("host", "i"), ("authorization", "Bearer alice")]),
            of("POST", "/pay", &[("host", "h")]),
        ];
        let different: std::collections::HashSet<_> = names.into_iter().collect();
        assert_eq!(different.len(), names.len());
    }
}
