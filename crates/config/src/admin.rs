//! The section `[admin]`.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use firstflight_units::Text;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::file::resolve;
use crate::{ConfigError, SettingError};

/// The admin listener with metrics, console and readiness. Without this section there is none.
// `new` has the defaults.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdminSettings {
    /// Address to listen on: address and port such as `"127.0.0.1:9090"`, without TLS, or a Unix
    /// socket such as `"unix:/run/firstflight/admin.sock"`.
    #[serde(with = "Text::<AdminAddress>")]
    pub address: AdminAddress,
    /// File with the bearer token that requests have to carry; other users must not be able to read
    /// it. Required unless the address is loopback or a Unix socket.
    #[serde(default)]
    pub token_file: Option<PathBuf>,
    /// Host names that are accepted without a token, in addition to `localhost` and IP addresses.
    ///
    /// By default none: another name belongs to a web page that resolved its own name to this
    /// machine (DNS rebinding).
    #[serde(default)]
    pub names: Vec<String>,
    /// Permission bits of the Unix socket, such as `0o660`.
    ///
    /// By default only the process's own user (`0o600`) may connect.
    #[serde(default = "own_user")]
    pub socket_mode: u32,
}

/// The address of the admin listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminAddress {
    /// TCP, without TLS.
    Tcp(SocketAddr),
    /// A Unix socket. Every user with write permission has access.
    Unix(PathBuf),
}

impl AdminSettings {
    /// Listens on `address`, without a token.
    pub fn new(address: AdminAddress) -> Self {
        Self { address, token_file: None, names: Vec::new(), socket_mode: own_user() }
    }

    /// Reads the section of a configuration file, ignoring the others. Returns `None` if there is
    /// none.
    ///
    /// # Errors
    /// [`ConfigError::ConfigFile`], or [`ConfigError::Config`] if the section or the file's syntax
    /// is wrong.
    pub fn from_file(path: &Path) -> Result<Option<Self>, ConfigError> {
        crate::file::admin_section(path)
    }

    /// Resolves paths relative to `base`.
    pub(crate) fn resolve(self, base: &Path) -> Self {
        let address = match self.address {
            AdminAddress::Unix(path) => AdminAddress::Unix(resolve(base, path)),
            address => address,
        };
        let token_file = self.token_file.map(|file| resolve(base, file));
        Self { address, token_file, ..self }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// An address that other machines can reach, without a token.
    pub fn check(&self) -> Result<(), SettingError> {
        if self.socket_mode > 0o777 {
            let reason = "socket_mode is out of range; allowed are permission bits up to 0o777";
            return Err(SettingError::new("socket_mode", reason));
        }
        match self.address {
            AdminAddress::Tcp(address) if !is_loopback(address) && self.token_file.is_none() => {
                let reason = format!(
                    "the admin address {address} can be reached from other machines; set \
                     token_file in [admin], or an address such as 127.0.0.1:9090"
                );
                Err(SettingError::new("address", reason))
            }
            _ => Ok(()),
        }
    }
}

/// Text that is not an admin address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not an admin address; examples are \"127.0.0.1:9090\" or \
     \"unix:/run/firstflight/admin.sock\""
)]
pub struct InvalidAdminAddress(String);

impl FromStr for AdminAddress {
    type Err = InvalidAdminAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAdminAddress> {
        let bad = || InvalidAdminAddress(text.to_owned());
        match text.strip_prefix("unix:") {
            Some("") => Err(bad()),
            Some(path) => Ok(Self::Unix(PathBuf::from(path))),
            None => text.parse().map(Self::Tcp).map_err(|_| bad()),
        }
    }
}

impl fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

fn own_user() -> u32 {
    0o600
}

/// Whether only this machine can reach it. Mapped IPv4 addresses count as IPv4.
fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admin_address_that_other_machines_reach_needs_a_token() {
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
