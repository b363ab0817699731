//! What clients do: one connection or request after the other.

use std::net::SocketAddr;
use std::ops::ControlFlow;

use firstflight_bench::{
    Exchange, KeepAliveConfig, Limit, LoadConfig, LoadHandshake, Model, Transport, run,
    run_keep_alive,
};
use firstflight_samples::HttpVersion;
use firstflight_testkit::TEST_TIMEOUT;
use firstflight_tls::{CipherPolicy, Trust};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Scenario {
    Connection(Transport, LoadHandshake),
    KeptRequest(HttpVersion),
}

impl Scenario {
    pub(crate) const ALL: [Self; 9] = [
        Self::Connection(Transport::Tcp, LoadHandshake::Full),
        Self::Connection(Transport::Tcp, LoadHandshake::Resumed),
        Self::Connection(Transport::Tcp, LoadHandshake::ZeroRtt),
        Self::Connection(Transport::Quic, LoadHandshake::Full),
        Self::Connection(Transport::Quic, LoadHandshake::Resumed),
        Self::Connection(Transport::Quic, LoadHandshake::ZeroRtt),
        Self::KeptRequest(HttpVersion::One),
        Self::KeptRequest(HttpVersion::Two),
        Self::KeptRequest(HttpVersion::Three),
    ];

    /// Its name in the baseline.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Connection(Transport::Tcp, LoadHandshake::Full) => "tcp-full",
            Self::Connection(Transport::Tcp, LoadHandshake::Resumed) => "tcp-resumed",
            Self::Connection(Transport::Tcp, LoadHandshake::ZeroRtt) => "tcp-0rtt",
            Self::Connection(Transport::Quic, LoadHandshake::Full) => "quic-full",
            Self::Connection(Transport::Quic, LoadHandshake::Resumed) => "quic-resumed",
            Self::Connection(Transport::Quic, LoadHandshake::ZeroRtt) => "quic-0rtt",
            Self::KeptRequest(HttpVersion::One) => "kept-http1",
            Self::KeptRequest(HttpVersion::Two) => "kept-http2",
            Self::KeptRequest(HttpVersion::Three) => "kept-http3",
        }
    }

    /// How many connections or requests are measured.
    pub(crate) fn count(self) -> u64 {
        match self {
            Self::Connection(..) => 8,
            Self::KeptRequest(_) => 96,
        }
    }

    /// Makes connections or requests.
    pub(crate) fn drive(self, address: SocketAddr, count: u64) {
        let ciphers = CipherPolicy { groups: Some("X25519".to_owned()), ..CipherPolicy::default() };
        match self {
            Self::Connection(transport, kind) => {
                let config = LoadConfig {
                    transport,
                    kind,
                    ciphers,
                    exchange: Exchange::get(&address.to_string(), "/"),
                    trust: Trust::Anyone,
                    model: Model::Closed { connections: 1 },
                    limit: Limit::Connections(count),
                    timeout: TEST_TIMEOUT,
                    ..LoadConfig::new(vec![address], "localhost")
                };
                let result = run(&config, |_| ControlFlow::Continue(())).unwrap();
                let made = match kind {
                    LoadHandshake::Full => result.handshakes.full,
                    LoadHandshake::Resumed => result.handshakes.resumed,
                    LoadHandshake::ZeroRtt => result.handshakes.early_accepted,
                };
                assert_eq!(made, count, "{self:?}: {result:?}");
            }
            Self::KeptRequest(http) => {
                let config = KeepAliveConfig {
                    address,
                    path: "/".to_owned(),
                    credentials: None,
                    http,
                    ciphers,
                    connections: 1,
                    limit: Limit::Connections(count),
                };
                let result = run_keep_alive(&config, || {}).unwrap();
                assert_eq!(result.completed, count, "{self:?}");
            }
        }
    }
}
