//! The header of the PROXY protocol, versions 1 and 2, by which a load balancer passes on a
//! client's address. This module parses and writes bytes; it has no sockets.
//!
//! Source: HAProxy's `doc/proxy-protocol.txt`; its sections are named beside the code.
//!
//! ```
//! use firstflight_upstream::proxy_protocol::{Header, read};
//!
//! let bytes = b"PROXY TCP4 192.0.2.7 198.51.100.1 50000 443\r\nGET / HTTP/1.1\r\n";
//! let Some((Header::Proxied(addresses), length)) = read(bytes)? else { panic!("no client") };
//! assert_eq!(addresses.source, "192.0.2.7:50000".parse()?);
//! assert_eq!(&bytes[length..], b"GET / HTTP/1.1\r\n");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The content of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// The peer connects on its own behalf (a health check), or does not name a client: the
    /// connection's own addresses apply.
    Local,
    /// The peer forwards a client's connection.
    Proxied(Addresses),
}

/// The connection that a client made to the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Addresses {
    /// The client's address.
    pub source: SocketAddr,
    /// The proxy's address.
    pub destination: SocketAddr,
}

/// The version of a header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Version {
    /// A line of text.
    V1,
    /// Binary.
    #[default]
    V2,
}

/// The first bytes of every header of version 2 (section 2.2).
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// Why bytes are not a valid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The bytes start like neither version.
    #[error(
        "no PROXY header; configure the proxy to send one, or remove its address from the list"
    )]
    Missing,
    /// An invalid line of version 1.
    #[error("invalid PROXY header of version 1")]
    BadLine,
    /// An unknown version or command.
    #[error("PROXY header with an unknown version or command")]
    Unknown,
    /// Longer than the limit, or shorter than its addresses.
    #[error("PROXY header with an invalid length")]
    BadLength,
}

/// Maximum length of a header in bytes: addresses, and 4 KiB of further fields. Load balancers send
/// a few hundred bytes of such fields.
pub const MAX_HEADER: usize = 16 + 4096;

/// Maximum length of a line of version 1 with its end (section 2.1).
const MAX_LINE: usize = 107;

/// Length of a header of version 2 before the addresses.
const PREAMBLE: usize = 16;

/// Parses the header at the start of `bytes`, and returns it with its length.
///
/// Returns `None` if more bytes are needed. All of `bytes` then belong to the header, so a reader
/// may consume them from a socket without losing a byte of what follows.
///
/// # Errors
/// [`HeaderError`], as soon as the bytes cannot become a valid header.
pub fn read(bytes: &[u8]) -> Result<Option<(Header, usize)>, HeaderError> {
    if has_prefix(bytes, &SIGNATURE) {
        return read_binary(bytes);
    }
    if has_prefix(bytes, b"PROXY ") {
        return read_line(bytes);
    }
    Err(HeaderError::Missing)
}

/// Returns whether `bytes` start with `expected`, or are a prefix of it.
fn has_prefix(bytes: &[u8], expected: &[u8]) -> bool {
    bytes.iter().zip(expected).all(|(byte, expected)| byte == expected)
}

/// Parses a header of version 2 (section 2.2).
fn read_binary(bytes: &[u8]) -> Result<Option<(Header, usize)>, HeaderError> {
    let Some(preamble) = bytes.first_chunk::<PREAMBLE>() else { return Ok(None) };
    let [.., version_and_command, family, high, low] = *preamble;
    let local = match version_and_command {
        0x20 => true,
        0x21 => false,
        _ => return Err(HeaderError::Unknown),
    };
    let length = PREAMBLE + usize::from(u16::from_be_bytes([high, low]));
    if length > MAX_HEADER {
        return Err(HeaderError::BadLength);
    }
    let Some(payload) = bytes.get(PREAMBLE..length) else { return Ok(None) };
    let header = match (local, family) {
        // The addresses of LOCAL are ignored.
        (true, _) => Header::Local,
        (false, 0x11) => addresses::<4>(payload)?,
        (false, 0x21) => addresses::<16>(payload)?,
        // Unspecified, datagrams or unix sockets: the connection's own addresses apply.
        (false, _) => Header::Local,
    };
    Ok(Some((header, length)))
}

