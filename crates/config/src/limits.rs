//! How much time, size and number a client may take.

use std::time::Duration;

use crate::ConfigError;

/// Limits, each with the reason for its default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For the TLS handshake and the first request's head together, and for each later head from
    /// its first byte on. Also the longest that an early request is held. Default 10 s: thirty
    /// round trips to a satellite, and the most that a client which sends a byte a second, or a
    /// replay which never finishes, can keep a connection.
    pub header_timeout: Duration,
    /// Bytes of a request's head (of its uncompressed header list in HTTP/2). Default 32 KiB: what
    /// nginx takes with its four buffers of 8 KiB, and more than twice what fits early data.
    pub header_size: usize,
    /// For a kept connection without a request, and for an answer of which the client takes no
    /// byte. Default 60 s: longer than the pause between two clicks, shorter than what NATs keep.
    pub idle_timeout: Duration,
    /// Connections at a time. At the limit accepting stops, and new clients wait in the kernel's
    /// backlog: a place is free in `header_timeout` or `idle_timeout` at the latest, while
    /// closing at once would turn a short peak into errors. Default 10,000: about 300 MB.
    pub connections: u32,
    /// HTTP/2 streams at a time on one connection. Default 100, the least that RFC 9113 section
    /// 6.5.2 recommends.
    pub streams: u32,
    /// For the head of the upstream's answer, from the last bit of the request's body on. Default
    /// 60 s, as nginx has it.
    pub upstream_timeout: Duration,
    /// For running requests after the signal to stop. Default 30 s, what Kubernetes waits too.
    pub drain_timeout: Duration,
    /// From the signal to stop until no connection is accepted any more. Meanwhile the server says
    /// that it is not ready, for load balancers that look once in a while. Default 0: who stops a
    /// server by hand does not want to wait.
    pub drain_delay: Duration,
}

impl Limits {
    /// Whether the values make sense together.
    ///
    /// # Errors
    /// [`ConfigError::Setting`] that names the value and what is allowed.
    pub fn check(&self) -> Result<(), ConfigError> {
        let wrong = |text: &str| Err(ConfigError::Setting(text.to_owned()));
        let timeouts = [self.idle_timeout, self.upstream_timeout, self.header_timeout];
        if timeouts.iter().any(|timeout| timeout.is_zero()) {
            return wrong("a timeout of 0 would end every connection; allowed is more than 0s");
        }
        if self.header_timeout > MAX_HEADER_TIMEOUT {
            return wrong("header_timeout is too long; allowed is up to 30s");
        }
        if !(1024..=1024 * 1024).contains(&self.header_size) {
            return wrong("header_size is out of bounds; allowed are 1024 to 1048576 bytes");
        }
        if self.connections == 0 || self.streams == 0 {
            return wrong("0 connections or streams would serve nobody; allowed is 1 and more");
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
            streams: 100,
            upstream_timeout: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(30),
            drain_delay: Duration::ZERO,
        }
    }
}

/// So long a copy of a flight can keep its place among the connections.
const MAX_HEADER_TIMEOUT: Duration = Duration::from_secs(30);
