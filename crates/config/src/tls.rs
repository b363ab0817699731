//! TLS: versions, ciphers, tickets; and certificates.

use std::path::PathBuf;

use firstflight_tls::{CipherPolicy, CipherPreference, Version};

/// Versions, ciphers, tickets.
#[derive(Clone, Debug, PartialEq)]
pub struct TlsSettings {
    /// Oldest version.
    pub min_version: Version,
    /// Newest version.
    pub max_version: Version,
    /// Ciphers and groups. Default: the library's.
    pub ciphers: CipherPolicy,
    /// Whose order of ciphers counts.
    pub cipher_preference: CipherPreference,
    /// Tickets a TLS 1.3 handshake.
    pub tickets: usize,
    /// Whether HTTP/2 is offered.
    pub http2: bool,
    /// Where TLS secrets are written (`SSLKEYLOGFILE`). Default nowhere.
    pub key_log: Option<PathBuf>,
}

/// Where certificate and key come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateSource {
    /// Two PEM files, the chain's leaf first.
    Files {
        /// The chain.
        cert: PathBuf,
        /// The key.
        key: PathBuf,
    },
    /// Made by the development authority of the server's user, for localhost, the addresses
    /// listened on and the sites' names; self-signed where that may not vouch for a name.
    Development,
    /// Made at the start: ECDSA P-256, for localhost, the addresses listened on and `names`.
    /// Clients that are given it trust it, and nobody else.
    SelfSigned {
        /// Further host names and addresses.
        names: Vec<String>,
        /// Where to write the certificate (not the key), for clients to trust it.
        save: Option<PathBuf>,
    },
    /// From an authority by ACME, as [`crate::ServerConfig::acme`] says, for the site's names.
    Acme,
}

impl Default for TlsSettings {
    fn default() -> Self {
        Self {
            min_version: Version::Tls12,
            max_version: Version::Tls13,
            ciphers: CipherPolicy::default(),
            cipher_preference: CipherPreference::default(),
            tickets: 2,
            http2: true,
            key_log: None,
        }
    }
}
