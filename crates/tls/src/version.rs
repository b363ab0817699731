//! TLS protocol versions.

use std::fmt;
use std::str::FromStr;

use boring::ssl::SslVersion;

use crate::TlsError;

/// A TLS protocol version, 1.0 (RFC 2246) to 1.3 (RFC 8446), in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// TLS 1.0, RFC 2246.
    Tls10,
    /// TLS 1.1, RFC 4346.
    Tls11,
    /// TLS 1.2, RFC 5246.
    Tls12,
    /// TLS 1.3, RFC 8446: the only one with early data.
    Tls13,
}

impl Version {
    /// All versions, oldest first.
    pub const ALL: [Version; 4] = [Self::Tls10, Self::Tls11, Self::Tls12, Self::Tls13];

    /// The version's name in logs and tables: `TLSv1.3`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tls10 => "TLSv1.0",
            Self::Tls11 => "TLSv1.1",
            Self::Tls12 => "TLSv1.2",
            Self::Tls13 => "TLSv1.3",
        }
    }

    pub(crate) fn to_boring(self) -> SslVersion {
        match self {
            Self::Tls10 => SslVersion::TLS1,
            Self::Tls11 => SslVersion::TLS1_1,
            Self::Tls12 => SslVersion::TLS1_2,
            Self::Tls13 => SslVersion::TLS1_3,
        }
    }

    pub(crate) fn from_boring(version: SslVersion) -> Option<Self> {
        Self::ALL.into_iter().find(|v| v.to_boring() == version)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Parses `1.3`, `TLSv1.3` or `tls1.3`.
impl FromStr for Version {
    type Err = TlsError;

    fn from_str(text: &str) -> Result<Self, TlsError> {
        let lower = text.to_ascii_lowercase();
        match lower.trim_start_matches("tls").trim_start_matches('v') {
            "1.0" | "1" => Ok(Self::Tls10),
            "1.1" => Ok(Self::Tls11),
            "1.2" => Ok(Self::Tls12),
            "1.3" => Ok(Self::Tls13),
            _ => Err(TlsError::UnknownVersion(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_its_own_names() {
        for version in Version::ALL {
            assert_eq!(version.name().parse::<Version>().unwrap(), version);
        }
        assert_eq!("1.3".parse::<Version>().unwrap(), Version::Tls13);
        assert!("1.4".parse::<Version>().unwrap_err().to_string().contains("1.0, 1.1, 1.2 or 1.3"));
    }
}
