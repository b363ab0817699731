//! The section `[http3]`.

use std::time::Duration;

use firstflight_units::{DurationOrOff, OptionalDurationText};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::SettingError;
use crate::error::failed_checks;

/// HTTP/3, over UDP on the same addresses and ports. Requires TLS 1.3.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Http3Settings {
    /// Whether HTTP/3 is served.
    ///
    /// By default true: clients that cannot use UDP fall back to TCP.
    pub enabled: bool,
    /// How long clients of HTTP/1.1 and HTTP/2 may remember that HTTP/3 is available (RFC 7838);
    /// `false`: it is not advertised.
    ///
    /// By default as in RFC 7838 section 3.1.
    #[serde(with = "DurationOrOff")]
    pub alt_svc: Option<Duration>,
    /// Initial size of UDP payloads in bytes, before path MTU discovery, 1200 to 1452.
    ///
    /// By default the minimum of every QUIC path (RFC 9000 section 14).
    pub initial_mtu: u16,
    /// Lifetime of address validation tokens; more than 0s, up to 168h.
    ///
    /// By default that of tickets: a client that has one has the other.
    #[serde(with = "OptionalDurationText")]
    pub token_lifetime: Option<Duration>,
    /// Handshakes in progress with unvalidated clients above which new clients have to validate
    /// their address first (Retry), which costs a round trip.
    ///
    /// By default 1000: at round trips of 50 ms, 20,000 new clients per second.
    pub retry_above: usize,
    /// Handshakes in progress above which new ones are dropped; more than `retry_above`.
    ///
    /// By default five times `retry_above`, so that address validation applies first.
    pub refuse_above: usize,
}

impl Http3Settings {
    /// Returns an error for each setting that is not allowed, with the allowed values.
    pub fn errors(&self) -> Vec<SettingError> {
        let token_lifetimes = Duration::from_nanos(1)..=MAX_TOKEN_LIFETIME;
        let (retry_above, refuse_above) = (self.retry_above, self.refuse_above);
        let never_retries = format!(
            "retry_above ({retry_above}) must be less than refuse_above ({refuse_above}): otherwise \
             new clients are dropped, and none is sent a Retry before"
        );
        failed_checks([
            (
                "initial_mtu",
                MTU_RANGE.contains(&self.initial_mtu),
                "initial_mtu is out of range; allowed are 1200 to 1452 bytes",
            ),
            (
                "token_lifetime",
                self.token_lifetime.is_none_or(|life| token_lifetimes.contains(&life)),
                "token_lifetime is out of range; allowed is more than 0s, up to 168h",
            ),
            (
                "refuse_above",
                refuse_above > 0,
                "0 concurrent handshakes cannot serve clients; allowed is 1 or more",
            ),
            (
                "retry_above",
                refuse_above == 0 || retry_above < refuse_above,
                never_retries.as_str(),
            ),
        ])
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

/// The minimum of QUIC (RFC 9000 section 14), and the UDP payload of an Ethernet frame over IPv6.
const MTU_RANGE: std::ops::RangeInclusive<u16> = 1200..=1452;

/// The maximum lifetime of ticket keys.
const MAX_TOKEN_LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);
