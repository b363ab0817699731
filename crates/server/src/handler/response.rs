//! Responses that the server produces itself, and request bodies that are not used.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::{BodyExt, Empty, Full};
use tokio::time::timeout;

use crate::context::ResponseBody;

/// A short plain-text response, without content for statuses that have none (RFC 9110 sections
/// 15.3.5, 15.3.6 and 15.4.5).
pub(crate) fn plain(status: StatusCode) -> Response<ResponseBody> {
    if matches!(
        status,
        StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::NOT_MODIFIED
    ) {
        let mut response = Response::new(empty());
        *response.status_mut() = status;
        return response;
    }
    let text = format!("{} {}\n", status.as_u16(), status.canonical_reason().unwrap_or_default());
    let mut response =
        Response::new(Full::from(text).map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// Reads the body of a request whose response does not depend on it, to verify that the request is
/// complete: a body of the wrong length must not get a normal response (RFC 9113 section 8.1.1). A
/// long body is not read to its end, and a client that waits for 100 (Continue) is not told to
/// send.
///
/// Returns false if the body is malformed.
pub(crate) async fn discard<B>(request: &mut Request<B>, limit: Duration) -> bool
where
    B: Body<Data = Bytes> + Unpin,
{
    if request.body().is_end_stream() || request.headers().contains_key(header::EXPECT) {
        return true;
    }
    let reading = async {
        let mut left = MAX_DISCARDED;
        while let Some(frame) = request.body_mut().frame().await {
            let Ok(frame) = frame else { return false };
            match left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
                Some(rest) => left = rest,
                None => break,
            }
        }
        true
    };
    timeout(limit, reading).await.unwrap_or(true)
}

/// Enough for a form that is sent to the wrong address, not for an upload.
const MAX_DISCARDED: usize = 64 * 1024;

/// An empty body.
pub(crate) fn empty() -> ResponseBody {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// A response to HEAD: the length of the content instead of the content (RFC 9110 section 9.3.2).
pub(crate) fn head_of(mut response: Response<ResponseBody>) -> Response<ResponseBody> {
    let body = std::mem::replace(response.body_mut(), empty());
    if let (false, Some(length)) = (body.is_end_stream(), body.size_hint().exact()) {
        response.headers_mut().entry(header::CONTENT_LENGTH).or_insert_with(|| length.into());
    }
    response
}

/// A problem response (RFC 9457).
pub(crate) fn problem(status: StatusCode, title: &str, detail: &str) -> Response<ResponseBody> {
    let text = serde_json::json!({ "title": title, "status": status.as_u16(), "detail": detail });
    let body = Full::from(text.to_string()).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
