//! Observes connections and requests: access log, metrics, traces, status, recent replays.

pub(crate) mod access_log;
pub(crate) mod connection;
pub(crate) mod metrics;
pub(crate) mod request;
pub(crate) mod status;
pub(crate) mod trace;

use std::sync::{Arc, OnceLock};

use firstflight_telemetry::metrics::Metrics;

use self::access_log::AccessLog;
use self::status::Replays;
use self::trace::Tracer;

/// What all connections report to.
pub(crate) struct Observers {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tracer: Option<Tracer>,
    /// Opened after the process has dropped its privileges.
    pub(crate) access_log: OnceLock<AccessLog>,
    pub(crate) replays: Replays,
}
