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

use std::mem::replace;
use std::sync::Arc;
use std::time::{Duration, Instant};

use firstflight_replay::ClaimKey;
use futures_util::FutureExt;
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use self::forwarded::remove_lookalikes_of;
use self::websocket::WebSocket;
use crate::context::HandshakeState;
use crate::gate::{EarlyDataGate, NameClaim};
use crate::observe::connection::ConnectionObserver;
use crate::observe::request::{Execution, RequestRecord};

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
#[derive(Default)]
pub(crate) struct RequestClaims {
    /// Nonce and key.
    names: [Option<HeldName>; 2],
    flight: FlightField,
}

/// A claimed name. Dropped, it is released, unless its request may have been executed: the client
/// may have given up before anything was sent to an upstream, and may try again.
pub(crate) struct HeldName {
    gate: Arc<EarlyDataGate>,
    execution: Execution,
    name: ClaimKey,
    /// Later the name may be another request's.
    releasable_until: Instant,
    is_released: bool,
}

/// The field that identifies the flight for the upstream, and its value.
pub(crate) type FlightField = Option<(HeaderName, Option<HeaderValue>)>;

impl RequestClaims {
    pub(crate) fn new(names: [Option<HeldName>; 2], flight: FlightField) -> Self {
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

    /// Releases the names if the request was not executed, before its response is sent.
    pub(crate) async fn release_unless_executed(self) {
        for name in self.names.into_iter().flatten() {
            name.release_unless_executed().await;
        }
    }
}

impl HeldName {
    /// Claims a name for a request. A claim that has to wait does so in a task of its own: if the
    /// client leaves, it still has to be recorded and released.
    ///
    /// # Errors
    /// Why the request does not hold the name.
    pub(crate) async fn claim(
        gate: &Arc<EarlyDataGate>,
        (name, lifetime): (ClaimKey, Duration),
        execution: Execution,
    ) -> Result<Self, NameClaim> {
        let gate = gate.clone();
        let releasable_until = Instant::now() + lifetime.saturating_sub(RELEASE_MARGIN);
        let mut claiming = Box::pin(async move {
            match gate.claim_name(name, lifetime).await {
                NameClaim::Won => {
                    Ok(Self { gate, execution, name, releasable_until, is_released: false })
                }
                other => Err(other),
            }
        });
        // This process's register decides at once. In a task the claim would wait for its turn, the
        // handshake would often be complete by then, and an early request would no longer be marked.
        if let Some(claimed) = (&mut claiming).now_or_never() {
            return claimed;
        }
        let claiming = tokio::spawn(claiming);
        claiming.await.unwrap_or(Err(NameClaim::Unknown("interrupted")))
    }

    /// Releases the name, unless its request may have been executed.
    pub(crate) async fn release_unless_executed(mut self) {
        if let Some(releasing) = self.start_release() {
            let _ = releasing.await;
        }
    }

    fn start_release(&mut self) -> Option<JoinHandle<()>> {
        let is_late = Instant::now() >= self.releasable_until;
        if self.execution.is_possible() || is_late || replace(&mut self.is_released, true) {
            return None;
        }
        let (gate, name) = (self.gate.clone(), self.name);
        let runtime = Handle::try_current().ok()?;
        Some(runtime.spawn(async move { gate.release_name(name).await }))
    }
}

impl Drop for HeldName {
    fn drop(&mut self) {
        self.start_release();
    }
}

/// How long before the end of a name's claim it is released at the latest.
const RELEASE_MARGIN: Duration = Duration::from_secs(1);
