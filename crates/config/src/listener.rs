//! The sections `[[listener]]`.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use firstflight_units::TextList;
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

/// An address to listen on. Repeat the section for several.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Listener {
    /// Address and port, such as `"0.0.0.0:443"`, or `"[::]:443"` for IPv6 and IPv4. Port 0: the
    /// system chooses one.
    #[serde(deserialize_with = "address")]
    #[schemars(with = "String")]
    pub address: SocketAddr,
    /// Protocol on this address.
    #[serde(default)]
    pub protocol: ListenerProtocol,
    /// Whether HTTP/3 is served on the same port over UDP, if `[http3]` enables it.
    ///
    /// By default true: both are one origin.
    #[serde(default = "yes")]
    pub http3: bool,
    /// Networks such as `"10.0.0.0/8"` whose connections must start with a PROXY header (version 1
    /// or 2).
    ///
    /// By default none: its sender can claim any client address.
    #[serde(default, with = "TextList::<IpNetwork>")]
    pub proxy_protocol_from: Vec<IpNetwork>,
}

/// The protocol of a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ListenerProtocol {
    /// HTTP over TLS.
    #[default]
    Https,
    /// HTTP without TLS, where every response is a 308 to the same URL with `https`.
    Redirect,
}

/// A network in CIDR notation, such as `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpNetwork(IpNet);

/// Text that is not a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a network; examples are \"10.0.0.0/8\", \"2001:db8::/32\" or one address, \
     with no bit set beyond the prefix"
)]
pub struct InvalidNetwork(String);

impl Listener {
    /// HTTP over TLS and QUIC on `address`.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            protocol: ListenerProtocol::default(),
            http3: true,
            proxy_protocol_from: Vec::new(),
        }
    }
}

impl IpNetwork {
    /// Whether the network contains an address. Mapped IPv4 addresses count as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }
}

impl FromStr for IpNetwork {
    type Err = InvalidNetwork;

    fn from_str(text: &str) -> Result<Self, InvalidNetwork> {
        let network = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        // No bit may be set beyond the prefix.
        let network = network.ok().filter(|network| network.addr() == network.network());
        network.map(Self).ok_or_else(|| InvalidNetwork(text.to_owned()))
    }
}

impl fmt::Display for IpNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn address<'de, D: Deserializer<'de>>(from: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map_err(|_| {
        serde::de::Error::custom(format!(
            "{text:?} is not an address to listen on; examples are \"0.0.0.0:443\" or \
             \"[::]:443\""
        ))
    })
}

fn yes() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_only_their_addresses() {
        let holds = |network: &str, address: &str| {
            network.parse::<IpNetwork>().unwrap().contains(address.parse().unwrap())
        };
        assert!(holds("10.0.0.0/8", "10.255.0.1") && !holds("10.0.0.0/8", "11.0.0.0"));
        assert!(holds("0.0.0.0/0", "192.0.2.1") && !holds("0.0.0.0/0", "::1"));
        assert!(holds("192.0.2.1", "192.0.2.1") && !holds("192.0.2.1/32", "192.0.2.2"));
        assert!(holds("10.0.0.0/8", "::ffff:10.1.1.1"));
        assert!(holds("2001:db8::/32", "2001:db8:1::1") && !holds("2001:db8::/32", "2001:db9::"));
        assert!(holds("::/0", "2001:db8::1"));
    }

    #[test]
    fn invalid_networks_are_refused() {
        for text in ["", "10.0.0.0/33", "10.0.0.1/8", "::1/129", "host/8", "10.0.0.0/", "::1/64"] {
            assert!(text.parse::<IpNetwork>().is_err(), "{text}");
        }
        for text in ["10.0.0.0/8", "0.0.0.0/0", "::/0", "2001:db8::/32", "::1/128"] {
            assert_eq!(text.parse::<IpNetwork>().unwrap().to_string(), text);
        }
    }
}
