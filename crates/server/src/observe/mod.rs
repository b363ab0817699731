//! Observes connections and requests: access log, metrics, traces, status, recent replays.
//!
//! A connection has a [`connection::ConnectionObserver`], which counts by
//! [`metrics::ConnectionMetrics`]; each of its requests a [`request::RequestRecord`], which counts by
//! [`metrics::RequestMetrics`]. All write to the server's [`Observers`].

pub(crate) mod access_log;
pub(crate) mod connection;
pub(crate) mod metrics;
pub(crate) mod request;
pub(crate) mod status;
pub(crate) mod trace;

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use firstflight_telemetry::metrics::{Metrics, Transport};
use firstflight_tls::Handshake;

use self::access_log::AccessLog;
use self::status::Replays;
use self::trace::Tracer;

/// The log, metrics, traces and replays that all connections report to.
pub(crate) struct Observers {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tracer: Option<Tracer>,
    /// Opened after the process has dropped its privileges.
    pub(crate) access_log: OnceLock<AccessLog>,
    pub(crate) replays: Replays,
}

impl Observers {
    /// Adds a copy of a flight to the recent replays.
    pub(crate) fn note_replay(&self, facts: &Handshake, client: IpAddr, transport: Transport) {
        self.replays.note(&facts.client_random, client, transport, jiff::Timestamp::now());
    }
}
