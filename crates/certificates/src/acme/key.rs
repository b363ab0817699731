//! A new key, and the request to certify it.

use firstflight_tls::generate_rsa_key;
use rcgen::{
    CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384,
};
use zeroize::Zeroizing;

use crate::acme::{AcmeError, KeyKind};

/// A certificate signing request (RFC 8555 section 7.4) and its key.
pub(crate) struct Request {
    pub(crate) der: Vec<u8>,
    /// PKCS #8 in PEM.
    pub(crate) key: Zeroizing<String>,
}

impl Request {
    /// Made on another thread: an RSA key takes a second.
    pub(crate) async fn new(kind: KeyKind, names: Vec<String>) -> Result<Self, AcmeError> {
        let made = tokio::task::spawn_blocking(move || Self::make(kind, &names)).await;
        made.unwrap_or_else(|error| Err(AcmeError::Make { what: WHAT, reason: error.to_string() }))
    }

    /// The request for a key that was made before.
    pub(crate) fn again(key: Zeroizing<String>, names: &[String]) -> Result<Self, AcmeError> {
        let pair = KeyPair::from_pem(&key).map_err(failed)?;
        Ok(Self { der: request(&pair, names)?, key })
    }

    fn make(kind: KeyKind, names: &[String]) -> Result<Self, AcmeError> {
        let rsa = |bits| -> Result<KeyPair, AcmeError> {
            let pem = generate_rsa_key(bits)
                .map_err(|error| AcmeError::Make { what: WHAT, reason: error.to_string() })?;
            KeyPair::from_pem(&Zeroizing::new(pem)).map_err(failed)
        };
        let key = match kind {
            KeyKind::EcdsaP256 => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?,
            KeyKind::EcdsaP384 => KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).map_err(failed)?,
            KeyKind::Rsa2048 => rsa(2048)?,
            KeyKind::Rsa3072 => rsa(3072)?,
            KeyKind::Rsa4096 => rsa(4096)?,
        };
        Ok(Self { der: request(&key, names)?, key: Zeroizing::new(key.serialize_pem()) })
    }
}

fn request(key: &KeyPair, names: &[String]) -> Result<Vec<u8>, AcmeError> {
    let mut params = CertificateParams::new(names).map_err(failed)?;
    // The names say who it is; a subject beside them could only disagree.
    params.distinguished_name = DistinguishedName::new();
    Ok(params.serialize_request(key).map_err(failed)?.der().to_vec())
}

fn failed(error: rcgen::Error) -> AcmeError {
    AcmeError::Make { what: WHAT, reason: error.to_string() }
}

const WHAT: &str = "the certificate's key";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_key_can_be_made() {
        let names = ["example.test".to_owned()];
        for kind in [KeyKind::EcdsaP256, KeyKind::EcdsaP384, KeyKind::Rsa2048] {
            let request = Request::make(kind, &names).unwrap();
            assert!(request.key.starts_with("-----BEGIN PRIVATE KEY-----"), "{kind:?}");
            assert!(request.der.windows(12).any(|bytes| bytes == b"example.test"));
            let again = Request::again(request.key.clone(), &names).unwrap();
            assert_eq!(again.key, request.key);
        }
    }
}
