//! What the authority may vouch for: names and addresses that mean something else in each network,
//! and that no public authority may vouch for either (CA/Browser Forum, Baseline Requirements
//! section 7.1.4.2.1). Who steals its key can pretend to be nobody on the internet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rcgen::{CidrSubnet, GeneralSubtree, NameConstraints};

/// These domains, and all names below them.
pub const DOMAINS: [&str; 5] = [
    // RFC 6761 section 6.3: this machine.
    "localhost",
    // RFC 6761 section 6.2, RFC 2606 section 2: for tests.
    "test",
    // ICANN's board, 29 July 2024: for private use, never delegated.
    "internal",
    // RFC 6762 section 3: the link that one is on.
    "local",
    // RFC 8375: a home's own network.
    "home.arpa",
];

/// These networks, with the lengths of their prefixes.
pub const NETWORKS: [(IpAddr, u8); 8] = [
    // RFC 1122 section 3.2.1.3 and RFC 4291 section 2.5.3: this machine.
    (v4(127, 0, 0, 0), 8),
    (IpAddr::V6(Ipv6Addr::LOCALHOST), 128),
    // RFC 1918 section 3: private.
    (v4(10, 0, 0, 0), 8),
    (v4(172, 16, 0, 0), 12),
    (v4(192, 168, 0, 0), 16),
    // RFC 4193 section 3.1: the same for IPv6.
    (v6(0xfc00), 7),
    // RFC 3927 section 2.1 and RFC 4291 section 2.5.6: one link.
    (v4(169, 254, 0, 0), 16),
    (v6(0xfe80), 10),
];

const fn v4(a: u8, b: u8, c: u8, d: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

const fn v6(first: u16) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, 0))
}

/// Whether the authority may vouch for a host name, maybe with a wildcard, or an address.
pub fn may_vouch_for(name: &str) -> bool {
    match name.parse::<IpAddr>() {
        Ok(address) => NETWORKS.iter().any(|(network, length)| has(*network, *length, address)),
        Err(_) => {
            let name = name.to_ascii_lowercase();
            DOMAINS.iter().any(|domain| {
                let above = name.strip_suffix(domain);
                above.is_some_and(|labels| labels.is_empty() || labels.ends_with('.'))
            })
        }
    }
}

fn has(network: IpAddr, length: u8, address: IpAddr) -> bool {
    match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            let mask = u32::MAX << (32 - u32::from(length));
            (network.to_bits() ^ address.to_bits()) & mask == 0
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            let mask = u128::MAX << (128 - u32::from(length));
            (network.to_bits() ^ address.to_bits()) & mask == 0
        }
        _ => false,
    }
}

/// The same as they are encoded: domains, then addresses with their masks.
pub(crate) fn subtrees() -> impl Iterator<Item = Vec<u8>> {
    let domains = DOMAINS.iter().map(|domain| domain.as_bytes().to_vec());
    domains.chain(NETWORKS.iter().map(|(network, length)| match network {
        IpAddr::V4(network) => {
            let mask = u32::MAX << (32 - u32::from(*length));
            [network.octets(), mask.to_be_bytes()].concat()
        }
        IpAddr::V6(network) => {
            let mask = u128::MAX << (128 - u32::from(*length));
            [network.octets(), mask.to_be_bytes()].concat()
        }
    }))
}

/// The same as its certificate says it (RFC 5280 section 4.2.1.10).
pub(crate) fn constraints() -> NameConstraints {
    let domains = DOMAINS.iter().map(|domain| GeneralSubtree::DnsName((*domain).to_owned()));
    let networks = NETWORKS.iter().map(|(network, length)| {
        GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(*network, *length))
    });
    NameConstraints {
        permitted_subtrees: domains.chain(networks).collect(),
        excluded_subtrees: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc6761_and_rfc1918_what_is_this_machines_and_this_networks() {
        for good in [
            "localhost",
            "LOCALHOST",
            "app.localhost",
            "*.app.test",
            "db.internal",
            "box.local",
            "nas.home.arpa",
            "127.0.0.1",
            "127.255.0.9",
            "::1",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.178.20",
            "fd00::1",
            "fe80::1",
            "169.254.7.7",
        ] {
            assert!(may_vouch_for(good), "{good}");
        }
        for bad in [
            "example.com",
            "localhost.example.com",
            "mytest",
            "notlocalhost",
            "arpa",
            "",
            "128.0.0.1",
            "172.32.0.1",
            "192.169.0.1",
            "1.1.1.1",
            "::2",
            "2001:db8::1",
            "::ffff:127.0.0.1",
            "0.0.0.0",
            "::",
        ] {
            assert!(!may_vouch_for(bad), "{bad}");
        }
    }
}
