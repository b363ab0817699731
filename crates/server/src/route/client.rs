//! The client of a request that came through trusted proxies.

use std::net::{IpAddr, SocketAddr};

use firstflight_config::IpNetwork;
use http::HeaderMap;

/// The client's address: that of the connection, or if this is a trusted proxy, the last address in
/// `X-Forwarded-For` that is not one. Each proxy appends the address that it was connected from, so
/// everything before an address that is not trusted may be forged.
///
/// The port is unknown, 0, if it is not the connection's address.
pub(crate) fn of_request(
    connection: SocketAddr,
    headers: &HeaderMap,
    trusted: &[IpNetwork],
) -> SocketAddr {
    let is_trusted = |address: IpAddr| trusted.iter().any(|network| network.contains(address));
    if trusted.is_empty() || !is_trusted(connection.ip()) {
        return connection;
    }
    let fields: Vec<_> = headers.get_all("x-forwarded-for").iter().collect();
    let mut client = connection;
    for field in fields.into_iter().rev() {
        let Ok(field) = field.to_str() else { return client };
        for element in field.rsplit(',') {
            let Some(address) = address(element.trim()) else { return client };
            client = SocketAddr::new(address, 0);
            if !is_trusted(address) {
                return client;
            }
        }
    }
    client
}

/// An address, possibly with a port. IPv6 with a port is in brackets.
fn address(text: &str) -> Option<IpAddr> {
    let bare = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let with_port = || Some(text.parse::<SocketAddr>().ok()?.ip());
    text.parse().ok().or_else(bare).or_else(with_port)
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn only_addresses_that_trusted_proxies_append_count() {
        let trusted = ["10.0.0.0/8", "2001:db8::/32"].map(|network| network.parse().unwrap());
        let proxy = "[::ffff:10.0.0.1]:7";
        for (connection, fields, expected) in [
            (proxy, &["198.51.100.7"][..], "198.51.100.7:0"),
            (proxy, &["198.51.100.7:5", "10.0.0.2"], "198.51.100.7:0"),
            (proxy, &["192.0.2.66, 198.51.100.7, 10.9.9.9"], "198.51.100.7:0"),
            (proxy, &["192.0.2.66", "198.51.100.7"], "198.51.100.7:0"),
            (proxy, &["203.0.113.9,[2001:db8::1]:443"], "203.0.113.9:0"),
            (proxy, &["10.0.0.3, 10.0.0.2"], "10.0.0.3:0"),
            (proxy, &["198.51.100.7, unknown, 10.0.0.2"], "10.0.0.2:0"),
            (proxy, &["unknown"], proxy),
            (proxy, &[], proxy),
            // The field of a client that is not a trusted proxy is ignored.
            ("203.0.113.1:9", &["198.51.100.7"], "203.0.113.1:9"),
        ] {
            let name = HeaderName::from_static("x-forwarded-for");
            let mut headers = HeaderMap::new();
            for field in fields {
                headers.append(name.clone(), HeaderValue::from_static(field));
            }
            let client = of_request(connection.parse().unwrap(), &headers, &trusted);
            assert_eq!(client.to_string(), expected, "{connection} {fields:?}");
        }
    }
}
