//! Where operators look: metrics, console, readiness.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use firstflight_units::Text;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::file::beside;
use crate::{ConfigError, SettingError};

/// Where operators look: metrics, console, readiness. Without this section, nowhere.
// `new` has the defaults.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdminSettings {
    /// Where it listens: an address and port such as `"127.0.0.1:9090"`, without TLS, or a unix
    /// socket such as `"unix:/run/firstflight/admin.sock"`.
    #[serde(with = "Text::<AdminAddress>")]
    pub address: AdminAddress,
    /// A file with the token that a request has to bring, for nobody else to read. Needed on every
    /// address but loopback's and a unix socket.
    #[serde(default)]
    pub token_file: Option<PathBuf>,
    /// Host names by which it may be used without a token, besides `localhost` and addresses.
    ///
    /// By default none: any other name in a browser's request is a page of somebody else that had
    /// its own name resolved to this machine.
    #[serde(default)]
    pub names: Vec<String>,
    /// Who may connect to a unix socket, as permission bits, such as `0o660`.
    ///
    /// By default the process's own user alone (`0o600`).
    #[serde(default = "own_user")]
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
        Self { address, token_file: None, names: Vec::new(), socket_mode: own_user() }
    }

    /// The section of a configuration file, whatever else is in it; `None`: it has none.
    ///
    /// # Errors
    /// [`ConfigError::ConfigFile`], or [`ConfigError::Config`] if the section or the file's form is
    /// wrong.
    pub fn of_file(path: &Path) -> Result<Option<Self>, ConfigError> {
        crate::file::admin_section(path)
    }

    /// The same, with paths as a file in `base` means them.
    pub(crate) fn beside(self, base: &Path) -> Self {
        let address = match self.address {
            AdminAddress::Unix(path) => AdminAddress::Unix(beside(base, path)),
            address => address,
        };
        let token_file = self.token_file.map(|file| beside(base, file));
        Self { address, token_file, ..self }
    }

    /// Whether the settings can be.
    ///
    /// # Errors
    /// An address that others reach, without a token.
    pub fn check(&self) -> Result<(), SettingError> {
        if self.socket_mode > 0o777 {
            let reason = "socket_mode is out of bounds; allowed are permission bits up to 0o777";
            return Err(SettingError::new("socket_mode", reason));
        }
        match self.address {
            AdminAddress::Tcp(address) if !is_loopback(address) && self.token_file.is_none() => {
                let reason = format!(
                    "the admin address {address} can be reached from other machines; give a \
                     token_file in [admin], or an address such as 127.0.0.1:9090"
                );
                Err(SettingError::new("address", reason))
            }
            _ => Ok(()),
        }
    }
}

/// Text that is no address for operators.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no admin address; allowed are such as \"127.0.0.1:9090\" or \
     \"unix:/run/firstflight/admin.sock\""
)]
pub struct BadAdminAddress(String);

impl FromStr for AdminAddress {
    type Err = BadAdminAddress;

    fn from_str(text: &str) -> Result<Self, BadAdminAddress> {
        let bad = || BadAdminAddress(text.to_owned());
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
