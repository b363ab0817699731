//! The sites' certificates: their sources and their renewal.

pub(crate) mod development;
pub(crate) mod store;

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use firstflight_certificates::acme::{CertificateState, IssuedCertificate};
use firstflight_certificates::authority::self_signed;
use firstflight_config::{CertificateSource as Configured, Content, ServerConfig, Site};
use firstflight_telemetry::metrics::CertificateOrigin;
use firstflight_tls::{Identities, Identity, IdentityEntry, TlsError};
use tracing::{info, warn};

use crate::ServerError;

/// The certificate of a site.
#[derive(Clone, Debug)]
pub struct SiteCertificate {
    /// The site's first name, or `default` if it has no names.
    pub site: String,
    /// All names of the site.
    pub names: Vec<String>,
    /// Where the certificate comes from.
    pub source: CertificateSource,
    /// When it expires, in seconds since 1970. `None` if its date is not valid.
    pub not_after: Option<i64>,
    /// The issued ACME certificate, if one is installed.
    issued: Option<Arc<IssuedCertificate>>,
}

/// Where a certificate comes from.
#[derive(Clone, Debug)]
pub enum CertificateSource {
    /// Two configured files.
    Files,
    /// Self-signed when the server started.
    SelfSigned,
    /// Signed by the user's development authority, or self-signed for names that it is not allowed
    /// to sign.
    Development,
    /// An ACME authority, with the state of the order.
    Acme(Box<CertificateState>),
}

impl CertificateSource {
    /// The source as metrics and status name it.
    pub fn origin(&self) -> CertificateOrigin {
        match self {
            Self::Files => CertificateOrigin::Files,
            Self::SelfSigned => CertificateOrigin::SelfSigned,
            Self::Development => CertificateOrigin::Development,
            Self::Acme(_) => CertificateOrigin::Acme,
        }
    }
}

impl SiteCertificate {
    /// Whether none has been issued yet. Clients then see a self-signed placeholder.
    pub fn is_missing(&self) -> bool {
        matches!(self.source, CertificateSource::Acme(_)) && self.issued.is_none()
    }
}

/// The certificates of a configuration's sites.
pub(crate) fn site_certificates(
    config: &ServerConfig,
    identities: &Identities,
    states: &[CertificateState],
) -> Vec<SiteCertificate> {
    let sources: Vec<&Configured> = match &config.content {
        Content::Sites(content) => {
            let configured = content.sites.iter().map(|site| site.certificate.as_ref());
            configured.map(|own| own.unwrap_or(&config.certificate)).collect()
        }
        Content::PingPong => vec![&config.certificate],
    };
    let certificate =
        |(IdentityEntry { names, identity, .. }, source): (&IdentityEntry, &Configured)| {
            let issued = match source {
                Configured::Acme => issued(states, names).cloned(),
                _ => None,
            };
            SiteCertificate {
                site: names.first().map_or("default", String::as_str).to_owned(),
                names: names.clone(),
                source: match source {
                    Configured::Files { .. } => CertificateSource::Files,
                    Configured::SelfSigned { .. } => CertificateSource::SelfSigned,
                    Configured::Development => CertificateSource::Development,
                    Configured::Acme => CertificateSource::Acme(Box::default()),
                },
                not_after: identity.expires(),
                issued,
            }
        };
    identities.entries().iter().zip(sources).map(certificate).collect()
}

/// The same identities with newly issued ACME certificates in place of the installed ones.
///
/// # Errors
/// [`ServerError::Tls`]: an issued certificate is unusable.
pub(crate) fn with_newer(
    config: &ServerConfig,
    before: &Identities,
    installed: &[SiteCertificate],
    states: &[CertificateState],
) -> Result<Identities, ServerError> {
    let sites: &[Site] = match &config.content {
        Content::Sites(content) => &content.sites,
        Content::PingPong => &[],
    };
    let entry = |(index, (entry, installed)): (usize, (&IdentityEntry, &SiteCertificate))| {
        let Some(issued) = newer(states, installed) else { return Ok(entry.clone()) };
        let unstapled = issued.identity()?;
        let ocsp = sites.get(index).and_then(|site| site.ocsp.as_deref());
        let identity = with_ocsp_file(unstapled.clone(), ocsp).unwrap_or_else(|error| {
            warn!(
                "{error}; the new certificate of {} is used without an OCSP response",
                installed.site
            );
            unstapled
        });
        Ok(IdentityEntry { identity, ..entry.clone() })
    };
    let mut entries = before.entries().iter().zip(installed).enumerate().map(entry);
    let Some(first) = entries.next().transpose()? else { return Ok(before.clone()) };
    let others: Result<_, ServerError> = entries.collect();
    Ok(Identities::new(first, others?)?)
}

/// The certificate that has been issued for a site, unless it is the installed one.
pub(crate) fn newer<'a>(
    states: &'a [CertificateState],
    installed: &SiteCertificate,
) -> Option<&'a Arc<IssuedCertificate>> {
    let CertificateSource::Acme(_) = installed.source else { return None };
    let is_new = |new: &&Arc<IssuedCertificate>| {
        installed.issued.as_ref().is_none_or(|current| current.chain != new.chain)
    };
    issued(states, &installed.names).filter(is_new)
}

/// The certificate for these names, if it has been issued.
pub(crate) fn issued<'a>(
    states: &'a [CertificateState],
    names: &[String],
) -> Option<&'a Arc<IssuedCertificate>> {
    states.iter().find(|state| state.names == names)?.issued.as_ref()
}

