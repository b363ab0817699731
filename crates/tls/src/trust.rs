//! Certificate verification on the client: which authorities are trusted.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use boring::nid::Nid;
use boring::ssl::{Ssl, SslContextBuilder, SslRef, SslVerifyMode};
use boring::x509::{X509Ref, X509StoreContext, X509StoreContextRef, X509VerifyError};

use crate::context::Slot;
use crate::{TlsError, constraints};

/// Which certificate authorities a client trusts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The system's authorities.
    System,
    /// The system's authorities and those in a PEM file.
    SystemAnd(PathBuf),
    /// Only the authorities in a PEM file (curl's `--cacert`).
    File(PathBuf),
    /// No verification (curl's `-k`): for tests only.
    Anyone,
}

/// The authority under which a connection's certificate was verified.
type Anchor = Arc<OnceLock<String>>;

static ANCHOR: Slot<Anchor> =
    Slot::new(|| Ssl::new_ex_index().expect("an index for the authority of a connection"));

/// Makes a client's context verify certificates.
///
/// # Errors
/// [`TlsError`] with the file that cannot be read.
pub(crate) fn install(trust: &Trust, builder: &mut SslContextBuilder) -> Result<(), TlsError> {
    if *trust == Trust::Anyone {
        builder.set_verify(SslVerifyMode::NONE);
        return Ok(());
    }
    builder.set_verify_callback(SslVerifyMode::PEER, verify);
    if matches!(trust, Trust::System | Trust::SystemAnd(_)) {
        add_system_authorities(builder)?;
    }
    match trust {
        Trust::File(path) | Trust::SystemAnd(path) => add_authorities(path, builder),
        Trust::System | Trust::Anyone => Ok(()),
    }
}

/// Trusts the authorities in a PEM file.
///
/// # Errors
/// [`TlsError`] with the file that cannot be read.
fn add_authorities(path: &Path, builder: &mut SslContextBuilder) -> Result<(), TlsError> {
    std::fs::metadata(path).map_err(|source| TlsError::File {
        what: "certificate authorities",
        path: path.to_owned(),
        source,
    })?;
    builder.set_ca_file(path).map_err(|stack| TlsError::Pem {
        what: "certificate authority",
        path: path.to_owned(),
        reason: crate::error::reasons(&stack),
    })
}

/// Called by BoringSSL with its verdict on each certificate of the chain. Overrides it only for
/// name constraints on addresses, which BoringSSL does not implement.
fn verify(is_valid: bool, context: &mut X509StoreContextRef) -> bool {
    let depth = context.error_depth() as usize;
    if is_valid {
        // The server's certificate is verified last.
        if depth == 0 {
            record_trust_anchor(context);
        }
        return true;
    }
    let satisfied = context.verify_result() == Err(X509VerifyError::UNSUPPORTED_CONSTRAINT_TYPE)
        && context.chain().is_some_and(|chain| constraints::are_satisfied(chain, depth));
    if satisfied {
        context.set_error(Ok(()));
    }
    satisfied
}

fn record_trust_anchor(context: &X509StoreContextRef) {
    let Ok(index) = X509StoreContext::ssl_idx() else { return };
    let anchor = context.ex_data(index).and_then(|ssl| ssl.ex_data(*ANCHOR));
    let chain = context.chain();
    let last = chain.and_then(|chain| chain.get(chain.len().checked_sub(1)?));
    if let (Some(anchor), Some(last)) = (anchor, last) {
        let _ = anchor.set(name(last));
    }
}

/// Returns the common name of a certificate's subject, or else its organization.
fn name(certificate: &X509Ref) -> String {
    let subject = certificate.subject_name();
    let entry = |nid| subject.entries_by_nid(nid).next();
    let entry = entry(Nid::COMMONNAME).or_else(|| entry(Nid::ORGANIZATIONNAME));
    let text = entry.and_then(|entry| entry.data().as_utf8().ok());
    text.map_or_else(|| "an authority without a name".to_owned(), |text| text.to_string())
}

/// Makes a client's connection record the authority of its server's certificate.
pub(crate) fn track_trust_anchor(ssl: &mut Ssl) {
    ssl.set_ex_data(*ANCHOR, Anchor::default());
}

/// Returns the recorded authority.
pub(crate) fn trust_anchor(ssl: &SslRef) -> Option<String> {
    ssl.ex_data(*ANCHOR)?.get().cloned()
}

/// Trusts the system's authorities. BoringSSL reads `/etc/ssl/cert.pem` and hashed file names in
/// `/etc/ssl/certs`, as on Debian, or the locations in `SSL_CERT_FILE` and `SSL_CERT_DIR`. Other
/// systems and container images have one file with all authorities, each in a different location.
///
/// # Errors
/// [`TlsError`] with the file that cannot be read.
fn add_system_authorities(builder: &mut SslContextBuilder) -> Result<(), TlsError> {
    builder
        .set_default_verify_paths()
        .map_err(TlsError::setup("the system's certificate authorities"))?;
    match bundle(Path::new("/etc/ssl")) {
        Some(file) => add_authorities(&file, builder),
        None => Ok(()),
    }
}

/// Finds the file with all authorities, if BoringSSL would find none by itself.
fn bundle(default_directory: &Path) -> Option<PathBuf> {
    if openssl_probe::has_ssl_cert_env_vars()
        || default_directory.join("cert.pem").exists()
        || has_hashes(&default_directory.join("certs"))
    {
        return None;
    }
    openssl_probe::probe().cert_file
}

/// Whether a directory has certificates named by the hashes of their subjects, as `02265526.0`.
fn has_hashes(directory: &Path) -> bool {
    let Ok(mut entries) = directory.read_dir() else { return false };
    entries.any(|entry| {
        let name = entry.map(|entry| entry.file_name());
        let hash = name.as_ref().ok().and_then(|name| name.to_str()?.strip_suffix(".0"));
        hash.is_some_and(|hash| hash.len() == 8 && hash.bytes().all(|b| b.is_ascii_hexdigit()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashed_certificate_names_are_recognized() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!has_hashes(&dir.path().join("none")));
        std::fs::write(dir.path().join("ca-certificates.crt"), "").unwrap();
        std::fs::write(dir.path().join("example.0"), "").unwrap();
        assert!(!has_hashes(dir.path()));
        std::fs::write(dir.path().join("02265526.0"), "").unwrap();
        assert!(has_hashes(dir.path()));
    }
}
