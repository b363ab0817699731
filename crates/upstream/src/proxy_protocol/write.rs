use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::proxy_protocol::{Addresses, Header, SIGNATURE, Version};

/// A header as bytes.
pub fn write(version: Version, header: &Header) -> Vec<u8> {
    match (version, header) {
        (Version::V1, Header::Local) => b"PROXY UNKNOWN\r\n".to_vec(),
        (Version::V1, Header::Proxied(addresses)) => line(addresses).into_bytes(),
        (Version::V2, Header::Local) => binary(0x20, 0x00, &[]),
        (Version::V2, Header::Proxied(addresses)) => {
            let (source, destination) = alike(addresses);
            let (family, mut rest) = match (source, destination) {
                (IpAddr::V4(source), IpAddr::V4(destination)) => {
                    (0x11, [source.octets(), destination.octets()].concat())
                }
                _ => (0x21, [source, destination].map(|ip| mapped(ip).octets()).concat()),
            };
            for end in [addresses.source, addresses.destination] {
                rest.extend(end.port().to_be_bytes());
            }
            binary(0x21, family, &rest)
        }
    }
}

fn line(addresses: &Addresses) -> String {
    let (source, destination) = alike(addresses);
    let family = if source.is_ipv4() { "TCP4" } else { "TCP6" };
    let [from, to] = [addresses.source.port(), addresses.destination.port()];
    format!("PROXY {family} {source} {destination} {from} {to}\r\n")
}

fn binary(version_and_command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).expect("at most 36 bytes of addresses").to_be_bytes();
    [&SIGNATURE[..], &[version_and_command, family], &length, rest].concat()
}

/// Both addresses in one family. An IPv4 client of a dual-stack socket is still an IPv4 client;
/// only where the ends differ does IPv4 become a mapped address.
fn alike(addresses: &Addresses) -> (IpAddr, IpAddr) {
    let canonical = |end: SocketAddr| end.ip().to_canonical();
    match (canonical(addresses.source), canonical(addresses.destination)) {
        (source, destination) if source.is_ipv4() == destination.is_ipv4() => (source, destination),
        (source, destination) => (mapped(source).into(), mapped(destination).into()),
    }
}

fn mapped(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn section_2_1_addresses_of_a_dual_stack_socket_are_ipv4() {
        let header = Header::Proxied(Addresses {
            source: "[::ffff:192.0.2.1]:5".parse().unwrap(),
            destination: "192.0.2.2:443".parse().unwrap(),
        });
        assert_eq!(write(Version::V1, &header), b"PROXY TCP4 192.0.2.1 192.0.2.2 5 443\r\n");
        assert_eq!(write(Version::V2, &header)[12..16], [0x21, 0x11, 0, 12]);
    }

    #[test]
    fn what_speaks_for_itself() {
        assert_eq!(write(Version::V1, &Header::Local), b"PROXY UNKNOWN\r\n");
        assert_eq!(write(Version::V2, &Header::Local)[12..], [0x20, 0, 0, 0]);
    }
}