/// Parses both addresses, then both ports. Further fields may follow.
fn addresses<const LENGTH: usize>(payload: &[u8]) -> Result<Header, HeaderError>
where
    IpAddr: From<[u8; LENGTH]>,
{
    let bad = HeaderError::BadLength;
    let (source, rest) = payload.split_first_chunk::<LENGTH>().ok_or(bad)?;
    let (destination, rest) = rest.split_first_chunk::<LENGTH>().ok_or(bad)?;
    let (source_port, rest) = rest.split_first_chunk::<2>().ok_or(bad)?;
    let (destination_port, _) = rest.split_first_chunk::<2>().ok_or(bad)?;
    Ok(Header::Proxied(Addresses {
        source: (IpAddr::from(*source), u16::from_be_bytes(*source_port)).into(),
        destination: (IpAddr::from(*destination), u16::from_be_bytes(*destination_port)).into(),
    }))
}

/// Parses a header of version 1 (section 2.1).
fn read_line(bytes: &[u8]) -> Result<Option<(Header, usize)>, HeaderError> {
    let window = &bytes[..bytes.len().min(MAX_LINE)];
    let Some(end) = window.windows(2).position(|pair| pair == b"\r\n") else {
        return if bytes.len() >= MAX_LINE { Err(HeaderError::BadLine) } else { Ok(None) };
    };
    let line = std::str::from_utf8(&window[..end]).map_err(|_| HeaderError::BadLine)?;
    let header = parse_line(line).ok_or(HeaderError::BadLine)?;
    Ok(Some((header, end + 2)))
}

fn parse_line(line: &str) -> Option<Header> {
    let mut words = line.split(' ');
    let [proxy, family] = [words.next()?, words.next()?];
    if proxy != "PROXY" {
        return None;
    }
    let addresses = match family {
        // The rest of the line is ignored.
        "UNKNOWN" => return Some(Header::Local),
        "TCP4" => line_addresses::<Ipv4Addr>(&mut words)?,
        "TCP6" => line_addresses::<Ipv6Addr>(&mut words)?,
        _ => return None,
    };
    words.next().is_none().then_some(Header::Proxied(addresses))
}

fn line_addresses<'a, Address>(words: &mut impl Iterator<Item = &'a str>) -> Option<Addresses>
where
    Address: FromStr + Into<IpAddr>,
{
    let source: Address = words.next()?.parse().ok()?;
    let destination: Address = words.next()?.parse().ok()?;
    let source_port = port(words.next()?)?;
    let destination_port = port(words.next()?)?;
    Some(Addresses {
        source: SocketAddr::new(source.into(), source_port),
        destination: SocketAddr::new(destination.into(), destination_port),
    })
}

/// Parses a port without sign or leading zeros.
fn port(word: &str) -> Option<u16> {
    let canonical = word == "0" || word.starts_with(|first: char| matches!(first, '1'..='9'));
    canonical.then(|| word.parse().ok())?
}

/// Encodes a header.
pub fn write(version: Version, header: &Header) -> Vec<u8> {
    match (version, header) {
        (Version::V1, Header::Local) => b"PROXY UNKNOWN\r\n".to_vec(),
        (Version::V1, Header::Proxied(addresses)) => write_line(addresses).into_bytes(),
        (Version::V2, Header::Local) => write_binary(0x20, 0x00, &[]),
        (Version::V2, Header::Proxied(addresses)) => {
            let (source, destination) = in_one_family(addresses);
            let (family, mut payload) = match (source, destination) {
                (IpAddr::V4(source), IpAddr::V4(destination)) => {
                    (0x11, [source.octets(), destination.octets()].concat())
                }
                _ => (0x21, [source, destination].map(|ip| to_ipv6(ip).octets()).concat()),
            };
            for address in [addresses.source, addresses.destination] {
                payload.extend(address.port().to_be_bytes());
            }
            write_binary(0x21, family, &payload)
        }
    }
}

