//! Sends Early Hints (RFC 8297) to clients of HTTP/1.1 and HTTP/3. hyper 1.12 has no way to send
//! 1xx responses over HTTP/2.

use std::sync::{Mutex, PoisonError};

use http::{HeaderMap, HeaderName, Request, Response, StatusCode, Version, header};

use crate::http::framed_stream::RequestFraming;

/// How a request's Early Hints reach the client.
pub(crate) enum InterimResponses {
    /// They cannot be sent.
    None,
    /// By the stream below the HTTP library.
    Http1(RequestFraming),
    /// By the task that responds: queued until [`InterimResponses::take`].
    Http3(Mutex<Vec<Response<()>>>),
}

impl InterimResponses {
    /// For a request over HTTP/1: HTTP/1.0 has no interim responses (RFC 9110 section 15.2).
    pub(crate) fn http1<B>(request: &Request<B>, framing: Option<&RequestFraming>) -> Self {
        match framing {
            Some(framing) if request.version() == Version::HTTP_11 => Self::Http1(framing.clone()),
            _ => Self::None,
        }
    }

    pub(crate) fn http3() -> Self {
        Self::Http3(Mutex::default())
    }

    pub(crate) fn are_possible(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// Sends the fields of a hint that clients use. Sends nothing without `Link`.
    pub(crate) fn send_early_hints(&self, mut headers: HeaderMap) {
        let unused: Vec<_> =
            headers.keys().filter(|name| !EARLY_HINT_FIELDS.contains(name)).cloned().collect();
        for name in unused {
            headers.remove(name);
        }
        if !headers.contains_key(header::LINK) {
            return;
        }
        match self {
            Self::None => {}
            Self::Http1(framing) => framing.send_interim(&http1_head(&headers)),
            Self::Http3(queue) => {
                let mut response = Response::new(());
                *response.status_mut() = StatusCode::EARLY_HINTS;
                *response.headers_mut() = headers;
                queue.lock().unwrap_or_else(PoisonError::into_inner).push(response);
            }
        }
    }

    /// Takes the queued responses, to be sent over HTTP/3.
    pub(crate) fn take(&self) -> Vec<Response<()>> {
        match self {
            Self::Http3(queue) => {
                std::mem::take(&mut *queue.lock().unwrap_or_else(PoisonError::into_inner))
            }
            _ => Vec::new(),
        }
    }
}

/// The fields that browsers process before the response (HTML standard, "early hints").
const EARLY_HINT_FIELDS: [HeaderName; 3] =
    [header::LINK, header::CONTENT_SECURITY_POLICY, header::REFERRER_POLICY];

/// The response in the syntax of HTTP/1.1 (RFC 9112 section 2.1).
fn http1_head(headers: &HeaderMap) -> Vec<u8> {
    let mut head = b"HTTP/1.1 103 Early Hints\r\n".to_vec();
    for (name, value) in headers {
        head.extend_from_slice(name.as_str().as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    head
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn early_hints_have_only_fields_that_clients_use() {
        let interim = InterimResponses::http3();
        let mut headers = HeaderMap::new();
        headers.insert(header::SET_COOKIE, HeaderValue::from_static("a=b"));
        interim.send_early_hints(headers.clone());
        assert!(interim.take().is_empty(), "without a link");
        headers.append(header::LINK, HeaderValue::from_static("</a.css>; rel=preload"));
        headers.append(header::LINK, HeaderValue::from_static("</b.css>; rel=preload"));
        headers.append(header::CONTENT_LENGTH, HeaderValue::from_static("5"));
        interim.send_early_hints(headers);
        let sent = interim.take();
        assert_eq!((sent.len(), sent[0].status()), (1, StatusCode::EARLY_HINTS));
        let expected = "HTTP/1.1 103 Early Hints\r\nlink: </a.css>; rel=preload\r\n\
                        link: </b.css>; rel=preload\r\n\r\n";
        assert_eq!(String::from_utf8(http1_head(sent[0].headers())).unwrap(), expected);
        assert!(interim.take().is_empty());
    }
}
