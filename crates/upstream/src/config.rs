use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use firstflight_units::{DurationText, OptionalDurationText, OrOff, Text, TextList};
use http::uri::{Authority, PathAndQuery};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{PoolError, ServerAddress, proxy_protocol};

/// A pool of servers for the same requests. Routes refer to it by name.
// `new` has the defaults.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PoolConfig {
    /// Addresses of the servers: `"http://HOST:PORT"`, `"https://HOST:PORT"` or `"unix:/PATH"`; at
    /// least one.
    #[serde(with = "TextList::<ServerAddress>")]
    pub servers: Vec<ServerAddress>,
    /// The protocol to the servers.
    ///
    /// The default works with every server.
    pub protocol: Protocol,
    /// How the server for a request is chosen.
    ///
    /// By default, a slow server gets fewer requests.
    pub balance: Balance,
    /// Timeout of connecting, TLS included.
    ///
    /// The default allows for one lost packet, which takes a second to resend.
    #[serde(with = "DurationText")]
    pub connect_timeout: Duration,
    /// Timeout of the response head, from the end of the request's body.
    ///
    /// By default the `upstream_timeout` of `[limits]`.
    // `None`: the forwarding server's timeout for all its pools, or 60 s.
    #[serde(with = "OptionalDurationText")]
    pub response_timeout: Option<Duration>,
    /// Timeout of a response body without progress, while the client is ready to receive.
    ///
    /// The default is that of nginx.
    #[serde(with = "DurationText")]
    pub body_timeout: Duration,
    /// Timeout of a WebSocket without traffic in either direction.
    ///
    /// The default is longer than the usual interval between pings (a minute), and about the time
    /// after which NATs drop a connection.
    #[serde(with = "DurationText")]
    pub tunnel_timeout: Duration,
    /// Maximum number of idle connections to each server.
    ///
    /// The default is enough for a busy pool to connect seldom, and low enough for a server with one
    /// process per connection.
    pub idle_connections: usize,
    /// How long an idle connection is kept.
    ///
    /// The default is shorter than the timeout of most servers (nginx 75 s; Node's 5 s is shorter),
    /// so that few requests are sent on a connection that the server is closing.
    #[serde(with = "DurationText")]
    pub idle_timeout: Duration,
    /// Maximum number of concurrent requests to each server, tunnels included. With HTTP/1.1 each
    /// request needs one connection. Further requests wait for `queue_timeout` and then get a 503.
    ///
    /// The default is more than most servers handle, and within the ports and file descriptors of a
    /// process. `memory` in `[limits]` bounds the requests to all servers together.
    pub requests: usize,
    /// How long a request waits while all servers have their maximum number of requests.
    ///
    /// The default is enough for a burst, and short enough for clients to get the 503 before they
    /// give up.
    #[serde(with = "DurationText")]
    pub queue_timeout: Duration,
    /// Active health checks.
    ///
    /// Off by default: not every pool has a path for them.
    pub health_check: Option<HealthCheck>,
    /// When a server is ejected because its requests fail; `false`: never.
    ///
    /// On by default, with the settings of the section below: a dead server costs few requests an
    /// attempt.
    #[serde(with = "OrOff::<EjectionRule>")]
    pub ejection: Option<EjectionRule>,
    /// Retries.
    ///
    /// The defaults are in the section below.
    pub retry: RetryRule,
    /// Version of the PROXY header that tells servers the client's address. Each connection then
    /// serves only one client connection.
    ///
    /// Off by default; `X-Forwarded-For` contains the address too.
    pub proxy_protocol: Option<proxy_protocol::Version>,
    /// PEM file of trusted certificate authorities for `https` servers.
    ///
    /// By default those of the system.
    pub ca: Option<PathBuf>,
}

/// The protocol to the servers of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP/1.1, one request at a time on each connection.
    #[default]
    Http1,
    /// HTTP/2: with prior knowledge (RFC 9113 section 3.3), or by ALPN with TLS.
    Http2,
}

/// How the server for a request is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Balance {
    /// The server with the fewest requests in flight; equal servers take turns.
    #[default]
    LeastRequests,
    /// Each server in turn.
    RoundRobin,
}

