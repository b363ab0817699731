use std::net::SocketAddr;
use std::time::Duration;

use firstflight_tls::{CipherPolicy, MAX_EARLY_DATA, Trust, Version};
use serde::{Deserialize, Serialize};

use crate::{Arrivals, LoadError};

/// A load run: whom to call, how, and how often.
#[derive(Clone, Debug)]
pub struct LoadConfig {
    /// The server's addresses; connections take them in turn.
    pub addresses: Vec<SocketAddr>,
    /// Its name or address, for SNI and for its certificate.
    pub host: String,
    /// What carries TLS.
    pub transport: Transport,
    /// Which handshakes.
    pub kind: Kind,
    /// The only TLS version that is offered.
    pub version: Version,
    /// Ciphers and groups to offer.
    pub ciphers: CipherPolicy,
    /// Whom to trust.
    pub trust: Trust,
    /// Whether to ask for TCP Fast Open; over TCP alone.
    pub fast_open: bool,
    /// What is asked on each connection.
    pub exchange: Exchange,
    /// When connections start.
    pub model: Model,
    /// When to stop start them.
    pub limit: Limit,
    /// The longest that one connection may take from its start to the end of the response.
    pub timeout: Duration,
    /// Threads, each with its own event loop, its own connections and its own tickets.
    pub threads: usize,
    /// Cores to pin the threads to, in turn; empty: the kernel places them.
    pub cores: Vec<usize>,
    /// The server's processes, where they run on this machine: their CPU time is measured too.
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
            kind: Kind::Full,
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

    /// Looks for what cannot work before anything is started.
    ///
    /// # Errors
    /// [`LoadError::Usage`] with a sentence that names the fix.
    pub fn check(&self) -> Result<(), LoadError> {
        let usage = |sentence: &str| Err(LoadError::Usage(sentence.to_owned()));
        if self.addresses.is_empty() {
            return usage("there is no server address; give at least one");
        }
        if self.threads == 0 {
            return usage("no threads cannot do anything; give at least 1");
        }
        if self.kind == Kind::ZeroRtt && self.version != Version::Tls13 {
            return usage("0-RTT needs TLS 1.3; choose that version, or another kind");
        }
        if self.transport == Transport::Quic && self.version != Version::Tls13 {
            return usage("QUIC has TLS 1.3 alone; choose that version, or TCP");
        }
        if self.transport == Transport::Quic && self.fast_open {
            return usage("QUIC has no TCP Fast Open; leave it out, or choose TCP");
        }
        if self.timeout.is_zero() {
            return usage("a timeout of nothing lets no connection end; give a longer one");
        }
        match self.limit {
            Limit::Time(time) if time.is_zero() => {
                return usage("a run of no time measures nothing; give a longer one");
            }
            Limit::Connections(0) => {
                return usage("a run of no connections measures nothing; give at least 1");
            }
            _ => {}
        }
        match self.model {
            Model::Closed { connections } if connections < self.threads => usage(
                "there are more threads than connections; give each thread at least one connection",
            ),
            Model::Open { rate, .. } if !(rate.is_finite() && rate > 0.0) => {
                usage("a rate has to be above zero; give connections a second")
            }
            Model::Open { in_flight, .. } if in_flight < self.threads => usage(
                "there are more threads than connections may be in flight; give each at least one",
            ),
            _ => self.exchange.check(),
        }
    }
}

/// What carries TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Transport {
    /// A TCP connection each.
    #[serde(rename = "tcp")]
    Tcp,
    /// QUIC version 1 (RFC 9000), from a few UDP sockets.
    #[serde(rename = "quic")]
    Quic,
}

impl Transport {
    /// The transport as tables print it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Quic => "QUIC",
        }
    }
}

/// Which handshake is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// With the server's certificate.
    #[serde(rename = "full")]
    Full,
    /// With a ticket (a session, before TLS 1.3) and without early data.
    #[serde(rename = "resumed")]
    Resumed,
    /// With a ticket, and the request as early data.
    #[serde(rename = "0-RTT")]
    ZeroRtt,
}

impl Kind {
    /// The kind as tables print it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Resumed => "resumed",
            Self::ZeroRtt => "0-RTT",
        }
    }
}

