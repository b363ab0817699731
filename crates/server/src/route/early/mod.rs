//! The rules of a route for early requests, in addition to the policy, and for requests that run
//! only once: `Idempotency-Key` (draft-ietf-httpapi-idempotency-key-header), timestamps, nonces.
//!
//! The gate keeps a *flight* from being executed twice. These rules keep a *request* from being
//! executed twice, which a client may send again on another connection, after early data was
//! refused, or to another node. They therefore apply to late requests too, and are checked when a
//! request is about to run.

mod fields;

use std::sync::Arc;
use std::time::Duration;

use fields::{Field, IDEMPOTENCY_KEY, claim_key, is_fresh, single_field};
use firstflight_config::{Mode, Timestamp};
use firstflight_replay::{ClaimKey, Decision, Flight};
use firstflight_telemetry::metrics::RejectReason;
use firstflight_tls::SteadyClock;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};

use crate::context::ResponseBody;
use crate::gate::{EarlyDataGate, NameClaim};
use crate::handler::response::{plain, problem};
use crate::handler::{FlightField, HeldName, RequestClaims};
use crate::observe::request::Execution;

/// The rules of one route.
#[derive(Clone, Debug, Default)]
pub(crate) struct RouteRules(firstflight_config::EarlyRules);

/// The names that a request has to claim before it may run, each with its lifetime.
#[derive(Debug, Default)]
pub(crate) struct RequiredClaims {
    nonce: Option<(ClaimKey, Duration)>,
    key: Option<(ClaimKey, Duration)>,
    /// Whether the request runs before its handshake is complete.
    ran_early: bool,
    flight: FlightField,
}

impl RouteRules {
    pub(crate) fn new(rules: &firstflight_config::EarlyRules) -> Self {
        Self(rules.clone())
    }

    /// Whether a request may run as early data. `mode`: the policy's mode for its path. Depends
    /// only on the request and the time.
    pub(crate) fn may_run_early<B>(&self, request: &Request<B>, mode: Mode) -> bool {
        let (method, headers) = (request.method(), request.headers());
        if mode == Mode::Disabled {
            return false;
        }
        let by_method = mode.allows(method, request.uri().query());
        let by_key = || {
            !method.is_safe()
                && self.0.idempotency_key.is_some()
                && matches!(single_field(headers, &IDEMPOTENCY_KEY), Field::Value(_))
        };
        (by_method || by_key())
            && self.0.timestamp.as_ref().is_none_or(|rule| has_fresh(headers, rule))
            && self
                .0
                .nonce
                .as_ref()
                .is_none_or(|rule| matches!(single_field(headers, &rule.header), Field::Value(_)))
    }

    /// The claims that a request needs before it runs. `decision`: the gate's decision, if the
    /// request arrived early, in `flight`.
    ///
    /// # Errors
    /// Why the request is rejected.
    pub(crate) fn required_claims<B>(
        &self,
        request: &Request<B>,
        (decision, flight): (Option<Decision>, Option<Flight>),
    ) -> Result<RequiredClaims, Rejection> {
        let early = flight.filter(|_| decision.is_some());
        Ok(RequiredClaims {
            nonce: self.nonce(request),
            key: self.idempotency_key(request)?,
            ran_early: decision == Some(Decision::Execute),
            flight: self.0.flight_header.clone().map(|header| (header, early.and_then(flight_id))),
        })
    }

    fn nonce<B>(&self, request: &Request<B>) -> Option<(ClaimKey, Duration)> {
        let rule = self.0.nonce.as_ref()?;
        match single_field(request.headers(), &rule.header) {
            Field::Value(value) => Some((claim_key("nonce", request, value), rule.lifetime)),
            _ => None,
        }
    }

