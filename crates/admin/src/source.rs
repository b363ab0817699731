//! What the operators' side is told by what it shows: a running server, or a scene made for a test.

use firstflight_telemetry::metrics::Snapshot;

use crate::status::State;

/// What is shown.
pub trait Source: Send + Sync + 'static {
    /// Whether new connections are wanted.
    ///
    /// # Errors
    /// Why not, in a few words.
    fn readiness(&self) -> Result<(), String>;

    /// All metrics, now.
    fn metrics(&self) -> Snapshot;

    /// What is not a figure, now.
    fn state(&self) -> State;
}
