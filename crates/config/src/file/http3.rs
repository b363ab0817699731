//! The section `[http3]`.

use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use super::{Length, Misplaced, parse_duration};
use crate::Http3Settings;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Http3Section {
    enabled: Option<bool>,
    alt_svc: Option<AltSvc>,
    initial_mtu: Option<Spanned<u16>>,
    token_lifetime: Option<Spanned<Length>>,
    retry_above: Option<usize>,
    refuse_above: Option<Spanned<usize>>,
}

/// For how long clients may remember: a length of time, the default for `true`, `false` for not at
/// all.
enum AltSvc {
    Default,
    For(Option<Duration>),
}

impl Http3Section {
    /// The settings, with the default of what the section leaves out.
    pub(super) fn settings(self) -> Result<Http3Settings, Misplaced> {
        let default = Http3Settings::default();
        let initial_mtu = match self.initial_mtu {
            Some(mtu) if !MTU.contains(mtu.get_ref()) => {
                let reason = "initial_mtu is out of bounds; allowed are 1200 to 1452 bytes";
                return Err(Misplaced(mtu.span(), reason.to_owned()));
            }
            Some(mtu) => mtu.into_inner(),
            None => default.initial_mtu,
        };
        let token_lifetime = match self.token_lifetime {
            Some(life) if life.get_ref().0.is_zero() || life.get_ref().0 > LONGEST => {
                let reason = "token_lifetime is out of bounds; allowed is more than 0s, up to 168h";
                return Err(Misplaced(life.span(), reason.to_owned()));
            }
            life => life.map(|life| life.into_inner().0),
        };
        let refuse_above = match self.refuse_above {
            Some(above) if *above.get_ref() == 0 => {
                let reason = "0 handshakes at a time would serve nobody; allowed is 1 and more";
                return Err(Misplaced(above.span(), reason.to_owned()));
            }
            above => above.map_or(default.refuse_above, Spanned::into_inner),
        };
        Ok(Http3Settings {
            enabled: self.enabled.unwrap_or(default.enabled),
            alt_svc: match self.alt_svc {
                Some(AltSvc::For(age)) => age,
                Some(AltSvc::Default) | None => default.alt_svc,
            },
            initial_mtu,
            token_lifetime: token_lifetime.or(default.token_lifetime),
            retry_above: self.retry_above.unwrap_or(default.retry_above),
            refuse_above,
        })
    }
}

impl<'de> Deserialize<'de> for AltSvc {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "alt_svc is true, false or a length of time such as \"24h\"")]
        enum Given {
            Switch(bool),
            Age(String),
        }
        match Given::deserialize(from)? {
            Given::Switch(true) => Ok(Self::Default),
            Given::Switch(false) => Ok(Self::For(None)),
            Given::Age(age) => parse_duration(&age).map(|age| Self::For(Some(age))),
        }
        .map_err(D::Error::custom)
    }
}

/// What QUIC needs at least (RFC 9000 section 14), and what Ethernet carries over IPv6.
const MTU: std::ops::RangeInclusive<u16> = 1200..=1452;

/// No ticket key lives longer.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);
