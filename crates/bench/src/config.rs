use std::net::SocketAddr;
use std::time::Duration;

use firstflight_tls::{CipherPolicy, MAX_EARLY_DATA, Trust, Version};
use serde::{Deserialize, Serialize};

use crate::{Arrivals, LoadError};

/// The settings of a load run.
#[derive(Clone, Debug)]
pub struct LoadConfig {
    /// The server's addresses. Connections use them in turn.
    pub addresses: Vec<SocketAddr>,
    /// The server's name or address, for SNI and certificate verification.
    pub host: String,
    /// The transport.
    pub transport: Transport,
    /// The kind of handshake.
    pub kind: LoadHandshake,
    /// The only TLS version to offer.
    pub version: Version,
    /// Ciphers and groups to offer.
    pub ciphers: CipherPolicy,
    /// How to verify the server's certificate.
    pub trust: Trust,
    /// Whether to use TCP Fast Open; TCP only.
    pub fast_open: bool,
    /// The request and response of each connection.
    pub exchange: Exchange,
    /// When connections start.
    pub model: Model,
    /// When to stop starting connections.
    pub limit: Limit,
    /// Limits the time of a connection from its start to the end of the response.
    pub timeout: Duration,
    /// Number of threads. Each has its own event loop, connections and tickets.
    pub threads: usize,
    /// Cores to pin the threads to, in turn. If empty, threads are not pinned.
    pub cores: Vec<usize>,
    /// Processes of the server on this machine, whose CPU time is measured too.
    pub server_pids: Vec<u32>,
}

impl LoadConfig {
    /// Full TLS 1.3 handshakes with a GET of `/`, 16 at a time for ten seconds, from one thread.
    pub fn new(addresses: Vec<SocketAddr>, host: impl Into<String>) -> Self {
        let host = host.into();
        Self {
            addresses,
            exchange: Exchange::get(&host, "/"),
            host,
            transport: Transport::Tcp,
            kind: LoadHandshake::Full,
            version: Version::Tls13,
            ciphers: CipherPolicy::default(),
            trust: Trust::System,
            fast_open: false,
            model: Model::Closed { connections: 16 },
            limit: Limit::Time(Duration::from_secs(10)),
            timeout: Duration::from_secs(10),
            threads: 1,
            cores: Vec::new(),
            server_pids: Vec::new(),
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// [`LoadError::Usage`] with a sentence that says what to change.
    pub fn check(&self) -> Result<(), LoadError> {
        let usage = |sentence: &str| Err(LoadError::Usage(sentence.to_owned()));
        if self.addresses.is_empty() {
            return usage("there is no server address; give at least one");
        }
        if self.threads == 0 {
            return usage("the number of threads is 0; give at least 1");
        }
        if self.kind == LoadHandshake::ZeroRtt && self.version != Version::Tls13 {
            return usage("0-RTT needs TLS 1.3; choose TLS 1.3, or another kind of handshake");
        }
        if self.transport == Transport::Quic && self.version != Version::Tls13 {
            return usage("QUIC needs TLS 1.3; choose TLS 1.3, or TCP");
        }
        if self.transport == Transport::Quic && self.fast_open {
            return usage("QUIC cannot use TCP Fast Open; leave it out, or choose TCP");
        }
        if self.timeout.is_zero() {
            return usage("the timeout is 0; give a longer one");
        }
        match self.limit {
            Limit::Time(time) if time.is_zero() => {
                return usage("the duration is 0; give a longer one");
            }
            Limit::Connections(0) => {
                return usage("the number of connections is 0; give at least 1");
            }
            _ => {}
        }
        match self.model {
            Model::Closed { connections } if connections < self.threads => usage(
                "there are more threads than connections; give each thread at least one connection",
            ),
            Model::Open { rate, .. } if !(rate.is_finite() && rate > 0.0) => {
                usage("the rate must be above 0; give connections per second")
            }
            Model::Open { in_flight, .. } if in_flight < self.threads => usage(
                "there are more threads than connections in flight; give each thread at least one",
            ),
            _ => self.exchange.check(),
        }
    }
}

/// The transport that carries TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Transport {
    /// TCP, with one socket per connection.
    #[serde(rename = "tcp")]
    Tcp,
    /// QUIC version 1 (RFC 9000); connections share a few UDP sockets.
    #[serde(rename = "quic")]
    Quic,
}

impl Transport {
    /// The name for tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Quic => "QUIC",
        }
    }
}

/// The kind of handshake that a connection requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LoadHandshake {
    /// A full handshake, with the server's certificate.
    #[serde(rename = "full")]
    Full,
    /// A resumed handshake without early data.
    #[serde(rename = "resumed")]
    Resumed,
    /// A resumed handshake with the request as early data.
    #[serde(rename = "0-RTT")]
    ZeroRtt,
}

impl LoadHandshake {
    /// The name for tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Resumed => "resumed",
            Self::ZeroRtt => "0-RTT",
        }
    }
}

