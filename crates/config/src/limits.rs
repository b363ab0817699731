//! The section `[limits]`.

use std::time::Duration;

use firstflight_units::DurationText;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::SettingError;
use crate::error::failed_checks;

/// Limits on the time and memory that clients can use.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Timeout for the TLS handshake and the first request head together, and for each later head
    /// from its first byte on; also the longest hold of an early request. More than 0s, up to 30s:
    /// a slow client, or a replay that never completes its handshake, can occupy a connection for
    /// this long.
    ///
    /// By default thirty satellite round trips.
    #[serde(with = "DurationText")]
    pub header_timeout: Duration,
    /// Maximum size of a request head in bytes (in HTTP/2, of its uncompressed header list), 1024
    /// to 1048576.
    ///
    /// By default as nginx's four buffers of 8 KiB, and more than twice what fits into early data.
    pub header_size: usize,
    /// Timeout for an idle connection, and for a response of which the client reads nothing.
    ///
    /// By default longer than the pause between two clicks, and shorter than most NATs' timeout.
    #[serde(with = "DurationText")]
    pub idle_timeout: Duration,
    /// Maximum number of connections. At the limit, new clients wait in the kernel's backlog, so
    /// that a short peak causes no errors. A connection becomes free within `header_timeout` or
    /// `idle_timeout`.
    ///
    /// By default about 300 MB when reached.
    pub connections: u32,
    /// Maximum number of connections that wait to be accepted.
    ///
    /// By default the kernel's limit (`net.core.somaxconn`), so that a burst causes no
    /// retransmissions.
    pub backlog: u32,
    /// Whether a connection serves more than one request.
    ///
    /// By default true: otherwise each request needs a handshake.
    pub keep_alive: bool,
    /// Memory in bytes of requests and unfinished handshakes, 1048576 or more. Beyond it, a request
    /// gets a 503 without being executed, part of an HTTP/3 head ends its stream, and a handshake
    /// ends its connection.
    ///
    /// A request counts until its response ends: 4 KiB, twice the bytes of its fields, 320 bytes
    /// per field, and 32 KiB for the connection to the upstream if it is forwarded. A TCP handshake
    /// counts three times the bytes that its client has sent, until early data is decided; an
    /// incomplete HTTP/3 head its received bytes and 128 bytes per piece.
    ///
    /// A process uses at most that, and about 30 KB for each of its `connections`, and 17 KiB plus
    /// `header_size` more while only half a TLS record and half a head have arrived; 32 KiB for
    /// each idle connection to an upstream (`idle_connections`, per server); and the bodies in
    /// transit.
    ///
    /// By default 256 MiB: about 6,000 typical forwarded requests at a time, or 750 with as many
    /// fields as `header_size` allows. 10,000 attackers' connections use 800 MB.
    pub memory: usize,
    /// Maximum number of concurrent requests on a connection over HTTP/2 or HTTP/3, 1 to 10000.
    /// Each new connection over HTTP/3 takes memory for all of them.
    ///
    /// By default the minimum that RFC 9113 section 6.5.2 recommends.
    pub streams: u32,
    /// Timeout for the head of an upstream's response, from the end of the request's body.
    ///
    /// By default as in nginx.
    #[serde(with = "DurationText")]
    pub upstream_timeout: Duration,
    /// Timeout for running requests after the signal to stop.
    ///
    /// By default as in Kubernetes.
    #[serde(with = "DurationText")]
    pub drain_timeout: Duration,
    /// Time from the signal to stop until no connection is accepted. Meanwhile the server reports
    /// that it is not ready, for load balancers that poll.
    ///
    /// By default none, for servers stopped by hand.
    #[serde(with = "DurationText")]
    pub drain_delay: Duration,
}

impl Limits {
    /// Returns an error for each setting that is not allowed, with the allowed values.
    pub fn errors(&self) -> Vec<SettingError> {
        let zero = "a timeout of 0 would end every connection; allowed is more than 0s";
        failed_checks([
            ("idle_timeout", !self.idle_timeout.is_zero(), zero),
            ("upstream_timeout", !self.upstream_timeout.is_zero(), zero),
            ("header_timeout", !self.header_timeout.is_zero(), zero),
            (
                "header_timeout",
                self.header_timeout <= MAX_HEADER_TIMEOUT,
                "header_timeout is too long; allowed is up to 30s",
            ),
            (
                "header_size",
                (1024..=1024 * 1024).contains(&self.header_size),
                "header_size is out of range; allowed are 1024 to 1048576 bytes",
            ),
            (
                "memory",
                self.memory >= MIN_MEMORY,
                "memory is too small; allowed is 1048576 bytes or more",
            ),
            (
                "connections",
                self.connections > 0,
                "0 connections cannot serve clients; allowed is 1 or more",
            ),
            (
                "streams",
                (1..=MAX_STREAMS).contains(&self.streams),
                "streams is out of range; allowed are 1 to 10000",
            ),
        ])
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

/// quinn allocates all streams of a connection when it starts: 10,000 cost it some milliseconds.
const MAX_STREAMS: u32 = 10_000;

/// Enough for a few requests at a time.
const MIN_MEMORY: usize = 1024 * 1024;
