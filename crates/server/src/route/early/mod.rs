//! What a route demands of early requests beside the policy, and which requests run once by their
//! own word: `Idempotency-Key` (draft-ietf-httpapi-idempotency-key-header), time stamps, nonces.
//!
//! The gate keeps a *flight* from running twice. These rules keep a *request* from it, which a
//! client may send again by itself: on another connection, after early data was refused, to another
//! node. So they hold for late requests too, and are asked when a request is about to run.

mod fields;

use std::time::Duration;

use fields::name;
use fields::{Field, IDEMPOTENCY_KEY, is_fresh, only};
use firstflight_config::{Mode, Timestamp};
use firstflight_replay::{ClaimKey, Decision, Flight};
use firstflight_telemetry::metrics::RejectReason;
use firstflight_tls::SteadyClock;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};

use crate::context::ResponseBody;
use crate::gate::{EarlyDataGate, NameClaim};
use crate::handler::response::{plain, problem};
use crate::handler::{FlightField, RequestClaims};

/// The rules of one route.
#[derive(Clone, Debug, Default)]
pub(crate) struct RouteRules(firstflight_config::EarlyRules);

/// What a request has to claim before it may run: names, and for how long.
#[derive(Debug, Default)]
pub(crate) struct RequiredClaims {
    nonce: Option<(ClaimKey, Duration)>,
    key: Option<(ClaimKey, Duration)>,
    /// Its handshake was not awaited.
    ran_early: bool,
    flight: FlightField,
}

impl RouteRules {
    pub(crate) fn new(rules: &firstflight_config::EarlyRules) -> Self {
        Self(rules.clone())
    }

    /// Whether a request may run from early data. `mode`: what holds for its path. It depends on
    /// nothing but the request and the time.
    pub(crate) fn may_run_early<B>(&self, request: &Request<B>, mode: Mode) -> bool {
        let (method, headers) = (request.method(), request.headers());
        if mode == Mode::Disabled {
            return false;
        }
        let by_method = mode.allows(method, request.uri().query());
        let by_key = || {
            !method.is_safe()
                && self.0.idempotency_key.is_some()
                && matches!(only(headers, &IDEMPOTENCY_KEY), Field::Value(_))
        };
        (by_method || by_key())
            && self.0.timestamp.as_ref().is_none_or(|rule| has_fresh(headers, rule))
            && self
                .0
                .nonce
                .as_ref()
                .is_none_or(|rule| matches!(only(headers, &rule.header), Field::Value(_)))
    }

    /// What a request that is about to run has to claim. `decision`: the gate's first word, if it
    /// came early, in `flight`.
    ///
    /// # Errors
    /// Why the request must not run.
    pub(crate) fn required_claims<B>(
        &self,
        request: &Request<B>,
        (decision, flight): (Option<Decision>, Option<Flight>),
    ) -> Result<RequiredClaims, Rejection> {
        let id = flight.filter(|_| decision.is_some()).and_then(flight_id);
        Ok(RequiredClaims {
            nonce: self.nonce(request),
            key: self.idempotency_key(request)?,
            ran_early: decision == Some(Decision::Execute),
            flight: self.0.flight_header.clone().map(|header| (header, id)),
        })
    }

    fn nonce<B>(&self, request: &Request<B>) -> Option<(ClaimKey, Duration)> {
        let rule = self.0.nonce.as_ref()?;
        match only(request.headers(), &rule.header) {
            Field::Value(value) => Some((name("nonce", request, value), rule.lifetime)),
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
        match only(request.headers(), &IDEMPOTENCY_KEY) {
            Field::Absent => Ok(None),
            Field::Value(value) => Ok(Some((name("key", request, value), lifetime))),
            Field::Odd => Err(Rejection::BadKey),
        }
    }
}

impl RequiredClaims {
    /// Claims it, and lets the request run.
    ///
    /// # Errors
    /// Why the request must not run.
    pub(crate) async fn claim(self, gate: &EarlyDataGate) -> Result<RequestClaims, Rejection> {
        if let Some((nonce, lifetime)) = self.nonce {
            match gate.claim_name(nonce, lifetime).await {
                NameClaim::Won => {}
                NameClaim::Taken if self.ran_early => return Err(Rejection::TooEarly),
                NameClaim::Taken => return Err(Rejection::NonceWasUsed),
                NameClaim::Unknown(why) => return Err(Rejection::Unknown(why)),
            }
        }
        if let Some((key, lifetime)) = self.key {
            match gate.claim_name(key, lifetime).await {
                NameClaim::Won => {}
                NameClaim::Taken => return Err(Rejection::KeyWasUsed),
                NameClaim::Unknown(why) => return Err(Rejection::Unknown(why)),
            }
        }
        Ok(RequestClaims::new(self.key.map(|(key, _)| key), self.flight))
    }
}

fn has_fresh(headers: &HeaderMap, rule: &Timestamp) -> bool {
    match only(headers, &rule.header) {
        Field::Value(value) => is_fresh(value, rule.window, SteadyClock::unix_micros()),
        _ => false,
    }
}

fn flight_id(flight: Flight) -> Option<HeaderValue> {
    HeaderValue::from_str(&flight.key().to_string()).ok()
}

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
    pub(crate) fn reason(self) -> RejectReason {
        match self {
            Self::TooEarly => RejectReason::TooEarly,
            Self::NonceWasUsed => RejectReason::NonceUsed,
            Self::KeyWasUsed => RejectReason::KeyUsed,
            Self::BadKey => RejectReason::BadKey,
            Self::Unknown(_) => RejectReason::Unknown,
        }
    }

    /// What its client is told.
    pub(crate) fn response(self) -> Response<ResponseBody> {
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
                let mut response = problem(StatusCode::SERVICE_UNAVAILABLE, title, &detail);
                response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("2"));
                response
            }
        }
    }
}

#[cfg(test)]
mod tests;
