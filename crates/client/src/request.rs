use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, HOST, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version};
use http_body_util::Full;

use crate::{ClientError, Target};

/// A request and its target.
#[derive(Clone, Debug)]
pub struct Request {
    /// The method.
    pub method: Method,
    /// The URL.
    pub target: Target,
    /// Header fields; a `Host` field replaces the target's.
    pub headers: HeaderMap,
    /// The body; kept in memory because it may have to be sent twice.
    pub body: Bytes,
}

impl Request {
    /// Creates a GET with curl's usual fields (`User-Agent`, `Accept`, and `Authorization` if the
    /// URL has credentials).
    pub fn get(target: Target) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        let mut request = Self { method: Method::GET, target, headers, body: Bytes::new() };
        request.set_credentials();
        request
    }

    /// Sets `Authorization` if the URL has credentials (RFC 7617 section 2).
    fn set_credentials(&mut self) {
        if let Some((user, password)) = self.target.credentials() {
            let pair = [user, password].join(&b':');
            let basic = format!("Basic {}", STANDARD.encode(pair));
            if let Ok(value) = HeaderValue::from_str(&basic) {
                self.headers.insert(AUTHORIZATION, value);
            }
        }
    }

    /// Applies a field in the form of curl's `-H`: `Name: value` sets it (or appends it if it is
    /// already in `added`), `Name:` removes it, `Name;` makes it empty.
    ///
    /// # Errors
    /// [`ClientError::Usage`] if `field` is not of this form.
    pub fn set_field(&mut self, field: &str, added: &mut HeaderMap) -> Result<(), ClientError> {
        let bad = || {
            ClientError::Usage(format!("{field:?} is not a header field of the form Name: value"))
        };
        let (name, value) = match (field.split_once(':'), field.strip_suffix(';')) {
            (Some((name, value)), _) => (name, Some(value.trim()).filter(|v| !v.is_empty())),
            (None, Some(name)) => (name, Some("")),
            (None, None) => return Err(bad()),
        };
        let name: HeaderName = name.trim().parse().map_err(|_| bad())?;
        let Some(value) = value else {
            self.headers.remove(&name);
            return Ok(());
        };
        let value = HeaderValue::from_str(value).map_err(|_| bad())?;
        match added.append(name.clone(), value.clone()) {
            true => self.headers.append(name, value),
            false => self.headers.insert(name, value).is_some(),
        };
        Ok(())
    }

    /// The request to make after a redirection with `status` to `target` (RFC 9110 section 15.4):
    /// 303 always becomes a GET, 301 and 302 turn a POST into a GET, as browsers and curl do.
    /// Credentials are not sent to another origin; those of the new URL replace them.
    pub(crate) fn redirected(mut self, status: u16, target: Target) -> Self {
        let to_get = match status {
            303 => self.method != Method::HEAD,
            301 | 302 => self.method == Method::POST,
            _ => false,
        };
        if to_get {
            self.method = Method::GET;
            self.body = Bytes::new();
            self.headers.remove(CONTENT_TYPE);
            self.headers.remove(CONTENT_LENGTH);
        }
        let same_origin = target.same_origin(&self.target);
        if !same_origin {
            for name in [AUTHORIZATION, COOKIE, HOST] {
                self.headers.remove(name);
            }
        }
        // A relative reference keeps the URL's credentials, which -H may have overridden.
        let same_credentials = target.credentials() == self.target.credentials();
        self.target = target;
        if !(same_origin && same_credentials) {
            self.set_credentials();
        }
        self
    }

    /// Returns the request for the HTTP library: in origin form with `Host` for HTTP/1.1 (RFC 9112
    /// section 3.2.1), with an absolute URI for HTTP/2 and HTTP/3 (RFC 9113 section 8.3.1, RFC 9114
    /// section 4.3.1) and without connection-specific fields.
    pub(crate) fn to_http(
        &self,
        version: Version,
    ) -> Result<http::Request<Full<Bytes>>, ClientError> {
        let http2_or_3 = version >= Version::HTTP_2;
        let host = match self.headers.get(HOST) {
            Some(host) => host.to_str().unwrap_or_default().to_owned(),
            None => self.target.authority(),
        };
        let path = self.target.path_and_query();
        let bad = |error: http::Error| ClientError::BadUrl {
            url: self.target.to_string(),
            reason: error.to_string(),
        };
        let uri = match http2_or_3 {
            true => Uri::builder()
                .scheme(self.target.scheme().name())
                .authority(host.as_str())
                .path_and_query(path)
                .build()
                .map_err(bad)?,
            false => path.parse().map_err(|error: http::uri::InvalidUri| bad(error.into()))?,
        };
        let mut request = http::Request::builder().method(self.method.clone()).uri(uri);
        let mut headers = HeaderMap::with_capacity(self.headers.len() + 1);
        match http2_or_3 {
            true => request = request.version(version),
            false => {
                let value = HeaderValue::from_str(&host).map_err(|error| bad(error.into()))?;
                headers.insert(HOST, value);
            }
        }
        for (name, value) in self.headers.iter().filter(|(name, _)| *name != HOST) {
            if !http2_or_3 || !is_connection_specific(name, value) {
                headers.append(name, value.clone());
            }
        }
        if !self.body.is_empty() || self.method == Method::POST || self.method == Method::PUT {
            headers.entry(CONTENT_LENGTH).or_insert_with(|| self.body.len().into());
        }
        let mut request = request.body(Full::new(self.body.clone())).map_err(bad)?;
        *request.headers_mut() = headers;
        Ok(request)
    }

    /// Returns the head as HTTP/1.1 text, for later versions too, as curl prints it.
    pub(crate) fn head_text(&self, version: Version) -> Result<Vec<u8>, ClientError> {
        let request = self.to_http(version)?;
        let http2_or_3 = version >= Version::HTTP_2;
        let version = match version {
            Version::HTTP_3 => "3",
            Version::HTTP_2 => "2",
            _ => "1.1",
        };
        let path = self.target.path_and_query();
        let mut text = format!("{} {path} HTTP/{version}\r\n", self.method).into_bytes();
        if let (true, Some(authority)) = (http2_or_3, request.uri().authority()) {
            text.extend_from_slice(format!("Host: {authority}\r\n").as_bytes());
        }
        for (name, value) in request.headers() {
            text.extend_from_slice(title_case(name.as_str()).as_bytes());
            text.extend_from_slice(b": ");
            text.extend_from_slice(value.as_bytes());
            text.extend_from_slice(b"\r\n");
        }
        text.extend_from_slice(b"\r\n");
        Ok(text)
    }
}