/// A self-signed certificate for a server that listens on `addresses`. `save`: a file to write it
/// to.
///
/// # Errors
/// [`ServerError::IssuedCertificate`], [`ServerError::Tls`] or [`ServerError::SaveCertificate`].
pub(crate) fn self_signed_identity<'a>(
    names: impl IntoIterator<Item = &'a String>,
    save: Option<&Path>,
    addresses: &[SocketAddr],
) -> Result<Identity, ServerError> {
    let made = self_signed(&names_for(names, addresses))?;
    if let Some(path) = save {
        fs::write(path, &made.certificate)
            .map_err(|reason| ServerError::SaveCertificate { path: path.to_owned(), reason })?;
    }
    Ok(made.identity()?)
}

/// A self-signed certificate for names that have none yet. Clients are not expected to trust it.
///
/// # Errors
/// [`ServerError::IssuedCertificate`].
pub(crate) fn placeholder(names: &[String]) -> Result<Identity, ServerError> {
    Ok(self_signed(names)?.identity()?)
}

/// Logs how clients can trust a self-signed certificate.
pub(crate) fn announce(source: &Configured) {
    match source {
        Configured::Files { .. } | Configured::Development | Configured::Acme => {}
        Configured::SelfSigned { save: Some(path), .. } => {
            let path = path.display();
            info!("self-signed certificate for testing: clients trust it with --cacert {path}");
        }
        Configured::SelfSigned { save: None, .. } => info!(
            "self-signed certificate for testing: clients need -k, or --cacert FILE after \
             --save-cert FILE here"
        ),
    }
}

/// An identity with the OCSP response from a file. An invalid response is left out with a warning,
/// and clients then proceed as with servers that do not staple.
///
/// # Errors
/// [`ServerError::Tls`]: the file cannot be read.
pub(crate) fn with_ocsp_file(
    identity: Identity,
    file: Option<&Path>,
) -> Result<Identity, ServerError> {
    let Some(path) = file else { return Ok(identity) };
    let response = fs::read(path).map_err(|source| TlsError::File {
        what: "OCSP response",
        path: path.to_owned(),
        source,
    })?;
    match identity.clone().with_ocsp(&response) {
        Ok(stapled) => Ok(stapled),
        Err(error) => {
            warn!("{}: {error}", path.display());
            Ok(identity)
        }
    }
}

/// `localhost`, the loopback addresses, the listeners' addresses and the configured names.
fn names_for<'a>(
    names: impl IntoIterator<Item = &'a String>,
    addresses: &[SocketAddr],
) -> Vec<String> {
    let mut all = BTreeSet::from(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
    let specific = addresses.iter().map(SocketAddr::ip).filter(|ip| !ip.is_unspecified());
    all.extend(specific.map(|ip| ip.to_string()));
    all.extend(names.into_iter().cloned());
    all.into_iter().collect()
}

/// Returns a warning with the fix for each private key file that others can read or write. This is
/// not an error, so that a running deployment keeps starting.
pub fn exposed_keys(config: &ServerConfig) -> Vec<String> {
    let sites = match &config.content {
        Content::Sites(content) => &*content.sites,
        Content::PingPong => &[],
    };
    let configured = sites.iter().filter_map(|site| site.certificate.as_ref());
    let mut keys: Vec<&Path> = std::iter::once(&config.certificate)
        .chain(configured)
        .filter_map(|source| match source {
            Configured::Files { key, .. } => Some(key.as_path()),
            _ => None,
        })
        .collect();
    let others = sites.iter().flat_map(|site| &site.other_certificates);
    keys.extend(others.map(|(_, key)| key.as_path()));
    keys.extend(config.tls.ech.iter().map(PathBuf::as_path));
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter().filter_map(exposure_warning).collect()
}

fn exposure_warning(key: &Path) -> Option<String> {
    let metadata = fs::metadata(key).ok()?;
    let mode = metadata.mode() & 0o777;
    is_exposed(mode, metadata.uid()).then(|| {
        let key = key.display();
        format!("others may read the private key {key} (mode {mode:04o}); run `chmod 600 {key}`")
    })
}

/// Whether others may read or write a key. The group may read a key that root owns: packages give
/// keys to a server that way.
fn is_exposed(mode: u32, owner: u32) -> bool {
    mode & if owner == 0 { 0o037 } else { 0o077 } != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_self_signed_certificate_is_for_names_and_specific_addresses() {
        let names = names_for(
            &["example.test".to_owned()],
            &["192.0.2.1:443".parse().unwrap(), "[::]:443".parse().unwrap()],
        );
        assert!(names.contains(&"192.0.2.1".to_owned()) && !names.contains(&"::".to_owned()));
    }
}

#[cfg(test)]
mod exposed_keys_tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn keys_of_ech_are_private_too() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ech.pem");
        fs::write(&file, "").unwrap();
        let mut config = ServerConfig::default();
        config.tls.ech.push(file.clone());
        for (mode, warnings) in [(0o600, 0), (0o644, 1)] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            let exposed = exposed_keys(&config);
            assert_eq!(exposed.len(), warnings, "{mode:o}: {exposed:?}");
        }
    }

    #[test]
    fn a_group_may_read_keys_owned_by_root() {
        for (mode, owner) in [(0o600, 0), (0o640, 0), (0o400, 1000), (0o600, 1000)] {
            assert!(!is_exposed(mode, owner), "{mode:o} of {owner}");
        }
        for (mode, owner) in [(0o644, 0), (0o660, 0), (0o604, 0), (0o640, 1000), (0o602, 1000)] {
            assert!(is_exposed(mode, owner), "{mode:o} of {owner}");
        }
    }
}
