//! What responds to a request that may run: files, an upstream, WebSocket, ACME challenges.

pub(crate) mod acme_challenge;
pub(crate) mod files;
pub(crate) mod forwarded;
pub(crate) mod proxy;
pub(crate) mod response;
pub(crate) mod websocket;

use std::time::Duration;

use firstflight_replay::ClaimKey;
use http::{HeaderMap, HeaderName, HeaderValue};

use self::forwarded::remove_lookalikes_of;
use self::websocket::WebSocket;
use crate::context::HandshakeState;
use crate::gate::EarlyDataGate;
use crate::observe::connection::ConnectionObserver;
use crate::observe::request::RequestRecord;

/// What a handler is told of a request beside its head and body.
pub(crate) struct RequestContext<'a> {
    pub(crate) connection: &'a ConnectionObserver,
    pub(crate) handshake: &'a HandshakeState,
    /// Whether the request came early and its connection's handshake is incomplete now.
    pub(crate) before_completion: bool,
    /// What it has claimed.
    pub(crate) claims: &'a RequestClaims,
    /// Where the upstream's work is noted, and what the request holds.
    pub(crate) record: &'a RequestRecord,
    /// The field by which the upstream goes on with the request's trace.
    pub(crate) traceparent: Option<String>,
    /// The WebSocket that it requests, if it does.
    pub(crate) websocket: Option<WebSocket>,
    /// How long to read a body that the response does not depend on.
    pub(crate) body_timeout: Duration,
}

/// What a request has claimed to run, and what the upstream learns of its flight.
#[derive(Debug, Default)]
pub(crate) struct RequestClaims {
    /// The claim that is released if the request is not sent.
    key: Option<ClaimKey>,
    flight: FlightField,
}

/// The field by which the upstream learns of the flight, and its value.
pub(crate) type FlightField = Option<(HeaderName, Option<HeaderValue>)>;

/// A mark on a response of ours: certainly no byte of the request has reached an application.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NotSent;

impl RequestClaims {
    pub(crate) fn new(key: Option<ClaimKey>, flight: FlightField) -> Self {
        Self { key, flight }
    }

    /// The field that names the flight to the upstream.
    pub(crate) fn flight_field(&self) -> Option<&HeaderName> {
        self.flight.as_ref().map(|(name, _)| name)
    }

    /// Marks the request for the upstream. What a client says of flights is no evidence.
    pub(crate) fn mark(&self, headers: &mut HeaderMap) {
        if let Some((header, id)) = &self.flight {
            remove_lookalikes_of(header.as_str(), headers);
            match id {
                Some(id) => headers.insert(header.clone(), id.clone()),
                None => headers.remove(header),
            };
        }
    }

    /// Releases what was claimed for nothing, as the response's extensions say.
    pub(crate) async fn release_if_unsent(
        &self,
        response: &http::Extensions,
        gate: &EarlyDataGate,
    ) {
        if let (Some(key), Some(NotSent)) = (self.key, response.get()) {
            gate.release_name(key).await;
        }
    }
}