/// Whether a field would make a request of HTTP/2 or HTTP/3 malformed (RFC 9113 section 8.2.2, RFC
/// 9114 section 4.2).
fn is_connection_specific(name: &HeaderName, value: &HeaderValue) -> bool {
    match name.as_str() {
        "connection" | "keep-alive" | "proxy-connection" | "transfer-encoding" | "upgrade" => true,
        "te" => value != "trailers",
        _ => false,
    }
}

fn title_case(name: &str) -> String {
    let mut upper = true;
    name.chars()
        .map(|letter| {
            let cased = if upper { letter.to_ascii_uppercase() } else { letter };
            upper = letter == '-';
            cased
        })
        .collect()
}

const AGENT: &str = concat!("firstflight/", env!("CARGO_PKG_VERSION"));

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        Request::get(Target::parse("https://user:pw@a.test:8443/x?y").unwrap())
    }

    #[test]
    fn fields_are_set_appended_removed_and_emptied() {
        let (mut request, mut added) = (request(), HeaderMap::new());
        for field in ["Accept: text/html", "Accept: text/css", "User-Agent:", "X-Empty;"] {
            request.set_field(field, &mut added).unwrap();
        }
        assert_eq!(request.headers.get_all(ACCEPT).iter().count(), 2);
        assert!(!request.headers.contains_key(USER_AGENT));
        assert_eq!(request.headers["x-empty"], "");
        for bad in ["no colon", "bad name: x", "X: a\nb"] {
            assert_eq!(request.set_field(bad, &mut added).unwrap_err().exit_code(), 2, "{bad}");
        }
    }

    #[test]
    fn rfc3986_2_4_credentials_are_decoded() {
        for (url, credentials) in [
            ("https://us%40er:p%c3%a4%3Ass@a.test/", "us@er:p\u{e4}:ss".as_bytes()),
            ("https://u:100%@a.test/", b"u:100%"),
            ("https://u:%zz%4@a.test/", b"u:%zz%4"),
            ("https://u:%ff@a.test/", b"u:\xff"),
            ("https://u@a.test/", b"u:"),
        ] {
            let request = Request::get(Target::parse(url).unwrap());
            let basic = request.headers[AUTHORIZATION].to_str().unwrap().to_owned();
            let decoded = STANDARD.decode(basic.strip_prefix("Basic ").unwrap()).unwrap();
            assert_eq!(decoded, credentials, "{url}");
        }
    }

    #[test]
    fn rfc9112_3_2_1_origin_form_and_rfc9113_8_3_1_absolute_uri() {
        let http1 = request().to_http(Version::HTTP_11).unwrap();
        assert_eq!(
            (http1.uri().to_string().as_str(), &http1.headers()[HOST]),
            ("/x?y", &"a.test:8443".parse().unwrap())
        );
        assert_eq!(http1.headers()[AUTHORIZATION], "Basic dXNlcjpwdw==");
        let http2 = request().to_http(Version::HTTP_2).unwrap();
        assert_eq!(http2.uri().to_string(), "https://a.test:8443/x?y");
        assert!(!http2.headers().contains_key(HOST));
    }

    #[test]
    fn rfc9114_4_2_connection_specific_fields_are_sent_over_http1_only() {
        let mut request = request();
        for field in [
            "Connection: close",
            "Keep-Alive: timeout=5",
            "Proxy-Connection: close",
            "Transfer-Encoding: chunked",
            "Upgrade: h2c",
            "TE: gzip",
            "TE: trailers",
            "X: y",
        ] {
            request.set_field(field, &mut HeaderMap::new()).unwrap();
            for version in [Version::HTTP_11, Version::HTTP_2, Version::HTTP_3] {
                let allowed = matches!(field, "TE: trailers" | "X: y");
                let is_sent = allowed || version == Version::HTTP_11;
                let text = String::from_utf8(request.head_text(version).unwrap()).unwrap();
                let line = format!("\n{field}\r\n").to_lowercase();
                assert_eq!(text.to_lowercase().contains(&line), is_sent, "{version:?} {text}");
            }
        }
    }

    #[test]
    fn rfc9110_15_4_redirections_change_method_and_drop_credentials() {
        let post = Request { method: Method::POST, body: "x".into(), ..request() };
        let other_origin = Target::parse("https://b.test/").unwrap();
        let redirected = post.clone().redirected(302, other_origin.clone());
        assert_eq!((&redirected.method, redirected.body.len()), (&Method::GET, 0));
        assert!(!redirected.headers.contains_key(AUTHORIZATION));
        assert_eq!(post.redirected(307, other_origin).method, Method::POST);
    }

    #[test]
    fn rfc3986_3_2_1_credentials_of_a_redirection_replace_others() {
        let mut bearer = request();
        bearer.set_field("Authorization: Bearer x", &mut HeaderMap::new()).unwrap();
        for (from, location, expected) in [
            (request(), "https://user2:pw2@a.test:8443/", Some("Basic dXNlcjI6cHcy")),
            (request(), "https://user2:pw2@b.test/", Some("Basic dXNlcjI6cHcy")),
            (bearer.clone(), "https://user:pw@b.test/", Some("Basic dXNlcjpwdw==")),
            (request(), "/next", Some("Basic dXNlcjpwdw==")),
            (request(), "https://a.test:8443/next", Some("Basic dXNlcjpwdw==")),
            (bearer.clone(), "/next", Some("Bearer x")),
            (bearer, "//b.test/", None),
        ] {
            let target = from.target.join(location).unwrap();
            let next = from.redirected(302, target);
            let value = next.headers.get(AUTHORIZATION).map(|value| value.to_str().unwrap());
            assert_eq!(value, expected, "{location}");
        }
    }
}
