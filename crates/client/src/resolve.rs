use std::net::{IpAddr, SocketAddr};

use crate::ClientError;

/// The address families to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// Both.
    #[default]
    Any,
    /// IPv4 only (curl's `-4`).
    V4,
    /// IPv6 only (curl's `-6`).
    V6,
}

/// Resolves names to addresses, by the overrides of `--resolve` or else by the system's resolver.
#[derive(Clone, Debug, Default)]
pub struct Resolver {
    /// The address families to use.
    pub family: Family,
    overrides: Vec<AddressOverride>,
}

#[derive(Clone, Debug)]
struct AddressOverride {
    /// `None`: any host (`*`).
    host: Option<String>,
    port: u16,
    addresses: Vec<IpAddr>,
}

impl Resolver {
    /// Adds an override of the form `HOST:PORT:ADDRESS[,ADDRESS...]`, as curl's `--resolve` does.
    /// IPv6 addresses may be in brackets, a leading `+` is allowed, `*` stands for any host.
    ///
    /// # Errors
    /// [`ClientError::Usage`], which names the expected form.
    pub fn add_override(&mut self, entry: &str) -> Result<(), ClientError> {
        let overrides = parse_override(entry).ok_or_else(|| {
            ClientError::Usage(format!(
                "--resolve {entry:?} is not of the form HOST:PORT:ADDRESS[,ADDRESS...]"
            ))
        })?;
        self.overrides.push(overrides);
        Ok(())
    }

    /// Whether a host's addresses come from an override, so that nothing is looked up.
    pub fn has_override(&self, host: &str, port: u16) -> bool {
        self.override_for(host, port).is_some()
    }

    /// Returns the addresses of a host, in the order in which to try them.
    ///
    /// # Errors
    /// [`ClientError::Resolve`].
    pub async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, ClientError> {
        let addresses: Vec<SocketAddr> = if let Some(overrides) = self.override_for(host, port) {
            overrides.addresses.iter().map(|ip| SocketAddr::new(*ip, port)).collect()
        } else if let Ok(ip) = host.parse::<IpAddr>() {
            vec![SocketAddr::new(ip, port)]
        } else {
            tokio::net::lookup_host((name_to_look_up(host), port))
                .await
                .map_err(|error| ClientError::Resolve {
                    host: host.to_owned(),
                    reason: error.to_string(),
                })?
                .collect()
        };
        let usable: Vec<SocketAddr> =
            addresses.into_iter().filter(|address| self.allows(address)).collect();
        if usable.is_empty() {
            return Err(ClientError::Resolve {
                host: host.to_owned(),
                reason: "it has no address of the requested family".to_owned(),
            });
        }
        Ok(usable)
    }

    fn override_for(&self, host: &str, port: u16) -> Option<&AddressOverride> {
        let fits = |overrides: &&AddressOverride| {
            overrides.port == port
                && overrides.host.as_ref().is_none_or(|name| name.eq_ignore_ascii_case(host))
        };
        // The last entry wins, and a name wins over the star.
        let mut fitting = self.overrides.iter().rev().filter(fits);
        fitting.clone().find(|overrides| overrides.host.is_some()).or_else(|| fitting.next())
    }

    fn allows(&self, address: &SocketAddr) -> bool {
        match self.family {
            Family::Any => true,
            Family::V4 => address.is_ipv4(),
            Family::V6 => address.is_ipv6(),
        }
    }
}

/// Maps names below `localhost` to `localhost`, because not every resolver does (RFC 6761 section
/// 6.3).
fn name_to_look_up(host: &str) -> &str {
    let below = host.strip_suffix('.').unwrap_or(host).rsplit_once('.');
    match below {
        Some((_, last)) if last.eq_ignore_ascii_case("localhost") => "localhost",
        _ => host,
    }
}

fn parse_override(entry: &str) -> Option<AddressOverride> {
    let entry = entry.strip_prefix('+').unwrap_or(entry);
    let (host, rest) = match entry.strip_prefix('[') {
        Some(bracketed) => bracketed.split_once("]:")?,
        None => entry.split_once(':')?,
    };
    let (port, list) = rest.split_once(':')?;
    let addresses = list
        .split(',')
        .map(|address| address.trim_start_matches('[').trim_end_matches(']').parse().ok())
        .collect::<Option<Vec<IpAddr>>>()?;
    let host = (host != "*").then(|| host.to_owned());
    (host.as_deref() != Some("")).then_some(())?;
    Some(AddressOverride { host, port: port.parse().ok()?, addresses })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn resolve(entries: &[&str], host: &str) -> Vec<String> {
        let mut resolver = Resolver::default();
        for entry in entries {
            resolver.add_override(entry).unwrap();
        }
        let found = resolver.resolve(host, 443).await.unwrap();
        found.iter().map(ToString::to_string).collect()
    }

    #[tokio::test]
    async fn overrides_take_precedence_over_the_resolver() {
        assert_eq!(resolve(&["a.test:443:127.0.0.1,[::1]"], "A.test").await.len(), 2);
        assert_eq!(
            resolve(&["a.test:443:127.0.0.2", "*:443:127.0.0.3"], "a.test").await,
            ["127.0.0.2:443"]
        );
        assert_eq!(resolve(&["*:443:127.0.0.3"], "b.test").await, ["127.0.0.3:443"]);
    }

    #[tokio::test]
    async fn rfc6761_6_3_names_below_localhost_are_this_machine() {
        for host in ["a.localhost", "A.b.LOCALHOST", "a.localhost."] {
            let found = resolve(&[], host).await;
            assert!(found.contains(&"127.0.0.1:443".to_owned()), "{host}: {found:?}");
        }
        assert_eq!(name_to_look_up("localhost.test"), "localhost.test");
        assert_eq!(name_to_look_up("alocalhost"), "alocalhost");
    }

    #[tokio::test]
    async fn a_family_without_addresses_has_curls_exit_code() {
        let resolver = Resolver { family: Family::V6, ..Resolver::default() };
        assert_eq!(resolver.resolve("127.0.0.1", 1).await.unwrap_err().exit_code(), 6);
    }

    #[test]
    fn malformed_overrides_are_refused() {
        for entry in ["", "a", "a:1", "a:b:127.0.0.1", "a:1:x", ":1:127.0.0.1"] {
            let error = Resolver::default().add_override(entry).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains("HOST:PORT:ADDRESS"), "{error}");
        }
    }
}
