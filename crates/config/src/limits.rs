//! How much time, size and number a client may take.

use std::time::Duration;

use firstflight_units::DurationText;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::SettingError;

/// How much time, size and number a client may take.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// For the TLS handshake and the first request's head together, and for each later head from
    /// its first byte on. Also the longest that an early request is held. Allowed is more than 0s,
    /// up to 30s: so long a copy of a flight can keep its place among the connections.
    ///
    /// By default thirty round trips to a satellite, and the most that a client which sends a byte
    /// a second, or a replay which never finishes, can keep a connection.
    #[serde(with = "DurationText")]
    pub header_timeout: Duration,
    /// Bytes of a request's head (of its uncompressed header list in HTTP/2), 1024 to 1048576.
    ///
    /// By default what nginx takes with its four buffers of 8 KiB, and more than twice what fits
    /// early data.
    pub header_size: usize,
    /// For a kept connection without a request, and for a response of which the client takes no
    /// byte.
    ///
    /// By default longer than the pause between two clicks, and shorter than what NATs keep.
    #[serde(with = "DurationText")]
    pub idle_timeout: Duration,
    /// Connections at a time. At the limit accepting stops, and new clients wait in the kernel's
    /// backlog: a place is free in `header_timeout` or `idle_timeout` at the latest, while closing
    /// at once would turn a short peak into errors.
    ///
    /// The default takes about 300 MB when it is reached.
    pub connections: u32,
    /// Connections that wait to be accepted.
    ///
    /// By default the kernel's own limit (`net.core.somaxconn`), so that a burst is not answered by
    /// retransmissions.
    pub backlog: u32,
    /// Whether a connection takes further requests.
    ///
    /// By default it does: without, each request pays for a handshake.
    pub keep_alive: bool,
    /// Bytes that requests and unfinished handshakes of the whole process may hold beside their
    /// connections, 1048576 and more. What goes beyond is refused: a request is answered 503 and
    /// not executed, a part of a head over HTTP/3 ends its stream, a handshake its connection.
    ///
    /// A request counts 4 KiB, twice the bytes of its fields, 320 for each field, and 32 KiB more
    /// if it is forwarded, for the connection to the upstream; from its head to the end of its
    /// response. A handshake over TCP counts three times what its client has sent so far, until
    /// early data is decided. Of a head over HTTP/3 that is not whole, what came counts, and 128
    /// bytes for each piece.
    ///
    /// So a process holds at most `memory`; for each of its `connections` about 30 KB, and 17 KiB
    /// and `header_size` more while half a TLS record and half a head are all that came; 32 KiB for
    /// each connection that is kept to an upstream (`keep`, for each server); and what bodies hold
    /// on their way. By default that is 256 MiB for about 6,000 forwarded requests of the usual
    /// size at a time, or 750 with as many fields as `header_size` allows, and 800 MB for 10,000
    /// connections, all of them attackers'.
    pub memory: usize,
    /// HTTP/2 streams at a time on one connection.
    ///
    /// By default the least that RFC 9113 section 6.5.2 recommends.
    pub streams: u32,
    /// For the head of the upstream's response, from the last bit of the request's body on.
    ///
    /// By default what nginx waits.
    #[serde(with = "DurationText")]
    pub upstream_timeout: Duration,
    /// For running requests after the signal to stop.
    ///
    /// By default what Kubernetes waits too.
    #[serde(with = "DurationText")]
    pub drain_timeout: Duration,
    /// From the signal to stop until no connection is accepted any more. Meanwhile the server says
    /// that it is not ready, for load balancers that look once in a while.
    ///
    /// By default nothing: who stops a server by hand does not want to wait.
    #[serde(with = "DurationText")]
    pub drain_delay: Duration,
}

impl Limits {
    /// Whether the values make sense together.
    ///
    /// # Errors
    /// The value, and what is allowed.
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
            let reason = "header_size is out of bounds; allowed are 1024 to 1048576 bytes";
            return Err(SettingError::new("header_size", reason));
        }
        if self.memory < MIN_MEMORY {
            let reason = "memory is too little; allowed is 1048576 bytes and more";
            return Err(SettingError::new("memory", reason));
        }
        let numbers = [("connections", self.connections), ("streams", self.streams)];
        if let Some((key, _)) = numbers.iter().find(|(_, number)| *number == 0) {
            let reason = format!("0 {key} would serve nobody; allowed is 1 and more");
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

/// So long a copy of a flight can keep its place among the connections.
const MAX_HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// For a few requests at a time.
const MIN_MEMORY: usize = 1024 * 1024;
