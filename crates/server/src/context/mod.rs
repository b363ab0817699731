//! What every stage may use: the facts of a connection, how far stopping has come, clocks, memory.

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

/// Why a response's body broke off.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The body of any response.
pub(crate) type ResponseBody = http_body_util::combinators::UnsyncBoxBody<Bytes, BodyError>;

/// What is known of a connection once early data is accepted or refused.
pub(crate) struct ConnectionFacts {
    pub(crate) client: SocketAddr,
    /// The address that the client connected to.
    pub(crate) local: SocketAddr,
    pub(crate) tls: Handshake,
    /// Why TLS did not accept early data; `None`: it did.
    pub(crate) refused: Option<RefusedReason>,
    /// The flight, if TLS accepted early data.
    pub(crate) flight: Option<Flight>,
}

impl ConnectionFacts {
    /// Why TLS accepted early data or not, as the access log has it.
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
    /// An incomplete handshake, and the sender of its completion. Dropped before, it never will be.
    pub(crate) fn new() -> (watch::Sender<bool>, Self) {
        let (sender, receiver) = watch::channel(false);
        (sender, Self(receiver))
    }

    pub(crate) fn is_complete(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until it is complete. False: the connection ended before.
    pub(crate) async fn completes(&self) -> bool {
        self.0.clone().wait_for(|complete| *complete).await.is_ok()
    }
}

/// How far stopping has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stop {
    /// Not at all.
    No,
    /// Probes are told that it will, connections are still accepted.
    Announced,
    /// Another process has taken over. Requests go on until a connection has had its last response,
    /// which says so.
    Leave,
    /// Running requests are finished, idle connections closed.
    Finish,
    /// Everything is dropped.
    Now,
}

/// Tells all tasks how far stopping has come.
pub(crate) struct Shutdown(watch::Sender<Stop>);

impl Shutdown {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(Stop::No))
    }

    /// How far stopping has come, from now on.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Stop> {
        self.0.subscribe()
    }

    /// How far stopping has come now.
    pub(crate) fn stage(&self) -> Stop {
        *self.0.borrow()
    }

    /// Whether connections are to end.
    pub(crate) fn is_finishing(&self) -> bool {
        self.stage() >= Stop::Leave
    }

    /// Stops, if it has not come as far.
    pub(crate) fn advance(&self, stage: Stop) {
        self.0.send_if_modified(|now| {
            let further = *now < stage;
            *now = stage.max(*now);
            further
        });
    }
}

/// Waits until stopping has come as far as `stage`.
pub(crate) async fn stopped(stop: &mut watch::Receiver<Stop>, stage: Stop) {
    // The sender goes only with the server itself.
    let _ = stop.wait_for(|now| *now >= stage).await;
}

/// Waits for the next stage of stopping; `finishing`: the connection comes to its end anyway.
pub(crate) async fn next_stop(stop: &mut watch::Receiver<Stop>, finishing: bool) -> Stop {
    stopped(stop, if finishing { Stop::Now } else { Stop::Leave }).await;
    *stop.borrow()
}

/// The time by which TLS ages tickets too.
pub(crate) fn now() -> UnixTime {
    UnixTime(u64::try_from(SteadyClock::unix_micros() / 1_000_000).unwrap_or(0))
}

/// A clock that all processes of a machine read alike, and that is never set.
pub(crate) fn monotonic() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from)
}
