//! Where a store listens, as an operator writes it.

use std::path::PathBuf;

use url::{Host, Url};

use crate::{Address, StoreError};

/// A store's address from its URL: `redis://HOST:PORT`, `rediss://HOST:PORT` for TLS, or
/// `unix:///PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreUrl {
    /// The address.
    pub address: Address,
    /// Whether it is spoken to by TLS.
    pub tls: bool,
}

impl StoreUrl {
    /// Reads a URL; without a port it means `default_port`.
    ///
    /// # Errors
    /// [`StoreError::Setting`] with what is allowed. The URL is not repeated if it may hold a
    /// password.
    pub fn parse(text: &str, default_port: u16) -> Result<Self, StoreError> {
        let url = Url::parse(text).map_err(|_| no_url(text))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(StoreError::Setting(
                "user and password do not belong in the store's URL; give username and \
                 password_file"
                    .to_owned(),
            ));
        }
        let tls = match url.scheme() {
            "redis" => false,
            "rediss" => true,
            "unix" => return unix(&url).ok_or_else(|| no_url(text)),
            _ => return Err(no_url(text)),
        };
        let host = match url.host() {
            Some(Host::Domain(name)) if !name.is_empty() => name.to_owned(),
            Some(Host::Ipv4(address)) => address.to_string(),
            Some(Host::Ipv6(address)) => address.to_string(),
            _ => return Err(no_url(text)),
        };
        if !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some() {
            return Err(StoreError::Setting(format!(
                "{text:?} has something behind its port; a database is given by its own setting"
            )));
        }
        let address = Address::Tcp(host, url.port().unwrap_or(default_port));
        Ok(Self { address, tls })
    }
}

fn unix(url: &Url) -> Option<StoreUrl> {
    let plain = url.host().is_none() && url.query().is_none() && url.fragment().is_none();
    let path = PathBuf::from(url.path());
    (plain && path.is_absolute() && !url.path().contains('%') && path.file_name().is_some())
        .then_some(StoreUrl { address: Address::Unix(path), tls: false })
}

fn no_url(text: &str) -> StoreError {
    // What stands before an @ may be a password.
    let shown = text.rsplit('@').next().unwrap_or_default();
    StoreError::Setting(format!(
        "{shown:?} is no address of a store; allowed are redis://HOST:PORT, rediss://HOST:PORT \
         (TLS) and unix:///PATH"
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tcp(text: &str) -> (String, u16, bool) {
        match StoreUrl::parse(text, 6379).unwrap() {
            StoreUrl { address: Address::Tcp(host, port), tls } => (host, port, tls),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn addresses_are_read() {
        assert_eq!(tcp("redis://127.0.0.1:7000"), ("127.0.0.1".into(), 7000, false));
        assert_eq!(tcp("redis://store.example/"), ("store.example".into(), 6379, false));
        assert_eq!(tcp("rediss://[2001:db8::1]:7"), ("2001:db8::1".into(), 7, true));
        let unix = StoreUrl::parse("unix:///run/redis/redis.sock", 6379).unwrap();
        assert_eq!(unix.address, Address::Unix("/run/redis/redis.sock".into()));
    }

    #[test]
    fn what_is_none_is_refused_with_what_is_allowed() {
        for text in [
            "",
            "localhost",
            "localhost:6379",
            "http://localhost",
            "redis://",
            "redis://:6379",
            "redis://h:99999",
            "unix://",
            "unix://host/path",
            "unix:///",
            "unix:relative",
            "redis:h",
        ] {
            let error = StoreUrl::parse(text, 6379).unwrap_err().to_string();
            assert!(error.contains("redis://HOST:PORT"), "{text}: {error}");
        }
        for text in ["redis://h:1/0", "redis://h/?db=1", "rediss://h#insecure"] {
            let error = StoreUrl::parse(text, 6379).unwrap_err().to_string();
            assert!(error.contains("database"), "{text}: {error}");
        }
    }

    #[test]
    fn no_error_repeats_a_password() {
        for text in ["redis://:hush@h", "redis://u:hush@h:1", "redi://u:hush@h", "u:hush@h"] {
            let error = StoreUrl::parse(text, 6379).unwrap_err().to_string();
            assert!(!error.contains("hush"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(redis|rediss|unix)?(:/{0,3})?\\PC{0,40}") {
            let _ = StoreUrl::parse(&text, 6379);
        }
    }
}