/// Health checks of each server. Every status from 200 to 399 is a success.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HealthCheck {
    /// Path of the check, such as `"/health"`.
    ///
    /// By default `/`.
    #[serde(with = "Text::<PathAndQuery>")]
    pub path: PathAndQuery,
    /// `Host` of the check.
    ///
    /// By default the server's address.
    pub host: Option<String>,
    /// Interval between checks.
    ///
    /// By default, a dead server is noticed within 15 seconds.
    #[serde(with = "DurationText")]
    pub interval: Duration,
    /// Timeout of a check, connecting included.
    ///
    /// The default is enough for a busy server, and less than the interval.
    #[serde(with = "DurationText")]
    pub timeout: Duration,
    /// Consecutive successful checks after which a server is up again.
    ///
    /// The default is more than one, because a server that keeps restarting may pass a single check.
    pub rise: u32,
    /// Consecutive failed checks after which a server is down.
    ///
    /// The default tolerates accidental failures.
    pub fall: u32,
}

/// When a failing server is ejected, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EjectionRule {
    /// Consecutive failed requests (no connection, a broken connection or no response in time) after
    /// which a server is ejected.
    ///
    /// The default tolerates accidental failures.
    pub after: u32,
    /// Duration of the first ejection. Each further one takes twice as long.
    ///
    /// The default is about the time in which a process restarts.
    #[serde(with = "DurationText")]
    pub first: Duration,
    /// Maximum duration of an ejection.
    ///
    /// The default is short enough for a repaired server to be used again soon.
    #[serde(with = "DurationText")]
    pub most: Duration,
}

/// Which requests are retried, and how often: those with a safe method and no body (RFC 9110 section
/// 9.2.1), and those that the server certainly has not processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RetryRule {
    /// Maximum number of attempts per request; 1: no retries.
    ///
    /// The default is enough for two dead servers.
    pub tries: u32,
    /// Maximum share of retries in all requests, in percent, in the long run.
    ///
    /// The default does not overload a failing pool.
    pub percent: u32,
    /// Retries that are allowed at once, as when a server with many requests in flight dies.
    ///
    /// The default is a usual number of requests in flight.
    pub burst: u32,
}

impl PoolConfig {
    /// A pool of these servers with default settings.
    pub fn new(servers: Vec<ServerAddress>) -> Self {
        Self {
            servers,
            protocol: Protocol::default(),
            balance: Balance::default(),
            connect_timeout: Duration::from_secs(3),
            response_timeout: None,
            body_timeout: Duration::from_secs(60),
            tunnel_timeout: Duration::from_secs(300),
            idle_connections: 64,
            idle_timeout: Duration::from_secs(30),
            requests: 4096,
            queue_timeout: Duration::from_secs(1),
            health_check: None,
            ejection: Some(EjectionRule::default()),
            retry: RetryRule::default(),
            proxy_protocol: None,
            ca: None,
        }
    }

    /// Checks that the settings are valid together.
    ///
    /// # Errors
    /// The first of [`PoolConfig::errors`].
    pub fn check(&self) -> Result<(), PoolError> {
        self.errors().into_iter().next().map_or(Ok(()), Err)
    }

    /// Returns all errors: [`PoolError::Setting`], which names the setting and the allowed values.
    pub fn errors(&self) -> Vec<PoolError> {
        let zero_times =
            self.times().into_iter().filter(|(_, time)| time.is_some_and(|t| t.is_zero()));
        let check = self.health_check.as_ref();
        let ejection = self.ejection.as_ref();
        let checks = [
            ("servers", self.servers.is_empty(), "there is no server; add at least one"),
            ("servers", self.has_duplicates(), "a server is listed twice; keep one"),
            (
                "health_check.rise",
                check.is_some_and(|check| check.rise == 0),
                "rise must be at least 1",
            ),
            (
                "health_check.fall",
                check.is_some_and(|check| check.fall == 0),
                "fall must be at least 1",
            ),
            (
                "health_check.host",
                check.is_some_and(|check| check.host.as_deref().is_some_and(|host| !is_host(host))),
                "host is not a host name or address, possibly with a port; an example is \
                 \"app.test\"",
            ),
            (
                "ejection.after",
                ejection.is_some_and(|ejection| ejection.after == 0),
                "after must be at least 1",
            ),
            (
                "ejection.most",
                ejection.is_some_and(|ejection| ejection.most < ejection.first),
                "most must not be less than first",
            ),
            ("requests", self.requests == 0, "the number of requests must be at least 1"),
            ("retry.tries", self.retry.tries == 0, "tries must be at least 1"),
            (
                "ca",
                self.ca.is_some() && !self.servers.iter().any(ServerAddress::is_tls),
                "certificate authorities are only for https:// servers; remove ca",
            ),
        ];
        let checks = checks.into_iter().filter(|(_, wrong, _)| *wrong);
        let wrong = |key, reason| PoolError::Setting { key, reason };
        let zero_times = zero_times.map(|(key, _)| wrong(key, "the time must be more than 0s"));
        checks.map(|(key, _, reason)| wrong(key, reason)).chain(zero_times).collect()
    }

