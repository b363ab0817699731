use std::path::PathBuf;
use std::time::Duration;

use crate::proxy_protocol;
use firstflight_units::{DurationText, OptionalDurationText, OrOff, Text, TextList};
use http::uri::PathAndQuery;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{PoolError, ServerAddress};

/// Servers that serve the same requests, and how they are used. Routes name them.
// `new` has the defaults.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PoolConfig {
    /// Where the servers are, `"http://HOST:PORT"`, `"https://HOST:PORT"` or `"unix:/PATH"`; at
    /// least one.
    #[serde(with = "TextList::<ServerAddress>")]
    pub servers: Vec<ServerAddress>,
    /// What is spoken to them.
    ///
    /// By default what every server understands.
    pub protocol: Protocol,
    /// Which of them a request goes to.
    ///
    /// By default a slow server gets fewer requests by itself.
    pub balance: Balance,
    /// To connect, TLS included.
    ///
    /// By default enough to make good a lost packet, which takes a second; an upstream is near.
    #[serde(with = "DurationText")]
    pub connect_timeout: Duration,
    /// For the head of a response, from the last bit of the request's body on.
    ///
    /// By default the `upstream_timeout` of `[limits]`.
    // `None`: as the server that forwards has it for all its pools, or 60 s.
    #[serde(with = "OptionalDurationText")]
    pub response_timeout: Option<Duration>,
    /// For a response's body that does not go on, though the client takes it.
    ///
    /// By default what nginx waits.
    #[serde(with = "DurationText")]
    pub body_timeout: Duration,
    /// For a WebSocket on which neither side says anything.
    ///
    /// By default longer than most clients' and servers' pings are apart, a minute, and about when
    /// NATs forget a connection.
    #[serde(with = "DurationText")]
    pub tunnel_timeout: Duration,
    /// Idle connections that are kept to each server.
    ///
    /// By default enough that a busy pool seldom connects, and few enough for a server that gives
    /// each a process.
    pub keep: usize,
    /// How long they are kept.
    ///
    /// By default shorter than what most servers keep them for (nginx 75 s; Node 5 s is shorter
    /// still, and those are found closed), so that few requests meet a connection that is just
    /// closing.
    #[serde(with = "DurationText")]
    pub idle_timeout: Duration,
    /// Requests at a time to each server, tunnels included; with HTTP/1.1 each has a connection of
    /// its own. Further ones wait for `queue_timeout`, and are then answered 503.
    ///
    /// By default more than most servers take, and few enough for the addresses and descriptors
    /// that a process has. `memory` in `[limits]` bounds the requests to all servers together.
    pub requests: usize,
    /// How long a request waits while all servers have as many as they may.
    ///
    /// By default long enough for a burst, and short enough that clients are told while they are
    /// still there.
    #[serde(with = "DurationText")]
    pub queue_timeout: Duration,
    /// Questions to each server whether it is well.
    ///
    /// By default none: a pool may have no path that is right to ask for.
    pub check: Option<HealthCheck>,
    /// When failures of requests put a server aside; `false`: never.
    ///
    /// By default as the section below has it: a server that died then costs few requests a try.
    #[serde(with = "OrOff::<EjectionRule>")]
    pub aside: Option<EjectionRule>,
    /// What is sent a second time.
    ///
    /// By default as the section below has it.
    pub retry: RetryRule,
    /// Whether servers are told the client's address by a PROXY header, and in which form. Each
    /// connection then serves one client's connection alone.
    ///
    /// By default they are not; `X-Forwarded-For` says it too.
    pub proxy_protocol: Option<proxy_protocol::Version>,
    /// The authorities that certificates of `https` servers come from, PEM.
    ///
    /// By default the machine's.
    pub ca: Option<PathBuf>,
}

/// What is spoken to a pool's servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP/1.1, a request at a time on each connection.
    #[default]
    Http1,
    /// HTTP/2, without asking before (RFC 9113 section 3.3), by ALPN where TLS is spoken.
    Http2,
}

/// Which server a request goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Balance {
    /// The one with the fewest running requests; in turn among equals.
    #[default]
    LeastRequests,
    /// Each in turn.
    RoundRobin,
}

/// Questions to each server whether it is well. Any response from 200 to 399 says so.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HealthCheck {
    /// What is requested, such as `"/health"`.
    ///
    /// By default what every server has.
    #[serde(with = "Text::<PathAndQuery>")]
    pub path: PathAndQuery,
    /// The `Host` that is asked.
    ///
    /// By default the server's address.
    pub host: Option<String>,
    /// From one question to the next.
    ///
    /// By default a server that died is noticed in a quarter of a minute, for little work.
    #[serde(with = "DurationText")]
    pub interval: Duration,
    /// For connection and answer together.
    ///
    /// By default enough for a server that is busy, and less than the interval.
    #[serde(with = "DurationText")]
    pub timeout: Duration,
    /// Good answers in a row that bring a server back.
    ///
    /// By default more than one, which a server that restarts over and over gives too.
    pub rise: u32,
    /// Bad ones in a row that take it out.
    ///
    /// By default three: one may be an accident.
    pub fall: u32,
}

