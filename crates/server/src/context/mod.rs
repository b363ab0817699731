//! Used by all stages: connection facts, shutdown stages, clocks, memory limits.

pub(crate) mod memory;

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use firstflight_replay::Flight;
use firstflight_telemetry::metrics::RefusedReason;
use firstflight_tickets::UnixTime;
use firstflight_tls::{Handshake, SteadyClock};
use nix::time::{ClockId, clock_gettime};
use tokio::sync::watch;

/// Why a response's body failed.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The body of any response.
pub(crate) type ResponseBody = http_body_util::combinators::UnsyncBoxBody<Bytes, BodyError>;

/// The facts of a connection once early data is accepted or refused.
pub(crate) struct ConnectionFacts {
    pub(crate) client: SocketAddr,
    /// The address that the client connected to.
    pub(crate) local: SocketAddr,
    pub(crate) tls: Handshake,
    /// Why TLS refused early data; `None` if it was accepted.
    pub(crate) refused: Option<RefusedReason>,
    /// The flight, if TLS accepted early data.
    pub(crate) flight: Option<Flight>,
}

impl ConnectionFacts {
    /// Whether early data was accepted, or why not, as in the access log.
    pub(crate) fn early_data(&self) -> &'static str {
        self.refused.map_or("accepted", RefusedReason::name)
    }

    /// Whether another connection has the flight's claim.
    pub(crate) fn lost_claim(&self) -> bool {
        self.flight.is_some_and(|flight| !flight.won())
    }
}

/// Whether a connection's handshake is complete: the client's Finished is verified.
#[derive(Clone)]
pub(crate) struct HandshakeState(watch::Receiver<bool>);

impl HandshakeState {
    /// An incomplete handshake and the sender that completes it. If the sender is dropped before,
    /// the handshake has failed.
    pub(crate) fn new() -> (watch::Sender<bool>, Self) {
        let (sender, receiver) = watch::channel(false);
        (sender, Self(receiver))
    }

    pub(crate) fn is_complete(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the handshake is complete. Returns false if it has failed.
    pub(crate) async fn completes(&self) -> bool {
        self.0.clone().wait_for(|complete| *complete).await.is_ok()
    }
}

/// The stages of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ShutdownStage {
    /// The server runs.
    Running,
    /// Readiness probes fail, but connections are still accepted.
    Announced,
    /// A successor accepts new connections. Each existing connection ends after its next response.
    HandedOver,
    /// Running requests are finished, idle connections closed.
    Draining,
    /// Everything is aborted.
    Abort,
}

/// Announces the stages of a shutdown to all tasks.
pub(crate) struct Shutdown(watch::Sender<ShutdownStage>);

impl Shutdown {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(ShutdownStage::Running))
    }

    /// Receives the current stage and later ones.
    pub(crate) fn subscribe(&self) -> watch::Receiver<ShutdownStage> {
        self.0.subscribe()
    }

    /// The current stage.
    pub(crate) fn stage(&self) -> ShutdownStage {
        *self.0.borrow()
    }

    /// Whether connections should end.
    pub(crate) fn is_finishing(&self) -> bool {
        self.stage() >= ShutdownStage::HandedOver
    }

    /// Enters a stage, unless a later one has been reached.
    pub(crate) fn advance(&self, stage: ShutdownStage) {
        self.0.send_if_modified(|current| {
            let is_later = *current < stage;
            *current = stage.max(*current);
            is_later
        });
    }
}

/// Waits until the shutdown reaches `stage` or a later one.
pub(crate) async fn wait_for_stage(
    stop: &mut watch::Receiver<ShutdownStage>,
    stage: ShutdownStage,
) {
    // Cannot fail: the sender lives as long as the server.
    let _ = stop.wait_for(|current| *current >= stage).await;
}

/// Waits for the next stage that matters to a connection. `finishing`: the connection is ending
/// already, so only an abort matters.
pub(crate) async fn next_stage(
    stop: &mut watch::Receiver<ShutdownStage>,
    finishing: bool,
) -> ShutdownStage {
    wait_for_stage(stop, if finishing { ShutdownStage::Abort } else { ShutdownStage::HandedOver })
        .await;
    *stop.borrow()
}

/// The current time by the clock that TLS ages tickets with.
pub(crate) fn now() -> UnixTime {
    UnixTime(u64::try_from(SteadyClock::unix_micros() / 1_000_000).unwrap_or(0))
}

/// The machine's monotonic clock, which all its processes share.
pub(crate) fn monotonic() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from)
}
