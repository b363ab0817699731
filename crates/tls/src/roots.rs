//! Where a machine keeps the certificate authorities that it trusts.

use std::path::{Path, PathBuf};

use boring::ssl::SslContextBuilder;

use crate::TlsError;

/// Believes the machine's authorities. The library looks for `cert.pem` and for names made of
/// hashes in `certs`, both in `/etc/ssl`, as Debian has them, or wherever `SSL_CERT_FILE` and
/// `SSL_CERT_DIR` say. Other systems, and the roots of containers, have all in one file, which lies
/// elsewhere on each.
///
/// # Errors
/// [`TlsError`] with the file that cannot be read.
pub(crate) fn believe(builder: &mut SslContextBuilder) -> Result<(), TlsError> {
    builder
        .set_default_verify_paths()
        .map_err(TlsError::setup("the machine's certificate authorities"))?;
    match bundle(Path::new("/etc/ssl")) {
        Some(file) => crate::trust::believe(&file, builder),
        None => Ok(()),
    }
}

/// The file with all authorities, where the library finds none by itself.
fn bundle(of_the_library: &Path) -> Option<PathBuf> {
    if openssl_probe::has_ssl_cert_env_vars()
        || of_the_library.join("cert.pem").exists()
        || has_hashes(&of_the_library.join("certs"))
    {
        return None;
    }
    openssl_probe::probe().cert_file
}

/// Whether a directory has certificates by the hashes of their subjects, such as `02265526.0`.
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
    fn a_directory_of_one_file_is_none_of_hashes() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!has_hashes(&dir.path().join("none")));
        std::fs::write(dir.path().join("ca-certificates.crt"), "").unwrap();
        std::fs::write(dir.path().join("example.0"), "").unwrap();
        assert!(!has_hashes(dir.path()));
        std::fs::write(dir.path().join("02265526.0"), "").unwrap();
        assert!(has_hashes(dir.path()));
    }
}
