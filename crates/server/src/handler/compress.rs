//! Compression on the fly: Brotli, zstd or gzip, by what the client accepts.
//!
//! The length of a compressed response tells an attacker who chooses a part of it what else is in it
//! (BREACH, 2013), so each route has to enable it.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::BodyExt;
use tower_http::compression::Compression;
use tower_service::Service;

use crate::context::ResponseBody;
use crate::context::memory::encoder_bytes;
use crate::handler::response::empty;

/// The encodings that a request accepts, and whether it is HEAD.
pub(crate) struct AcceptedEncodings {
    /// Its `Accept-Encoding`.
    fields: HeaderMap,
    is_head: bool,
}

impl AcceptedEncodings {
    pub(crate) fn of<B>(request: &Request<B>) -> Self {
        let values = request.headers().get_all(header::ACCEPT_ENCODING).iter().cloned();
        Self {
            fields: values.map(|value| (header::ACCEPT_ENCODING, value)).collect(),
            is_head: request.method() == Method::HEAD,
        }
    }

    /// Compresses a response, if its type and its client permit. `reserve_memory`: reserves this
    /// many bytes. If it returns false, the response is not compressed.
    pub(crate) async fn compress(
        self,
        mut response: Response<ResponseBody>,
        reserve_memory: impl FnOnce(usize) -> bool,
    ) -> Response<ResponseBody> {
        let status = response.status();
        if status == StatusCode::NOT_MODIFIED {
            // A 304 has the fields that the 200 would have (RFC 9110 section 15.4.5). A weak tag is
            // right whether that would be compressed or not.
            weaken_tag(response.headers_mut());
            add_vary(response.headers_mut());
        }
        // A response to HEAD has no body, but the length of one.
        let length = length(response.headers()).or(response
            .body()
            .size_hint()
            .exact()
            .filter(|length| *length > 0));
        if !is_compressible(status, response.headers(), length) {
            return response;
        }
        let Self { fields: mut accepted, is_head } = self;
        if !accepted.is_empty() && !reserve_memory(encoder_bytes(length)) {
            accepted.clear();
        }
        let mut request = Request::new(());
        *request.headers_mut() = accepted;
        // The library's default levels, as other servers use: higher ones cost much and save
        // little.
        let mut compression = Compression::new(ReadyResponse(Some(response))).compress_when(ALWAYS);
        let Ok(mut response) = compression.call(request).await;
        // The library refuses clients that accept no encoding; RFC 9110 section 12.5.3 permits to
        // send them the response.
        *response.status_mut() = status;
        if response.headers().contains_key(header::CONTENT_ENCODING) {
            weaken_tag(response.headers_mut());
        }
        if is_head {
            // Compressing an empty body produces bytes; a response to HEAD has none.
            return response.map(|_| empty());
        }
        response.map(|body| body.boxed_unsync())
    }
}

/// Replaces the library's rules by [`is_compressible`].
const ALWAYS: fn(StatusCode, http::Version, &HeaderMap, &http::Extensions) -> bool =
    |_, _, _, _| true;

fn is_compressible(status: StatusCode, headers: &HeaderMap, length: Option<u64>) -> bool {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let kind = text(header::CONTENT_TYPE).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let has_compressible_type = match kind.split_once('/') {
        // Most events are short, and each would have to end a block.
        Some(("text", subtype)) => subtype != "event-stream",
        Some(("application", subtype)) => {
            ["json", "javascript", "xml", "wasm"].contains(&subtype)
                || subtype.ends_with("+json")
                || subtype.ends_with("+xml")
        }
        _ => kind == "image/svg+xml",
    };
    let is_whole = status == StatusCode::OK || status.is_client_error() || status.is_server_error();
    // RFC 9110 section 5.3: a list may have several lines.
    let forbids_transform = headers.get_all(header::CACHE_CONTROL).iter().any(|line| {
        line.to_str().is_ok_and(|line| line.to_ascii_lowercase().contains("no-transform"))
    });
    is_whole
        && has_compressible_type
        && !forbids_transform
        && !EXCLUDED_FIELDS.iter().any(|name| headers.contains_key(name))
        && length.is_none_or(|length| length >= MIN_LENGTH)
}

/// Fields of responses that must not be compressed: they are encoded already, a range, or have a
/// digest of their content (RFC 9530).
const EXCLUDED_FIELDS: [HeaderName; 6] = [
    header::CONTENT_ENCODING,
    header::CONTENT_RANGE,
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("repr-digest"),
    HeaderName::from_static("digest"),
    HeaderName::from_static("content-md5"),
];

/// Shorter responses fit into one packet anyway.
const MIN_LENGTH: u64 = 1024;

fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// A strong tag identifies the bytes that are sent, which compression changes (RFC 9110 section
/// 8.8.3.3).
fn weaken_tag(headers: &mut HeaderMap) {
    if let Some(tag) = headers.get(header::ETAG).filter(|tag| tag.as_bytes().starts_with(b"\""))
        && let Ok(weak) = HeaderValue::from_bytes(&[b"W/", tag.as_bytes()].concat())
    {
        headers.insert(header::ETAG, weak);
    }
}

fn add_vary(headers: &mut HeaderMap) {
    let varies = |value: &HeaderValue| {
        value.to_str().is_ok_and(|value| value.to_ascii_lowercase().contains("accept-encoding"))
    };
    if !headers.get_all(header::VARY).iter().any(varies) {
        headers.append(header::VARY, HeaderValue::from_static("accept-encoding"));
    }
}

