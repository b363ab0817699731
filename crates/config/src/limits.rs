//! The section `[limits]`.

use std::time::Duration;

use firstflight_units::DurationText;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::SettingError;

/// Limits on the time and memory that clients can use.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// The timeout for the TLS handshake and the first request head together, and for each later
    /// head from its first byte on. Also the longest time that an early request is held. More than
    /// 0s, up to 30s, because a copy of a flight can occupy a connection for this long.
    ///
    /// By default thirty satellite round trips. It limits how long a client that sends one byte per
    /// second, or a replay that never completes its handshake, occupies a connection.
    #[serde(with = "DurationText")]
    pub header_timeout: Duration,
    /// The maximum size of a request head in bytes (of its uncompressed header list in HTTP/2),
    /// 1024 to 1048576.
    ///
    /// By default what nginx accepts with its four buffers of 8 KiB, and more than twice what fits
    /// into early data.
    pub header_size: usize,
    /// The timeout for an idle connection, and for a response of which the client reads nothing.
    ///
    /// By default longer than the pause between two clicks, and shorter than the timeout of most
    /// NATs.
    #[serde(with = "DurationText")]
    pub idle_timeout: Duration,
    /// The maximum number of connections. At the limit the server stops accepting, and new clients
    /// wait in the kernel's backlog. A connection becomes free within `header_timeout` or
    /// `idle_timeout`; refusing connections instead would turn a short peak into errors.
    ///
    /// By default about 300 MB when reached.
    pub connections: u32,
    /// The maximum number of connections that wait to be accepted.
    ///
    /// By default the kernel's own limit (`net.core.somaxconn`), so that a burst does not cause
    /// retransmissions.
    pub backlog: u32,
    /// Whether a connection serves more than one request.
    ///
    /// By default true: otherwise each request needs a handshake.
    pub keep_alive: bool,
    /// The memory in bytes that the requests and unfinished handshakes of the process may use in
    /// addition to their connections, 1048576 or more. Beyond it, a request gets a 503 without
    /// being executed, part of a head over HTTP/3 ends its stream, and a handshake ends its
    /// connection.
    ///
    /// A request counts as 4 KiB, twice the bytes of its fields, 320 bytes per field, and 32 KiB
    /// more if it is forwarded, for the connection to the upstream; from its head to the end of its
    /// response. A handshake over TCP counts as three times the bytes that its client has sent so
    /// far, until early data is decided. An incomplete head over HTTP/3 counts as its received
    /// bytes and 128 bytes per piece.
    ///
    /// A process therefore uses at most `memory`; about 30 KB for each of its `connections`, and 17
    /// KiB plus `header_size` more while only half a TLS record and half a head have arrived; 32
    /// KiB for each idle connection to an upstream (`idle_connections`, per server); and the bodies
    /// in transit.
    ///
    /// By default that is 256 MiB for about 6,000 forwarded requests of typical size at a time, or
    /// 750 with as many fields as `header_size` allows, and 800 MB for 10,000 connections if all of
    /// them are attackers'.
    pub memory: usize,
    /// The maximum number of concurrent HTTP/2 streams on a connection.
    ///
    /// By default the minimum that RFC 9113 section 6.5.2 recommends.
    pub streams: u32,
    /// The timeout for the head of an upstream's response, from the last byte of the request's body
    /// on.
    ///
    /// By default as in nginx.
    #[serde(with = "DurationText")]
    pub upstream_timeout: Duration,
    /// The timeout for running requests after the signal to stop.
    ///
    /// By default as in Kubernetes.
    #[serde(with = "DurationText")]
    pub drain_timeout: Duration,
    /// The time from the signal to stop until no connection is accepted any more. Meanwhile the
    /// server reports that it is not ready, for load balancers that poll.
    ///
    /// By default none: who stops a server by hand does not want to wait.
    #[serde(with = "DurationText")]
    pub drain_delay: Duration,
}

impl Limits {
    /// Checks the values.
    ///
    /// # Errors
    /// The setting, and what is allowed.
    pub fn check(&self) -> Result<(), SettingError> {
        let timeouts = [
            ("idle_timeout", self.idle_timeout),
            ("upstream_timeout", self.upstream_timeout),
            ("header_timeout", self.header_timeout),
        ];
        if let Some((key, _)) = timeouts.iter().find(|(_, timeout)| timeout.is_zero()) {
            let reason = "a timeout of 0 would end every connection; allowed is more than 0s";
            return Err(SettingError::new(*key, reason));
        }
        if self.header_timeout > MAX_HEADER_TIMEOUT {
            let reason = "header_timeout is too long; allowed is up to 30s";
            return Err(SettingError::new("header_timeout", reason));
        }
        if !(1024..=1024 * 1024).contains(&self.header_size) {
            let reason = "header_size is out of range; allowed are 1024 to 1048576 bytes";
            return Err(SettingError::new("header_size", reason));
        }
        if self.memory < MIN_MEMORY {
            let reason = "memory is too small; allowed is 1048576 bytes or more";
            return Err(SettingError::new("memory", reason));
        }
        let numbers = [("connections", self.connections), ("streams", self.streams)];
        if let Some((key, _)) = numbers.iter().find(|(_, number)| *number == 0) {
            let reason = format!("0 {key} cannot serve clients; allowed is 1 or more");
            return Err(SettingError::new(*key, reason));
        }
        Ok(())
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            header_timeout: Duration::from_secs(10),
            header_size: 32 * 1024,
            idle_timeout: Duration::from_secs(60),
            connections: 10_000,
            backlog: 4096,
            keep_alive: true,
            memory: 256 * 1024 * 1024,
            streams: 100,
            upstream_timeout: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(30),
            drain_delay: Duration::ZERO,
        }
    }
}

/// A copy of a flight can occupy a connection for this long.
const MAX_HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// Enough for a few requests at a time.
const MIN_MEMORY: usize = 1024 * 1024;