/// The request and response of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// A GET whose response is read to the end of the body: over TCP as HTTP/1.1 with
    /// `Connection: close` (ALPN `http/1.1`), over QUIC as HTTP/3 (ALPN `h3`).
    Get {
        /// The `Host` field: name, and port if it is not 443.
        authority: String,
        /// Path and query, starting with a slash.
        path: String,
        /// Over TCP, whether the request lacks `Connection: close`: the client closes after the
        /// response, which has to have a Content-Length.
        client_closes: bool,
    },
    /// `PING`, with the response `PONG`: over TCP directly on TLS and without ALPN, over QUIC on a
    /// stream (ALPN `firstflight-ping-pong`).
    PingPong,
}

impl Exchange {
    /// A GET.
    pub fn get(authority: &str, path: &str) -> Self {
        Self::Get { authority: authority.to_owned(), path: path.to_owned(), client_closes: false }
    }

    /// The name for tables.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Get { .. } => "get",
            Self::PingPong => "ping-pong",
        }
    }

    /// The request's bytes.
    pub(crate) fn request(&self) -> Vec<u8> {
        match self {
            Self::Get { authority, path, client_closes } => format!(
                "GET {path} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: firstflight/{}\r\n\
                 Accept: */*\r\n{}\r\n",
                env!("CARGO_PKG_VERSION"),
                if *client_closes { "" } else { "Connection: close\r\n" }
            )
            .into_bytes(),
            Self::PingPong => b"PING".to_vec(),
        }
    }

    pub(crate) fn alpn(&self, transport: Transport) -> Vec<Vec<u8>> {
        match (self, transport) {
            (Self::Get { .. }, Transport::Tcp) => vec![b"http/1.1".to_vec()],
            (Self::Get { .. }, Transport::Quic) => vec![b"h3".to_vec()],
            (Self::PingPong, Transport::Tcp) => Vec::new(),
            (Self::PingPong, Transport::Quic) => vec![b"firstflight-ping-pong".to_vec()],
        }
    }

    fn check(&self) -> Result<(), LoadError> {
        let Self::Get { authority, path, .. } = self else { return Ok(()) };
        let plain = |text: &str| text.bytes().all(|b| b.is_ascii_graphic());
        let sentence = match () {
            () if !path.starts_with('/') || !plain(path) => {
                "the path must start with a slash and contain no spaces; write a space as %20"
            }
            () if authority.is_empty() || !plain(authority) => {
                "the Host field must be a name or an address"
            }
            () if self.request().len() > MAX_EARLY_DATA => {
                "the request does not fit into early data; shorten the path"
            }
            () => return Ok(()),
        };
        Err(LoadError::Usage(sentence.to_owned()))
    }
}

/// When connections start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Model {
    /// At scheduled times, whether or not earlier connections have ended. Latency counts from the
    /// scheduled time, so a stall of server or client shows in it.
    Open {
        /// Connections per second.
        rate: f64,
        /// How the scheduled times are distributed.
        arrivals: Arrivals,
        /// Seed of Poisson arrivals.
        seed: u64,
        /// Limits the connections that are open at a time. Further ones wait in the backlog.
        in_flight: usize,
        /// Limits the connections that are due and wait to start. Further ones are never started,
        /// but counted.
        backlog: usize,
    },
    /// When another connection has ended, so that a fixed number is open all the time. A slow
    /// server gets less load, and the wait does not show in the latency.
    Closed {
        /// Number of open connections.
        connections: usize,
    },
}

impl Model {
    /// An open loop at constant intervals, with up to 10,000 connections in flight and 10,000 in the
    /// backlog.
    pub fn open(rate: f64) -> Self {
        Self::Open {
            rate,
            arrivals: Arrivals::Constant,
            seed: 1,
            in_flight: 10_000,
            backlog: 10_000,
        }
    }

    /// The name for tables: `open` or `closed`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Open { .. } => "open",
            Self::Closed { .. } => "closed",
        }
    }

    /// Limits the connections that are open at a time.
    pub(crate) fn max_open(self) -> usize {
        match self {
            Self::Open { in_flight, .. } => in_flight,
            Self::Closed { connections } => connections,
        }
    }
}

/// When to stop starting connections. Connections that have started are driven to their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// After this time.
    Time(Duration),
    /// After this number of measured connections.
    Connections(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> LoadConfig {
        LoadConfig::new(vec![([127, 0, 0, 1], 443).into()], "h")
    }

    #[test]
    fn invalid_settings_are_reported_before_the_run() {
        config().check().unwrap();
        type Change = fn(&mut LoadConfig);
        let bad: [(Change, &str); 11] = [
            (|c| c.addresses.clear(), "address"),
            (|c| c.threads = 0, "threads"),
            (|c| c.threads = 17, "threads"),
            (|c| c.timeout = Duration::ZERO, "timeout"),
            (|c| c.limit = Limit::Connections(0), "connections"),
            (|c| c.model = Model::open(f64::NAN), "rate"),
            (|c| c.exchange = Exchange::get("h", "/a b"), "%20"),
            (|c| c.exchange = Exchange::get("h\r\nX: y", "/"), "Host"),
            (|c| (c.kind, c.version) = (LoadHandshake::ZeroRtt, Version::Tls12), "TLS 1.3"),
            (|c| (c.transport, c.version) = (Transport::Quic, Version::Tls12), "QUIC"),
            (|c| (c.transport, c.fast_open) = (Transport::Quic, true), "Fast Open"),
        ];
        for (change, expected) in bad {
            let mut config = config();
            change(&mut config);
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
