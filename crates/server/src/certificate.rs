//! Certificate and key: from files, or self-signed for trying out.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use firstflight_config::CertificateSource;
use firstflight_tls::{Identity, TlsError};
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use tracing::{info, warn};

use crate::ServerError;

/// The certificate and key for a server that listens on `addresses`.
///
/// # Errors
/// [`ServerError::Tls`], [`ServerError::SelfSigned`] or [`ServerError::SaveCertificate`].
pub(crate) fn identity(
    source: &CertificateSource,
    addresses: &[SocketAddr],
) -> Result<Identity, ServerError> {
    let (names, save) = match source {
        CertificateSource::Files { cert, key } => return Ok(Identity::from_files(cert, key)?),
        CertificateSource::SelfSigned { names, save } => (names, save),
    };
    let (cert, key) = self_signed(&names_for(names, addresses))?;
    if let Some(path) = save {
        fs::write(path, &cert)
            .map_err(|reason| ServerError::SaveCertificate { path: path.clone(), reason })?;
    }
    Ok(Identity::from_pem(cert.as_bytes(), key.as_bytes())?)
}

/// Says how clients come to trust a certificate that was made.
pub(crate) fn announce(source: &CertificateSource) {
    match source {
        CertificateSource::Files { .. } => {}
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
fn names_for(names: &[String], addresses: &[SocketAddr]) -> Vec<String> {
    let mut all = BTreeSet::from(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
    let specific = addresses.iter().map(SocketAddr::ip).filter(|ip| !ip.is_unspecified());
    all.extend(specific.map(|ip| ip.to_string()));
    all.extend(names.iter().cloned());
    all.into_iter().collect()
}

fn self_signed(names: &[String]) -> Result<(String, String), ServerError> {
    let failed = |error: rcgen::Error| ServerError::SelfSigned(error.to_string());
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?;
    let mut params = CertificateParams::new(names).map_err(failed)?;
    params.distinguished_name.push(rcgen::DnType::CommonName, "firstflight, self-signed");
    let certificate = params.self_signed(&key).map_err(failed)?;
    Ok((certificate.pem(), key.serialize_pem()))
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
        let (cert, key) = self_signed(&names).unwrap();
        assert!(Identity::from_pem(cert.as_bytes(), key.as_bytes()).is_ok());
    }

    #[test]
    fn an_impossible_name_is_named() {
        let error = self_signed(&["not a name\u{e9}".to_owned()]).unwrap_err();
        assert!(error.to_string().contains("localhost"), "{error}");
    }
}
