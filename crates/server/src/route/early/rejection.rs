//! Answers to requests that must not run, as RFC 9457 has it.

use firstflight_telemetry::metrics::BarredReason;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};

use crate::handler::response::{ResponseBody, plain};

/// Why a request must not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// The nonce of an early request was there before: perhaps in a copy of it.
    TooEarly,
    NonceWasUsed,
    KeyWasUsed,
    BadKey,
    /// Whether it has run already cannot be said now; and why, as the access log has it.
    Unknown(&'static str),
}

impl Rejection {
    /// As metrics have it.
    pub(crate) fn reason(self) -> BarredReason {
        match self {
            Self::TooEarly => BarredReason::TooEarly,
            Self::NonceWasUsed => BarredReason::NonceUsed,
            Self::KeyWasUsed => BarredReason::KeyUsed,
            Self::BadKey => BarredReason::BadKey,
            Self::Unknown(_) => BarredReason::Unknown,
        }
    }

    /// What its client is told.
    pub(crate) fn answer(self) -> Response<ResponseBody> {
        match self {
            Self::TooEarly => plain(StatusCode::TOO_EARLY),
            Self::NonceWasUsed => problem(
                StatusCode::CONFLICT,
                "This nonce has been used",
                "A request with this nonce was passed on before, and this one is not. Send a new \
                 nonce with each request.",
            ),
            Self::KeyWasUsed => problem(
                StatusCode::CONFLICT,
                "This Idempotency-Key has been used",
                "A request with this key was passed on before, and this one is not. It may be \
                 running still, or its answer may have been lost.",
            ),
            Self::BadKey => problem(
                StatusCode::BAD_REQUEST,
                "This Idempotency-Key is none",
                "Send one Idempotency-Key of 1 to 255 bytes.",
            ),
            Self::Unknown(why) => {
                let detail =
                    format!("It is not known whether this request was passed on before: {why}.");
                let title = "This request cannot be recorded now";
                let mut answer = problem(StatusCode::SERVICE_UNAVAILABLE, title, &detail);
                answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("2"));
                answer
            }
        }
    }
}

fn problem(status: StatusCode, title: &str, detail: &str) -> Response<ResponseBody> {
    let text = serde_json::json!({ "title": title, "status": status.as_u16(), "detail": detail });
    let body = Full::from(text.to_string()).map_err(|never| match never {}).boxed_unsync();
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static("application/problem+json");
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}
