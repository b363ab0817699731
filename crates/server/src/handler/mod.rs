//! Produces the responses: files, upstreams, WebSocket tunnels, ACME challenges.

pub(crate) mod acme_challenge;
pub(crate) mod compress;
pub(crate) mod files;
pub(crate) mod forwarded;
pub(crate) mod proxy;
pub(crate) mod response;
pub(crate) mod rewrite;
mod small_files;
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

/// What a handler knows about a request in addition to its head and body.
pub(crate) struct RequestContext<'a> {
    pub(crate) connection: &'a ConnectionObserver,
    pub(crate) handshake: &'a HandshakeState,
    /// Whether the request arrived early and its handshake is still incomplete.
    pub(crate) before_completion: bool,
    /// The claims that the request holds.
    pub(crate) claims: &'a RequestClaims,
    /// To which handlers add the upstream's work, the memory that the request holds, and counts.
    pub(crate) record: &'a RequestRecord,
    /// The `traceparent` field that continues the request's trace at the upstream.
    pub(crate) traceparent: Option<String>,
    /// The kind of WebSocket that the request opens, if any.
    pub(crate) websocket: Option<WebSocket>,
    /// Sends Early Hints to the client; `None` if this is not possible.
    pub(crate) early_hints: Option<&'a (dyn Fn(HeaderMap) + Send + Sync)>,
    /// How long to read a body that the response does not depend on.
    pub(crate) body_timeout: Duration,
}

/// The claims of a request, and the field that identifies its flight for the upstream.
#[derive(Debug, Default)]
pub(crate) struct RequestClaims {
    /// The names that are released if the request is not executed: nonce and key.
    names: [Option<ClaimKey>; 2],
    flight: FlightField,
}

/// The field that identifies the flight for the upstream, and its value.
pub(crate) type FlightField = Option<(HeaderName, Option<HeaderValue>)>;

/// Marks a response to a request that certainly no application has executed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NotExecuted;

impl RequestClaims {
    pub(crate) fn new(names: [Option<ClaimKey>; 2], flight: FlightField) -> Self {
        Self { names, flight }
    }

    /// The field that identifies the flight for the upstream.
    pub(crate) fn flight_field(&self) -> Option<&HeaderName> {
        self.flight.as_ref().map(|(name, _)| name)
    }

    /// Whether the request holds names, which no other request can claim meanwhile.
    pub(crate) fn hold_names(&self) -> bool {
        self.names.iter().any(Option::is_some)
    }

    /// Sets the field that identifies the flight, replacing any value from the client.
    pub(crate) fn set_flight_field(&self, headers: &mut HeaderMap) {
        if let Some((header, id)) = &self.flight {
            remove_lookalikes_of(header.as_str(), headers);
            match id {
                Some(id) => headers.insert(header.clone(), id.clone()),
                None => headers.remove(header),
            };
        }
    }

    /// Releases the names if the response's extensions say that the request was not executed.
    pub(crate) async fn release_if_not_executed(
        &self,
        response: &http::Extensions,
        gate: &EarlyDataGate,
    ) {
        if let Some(NotExecuted) = response.get() {
            for name in self.names.into_iter().flatten() {
                gate.release_name(name).await;
            }
        }
    }
}
