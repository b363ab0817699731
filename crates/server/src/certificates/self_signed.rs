//! Certificate and key: from files, or self-signed to be given to clients.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use firstflight_certificates::authority::self_signed;
use firstflight_config::CertificateSource;
use firstflight_tls::{Identity, TlsError};
use tracing::{info, warn};

use crate::ServerError;

/// A certificate that nobody has signed, for a server that listens on `addresses`, with its key.
/// `save`: a file to write it to.
///
/// # Errors
/// [`ServerError::Made`], [`ServerError::Tls`] or [`ServerError::SaveCertificate`].
pub(crate) fn unsigned<'a>(
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

/// What is shown for names that have no certificate yet. Nobody is to trust it.
///
/// # Errors
/// [`ServerError::Made`].
pub(crate) fn placeholder(names: &[String]) -> Result<Identity, ServerError> {
    Ok(self_signed(names)?.identity()?)
}

/// Says how clients come to trust a certificate that was made.
pub(crate) fn announce(source: &CertificateSource) {
    match source {
        CertificateSource::Files { .. }
        | CertificateSource::Development
        | CertificateSource::Acme => {}
        CertificateSource::SelfSigned { save: Some(path), .. } => {
            let path = path.display();
            info!("self-signed certificate for trying out: clients trust it by --cacert {path}");
        }
        CertificateSource::SelfSigned { save: None, .. } => info!(
            "self-signed certificate for trying out: clients need -k, or --cacert FILE after \
             --save-cert FILE here"
        ),
    }
}

/// An identity with the OCSP response in a file. One that is of no use is left out with a warning:
/// clients then do without, as they do with servers that have none.
///
/// # Errors
/// [`ServerError::Tls`]: the file cannot be read.
pub(crate) fn stapled(identity: Identity, file: Option<&Path>) -> Result<Identity, ServerError> {
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

/// `localhost`, the addresses that are one machine's, and the names asked for.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn self_signed_for_names_and_addresses() {
        let names = names_for(
            &["example.test".to_owned()],
            &["192.0.2.1:443".parse().unwrap(), "[::]:443".parse().unwrap()],
        );
        assert!(names.contains(&"192.0.2.1".to_owned()) && !names.contains(&"::".to_owned()));
    }
}
