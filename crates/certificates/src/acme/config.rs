//! The settings of the section `[acme]`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use firstflight_units::Text;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use url::Url;

use crate::acme::AcmeError;

/// Certificates from an ACME authority (RFC 8555), such as Let's Encrypt, for sites with `acme =
/// true`. See docs/operate/certificates.md.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AcmeConfig {
    /// The URL of the authority's directory, `"https://..."`.
    ///
    /// By default that of Let's Encrypt. For experiments use its staging directory,
    /// `"https://acme-staging-v02.api.letsencrypt.org/directory"`: its rate limits are high, and no
    /// client trusts its certificates.
    #[serde(with = "Text::<Directory>")]
    pub directory: Directory,
    /// Mail addresses at which the authority can reach you.
    ///
    /// By default none; the authority then cannot send warnings.
    pub contact: Vec<String>,
    /// Whether you agree to the authority's terms of service. Without it no certificate is issued.
    ///
    /// By default false, because only you can agree.
    pub terms_agreed: bool,
    /// The directory for the account, keys and certificates. Created with mode 0700.
    ///
    /// By default below the directory that systemd creates for the service.
    pub state: PathBuf,
    /// The challenges by which the authority may validate names, in order of preference:
    /// `"tls-alpn-01"` (it connects to port 443), `"http-01"` (to port 80).
    ///
    /// By default both, so that it is enough if one of the two ports can be reached.
    pub challenges: Vec<ChallengeKind>,
    /// A PEM file with the certificates to trust for the authority's own HTTPS.
    ///
    /// By default the system's authorities; a private authority often needs its own.
    pub authority: Option<PathBuf>,
    /// The type of certificate keys: `"ecdsa-p256"`, `"ecdsa-p384"`, `"rsa-2048"`, `"rsa-3072"`,
    /// `"rsa-4096"`. A change takes effect at the next renewal.
    ///
    /// By default the type with the shortest handshakes that all TLS 1.2 clients support.
    pub key: KeyKind,
    /// An existing account with the authority to which the ACME account is bound; some authorities
    /// require it (RFC 8555 section 7.3.4).
    pub external_account: Option<ExternalAccount>,
}

/// The URL of an authority's directory (RFC 8555 section 7.1.1).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Directory(String);

/// How an authority validates a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub enum ChallengeKind {
    /// A certificate in a handshake on port 443 (RFC 8737).
    #[serde(rename = "tls-alpn-01")]
    TlsAlpn01,
    /// A file on port 80 (RFC 8555 section 8.3).
    #[serde(rename = "http-01")]
    Http01,
}

/// The type of a certificate's key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum KeyKind {
    /// ECDSA on P-256.
    #[default]
    #[serde(rename = "ecdsa-p256")]
    EcdsaP256,
    /// ECDSA on P-384.
    #[serde(rename = "ecdsa-p384")]
    EcdsaP384,
    /// RSA, 2048 bits.
    #[serde(rename = "rsa-2048")]
    Rsa2048,
    /// RSA, 3072 bits.
    #[serde(rename = "rsa-3072")]
    Rsa3072,
    /// RSA, 4096 bits.
    #[serde(rename = "rsa-4096")]
    Rsa4096,
}

/// An existing account to which the ACME account is bound.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExternalAccount {
    /// The identifier of its key (`kid`), as the authority issued it.
    pub id: String,
    /// A file with its MAC key, base64url as the authority issued it.
    pub key: PathBuf,
}

/// Text that is not the URL of a directory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not the URL of an ACME directory; allowed is https://HOST/PATH, such as \
     https://acme-v02.api.letsencrypt.org/directory"
)]
pub struct BadDirectory(String);

impl Default for AcmeConfig {
    fn default() -> Self {
        Self {
            directory: Directory::default(),
            contact: Vec::new(),
            terms_agreed: false,
            state: "/var/lib/firstflight/acme".into(),
            challenges: vec![ChallengeKind::TlsAlpn01, ChallengeKind::Http01],
            authority: None,
            key: KeyKind::default(),
            external_account: None,
        }
    }
}

