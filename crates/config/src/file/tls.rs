//! The section `[tls]`.

use std::path::{Path, PathBuf};

use firstflight_tls::{CipherPolicy, CipherPreference, Version};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::resolve;
use crate::{CertificateSource, SettingError, TlsSettings};

/// TLS on all listeners, and the certificate of sites without their own.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct TlsSection {
    /// Oldest TLS version.
    ///
    /// By default the oldest not deprecated by RFC 8996.
    pub(crate) min_version: TlsVersion,
    /// Newest TLS version. HTTP/3 and early data need 1.3.
    ///
    /// By default the newest that exists.
    pub(crate) max_version: TlsVersion,
    /// Ciphers for TLS 1.2 and older, in the syntax of `openssl ciphers`, in order of preference:
    /// `"ECDHE+AESGCM:ECDHE+CHACHA20:ALL"` also accepts clients with only CBC or RSA key exchange.
    /// HTTP/2 is not offered with ciphers that RFC 9113 prohibits.
    ///
    /// By default those with ECDHE (forward secrecy) and AEAD; if `min_version` is older than 1.2,
    /// all others follow, because older versions have none of these.
    pub(crate) ciphers: Option<String>,
    /// Ciphers for TLS 1.3, separated by colons, such as `"TLS_AES_128_GCM_SHA256"`.
    ///
    /// By default all three.
    pub tls13_ciphers: Option<String>,
    /// Groups for the key exchange, such as `"X25519:P-256"`.
    ///
    /// By default those of BoringSSL.
    pub(crate) groups: Option<String>,
    /// Whose order decides among equally good ciphers. With a list in `ciphers`: the server's, or,
    /// with `"client"`, the client's.
    ///
    /// By default what is cheap on both sides.
    pub(crate) cipher_preference: Preference,
    /// Tickets per full TLS 1.3 handshake. A resumed one issues one, in place of the one used.
    ///
    /// By default one for the next connection, and one for a parallel one.
    pub(crate) tickets: usize,
    /// Whether HTTP/2 is offered.
    ///
    /// By default true: it saves connections, and early data works as with HTTP/1.1.
    pub http2: bool,
    /// Whether certificates are compressed (RFC 8879), by Brotli or zlib, for clients that offer
    /// it, as browsers do. Each chain is compressed once.
    ///
    /// By default false: it saves one or two packets of a full handshake, which seldom matters.
    pub(crate) compress_certificates: bool,
    /// Files with keys that decrypt ClientHellos (ECH, RFC 9849), created by `firstflight ech new`:
    /// first the one in DNS, then those of earlier records. A reload picks up changes.
    ///
    /// By default none: only you can publish the DNS record that clients need.
    pub(crate) ech: Vec<PathBuf>,
    /// Certificate chain of sites without their own, PEM, leaf first.
    ///
    /// By default the development authority of the server's user issues one, for experiments
    /// (docs/operate/certificates.md).
    pub(crate) certificate: Option<PathBuf>,
    /// Its private key, PEM.
    pub(crate) key: Option<PathBuf>,
    /// Instead of `certificate`: names and addresses of a self-signed one, in addition to
    /// `localhost` and the listeners' addresses.
    pub(crate) self_signed: Vec<String>,
    /// File to which the self-signed certificate is written, for `--cacert` of clients.
    pub(crate) save_self_signed: Option<PathBuf>,
}

/// Whose order of ciphers is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Preference {
    /// If this machine has AES instructions, AES and ChaCha20 cost it the same, and the client's
    /// order is used: phones without them list ChaCha20 first. Otherwise ChaCha20, if the client
    /// supports it.
    Hardware,
    /// Always the client's.
    Client,
}

/// A TLS version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub(crate) enum TlsVersion {
    /// TLS 1.0, for old clients only; deprecated by RFC 8996.
    #[serde(rename = "1.0")]
    Tls10,
    /// TLS 1.1, likewise.
    #[serde(rename = "1.1")]
    Tls11,
    /// TLS 1.2.
    #[serde(rename = "1.2")]
    Tls12,
    /// TLS 1.3.
    #[serde(rename = "1.3")]
    Tls13,
}