/// A service that returns an existing response.
struct ReadyResponse(Option<Response<ResponseBody>>);

impl Service<Request<()>> for ReadyResponse {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let missing = || Response::new(crate::handler::response::empty());
        ready(Ok(self.0.take().unwrap_or_else(missing)))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::Full;

    use super::*;

    fn fields(list: &[(&'static str, &'static str)]) -> HeaderMap {
        let field = |&(name, value): &(&'static str, &'static str)| {
            (header::HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        let mut headers = HeaderMap::new();
        list.iter().map(field).for_each(|(name, value)| {
            headers.append(name, value);
        });
        headers
    }

    fn accepted(method: Method, encodings: &str) -> AcceptedEncodings {
        let request = Request::builder().method(method).header("accept-encoding", encodings);
        AcceptedEncodings::of(&request.body(()).unwrap())
    }

    async fn compressed(
        accept: &'static str,
        response: &[(&'static str, &'static str)],
    ) -> Response<ResponseBody> {
        with_memory(accept, response, true).await
    }

    async fn with_memory(
        accept: &'static str,
        fields_of_response: &[(&'static str, &'static str)],
        has_memory: bool,
    ) -> Response<ResponseBody> {
        let body = Full::from(Bytes::from(vec![b'a'; 5000])).map_err(|never| match never {});
        let mut uncompressed = Response::new(body.boxed_unsync());
        *uncompressed.headers_mut() = fields(fields_of_response);
        accepted(Method::GET, accept).compress(uncompressed, |_| has_memory).await
    }

    const HTML: [(&str, &str); 4] = [
        ("content-type", "Text/HTML; charset=utf-8"),
        ("content-length", "5000"),
        ("etag", "\"1\""),
        ("accept-ranges", "bytes"),
    ];

    #[tokio::test]
    async fn rfc9110_8_4_text_is_compressed_for_clients_that_accept_it() {
        let response = compressed("gzip, br", &HTML).await;
        let headers = response.headers();
        assert_eq!(headers["content-encoding"], "br");
        assert_eq!(headers["vary"], "accept-encoding");
        assert_eq!(headers["etag"], "W/\"1\"");
        assert!(!headers.contains_key("content-length") && !headers.contains_key("accept-ranges"));
        assert!(response.into_body().collect().await.unwrap().to_bytes().len() < 100);
        for (accept, encoding) in [
            ("gzip;q=1, br;q=0", "gzip"),
            ("zstd", "zstd"),
            ("gzip, deflate, br, zstd", "zstd"),
            ("gzip;q=0.5, br;q=0.1", "gzip"),
        ] {
            assert_eq!(compressed(accept, &HTML).await.headers()["content-encoding"], encoding);
        }
    }

    #[tokio::test]
    async fn responses_that_must_not_be_compressed_are_unchanged() {
        let with = |name, value| [&[("content-type", "text/html")][..], &[(name, value)]].concat();
        for (accept, response) in [
            ("gzip", vec![("content-type", "image/png")]),
            ("gzip", vec![("content-type", "text/event-stream")]),
            ("gzip", vec![("x-other", "without a type")]),
            ("gzip", with("content-length", "1000")),
            ("gzip", with("cache-control", "max-age=1, No-Transform")),
            (
                "gzip",
                [with("cache-control", "max-age=1"), vec![("cache-control", "no-transform")]]
                    .concat(),
            ),
            ("gzip", with("content-range", "bytes 0-4999/6000")),
            ("gzip", with("content-digest", "sha-256=:x:")),
            ("gzip", with("content-encoding", "zstd")),
        ] {
            let response = compressed(accept, &response).await;
            let encoding = response.headers().get("content-encoding");
            assert!(encoding.is_none_or(|encoding| encoding == "zstd"), "{response:?}");
            assert!(!response.headers().contains_key("vary"), "{response:?}");
            assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 5000);
        }
        // `Vary` is set even so: a cache must not send these to clients that accept other
        // encodings.
        for response in [
            compressed("identity", &HTML).await,
            compressed("br;q=0, identity;q=0", &HTML).await,
            with_memory("br", &HTML, false).await,
        ] {
            assert_eq!(response.status(), 200);
            assert!(!response.headers().contains_key("content-encoding"), "{response:?}");
            assert_eq!(response.headers()["etag"], "\"1\"");
            assert_eq!(response.headers()["vary"], "accept-encoding");
        }
    }

    #[tokio::test]
    async fn rfc9110_15_4_5_a_304_has_the_fields_of_a_compressed_response() {
        let mut uncompressed = Response::new(crate::handler::response::empty());
        *uncompressed.status_mut() = StatusCode::NOT_MODIFIED;
        *uncompressed.headers_mut() = fields(&[("etag", "\"1\"")]);
        let response = accepted(Method::GET, "br").compress(uncompressed, |_| true).await;
        assert_eq!(response.status(), 304);
        assert_eq!(response.headers()["etag"], "W/\"1\"");
        assert_eq!(response.headers()["vary"], "accept-encoding");
        assert!(!response.headers().contains_key("content-encoding"));
    }

    #[tokio::test]
    async fn rfc9110_9_3_2_responses_to_head_have_no_bytes() {
        let mut uncompressed = Response::new(crate::handler::response::empty());
        *uncompressed.headers_mut() = fields(&HTML);
        let response = accepted(Method::HEAD, "br").compress(uncompressed, |_| true).await;
        assert_eq!(response.headers()["content-encoding"], "br");
        assert!(response.body().is_end_stream());
    }
}
