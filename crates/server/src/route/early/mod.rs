//! What a route demands of early requests beside the policy, and which requests run once by their
//! own word: `Idempotency-Key` (draft-ietf-httpapi-idempotency-key-header), time stamps, nonces.
//!
//! The gate keeps a *flight* from running twice. These rules keep a *request* from it, which a
//! client may send again by itself: on another connection, after early data was refused, to another
//! node. So they hold for late requests too, and are asked when a request is about to run.

mod fields;
mod names;
mod rejection;

use std::time::Duration;

use firstflight_config::{Mode, Timestamp};
use firstflight_replay::{ClaimKey, Decision, Flight};
use firstflight_tls::SteadyClock;
use http::{HeaderMap, HeaderName, HeaderValue, Request};

use crate::gate::{EarlyDataGate, NameClaim};
use crate::route::validation;
use fields::{Field, IDEMPOTENCY_KEY, is_fresh, only};
use names::name;
pub(crate) use rejection::Rejection;

/// A mark on an answer of ours: certainly no byte of the request has reached an application.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NotSent;

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

/// The field by which the upstream learns of the flight, and what it says.
type FlightField = Option<(HeaderName, Option<HeaderValue>)>;

/// A request that may run, and what it has claimed for that.
#[derive(Debug, Default)]
pub(crate) struct RequestClaims {
    /// The claim that goes back if the request is not sent.
    key: Option<ClaimKey>,
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
        let by_method = match mode {
            Mode::Disabled => return false,
            Mode::Strict => method.is_safe() && request.uri().query().is_none(),
            Mode::Permissive => method.is_safe(),
            Mode::Unrestricted => true,
        };
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
        Ok(RequestClaims { key: self.key.map(|(key, _)| key), flight: self.flight })
    }
}

impl RequestClaims {
    /// The field that names the flight to the upstream.
    pub(crate) fn flight_field(&self) -> Option<&HeaderName> {
        self.flight.as_ref().map(|(name, _)| name)
    }

    /// Marks the request for the upstream. What a client says of flights is no evidence.
    pub(crate) fn mark(&self, headers: &mut HeaderMap) {
        if let Some((header, id)) = &self.flight {
            validation::remove_lookalikes_of(header.as_str(), headers);
            match id {
                Some(id) => headers.insert(header.clone(), id.clone()),
                None => headers.remove(header),
            };
        }
    }

    /// Gives back what was claimed for nothing, as the answer's extensions say.
    pub(crate) async fn leave(&self, answer: &http::Extensions, gate: &EarlyDataGate) {
        if let (Some(key), Some(NotSent)) = (self.key, answer.get()) {
            gate.release_name(key).await;
        }
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

#[cfg(test)]
mod tests;