    fn idempotency_key<B>(
        &self,
        request: &Request<B>,
    ) -> Result<Option<(ClaimKey, Duration)>, Rejection> {
        let Some(lifetime) = self.0.idempotency_key else { return Ok(None) };
        if request.method().is_safe() {
            return Ok(None);
        }
        match single_field(request.headers(), &IDEMPOTENCY_KEY) {
            Field::Absent => Ok(None),
            Field::Value(value) => Ok(Some((claim_key("key", request, value), lifetime))),
            Field::Invalid => Err(Rejection::InvalidKey),
        }
    }
}

impl RequiredClaims {
    /// Claims the names.
    ///
    /// # Errors
    /// Why the request is rejected.
    pub(crate) async fn claim(
        self,
        gate: &Arc<EarlyDataGate>,
        execution: impl Fn() -> Execution,
    ) -> Result<RequestClaims, Rejection> {
        let claim = async |required: Option<(ClaimKey, Duration)>| match required {
            Some(required) => HeldName::claim(gate, required, execution()).await.map(Some),
            None => Ok(None),
        };
        let nonce = claim(self.nonce).await.map_err(|why| match why {
            NameClaim::Unknown(why) => Rejection::Unknown(why),
            _ if self.ran_early => Rejection::TooEarly,
            _ => Rejection::NonceUsed,
        })?;
        let key = match claim(self.key).await {
            Ok(key) => key,
            Err(why) => {
                if let Some(nonce) = nonce {
                    nonce.release_unless_executed().await;
                }
                return Err(match why {
                    NameClaim::Unknown(why) => Rejection::Unknown(why),
                    _ => Rejection::KeyUsed,
                });
            }
        };
        Ok(RequestClaims::new([nonce, key], self.flight))
    }
}

fn has_fresh(headers: &HeaderMap, rule: &Timestamp) -> bool {
    match single_field(headers, &rule.header) {
        Field::Value(value) => is_fresh(value, rule.window, SteadyClock::unix_micros()),
        _ => false,
    }
}

fn flight_id(flight: Flight) -> Option<HeaderValue> {
    HeaderValue::from_str(&flight.key().to_string()).ok()
}

/// Why a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// The nonce of an early request was used before, perhaps by a copy of it.
    TooEarly,
    NonceUsed,
    KeyUsed,
    InvalidKey,
    /// It is unknown whether the request was executed before. With the reason for the access log.
    Unknown(&'static str),
}

impl Rejection {
    /// The reason as metrics name it.
    pub(crate) fn reason(self) -> RejectReason {
        match self {
            Self::TooEarly => RejectReason::TooEarly,
            Self::NonceUsed => RejectReason::NonceUsed,
            Self::KeyUsed => RejectReason::KeyUsed,
            Self::InvalidKey => RejectReason::BadKey,
            Self::Unknown(_) => RejectReason::Unknown,
        }
    }

    /// The response to the client.
    pub(crate) fn response(self) -> Response<ResponseBody> {
        match self {
            Self::TooEarly => plain(StatusCode::TOO_EARLY),
            Self::NonceUsed => problem(
                StatusCode::CONFLICT,
                "This nonce has been used",
                "A request with this nonce was forwarded before, so this one is rejected. Send a new \
                 nonce with each request.",
            ),
            Self::KeyUsed => problem(
                StatusCode::CONFLICT,
                "This Idempotency-Key has been used",
                "A request with this key was forwarded before, so this one is rejected. The other \
                 one may be still running, or its response may have been lost.",
            ),
            Self::InvalidKey => problem(
                StatusCode::BAD_REQUEST,
                "This Idempotency-Key is invalid",
                "Send one Idempotency-Key of 1 to 255 bytes.",
            ),
            Self::Unknown(why) => {
                let detail =
                    format!("It is unknown whether this request was forwarded before: {why}.");
                let title = "This request cannot be recorded now";
                let mut response = problem(StatusCode::SERVICE_UNAVAILABLE, title, &detail);
                response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("2"));
                response
            }
        }
    }
}

#[cfg(test)]
mod tests;