impl AcmeConfig {
    /// Checks whether a certificate can be requested with these settings.
    ///
    /// # Errors
    /// [`AcmeError::TermsNotAgreed`], [`AcmeError::NoChallenge`] or [`AcmeError::Contact`].
    pub fn check(&self) -> Result<(), AcmeError> {
        if !self.terms_agreed {
            return Err(AcmeError::TermsNotAgreed(self.directory.to_string()));
        }
        if self.challenges.is_empty() {
            return Err(AcmeError::NoChallenge);
        }
        self.contact_urls().map(|_| ())
    }

    /// The contacts as ACME URLs (RFC 8555 section 7.3).
    pub(crate) fn contact_urls(&self) -> Result<Vec<String>, AcmeError> {
        let mailbox = |written: &String| {
            let address = written.strip_prefix("mailto:").unwrap_or(written);
            let valid = |(user, host): (&str, &str)| !user.is_empty() && host.contains('.');
            let forbidden = |c: char| c.is_whitespace() || c.is_control() || "?,@<>".contains(c);
            let parts = address.split_once('@').filter(|parts| valid(*parts));
            match parts
                .filter(|(user, host)| !user.contains(forbidden) && !host.contains(forbidden))
            {
                Some(_) => Ok(format!("mailto:{address}")),
                None => Err(AcmeError::Contact(written.clone())),
            }
        };
        self.contact.iter().map(mailbox).collect()
    }
}

impl Default for Directory {
    fn default() -> Self {
        Self("https://acme-v02.api.letsencrypt.org/directory".to_owned())
    }
}

impl FromStr for Directory {
    type Err = BadDirectory;

    fn from_str(text: &str) -> Result<Self, BadDirectory> {
        let bad = || BadDirectory(text.to_owned());
        let url = Url::parse(text).map_err(|_| bad())?;
        // RFC 8555 section 6.1: HTTPS, always.
        let valid = url.scheme() == "https"
            && url.host_str().is_some()
            && url.username().is_empty()
            && url.password().is_none()
            && url.fragment().is_none();
        if valid { Ok(Self(url.into())) } else { Err(bad()) }
    }
}

impl fmt::Display for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl ChallengeKind {
    /// The name in ACME's registry.
    pub fn name(self) -> &'static str {
        match self {
            Self::TlsAlpn01 => "tls-alpn-01",
            Self::Http01 => "http-01",
        }
    }

    /// The port to which the authority connects, fixed by the RFCs.
    pub fn port(self) -> u16 {
        match self {
            Self::TlsAlpn01 => 443,
            Self::Http01 => 80,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_https_without_secrets() {
        for text in ["https://ca.test/directory", "https://localhost:14000/dir"] {
            assert_eq!(text.parse::<Directory>().unwrap().to_string(), text);
        }
        for text in ["http://ca.test/d", "ca.test", "https://u:p@ca.test/", "https://c/#x", ""] {
            let error = text.parse::<Directory>().unwrap_err().to_string();
            assert!(error.contains("https://HOST"), "{error}");
        }
    }

    #[test]
    fn settings_that_an_authority_would_refuse_are_refused() {
        let agreed = AcmeConfig { terms_agreed: true, ..AcmeConfig::default() };
        assert!(agreed.check().is_ok());
        assert!(matches!(AcmeConfig::default().check(), Err(AcmeError::TermsNotAgreed(_))));
        let none = AcmeConfig { challenges: Vec::new(), ..agreed.clone() };
        assert!(matches!(none.check(), Err(AcmeError::NoChallenge)));
        for bad in ["ops", "@example.org", "a@b@example.org", "ops@example", "a b@example.org"] {
            let config = AcmeConfig { contact: vec![bad.to_owned()], ..agreed.clone() };
            assert!(matches!(config.check(), Err(AcmeError::Contact(_))), "{bad}");
        }
    }

    #[test]
    fn rfc8555_7_3_contacts_are_mailto_urls() {
        let contact = ["ops@example.org", "mailto:ops@example.org"].map(str::to_owned).to_vec();
        let config = AcmeConfig { contact, ..AcmeConfig::default() };
        assert_eq!(config.contact_urls().unwrap(), ["mailto:ops@example.org"; 2]);
    }
}
