//! A request's form, as the protocol to the server wants it.

use http::{HeaderValue, Uri, Version, header, request};
use http_body::Body as _;

use crate::{Body, PoolConfig, Protocol, SendError};

/// Gives a request the form that the protocol wants.
pub(crate) fn shape(
    head: &mut request::Parts,
    body: &Body,
    config: &PoolConfig,
) -> Result<(), SendError> {
    let first = || config.servers[0].authority();
    match config.protocol {
        Protocol::Http1 => {
            head.version = Version::HTTP_11;
            if !body.is_end_stream() && body.size_hint().exact().is_none() {
                // RFC 9112 section 6.1. The library does so by itself for some methods only, and
                // leaves a GET's or HEAD's body out.
                head.headers.remove(header::CONTENT_LENGTH);
                head.headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            }
            if head.headers.contains_key(header::TE) {
                // RFC 9110 section 10.1.4.
                head.headers.insert(header::CONNECTION, HeaderValue::from_static("te"));
            }
            if !head.headers.contains_key(header::HOST)
                && let Ok(host) = HeaderValue::from_str(&first())
            {
                head.headers.insert(header::HOST, host);
            }
        }
        Protocol::Http2 if head.headers.contains_key(header::UPGRADE) => {
            return Err(SendError::NoUpgrade);
        }
        Protocol::Http2 => {
            // RFC 9113 section 8.3.1: `:authority` in place of `Host`.
            head.version = Version::HTTP_2;
            let host = head.headers.remove(header::HOST);
            let host = host.and_then(|host| host.to_str().map(str::to_owned).ok());
            let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
            head.uri = Uri::builder()
                .scheme(if config.servers[0].is_tls() { "https" } else { "http" })
                .authority(host.unwrap_or_else(first))
                .path_and_query(target)
                .build()
                .map_err(|_| SendError::BadHost)?;
        }
    }
    Ok(())
}