/// What is asked and answered on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// A GET, read to the end of the body: over TCP by HTTP/1.1 with `Connection: close` (ALPN
    /// `http/1.1`), over QUIC by HTTP/3 (ALPN `h3`).
    Get {
        /// The `Host` field: the name, with the port if it is not 443.
        authority: String,
        /// Path and query, from the slash on.
        path: String,
    },
    /// `PING`, answered by `PONG`: over TCP straight on TLS and without ALPN, over QUIC on a stream
    /// (ALPN `firstflight-ping-pong`).
    PingPong,
}

impl Exchange {
    /// A GET.
    pub fn get(authority: &str, path: &str) -> Self {
        Self::Get { authority: authority.to_owned(), path: path.to_owned() }
    }

    /// The exchange as tables name it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Get { .. } => "get",
            Self::PingPong => "ping-pong",
        }
    }

    /// The request's bytes.
    pub(crate) fn request(&self) -> Vec<u8> {
        match self {
            Self::Get { authority, path } => format!(
                "GET {path} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: firstflight/{}\r\n\
                 Accept: */*\r\nConnection: close\r\n\r\n",
                env!("CARGO_PKG_VERSION")
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
        let Self::Get { authority, path } = self else { return Ok(()) };
        let plain = |text: &str| text.bytes().all(|b| b.is_ascii_graphic());
        let sentence = match () {
            () if !path.starts_with('/') || !plain(path) => {
                "a path begins with a slash and has no spaces; escape them by %20"
            }
            () if authority.is_empty() || !plain(authority) => {
                "the Host field has to be a name or an address"
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
    /// At intended times, whatever became of those before. Latency counts from the intended time,
    /// so that a server (or a client) that stalls cannot hide it.
    Open {
        /// Connections a second.
        rate: f64,
        /// How they are spread.
        arrivals: Arrivals,
        /// Orders Poisson arrivals.
        seed: u64,
        /// How many connections may be open at a time; those due beyond wait in the backlog.
        in_flight: usize,
        /// How many may be due and wait to be started; those beyond are never started, and counted.
        backlog: usize,
    },
    /// When another has ended: so many are open all the time. A server that slows down is asked
    /// less, and the waiting does not show in the latency.
    Closed {
        /// How many.
        connections: usize,
    },
}

impl Model {
    /// An open loop with constant spacing, up to 10,000 connections in flight and as many waiting.
    pub fn open(rate: f64) -> Self {
        Self::Open {
            rate,
            arrivals: Arrivals::Constant,
            seed: 1,
            in_flight: 10_000,
            backlog: 10_000,
        }
    }

    /// `open` or `closed`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Open { .. } => "open",
            Self::Closed { .. } => "closed",
        }
    }

    /// How many connections are open at most.
    pub(crate) fn most_open(self) -> usize {
        match self {
            Self::Open { in_flight, .. } => in_flight,
            Self::Closed { connections } => connections,
        }
    }
}

/// When to stop start connections. Those started are seen to their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// After this time.
    Time(Duration),
    /// After so many measured connections.
    Connections(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> LoadConfig {
        LoadConfig::new(vec![([127, 0, 0, 1], 443).into()], "h")
    }

    #[test]
    fn what_cannot_work_is_named_beforehand() {
        config().check().unwrap();
        type Spoil = fn(&mut LoadConfig);
        let bad: [(Spoil, &str); 11] = [
            (|c| c.addresses.clear(), "address"),
            (|c| c.threads = 0, "threads"),
            (|c| c.threads = 17, "threads"),
            (|c| c.timeout = Duration::ZERO, "timeout"),
            (|c| c.limit = Limit::Connections(0), "no connections"),
            (|c| c.model = Model::open(f64::NAN), "rate"),
            (|c| c.exchange = Exchange::get("h", "/a b"), "%20"),
            (|c| c.exchange = Exchange::get("h\r\nX: y", "/"), "Host"),
            (|c| (c.kind, c.version) = (Kind::ZeroRtt, Version::Tls12), "TLS 1.3"),
            (|c| (c.transport, c.version) = (Transport::Quic, Version::Tls12), "QUIC"),
            (|c| (c.transport, c.fast_open) = (Transport::Quic, true), "Fast Open"),
        ];
        for (spoil, word) in bad {
            let mut config = config();
            spoil(&mut config);
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
