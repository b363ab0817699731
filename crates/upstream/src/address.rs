use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use url::{Host, Url};

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ServerAddress {
    /// `http://HOST:PORT` or, with TLS, `https://HOST:PORT`.
    Tcp {
        /// Name or IP address; resolved for each connection.
        host: String,
        /// Port.
        port: u16,
        /// Whether to use TLS.
        tls: bool,
    },
    /// `unix:/PATH`.
    Unix(PathBuf),
}

/// An invalid server address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot forward to {text:?}: {reason}; use {}", ALLOWED)]
pub struct InvalidAddress {
    /// The text.
    pub text: String,
    /// What is wrong with it.
    pub reason: String,
}

const ALLOWED: &str = "http://HOST:PORT, https://HOST:PORT or unix:/PATH";

impl ServerAddress {
    /// Returns the default `Host` of requests to the server: `HOST:PORT`, or `localhost`.
    pub fn authority(&self) -> String {
        match self {
            Self::Tcp { host, port, .. } if host.contains(':') => format!("[{host}]:{port}"),
            Self::Tcp { host, port, .. } => format!("{host}:{port}"),
            Self::Unix(_) => "localhost".to_owned(),
        }
    }

    /// Whether the server uses TLS.
    pub fn is_tls(&self) -> bool {
        matches!(self, Self::Tcp { tls: true, .. })
    }
}

impl FromStr for ServerAddress {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        parse(text).map_err(|reason| InvalidAddress { text: text.to_owned(), reason })
    }
}

fn parse(text: &str) -> Result<ServerAddress, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return match path.starts_with('/') && path.len() > 1 {
            true => Ok(ServerAddress::Unix(PathBuf::from(path))),
            false => Err("the path of a unix socket must start with /".to_owned()),
        };
    }
    if !text.contains("://") {
        return Err(format!("it has no scheme, as in http://{text}"));
    }
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    let tls = match url.scheme() {
        "http" => false,
        "https" => true,
        scheme => return Err(format!("the scheme {scheme} is not supported")),
    };
    if !url.username().is_empty() || url.password().is_some() {
        return Err("it contains a user name or password".to_owned());
    }
    if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
        return Err(
            "it contains a path, query or fragment; the `rewrite` of a route changes the path that is \
             forwarded"
                .to_owned(),
        );
    }
    let host = match url.host() {
        Some(Host::Domain(name)) => name.to_owned(),
        Some(Host::Ipv4(address)) => address.to_string(),
        Some(Host::Ipv6(address)) => address.to_string(),
        None => return Err("it names no host".to_owned()),
    };
    let port = url.port_or_known_default().ok_or("it names no port")?;
    Ok(ServerAddress::Tcp { host, port, tls })
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { tls, .. } => {
                write!(f, "{}://{}", if *tls { "https" } else { "http" }, self.authority())
            }
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_addresses_are_rejected_with_the_reason() {
        for (text, word) in [
            ("localhost:80", "as in http://localhost:80;"),
            ("ftp://localhost", "ftp"),
            ("http://", "host"),
            ("http://localhost/base", "path"),
            ("http://user@localhost", "user name"),
            ("nonsense", "no scheme"),
            ("127.0.0.1:80", "as in http://127.0.0.1:80;"),
            ("unix:relative", "start with /"),
            ("unix:", "start with /"),
        ] {
            let reason = text.parse::<ServerAddress>().unwrap_err().to_string();
            assert!(reason.contains(word) && reason.contains("unix:/PATH"), "{text}: {reason}");
        }
    }

    #[test]
    fn addresses_are_displayed_as_they_were_parsed() {
        for (text, authority) in [
            ("http://[::1]:8080", "[::1]:8080"),
            ("http://localhost:80", "localhost:80"),
            ("https://192.0.2.1:443", "192.0.2.1:443"),
            ("unix:/run/app.sock", "localhost"),
        ] {
            let address: ServerAddress = text.parse().unwrap();
            assert_eq!((address.to_string().as_str(), &*address.authority()), (text, authority));
        }
        let short: ServerAddress = "https://a.test".parse().unwrap();
        assert_eq!((short.authority().as_str(), short.is_tls()), ("a.test:443", true));
    }
}