/// When a server that fails is left alone for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EjectionRule {
    /// Requests in a row that failed: no connection, a broken one, or no response in time.
    ///
    /// By default three: one may be an accident.
    pub after: u32,
    /// How long the first time; twice as long each time again.
    ///
    /// By default what a process takes to restart.
    #[serde(with = "DurationText")]
    pub first: Duration,
    /// How long at most.
    ///
    /// By default short enough that a server which was fixed is soon used again.
    #[serde(with = "DurationText")]
    pub most: Duration,
}

/// What is sent a second time, and how often. Sent again are requests with a safe method and no
/// body (RFC 9110 section 9.2.1), and any of which certainly no byte was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RetryRule {
    /// How often one request is sent at most; 1: never again.
    ///
    /// By default enough to get past two servers that died.
    pub tries: u32,
    /// Retries in percent of all requests, in the long run.
    ///
    /// By default few enough not to flood a sick pool.
    pub percent: u32,
    /// Retries that may come at once, as when a server with many running requests dies.
    ///
    /// By default what such a server may well have had.
    pub burst: u32,
}

impl PoolConfig {
    /// These servers, all else by default.
    pub fn new(servers: Vec<ServerAddress>) -> Self {
        Self {
            servers,
            protocol: Protocol::default(),
            balance: Balance::default(),
            connect_timeout: Duration::from_secs(3),
            response_timeout: None,
            body_timeout: Duration::from_secs(60),
            tunnel_timeout: Duration::from_secs(300),
            keep: 64,
            idle_timeout: Duration::from_secs(30),
            requests: 4096,
            queue_timeout: Duration::from_secs(1),
            check: None,
            aside: Some(EjectionRule::default()),
            retry: RetryRule::default(),
            proxy_protocol: None,
            ca: None,
        }
    }

    /// Whether the values make sense together.
    ///
    /// # Errors
    /// [`PoolError::Setting`], which names the setting and what is allowed.
    pub fn check(&self) -> Result<(), PoolError> {
        let wrong = |key, reason| Err(PoolError::Setting { key, reason });
        if self.servers.is_empty() {
            return wrong("servers", "there is no server; name one at least");
        }
        if let Some(check) = &self.check
            && (check.rise == 0 || check.fall == 0)
        {
            return wrong("check", "rise and fall are counts of answers; allowed is 1 and more");
        }
        if let Some(aside) = &self.aside
            && (aside.after == 0 || aside.most < aside.first)
        {
            return wrong(
                "aside",
                "a server is set aside after 1 failure or more, and for `most` at the longest, \
                 which is not shorter than `first`",
            );
        }
        if let Some((key, _)) =
            self.times().iter().find(|(_, time)| time.is_some_and(|t| t.is_zero()))
        {
            return wrong(key, "a time of 0 would end every request; allowed is more than 0s");
        }
        if self.requests == 0 {
            return wrong("requests", "0 requests would serve nobody; allowed is 1 and more");
        }
        if self.retry.tries == 0 {
            return wrong("retry", "0 tries would serve nobody; allowed is 1 and more");
        }
        if self.ca.is_some() && !self.servers.iter().any(ServerAddress::is_tls) {
            return wrong("ca", "certificate authorities are of use to https:// servers alone");
        }
        Ok(())
    }

    /// The times that must not be 0, by the keys under which they stand.
    fn times(&self) -> [(&'static str, Option<Duration>); 8] {
        let check = self.check.as_ref();
        [
            ("connect_timeout", Some(self.connect_timeout)),
            ("response_timeout", self.response_timeout),
            ("body_timeout", Some(self.body_timeout)),
            ("tunnel_timeout", Some(self.tunnel_timeout)),
            ("idle_timeout", Some(self.idle_timeout)),
            ("check", check.map(|check| check.interval)),
            ("check", check.map(|check| check.timeout)),
            ("aside", self.aside.map(|aside| aside.first)),
        ]
    }
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
    /// Questions for `path`, all else by default.
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
    fn settings_that_make_no_sense_are_refused() {
        let good = PoolConfig::new(vec!["http://localhost:1".parse().unwrap()]);
        assert!(good.check().is_ok());
        let check = HealthCheck::new(PathAndQuery::from_static("/"));
        for (change, word) in [
            (PoolConfig { servers: Vec::new(), ..good.clone() }, "no server"),
            (PoolConfig { response_timeout: Some(Duration::ZERO), ..good.clone() }, "more than 0s"),
            (PoolConfig { requests: 0, ..good.clone() }, "1 and more"),
            (PoolConfig { ca: Some("ca.pem".into()), ..good.clone() }, "https://"),
            (
                PoolConfig { check: Some(HealthCheck { fall: 0, ..check }), ..good.clone() },
                "rise and fall",
            ),
            (
                PoolConfig {
                    aside: Some(EjectionRule { after: 0, ..EjectionRule::default() }),
                    ..good.clone()
                },
                "set aside",
            ),
        ] {
            let error = change.check().unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
