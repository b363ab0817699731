use std::fs;
use std::path::{Path, PathBuf};

use boring::pkey::{PKey, Private};
use boring::ssl::SslContextBuilder;
use boring::x509::X509;

use crate::TlsError;
use crate::error::reasons;

/// A certificate chain and the private key of its first certificate.
#[derive(Clone)]
pub struct Identity {
    chain: Vec<X509>,
    key: PKey<Private>,
}

impl Identity {
    /// Reads a chain (leaf first) and its key from two PEM files.
    ///
    /// # Errors
    /// [`TlsError::File`], [`TlsError::Pem`] or [`TlsError::Mismatch`], each naming the file.
    pub fn from_files(cert: &Path, key: &Path) -> Result<Self, TlsError> {
        let read = |what, path: &Path| {
            fs::read(path).map_err(|source| TlsError::File { what, path: path.to_owned(), source })
        };
        Self::parse(&read("certificate", cert)?, cert, &read("private key", key)?, key)
    }

    /// The same from bytes in memory.
    ///
    /// # Errors
    /// [`TlsError::Pem`] or [`TlsError::Mismatch`].
    pub fn from_pem(cert: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        Self::parse(cert, Path::new("the certificate"), key, Path::new("the key"))
    }

    fn parse(cert: &[u8], cert_at: &Path, key: &[u8], key_at: &Path) -> Result<Self, TlsError> {
        let pem = |what, path: &Path, reason: String| TlsError::Pem {
            what,
            path: PathBuf::from(path),
            reason,
        };
        let chain = X509::stack_from_pem(cert)
            .map_err(|stack| pem("certificate", cert_at, reasons(&stack)))?;
        let Some(leaf) = chain.first() else {
            return Err(pem("certificate", cert_at, "no certificate block in it".to_owned()));
        };
        let key = PKey::private_key_from_pem(key)
            .map_err(|stack| pem("private key", key_at, reasons(&stack)))?;
        let public =
            leaf.public_key().map_err(|stack| pem("certificate", cert_at, reasons(&stack)))?;
        if !public.public_eq(&key) {
            return Err(TlsError::Mismatch { cert: cert_at.to_owned(), key: key_at.to_owned() });
        }
        Ok(Self { chain, key })
    }

    pub(crate) fn install(&self, context: &mut SslContextBuilder) -> Result<(), TlsError> {
        let (leaf, rest) = self.chain.split_first().expect("a chain is never empty");
        context.set_certificate(leaf).map_err(TlsError::setup("the certificate"))?;
        for certificate in rest {
            context
                .add_extra_chain_cert(certificate.clone())
                .map_err(TlsError::setup("the certificate chain"))?;
        }
        context.set_private_key(&self.key).map_err(TlsError::setup("the private key"))
    }
}
