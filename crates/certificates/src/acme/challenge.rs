//! What shows the authority that a name leads here.

use std::fmt;

use firstflight_tls::Identity;
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use serde::{Deserialize, Serialize};

use crate::acme::AcmeError;

/// The response to one challenge.
#[derive(Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Proof {
    /// RFC 8555 section 8.3.
    Http {
        /// The last part of the path.
        token: String,
        /// The body.
        authorization: String,
    },
    /// RFC 8737 section 3.
    Alpn {
        /// The server name.
        name: String,
        /// SHA-256 of the key authorization.
        digest: [u8; 32],
    },
}

/// The certificate of RFC 8737 section 3: self-signed, for this name alone, with the digest in a
/// critical extension.
pub(crate) fn alpn_identity(name: &str, digest: [u8; 32]) -> Result<Identity, AcmeError> {
    let what = "the certificate for a challenge";
    let failed = |error: rcgen::Error| AcmeError::Make { what, reason: error.to_string() };
    let mut params = CertificateParams::new([name.to_owned()]).map_err(failed)?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(&digest)];
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = params.self_signed(&key).map_err(failed)?;
    Identity::from_pem(certificate.pem().as_bytes(), key.serialize_pem().as_bytes())
        .map_err(|error| AcmeError::Make { what, reason: error.to_string() })
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http { token, .. } => f.debug_struct("Http").field("token", token).finish(),
            Self::Alpn { name, .. } => f.debug_struct("Alpn").field("name", name).finish(),
        }
    }
}