impl TlsSection {
    pub(super) fn settings(
        self,
        base: &Path,
    ) -> Result<(TlsSettings, CertificateSource), SettingError> {
        let certificate = certificate(self.certificate, self.key, base)?;
        let self_signed = !self.self_signed.is_empty() || self.save_self_signed.is_some();
        if certificate.is_some() && self_signed {
            let key = if self.self_signed.is_empty() { "save_self_signed" } else { "self_signed" };
            let reason = "a certificate and a self-signed one exclude each other; remove one";
            return Err(SettingError::new(key, reason));
        }
        let settings = TlsSettings {
            min_version: self.min_version.into(),
            max_version: self.max_version.into(),
            ciphers: CipherPolicy {
                ciphers: self.ciphers,
                tls13_ciphers: self.tls13_ciphers,
                groups: self.groups,
            },
            cipher_preference: self.cipher_preference.into(),
            tickets: self.tickets,
            http2: self.http2,
            compress_certificates: self.compress_certificates,
            ech: self.ech.into_iter().map(|path| resolve(base, path)).collect(),
            key_log: None,
        };
        let save = self.save_self_signed.map(|path| resolve(base, path));
        let generated = match self_signed {
            true => CertificateSource::SelfSigned { names: self.self_signed, save },
            false => CertificateSource::Development,
        };
        Ok((settings, certificate.unwrap_or(generated)))
    }

    pub(super) fn of(settings: &TlsSettings, source: &CertificateSource) -> Self {
        let (certificate, key) = files(Some(source));
        let (self_signed, save_self_signed) = match source.clone() {
            CertificateSource::SelfSigned { names, save } => (names, save),
            CertificateSource::Files { .. }
            | CertificateSource::Development
            | CertificateSource::Acme => (Vec::new(), None),
        };
        Self {
            min_version: settings.min_version.into(),
            max_version: settings.max_version.into(),
            ciphers: settings.ciphers.ciphers.clone(),
            tls13_ciphers: settings.ciphers.tls13_ciphers.clone(),
            groups: settings.ciphers.groups.clone(),
            cipher_preference: settings.cipher_preference.into(),
            tickets: settings.tickets,
            http2: settings.http2,
            compress_certificates: settings.compress_certificates,
            ech: settings.ech.clone(),
            certificate,
            key,
            self_signed,
            save_self_signed,
        }
    }
}

/// Combines a certificate and its key. Returns `None` if neither is set.
pub(super) fn certificate(
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    base: &Path,
) -> Result<Option<CertificateSource>, SettingError> {
    match (cert, key) {
        (Some(cert), Some(key)) => {
            let (cert, key) = (resolve(base, cert), resolve(base, key));
            Ok(Some(CertificateSource::Files { cert, key }))
        }
        (None, None) => Ok(None),
        (Some(_), None) => Err(SettingError::new(
            "certificate",
            "the certificate needs its key; add key = \"FILE\"",
        )),
        (None, Some(_)) => {
            let reason = "the key needs its certificate; add certificate = \"FILE\"";
            Err(SettingError::new("key", reason))
        }
    }
}

/// The files of a certificate source, if it has any.
pub(super) fn files(source: Option<&CertificateSource>) -> (Option<PathBuf>, Option<PathBuf>) {
    match source.cloned() {
        Some(CertificateSource::Files { cert, key }) => (Some(cert), Some(key)),
        _ => (None, None),
    }
}

impl Default for TlsSection {
    fn default() -> Self {
        Self::of(&TlsSettings::default(), &CertificateSource::Development)
    }
}

impl From<TlsVersion> for Version {
    fn from(version: TlsVersion) -> Self {
        match version {
            TlsVersion::Tls10 => Self::Tls10,
            TlsVersion::Tls11 => Self::Tls11,
            TlsVersion::Tls12 => Self::Tls12,
            TlsVersion::Tls13 => Self::Tls13,
        }
    }
}

impl From<Version> for TlsVersion {
    fn from(version: Version) -> Self {
        match version {
            Version::Tls10 => Self::Tls10,
            Version::Tls11 => Self::Tls11,
            Version::Tls12 => Self::Tls12,
            Version::Tls13 => Self::Tls13,
        }
    }
}

impl From<Preference> for CipherPreference {
    fn from(preference: Preference) -> Self {
        match preference {
            Preference::Hardware => Self::Hardware,
            Preference::Client => Self::Client,
        }
    }
}

impl From<CipherPreference> for Preference {
    fn from(preference: CipherPreference) -> Self {
        match preference {
            CipherPreference::Hardware => Self::Hardware,
            CipherPreference::Client => Self::Client,
        }
    }
}