fn write_line(addresses: &Addresses) -> String {
    let (source, destination) = in_one_family(addresses);
    let family = if source.is_ipv4() { "TCP4" } else { "TCP6" };
    let [from, to] = [addresses.source.port(), addresses.destination.port()];
    format!("PROXY {family} {source} {destination} {from} {to}\r\n")
}

fn write_binary(version_and_command: u8, family: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).expect("at most 36 bytes of addresses").to_be_bytes();
    [&SIGNATURE[..], &[version_and_command, family], &length, payload].concat()
}

/// Converts both addresses to one family. IPv4-mapped addresses, as of dual-stack sockets, become
/// IPv4; IPv4 becomes IPv6 only if the families differ.
fn in_one_family(addresses: &Addresses) -> (IpAddr, IpAddr) {
    let canonical = |address: SocketAddr| address.ip().to_canonical();
    match (canonical(addresses.source), canonical(addresses.destination)) {
        (source, destination) if source.is_ipv4() == destination.is_ipv4() => (source, destination),
        (source, destination) => (to_ipv6(source).into(), to_ipv6(destination).into()),
    }
}

fn to_ipv6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::proxy_protocol::{Version, write};

    fn proxied(source: &str, destination: &str) -> Header {
        let [source, destination] = [source, destination].map(|text| text.parse().unwrap());
        Header::Proxied(Addresses { source, destination })
    }

    #[test]
    fn section_2_1_lines() {
        for (line, header) in [
            ("PROXY TCP4 192.0.2.1 192.0.2.2 5 443\r\n", proxied("192.0.2.1:5", "192.0.2.2:443")),
            (
                "PROXY TCP6 2001:db8::1 2001:db8::2 65535 0\r\n",
                proxied("[2001:db8::1]:65535", "[2001:db8::2]:0"),
            ),
            ("PROXY UNKNOWN\r\n", Header::Local),
            ("PROXY UNKNOWN ffff:: what ever 1\r\n", Header::Local),
        ] {
            let bytes = [line.as_bytes(), b"\x16\x03\x01"].concat();
            assert_eq!(read(&bytes), Ok(Some((header, line.len()))), "{line}");
        }
    }

    #[test]
    fn section_2_1_invalid_lines() {
        for line in [
            "PROXY TCP4 192.0.2.1 192.0.2.2 5\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 5 443 \r\n",
            "PROXY TCP4 192.0.2.1  192.0.2.2 5 443\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 05 443\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 +5 443\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 5 65536\r\n",
            "PROXY TCP4 2001:db8::1 2001:db8::2 5 443\r\n",
            "PROXY TCP6 192.0.2.1 192.0.2.2 5 443\r\n",
            "PROXY tcp4 192.0.2.1 192.0.2.2 5 443\r\n",
            "PROXY UDP4 192.0.2.1 192.0.2.2 5 443\r\n",
            "PROXY \r\n",
            "PROXY TCP4 192.0.2.1\u{a0}192.0.2.2 5 443\r\n",
        ] {
            assert_eq!(read(line.as_bytes()), Err(HeaderError::BadLine), "{line}");
        }
        let endless = format!("PROXY UNKNOWN {}", "x".repeat(MAX_LINE));
        assert_eq!(read(endless.as_bytes()), Err(HeaderError::BadLine));
        // A line feed alone does not end the line.
        assert_eq!(read(b"PROXY UNKNOWN\n"), Ok(None));
    }

    #[test]
    fn section_2_a_start_like_neither_version_is_refused_at_once() {
        for bytes in [&b"\x16"[..], b"GET / HTTP/1.1\r\n", b"PROXX", b"\r\n\r\nx", b"proxy "] {
            assert_eq!(read(bytes), Err(HeaderError::Missing), "{bytes:?}");
        }
        assert_eq!(read(b""), Ok(None));
    }

    #[test]
    fn section_2_2_commands_families_and_lengths() {
        let header = |head: [u8; 2], rest: &[u8]| {
            let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
            [&SIGNATURE[..], &head, &length, rest].concat()
        };
        let ipv4 = [192, 0, 2, 1, 192, 0, 2, 2, 0, 5, 1, 187];
        let expected = proxied("192.0.2.1:5", "192.0.2.2:443");
        let with_fields = [&ipv4[..], &[4, 0, 1, 0]].concat();
        for (bytes, header) in [
            (header([0x21, 0x11], &ipv4), expected),
            (header([0x21, 0x11], &with_fields), expected),
            (header([0x20, 0x11], &ipv4), Header::Local),
            (header([0x20, 0x00], &[]), Header::Local),
            (header([0x21, 0x00], &[1, 2, 3]), Header::Local),
            (header([0x21, 0x12], &ipv4), Header::Local),
            (header([0x21, 0x31], &[0; 216]), Header::Local),
        ] {
            let followed = [&bytes[..], b"\x16"].concat();
            assert_eq!(read(&followed), Ok(Some((header, bytes.len()))), "{bytes:?}");
        }
        for (bytes, error) in [
            (header([0x11, 0x11], &ipv4), HeaderError::Unknown),
            (header([0x22, 0x11], &ipv4), HeaderError::Unknown),
            (header([0x21, 0x11], &ipv4[..11]), HeaderError::BadLength),
            (header([0x21, 0x21], &ipv4), HeaderError::BadLength),
            (header([0x21, 0x11], &[0; 4097]), HeaderError::BadLength),
        ] {
            assert_eq!(read(&bytes), Err(error), "{bytes:?}");
        }
    }

    fn address() -> impl Strategy<Value = SocketAddr> {
        prop_oneof![
            any::<([u8; 4], u16)>().prop_map(|(ip, port)| (ip, port).into()),
            any::<([u16; 8], u16)>().prop_map(|(ip, port)| (ip, port).into()),
        ]
    }

    proptest! {
        #[test]
        fn a_written_header_is_parsed_and_nothing_after_it(
            source in address(),
            destination in address(),
            v1: bool,
            after in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let header = Header::Proxied(Addresses { source, destination });
            let version = if v1 { Version::V1 } else { Version::V2 };
            let bytes = write(version, &header);
            let (read_header, length) = read(&[&bytes[..], &after].concat()).unwrap().unwrap();
            prop_assert_eq!(length, bytes.len());
            for short in 0..length {
                prop_assert_eq!(read(&bytes[..short]), Ok(None));
            }
            let Header::Proxied(parsed) = read_header else { panic!("no addresses") };
            let same = |a: SocketAddr, b: SocketAddr| {
                (a.ip().to_canonical(), a.port()) == (b.ip().to_canonical(), b.port())
            };
            prop_assert!(same(parsed.source, source) && same(parsed.destination, destination));
        }

        #[test]
        fn a_prefix_of_a_header_needs_more_bytes(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            start in 0u8..3,
        ) {
            let bytes = match start {
                0 => bytes,
                1 => [&b"PROXY "[..], &bytes].concat(),
                _ => [&SIGNATURE[..], &[0x21], &bytes].concat(),
            };
            if let Ok(Some((_, length))) = read(&bytes) {
                prop_assert!(length <= bytes.len());
                for short in 0..length {
                    prop_assert_eq!(read(&bytes[..short]), Ok(None));
                }
            }
        }
    }

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
    fn section_2_local_headers() {
        assert_eq!(write(Version::V1, &Header::Local), b"PROXY UNKNOWN\r\n");
        assert_eq!(write(Version::V2, &Header::Local)[12..], [0x20, 0, 0, 0]);
    }
}
