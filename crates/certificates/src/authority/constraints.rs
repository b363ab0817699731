//! The name constraints of the development authority: names and addresses with a local meaning, for
//! which no public authority may issue certificates either (CA/Browser Forum, Baseline Requirements
//! section 7.1.4.2.1). A stolen key of it cannot impersonate any host on the internet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rcgen::{CidrSubnet, GeneralSubtree, NameConstraints};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, GeneralSubtree as ParsedSubtree};
use x509_parser::pem::Pem;
use x509_parser::prelude::FromDer;

/// The permitted domains, with all names below them.
pub const PERMITTED_DOMAINS: [&str; 5] = [
    // RFC 6761 section 6.3: this machine.
    "localhost",
    // RFC 6761 section 6.2, RFC 2606 section 2: for tests.
    "test",
    // ICANN's board, 29 July 2024: for private use, never delegated.
    "internal",
    // RFC 6762 section 3: the local link.
    "local",
    // RFC 8375: home networks.
    "home.arpa",
];

/// The permitted networks, with their prefix lengths.
pub const PERMITTED_NETWORKS: [(IpAddr, u8); 8] = [
    // RFC 1122 section 3.2.1.3 and RFC 4291 section 2.5.3: this machine.
    (v4(127, 0, 0, 0), 8),
    (IpAddr::V6(Ipv6Addr::LOCALHOST), 128),
    // RFC 1918 section 3: private.
    (v4(10, 0, 0, 0), 8),
    (v4(172, 16, 0, 0), 12),
    (v4(192, 168, 0, 0), 16),
    // RFC 4193 section 3.1: private, for IPv6.
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

/// Whether the authority may sign for a host name, possibly with a wildcard, or an address.
pub fn is_permitted_name(name: &str) -> bool {
    match name.parse::<IpAddr>() {
        Ok(address) => {
            PERMITTED_NETWORKS.iter().any(|(network, length)| contains(*network, *length, address))
        }
        Err(_) => {
            let name = name.to_ascii_lowercase();
            PERMITTED_DOMAINS.iter().any(|domain| {
                let above = name.strip_suffix(domain);
                above.is_some_and(|labels| labels.is_empty() || labels.ends_with('.'))
            })
        }
    }
}

fn contains(network: IpAddr, length: u8, address: IpAddr) -> bool {
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

/// The encoded constraints: domains, then addresses with their masks.
pub(crate) fn encoded_subtrees() -> impl Iterator<Item = Vec<u8>> {
    let domains = PERMITTED_DOMAINS.iter().map(|domain| domain.as_bytes().to_vec());
    domains.chain(PERMITTED_NETWORKS.iter().map(|(network, length)| match network {
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

/// The constraints for the certificate (RFC 5280 section 4.2.1.10).
pub(crate) fn constraints() -> NameConstraints {
    let domains =
        PERMITTED_DOMAINS.iter().map(|domain| GeneralSubtree::DnsName((*domain).to_owned()));
    let networks = PERMITTED_NETWORKS.iter().map(|(network, length)| {
        GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(*network, *length))
    });
    NameConstraints {
        permitted_subtrees: domains.chain(networks).collect(),
        excluded_subtrees: Vec::new(),
    }
}

/// Checks that PEM text is exactly one certificate of an authority with exactly our name
/// constraints. Clients trust that certificate without confirmation.
///
/// # Errors
/// What it is instead.
pub(crate) fn check(pem: &[u8]) -> Result<(), &'static str> {
    // Another parser of the file may support more block types than this one.
    let blocks = pem.windows(PEM_BEGIN.len()).filter(|text| text == &PEM_BEGIN).count();
    if blocks > 1 {
        return Err("it is more than one certificate");
    }
    let unreadable = "it is not a certificate";
    let block = Pem::iter_from_buffer(pem).next().ok_or(unreadable)?.map_err(|_| unreadable)?;
    if block.label != "CERTIFICATE" {
        return Err(unreadable);
    }
    let certificate = X509Certificate::from_der(&block.contents);
    let (rest, certificate) = certificate.map_err(|_| unreadable)?;
    match rest.is_empty() {
        true => check_constraints(&certificate),
        false => Err(unreadable),
    }
}

/// RFC 5280 sections 4.2.1.9 and 4.2.1.10.
fn check_constraints(certificate: &X509Certificate<'_>) -> Result<(), &'static str> {
    let basic = certificate.basic_constraints().ok().flatten();
    if !basic.is_some_and(|basic| basic.value.ca && basic.value.path_len_constraint == Some(0)) {
        return Err("it is not an authority that signs only server certificates");
    }
    let constraints = certificate.name_constraints().ok().flatten();
    let are_ours = constraints.filter(|it| it.critical).is_some_and(|constraints| {
        let permitted = constraints.value.permitted_subtrees.as_deref().unwrap_or_default();
        let excluded = constraints.value.excluded_subtrees.as_deref().unwrap_or_default();
        excluded.is_empty() && permitted.iter().map(subtree).eq(encoded_subtrees().map(Some))
    });
    if are_ours {
        Ok(())
    } else {
        Err("its name constraints are not those of a development authority")
    }
}

/// The encoded form: a domain name, or an address and its mask.
fn subtree(subtree: &ParsedSubtree<'_>) -> Option<Vec<u8>> {
    match subtree.base {
        GeneralName::DNSName(domain) => Some(domain.as_bytes().to_vec()),
        GeneralName::IPAddress(network) => Some(network.to_vec()),
        _ => None,
    }
}

const PEM_BEGIN: &[u8] = b"-----BEGIN";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc6761_and_rfc1918_only_local_names_and_addresses_are_permitted() {
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
            assert!(is_permitted_name(good), "{good}");
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
            assert!(!is_permitted_name(bad), "{bad}");
        }
    }
}
