//! The fields that tell an upstream about the client. This server is the edge: it sets or removes
//! them, in heads and in trailers, because a client's statements about itself are not trustworthy.
//! Those of trusted proxies have been read before (`route::client`).
//!
//! `Host` is kept. `X-Forwarded-For` and `X-Forwarded-Proto` are set, not extended. The other
//! fields that proxies add are removed. `Early-Data` is never removed on a client's request.

use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use firstflight_config::UPSTREAM_FIELDS;
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body, Frame, SizeHint};

/// Replaces the client's statements about itself by its address and scheme.
pub(crate) fn set(headers: &mut HeaderMap, client: IpAddr) {
    remove(headers, is_about_client);
    // A dual-stack socket reports IPv4 clients as mapped IPv6 addresses.
    let address = client.to_canonical();
    let address = HeaderValue::try_from(address.to_string()).expect("an address is visible ASCII");
    headers.insert(FORWARDED_FOR, address);
    headers.insert(FORWARDED_PROTO, HeaderValue::from_static("https"));
}

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Removes fields whose names differ from this server's own only by an underscore. Servers that
/// pass fields as variables (CGI, WSGI, FastCGI) treat both alike, so a client could forge its
/// address, or claim that its request is not early.
pub(crate) fn remove_lookalikes(headers: &mut HeaderMap) {
    remove_underscore_variants(headers, |name| UPSTREAM_FIELDS.contains(&name));
}

/// Like [`remove_lookalikes`], for a field that the configuration names, in lower case.
pub(crate) fn remove_lookalikes_of(field: &str, headers: &mut HeaderMap) {
    remove_underscore_variants(headers, |name| name == field.replace('_', "-"));
}

fn remove_underscore_variants(headers: &mut HeaderMap, is_ours: impl Fn(&str) -> bool) {
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

/// A request's body without trailers that would override its head.
pub(crate) struct Forwarded<B> {
    body: B,
    /// The field that identifies the flight for the upstream.
    flight: Option<HeaderName>,
}

impl<B> Forwarded<B> {
    pub(crate) fn new(body: B, flight: Option<HeaderName>) -> Self {
        Self { body, flight }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Forwarded<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let mut frame = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &mut frame
            && let Some(trailers) = frame.trailers_mut()
        {
            remove_from_trailers(trailers, self.flight.as_ref());
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Whether a field describes the client or its connection. CGI scripts see `Proxy` as the variable
/// HTTP_PROXY (CVE-2016-5385).
fn is_about_client(name: &str) -> bool {
    matches!(name, "forwarded" | "proxy" | "x-forwarded" | "x-real-ip")
        || name.starts_with("x-forwarded-")
}

/// RFC 9110 section 6.5.1: a trailer must not change framing, routing, authentication or response
/// control. Servers that merge trailers into the head would do so.
fn remove_from_trailers(trailers: &mut HeaderMap, flight: Option<&HeaderName>) {
    let flight = flight.map(|name| name.as_str().replace('_', "-"));
    remove(trailers, |name| {
        is_about_client(name)
            || name.starts_with("if-")
            || HEAD_ONLY.contains(&name)
            || flight.as_deref() == Some(name)
    });
}

/// Fields that are removed from trailers, in addition to those about the client.
const HEAD_ONLY: [&str; 26] = [
    "authorization",
    "cache-control",
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "cookie",
    "early-data",
    "expect",
    "host",
    "idempotency-key",
    "keep-alive",
    "max-forwards",
    "pragma",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "range",
    "set-cookie",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    "www-authenticate",
];

/// Removes the matching fields, also where `_` replaces `-`, as some servers read them.
fn remove(headers: &mut HeaderMap, matches: impl Fn(&str) -> bool) {
    let matching: Vec<HeaderName> = headers
        .keys()
        .filter(|name| match name.as_str() {
            name if name.contains('_') => matches(&name.replace('_', "-")),
            name => matches(name),
        })
        .cloned()
        .collect();
    for name in matching {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, StreamBody};

    use super::*;

    fn fields(names: &[&'static str]) -> HeaderMap {
        let value = HeaderValue::from_static("1");
        names.iter().map(|name| (HeaderName::from_static(name), value.clone())).collect()
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn a_clients_statements_about_itself_are_replaced() {
        let mut headers = fields(&[
            "forwarded",
            "proxy",
            "x-forwarded",
            "x-forwarded-for",
            "x-forwarded-host",
            "x-forwarded-port",
            "x-forwarded-prefix",
            "x-forwarded-proto",
            "x-forwarded-server",
            "x-forwarded-ssl",
            "x-forwarded_uri",
            "x-real-ip",
            "x_real_ip",
            "x-app",
            "proxy-status",
            "forwarded-by",
        ]);
        set(&mut headers, "::ffff:192.0.2.1".parse().unwrap());
        assert_eq!(
            names(&headers),
            ["forwarded-by", "proxy-status", "x-app", "x-forwarded-for", "x-forwarded-proto"]
        );
        assert_eq!(headers["x-forwarded-for"], "192.0.2.1");
        assert_eq!(headers["x-forwarded-proto"], "https");
    }

    #[tokio::test]
    async fn rfc9110_6_5_1_trailers_change_nothing_that_the_head_says() {
        let trailers = fields(&[
            "x-forwarded-for",
            "x_real_ip",
            "early-data",
            "early_data",
            "host",
            "content-length",
            "transfer-encoding",
            "authorization",
            "cookie",
            "if-match",
            "x-flight",
            "x_flight",
            "x-checksum",
            "grpc-status",
        ]);
        let frames = [Ok(Frame::data(Bytes::from("hello"))), Ok(Frame::trailers(trailers))];
        let body = StreamBody::new(futures_util::stream::iter(frames));
        let body = Forwarded::new(body, Some(HeaderName::from_static("x-flight")));
        let body: Result<_, std::io::Error> = body.collect().await;
        let body = body.unwrap();
        assert_eq!(names(body.trailers().unwrap()), ["grpc-status", "x-checksum"]);
        assert_eq!(body.to_bytes(), "hello");
    }

    #[test]
    fn only_lookalikes_of_this_servers_fields_are_removed() {
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
