//! Reads requests and writes responses: HTTP/1.1, HTTP/2, HTTP/3, and ping-pong.

pub(crate) mod connection;
pub(crate) mod date;
pub(crate) mod framed_stream;
pub(crate) mod frames;
pub(crate) mod framing;
pub(crate) mod h1_h2;
pub(crate) mod h3;
pub(crate) mod h3_streams;
pub(crate) mod interim;
pub(crate) mod ping_pong;
pub(crate) mod redirect;
pub(crate) mod request;
pub(crate) mod socket;
pub(crate) mod stream;

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::runtime::Handle;

use crate::context::Shutdown;
use crate::context::memory::MemoryBudget;
use crate::gate::{EarlyDataGate, UnspentFlight};
use crate::handler::acme_challenge::AcmeChallenges;
use crate::observe::Observers;
use crate::route::Snapshot;

/// State that all connections share, for as long as the process lives.
pub(crate) struct ServerContext {
    pub(crate) snapshot: ArcSwap<Snapshot>,
    pub(crate) observers: Arc<Observers>,
    pub(crate) memory: Arc<MemoryBudget>,
    pub(crate) gate: Arc<EarlyDataGate>,
    pub(crate) challenges: AcmeChallenges,
    pub(crate) shutdown: Shutdown,
}

impl ServerContext {
    /// The newest snapshot.
    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Records a refused flight in the background, if that does not depend on its client: the client
    /// has left before its handshake was complete, or before it sent a request.
    pub(crate) fn spend_abandoned_in_background(self: &Arc<Self>, flight: UnspentFlight) {
        if let (true, Ok(runtime)) = (flight.must_be_recorded(), Handle::try_current()) {
            let shared = self.clone();
            runtime.spawn(async move { shared.gate.spend_abandoned(flight).await });
        }
    }
}
