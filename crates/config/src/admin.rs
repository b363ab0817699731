//! Where operators look: metrics, console, readiness.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::ConfigError;

/// Where operators look: metrics, console, readiness. [`AdminSettings::new`] has the defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminSettings {
    /// Where it listens.
    pub address: AdminAddress,
    /// A file with the token that a request has to bring. Needed on every address but loopback's
    /// and a unix socket.
    pub token_file: Option<PathBuf>,
    /// Host names by which it may be asked for without a token, besides `localhost` and addresses.
    /// Default none: any other name in a browser's request is a page of somebody else that had its
    /// own name resolved to this machine.
    pub names: Vec<String>,
    /// Who may connect to a unix socket, as permission bits. Default 0600: the process's own user.
    pub socket_mode: u32,
}

/// Where the operators' side listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminAddress {
    /// TCP, without TLS.
    Tcp(SocketAddr),
    /// A unix socket; who may write to it may look.
    Unix(PathBuf),
}

impl AdminSettings {
    /// On `address`, without a token.
    pub fn new(address: AdminAddress) -> Self {
        Self { address, token_file: None, names: Vec::new(), socket_mode: 0o600 }
    }

    /// Whether the settings can be.
    ///
    /// # Errors
    /// [`ConfigError::Setting`] for an address that others reach, without a token.
    pub fn check(&self) -> Result<(), ConfigError> {
        match self.address {
            AdminAddress::Tcp(address) if !is_loopback(address) && self.token_file.is_none() => {
                Err(ConfigError::Setting(format!(
                    "the admin address {address} can be reached from other machines; give a \
                     token_file in [admin], or an address such as 127.0.0.1:9090"
                )))
            }
            _ => Ok(()),
        }
    }
}

/// Whether only this machine reaches it. IPv4 addresses may come in IPv6's clothes.
fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admin_address_that_others_reach_needs_a_token() {
        let check = |address: &str, token: Option<&str>| {
            let mut settings = AdminSettings::new(AdminAddress::Tcp(address.parse().unwrap()));
            settings.token_file = token.map(PathBuf::from);
            settings.check()
        };
        for reachable in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1", "[::ffff:192.0.2.1]:1"] {
            assert!(check(reachable, None).is_err(), "{reachable}");
            assert!(check(reachable, Some("token")).is_ok(), "{reachable}");
        }
        for local in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(check(local, None).is_ok(), "{local}");
        }
        assert!(AdminSettings::new(AdminAddress::Unix("socket".into())).check().is_ok());
    }
}
