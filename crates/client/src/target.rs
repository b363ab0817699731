use std::fmt;

use percent_encoding::percent_decode_str;
use url::{Host, Url};

use crate::ClientError;

/// The scheme of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// HTTP over plain TCP.
    Http,
    /// TLS over TCP.
    Https,
}

impl Scheme {
    /// Returns the name as in a URL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// A parsed URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    url: Url,
    text: String,
    scheme: Scheme,
    host: String,
    port: u16,
}

impl Target {
    /// Parses a URL; without a scheme it is `http`, as with curl.
    ///
    /// # Errors
    /// [`ClientError::BadUrl`] or [`ClientError::UnsupportedScheme`].
    pub fn parse(text: &str) -> Result<Self, ClientError> {
        let full = match has_scheme(text) {
            true => text.to_owned(),
            false => format!("http://{text}"),
        };
        let bad = |reason: String| ClientError::BadUrl { url: text.to_owned(), reason };
        let url = Url::parse(&full).map_err(|error| bad(error.to_string()))?;
        Self::from_url(url, text)
    }

    /// Resolves a `Location` field relative to this target (RFC 9110 section 10.2.2).
    ///
    /// # Errors
    /// As [`Target::parse`].
    pub fn join(&self, location: &str) -> Result<Self, ClientError> {
        let url = self.url.join(location).map_err(|error| ClientError::BadUrl {
            url: location.to_owned(),
            reason: error.to_string(),
        })?;
        Self::from_url(url, location)
    }

    /// Returns the scheme.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Returns the host's name or address, an IPv6 address without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the port, by default that of the scheme.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns host and port for the `Host` field: the port only if it is not the scheme's default
    /// (RFC 9110 section 7.2).
    pub fn authority(&self) -> String {
        let host = self.url.host_str().unwrap_or_default();
        match self.url.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        }
    }

    /// Returns path and query (RFC 9112 section 3.2.1).
    pub fn path_and_query(&self) -> String {
        match self.url.query() {
            Some(query) => format!("{}?{query}", self.url.path()),
            None => self.url.path().to_owned(),
        }
    }

    /// Returns the last part of the path, for `-O`.
    pub fn file_name(&self) -> Option<&str> {
        self.url.path().rsplit('/').next().filter(|name| !name.is_empty())
    }

    /// Returns the percent-decoded user name and password, if the URL has them.
    pub fn credentials(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let user = self.url.username();
        let password = self.url.password();
        let decoded = |text| percent_decode_str(text).collect::<Vec<u8>>();
        (!user.is_empty() || password.is_some())
            .then(|| (decoded(user), decoded(password.unwrap_or_default())))
    }

    /// Returns the URL as the user wrote it.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Appends `query` to the URL's query (curl's `-G`).
    pub fn with_query(mut self, query: &str) -> Self {
        let joined = match self.url.query() {
            Some(old) if !old.is_empty() => format!("{old}&{query}"),
            _ => query.to_owned(),
        };
        self.url.set_query(Some(&joined));
        self
    }

    /// Returns whether scheme, host and port are equal.
    pub fn same_origin(&self, other: &Self) -> bool {
        (self.scheme, &self.host, self.port) == (other.scheme, &other.host, other.port)
    }

    fn from_url(url: Url, text: &str) -> Result<Self, ClientError> {
        let scheme = match url.scheme() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            other => return Err(ClientError::UnsupportedScheme(other.to_owned())),
        };
        let host = match url.host() {
            Some(Host::Domain(name)) => name.to_owned(),
            Some(Host::Ipv4(address)) => address.to_string(),
            Some(Host::Ipv6(address)) => address.to_string(),
            None => {
                return Err(ClientError::BadUrl {
                    url: text.to_owned(),
                    reason: "no host".to_owned(),
                });
            }
        };
        let port = url.port_or_known_default().unwrap_or_default();
        Ok(Self { url, text: text.to_owned(), scheme, host, port })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut url = self.url.clone();
        url.set_fragment(None);
        f.write_str(url.as_str())
    }
}

/// Whether a URL starts with a scheme (RFC 3986 section 3.1). A URL in its query does not count.
fn has_scheme(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, _)| {
        scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme.chars().all(|char| char.is_ascii_alphanumeric() || "+-.".contains(char))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_parsed() {
        let target = Target::parse("https://[::1]:8443/a/b?c=d#e").unwrap();
        assert_eq!((target.host(), target.port()), ("::1", 8443));
        assert_eq!(target.authority(), "[::1]:8443");
        assert_eq!(target.path_and_query(), "/a/b?c=d");
        assert_eq!(target.file_name(), Some("b"));
        assert_eq!(target.to_string(), "https://[::1]:8443/a/b?c=d");
        assert_eq!(target.join("/x").unwrap().to_string(), "https://[::1]:8443/x");
    }

    #[test]
    fn rfc9110_7_2_the_host_field_omits_the_default_port() {
        assert_eq!(Target::parse("https://a.example:443/").unwrap().authority(), "a.example");
        assert_eq!(Target::parse("a.example").unwrap().scheme(), Scheme::Http);
    }

    #[test]
    fn rfc3986_3_1_a_scheme_stands_at_the_start_only() {
        for text in ["a.test/?to=https://b.test/", "a.test:80/https://b.test/", "a.test/#x://"] {
            let target = Target::parse(text).unwrap();
            assert_eq!((target.scheme(), target.host()), (Scheme::Http, "a.test"), "{text}");
        }
        assert_eq!(Target::parse("HTTPS://a.test/").unwrap().scheme(), Scheme::Https);
        for text in ["git+ssh://a/", "a.test://b/"] {
            assert_eq!(Target::parse(text).unwrap_err().exit_code(), 1, "{text}");
        }
    }

    #[test]
    fn invalid_urls_have_curls_exit_codes() {
        assert_eq!(Target::parse("https://").unwrap_err().exit_code(), 3);
        assert_eq!(Target::parse("https://a b/").unwrap_err().exit_code(), 3);
        assert_eq!(Target::parse("gopher://a/").unwrap_err().exit_code(), 1);
    }
}