    /// Whether a server is listed twice. Both would count under the same name.
    fn has_duplicates(&self) -> bool {
        let mut seen = HashSet::new();
        !self.servers.iter().all(|server| seen.insert(server))
    }

    /// The times that must not be 0, by their keys.
    fn times(&self) -> [(&'static str, Option<Duration>); 8] {
        let check = self.health_check.as_ref();
        [
            ("connect_timeout", Some(self.connect_timeout)),
            ("response_timeout", self.response_timeout),
            ("body_timeout", Some(self.body_timeout)),
            ("tunnel_timeout", Some(self.tunnel_timeout)),
            ("idle_timeout", Some(self.idle_timeout)),
            ("health_check.interval", check.map(|check| check.interval)),
            ("health_check.timeout", check.map(|check| check.timeout)),
            ("ejection.first", self.ejection.map(|ejection| ejection.first)),
        ]
    }
}

/// Returns whether a health check can send `text` in `Host` and `:authority`.
fn is_host(text: &str) -> bool {
    text.parse::<Authority>().is_ok_and(|host| !host.as_str().contains('@'))
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

impl Default for HealthCheck {
    fn default() -> Self {
        Self::new(PathAndQuery::from_static("/"))
    }
}

impl HealthCheck {
    /// Health checks of `path` with default settings.
    pub fn new(path: PathAndQuery) -> Self {
        Self {
            path,
            host: None,
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(2),
            rise: 2,
            fall: 3,
        }
    }
}

impl Default for EjectionRule {
    fn default() -> Self {
        Self { after: 3, first: Duration::from_secs(1), most: Duration::from_secs(60) }
    }
}

impl Default for RetryRule {
    fn default() -> Self {
        Self { tries: 3, percent: 20, burst: 100 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_settings_are_rejected() {
        let good = PoolConfig::new(vec!["http://localhost:1".parse().unwrap()]);
        assert!(good.check().is_ok());
        let check = HealthCheck::new(PathAndQuery::from_static("/"));
        let checked = |check: HealthCheck| PoolConfig { health_check: Some(check), ..good.clone() };
        let with_host = |host: &str| HealthCheck { host: Some(host.to_owned()), ..check.clone() };
        let rule = EjectionRule::default();
        let ejected = |rule| PoolConfig { ejection: Some(rule), ..good.clone() };
        for (change, key, word) in [
            (PoolConfig { servers: Vec::new(), ..good.clone() }, "servers", "no server"),
            (
                PoolConfig {
                    servers: [good.servers.clone(), good.servers.clone()].concat(),
                    ..good.clone()
                },
                "servers",
                "listed twice",
            ),
            (
                PoolConfig { response_timeout: Some(Duration::ZERO), ..good.clone() },
                "response_timeout",
                "more than 0s",
            ),
            (PoolConfig { requests: 0, ..good.clone() }, "requests", "at least 1"),
            (PoolConfig { ca: Some("ca.pem".into()), ..good.clone() }, "ca", "https://"),
            (checked(HealthCheck { fall: 0, ..check.clone() }), "health_check.fall", "at least 1"),
            (
                checked(HealthCheck { interval: Duration::ZERO, ..check.clone() }),
                "health_check.interval",
                "more than 0s",
            ),
            (checked(with_host("app test")), "health_check.host", "app.test"),
            (checked(with_host("user@app.test")), "health_check.host", "app.test"),
            (checked(with_host("")), "health_check.host", "app.test"),
            (ejected(EjectionRule { after: 0, ..rule }), "ejection.after", "at least 1"),
            (
                ejected(EjectionRule { most: Duration::ZERO, ..rule }),
                "ejection.most",
                "less than first",
            ),
        ] {
            let errors = change.errors();
            let [PoolError::Setting { key: found, reason }] = &errors[..] else {
                panic!("{key}: {errors:?}")
            };
            assert_eq!(*found, key);
            assert!(reason.contains(word), "{reason}");
        }
        for host in ["app.test", "app.test:8080", "[::1]:80", "127.0.0.1"] {
            assert!(checked(with_host(host)).check().is_ok(), "{host}");
        }
        let several =
            PoolConfig { requests: 0, ..checked(HealthCheck { rise: 0, ..check.clone() }) };
        assert_eq!(several.errors().len(), 2, "all errors are returned");
    }
}
