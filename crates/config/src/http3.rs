//! HTTP/3.

use std::time::Duration;

use firstflight_units::{DurationOrOff, OptionalDurationText};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::SettingError;

/// HTTP/3, over UDP on the same addresses and ports. It needs TLS 1.3 allowed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Http3Settings {
    /// Whether it is served.
    ///
    /// By default it is: a client that cannot reach it by UDP has TCP as before.
    pub enabled: bool,
    /// For how long clients of HTTP/1.1 and HTTP/2 may remember that HTTP/3 is to be had (RFC
    /// 7838); with `false` they are not told.
    ///
    /// By default one day, as RFC 7838 section 3.1 has it.
    #[serde(with = "DurationOrOff")]
    pub alt_svc: Option<Duration>,
    /// Bytes of a UDP payload before the path has shown that it takes more, 1200 to 1452.
    ///
    /// By default the least that every path for QUIC takes (RFC 9000 section 14).
    pub initial_mtu: u16,
    /// How long an address token is good; more than 0s, up to 168h.
    ///
    /// By default as long as a ticket: a client that has one has the other.
    #[serde(with = "OptionalDurationText")]
    pub token_lifetime: Option<Duration>,
    /// Handshakes in progress with clients that have not shown their addresses; above it, new ones
    /// have to show them first (Retry), which costs them a round trip.
    ///
    /// The default takes, with round trips of 50 ms, 20,000 new clients a second.
    pub retry_above: usize,
    /// Handshakes in progress of all clients; above it, new ones get no response. At least 1.
    ///
    /// By default five times the number above, so that address validation has come first.
    pub refuse_above: usize,
}

impl Http3Settings {
    /// Whether the values can be.
    ///
    /// # Errors
    /// The value, and what is allowed.
    pub fn check(&self) -> Result<(), SettingError> {
        if !MTU.contains(&self.initial_mtu) {
            let reason = "initial_mtu is out of bounds; allowed are 1200 to 1452 bytes";
            return Err(SettingError::new("initial_mtu", reason));
        }
        if self.token_lifetime.is_some_and(|life| life.is_zero() || life > MAX_TOKEN_LIFETIME) {
            let reason = "token_lifetime is out of bounds; allowed is more than 0s, up to 168h";
            return Err(SettingError::new("token_lifetime", reason));
        }
        if self.refuse_above == 0 {
            let reason = "0 handshakes at a time would serve nobody; allowed is 1 and more";
            return Err(SettingError::new("refuse_above", reason));
        }
        Ok(())
    }
}

impl Default for Http3Settings {
    fn default() -> Self {
        Self {
            enabled: true,
            alt_svc: Some(Duration::from_secs(24 * 3600)),
            initial_mtu: 1200,
            token_lifetime: None,
            retry_above: 1000,
            refuse_above: 5000,
        }
    }
}

/// What QUIC needs at least (RFC 9000 section 14), and what Ethernet carries over IPv6.
const MTU: std::ops::RangeInclusive<u16> = 1200..=1452;

/// No ticket key lives longer.
const MAX_TOKEN_LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);
